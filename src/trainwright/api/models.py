"""What the MODEL argument means: told apart by content, then by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trainwright.api.inputs import (
    PlacementInput,
    ProfileInput,
    display_name,
    embed,
    profile_input,
)
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.units import parse_time_unit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainwright.formats.hf_config import ModelDescription
    from trainwright.model import TransformerConfig
    from trainwright.plan.results.request import Embedded
    from trainwright.profile import Profile, ProfileFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """A model without a profile, and what its description left open."""

    config: TransformerConfig
    embedded: Embedded
    warnings: tuple[str, ...] = ()


Input = TypeVar("Input", ProfileInput, ModelInput, PlacementInput)


def resolve_model(
    model: str | Path | Profile | ProfileFile,
    *,
    point: int | None = None,
    given: Mapping[str, float] | None = None,
    time_unit: str | None = None,
) -> ProfileInput | ModelInput:
    """Like `resolve_input`, for commands that do not read placement problems."""
    found = resolve_input(model, point=point, given=given, time_unit=time_unit)
    if isinstance(found, PlacementInput):
        raise UnsupportedFeature(
            f"{model} is a phaze file, which this command does not read",
            alternative="it reads profiles and config.json",
        )
    return found


def resolve_input(
    model: str | Path | Profile | ProfileFile,
    *,
    point: int | None = None,
    given: Mapping[str, float] | None = None,
    time_unit: str | None = None,
) -> ProfileInput | ModelInput | PlacementInput:
    """Read a file or a folder, take a noun as it is, or look a name up in the catalog.

    `given` are fields of `Setting` that stand in where a profile's header lacks them; `time_unit`
    is that of a Piper profile, anything else says its own.
    """
    unit_s = None if time_unit is None else parse_time_unit(time_unit)
    from trainwright.formats.atomic_file import exists
    from trainwright.formats.catalog import model as catalog_model
    from trainwright.formats.catalog import open_model
    from trainwright.formats.hub_cache import is_hub_id
    from trainwright.formats.peft_config import is_adapter
    from trainwright.profile import Profile, ProfileFile

    if isinstance(model, Profile):
        model = ProfileFile(profiles=(model,))
    if isinstance(model, ProfileFile):
        return _no_unit(profile_input(model, name="profile", point=point), unit_s)
    if not isinstance(model, str | Path):
        problem = "must be a name, the path of a file or folder, or a Profile"
        raise InvalidInput.of("model", f"{problem}, got {type(model).__name__}")
    path, name = Path(model), str(model)
    if name == "-":
        raise InvalidInput.of("model", "must be a file; for standard input name /dev/stdin")
    there = exists(path)
    if there and not (path.is_dir() and is_adapter(path)):
        return _read_file(path, point=point, given=given or {}, unit_s=unit_s)
    if there or is_hub_id(name):
        return _no_unit(_own(open_model(name)), unit_s)
    return _no_unit(_described(catalog_model(name)), unit_s)


def _read_file(
    path: Path, *, point: int | None, given: Mapping[str, float], unit_s: float | None
) -> ProfileInput | ModelInput | PlacementInput:
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.detect import ModelFormat, detect, model_file
    from trainwright.formats.json_text import parse_json, scan_json
    from trainwright.formats.piper_json import read_piper
    from trainwright.formats.profile_json import read_profile

    file = model_file(path)
    source, name = str(file), display_name(file)
    data = read_bytes(file, name="model")
    text = scan_json(data, source=source)
    match detect(text.value, source=source):
        case ModelFormat.PIPER:
            profiles = read_piper(
                text.value,
                source=source,
                text_faults=text.faults,
                given=given,
                time_unit_s=unit_s or 1.0,
            )
            made = profile_input(profiles, name=name, point=point)
            return replace(made, unit_assumed=unit_s is None)
        case ModelFormat.PROFILE:
            profiles = read_profile(text.value, source=source, text_faults=text.faults)
        case ModelFormat.HF_CONFIG:
            from trainwright.formats.hf_config import read_config

            config = parse_json(data, source=source, what="config")
            name = file.parent.name if file.name == "config.json" else file.stem
            own = _own(read_config(config, name=name or "model", source=source))
            return _no_unit(own, unit_s)
        case ModelFormat.PHAZE:
            from trainwright.formats.phaze_json import placement_part, read_phaze

            case = read_phaze(text.value, source=source, text_faults=text.faults, given=given)
            content = embed("placement", name, placement_part(text.value))
            return _no_unit(PlacementInput(case=case, embedded=content), unit_s)
        case other:
            raise UnsupportedFeature(
                f"{file} is a {other.value} file, which this command does not read",
                alternative="it reads profiles, placement inputs and config.json",
            )
    return _no_unit(profile_input(profiles, name=name, point=point), unit_s)


def _no_unit(made: Input, unit_s: float | None) -> Input:
    """An input whose file states its unit takes no other; that a model has none is said later."""
    if unit_s is None or isinstance(made, ModelInput):
        return made
    name = made.embedded.name
    problem = f"must be given for a Piper profile only; {name} states its unit, leave it out"
    raise InvalidInput.of("time-unit", problem)


def catalog_input(name: str) -> ModelInput:
    """A model of the catalog, by its name and nothing else."""
    from trainwright.formats.catalog import model as catalog_model

    return _described(catalog_model(name))


def config_input(config: Mapping[str, Any], *, name: str) -> ModelInput:
    """A caller's own `config.json`, already read; raises `InvalidInput` with every fault."""
    from trainwright.formats.hf_config import read_config

    return _own(read_config(config, name=name))


def _own(description: ModelDescription) -> ModelInput:
    """A caller's own config: what it left out is worth knowing."""
    made, name = _described(description), description.name
    defaults = (f"{name}: {key} not given, took {value}" for key, value in description.defaults)
    return replace(made, warnings=(*made.warnings, *defaults))


def _described(description: ModelDescription) -> ModelInput:
    from trainwright.formats.document_json import encode

    content: dict[str, Any] = encode(description.config)
    name = description.name
    warnings = [f"{name}: {note}" for note in description.notes]
    return ModelInput(
        config=description.config,
        embedded=embed("model", description.name, content),
        warnings=tuple(warnings),
    )
