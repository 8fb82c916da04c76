"""Designs of one variant priced together: bounds, plans, energy, power."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.chips.design_times import (
    ProductCache,
    Rates,
    exact_times,
    ideal_times,
    kernel_times_s,
)
from trainwright.chips.energy import kernel_energy_j, layer_energy_j, step_energy_j
from trainwright.chips.plans import improve_with_families, plans_of, problem_of, work_bounds_s
from trainwright.chips.space import subspace
from trainwright.costing.tiled import machine_of, machine_taking, product_times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainwright._native._core import UniformProblem
    from trainwright.arrays import Floats, Indices
    from trainwright.chips.design_times import LayerTimes, ProductTable
    from trainwright.chips.plans import UniformPlan
    from trainwright.chips.question import CodesignQuestion, Variant
    from trainwright.chips.search import Design
    from trainwright.chips.space import DesignSpace
    from trainwright.chips.workload import Chain, TrainingJob
    from trainwright.cluster import Surroundings
    from trainwright.costing.tiled import ChipKernel, TiledMachine, Tiles

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
        steps_s = [np.inf if plan is None else plan.step_s for plan in best]
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
