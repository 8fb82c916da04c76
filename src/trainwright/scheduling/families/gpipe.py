"""GPipe: all forwards, then all backwards (Huang et al., NeurIPS 2019). Every activation waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.scheduling.families.family import Family, all_at_once, one_chunk
from trainwright.scheduling.orders import actions, one_after_another

if TYPE_CHECKING:
    from trainwright.scheduling.families.family import FamilyRequest


def order(request: FamilyRequest) -> Schedule:
    """Microbatches in order 0..m-1 in both passes."""
    microbatches = np.arange(request.num_microbatches)
    orders = [
        one_after_another(
            actions(ActionKind.F, rank, microbatches), actions(ActionKind.B, rank, microbatches)
        )
        for rank in range(request.num_ranks)
    ]
    return Schedule.of_ranks(
        orders, placement=one_chunk(request), num_microbatches=request.num_microbatches
    )


GPIPE = Family(
    name="gpipe",
    summary="all forwards, then all backwards",
    source="Huang et al., NeurIPS 2019",
    place=one_chunk,
    order=order,
    planned=True,
    held_at_once=all_at_once,
)
