"""1F1B with the head cut over all ranks (Yeung et al., Vocabulary Parallelism, MLSys 2025).

A large vocabulary makes the last stage slower and fuller than the others. Cut over all ranks, the
head becomes two passes on every rank, V (their S) and T, between which statistics of the softmax
are exchanged. In the first variant the last stage waits for T of all ranks too, two barriers; in
the second V already prepares its gradient, one barrier, and T may wait. Each barrier delays the
backward by one microbatch, so 1F1B holds p + 2 or p + 1 microbatches on the first rank instead of
p; with that room no rank ever waits in the steady state.

Where a request has costs, rules order actions by them (`scheduling.weight_grads`), and the shortest
of their orders and the fixed one is taken. The fixed one sorts actions by targets. With three
slots to a microbatch, of which F takes one, F(j) of rank r is due at 3j + r, V(j) of all ranks at
3j + p and T(j) at 3j + p + 3; B(j) comes 3 slots per barrier after V(j) to the last rank, and 2
more to each rank before it. Every need is due earlier, so no order waits in a circle, and each rank
repeats itself every microbatch.

The input embedding is cut like the head, of which it is a copy where they are tied. It is a look-up
and has no action. The authors' fork of Megatron-LM (sail-sg/VocabularyParallelism) runs both on GPT
models, `--enable-vocab-parallel`, two barriers with `--disable-backward-fusion`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plans.schedule import ActionKind, Schedule, ScheduleCosts
from trainwright.scheduling.families import family
from trainwright.scheduling.orders import actions
from trainwright.scheduling.simulate import simulate
from trainwright.scheduling.weight_grads import list_schedule

if TYPE_CHECKING:
    from trainwright.arrays import Ints
    from trainwright.plans.schedule import Actions

_F, _B, _V, _T = ActionKind.F, ActionKind.B, ActionKind.V, ActionKind.T
# What a free rank runs first, by the number of barriers: which rule is best depends on the times of
# the head. Of all 24, on 48 questions of 2 to 8 ranks and heads of 0 to 2 F, with and without
# transfers, the first rules came within 0.03 and 0.12 % of the best, on average and with the fixed
# order.
_URGENCY = {
    2: ((_T, _F, _V, _B), (_V, _F, _B, _T), (_V, _T, _F, _B), (_B, _V, _F, _T)),
    1: ((_V, _F, _B, _T), (_F, _B, _V, _T), (_B, _F, _T, _V)),
}


def order(request: family.FamilyRequest, *, head_barriers: int) -> Schedule:
    """As 1F1B, with room for one more microbatch per barrier; by the costs, where there are any."""
    fixed, costs = _fixed(request, head_barriers), request.costs
    if costs is None:
        return fixed
    ruled = [_ruled(request, costs, head_barriers, rule) for rule in _URGENCY[head_barriers]]
    return min((*ruled, fixed), key=lambda each: simulate(each, costs).makespan_s)


def _fixed(request: family.FamilyRequest, barriers: int) -> Schedule:
    p, m = request.num_ranks, request.num_microbatches
    kinds = np.repeat([_V, _B, _F, _T], m)  # the first of those that are due at once
    microbatch, orders = np.arange(m), []
    for rank in range(p):
        due = np.array([p, p + 3 * barriers + 2 * (p - 1 - rank), rank, p + 3])
        first = np.argsort((3 * microbatch + due[:, np.newaxis]).ravel(), kind="stable")
        orders.append(_rows(kinds, rank, microbatch)[first])
    return Schedule.of_ranks(
        orders, placement=family.one_chunk(request), num_microbatches=m, head_barriers=barriers
    )


def _rows(kinds: Ints, rank: int, microbatch: Ints) -> Actions:
    rows = actions(_F, rank, np.tile(microbatch, len(kinds) // len(microbatch)))
    rows[:, 0] = kinds
    return rows


def _ruled(
    request: family.FamilyRequest,
    costs: ScheduleCosts,
    barriers: int,
    urgency: tuple[ActionKind, ...],
) -> Schedule:
    placement, p = family.one_chunk(request), request.num_ranks
    streams = [[(kind, rank) for kind in urgency] for rank in range(p)]
    return list_schedule(
        streams,
        placement=placement,
        num_microbatches=request.num_microbatches,
        costs=costs,
        held=[p - rank + barriers for rank in range(p)],
        head_barriers=barriers,
    )


_SOURCE = "Yeung, Qi, Lin and Wan, Vocabulary Parallelism, MLSys 2025"
VOCABULARY_1 = family.Family(
    name="vocab-1",
    summary="1F1B, the head cut over all ranks, two barriers, p+2 activations",
    source=_SOURCE,
    place=family.one_chunk,
    order=partial(order, head_barriers=2),
    is_plain=False,
    reads_costs=True,
    fixed_without_costs=True,
    steady=family.Steady(6, 2, 2),  # at most p + 2 in flight
    planned=True,
    head_barriers=2,
    warm_up=lambda ranks: ranks + 2,
)
VOCABULARY_2 = replace(
    VOCABULARY_1,
    name="vocab-2",
    summary="1F1B, the head cut over all ranks, one barrier, p+1 activations",
    order=partial(order, head_barriers=1),
    searched=family.Searched.ALWAYS,
    head_barriers=1,
    warm_up=lambda ranks: ranks + 1,
)
