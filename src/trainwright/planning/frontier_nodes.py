"""Nodes of the tree that a search opens (`frontier`), from degrees down to one candidate.

`family` is the schedule family of all that lies below a node, None where it may be any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np

from trainwright.plan.axis_order import DATA_INSIDE, PIPELINE_INSIDE
from trainwright.planning.model_space import Candidate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.planning.expert_floor import LeastLayers
    from trainwright.planning.layouts import Layouts
    from trainwright.planning.model_space import Point
    from trainwright.planning.point_work import PointWork
    from trainwright.planning.schedules import Schedule

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Undealt:
    """All ways to deal the experts out at the degrees of a point."""

    family: ClassVar[None] = None
    point: Point
    count: int
    least: tuple[LeastLayers, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpriced:
    """A point whose layers have to be priced."""

    family: ClassVar[None] = None
    point: Point
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbounded:
    """A point whose layers are priced, and its pairs that are not bounded yet."""

    family: ClassVar[None] = None
    point: Point
    work: PointWork
    layouts: Layouts


@dataclass(slots=True, kw_only=True)
class BoundedPairs:
    """Depths, data degrees and chunks at a point, ZeRO stage and schedule; least bound first.

    Those of `layouts` from `first` on, with `bounds_s` [N]; `done` of them were taken.
    """

    point: Point
    zero_stage: int
    schedule: Schedule
    layouts: Layouts
    first: int
    bounds_s: Floats
    done: int = 0

    @property
    def family(self) -> str:
        """That of the schedule."""
        return self.schedule.family

    @property
    def num_left(self) -> int:
        """Candidates that were not taken."""
        return len(self.bounds_s) - self.done

    def count_below(self, limit_s: float) -> int:
        """Candidates left that may be below a limit."""
        return max(0, int(np.searchsorted(self.bounds_s, limit_s)) - self.done)

    def candidate(self, index: int) -> Candidate:
        """One of them."""
        point, index = self.point, self.first + index
        return Candidate(
            microbatch_size=point.microbatch_size,
            tensor=point.tensor,
            context=point.context,
            expert=point.expert,
            expert_tensor=point.expert_tensor,
            pipeline=int(self.layouts.pipeline[index]),
            data=int(self.layouts.data[index]),
            zero_stage=self.zero_stage,
            schedule=self.schedule.family,
            virtual_stages=int(self.layouts.virtual_stages[index]),
            axis_order=PIPELINE_INSIDE if self.layouts.inside[index] else DATA_INSIDE,
            state_copies=int(self.layouts.copies[index]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """A candidate that was put back."""

    num_left: ClassVar[int] = 1
    candidate: Candidate

    @property
    def family(self) -> str:
        """That of its schedule."""
        return self.candidate.schedule


Node: TypeAlias = Undealt | Unpriced | Unbounded | BoundedPairs | Single
