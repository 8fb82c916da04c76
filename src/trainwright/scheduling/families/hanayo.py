"""Hanayo: 1F1B along waves of v chunks per rank (Liu et al., SC 2023).

The model is cut into vp stages that go down and up the ranks, a wave being two chunks, so that each
turn needs no transfer, nor is there a second copy of the parameters as in Chimera. A free rank runs
the first of its actions that are there, by a rule, and a forward only while it holds fewer than
vp + v - 1 activations. Where as many microbatches as ranks pass, the rule is to take what has come
farthest on its way; where more follow each other, others keep ranks busier. The shortest order is
taken, by the times of the request: 4(p-1) chunk slots are lost with one wave and m = p, hardly more
with others, so that in time the bubble shrinks with the waves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trainwright.plans.schedule import ActionKind, Schedule, ScheduleCosts
from trainwright.scheduling.families.family import Family
from trainwright.scheduling.families.wave import place
from trainwright.scheduling.simulate import simulate
from trainwright.scheduling.weight_grads import list_schedule

if TYPE_CHECKING:
    from trainwright.scheduling.families.family import FamilyRequest


_F, _B = ActionKind.F, ActionKind.B

# Of two actions that are there, which runs first: by rule, a number to each kind and stage of S.
_RULES: Final[tuple[Callable[[ActionKind, int, int], int], ...]] = (
    lambda kind, stage, _: stage + (_FIRST if kind is _B else 0),  # backwards, deep stages
    lambda kind, stage, stages: stage if kind is _F else 2 * stages - stage,  # the farthest
    lambda kind, stage, _: stage + (_FIRST if kind is _F else 0),  # forwards, deep stages
    lambda kind, stage, _: _FIRST + stage if kind is _F else -stage,  # and of backwards shallow
)
_FIRST: Final = 2**30
_JUDGED: Final = 4  # times p microbatches, by which rules for more are chosen


def order(request: FamilyRequest) -> Schedule:
    """By the rule whose order is shortest; of long steps by that or the first."""
    costs = request.costs or ScheduleCosts.of(place(request))
    few = min(request.num_microbatches, _JUDGED * request.num_ranks)
    orders = [_ruled(request, costs, rule, few) for rule in _RULES]
    lengths_s = [float(simulate(each, costs).makespan_s) for each in orders]
    best = lengths_s.index(min(lengths_s))
    if few == request.num_microbatches:
        return orders[best]
    both = (_ruled(request, costs, _RULES[at], request.num_microbatches) for at in (0, best))
    return min(both, key=lambda each: float(simulate(each, costs).makespan_s))


def _ruled(
    request: FamilyRequest,
    costs: ScheduleCosts,
    rule: Callable[[ActionKind, int, int], int],
    num_microbatches: int,
) -> Schedule:
    placement, p = place(request), request.num_ranks
    num_stages = placement.num_stages
    streams = [
        sorted(
            ((kind, stage) for kind in (_B, _F) for stage in stages),
            key=lambda each: -rule(each[0], each[1], num_stages),
        )
        for stages in placement.stages_of_rank
    ]
    return list_schedule(
        streams,
        placement=placement,
        num_microbatches=num_microbatches,
        costs=costs,
        held=[num_stages + num_stages // p - 1] * p,
    )


HANAYO = Family(
    name="hanayo",
    summary="1F1B along waves, whole backwards, less bubble the more waves",
    source="Liu et al., Hanayo, SC 2023",
    place=place,
    order=order,
    reads_costs=True,
)
