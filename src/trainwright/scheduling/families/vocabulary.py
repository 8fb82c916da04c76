"""1F1B with the head cut over all ranks (Yeung et al., Vocabulary Parallelism, MLSys 2025).

A large vocabulary makes the last stage slower and fuller than the others. Cut over all ranks, the
head becomes two passes on every rank, V (their S) and T, between which statistics of the softmax
are exchanged. In the first variant the last stage waits for T of all ranks too, two barriers; in
the second V already prepares its gradient, one barrier, and T may wait. Each barrier delays the
backward by one microbatch, so 1F1B holds p + 2 or p + 1 microbatches on the first rank instead of
p; with that room no rank ever waits in the steady state.

Orders come from a rule (`scheduling.weight_grads`) with the times of the request. The
input embedding, a look-up, has no action.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trainwright.plans.schedule import ActionKind, Schedule, ScheduleCosts
from trainwright.scheduling.families.family import Family, one_chunk
from trainwright.scheduling.weight_grads import list_schedule

if TYPE_CHECKING:
    from trainwright.scheduling.families.family import FamilyRequest

_F, _B, _V, _T = ActionKind.F, ActionKind.B, ActionKind.V, ActionKind.T
_URGENCY = {2: (_B, _V, _F, _T), 1: (_V, _F, _B, _T)}


def order(request: FamilyRequest, *, head_barriers: int) -> Schedule:
    """As 1F1B, with room for one more microbatch per barrier."""
    placement, p = one_chunk(request), request.num_ranks
    streams = [[(kind, rank) for kind in _URGENCY[head_barriers]] for rank in range(p)]
    return list_schedule(
        streams,
        placement=placement,
        num_microbatches=request.num_microbatches,
        costs=request.costs or ScheduleCosts.of(placement, head_s=1.0),
        held=[p - rank + head_barriers for rank in range(p)],
        head_barriers=head_barriers,
    )


_SOURCE = "Yeung, Qi, Lin and Wan, Vocabulary Parallelism, MLSys 2025"
VOCABULARY_1 = Family(
    name="vocab-1",
    summary="1F1B, the head cut over all ranks, two barriers, p+2 activations",
    source=_SOURCE,
    place=one_chunk,
    order=partial(order, head_barriers=2),
    is_plain=False,
    reads_costs=True,
)
VOCABULARY_2 = Family(
    name="vocab-2",
    summary="1F1B, the head cut over all ranks, one barrier, p+1 activations",
    source=_SOURCE,
    place=one_chunk,
    order=partial(order, head_barriers=1),
    is_plain=False,
    reads_costs=True,
)
