"""How short a schedule can be, and why."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trainwright.plan.timeline import Timeline


class Objective(StrEnum):
    """What a schedule is judged by.

    MAKESPAN is the window of all ranks, from the first start to the last end; SPAN is the window of
    the rank whose own is longest.
    """

    MAKESPAN = "makespan"
    SPAN = "span"

    def of(self, timeline: Timeline) -> float:
        """The objective's value, in seconds."""
        return timeline.span_s if self is Objective.SPAN else timeline.makespan_s


class BoundName(StrEnum):
    """The argument behind a lower bound."""

    RANK_WORK = "rank-work"
    MEMORY_AREA = "memory-area"
    MEMORY_PATH = "memory-path"
    WINDOW = "window"
    SOLVER = "solver"


class Bound(NamedTuple):
    """No schedule takes less than `value_s`."""

    value_s: float
    name: BoundName
