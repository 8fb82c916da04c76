"""Calibrations as TOML: a small file that a user can read, keep and share.

```toml
[[calibration]]
accelerator = "A100-80GB-SXM"
line = "megatron-2021"            # the software
source = "which runs it was fitted to"
rows = 4
upon = "megatron"                 # what is pooled for a program; without it, the description
low_ratio = 0.95                  # nine of ten steps take between low_ratio and
high_ratio = 1.06                 # high_ratio times the predicted time
[calibration.constants]
gemm_max = { value = 0.66, low = 0.62, high = 0.70 }
[[calibration.spreads]]           # where steps scatter more, a range of its own
when = "experts"
low_ratio = 0.80
high_ratio = 1.30
```
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from trainwright.cluster import Calibration, Circumstance, Constant, Spread
from trainwright.cluster.calibration import (
    Distance,
    Effect,
    PooledEfficiencies,
    Range,
    SoftwareClass,
)
from trainwright.cluster.framework_memory import Figure, FrameworkMemory, Share, memory_of_software
from trainwright.errors import Fault, InvalidInput
from trainwright.formats.atomic_file import read_toml, write_text
from trainwright.formats.document_json import decode
from trainwright.formats.records import AtLeast, Closed, json_schema
from trainwright.units import MIB

if TYPE_CHECKING:
    from trainwright.plans.configuration import MemoryOverheads

_Count = Annotated[int, AtLeast(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConstantTable(Closed):
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _SpreadTable(Closed):
    when: Circumstance
    low_ratio: float
    high_ratio: float
    rows: _Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _CalibrationTable(Closed):
    accelerator: str
    line: str
    source: str
    low_ratio: float
    high_ratio: float
    rows: _Count = 0
    upon: str | None = None
    constants: dict[str, _ConstantTable] = field(default_factory=dict)
    spreads: tuple[_SpreadTable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """Efficiencies fitted to measured runs, by accelerator and software, as TOML is read."""

    calibration: tuple[_CalibrationTable, ...]


def calibration_schema() -> dict[str, Any]:
    """The JSON Schema of a file, in which a number is short for a constant of that value."""
    made = json_schema(_File, title="calibration file")
    constants = made["$defs"]["_CalibrationTable"]["properties"]["constants"]
    whole = constants["additionalProperties"]
    constants["additionalProperties"] = {"anyOf": [whole, {"type": "number"}]}
    return made


@cache
def built_in_calibrations() -> tuple[Calibration, ...]:
    """The constants that ship with the package."""
    file = resources.files("trainwright.cluster") / "calibrations.toml"
    return read_calibrations(tomllib.loads(file.read_text(encoding="utf-8")))


def load_calibrations(path: Path) -> tuple[Calibration, ...]:
    """Read a file; raises `InvalidInput` where it is missing, not TOML or breaks a rule."""
    return read_calibrations(read_toml(path, name="calibration"), source=str(path))


def read_calibrations(
    document: Mapping[str, Any], *, source: str | None = None
) -> tuple[Calibration, ...]:
    """Turn the content of a file into calibrations; raises `InvalidInput` with all faults."""
    file = decode(_File, _with_bare_constants(document), source=source)
    made, faults = [], []
    for index, table in enumerate(file.calibration):
        try:
            made.append(_calibration(table))
        except InvalidInput as error:
            here = f"calibration[{index}]"
            faults += [Fault(f"{here}.{fault.path}", fault.problem) for fault in error.faults]
    if faults:
        raise InvalidInput(faults, source=source)
    return tuple(made)


def _with_bare_constants(document: Mapping[str, Any]) -> dict[str, Any]:
    """`name = 0.6` is short for `name = { value = 0.6 }`."""

    def whole(table: object) -> object:
        if not isinstance(table, dict) or not isinstance(table.get("constants"), dict):
            return table
        constants = {
            name: value if isinstance(value, dict) else {"value": value}
            for name, value in table["constants"].items()
        }
        return table | {"constants": constants}

    found = dict(document)
    if isinstance(tables := found.get("calibration"), list):
        found["calibration"] = [whole(table) for table in tables]
    return found


def _calibration(table: _CalibrationTable) -> Calibration:
    return Calibration(
        accelerator=table.accelerator,
        line=table.line,
        source=table.source,
        rows=table.rows,
        upon=table.upon,
        low_ratio=table.low_ratio,
        high_ratio=table.high_ratio,
        constants=tuple(
            Constant(
                name=name,
                value=stated.value,
                low=stated.value if stated.low is None else stated.low,
                high=stated.value if stated.high is None else stated.high,
            )
            for name, stated in table.constants.items()
        ),
        spreads=tuple(
            Spread(
                when=stated.when,
                low_ratio=stated.low_ratio,
                high_ratio=stated.high_ratio,
                rows=stated.rows,
            )
            for stated in table.spreads
        ),
    )


def write_calibrations(path: Path, calibrations: Sequence[Calibration]) -> None:
    """Write a file that `load_calibrations` reads back."""
    write_text(path, calibrations_text(calibrations))


def calibrations_text(calibrations: Sequence[Calibration]) -> str:
    """The same as text."""
    return "\n".join(map(_text, calibrations))


def _text(calibration: Calibration) -> str:
    lines = [
        "[[calibration]]",
        f"accelerator = {_quoted(calibration.accelerator)}",
        f"line = {_quoted(calibration.line)}",
        f"source = {_quoted(calibration.source)}",
        f"rows = {calibration.rows}",
        *([] if calibration.upon is None else [f"upon = {_quoted(calibration.upon)}"]),
        f"low_ratio = {calibration.low_ratio:.4g}",
        f"high_ratio = {calibration.high_ratio:.4g}",
        "[calibration.constants]",
    ]
    lines += [
        f"{c.name} = {{ value = {c.value:.5g}, low = {c.low:.5g}, high = {c.high:.5g} }}"
        for c in calibration.constants
    ]
    for spread in calibration.spreads:
        lines += [
            "[[calibration.spreads]]",
            f'when = "{spread.when}"',
            f"rows = {spread.rows}",
            f"low_ratio = {spread.low_ratio:.4g}",
            f"high_ratio = {spread.high_ratio:.4g}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A TOML string; what JSON escapes is escaped alike."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# The pooled efficiencies that ship with the package
# --------------------------------------------------


@cache
def built_in_efficiencies() -> PooledEfficiencies:
    """The effects that ship with the package, which `benchmarks/fit_efficiencies.py` writes."""
    file = resources.files("trainwright.cluster") / "efficiencies.toml"
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    families = {
        device: family for family, devices in document["families"].items() for device in devices
    }
    effects = {
        tuple(table["key"]): Effect(
            shifts=MappingProxyType(table["shifts"]),
            runs=table["runs"],
            sources=tuple(table["sources"]),
        )
        for table in document["effect"]
    }
    ranges = {
        Distance[name.upper()]: Range(low_ratio=ends[0], high_ratio=ends[1])
        for name, ends in document["ranges"].items()
    }
    return PooledEfficiencies(
        effects=MappingProxyType(effects),
        families=MappingProxyType(families),
        spreads=MappingProxyType(document["spreads"]),
        ranges=MappingProxyType(ranges),
        circumstances=MappingProxyType(
            {
                Circumstance(name): Range(low_ratio=ends[0], high_ratio=ends[1])
                for name, ends in document["circumstances"].items()
            }
        ),
        told_apart=MappingProxyType(
            {SoftwareClass(name): tuple(kinds) for name, kinds in document["told_apart"].items()}
        ),
    )


# The accounts of frameworks' memory that ship with the package: `cluster/memory/*.toml`
# --------------------------------------------------------------------------------------
# ```toml
# name = "deepspeed"
# software = ["deepspeed"]          # parts of the names of programs
# update_bytes = 6                  # the fields of `cluster.framework_memory.FrameworkMemory`
# context_mib = 1573                # sizes of a process in MiB
# communicator_mib = 688
# reserved = { low = 1.0, typical = 1.05, high = 1.1 }
# [sources]                         # where each fact comes from
# update_bytes = "deepspeed/runtime/zero/stage_1_and_2.py"
# ```


@cache
def framework_memories() -> tuple[FrameworkMemory, ...]:
    """All accounts, by name."""
    folder = resources.files("trainwright.cluster") / "memory"
    files = sorted((each for each in folder.iterdir()), key=lambda each: each.name)
    return tuple(
        _read(file.read_text(encoding="utf-8")) for file in files if file.name.endswith(".toml")
    )


def framework_memory(name: str | None) -> FrameworkMemory:
    """The account of a program by its usual name; the typical one where nobody knows it."""
    return memory_of_software(framework_memories(), name)


def deciding_memory(name: str | None, kept: MemoryOverheads) -> FrameworkMemory | None:
    """The account by which a run of a program fits; None where the margins alone decide."""
    return framework_memory(name) if kept.fit_probability else None


def _read(text: str) -> FrameworkMemory:
    table = tomllib.loads(text)
    context, communicator = table.pop("context_mib"), table.pop("communicator_mib")
    return FrameworkMemory(
        software=tuple(table.pop("software", ())),
        reports=Figure(table.pop("reports", Figure.ALLOCATED)),
        context_bytes=context * MIB,
        communicator_bytes=communicator * MIB,
        allocated=Share(**table.pop("allocated")),
        reserved=Share(**table.pop("reserved")),
        **table,
    )
