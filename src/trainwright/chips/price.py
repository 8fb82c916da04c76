"""Designs of one variant priced together: bounds, plans, energy, power."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright._native._core import UniformProblem
from trainwright.chips.design_times import (
    LayerTimes,
    ProductCache,
    ProductTable,
    Rates,
    exact_times,
    ideal_times,
    kernel_times_s,
)
from trainwright.chips.plans import (
    UniformPlan,
    improve_with_families,
    plans_of,
    problem_of,
    steps_of,
    work_bounds_s,
)
from trainwright.chips.space import DesignSpace, subspace
from trainwright.chips.workload import Chain, TrainingJob
from trainwright.cluster import Surroundings
from trainwright.costing.tiled import (
    PHASES,
    ChipKernel,
    TiledMachine,
    Tiles,
    machine_of,
    machine_taking,
    product_times,
)
from trainwright.errors import InvalidInput, negative, not_positive, refuse
from trainwright.model import Phase
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Indices
    from trainwright.chips.request import CodesignQuestion, Variant
    from trainwright.chips.search import Design

# What chips are made of and what things cost, with sources
# ---------------------------------------------------------


USUAL_PROCESS: Final = "7nm"  # that of the reference design, TPU v4


@lru_cache(maxsize=1)
def built_in() -> Mapping[str, Any]:
    """The tables of `technology.toml`, as they are written."""
    file = resources.files("trainwright.chips") / "technology.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


# Joules of kernels, layers and steps, from a table of energies per event
# -----------------------------------------------------------------------
#     E = (MACs·e_mac + lane operations·e_lane + Σ over levels bytes·e_level + link bytes·e_link
#          + bytes of the global buffer·e_wire·way + (idle + leakage·die)·time) / supply
#
# Dynamic energy is counted where it happens, backward by its own kernels; idle and leakage power
# run for the whole step on every chip, also on those that wait. A byte between the global buffer
# and a core goes 2/3 of the side of the die, the mean of two places in a square along its sides.
# `supply` is the efficiency of the converters before the chip. The table is an input. Its defaults
# stand in `technology.toml`, which says of each whether its text was read again, is remembered, or
# is assumed.
#
# A clock f above or below the one that a process gives at its nominal voltage V takes another one,
# f ~ (V - V_t)^α / V (Sakurai and Newton, IEEE JSSC 1990). Dynamic energy of logic, buffers and
# wires goes with V², leakage with V (`VoltageCurve`).


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
        refuse(negative(self, *(each.name for each in fields(self))))
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
        refuse(not_positive(self, *(each.name for each in fields(self))))
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


# Bounds sum in another order than plans do; this much lower they hold in floating point too.
SAFE: Final = 1.0 - 1e-12


class JobPricer:
    """One model on the designs of a space, under one variant; products are estimated once."""

    def __init__(self, job: TrainingJob, variant: Variant, question: CodesignQuestion) -> None:
        self.job = job
        self._variant = variant
        self._question = question
        self._energy = question.energy_of(variant)
        degrees = [t for t in sorted(set(job.tensor_degrees)) if t <= question.num_devices]
        self.chains: tuple[Chain, ...] = tuple(job.chain(t) for t in degrees)
        self._problems: dict[int, UniformProblem] = {}
        self._caches = tuple(
            ProductCache(question.space, chain, variant.surroundings) for chain in self.chains
        )

    @classmethod
    def at_degree(
        cls, job: TrainingJob, variant: Variant, question: CodesignQuestion, degree: int
    ) -> JobPricer:
        """The model at one tensor degree, be it among those searched or not."""
        return cls(replace(job, tensor_degrees=(degree,)), variant, question)

    def move(self, surroundings: Surroundings, num_devices: int) -> None:
        """Stand in other links and another size of memory, among so many devices.

        Estimates stay, so memory's bandwidth, clock and losses must be the same.
        """
        self._problems = {}
        self._variant = replace(self._variant, surroundings=surroundings)
        self._question = replace(self._question, num_devices=num_devices)
        pairs = zip(self.chains, self._caches, strict=True)
        kept = [(chain, cache) for chain, cache in pairs if chain.tensor_degree <= num_devices]
        self.chains = tuple(chain for chain, _ in kept)
        self._caches = tuple(cache for _, cache in kept)

    def estimates(self) -> dict[int, Floats]:
        """Every product on every core configuration of the space, by tensor degree."""
        for cache in self._caches:
            cache.fill()
        return {
            chain.tensor_degree: cache.figures
            for chain, cache in zip(self.chains, self._caches, strict=True)
        }

    def load(self, estimates: Mapping[int, Floats]) -> None:
        """Take estimates that were saved; raises `InvalidInput` where they are of other sizes."""
        for chain, cache in zip(self.chains, self._caches, strict=True):
            cache.load(estimates[chain.tensor_degree])

    def fits(self) -> bool:
        """Whether any plan fits the memory: the same for every design, so one is tried.

        Mostly one under 1F1B does, told in a millisecond; the other families take a second.
        """
        times, anything = self.times(np.zeros(1, dtype=np.int64)), np.full(1, np.inf)
        (alone,) = self._plans_1f1b(times, anything)
        if alone is not None:
            return True
        (plan,) = self.plans(times, anything)
        return plan is not None

    def ideal_bounds_s(self, designs: Indices) -> Floats:
        """No plan is faster, whatever the tiles: level 1 of the bounds."""
        space = subspace(self._question.space, designs)
        found = [
            self._work_s(chain, ideal_times(space, chain, self._variant.surroundings))
            for chain in self.chains
        ]
        bounds: Floats = np.min(found, axis=0) * SAFE
        return bounds

    def times(self, designs: Indices) -> tuple[LayerTimes, ...]:
        """Layers on each design, tensor degree by tensor degree."""
        space = subspace(self._question.space, designs)
        return tuple(
            exact_times(space, chain, self._variant.surroundings, cache.table(designs))
            for chain, cache in zip(self.chains, self._caches, strict=True)
        )

    def work_bounds_s(self, times: tuple[LayerTimes, ...]) -> Floats:
        """No plan is faster, at the estimated times: level 2 of the bounds."""
        found = [self._work_s(c, t) for c, t in zip(self.chains, times, strict=True)]
        bounds: Floats = np.min(found, axis=0) * SAFE
        return bounds

    def _work_s(self, chain: Chain, times: LayerTimes) -> Floats:
        return work_bounds_s(chain, times, job=self.job, num_devices=self._question.num_devices)

    def plans(self, times: tuple[LayerTimes, ...], cutoff_s: Floats) -> list[UniformPlan | None]:
        """The fastest plan below the cutoff over all tensor degrees, the smaller of equals."""
        best = self._plans_1f1b(times, cutoff_s)
        steps_s = steps_of(best)
        limit = np.minimum(cutoff_s, steps_s)
        for chain, layers in zip(self.chains, times, strict=True):
            improve_with_families(
                best,
                limit,
                chain,
                layers,
                job=self.job,
                surroundings=self._variant.surroundings,
                num_devices=self._question.num_devices,
            )
        return best

    def _plans_1f1b(
        self, times: tuple[LayerTimes, ...], cutoff_s: Floats
    ) -> list[UniformPlan | None]:
        best: list[UniformPlan | None] = [None] * cutoff_s.size
        limit = cutoff_s.copy()
        for chain, layers in zip(self.chains, times, strict=True):
            found = plans_of(self._problem_of(chain), chain, layers, limit)
            for index, plan in enumerate(found):
                if plan is not None:
                    best[index], limit[index] = plan, plan.step_s
        return best

    def _problem_of(self, chain: Chain) -> UniformProblem:
        degree = chain.tensor_degree
        if degree not in self._problems:
            self._problems[degree] = problem_of(
                chain,
                job=self.job,
                surroundings=self._variant.surroundings,
                num_devices=self._question.num_devices,
            )
        return self._problems[degree]

    def energies_j(self, designs: Indices, plans: Sequence[UniformPlan]) -> Floats:
        """Joules of a step of each design's plan on all chips."""
        question = self._question
        dies_mm2 = question.dies_mm2(self._variant, designs)
        layers = {
            chain.tensor_degree: (
                chain,
                layer_energy_j(chain, cache.table(designs), self._energy, dies_mm2),
            )
            for chain, cache in zip(self.chains, self._caches, strict=True)
        }
        found = np.zeros(designs.size)
        for index, plan in enumerate(plans):
            chain, joules = layers[plan.tensor_degree]
            found[index] = step_energy_j(
                joules[index],
                chain,
                plan,
                job=self.job,
                num_devices=question.num_devices,
                die_mm2=float(dies_mm2[index]),
                table=self._energy,
            )
        return found

    def least_joules(self, designs: Indices) -> Floats:
        """No plan of a step spends less beside static power: no exchange, no repeat."""
        found, dies_mm2 = [], self._question.dies_mm2(self._variant, designs)
        for chain, cache in zip(self.chains, self._caches, strict=True):
            table = cache.table(designs)
            layers_j = layer_energy_j(chain, table, self._energy, dies_mm2).min(axis=1)
            work_j = layers_j @ chain.class_counts * chain.tensor_degree
            found.append(self.job.num_microbatches * work_j)
        least: Floats = np.min(found, axis=0)
        return least

    def static_watts(self, designs: Indices) -> Floats:
        """What a chip draws whatever it does; no plan draws less on average."""
        return self._energy.static_watts(self._question.dies_mm2(self._variant, designs))

    def hungriest_watts(self, designs: Indices) -> Floats:
        """Power of a chip while the hungriest operator runs, static power included."""
        space = subspace(self._question.space, designs)
        dies_mm2 = self._question.dies_mm2(self._variant, designs)
        found = [
            self._hungriest(space, chain, cache.table(designs), dies_mm2)
            for chain, cache in zip(self.chains, self._caches, strict=True)
        ]
        hungriest: Floats = self.static_watts(designs) + np.max(found, axis=0)
        return hungriest

    def _hungriest(
        self, space: DesignSpace, chain: Chain, products: ProductTable, dies_mm2: Floats
    ) -> Floats:
        surroundings = self._variant.surroundings
        rates = Rates.of(space, surroundings)
        watts = np.zeros(len(space))
        for kernels in chain.kernels:
            for kernel in kernels:
                energy = kernel_energy_j(kernel, products, self._energy, dies_mm2)
                spent_s = kernel_times_s(kernel, products, rates, surroundings)
                watts = np.maximum(watts, energy / spent_s)
        return watts


# Operator by operator on one design: what its time goes to, and how busy its unit is
# -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorUse:
    """One kernel on one design. `bound` names the longest of its parts.

    `utilisation` is the share of its time in which its unit would be enough: the multipliers for
    kernels with products, the vector lanes for all others.
    """

    kernel: ChipKernel
    seconds: float
    bound: str
    utilisation: float
    tiles: Tiles | None


def operator_uses(
    question: CodesignQuestion, design: Design, chain: Chain
) -> tuple[OperatorUse, ...]:
    """The kernels of the most frequent layer class of `chain` on a design."""
    space = subspace(question.space, np.array([design.index]))
    surroundings = question.variants[design.variant].surroundings
    most = int(np.argmax(chain.class_counts))
    return tuple(_uses(space, surroundings, chain, chain.kernels[most]))


def uses_of(
    space: DesignSpace, design: int, surroundings: Surroundings, chain: Chain, index: int
) -> Iterator[OperatorUse]:
    """The kernels of one class of layers on a design."""
    one = subspace(space, np.array([design]))
    return _uses(one, surroundings, chain, chain.kernels[index])


def _uses(
    space: DesignSpace, surroundings: Surroundings, chain: Chain, kernels: tuple[ChipKernel, ...]
) -> Iterator[OperatorUse]:
    machine = machine_of(space.template(0), surroundings, element_bytes=chain.element_bytes)
    table = ProductCache(space, chain, surroundings).table(np.arange(1))
    rates = Rates.of(space, surroundings)
    for kernel in kernels:
        seconds = float(kernel_times_s(kernel, table, rates, surroundings)[0])
        parts, tiles = _parts(kernel, machine, float(rates.lanes_per_s[0]), surroundings)
        busy = kernel.array_flops / machine.peak_flops_per_s if kernel.products else parts["vector"]
        yield OperatorUse(
            kernel=kernel,
            seconds=seconds,
            bound=max(parts, key=lambda name: parts[name]),
            utilisation=busy / seconds,
            tiles=tiles,
        )


def _parts(
    kernel: ChipKernel, machine: TiledMachine, lanes: float, surroundings: Surroundings
) -> tuple[dict[str, float], Tiles | None]:
    """Seconds by what they are spent on, were each alone; tiles of the first product."""
    pace = surroundings.memory_bandwidth_bytes_per_s * surroundings.efficiency.memory.max
    parts = {
        "vector": kernel.lane_cycles / lanes,
        "hbm": kernel.memory_bytes / pace,
        "launch": surroundings.launch_s,
    }
    if not kernel.products:
        return parts, None
    wide = any(product.wide for product in kernel.products)
    found = product_times([machine_taking(machine, wide=wide)], kernel.products)
    glb_s = found.glb_bytes[0].sum() / machine.glb_bandwidth_bytes_per_s
    parts["mac"] = kernel.share * float(found.compute_s[0].sum())
    if kernel.is_fused:
        reached_s = kernel.attention_s(machine.peak_flops_per_s, surroundings.efficiency)
        parts["mac"] = max(parts["mac"], float(reached_s))
    parts["glb"] = kernel.share * float(glb_s)
    parts["hbm"] += float(found.memory_bytes[0].sum()) / pace
    return parts, found.tiles(0, 0)
