"""How short a schedule can be, and why."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Objective(StrEnum):
    """What a schedule is judged by.

    MAKESPAN is the window of all ranks, from the first start to the last end; SPAN is the window of
    the rank whose own is longest.
    """

    MAKESPAN = "makespan"
    SPAN = "span"


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
