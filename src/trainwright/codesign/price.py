"""Designs of one variant priced together: bounds, plans, energy, power."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.codesign.area import UM2_PER_MM2
from trainwright.codesign.design_times import (
    ProductCache,
    exact_times,
    ideal_times,
    kernel_times_s,
    lanes_per_s,
)
from trainwright.codesign.energy import kernel_energy_j, layer_energy_j, step_energy_j
from trainwright.codesign.family_plans import improve_with_families
from trainwright.codesign.number_formats import number_format
from trainwright.codesign.space import subspace
from trainwright.codesign.uniform import fastest_plans, work_bounds_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from trainwright.codesign.design_times import LayerTimes, ProductTable
    from trainwright.codesign.question import CodesignQuestion, Variant
    from trainwright.codesign.space import DesignSpace
    from trainwright.codesign.uniform import UniformPlan
    from trainwright.codesign.workload import Chain, TrainingJob

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]

# Bounds sum in another order than plans do; this much lower they hold in floating point too.
SAFE: Final = 1.0 - 1e-12


class JobPricer:
    """One model on the designs of a space, under one variant; products are estimated once."""

    def __init__(self, job: TrainingJob, variant: Variant, question: CodesignQuestion) -> None:
        self.job = job
        self._variant = variant
        self._question = question
        factor = number_format(variant.precision).energy_factor
        self._energy = question.energy.multiplying(factor)
        degrees = [t for t in sorted(set(job.tensor_degrees)) if t <= question.num_devices]
        self.chains: tuple[Chain, ...] = tuple(job.chain(t) for t in degrees)
        self._caches = tuple(
            ProductCache(question.space, chain, variant.surroundings) for chain in self.chains
        )

    @classmethod
    def at_degree(
        cls, job: TrainingJob, variant: Variant, question: CodesignQuestion, degree: int
    ) -> JobPricer:
        """The model at one tensor degree, be it among those searched or not."""
        return cls(replace(job, tensor_degrees=(degree,)), variant, question)

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
            found = fastest_plans(
                chain,
                layers,
                job=self.job,
                surroundings=self._variant.surroundings,
                num_devices=self._question.num_devices,
                cutoff_s=limit,
            )
            for index, plan in enumerate(found):
                if plan is not None:
                    best[index], limit[index] = plan, plan.step_s
        return best

    def energies_j(self, designs: Indices, plans: Sequence[UniformPlan]) -> Floats:
        """Joules of a step of each design's plan on all chips."""
        question = self._question
        layers = {
            chain.tensor_degree: (
                chain,
                layer_energy_j(chain, cache.table(designs), self._energy),
            )
            for chain, cache in zip(self.chains, self._caches, strict=True)
        }
        areas = question.areas_um2(self._variant)[designs] / UM2_PER_MM2
        found = np.zeros(designs.size)
        for index, plan in enumerate(plans):
            chain, joules = layers[plan.tensor_degree]
            found[index] = step_energy_j(
                joules[index],
                chain,
                plan,
                job=self.job,
                num_devices=question.num_devices,
                area_mm2=float(areas[index]),
                table=self._energy,
            )
        return found

    def hungriest_watts(self, designs: Indices) -> Floats:
        """Power of a chip while the hungriest operator runs, static power included."""
        space = subspace(self._question.space, designs)
        areas_um2 = space.areas_um2_of(self._variant.making)
        static = self._energy.static_watts(areas_um2 / UM2_PER_MM2)
        found = [
            self._hungriest(space, chain, cache.table(designs))
            for chain, cache in zip(self.chains, self._caches, strict=True)
        ]
        hungriest: Floats = static + np.max(found, axis=0)
        return hungriest

    def _hungriest(self, space: DesignSpace, chain: Chain, products: ProductTable) -> Floats:
        surroundings = self._variant.surroundings
        lanes = lanes_per_s(space, surroundings)
        watts = np.zeros(len(space))
        for kernels in chain.kernels:
            for kernel in kernels:
                energy = kernel_energy_j(kernel, products, self._energy)
                spent_s = kernel_times_s(kernel, products, lanes, surroundings)
                watts = np.maximum(watts, energy / spent_s)
        return watts
