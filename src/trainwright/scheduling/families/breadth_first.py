"""Breadth-first: a chunk runs all microbatches before the next chunk (Lamy-Poirier, MLSys 2023).

All forwards, chunk by chunk, then all backwards, last chunk first. Each chunk is needed once per
pass, which suits sharded parameters; every activation waits.
"""

from __future__ import annotations

import numpy as np

from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.scheduling.families.family import Family, FamilyRequest, all_at_once, looped
from trainwright.scheduling.orders import actions, one_after_another


def breadth_first_order(request: FamilyRequest) -> Schedule:
    """Microbatches in order 0..m-1 on every chunk, in both passes."""
    placement = looped(request)
    microbatches = np.arange(request.num_microbatches)
    orders = [
        one_after_another(
            *(actions(ActionKind.F, stage, microbatches) for stage in stages),
            *(actions(ActionKind.B, stage, microbatches) for stage in reversed(stages)),
        )
        for stages in placement.stages_of_rank
    ]
    return Schedule.of_ranks(orders, placement=placement, num_microbatches=request.num_microbatches)


BREADTH_FIRST = Family(
    name="breadth-first",
    summary="all microbatches on a chunk before the next chunk, forwards before backwards",
    source="Lamy-Poirier, MLSys 2023",
    place=looped,
    order=breadth_first_order,
    planned=True,
    held_at_once=all_at_once,
)
