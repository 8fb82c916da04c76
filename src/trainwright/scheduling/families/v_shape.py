"""V placement with a third, a half, two thirds of 1F1B's memory (Qi et al., NeurIPS 2024).

V-Min, V-Half and 1F1B-V are building blocks with fixed slots. Ends of the first two are rewritten
for their peak, weight gradients are filled in with real times. Lags of one slot down and up (V-Min)
leave no room: as soon as forward, input and weight gradient differ, every microbatch costs a
bubble. So where the result is not near a bound, a path that is placed in seconds is repeated, too,
within the same limit (`block.timed_block`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plans.schedule import ScheduleCosts
from trainwright.scheduling.block import (
    SOURCE,
    BuildingBlock,
    VBlock,
    in_flight,
    repeat,
    repeated_order,
    rewritten_order,
    timed_block,
    v_half_block,
    v_min_block,
    whole_order,
)
from trainwright.scheduling.families.family import (
    Family,
    Searched,
    activations_that_fit,
    least_held_of,
    limited_costs,
    two_chunks_in_v,
)
from trainwright.scheduling.orders import reorder
from trainwright.scheduling.simulate import simulate
from trainwright.scheduling.weight_grads import Further, best_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainwright.arrays import Ints
    from trainwright.plans.schedule import Placement, Schedule
    from trainwright.scheduling.families.family import FamilyRequest


def v_min_order(request: FamilyRequest) -> Schedule | None:
    """At most `v_min_activations`."""
    p = request.num_ranks
    return _best(request, v_min_block(p), V_MIN, max_activations=v_min_activations(p))


def v_half_order(request: FamilyRequest) -> Schedule | None:
    """At most `v_half_activations`."""
    p = request.num_ranks
    return _best(request, v_half_block(p), V_HALF, max_activations=v_half_activations(p))


def half_in_flight(num_ranks: int, num_microbatches: int) -> tuple[Ints, Ints]:
    """What every rank of V-Half holds at one instant."""
    return in_flight(v_half_block(num_ranks), num_microbatches)


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
        further=None if request.in_slots else timed_orders(request, costs, placement),
    )


def timed_orders(
    request: FamilyRequest, costs: ScheduleCosts, placement: Placement
) -> Callable[[float], Further]:
    """Orders by the times of stages, for steps that take fewer seconds than are given.

    There are none where so few microbatches run that they are all ends.
    """
    num_microbatches = request.num_microbatches
    fitting = activations_that_fit(costs.memory, placement)
    most = int(min(fitting.min(), 2 * num_microbatches))

    def orders(limit_s: float) -> Further:
        if num_microbatches < placement.num_ranks:
            return Further((), ())
        longest_s = limit_s / num_microbatches
        block = timed_block(costs, longest_period_s=longest_s)
        if block is not None:
            longest_s = block.period_s
        exact = timed_block(costs, longest_period_s=longest_s, exact=True)
        whole = tuple(partial(whole_order, each) for each in (exact, block) if each is not None)
        if block is None:
            return Further(whole, ())
        return Further(
            whole,
            (
                partial(rewritten_order, block, warm_up=most, cool_down=most),
                partial(rewritten_order, block, warm_up=None, cool_down=most),
                partial(rewritten_order, block, warm_up=most - 1, cool_down=most),
                partial(repeated_order, block),
            ),
        )

    return orders


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
V_HALF = replace(
    V_MIN,
    name="v-half",
    summary="half of 1F1B's memory in V",
    order=v_half_order,
    warm_up=lambda ranks: (ranks + 1) // 2,
    most_activations=v_half_activations,
    published_in_flight=half_in_flight,
    least_in_flight=half_in_flight,
)


# 1F1B-V: whole backwards, two thirds of 1F1B's memory
# ----------------------------------------------------
# The backward takes two of the period's six slots per chunk. One microbatch runs down and up the V,
# then back; before every third backward the clock skips three slots, or slots would collide.
# Fewer activations than 1F1B for a longer bubble, and nothing has to be split.


_PERIOD = 6


def one_f_one_b_block(placement: Placement) -> BuildingBlock:
    """F of stage s in slot s, backwards from the last stage on, two slots each."""
    p, num_stages = placement.num_ranks, placement.num_stages
    backward = np.empty(num_stages)
    clock = num_stages + (0 if p % 3 else 3)
    since_skip = (3 - (p + 2) % 3) % 3
    for stage in reversed(range(num_stages)):
        since_skip += 1
        if since_skip == 3:
            since_skip, clock = 0, clock + 3
        backward[stage] = clock
        clock += 2
    return BuildingBlock.of(
        placement,
        period_slots=_PERIOD,
        forward=np.arange(num_stages).tolist(),
        backward=backward.tolist(),
    )


def one_f_one_b_order(request: FamilyRequest) -> Schedule:
    """The block repeated, its idle gaps closed under the same peak."""
    placement = two_chunks_in_v(request)
    schedule = repeat(one_f_one_b_block(placement), request.num_microbatches)
    in_slots = reorder(schedule, ScheduleCosts.of(placement))
    if request.costs is None:
        return in_slots
    costs = request.costs
    in_seconds = [reorder(start, costs) for start in (in_slots, schedule)]
    return min(in_seconds, key=lambda found: simulate(found, costs).span_s)


ONE_F_ONE_B_V = Family(
    name="1f1b-v",
    summary="V of two chunks, backwards whole, two thirds of 1F1B's memory",
    source=SOURCE,
    place=two_chunks_in_v,
    order=one_f_one_b_order,
    reads_costs=True,
)
