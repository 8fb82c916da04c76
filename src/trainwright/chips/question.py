"""What is searched: designs × what surrounds them × microbatch sizes, for one or several models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from trainwright.chips.energy import DEFAULT_ENERGY, EnergyTable
from trainwright.chips.space import (
    NUMBER_FORMATS,
    UM2_PER_MM2,
    DieModel,
    Making,
    NumberFormat,
    number_format,
    subspace,
)
from trainwright.chips.technology import die_of
from trainwright.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainwright.arrays import Floats, Indices
    from trainwright.chips.energy import VoltageCurve
    from trainwright.chips.space import DesignSpace
    from trainwright.chips.workload import TrainingJob
    from trainwright.cluster import Surroundings


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
    """One choice of what a design stands in, of its multipliers and of the microbatch size."""

    surroundings: Surroundings
    microbatch_size: int
    precision: str = "bf16"
    number_format: NumberFormat | None = None  # the built-in one of that precision where absent

    @property
    def multiplies(self) -> NumberFormat:
        """What its multipliers take against those of bfloat16."""
        return self.number_format or number_format(self.precision)

    @property
    def making(self) -> Making:
        """What it means for the area of a design."""
        return making_of(self.surroundings, self.multiplies)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodesignQuestion:
    """The search, with its hard limits; `jobs` carry their own sequence, batch and degrees.

    `max_power_watts` limits the power of a chip while the hungriest operator of any model runs,
    `max_mean_watts` (a thermal design power) its mean over a step of the fastest plan. `energy` is
    at the nominal voltage of `curve`, or at one voltage for every clock where there is none; `die`
    is what dies have beside cores, in their process.
    """

    space: DesignSpace
    jobs: tuple[TrainingJob, ...]
    num_devices: int
    surroundings: tuple[Surroundings, ...]
    microbatch_sizes: tuple[int, ...] = (1,)
    precisions: tuple[str, ...] = ("bf16",)
    objective: Objective = Objective.GEOMETRIC
    energy: EnergyTable = DEFAULT_ENERGY
    max_power_watts: float | None = None
    max_mean_watts: float | None = None
    die: DieModel = field(default_factory=die_of)
    curve: VoltageCurve | None = None
    formats: Mapping[str, NumberFormat] = field(default_factory=lambda: dict(NUMBER_FORMATS))

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for name in ("jobs", "surroundings", "microbatch_sizes", "precisions"):
            if not getattr(self, name):
                yield Fault(name, "must have at least 1 entry, got 0")
        if self.curve is not None:
            try:
                self.curve.volts_for(max((s.clock_hz for s in self.surroundings), default=1.0))
            except InvalidInput as error:
                yield from error.faults
        if self.num_devices < 1:
            yield Fault("devices", f"must be >= 1, got {self.num_devices}")
        if not len(self.space):
            yield Fault("space", "must admit at least 1 design; widen the area limits or ranges")
        limits = {"max_power": self.max_power_watts, "max_mean_power": self.max_mean_watts}
        for name, watts in limits.items():
            if watts is not None and not watts > 0:
                yield Fault(name, f"must be > 0, got {watts!r}")
        if self.jobs and not any(t <= self.num_devices for t in self.jobs[0].tensor_degrees):
            yield Fault("devices", f"must hold one tensor group, got {self.num_devices}")

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Every combination of surroundings, precision and microbatch size."""
        return tuple(
            self.variant(s, b, p)
            for s in self.surroundings
            for p in self.precisions
            for b in self.microbatch_sizes
        )

    def variant(self, around: Surroundings, microbatch_size: int, precision: str) -> Variant:
        """A variant in these surroundings, with multipliers as the question makes them."""
        return Variant(
            surroundings=around,
            microbatch_size=microbatch_size,
            precision=precision,
            number_format=self.formats.get(precision),
        )

    def energy_of(self, variant: Variant) -> EnergyTable:
        """What events draw at the clock and with the multipliers of a variant."""
        table = self.energy.multiplying(variant.multiplies.energy_factor).drawn()
        if self.curve is None:
            return table
        volts = self.curve.volts_for(variant.surroundings.clock_hz)
        return table.at_voltage(volts / self.curve.volts)

    def dies_mm2(self, variant: Variant, designs: Indices) -> Floats:
        """Whole dies of some designs under a variant."""
        areas_mm2 = subspace(self.space, designs).areas_um2_of(variant.making) / UM2_PER_MM2
        return np.asarray(self.die.die_area_mm2(areas_mm2))

    @property
    def weights(self) -> Floats:
        """Each model's share, summing to 1."""
        raw = np.array([job.weight for job in self.jobs])
        shares: Floats = raw / raw.sum()
        return shares

    def jobs_of(self, variant: Variant) -> tuple[TrainingJob, ...]:
        """The jobs at a variant's microbatch size and precision."""
        return tuple(
            replace(job, microbatch_size=variant.microbatch_size, precision=variant.precision)
            for job in self.jobs
        )

    def area_mm2(self, variant: int, design: int) -> float:
        """Area of one design under a variant."""
        one = subspace(self.space, np.array([design]))
        return float(one.areas_um2_of(self.variants[variant].making)[0]) / UM2_PER_MM2

    def areas_um2(self, variant: Variant) -> Floats:
        """Area of every design under a variant, with its multipliers and interfaces."""
        return self.space.areas_um2_of(variant.making)


def making_of(surroundings: Surroundings, multiplies: NumberFormat) -> Making:
    """How surroundings and multipliers change the area of a design."""
    return Making(
        mac_factor=multiplies.area_factor,
        interface_mm2=surroundings.interface_mm2,
    )


def cost(objective: Objective, steps_s: Floats, *, scale_s: Floats, weights: Floats) -> Floats:
    """What is minimised, from step times [n, models]; grows with each of them.

    `scale_s` are the step times of the reference (for REGRET each model's own best, for ARITHMETIC
    its samples per step). One model: its step time, in seconds.
    """
    if steps_s.shape[1] == 1:
        return steps_s[:, 0]
    ratios = steps_s / scale_s  # summed row by row: the same bits in batches of any size
    if objective is Objective.GEOMETRIC:
        found: Floats = np.exp((np.log(ratios) * weights).sum(axis=1))
    elif objective in (Objective.MEAN, Objective.ARITHMETIC):
        found = 1.0 / (weights / ratios).sum(axis=1)
    else:
        found = ratios.max(axis=1)
    return found
