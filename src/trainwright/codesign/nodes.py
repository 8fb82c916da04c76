"""Nodes of a co-design search: designs under variants, what becomes of them, who prices them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.codesign.price import JobPricer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.codesign.question import CodesignQuestion, Variant
    from trainwright.codesign.uniform import UniformPlan

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]
    Prepared = Mapping[int, tuple[JobPricer, ...]]

PEAK, WORK, PLACEMENT = "peak", "work", "placement"
POWER, MEMORY, AREA = "power", "memory", "area"
_KEPT: Final = 16  # variants whose estimates stay in memory, some 10 MB each


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A design with its plans, one per model, and what is minimised."""

    variant: int
    index: int
    plans: tuple[UniformPlan, ...]
    cost: float

    def comes_before(self, other: Design | None, question: CodesignQuestion) -> bool:
        """Less cost; of equals less area, then the order of enumeration."""
        if other is None:
            return True
        if self.cost != other.cost:
            return self.cost < other.cost
        mine, its = (
            (question.area_mm2(x.variant, x.index), x.variant, x.index) for x in (self, other)
        )
        return mine < its


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What became of every node: its best known bound and the level that ended it.

    Arrays [variants, designs]; level "" is a node that was not reached.
    """

    bounds: Floats
    levels: NDArray[np.str_]

    @classmethod
    def empty(cls, question: CodesignQuestion) -> Ledger:
        """Nothing is known of any node but whether its area is within the limits."""
        shape = (len(question.variants), len(question.space))
        ledger = cls(bounds=np.zeros(shape), levels=np.full(shape, "", dtype="<U9"))
        for variant, one in enumerate(question.variants):
            outside = ~question.space.admitted(one.making)
            ledger.bounds[variant, outside] = np.inf
            ledger.levels[variant, outside] = AREA
        return ledger

    def count(self, level: str) -> int:
        """Nodes that ended at a level."""
        return int((self.levels == level).sum())


class Sweep:
    """A question in one process: what its batches share, pricers made when they are needed."""

    def __init__(
        self, question: CodesignQuestion, scale_s: Floats, prepared: Prepared | None = None
    ) -> None:
        self.question, self.scale_s = question, scale_s
        self._prepared = prepared or {}
        self._made: dict[int, tuple[JobPricer, ...]] = {}

    def pricers(self, variant: int) -> tuple[JobPricer, ...]:
        """One pricer per model under a variant; of those made here the latest few are kept."""
        if variant in self._prepared:
            return self._prepared[variant]
        if variant not in self._made:
            if len(self._made) >= _KEPT:
                del self._made[next(iter(self._made))]
            self._made[variant] = pricers(self.question, self.question.variants[variant])
        return self._made[variant]

    def __getstate__(self) -> tuple[CodesignQuestion, Floats]:
        return self.question, self.scale_s

    def __setstate__(self, state: tuple[CodesignQuestion, Floats]) -> None:
        self.__init__(*state)  # type: ignore[misc]


def pricers(question: CodesignQuestion, variant: Variant) -> tuple[JobPricer, ...]:
    """One pricer per model of the question."""
    return tuple(JobPricer(job, variant, question) for job in question.jobs_of(variant))


def mean_watts(
    question: CodesignQuestion,
    jobs: tuple[JobPricer, ...],
    designs: Indices,
    plans: list[tuple[UniformPlan, ...]],
) -> tuple[Floats, Floats]:
    """Joules [n, models] of a step of each design's plans, and the mean power of a chip [n].

    With several models the power is that of the hungriest.
    """
    found = [
        job.energies_j(designs, [chosen[index] for chosen in plans])
        for index, job in enumerate(jobs)
    ]
    energies = np.stack(found, axis=1)
    steps = np.array([[p.step_s for p in chosen] for chosen in plans], dtype=np.float64)
    steps = steps.reshape(energies.shape)
    watts: Floats = (energies / steps / question.num_devices).max(axis=1, initial=0.0)
    return energies, watts
