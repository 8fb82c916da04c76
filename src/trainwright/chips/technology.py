"""What chips may be and are made of, from a file: ranges, energies, process, die.

```toml
process = "7nm"                        # of technology.toml: density, energy, wafer, defects
voltage = 0.65                         # in place of its nominal one: clock, energy, leakage
package = "air"                        # or "liquid": limits the mean power as --tdp does
memory = "hbm3"                        # what --stacks are, if they do not say
least_area_share = 0.3                 # as the lower limit of a design's area
[ranges]                               # in place of the usual values, by the template's names
width = [32, 64, 128]
buffer_bytes_per_mac = [16, 64]         # of a core's own buffer
[energy]                               # joules of events, `chips.energy.EnergyTable`
memory_byte_j = 28e-12
[die]                                  # what a die has beside its cores, `chips.space.DieModel`
interfaces_mm2 = 80
```

Areas of a search stay those of 22 nm, on which the limits are; a process shrinks the die that is
priced, and multiplies the energy of logic and buffers. A die has beside its cores what dies of real
chips have (`die_over_cores`). Dynamic energy goes with the square of the voltage V, leakage with V,
and clocks with (V - 0.3)^1.3 / V (Sakurai and Newton, IEEE JSSC 1990; the threshold is assumed).
What the file states itself goes before what the process says.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from trainwright.chips.energy import EnergyTable
from trainwright.chips.space import FIELDS, DieModel, area_mm2
from trainwright.cluster import REFERENCE_DESIGN, ChipTemplate, networked, template_device
from trainwright.errors import Fault, InvalidInput, refuse
from trainwright.formats.atomic_file import read_bytes
from trainwright.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from trainwright.cluster import Accelerator, Calibration, Pool, Surroundings

_TABLES: Final = ("ranges", "energy", "die")
_NAMES: Final = ("process", "package", "memory")
_THRESHOLD_V, _ALPHA, _MOST_V = 0.3, 1.3, 1.5
_OF_LOGIC: Final = ("mac_j", "lane_j", "core_byte_j", "glb_byte_j")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """How a process differs from 22 nm: factors of area and energy, dollars, defects per mm²."""

    area: float
    volts: float
    energy: float
    wafer_price: float
    defects_per_mm2: float

    def clock_at(self, volts: float) -> float:
        """Clocks at a voltage over those at the nominal one."""
        return _pace(volts) / _pace(self.volts)


def _pace(volts: float) -> float:
    return float((volts - _THRESHOLD_V) ** _ALPHA / volts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKind:
    """A stack of one generation of memory; dollars, and watts at full bandwidth."""

    stack_gib: float
    stack_bytes_per_s: float
    stack_price: float
    stack_watts: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DieFacts:
    """What is published of the die of a catalog chip; `cores` where its units are counted."""

    source: str
    process: str | None = None
    die_mm2: float | None = None
    cores: ChipTemplate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Technology:
    """What a file says of chips: values to choose from, joules of events, and the die if any."""

    ranges: Mapping[str, tuple[int, ...]]
    energy: Mapping[str, float]
    least_area_share: float | None = None
    process: str | None = None
    die: Mapping[str, float] | None = None
    clock_factor: float = 1.0
    package_watts: float | None = None
    memory: str | None = None


@cache
def _built_in() -> Mapping[str, Any]:
    file = resources.files("trainwright.chips") / "technology.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


@cache
def processes() -> Mapping[str, Process]:
    """The processes that are built in, by name."""
    return {name: Process(**values) for name, values in _built_in()["process"].items()}


@cache
def memory_kinds() -> Mapping[str, MemoryKind]:
    """The generations of stacked memory that are built in, by name."""
    return {name: MemoryKind(**values) for name, values in _built_in()["memory"].items()}


def room_defaults() -> Mapping[str, Any]:
    """Values of the axes of a machine room, and its prices, where a file names none."""
    return MappingProxyType(_built_in()["room"])


@cache
def dies() -> Mapping[str, DieFacts]:
    """What is published of dies of the catalog, by accelerator."""
    table = _built_in()["chip"]
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


@cache
def die_over_cores() -> float:
    """How many times their cores and buffers dies of real chips are: the geometric mean.

    Cores and buffers are what `chips.space` says of those chips whose units are published, in the
    process of the die; the rest is interfaces, control, other formats, and what is switched off.
    """
    shares = [
        found.die_mm2 / (area_mm2(found.cores) * processes()[found.process].area)
        for found in {facts.source: facts for facts in dies().values()}.values()
        if found.cores is not None and found.die_mm2 is not None and found.process is not None
    ]
    return math.prod(shares) ** (1.0 / len(shares))


def die_of(stated: Mapping[str, float] | None, process: str | None = None) -> DieModel:
    """The die of a design: as stated, else as dies of real chips are; drawn in `process`."""
    usual = {"overhead_share": die_over_cores() - 1.0} if stated is None else stated
    scale = {} if process is None else {"logic_scale": processes()[process].area}
    return DieModel(**{**usual, **scale})


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
    process = document.get("process")
    made_in = processes()[process or "22nm"]
    volts = document.get("voltage", made_in.volts)
    energy: dict[str, float] = {}
    if process is not None or "voltage" in document:
        usual, raised = EnergyTable(), volts / made_in.volts
        energy = {name: getattr(usual, name) * made_in.energy * raised**2 for name in _OF_LOGIC}
        energy["leakage_watts_per_mm2"] = usual.leakage_watts_per_mm2 * raised
    if process is not None:
        of_process = {
            "logic_scale": made_in.area,
            "overhead_share": die_over_cores() - 1.0,
            "wafer_cost": made_in.wafer_price,
            "defects_per_mm2": made_in.defects_per_mm2,
        }
        die = of_process | (die or {})
    if die is not None:
        DieModel(**die)
    package = document.get("package")
    return Technology(
        ranges={name: tuple(values) for name, values in document.get("ranges", {}).items()},
        energy=energy | stated,
        least_area_share=document.get("least_area_share"),
        process=process,
        die=die,
        clock_factor=made_in.clock_at(volts),
        package_watts=None if package is None else float(_built_in()["package"][package]),
        memory=document.get("memory"),
    )


def _faults(document: Mapping[str, Any]) -> Iterator[Fault]:
    yield from _unknown("", document, (*_NAMES, "voltage", "least_area_share", *_TABLES))
    for name in _NAMES:
        known = list(_built_in()[name])
        if (chosen := document.get(name, known[0])) not in known:
            yield Fault(name, f"must be one of {', '.join(known)}, got {chosen!r}")
    volts = document.get("voltage", 1.0)
    if not (_is_number(volts) and _THRESHOLD_V < volts <= _MOST_V):
        wanted = f"must be a number of volts above {_THRESHOLD_V:g}, at most {_MOST_V:g}"
        yield Fault("voltage", f"{wanted}, got {volts!r}")
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
    from trainwright.cluster.calibration import software_named
    from trainwright.formats.calibration_toml import built_in_efficiencies

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
    from trainwright.cluster.calibration import software_named
    from trainwright.formats.calibration_toml import built_in_efficiencies

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
