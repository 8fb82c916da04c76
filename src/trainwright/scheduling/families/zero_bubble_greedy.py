"""ZB-1p and ZB-2p: the zero-bubble heuristic with real times, at the memory of p or 2p forwards.

Eight variants of the heuristic (`native/schedule/zero_bubble.hpp`; Qi et al., ICLR 2024) are
generated; the best is reordered, and its weight gradients are placed anew. Times are per stage and
limits per rank throughout.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from trainwright._native import _core
from trainwright.plans.schedule import Schedule, ScheduleCosts
from trainwright.scheduling.families.family import Family, limited_costs, one_chunk, within_forwards
from trainwright.scheduling.families.zero_bubble import SOURCE, h1_order
from trainwright.scheduling.simulate import native_costs, native_memory
from trainwright.scheduling.weight_grads import polish

if TYPE_CHECKING:
    from trainwright.scheduling.families.family import FamilyRequest


def one_p_order(request: FamilyRequest) -> Schedule | None:
    """At most what p forwards hold, unless the request counts activations itself."""
    return _best(request, max_activations=request.num_ranks)


def two_p_order(request: FamilyRequest) -> Schedule | None:
    """At most what 2p forwards hold, unless the request counts activations itself."""
    return _best(request, max_activations=2 * request.num_ranks)


def _best(request: FamilyRequest, *, max_activations: int) -> Schedule | None:
    placement = one_chunk(request)
    if request.max_activations is not None:
        costs = limited_costs(request, placement, max_activations=request.max_activations)
    else:
        costs = request.costs or ScheduleCosts.of(placement)
        costs = within_forwards(costs, placement, max_activations)
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


ZB_1P = Family(
    name="zb-1p",
    summary="zero-bubble heuristic within the memory of 1F1B",
    source=SOURCE,
    place=one_chunk,
    order=one_p_order,
    splits_backward=True,
    obeys_limits=True,
    reads_costs=True,
)
ZB_2P = Family(
    name="zb-2p",
    summary="zero-bubble heuristic within twice the memory of 1F1B",
    source=SOURCE,
    place=one_chunk,
    order=two_p_order,
    splits_backward=True,
    obeys_limits=True,
    reads_costs=True,
)
