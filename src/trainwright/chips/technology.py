"""What chips may be and are made of: built-in figures, a file's, and single ones.

Every figure of technology, price and power stands in one tree of tables (`every_figure`), and a
file may state any of them under its name:

```toml
process = "7nm"                        # governs the die, the energies and the voltage together
voltage = 0.65                         # in place of its nominal one: clock, energy, leakage
package = "air"                        # or "liquid": limits the mean power as --tdp does
memory = "hbm3"                        # what --stacks are, if they do not say
least_area_share = 0.3                 # as the lower limit of a design's area
[ranges]                               # in place of the usual values, by the template's names
width = [32, 64, 128]
buffer_bytes_per_mac = [16, 64]        # of a core's own buffer
[energy]                               # joules of events, `chips.price.EnergyTable`
memory_byte_j = 28e-12
[die]                                  # what a die has beside its cores, `chips.space.DieModel`
interfaces_mm2 = 80
[processes.7nm]                        # a process of the file, or a new one with all its figures
wafer_price = 9000
[memories.hbm3]                        # a stack of memory
stack_price = 250
[prices]                               # of a machine room
package_price = 800
```

beside them `packages`, `formats` (area and energy of multipliers), `areas` (µm² at 22 nm),
`voltages` (`chips.price.VoltageCurve`), `surroundings` (launch and latencies) and `room` (axes of
systems). `--set memories.hbm3.stack_price=250` states a single one.

Areas of a search are counted at 22 nm, where the area table and its limits are; the process shrinks
the die and says what logic and buffers of it draw. A die has beside its cores what dies of real
chips have (`die_over_cores`). What is stated under `energy` or `die` goes before what the process
says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from trainwright.chips.price import OF_LOGIC, USUAL_PROCESS, EnergyTable, VoltageCurve, built_in
from trainwright.chips.space import (
    FIELDS,
    NUMBER_FORMATS,
    PHAZE_AREAS,
    AreaTable,
    DieModel,
    NumberFormat,
    area_mm2,
)
from trainwright.cluster import (
    REFERENCE_DESIGN,
    Accelerator,
    Calibration,
    ChipTemplate,
    Pool,
    Surroundings,
    networked,
    template_device,
)
from trainwright.cluster.calibration import software_named
from trainwright.errors import Fault, InvalidInput, negative, not_positive, one_of, refuse
from trainwright.formats.atomic_file import read_toml
from trainwright.formats.calibration_toml import built_in_efficiencies
from trainwright.formats.records import (
    NUMBER,
    POSITIVE,
    TEXT,
    WHOLE,
    array_schema,
    closed,
    map_schema,
    object_schema,
    suits,
)
from trainwright.units import KIB, MIB

_CHOICES: Final = {"process": "processes", "package": "packages", "memory": "memories"}
_NAMED: Final = ("processes", "memories", "packages", "formats")  # tables that may have new entries
_OF_ROOM: Final = ("room", "prices")  # `chips.room` reads their values
_OF_SURROUNDINGS: Final = ("launch_s", "link_latency_s", "node_latency_s")


def _positive(of: object, *, but: tuple[str, ...] = ()) -> None:
    names = {each.name for each in fields(of)} - {*but}  # type: ignore[arg-type]
    refuse((*not_positive(of, *sorted(names)), *negative(of, *but)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process: its area against 22 nm, dollars, defects per mm², joules at its voltage."""

    area: float
    volts: float
    wafer_price: float
    defects_per_mm2: float
    mac_j: float
    lane_j: float
    core_byte_j: float
    glb_byte_j: float
    wire_byte_mm_j: float

    def __post_init__(self) -> None:
        _positive(self, but=("wafer_price", "defects_per_mm2", *OF_LOGIC))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKind:
    """A stack of one generation of memory; dollars, and watts at full bandwidth."""

    stack_gib: float
    stack_bytes_per_s: float
    stack_price: float
    stack_watts: float

    def __post_init__(self) -> None:
        _positive(self, but=("stack_price", "stack_watts"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DieFacts:
    """What is published of the die of a catalog chip; `cores` where its units are counted."""

    source: str
    process: str | None = None
    die_mm2: float | None = None
    cores: ChipTemplate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Technology:
    """What chips are made of, all of it: what a file or single figures say, usual values else.

    `energy` has the joules of events at the voltage, `die` what dies have beside cores. `curve`
    says the voltage of a clock; where `volts` are stated for all there is none, and clocks are
    `clock_factor` times what they are said to be. `room` and `prices` are those stated.
    """

    process: str
    made_in: Process
    volts: float | None
    clock_factor: float
    curve: VoltageCurve | None
    energy: Mapping[str, float]
    die: Mapping[str, float]
    areas: AreaTable
    formats: Mapping[str, NumberFormat]
    memory: str | None
    memories: Mapping[str, MemoryKind]
    package_watts: float | None
    surroundings: Mapping[str, Any]
    ranges: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    least_area_share: float | None = None
    room: Mapping[str, Any] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)


@cache
def processes() -> Mapping[str, Process]:
    """The processes that are built in, by name."""
    return {name: Process(**values) for name, values in built_in()["processes"].items()}


@cache
def memory_kinds() -> Mapping[str, MemoryKind]:
    """The generations of stacked memory that are built in, by name."""
    return {name: MemoryKind(**values) for name, values in built_in()["memories"].items()}


def room_defaults() -> Mapping[str, Any]:
    """Values of the axes of a machine room, and its prices, where a file names none."""
    return MappingProxyType({**built_in()["room"], "prices": built_in()["prices"]})


def every_figure() -> dict[str, Any]:
    """The tree of all that a file or `--set` may state beside the choices, at its usual values."""
    usual = EnergyTable()
    curve = asdict(VoltageCurve(volts=processes()[USUAL_PROCESS].volts))
    return {
        **{name: dict(built_in()[name]) for name in ("processes", "memories", "packages")},
        "formats": {name: asdict(values) for name, values in NUMBER_FORMATS.items()},
        "areas": asdict(PHAZE_AREAS),
        "energy": asdict(usual),
        "die": asdict(DieModel()),
        "voltages": {name: value for name, value in curve.items() if name != "volts"},
        "surroundings": {name: getattr(Surroundings(), name) for name in _OF_SURROUNDINGS},
        "room": {**built_in()["room"], "devices": [], "memory": ""},
        "prices": dict(built_in()["prices"]),
    }


@cache
def dies() -> Mapping[str, DieFacts]:
    """What is published of dies of the catalog, by accelerator."""
    table = built_in()["chips"]
    return {name: _die_facts(table[facts.get("like", name)]) for name, facts in table.items()}


def _die_facts(facts: Mapping[str, Any]) -> DieFacts:
    stated = facts.get("cores")
    cores = None if stated is None else _cores(**stated)
    return DieFacts(**{**facts, "cores": cores})


def _cores(*, width: int, depth: int, core_kib: int, glb_mib: int, **counts: int) -> ChipTemplate:
    per_mac = core_kib * KIB // (width * depth)
    size = glb_mib * MIB
    made = {"width": width, "depth": depth, "glb_bytes": size, "buffer_bytes_per_mac": per_mac}
    return ChipTemplate(**counts, **made)


def die_over_cores(
    areas: AreaTable = PHAZE_AREAS, made_in: Mapping[str, Process] | None = None
) -> float:
    """How many times their cores and buffers dies of real chips are: the geometric mean.

    Cores and buffers are what `chips.space` says of those chips whose units are published, in the
    process of the die; the rest is interfaces, control, other formats, and what is switched off.
    """
    known = processes() if made_in is None else made_in
    shares = [
        found.die_mm2 / (area_mm2(found.cores, areas) * known[found.process].area)
        for found in {facts.source: facts for facts in dies().values()}.values()
        if found.cores is not None and found.die_mm2 is not None and found.process is not None
    ]
    return math.prod(shares) ** (1.0 / len(shares))


def die_of(process: str = USUAL_PROCESS) -> DieModel:
    """The die of a design in a built-in process, as dies of real chips are."""
    return DieModel(**_die_in(processes()[process], die_over_cores()))


def _die_in(made_in: Process, over_cores: float) -> dict[str, float]:
    return {
        "logic_scale": made_in.area,
        "overhead_share": over_cores - 1.0,
        "wafer_cost": made_in.wafer_price,
        "defects_per_mm2": made_in.defects_per_mm2,
    }


def energy_in(made_in: Process, others: Mapping[str, float]) -> EnergyTable:
    """The table of a process at its nominal voltage, with what is of no process."""
    logic = {name: getattr(made_in, name) for name in OF_LOGIC}
    return EnergyTable(**{**built_in()["energy"], **others, **logic})


def read_technology(path: Path | None, constants: Mapping[str, Any] | None = None) -> Technology:
    """Read a file, or take usual values, and set single figures by their dotted names.

    Raises `InvalidInput` with everything that is wrong.
    """
    stated = {} if path is None else read_toml(path, name="technology")
    for name, value in (constants or {}).items():
        *tables, last = name.split(".")
        here = stated
        for table in tables:
            here = here.setdefault(table, {})
            if not isinstance(here, dict):
                raise InvalidInput.of("set", f'must name a figure, "{table}" is none: "{name}"')
        here[last] = value
    return technology_of(stated)


def technology_of(stated: Mapping[str, Any]) -> Technology:
    """What tables of a file make of the usual values; raises `InvalidInput` with all faults."""
    refuse(_faults(stated))
    tree = every_figure()
    named = {
        table: {
            name: {**tree[table].get(name, {}), **stated.get(table, {}).get(name, {})}
            for name in dict.fromkeys((*tree[table], *stated.get(table, {})))
        }
        for table in ("processes", "memories", "formats")
    }
    known = {name: _made(f"processes.{name}", Process, v) for name, v in named["processes"].items()}
    memories = {
        name: _made(f"memories.{name}", MemoryKind, v) for name, v in named["memories"].items()
    }
    formats = {
        name: _made(f"formats.{name}", NumberFormat, v) for name, v in named["formats"].items()
    }
    listed = {
        name: tuple(map(float, value)) if isinstance(value, list) else float(value)
        for name, value in stated.get("areas", {}).items()
    }
    areas = _made("areas", AreaTable, listed)
    process = stated.get("process", USUAL_PROCESS)
    made_in = known[process]
    curve = _made("voltages", VoltageCurve, {"volts": made_in.volts, **stated.get("voltages", {})})
    volts = stated.get("voltage")
    if volts is not None and not curve.least_volts <= volts <= curve.most_volts:
        wanted = f"must be from {curve.least_volts:g} to {curve.most_volts:g} volts"
        raise InvalidInput.of("voltage", f"{wanted}, got {volts!r}")
    own = {name: float(value) for name, value in stated.get("energy", {}).items()}
    table = energy_in(made_in, {n: v for n, v in own.items() if n not in OF_LOGIC})
    table = table.at_voltage(1.0 if volts is None else volts / made_in.volts)
    die = _die_in(made_in, die_over_cores(areas, known)) | {
        name: float(value) for name, value in stated.get("die", {}).items()
    }
    packages = {**built_in()["packages"], **stated.get("packages", {})}
    package = stated.get("package")
    around = tree["surroundings"] | stated.get("surroundings", {})
    _made("surroundings", Surroundings, around)
    return Technology(
        process=process,
        made_in=made_in,
        volts=volts,
        clock_factor=1.0 if volts is None else curve.clock_at(volts),
        curve=curve if volts is None else None,
        energy=asdict(_made("energy", EnergyTable, {**asdict(table), **own})),
        die=asdict(_made("die", DieModel, die)),
        areas=areas,
        formats=formats,
        memory=stated.get("memory"),
        memories=memories,
        package_watts=None if package is None else float(packages[package]),
        surroundings=around,
        ranges={name: tuple(map(int, each)) for name, each in stated.get("ranges", {}).items()},
        least_area_share=stated.get("least_area_share"),
        room=stated.get("room", {}),
        prices=stated.get("prices", {}),
    )


def _made(where: str, kind: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """A noun of figures; what it says against them is named by their place."""
    try:
        return kind(**values)
    except InvalidInput as error:
        raise InvalidInput(
            Fault(f"{where}.{fault.path}", fault.problem) for fault in error.faults
        ) from None


def _faults(stated: Mapping[str, Any]) -> Iterator[Fault]:
    tree = every_figure()
    yield from _unknown("", stated, (*_CHOICES, *_SINGLE, "ranges", *tree))
    for name, table in _CHOICES.items():
        more = stated.get(table, {})
        known = [*tree[table], *(more if isinstance(more, dict) else ())]
        if (chosen := stated.get(name, known[0])) not in known:
            yield Fault(name, one_of(known, chosen))
    for name in _SINGLE:
        if name in stated and not suits(stated[name], NUMBER):
            yield Fault(name, f"must be a number, got {stated[name]!r}")
    for name in ("ranges", *tree):
        if not isinstance(stated.get(name, {}), dict):
            yield Fault(name, "must be a table")
            return
    yield from _unknown("ranges.", stated.get("ranges", {}), FIELDS)
    for name, values in stated.get("ranges", {}).items():
        if not suits(values, _RANGE):
            yield Fault(f"ranges.{name}", f"must be a list of whole numbers, got {values!r}")
    for name, usual in tree.items():
        if name in _NAMED and name != "packages":
            yield from _entry_faults(name, stated.get(name, {}), usual)
        elif name not in _OF_ROOM:
            yield from _figure_faults(f"{name}.", stated.get(name, {}), usual)


def _entry_faults(
    table: str, stated: Mapping[str, Any], usual: Mapping[str, Any]
) -> Iterator[Fault]:
    keys = list(next(iter(usual.values())))
    for name, values in stated.items():
        if not isinstance(values, dict):
            yield Fault(f"{table}.{name}", f"must be a table of {', '.join(keys)}")
            continue
        missing = [key for key in keys if name not in usual and key not in values]
        if missing:
            wanted = f"is new, so it must also have {', '.join(missing)}"
            yield Fault(f"{table}.{name}", f"{wanted}; there are {', '.join(usual)}")
        yield from _figure_faults(f"{table}.{name}.", values, dict.fromkeys(keys, 0.0))


def _figure_faults(
    prefix: str, stated: Mapping[str, Any], usual: Mapping[str, Any]
) -> Iterator[Fault]:
    if prefix != "packages.":  # which may have new ones
        yield from _unknown(prefix, stated, usual)
    for name, value in stated.items():
        schema = _PACKAGE if prefix == "packages." else _figure_schema(usual.get(name))
        if not suits(value, schema):
            wanted = "a list of numbers" if schema is _FIGURES else "a number"
            more = " > 0" if schema is _PACKAGE else ""
            yield Fault(f"{prefix}{name}", f"must be {wanted}{more}, got {value!r}")


def _unknown(prefix: str, table: Iterable[str], known: Iterable[str]) -> Iterator[Fault]:
    allowed = list(known)
    for name in table:
        if name not in allowed:
            yield Fault(f"{prefix}{name}", f"is not a known key; there are {', '.join(allowed)}")


_SINGLE: Final = ("voltage", "least_area_share")
_RANGE: Final = array_schema(WHOLE, least=1)
_FIGURES: Final = array_schema(NUMBER, least=1)
_PACKAGE: Final = POSITIVE  # watts


def _figure_schema(usual: object) -> dict[str, Any]:
    """Of a figure that is usually so."""
    return _FIGURES if isinstance(usual, tuple) else NUMBER


def technology_tables() -> dict[str, Any]:
    """The schema of each key of a file, but for those of a room; limits of figures are not in it.

    Of an entry that is new all figures must be there, of a built-in one those that differ.
    """
    tree = every_figure()
    entries = {}
    for table in _NAMED:
        if table != "packages":
            keys = dict.fromkeys(next(iter(tree[table].values())), NUMBER)
            known = closed(object_schema({}, keys))
            entries[table] = object_schema({}, dict.fromkeys(tree[table], known))
            entries[table]["additionalProperties"] = closed(object_schema(keys))
    entries["packages"] = map_schema(_PACKAGE)
    figures = {
        name: closed(object_schema({}, {key: _figure_schema(each) for key, each in usual.items()}))
        for name, usual in tree.items()
        if name not in _NAMED and name not in _OF_ROOM
    }
    ranges = closed(object_schema({}, dict.fromkeys(FIELDS, _RANGE)))
    single = dict.fromkeys(_CHOICES, TEXT) | dict.fromkeys(_SINGLE, NUMBER)
    return {**single, "ranges": ranges, **entries, **figures}


# What a chip loses between its figures and a training run: the same rule for designs and devices
# -----------------------------------------------------------------------------------------------
# Clocks sag, kernels are imperfect, exchanges reach a share of their links. How much is known of
# real devices from public runs (`calibration`); a design loses what they say of a device without
# runs of its own, of a family that it is said to be like or of none. So both are compared as they
# would run, not one as it is drawn and the other as it was measured. How small kernels fill a
# device are two of its fitted constants; of a design the tiles say it. What hosts take belongs to
# an installation, not to a chip: neither has it here.

NO_SOFTWARE: Final = "none"  # what `--software` says for kernels and links without losses
_NOBODY_HAS: Final = "a chip design"
_OF_HOSTS: Final = ("host_pass_s", "step_overhead_s")


def losses_of(software: str, like: str | None = None) -> Calibration | None:
    """The constants of a device without runs of its own under a software; None for "none".

    Those of a new device of the family `like`, of a catalog accelerator of that name, or of no
    family. Raises `InvalidInput` for others.
    """
    pooled, device = built_in_efficiencies(), _NOBODY_HAS
    families = {family.lower(): family for family in pooled.families.values()}
    devices = {name.lower(): name for name in pooled.families}
    if like is not None and like.lower() in devices:
        device = devices[like.lower()]
    elif like is not None and like.lower() in families:
        family = families[like.lower()]
        pooled = replace(pooled, families={**pooled.families, device: family})
    elif like is not None:
        known = f"one of the families {', '.join(families)}, or an accelerator of them"
        raise InvalidInput.of("like", f'must be {known}, got "{like}"')
    if software == NO_SOFTWARE:
        if like is not None:
            raise InvalidInput.of("like", "must not be given: nothing is lost without software")
        return None
    found = pooled.calibration(device, software_named(software))
    return replace(found, constants=tuple(c for c in found.constants if c.name not in _OF_HOSTS))


def with_losses(around: Surroundings, losses: Calibration | None) -> Surroundings:
    """What a design stands in as it runs."""
    if losses is None:
        return around
    pool = _pool(template_device(REFERENCE_DESIGN, around), around)
    return surroundings_in(losses.on_pool(pool), around)


def device_as_run(device: Accelerator, around: Surroundings, software: str | None) -> Pool:
    """A device of the catalog in the network of `around`, with its own constants under `software`.

    Without a software it is as its description says.
    """
    pool = _pool(device, around)
    if software is None:
        return pool
    found = built_in_efficiencies().applied_to(pool, software_named(software))
    return replace(found, accelerator=replace(found.accelerator, host_pass_s=0.0))


def _pool(device: Accelerator, around: Surroundings) -> Pool:
    return networked(device, around, num_devices=2 * around.node_devices).pool_of()


def surroundings_in(pool: Pool, around: Surroundings) -> Surroundings:
    """`around` with the memory, the losses and the network of a pool that was made in it."""
    device, node, links = pool.accelerator, pool.levels[0], pool.levels[-1]
    return replace(
        around,
        memory_bytes=device.usable_bytes,
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        efficiency=device.efficiency,
        launch_s=device.launch_overhead_s,
        node_efficiency=node.efficiency,
        node_latency_s=node.latency_s,
        link_efficiency=links.efficiency,
        link_latency_s=links.latency_s,
    )
