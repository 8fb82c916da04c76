"""GIS and GIS-H: interleaved with the backward split and groups of g microbatches.

Within a period of 3gv slots each chunk of a rank runs the g members of a group in every third slot;
input gradients use the slots in between, weight gradients follow them (Qi et al., NeurIPS 2024).
GIS has g = p, GIS-H g = p/2, for less memory and a longer bubble.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import Fault
from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.scheduling.block import SOURCE, BuildingBlock, repeat
from trainwright.scheduling.families.family import Family, looped
from trainwright.scheduling.orders import trim

if TYPE_CHECKING:
    from trainwright.plans.schedule import Placement
    from trainwright.scheduling.families.family import FamilyRequest


def block(placement: Placement, *, group: int, members: int) -> BuildingBlock:
    """The period of one group: F of chunk c in slots 3gc + 3q + r, I of chunk v-1-c likewise after
    the last chunk's forward and the way back, W in the slot after its I; of q the first `members`.
    """
    p = placement.num_ranks
    chunk, rank = np.divmod(np.arange(placement.num_stages, dtype=float)[:, None], p)
    member = np.arange(members, dtype=float)[None, :]
    last = placement.num_stages // p - 1
    forward = 3 * group * chunk + 3 * member + rank
    turn = 3 * group * last + rank + 3 * (p - 1 - rank) + 1
    input_grad = turn + 3 * group * (last - chunk) + 3 * member
    return BuildingBlock(
        placement=placement,
        period_slots=3.0 * group * (last + 1),
        start_slots={
            ActionKind.F: forward,
            ActionKind.I: input_grad,
            ActionKind.W: input_grad + 1,
        },
    )


def order(request: FamilyRequest) -> Schedule:
    """Groups of p, or of what the request says."""
    return _order(request, group=request.group or request.num_ranks)


def half_order(request: FamilyRequest) -> Schedule:
    """Groups of p/2 rounded up, or of what the request says."""
    return _order(request, group=request.group or -(-request.num_ranks // 2))


def _order(request: FamilyRequest, *, group: int) -> Schedule:
    """Whole groups, trimmed to the microbatches there are."""
    members = min(group, request.num_microbatches)
    whole = -(-request.num_microbatches // members) * members
    schedule = repeat(block(looped(request), group=group, members=members), whole)
    return trim(schedule, num_microbatches=request.num_microbatches)


def rules(request: FamilyRequest) -> Iterator[Fault]:
    """Smaller groups return to rank 0 too early, larger ones only cost memory."""
    least, most = -(-request.num_ranks // 2), request.num_ranks
    if request.group is not None and not least <= request.group <= most:
        yield Fault(
            "group", f"must be from {least} to {most} for {most} ranks, got {request.group}"
        )


GIS = Family(
    name="gis",
    summary="interleaved with split backward in groups of p",
    source=SOURCE,
    place=looped,
    order=order,
    rules=rules,
    splits_backward=True,
    reads_group=True,
)
GIS_H = Family(
    name="gis-h",
    summary="interleaved with split backward in groups of p/2, for less memory",
    source=SOURCE,
    place=looped,
    order=half_order,
    rules=rules,
    splits_backward=True,
    reads_group=True,
)
