"""Which schedule families are searched, with how many chunks per rank, and where they are legal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trainwright.planning.allowed import Allowed
    from trainwright.planning.layouts import Layouts

ONE_F_ONE_B: Final = "1f1b"
SEARCHED: Final = (ONE_F_ONE_B,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A family, and the virtual stages of each rank under it."""

    family: str
    virtual_stages: int = 1


def schedules_of(allowed: Allowed, num_blocks: int) -> tuple[Schedule, ...]:
    """The families that may be used with every number of chunks that the blocks allow."""
    found = [Schedule(family=family) for family in allowed.schedules or SEARCHED]
    return tuple(each for each in found if each.virtual_stages in allowed.virtual_stages)


def legal_layouts(schedule: Schedule, layouts: Layouts, num_blocks: int) -> Layouts:
    """The pairs at which every virtual stage holds a block and the family has an order."""
    return layouts.at(layouts.pipeline * schedule.virtual_stages <= num_blocks)
