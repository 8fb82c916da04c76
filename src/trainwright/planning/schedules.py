"""Which schedule families are searched, with how many chunks per rank, and where they are legal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainwright.errors import UnsupportedFeature

if TYPE_CHECKING:
    from trainwright.planning.allowed import Allowed
    from trainwright.planning.layouts import Layouts
    from trainwright.planning.model_space import Point

ONE_F_ONE_B: Final = "1f1b"
SEARCHED: Final = (ONE_F_ONE_B,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A family, and the virtual stages of each rank under it."""

    family: str
    virtual_stages: int = 1


def schedules_of(allowed: Allowed, num_blocks: int) -> tuple[Schedule, ...]:
    """The families that may be used with every number of chunks that the blocks allow.

    Raises `UnsupportedFeature` where no family that is allowed can be searched.
    """
    families = [family for family in allowed.schedules or SEARCHED if family in SEARCHED]
    if not families:
        named = ", ".join(allowed.schedules or ())
        raise UnsupportedFeature(
            f"plans under {named} are not searched", alternative=f"use {', '.join(SEARCHED)}"
        )
    found = [Schedule(family=family) for family in families]
    return tuple(each for each in found if each.virtual_stages in allowed.virtual_stages)


def legal_layouts(schedule: Schedule, layouts: Layouts, num_blocks: int) -> Layouts:
    """The pairs at which every virtual stage holds a block and the family has an order."""
    return layouts.at(layouts.pipeline * schedule.virtual_stages <= num_blocks)


def replicated(point: Point, layouts: Layouts) -> Layouts:
    """The pairs at which some state has replicas, so that ZeRO stages differ."""
    dense = layouts.data * point.context > 1
    return layouts.at(dense | (layouts.data * point.devices > point.expert_devices))
