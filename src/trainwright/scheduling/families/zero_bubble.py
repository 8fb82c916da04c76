"""Zero bubble: 1F1B with the backward split, its weight gradients moved to where ranks wait.

ZB-H1 and ZB-H2 are handmade orders of Qi et al. (ICLR 2024), which need no times. H1 keeps p
activations on every rank and leaves a third of 1F1B's bubble; H2 keeps 2p-1 and, where F, I and W
are alike, leaves none.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from trainwright._native import _core
from trainwright.plans.schedule import ActionKind, Schedule, ScheduleCosts
from trainwright.scheduling.families import family
from trainwright.scheduling.orders import actions, by_time, one_after_another
from trainwright.scheduling.simulate import native_costs, native_memory
from trainwright.scheduling.weight_grads import polish

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plans.schedule import Actions

SOURCE = "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024"


def h1_order(request: family.FamilyRequest) -> Schedule:
    """1F1B; W of microbatch j - r directly after I of microbatch j on rank r."""
    p, m = request.num_ranks, request.num_microbatches
    orders = [
        _order(rank, m, warm_up=p - 1 - rank, lag=rank, gradient_first=False) for rank in range(p)
    ]
    return Schedule.of_ranks(orders, placement=family.one_chunk(request), num_microbatches=m)


def h2_order(request: family.FamilyRequest) -> Schedule:
    """2(p-r)-1 forwards first; then I, from the 2r-th on a W, and a forward, in turn."""
    p, m = request.num_ranks, request.num_microbatches
    orders = [
        _order(rank, m, warm_up=2 * (p - rank) - 1, lag=2 * rank, gradient_first=True)
        for rank in range(p)
    ]
    return Schedule.of_ranks(orders, placement=family.one_chunk(request), num_microbatches=m)


def _order(
    rank: int, num_microbatches: int, *, warm_up: int, lag: int, gradient_first: bool
) -> Actions:
    """Rounds of three places: F, I, W or I, W, F; W lags behind I, the rest of it follows."""
    microbatch = np.arange(num_microbatches)
    first = min(warm_up, num_microbatches)
    input_grad = 3 * microbatch + 1
    forward = 3 * (microbatch - first) + (3 if gradient_first else 0)
    forward[:first] = microbatch[:first] - first
    weight_grad: NDArray[np.int64] = 3 * (microbatch + lag) + 2
    rows = one_after_another(
        actions(ActionKind.F, rank, microbatch),
        actions(ActionKind.I, rank, microbatch),
        actions(ActionKind.W, rank, microbatch),
    )
    return by_time(rows, np.concatenate([forward, input_grad, weight_grad]))


ZB_H1 = family.Family(
    name="zb-h1",
    summary="1F1B with delayed weight gradients: a third of the bubble at p activations",
    source=SOURCE,
    place=family.one_chunk,
    order=h1_order,
    splits_backward=True,
    steady=family.Steady(5, 1, 2),  # at most p in flight on every rank
    planned=True,
    searched=family.Searched.ALWAYS,
    warm_up=lambda ranks: ranks,
    weight_grad_lag=1,
    tried=True,
    on_chips=True,
    switches=("enable_zbh1_pipeline", "enable_zbh1_exact_pipeline"),
)
ZB_H2 = family.Family(
    name="zb-h2",
    summary="no bubble for equal times, at 2p-1 activations",
    source=SOURCE,
    place=family.one_chunk,
    order=h2_order,
    splits_backward=True,
    steady=family.Steady(8, 2, 3),
    planned=True,
    searched=family.Searched.ALWAYS,
    warm_up=lambda ranks: 2 * ranks - 1,
    weight_grad_lag=2,
)


# ZB-1p and ZB-2p: the heuristic with real times, at the memory of p or 2p forwards
# ---------------------------------------------------------------------------------
# Eight variants of the heuristic (`native/schedule/zero_bubble.hpp`; Qi et al., ICLR 2024) are
# generated; the best is reordered, and its weight gradients are placed anew. Times are per stage
# and limits per rank throughout.


def one_p_order(request: family.FamilyRequest) -> Schedule | None:
    """At most what p forwards hold, unless the request counts activations itself."""
    return _best_variant(request, max_activations=request.num_ranks)


def two_p_order(request: family.FamilyRequest) -> Schedule | None:
    """At most what 2p forwards hold, unless the request counts activations itself."""
    return _best_variant(request, max_activations=2 * request.num_ranks)


def _best_variant(request: family.FamilyRequest, *, max_activations: int) -> Schedule | None:
    placement = family.one_chunk(request)
    if request.max_activations is not None:
        costs = family.limited_costs(request, placement, max_activations=request.max_activations)
    else:
        costs = request.costs or ScheduleCosts.of(placement)
        costs = family.within_forwards(costs, placement, max_activations)
    times, memory = native_costs(costs), native_memory(costs.memory)
    variants = [
        _core.zero_bubble_orders(
            request.num_microbatches,
            times,
            memory,
            late_warm_up=late_warm_up,
            prefer_backward=prefer_backward,
            tolerant=tolerant,
        )
        for late_warm_up, prefer_backward, tolerant in product((False, True), repeat=3)
    ]
    complete = [variant for variant in variants if variant.complete]
    if not complete:
        # Only memory of an unusual kind, such as an I that allocates, exceeds the family's own.
        return None if request.is_limited else h1_order(request)
    best = min(complete, key=lambda variant: (variant.span_s, variant.makespan_s))
    schedule = Schedule(
        placement=placement,
        num_microbatches=request.num_microbatches,
        actions=best.actions,
        rank_offsets=best.rank_offsets,
    )
    return polish(schedule, costs)


ZB_1P = family.Family(
    name="zb-1p",
    summary="zero-bubble heuristic within the memory of 1F1B",
    source=SOURCE,
    place=family.one_chunk,
    order=one_p_order,
    splits_backward=True,
    obeys_limits=True,
    reads_costs=True,
)
ZB_2P = family.Family(
    name="zb-2p",
    summary="zero-bubble heuristic within twice the memory of 1F1B",
    source=SOURCE,
    place=family.one_chunk,
    order=two_p_order,
    splits_backward=True,
    obeys_limits=True,
    reads_costs=True,
)
