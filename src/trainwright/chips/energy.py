"""Joules of kernels, layers and steps, from a table of energies per event.

    E = (MACs·e_mac + lane operations·e_lane + Σ over levels bytes·e_level + link bytes·e_link
         + bytes of the global buffer·e_wire·way + (idle + leakage·die)·time) / supply

Dynamic energy is counted where it happens, backward by its own kernels; idle and leakage power run
for the whole step on every chip, also on those that wait. A byte between the global buffer and a
core goes 2/3 of the side of the die, the mean of two places in a square along its sides. `supply`
is the efficiency of the converters before the chip. The table is an input. Its defaults stand in
`technology.toml`, which says of each whether its text was read again, is remembered, or is assumed.

A clock f above or below the one that a process gives at its nominal voltage V takes another one,
f ~ (V - V_t)^α / V (Sakurai and Newton, IEEE JSSC 1990). Dynamic energy of logic, buffers and wires
goes with V², leakage with V (`VoltageCurve`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright.chips.built_in import USUAL_PROCESS, built_in
from trainwright.costing.tiled import PHASES
from trainwright.errors import InvalidInput
from trainwright.model import Phase
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.arrays import Floats
    from trainwright.chips.design_times import ProductTable
    from trainwright.chips.plans import UniformPlan
    from trainwright.chips.workload import Chain, TrainingJob
    from trainwright.costing.tiled import ChipKernel


# Those of the table that go with the square of the voltage.
OF_LOGIC: Final = ("mac_j", "lane_j", "core_byte_j", "glb_byte_j", "wire_byte_mm_j")
_WAY: Final = 2.0 / 3.0  # mean distance of two places in a square along its sides, over its side


def _usual(name: str) -> Any:
    """A field whose default is that of the usual process, or of all."""
    where = built_in()["processes"][USUAL_PROCESS] if name in OF_LOGIC else built_in()["energy"]
    return field(default_factory=lambda: float(where[name]))


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyTable:
    """Joules per event; `leakage_watts_per_mm2` and `idle_watts` run all the time."""

    mac_j: float = _usual("mac_j")
    lane_j: float = _usual("lane_j")
    core_byte_j: float = _usual("core_byte_j")
    glb_byte_j: float = _usual("glb_byte_j")
    wire_byte_mm_j: float = _usual("wire_byte_mm_j")
    memory_byte_j: float = _usual("memory_byte_j")
    link_byte_j: float = _usual("link_byte_j")
    leakage_watts_per_mm2: float = _usual("leakage_watts_per_mm2")
    idle_watts: float = _usual("idle_watts")
    supply_efficiency: float = _usual("supply_efficiency")

    def __post_init__(self) -> None:
        for each in fields(self):
            if not (math.isfinite(value := getattr(self, each.name)) and value >= 0):
                raise InvalidInput.of(each.name, f"must be finite and >= 0, got {value!r}")
        if not 0 < self.supply_efficiency <= 1:
            wanted = f"must be above 0 and at most 1, got {self.supply_efficiency!r}"
            raise InvalidInput.of("supply_efficiency", wanted)

    def static_watts(self, die_mm2: Floats) -> Floats:
        """What a chip draws whatever it does."""
        return self.idle_watts + self.leakage_watts_per_mm2 * die_mm2

    def multiplying(self, energy_factor: float) -> EnergyTable:
        """The table of arrays whose multiplications take so many times the energy."""
        return replace(self, mac_j=self.mac_j * energy_factor)

    def at_voltage(self, ratio: float) -> EnergyTable:
        """The table at so many times the voltage it is of."""
        if ratio == 1.0:
            return self
        leakage = self.leakage_watts_per_mm2 * ratio
        logic = {name: getattr(self, name) * ratio**2 for name in OF_LOGIC}
        return replace(self, leakage_watts_per_mm2=leakage, **logic)

    def drawn(self) -> EnergyTable:
        """The same with what converters lose on the way."""
        share = self.supply_efficiency
        names = [each.name for each in fields(self) if each.name != "supply_efficiency"]
        more = {name: getattr(self, name) / share for name in names}
        return replace(self, supply_efficiency=1.0, **more)

    def glb_j(self, die_mm2: Floats) -> Floats:
        """Of a byte between the global buffer and a core of dies so large, its way included."""
        return self.glb_byte_j + self.wire_byte_mm_j * _WAY * np.sqrt(die_mm2)


DEFAULT_ENERGY = EnergyTable()


@dataclass(frozen=True, slots=True, kw_only=True)
class VoltageCurve:
    """Which voltage a clock takes; at `volts` it is `clock_hz`. Volts.

    Below `least_volts` chips do not run: slower clocks save no more. Raises `InvalidInput` where a
    clock needs more than `most_volts`. All but the form of the curve is assumed.
    """

    volts: float
    clock_hz: float = 1.05e9
    threshold_volts: float = 0.3
    alpha: float = 1.3
    least_volts: float = 0.5
    most_volts: float = 1.2

    def __post_init__(self) -> None:
        for each in fields(self):
            if not (math.isfinite(value := getattr(self, each.name)) and value > 0):
                raise InvalidInput.of(each.name, f"must be finite and > 0, got {value!r}")
        if not self.threshold_volts < self.least_volts <= self.volts <= self.most_volts:
            wanted = "must rise: threshold_volts, least_volts, volts of the process, most_volts"
            told = (self.threshold_volts, self.least_volts, self.volts, self.most_volts)
            raise InvalidInput.of(
                "most_volts", f"{wanted}; got {', '.join(f'{v:g}' for v in told)}"
            )

    def _pace(self, volts: float) -> float:
        return float((volts - self.threshold_volts) ** self.alpha / volts)

    def clock_at(self, volts: float) -> float:
        """Clocks at a voltage over those at the nominal one."""
        return self._pace(volts) / self._pace(self.volts)

    def volts_for(self, clock_hz: float) -> float:
        """The voltage of a clock; raises `InvalidInput` where none is high enough."""
        wanted = clock_hz / self.clock_hz
        if wanted == 1.0:
            return self.volts
        most = self.clock_hz * self.clock_at(self.most_volts)
        if clock_hz > most * (1 + 1e-12):
            problem = (
                f"must be at most {most:.4g} Hz, which takes {self.most_volts:g} V where "
                f"{self.clock_hz:.4g} Hz take {self.volts:g}; got {clock_hz:.4g}. State "
                "voltages.clock_hz of cores that are made for more, or voltages.most_volts"
            )
            raise InvalidInput.of("clock", problem)
        low, high = self.least_volts, self.most_volts
        for _ in range(60):  # halved until floats end
            middle = (low + high) / 2.0
            low, high = (middle, high) if self.clock_at(middle) < wanted else (low, middle)
        return high


def kernel_energy_j(
    kernel: ChipKernel, products: ProductTable, table: EnergyTable, die_mm2: Floats
) -> Floats:
    """Dynamic joules of one kernel on one chip of each design, whose dies are so large.

    Bytes beside the products pass every level between memory and the lanes.
    """
    places = [products.column_of[product] for product in kernel.products]
    glb_j = table.glb_j(die_mm2)
    per_byte = table.memory_byte_j + glb_j + table.core_byte_j
    alone = kernel.lane_cycles * table.lane_j + kernel.memory_bytes * per_byte
    through = products.glb_bytes[:, places].sum(axis=1)[products.row_of]
    inside = (
        products.core_bytes[:, places] * table.core_byte_j
        + products.memory_bytes[:, places] * table.memory_byte_j
    )
    energy: Floats = inside.sum(axis=1)[products.row_of] + through * glb_j
    return kernel.share * energy + kernel.array_flops / 2.0 * table.mac_j + alone


def layer_energy_j(
    chain: Chain, products: ProductTable, table: EnergyTable, die_mm2: Floats
) -> Floats:
    """Dynamic joules [designs, options, classes] of one microbatch on one chip, links included."""
    links = chain.link_bytes()
    phases = {
        phase: np.zeros((products.row_of.size, len(chain.kernels)))
        + links[phase] * table.link_byte_j
        for phase in PHASES
    }
    for index, kernels in enumerate(chain.kernels):
        for kernel in kernels:
            phases[kernel.phase][:, index] += kernel_energy_j(kernel, products, table, die_mm2)
    once = sum(phases[phase] for phase in PHASES)
    again = once + np.where(chain.repeats, phases[Phase.FORWARD], 0.0)
    modes = [again if mode is Recompute.FULL else once for mode in chain.recompute]
    return np.stack(modes, axis=1)


def step_energy_j(
    layers_j: Floats,
    chain: Chain,
    plan: UniformPlan,
    *,
    job: TrainingJob,
    num_devices: int,
    die_mm2: float,
    table: EnergyTable,
) -> float:
    """Joules of a step on all chips; `layers_j` [options, classes] are those of the design.

    Transfers between stages, the synchronisation of gradients and the update are counted once per
    replica and device.
    """
    counts, classes = chain.class_counts, chain.layer_class
    microbatch_j = sum(
        float(layers_j[chain.recompute.index(mode), classes[stage.start : stage.stop]].sum())
        for mode, stage in zip(plan.recompute, plan.stages(classes.size), strict=True)
    )
    work_j = job.num_microbatches * chain.tensor_degree * microbatch_j
    sent = job.num_microbatches * chain.tensor_degree * _boundary_bytes(chain, plan) * 2.0
    ring = 2.0 * (plan.data_degree - 1) * chain.tensor_degree * float(chain.sync_bytes @ counts)
    moved = chain.tensor_degree * float(chain.update_bytes @ counts)
    cycles = chain.tensor_degree * float(chain.update_lane_cycles @ counts)
    static_watts = float(table.static_watts(np.asarray(die_mm2, dtype=np.float64)))
    return (
        work_j
        + (sent + ring) * table.link_byte_j
        + moved * table.memory_byte_j
        + cycles * table.lane_j
        + num_devices * static_watts * plan.step_s
    )


def _boundary_bytes(chain: Chain, plan: UniformPlan) -> float:
    """Bytes that cross the cuts for one microbatch, in one direction."""
    cuts = set(plan.crossed_cuts)
    return sum(edge.bytes for edge in chain.graph.edges if edge.target in cuts)
