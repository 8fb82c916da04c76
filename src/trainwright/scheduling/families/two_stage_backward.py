"""2BP: weight gradients wait for the end, where they fill idle time (Rae et al., 2024).

The backward is split; rank r runs the input gradients as 1F1B runs its backwards, one weight
gradient before each of its last p-1-r input gradients, while it waits for that, and the others when
all input gradients are done. With equal times p-1 slots are lost, (p-1)/(p-1+3m) of the step as in
the paper's table for 1F1B; every weight gradient that waits keeps its activation, so a rank holds
up to m of them.
"""

from __future__ import annotations

import numpy as np

from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.scheduling.families.family import Family, FamilyRequest, one_chunk
from trainwright.scheduling.orders import actions, in_turn, one_after_another


def weights_last_order(request: FamilyRequest) -> Schedule:
    """Weight gradients only once the last forward has run."""
    p, m = request.num_ranks, request.num_microbatches
    orders = []
    for rank in range(p):
        forward, first, second = (
            actions(kind, rank, np.arange(m)) for kind in (ActionKind.F, ActionKind.I, ActionKind.W)
        )
        waits = min(m, p - 1 - rank)  # microbatches in flight when the last forward has run
        steady = m - waits
        lead = int(steady == 0)  # then the first weight gradient has to wait, too
        orders.append(
            one_after_another(
                forward[:waits],
                in_turn(forward[waits:], first[:steady]),
                first[steady : steady + lead],
                in_turn(second[: max(waits - lead, 0)], first[steady + lead :]),
                second[max(waits - lead, 0) :],
            )
        )
    return Schedule.of_ranks(orders, placement=one_chunk(request), num_microbatches=m)


TWO_STAGE_BACKWARD = Family(
    name="2bp",
    summary="1F1B with all weight gradients at the end, where they fill idle time",
    source="Rae, Lee and Richings, 2BP: 2-Stage Backpropagation, 2024",
    place=one_chunk,
    order=weights_last_order,
    splits_backward=True,
)
