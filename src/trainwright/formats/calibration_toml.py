"""Calibrations as TOML: a small file that a user can read, keep and share.

```toml
[[calibration]]
accelerator = "A100-80GB-SXM"
line = "megatron-2021"            # the software
source = "which runs it was fitted to"
rows = 4
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
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from trainwright.cluster import Calibration, Circumstance, Constant, Spread
from trainwright.cluster.pooled import Distance, Effect, PooledEfficiencies, Range
from trainwright.errors import Fault, InvalidInput
from trainwright.formats.atomic_file import write_text

_TEXTS: Final = ("accelerator", "line", "source")
_KEYS: Final = (*_TEXTS, "rows", "low_ratio", "high_ratio", "constants", "spreads")
_SPREAD_KEYS: Final = ("when", "rows", "low_ratio", "high_ratio")


@cache
def built_in_calibrations() -> tuple[Calibration, ...]:
    """The constants that ship with the package."""
    file = resources.files("trainwright.cluster") / "calibrations.toml"
    return read_calibrations(tomllib.loads(file.read_text(encoding="utf-8")))


def load_calibrations(path: Path) -> tuple[Calibration, ...]:
    """Read a file; raises `InvalidInput` where it is missing, not TOML or breaks a rule."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput.of("calibration", f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput.of("calibration", f"must be TOML: {error}", source=str(path)) from None
    return read_calibrations(document, source=str(path))


def read_calibrations(
    document: Mapping[str, Any], *, source: str | None = None
) -> tuple[Calibration, ...]:
    """Turn the content of a file into calibrations; raises `InvalidInput` with all faults."""
    tables = document.get("calibration")
    if not isinstance(tables, list):
        raise InvalidInput.of("calibration", "must be a list of tables", source=source)
    faults = [f for i, table in enumerate(tables) for f in _faults(table, f"calibration[{i}]")]
    if faults:
        raise InvalidInput(faults, source=source)
    try:
        return tuple(map(_calibration, tables))
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=source) from None


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


def _faults(table: object, path: str) -> Iterator[Fault]:
    if not isinstance(table, dict):
        yield Fault(path, "must be a table")
        return
    for key in table:
        if key not in _KEYS:
            yield Fault(f"{path}.{key}", f"must be one of {', '.join(_KEYS)}")
    for key in _TEXTS:
        if not isinstance(table.get(key), str):
            yield Fault(f"{path}.{key}", f"must be text, got {table.get(key)!r}")
    for key in ("low_ratio", "high_ratio"):
        if not _is_number(table.get(key)):
            yield Fault(f"{path}.{key}", f"must be a number, got {table.get(key)!r}")
    yield from _rows_fault(table, path)
    yield from _spread_faults(table.get("spreads", []), f"{path}.spreads")
    constants = table.get("constants", {})
    if not isinstance(constants, dict):
        yield Fault(f"{path}.constants", "must be a table")
        return
    for name, value in constants.items():
        parts = value if isinstance(value, dict) else {"value": value}
        known = "value" in parts and parts.keys() <= {"value", "low", "high"}
        if not (known and all(_is_number(part) for part in parts.values())):
            yield Fault(f"{path}.constants.{name}", "must be { value = …, low = …, high = … }")


def _rows_fault(table: Mapping[str, Any], path: str) -> Iterator[Fault]:
    rows = table.get("rows", 0)
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 0:
        yield Fault(f"{path}.rows", f"must be a whole number >= 0, got {rows!r}")


def _spread_faults(tables: object, path: str) -> Iterator[Fault]:
    if not isinstance(tables, list):
        yield Fault(path, "must be a list of tables")
        return
    known = tuple(circumstance.value for circumstance in Circumstance)
    for index, table in enumerate(tables):
        here = f"{path}[{index}]"
        if not isinstance(table, dict):
            yield Fault(here, "must be a table")
            continue
        for key in table:
            if key not in _SPREAD_KEYS:
                yield Fault(f"{here}.{key}", f"must be one of {', '.join(_SPREAD_KEYS)}")
        if table.get("when") not in known:
            yield Fault(f"{here}.when", f"must be one of {', '.join(known)}")
        for key in ("low_ratio", "high_ratio"):
            if not _is_number(table.get(key)):
                yield Fault(f"{here}.{key}", f"must be a number, got {table.get(key)!r}")
        yield from _rows_fault(table, here)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _calibration(table: Mapping[str, Any]) -> Calibration:
    constants = []
    for name, stated in table.get("constants", {}).items():
        parts = stated if isinstance(stated, dict) else {"value": stated}
        value = float(parts["value"])
        constants.append(
            Constant(
                name=name,
                value=value,
                low=float(parts.get("low", value)),
                high=float(parts.get("high", value)),
            )
        )
    return Calibration(
        accelerator=table["accelerator"],
        line=table["line"],
        source=table["source"],
        rows=int(table.get("rows", 0)),
        low_ratio=float(table["low_ratio"]),
        high_ratio=float(table["high_ratio"]),
        constants=tuple(constants),
        spreads=tuple(
            Spread(
                when=Circumstance(stated["when"]),
                low_ratio=float(stated["low_ratio"]),
                high_ratio=float(stated["high_ratio"]),
                rows=int(stated.get("rows", 0)),
            )
            for stated in table.get("spreads", [])
        ),
    )


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
    )


def efficiencies_text(pooled: PooledEfficiencies) -> str:
    """A file that `built_in_efficiencies` reads."""
    families: dict[str, list[str]] = {}
    for device, family in pooled.families.items():
        families.setdefault(family, []).append(device)
    lines = ["[families]"]
    lines += [f"{family} = {json.dumps(devices)}" for family, devices in families.items()]
    lines += ["", "[ranges]  # measured over predicted time, by distance from evidence"]
    lines += [
        f"{distance.name.lower()} = [{ends.low_ratio:.3f}, {ends.high_ratio:.3f}]"
        for distance, ends in pooled.ranges.items()
    ]
    lines += ["", "[circumstances]  # where runs scatter more than their distance says"]
    lines += [
        f"{when} = [{ends.low_ratio:.3f}, {ends.high_ratio:.3f}]"
        for when, ends in pooled.circumstances.items()
    ]
    lines += ["", "[spreads]  # standard deviations of the logarithm that remain"]
    lines += [f"{name} = {value:.2f}" for name, value in pooled.spreads.items()]
    for key, effect in pooled.effects.items():
        shifts = ", ".join(f"{name} = {_shift(value)}" for name, value in effect.shifts.items())
        lines += ["", "[[effect]]", f"key = {json.dumps(list(key))}", f"runs = {effect.runs}"]
        lines += [f"sources = {json.dumps(list(effect.sources))}", f"shifts = {{ {shifts} }}"]
    return "\n".join(lines) + "\n"


def _shift(value: float) -> str:
    return f"{value:.4f}".removeprefix("-") if abs(value) < 5e-5 else f"{value:.4f}"
