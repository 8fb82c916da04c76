"""What chips may be and are made of, from a file: ranges, energies, process, die.

```toml
process = "7nm"                        # of technology.toml: density, energy, wafer, defects
least_area_share = 0.3                 # as the lower limit of a design's area
[ranges]                               # in place of the usual values, by the template's names
width = [32, 64, 128]
[energy]                               # joules of events, `chips.energy.EnergyTable`
memory_byte_j = 28e-12
[die]                                  # what a die has beside its cores, `chips.space.DieModel`
interfaces_mm2 = 80
```

Areas of a search stay those of 22 nm, on which the limits are; a process shrinks the die that is
priced, and multiplies the energy of logic and buffers. What the file states itself goes before what
the process says.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from trainwright.chips.energy import EnergyTable
from trainwright.chips.space import FIELDS, DieModel
from trainwright.errors import Fault, InvalidInput, refuse
from trainwright.formats.atomic_file import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_TABLES: Final = ("ranges", "energy", "die")
_OF_LOGIC: Final = ("mac_j", "lane_j", "core_byte_j", "glb_byte_j")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """How a process differs from 22 nm: factors of area and energy, dollars, defects per mm²."""

    area: float
    energy: float
    wafer_price: float
    defects_per_mm2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Technology:
    """What a file says of chips: values to choose from, joules of events, and the die if any."""

    ranges: Mapping[str, tuple[int, ...]]
    energy: Mapping[str, float]
    least_area_share: float | None = None
    die: DieModel | None = None


@cache
def processes() -> Mapping[str, Process]:
    """The processes that are built in, by name."""
    file = resources.files("trainwright.chips") / "technology.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8"))["process"]
    return {name: Process(**values) for name, values in table.items()}


def read_technology(path: Path) -> Technology:
    """Read a file; raises `InvalidInput` with everything that is wrong with it."""
    data = read_bytes(path, name="technology")
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput.of("technology", f"must be TOML: {error}", source=str(path)) from None
    refuse(_faults(document))
    stated = {name: float(value) for name, value in document.get("energy", {}).items()}
    die: dict[str, float] | None = document.get("die")
    energy: dict[str, float] = {}
    if "process" in document:
        made_in = processes()[document["process"]]
        usual = EnergyTable()
        energy = {name: getattr(usual, name) * made_in.energy for name in _OF_LOGIC}
        of_process = {
            "logic_scale": made_in.area,
            "wafer_cost": made_in.wafer_price,
            "defects_per_mm2": made_in.defects_per_mm2,
        }
        die = of_process | (die or {})
    return Technology(
        ranges={name: tuple(values) for name, values in document.get("ranges", {}).items()},
        energy=energy | stated,
        least_area_share=document.get("least_area_share"),
        die=None if die is None else replace(DieModel(), **die),
    )


def _faults(document: Mapping[str, Any]) -> Iterator[Fault]:
    yield from _unknown("", document, ("process", "least_area_share", *_TABLES))
    if (process := document.get("process", "22nm")) not in processes():
        wanted = f"must be one of {', '.join(processes())}"
        yield Fault("process", f"{wanted}, got {process!r}")
    if not _is_number(share := document.get("least_area_share", 0.0)):
        yield Fault("least_area_share", f"must be a number, got {share!r}")
    for name in _TABLES:
        if not isinstance(document.get(name, {}), dict):
            yield Fault(name, "must be a table")
            return
    ranges, energy, die = (document.get(name, {}) for name in _TABLES)
    yield from _unknown("ranges.", ranges, FIELDS)
    for name, values in ranges.items():
        if not (isinstance(values, list) and values and all(type(v) is int for v in values)):
            yield Fault(f"ranges.{name}", f"must be a list of whole numbers, got {values!r}")
    for prefix, table, known in (
        ("energy.", energy, [field.name for field in fields(EnergyTable)]),
        ("die.", die, [field.name for field in fields(DieModel)]),
    ):
        yield from _unknown(prefix, table, known)
        for name, value in table.items():
            if not _is_number(value):
                yield Fault(f"{prefix}{name}", f"must be a number, got {value!r}")


def _unknown(prefix: str, table: Iterable[str], known: Iterable[str]) -> Iterator[Fault]:
    allowed = list(known)
    for name in table:
        if name not in allowed:
            yield Fault(f"{prefix}{name}", f"is not a known key; there are {', '.join(allowed)}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
