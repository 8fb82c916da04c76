"""The plan inside a document, or a plan written by hand.

Only the decisions are read: `stages`, each with `layers`, `data_parallel`, `tensor_parallel` and
`options` (layer id as text → option id). Prices in the file are ignored; `estimate` makes new ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainwright.errors import Fault, InvalidInput
from trainwright.formats.document_json import decode
from trainwright.formats.json_path import show_typed
from trainwright.plan.results.request import SettingRecord
from trainwright.plan.stage import Stage
from trainwright.profile import Setting

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class _Found:
    """Values of one stage, or `None` where a fault was found."""

    layers: tuple[int, ...] | None
    data_parallel: int | None
    tensor_parallel: int | None
    options: dict[str, str] | None

    @property
    def complete(self) -> bool:
        values = (self.layers, self.data_parallel, self.tensor_parallel, self.options)
        return None not in values


def read_stages(value: object, *, source: str | None = None) -> tuple[Stage, ...]:
    """Stages of a plan; raises `InvalidInput` with every fault."""
    if isinstance(value, dict) and not _is_integer(version := value.get("format_version", 1)):
        problem = f"must be an integer, got {show_typed(version)}"
        raise InvalidInput.of("format_version", problem, source=source)
    stages = value.get("stages") if isinstance(value, dict) else None
    if not isinstance(stages, list) or not stages:
        problem = "must be a non-empty array of stages (layers, data_parallel, tensor_parallel, "
        raise InvalidInput.of("stages", problem + "options)", source=source)
    faults: list[Fault] = []
    made: list[Stage] = []
    for index, stage in enumerate(stages):
        path = f"stages[{index}]"
        if not isinstance(stage, dict):
            faults.append(Fault(path, "must be an object"))
            continue
        found = _read_stage(stage, path, faults)
        missing = list(_missing_options(found, path))
        faults += missing
        if not missing and found.complete:
            made.append(_stage(found))
    if faults:
        raise InvalidInput(faults, source=source)
    return tuple(made)


def _read_stage(stage: dict[str, Any], path: str, faults: list[Fault]) -> _Found:
    layers = stage.get("layers")
    if not isinstance(layers, list) or not layers or not all(map(_is_integer, layers)):
        faults.append(Fault(f"{path}.layers", "must be a non-empty array of layer ids"))
        layers = None
    elif len(set(layers)) < len(layers):
        faults.append(Fault(f"{path}.layers", "must be unique"))
        layers = None
    degrees: list[int | None] = []
    for name in ("data_parallel", "tensor_parallel"):
        degree = stage.get(name, 1)
        if not _is_integer(degree) or degree < 1:
            faults.append(Fault(f"{path}.{name}", f"must be an integer >= 1, got {degree!r}"))
            degrees.append(None)
        else:
            degrees.append(degree)
    options = stage.get("options")
    if not isinstance(options, dict) or not all(isinstance(o, str) for o in options.values()):
        faults.append(Fault(f"{path}.options", "must map each layer id to an option id"))
        options = None
    return _Found(tuple(layers) if layers else None, degrees[0], degrees[1], options)


def _missing_options(found: _Found, path: str) -> Iterator[Fault]:
    if found.layers is None or found.options is None:
        return
    for layer in found.layers:
        if str(layer) not in found.options:
            yield Fault(f"{path}.options", f"must have an entry for layer {layer}, got none")
    known = set(map(str, found.layers))
    for key in found.options:
        if key not in known:
            yield Fault(f'{path}.options["{key}"]', "must be the id of a layer of this stage")


def _stage(found: _Found) -> Stage:
    assert found.layers and found.data_parallel and found.tensor_parallel
    options = found.options or {}
    return Stage.uniform(
        found.layers,
        tuple(options[str(layer)] for layer in found.layers),
        data_parallel=found.data_parallel,
        tensor_parallel=found.tensor_parallel,
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def read_setting(value: object, *, source: str | None = None) -> Setting | None:
    """The setting a plan document was made for; `None` for a plan that does not say."""
    request = value.get("request") if isinstance(value, dict) else None
    setting = request.get("setting") if isinstance(request, dict) else None
    if setting is None:
        return None
    return to_setting(decode(SettingRecord, setting, path="request.setting", source=source))


def to_setting(record: SettingRecord) -> Setting:
    """The noun of a recorded setting; raises `InvalidInput` for values out of range."""
    return Setting(
        num_devices=record.num_devices,
        memory_bytes=record.memory_bytes,
        bandwidth_bytes_per_s=record.bandwidth_bytes_per_s,
        num_microbatches=record.num_microbatches,
    )
