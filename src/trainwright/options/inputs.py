"""What a caller may hand in as a model, and the quantities beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature
from trainwright.formats.atomic_file import exists, read_bytes
from trainwright.formats.document_json import carried, content_hash, decode, encode
from trainwright.formats.json_text import parse_json, quote, scan_json
from trainwright.options.option import Kind, Options
from trainwright.options.table import fields_given
from trainwright.plans.plan import Embedded, SettingRecord
from trainwright.profile import Profile, ProfileFile, Setting
from trainwright.profile.profile import PlacementCase
from trainwright.units import parse_time_unit

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.formats.hf_config import ModelDescription
    from trainwright.model import TransformerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileInput:
    """A profiled model: its profile, the setting its file states, and itself as embedded JSON.

    `unit_assumed` says that its times were taken for seconds without the file saying so; `points`
    are the profiles that a plan on a cluster may choose from, beside the one. Options by which a
    model was traced are `used`.
    """

    profile: Profile
    setting: Setting | None
    embedded: Embedded
    points: tuple[Profile, ...] = ()
    unit_assumed: bool = False
    warnings: tuple[str, ...] = ()
    used: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementInput:
    """A placement problem, its setting replaced where the caller says so, and itself as JSON."""

    case: PlacementCase
    embedded: Embedded
    warnings: tuple[str, ...] = ()


def embed(kind: str, name: str, content: dict[str, Any]) -> Embedded:
    """Wrap an input for a document, with the hash of its canonical JSON."""
    return Embedded(kind=kind, name=name, sha256=content_hash(content), content=content)


def embed_cluster(cluster: Cluster) -> Embedded:
    """The cluster as a document carries it."""
    return embed("cluster", cluster.name, encode(cluster))


def profile_input(
    file: ProfileFile, *, name: str, point: int | None, on_cluster: bool = False
) -> ProfileInput:
    """Pick one point of a profile file; with several, `point` (an index) must say which.

    On a cluster all points are offered unless one is picked, and the file's setting means nothing.
    """
    from trainwright.formats.profile_json import write_profile

    count = len(file.profiles)
    if on_cluster:
        file = replace(file, setting=None)
        if point is None:
            return ProfileInput(
                profile=file.profiles[0],
                setting=None,
                embedded=embed("profile", name, write_profile(file)),
                points=file.profiles,
            )
    if point is None and count > 1:
        raise InvalidInput.of("point", f"must say which of the {count} points (0 to {count - 1})")
    index = point or 0
    if not 0 <= index < count:
        raise InvalidInput.of("point", f"must be from 0 to {count - 1}, got {index}")
    one = replace(file, profiles=(file.profiles[index],))
    return ProfileInput(
        profile=one.profiles[0],
        setting=one.setting,
        embedded=embed("profile", name, write_profile(one)),
        points=one.profiles,
    )


def with_costs_of(model: str | Callable[..., Any], given: ProfileInput) -> tuple[ProfileInput, str]:
    """The profile with the costs that a plug-in gives its layers, and a line that says so.

    Raises `InvalidInput` where it returns other layers or other options.
    """
    from trainwright.formats.profile_json import write_profile
    from trainwright.plugins import COST_MODELS, plug_in

    plugin = plug_in("cost-model", COST_MODELS, model, ())
    made = plugin.call(Profile, given.profile)
    if made is None or made.structure.ids != given.profile.structure.ids:
        raise plugin.fault("must return a Profile of the same layers")
    file = ProfileFile(profiles=(made,), setting=given.setting)
    own = embed("profile", given.embedded.name, write_profile(file))
    note = f"costs of {given.embedded.name} are those of the plug-in {plugin.name}"
    return replace(given, profile=made, embedded=own, points=(made,)), note


def setting_overrides(options: Options) -> dict[str, float]:
    """What the caller gave, as fields of `Setting`.

    Raises `InvalidInput` naming the option where a value breaks the rule of its field.
    """
    given = fields_given("plan", "setting", options)
    if isinstance(given.get("num_devices"), str):
        raise InvalidInput.of("devices", f'must be one number, got "{given["num_devices"]}"')
    _make_setting({"num_devices": 1, "memory_bytes": 1.0, **_HARMLESS, **given})
    return given


_OF_SETTING: Final = {
    "num_devices": "devices",
    "memory_bytes": "memory",
    "bandwidth_bytes_per_s": "bandwidth",
    "num_microbatches": "microbatches",
}
_HARMLESS = {"bandwidth_bytes_per_s": 1.0, "num_microbatches": 1}
_NO_HEADER: Final = {"num_devices": 1, "memory_bytes": 1.0, **_HARMLESS}  # of a Piper profile


def resolve_setting(stated: Setting | None, overrides: Mapping[str, float]) -> Setting:
    """The setting a profile states, with the caller's overrides; every missing field is named."""
    values = {name: overrides.get(name, getattr(stated, name, None)) for name in _OF_SETTING}
    missing = [_OF_SETTING[name] for name, value in values.items() if value is None]
    if missing:
        raise InvalidInput(
            Fault(option, f"the profile does not state it; give --{option}") for option in missing
        )
    return _make_setting(values)


def _make_setting(values: dict[str, Any]) -> Setting:
    with naming_options(_OF_SETTING):
        return Setting(**values)


@contextmanager
def naming_options(option_of: Mapping[str, str]) -> Iterator[None]:
    """Let faults of a noun's fields name the options they came from."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(
            (Fault(option_of.get(fault.path, fault.path), fault.problem) for fault in error.faults),
            source=error.source,
        ) from None


def setting_record(setting: Setting) -> SettingRecord:
    """The setting as a document carries it."""
    return SettingRecord(
        num_devices=setting.num_devices,
        memory_bytes=setting.memory_bytes,
        bandwidth_bytes_per_s=setting.bandwidth_bytes_per_s,
        num_microbatches=setting.num_microbatches,
    )


def display_name(path: str | Path) -> str:
    """How a file is named in documents: without folders, which mean nothing elsewhere."""
    return Path(path).name


@contextmanager
def inside(path: str) -> Iterator[None]:
    """Faults found in a part of the document, under the part's own path."""
    try:
        yield
    except InvalidInput as error:
        faults = (Fault(f"{path}.{fault.path}", fault.problem) for fault in error.faults)
        raise InvalidInput(faults) from None


# What a MODEL file is, told by its content
# -----------------------------------------


class ModelFormat(StrEnum):
    """The formats of a MODEL file."""

    PIPER = "piper"
    PROFILE = "profile"
    HF_CONFIG = "hf_config"
    PHAZE = "phaze"
    GALVATRON = "galvatron"
    METIS = "metis"
    DOCUMENT = "document"


_PIPER_FIELDS: Final = frozenset(
    {"nodes", "edges", "maxDevices", "maxMemoryPerDevice", "mbsInBatch", "maxBatchSize"}
)
_HF_FIELDS: Final = frozenset({"model_type", "architectures"})
_HF_CONFIG_NAME: Final = "config.json"
_GALVATRON_KEYS: Final = ("layertype_", "layernum[", "other_memory_pp_")
_METIS_FIELDS: Final = frozenset({"execution_time", "execution_memory"})
# What a folder may hold in place of a config.json.
_TABLES: Final = ("DeviceType.*_tp*_bs*.json", "computation_profiling_*.json")
_CARRIED: Final = "request.model.content"  # of a document
_LOOKED_FOR: Final = (
    'a Piper profile ("nodes", "edges"), a trainwright profile ("kind": "profile"), '
    'a Hugging Face config ("model_type" or "architectures"), '
    'a table of Galvatron ("layertype_0…") or Metis ("execution_time"), '
    'a PHAZE placement input ("nodes" by tensor width) or a trainwright document ("kind")'
)


def model_file(path: str | Path) -> Path:
    """The file to read: `path` itself, or the config.json or first table of a folder."""
    path = Path(path)
    if not path.is_dir():
        return path
    if (path / _HF_CONFIG_NAME).is_file():
        return path / _HF_CONFIG_NAME
    if tables := [table for pattern in _TABLES for table in sorted(path.glob(pattern))]:
        return tables[0]
    raise InvalidInput.of("model", f'must be a file or a folder with config.json, got "{path}"')


def detect(value: Mapping[str, Any], *, source: str | None = None) -> ModelFormat:
    """Tell the format of a parsed JSON object; raises `InvalidInput` for none of them.

    A file that is nearly one of the formats is taken for that one, so that its reader can name what
    is wrong. Placement inputs wrap PHAZE's own file in `input`; both are recognised.
    """
    wrapped = value.get("input")
    placement = wrapped if isinstance(wrapped, dict) else value
    if value.get("kind") == "profile":
        return ModelFormat.PROFILE
    if isinstance(placement.get("nodes"), dict):
        return ModelFormat.PHAZE
    if not _PIPER_FIELDS.isdisjoint(value):
        return ModelFormat.PIPER
    if not _HF_FIELDS.isdisjoint(value):
        return ModelFormat.HF_CONFIG
    if any(key.startswith(_GALVATRON_KEYS) for key in value):
        return ModelFormat.GALVATRON
    if not _METIS_FIELDS.isdisjoint(value):
        return ModelFormat.METIS
    if isinstance(value.get("kind"), str):
        return ModelFormat.DOCUMENT
    if isinstance(value.get("points"), list):
        return ModelFormat.PROFILE
    got = f"keys {_keys(value)}" if value else "an object without keys"
    raise InvalidInput.of("model", f"must be one of: {_LOOKED_FOR}; got {got}", source=source)


def _keys(value: Mapping[str, Any]) -> str:
    shown = ", ".join(quote(key) for key in list(value)[:6])
    return f"{shown}, …" if len(value) > 6 else shown


# What the MODEL argument means: told apart by content, then by name
# ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """A model without a profile, what its description left open, and the longest it states.

    `document` is the file of ours that carries it, if one does.
    """

    config: TransformerConfig
    embedded: Embedded
    warnings: tuple[str, ...] = ()
    positions: int | None = None
    document: str | None = None

    def beyond(self, sequence: int | None) -> tuple[str, ...]:
        """What to say of a sequence (in tokens) that is longer than the model states."""
        if self.positions is None or sequence is None or sequence <= self.positions:
            return ()
        stated = f"the {self.positions:,} positions that {self.embedded.name} states"
        return (f"sequence: {sequence:,} tokens are more than {stated}; priced all the same",)


Input = TypeVar("Input", ProfileInput, ModelInput, PlacementInput)


def resolve_model(model: str | Path | Profile | ProfileFile) -> ModelInput:
    """Like `resolve_input`, for commands that ask what layers are, whatever they cost."""
    found = no_placement(resolve_input(model, on_cluster=True), model)
    if not isinstance(found, ModelInput):
        raise InvalidInput.of("model", "must be a model, not a profile")
    return found


def no_placement(
    found: ProfileInput | ModelInput | PlacementInput, model: object
) -> ProfileInput | ModelInput:
    """What was read from `model`; raises `UnsupportedFeature` for a placement problem."""
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
    on_cluster: bool = False,
) -> ProfileInput | ModelInput | PlacementInput:
    """Read a file or a folder, take a noun as it is, or look a name up in the catalog.

    `given` are fields of `Setting` that stand in where a profile's header lacks them; `time_unit`
    is that of a Piper profile, anything else says its own. `on_cluster` says that a profile is to
    be planned on a cluster, which takes the place of its header.
    """
    unit_s = None if time_unit is None else parse_time_unit(time_unit)

    if isinstance(model, Profile):
        model = ProfileFile(profiles=(model,))
    if isinstance(model, ProfileFile):
        return _no_unit(
            profile_input(model, name="profile", point=point, on_cluster=on_cluster), unit_s
        )
    if not isinstance(model, str | Path):
        problem = "must be a name, the path of a file or folder, or a Profile"
        raise InvalidInput.of("model", f"{problem}, got {type(model).__name__}")
    path, name = Path(model), str(model)
    if on_cluster:
        given = {**_NO_HEADER, **(given or {})}
    if name == "-":
        raise InvalidInput.of("model", "must be a file; for standard input name /dev/stdin")
    if exists(path) and not path.is_dir():
        return _read_file(
            path, point=point, given=given or {}, unit_s=unit_s, on_cluster=on_cluster
        )
    # A program that plans a profile need not load what knows the models.
    from trainwright.formats.catalog import open_model
    from trainwright.formats.hf_config import is_adapter, is_hub_id

    there = exists(path)
    if there and not is_adapter(path):
        return _read_file(
            path, point=point, given=given or {}, unit_s=unit_s, on_cluster=on_cluster
        )
    if there or is_hub_id(name):
        return _no_unit(_own(open_model(name)), unit_s)
    return _no_unit(catalog_input(name), unit_s)


# Endings of files that jobs have and models have not.
_NOT_JSON: Final = frozenset({".yaml", ".yml", ".toml", ".py", ".sh", ".sbatch", ".slurm", ".log"})


def _read_file(
    path: Path,
    *,
    point: int | None,
    given: Mapping[str, float],
    unit_s: float | None,
    on_cluster: bool,
) -> ProfileInput | ModelInput | PlacementInput:
    from trainwright.formats.piper_json import read_piper
    from trainwright.formats.profile_json import read_profile

    file = model_file(path)
    source, name = str(file), display_name(file)
    data = read_bytes(file, name="model")
    try:
        text = scan_json(data, source=source, what="model")
    except InvalidInput:
        if file.suffix.lower() not in _NOT_JSON:
            raise
        wanted = "must be JSON (a config.json, a profile, a document), and is no job whose format"
        fix = "estimate and improve read a job with --from FORMAT FILE"
        raise InvalidInput.of("model", f"{wanted} is told by its content; {fix}") from None
    match detect(text.value, source=source):
        case ModelFormat.PIPER:
            profiles = read_piper(
                text.value,
                source=source,
                text_faults=text.faults,
                given=given,
                time_unit_s=unit_s or 1.0,
            )
            made = profile_input(profiles, name=name, point=point, on_cluster=on_cluster)
            return replace(made, unit_assumed=unit_s is None)
        case ModelFormat.PROFILE:
            profiles = read_profile(text.value, source=source, text_faults=text.faults)
        case ModelFormat.GALVATRON | ModelFormat.METIS as planner:
            from trainwright.formats.galvatron_json import read_galvatron
            from trainwright.formats.metis_json import read_metis

            read = read_metis if planner is ModelFormat.METIS else read_galvatron
            profiles, notes = read(path)
            made = profile_input(
                profiles, name=display_name(path), point=point, on_cluster=on_cluster
            )
            return _no_unit(replace(made, warnings=notes), unit_s)
        case ModelFormat.HF_CONFIG:
            from trainwright.formats.hf_config import name_of, read_config

            config = parse_json(data, source=source, what="config")
            own = _own(read_config(config, name=name_of(file), source=source))
            return _no_unit(own, unit_s)
        case ModelFormat.PHAZE:
            from trainwright.formats.phaze_json import placement_part, read_phaze

            case = read_phaze(text.value, source=source, text_faults=text.faults, given=given)
            content = embed("placement", name, placement_part(text.value))
            return _no_unit(PlacementInput(case=case, embedded=content), unit_s)
        case ModelFormat.DOCUMENT:
            part = carried(text.value, "model", source=source)
            name = part.name
            if part.kind == "model":
                from trainwright.model import TransformerConfig

                described = decode(TransformerConfig, part.content, path=_CARRIED, source=source)
                own = ModelInput(config=described, embedded=part, document=source)
                return _no_unit(own, unit_s)
            with inside(_CARRIED):
                if part.kind == "placement":
                    from trainwright.formats.phaze_json import read_phaze

                    case = read_phaze(part.content, given=given)
                    return _no_unit(PlacementInput(case=case, embedded=part), unit_s)
                profiles = read_profile(part.content)
    made = profile_input(profiles, name=name, point=point, on_cluster=on_cluster)
    return _no_unit(made, unit_s)


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


def config_input(config: Mapping[str, Any]) -> ModelInput:
    """A caller's own `config.json`, already read; raises `InvalidInput` with every fault."""
    from trainwright.formats.hf_config import read_config

    return _own(read_config(config, name="config.json"))


def _own(description: ModelDescription) -> ModelInput:
    """A caller's own config: what it left out is worth knowing."""
    made, name = _described(description), description.name
    first = (f"{name}: {doubt}" for doubt in description.doubts)
    others = description.further_defaults
    defaults = (f"{name}: {key} not given, took {value}" for key, value in others)
    return replace(made, warnings=(*first, *made.warnings, *defaults))


def _described(description: ModelDescription) -> ModelInput:
    content: dict[str, Any] = encode(description.config)
    name = description.name
    warnings = [f"{name}: {note}" for note in description.notes]
    return ModelInput(
        config=description.config,
        embedded=embed("model", description.name, content),
        warnings=tuple(warnings),
        positions=description.positions,
    )


def kind_of(given: ModelInput | ProfileInput | PlacementInput, *, on_cluster: bool = False) -> Kind:
    """What was handed in; a profile that is planned on a cluster is asked another question."""
    if isinstance(given, ModelInput):
        return Kind.MODEL
    if isinstance(given, PlacementInput):
        return Kind.PLACEMENT
    return Kind.MEASURED if on_cluster else Kind.PROFILE


def unused(given: ModelInput | ProfileInput | PlacementInput, options: Options) -> Options:
    """The options without those that made a profile of a model."""
    used = given.used if isinstance(given, ProfileInput) else ()
    return {name: value for name, value in options.items() if name not in used}
