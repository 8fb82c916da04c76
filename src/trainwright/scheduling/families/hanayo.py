"""Hanayo: 1F1B along waves of v chunks per rank (Liu et al., SC 2023).

The model is cut into vp stages that go down and up the ranks, a wave being two chunks, so that each
turn needs no transfer, nor is there a second copy of the parameters as in Chimera. Whenever a rank
is free it runs a backward if one is there, the deepest stage first, and else a forward, while it
holds fewer than vp + v - 1 activations. Orders come from that rule (`weight_grads`) with the
times of the request. The more waves, the shorter are the bubbles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.plans.schedule import ActionKind, Schedule, ScheduleCosts
from trainwright.scheduling.families.family import Family
from trainwright.scheduling.families.wave import place
from trainwright.scheduling.weight_grads import list_schedule

if TYPE_CHECKING:
    from trainwright.scheduling.families.family import FamilyRequest


def order(request: FamilyRequest) -> Schedule:
    """Backwards before forwards, deep stages before shallow ones."""
    placement = place(request)
    streams = [
        [(kind, stage) for kind in (ActionKind.B, ActionKind.F) for stage in reversed(stages)]
        for stages in placement.stages_of_rank
    ]
    return list_schedule(
        streams,
        placement=placement,
        num_microbatches=request.num_microbatches,
        costs=request.costs or ScheduleCosts.of(placement),
        held=[placement.num_stages + placement.num_stages // request.num_ranks - 1]
        * request.num_ranks,
    )


HANAYO = Family(
    name="hanayo",
    summary="1F1B along waves, whole backwards, less bubble the more waves",
    source="Liu et al., Hanayo, SC 2023",
    place=place,
    order=order,
    reads_costs=True,
)
