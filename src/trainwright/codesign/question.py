"""What is searched: designs × what surrounds them × microbatch sizes, for one or several models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from trainwright.codesign.energy import DEFAULT_ENERGY, EnergyTable
from trainwright.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.cluster import Surroundings
    from trainwright.codesign.space import DesignSpace
    from trainwright.codesign.workload import TrainingJob

    Floats = NDArray[np.float64]


class Objective(StrEnum):
    """How several models share one figure; with one model all of them are its step time.

    GEOMETRIC, MEAN and WORST are of throughputs relative to the reference design, REGRET is the
    largest loss against each model's own best design, ARITHMETIC the mean of raw throughputs (as
    PHAZE takes it, where small models dominate).
    """

    GEOMETRIC = "geometric"
    MEAN = "mean"
    WORST = "worst"
    REGRET = "regret"
    ARITHMETIC = "arithmetic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One choice of what a design stands in and of the microbatch size."""

    surroundings: Surroundings
    microbatch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CodesignQuestion:
    """The search, with its hard limits; `jobs` carry their own sequence, batch and degrees.

    `max_power_watts` limits the power of a chip while the hungriest operator of any model runs.
    """

    space: DesignSpace
    jobs: tuple[TrainingJob, ...]
    num_devices: int
    surroundings: tuple[Surroundings, ...]
    microbatch_sizes: tuple[int, ...] = (1,)
    objective: Objective = Objective.GEOMETRIC
    energy: EnergyTable = DEFAULT_ENERGY
    max_power_watts: float | None = None

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for name in ("jobs", "surroundings", "microbatch_sizes"):
            if not getattr(self, name):
                yield Fault(name, "must have at least 1 entry, got 0")
        if self.num_devices < 1:
            yield Fault("devices", f"must be >= 1, got {self.num_devices}")
        if not len(self.space):
            yield Fault("space", "must admit at least 1 design; widen the area limits or ranges")
        if self.max_power_watts is not None and not self.max_power_watts > 0:
            yield Fault("max_power", f"must be > 0, got {self.max_power_watts!r}")
        if self.jobs and not any(t <= self.num_devices for t in self.jobs[0].tensor_degrees):
            yield Fault("devices", f"must hold one tensor group, got {self.num_devices}")

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Every combination of surroundings and microbatch size."""
        return tuple(
            Variant(surroundings=s, microbatch_size=b)
            for s in self.surroundings
            for b in self.microbatch_sizes
        )

    @property
    def weights(self) -> Floats:
        """Each model's share, summing to 1."""
        raw = np.array([job.weight for job in self.jobs])
        shares: Floats = raw / raw.sum()
        return shares

    def jobs_of(self, variant: Variant) -> tuple[TrainingJob, ...]:
        """The jobs at a variant's microbatch size."""
        return tuple(replace(j, microbatch_size=variant.microbatch_size) for j in self.jobs)


def cost(objective: Objective, steps_s: Floats, *, scale_s: Floats, weights: Floats) -> Floats:
    """What is minimised, from step times [n, models]; grows with each of them.

    `scale_s` are the step times of the reference (for REGRET each model's own best, for ARITHMETIC
    its samples per step). One model: its step time, in seconds.
    """
    if steps_s.shape[1] == 1:
        return steps_s[:, 0]
    ratios = steps_s / scale_s
    if objective is Objective.GEOMETRIC:
        found: Floats = np.exp(np.log(ratios) @ weights)
    elif objective in (Objective.MEAN, Objective.ARITHMETIC):
        found = 1.0 / ((1.0 / ratios) @ weights)
    else:
        found = ratios.max(axis=1)
    return found
