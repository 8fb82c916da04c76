"""V-Min and V-Half: V placement with a third and a half of 1F1B's memory (Qi et al., NeurIPS 2024).

Each is a building block with fixed slots; ends are rewritten for its peak, weight gradients are
filled in with real times. Lags of one slot down and up (V-Min) leave no room: as soon as forward,
input and weight gradient differ, every microbatch costs a bubble.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trainwright.scheduling.block import (
    SOURCE,
    VBlock,
    in_flight,
    repeated_order,
    rewritten_order,
    v_half_block,
    v_min_block,
)
from trainwright.scheduling.families.family import (
    Family,
    Searched,
    least_held_of,
    limited_costs,
    two_chunks_in_v,
)
from trainwright.scheduling.weight_grads import best_of

if TYPE_CHECKING:
    from trainwright.plans.schedule import Schedule
    from trainwright.scheduling.families.family import FamilyRequest


def v_min_order(request: FamilyRequest) -> Schedule | None:
    """At most `v_min_activations`."""
    p = request.num_ranks
    return _best(request, v_min_block(p), V_MIN, max_activations=v_min_activations(p))


def v_half_order(request: FamilyRequest) -> Schedule | None:
    """At most `v_half_activations`."""
    p = request.num_ranks
    return _best(request, v_half_block(p), V_HALF, max_activations=v_half_activations(p))


def v_min_activations(num_ranks: int) -> int:
    """Chunk activations that no rank of V-Min exceeds: 2 floor((p+4)/3)."""
    return 2 * ((num_ranks + 4) // 3)


def v_half_activations(num_ranks: int) -> int:
    """Chunk activations that no rank of V-Half exceeds: 2 floor(p/2) + 2."""
    return 2 * (num_ranks // 2) + 2


def _best(
    request: FamilyRequest, block: VBlock, family: Family, *, max_activations: int
) -> Schedule | None:
    limit = min(max_activations, request.max_activations or max_activations)
    placement = two_chunks_in_v(request)
    costs = limited_costs(request, placement, max_activations=limit)
    most = max_activations
    orders = [
        partial(rewritten_order, block, warm_up=most, cool_down=most),
        partial(rewritten_order, block, warm_up=None, cool_down=most),
        partial(rewritten_order, block, warm_up=most - 1, cool_down=most),
        partial(rewritten_order, block, warm_up=None, cool_down=most - 1),
        partial(repeated_order, block),
    ]
    return best_of(
        orders,
        placement,
        costs,
        num_microbatches=request.num_microbatches,
        objective=request.objective,
        held=least_held_of(family, request),
    )


V_MIN = Family(
    name="v-min",
    summary="a third of 1F1B's memory in V",
    source=SOURCE,
    place=two_chunks_in_v,
    order=v_min_order,
    splits_backward=True,
    obeys_limits=True,
    reads_costs=True,
    planned=True,
    searched=Searched.ALWAYS,
    warm_up=lambda ranks: (ranks + 2) // 3,
    most_activations=v_min_activations,
    published_in_flight=lambda p, m: in_flight(v_min_block(p), m),
    least_in_flight=lambda p, m: in_flight(v_min_block(p), m),
)
V_HALF = Family(
    name="v-half",
    summary="half of 1F1B's memory in V",
    source=SOURCE,
    place=two_chunks_in_v,
    order=v_half_order,
    splits_backward=True,
    obeys_limits=True,
    reads_costs=True,
    planned=True,
    searched=Searched.ALWAYS,
    warm_up=lambda ranks: (ranks + 1) // 2,
    most_activations=v_half_activations,
    published_in_flight=lambda p, m: in_flight(v_half_block(p), m),
    least_in_flight=lambda p, m: in_flight(v_half_block(p), m),
)
