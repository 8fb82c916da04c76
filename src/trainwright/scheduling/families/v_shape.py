"""V placement with a third, a half, two thirds of 1F1B's memory, or any (Qi et al., NeurIPS 2024).

V-Min, V-Half and 1F1B-V are building blocks with fixed slots. Ends of the first two are rewritten
for their peak, weight gradients are filled in with real times. Lags of one slot down and up (V-Min)
leave no room: as soon as forward, input and weight gradient differ, every microbatch costs a
bubble. So where the result is not near a bound, a path that is placed in seconds is repeated, too,
within the same limit (`block.timed_block`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plans.schedule import ActionKind, Schedule, ScheduleCosts
from trainwright.scheduling.block import (
    SOURCE,
    BuildingBlock,
    TimedBlock,
    VBlock,
    blocks_within,
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
    FamilyRequest,
    Searched,
    activations_that_fit,
    least_held_of,
    least_of,
    limited_costs,
    promised,
    two_chunks_in_v,
    without_limits,
)
from trainwright.scheduling.families.zero_bubble import SOURCE as ZERO_BUBBLE
from trainwright.scheduling.orders import counted, drop_weight_grads, justify, lengthen, reorder
from trainwright.scheduling.simulate import simulate
from trainwright.scheduling.weight_grads import Further, best_of, holds

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints
    from trainwright.plans.schedule import Actions, Placement
    from trainwright.scheduling.weight_grads import Order


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
    return _least(orders, request, family, placement, costs)


def _least(
    orders: Sequence[Order],
    request: FamilyRequest,
    family: Family,
    placement: Placement,
    costs: ScheduleCosts,
) -> Schedule | None:
    """The best of the orders, and of orders made for these times where they are known."""
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
    tried=True,
    on_chips=True,
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


# The published order of ZB-V: no bubble for equal times, at the memory of 1F1B (2p half chunks)
# ----------------------------------------------------------------------------------------------
# Warm-up and cool-down are stairs, the stable phase is F0 I0 W0 F1 I1 W1 (Qi et al., ICLR 2024).


_F0, _I0, _W0, _F1, _I1, _W1 = range(6)


def published_order(request: FamilyRequest) -> Schedule:
    """Fewer than 2p-1 microbatches are the first of a schedule of so many."""
    p, m = request.num_ranks, request.num_microbatches
    return Schedule.of_ranks(
        [_rank_order(p, rank, m) for rank in range(p)],
        placement=two_chunks_in_v(request),
        num_microbatches=m,
    )


def _rank_order(num_ranks: int, rank: int, num_microbatches: int) -> Actions:
    """The places of the first m of each letter in the word of the rank, O(m)."""
    p, r, m = num_ranks, rank, num_microbatches
    forwards_0, forwards_1 = 2 * p - 1 - r, p
    parts = [
        ((_F0,), 2 * (p - r) - 1),
        ((_F1, _F0), r),
        ((_F1, _I1, _W1), p - r),
        ((_F0, _I0, _W0, _F1, _I1, _W1), max(m, 2 * p - 1) - forwards_0),
        ((_I0, _W0, _F1, _I1, _W1), forwards_0 - forwards_1),  # chunk 1 lags, F0 is through
        ((_I0, _I1), r),
        ((_I0, _W0), p - r),
        ((_W1,), m),
        ((_W0,), m),
    ]
    left = np.full(6, m)
    places, letters, begin = [], [], 0
    for pattern, times in parts:
        for offset, letter in enumerate(pattern):
            count = min(times, left[letter])
            left[letter] -= count
            places.append(begin + offset + len(pattern) * np.arange(count))
            letters.append(np.full(count, letter))
        begin += len(pattern) * times
    word = np.concatenate(letters)[np.argsort(np.concatenate(places))]
    kinds = (ActionKind.F, ActionKind.I, ActionKind.W)
    return counted(word, [(kind, stage) for stage in (r, 2 * p - 1 - r) for kind in kinds])


def published_in_flight(num_ranks: int, num_microbatches: int) -> tuple[Ints, Ints]:
    """Of stage r and of stage 2p-1-r on every rank, waiting for input gradients, [2, p] each.

    With F0, and with F1, of the steady word begun last; fewer microbatches are all begun.
    """
    p, m, r = num_ranks, num_microbatches, np.arange(num_ranks)
    near, far = 2 * p - 1 - r, r + 1
    held = np.stack((near, np.where(m > near, near + 1, near))), np.stack((far, far - 1))
    return np.minimum(held[0], m), np.minimum(held[1], m)


ZB_V_HANDMADE = Family(
    name="zb-v-handmade",
    summary="the published zero-bubble order in V",
    source=ZERO_BUBBLE,
    place=two_chunks_in_v,
    order=published_order,
    splits_backward=True,
)


# Adaptive V: for a limit of k activations; ZB-V is the one for k = 2p
# --------------------------------------------------------------------
# Building blocks of every lag that fit the limit, their ends rewritten for it, are filled with real
# times and compared (Qi et al. enumerate 900(p-1) blocks; the odd ones suffice). With equal times
# and no transfers the published 3p-1-3k + max(3p, p+1+2ceil(k/2)) is reached for every limit that
# avoids a bubble per microbatch, usually by the first block.
#
# Below that limit V-Min's block is repeated at a longer period, the shortest that fits: every
# microbatch costs a bubble, down to k = 2, one microbatch at a time.


def adaptive_order(request: FamilyRequest) -> Schedule | None:
    """At most `request.max_activations`; 2p where absent, beyond which nothing is gained."""
    p, placement = request.num_ranks, two_chunks_in_v(request)
    asked = min(request.max_activations or 2 * p, 2 * p)
    costs = limited_costs(request, placement, max_activations=asked)
    fitting = int(min(asked, *activations_that_fit(costs.memory, placement)))
    for orders in (_dense_orders(request, fitting), _sparse_orders(p, fitting)):
        best = _least(orders, request, ADAPTIVE_V, placement, costs)
        if best is not None:
            return best
    return least_of(request, placement)


def _dense_orders(request: FamilyRequest, max_activations: int) -> list[Order]:
    """One microbatch every 6 slots; none below the least limit for it."""
    orders: list[Order] = []
    if max_activations >= 2 * request.num_ranks:
        orders.append(partial(_handmade_order, request.num_ranks))
    blocks = blocks_within(request.num_ranks, max_activations)
    for block in blocks:
        orders += [
            partial(rewritten_order, block, warm_up=max_activations, cool_down=max_activations),
            partial(rewritten_order, block, warm_up=None, cool_down=max_activations),
            partial(repeated_order, block),
        ]
    orders += [
        partial(rewritten_order, block, warm_up=max_activations - less, cool_down=max_activations)
        for less in (1, 2)
        for block in blocks
    ]
    return orders


def _sparse_orders(num_ranks: int, max_activations: int) -> list[Order]:
    """One microbatch at a time, which needs least, and V-Min's block at longer periods.

    An activation of rank 0 lives for up to 4p slots; with k of them at once a period of 4p/k
    would do if none ever waited for a place.
    """
    block = v_min_block(num_ranks)
    shortest = max(6.0, 4.0 * num_ranks / max(max_activations, 2))
    periods = [4.0 * num_ranks + 4, *(shortest + np.arange(0.0, 4.0, 0.5))]
    return [partial(repeated_order, block, period=period) for period in periods]


def least_in_flight(num_ranks: int, num_microbatches: int) -> tuple[Ints, Ints]:
    """2p - 1 - r and r + 1 of both stages of rank r, as in the published order.

    So blocks that hold less are of no use where there are no limits.
    """
    near, far = published_in_flight(num_ranks, num_microbatches)
    return near[:1], far[:1]


def _handmade_order(num_ranks: int, num_microbatches: int) -> Schedule:
    request = FamilyRequest(num_ranks=num_ranks, num_microbatches=num_microbatches)
    return drop_weight_grads(published_order(request))


ADAPTIVE_V = Family(
    name="adaptive-v",
    summary="V of two chunks within any limit of activations",
    source=SOURCE,
    place=two_chunks_in_v,
    order=adaptive_order,
    splits_backward=True,
    obeys_limits=True,
    reads_costs=True,
    planned=True,
    searched=Searched.ASKED,  # without a limit on memory its orders are those of ZB-V
    warm_up=lambda ranks: ranks,
    most_activations=lambda p: 2 * p,
    published_in_flight=published_in_flight,
    least_in_flight=least_in_flight,
)
ZB_V = replace(
    ADAPTIVE_V,
    name="zb-v",
    searched=Searched.ALWAYS,
    tried=True,
    aliases=("v-zb",),
    summary="V of two chunks without a bubble for equal times, in 1F1B's memory",
)


# Within the bytes of the devices
# -------------------------------
# Where a path for microbatches exists that every rank repeats without a pause and that fits, little
# is lost but at the ends. These are made for what follows the last action of each rank: gradients
# are still exchanged, and of some ranks more than of others. Justified once they are short, and
# shorter where they are justified again from times that are a little off.

_NO_PAUSE = 1 + 1e-4  # times the work of the busiest rank: the longest period
_ENDS = (4, 3)  # microbatches per rank of an order whose ends are made by themselves
_OFF = 0.03  # of all times
_VISITS = 2_000_000  # of actions, while ends are made shorter
_TIMES = (20, 0.02)  # how often they are at most, and for each action of the order
_MORE = 4  # activations that a rank may hold beyond V-Half's, at the ends


def v_fit_order(request: FamilyRequest) -> Schedule | None:
    """No rank pauses in its middle where such an order fits; else that of V-Half, if it fits.

    Either holds what V-Half does, and not much more.
    """
    if request.costs is not None and request.max_activations is None and not request.in_slots:
        found = _without_pauses(request, request.costs)
        if found is not None:
            return found
    half = v_half_order(without_limits(request))
    assert half is not None, "without limits V-Half has an order"
    fits = request.costs is None or simulate(half, request.costs).fits
    few = max(half.peak_activations) <= (request.max_activations or np.inf)
    return half if fits and few else None


def v_fit_activations(num_ranks: int) -> int:
    """Chunk activations that no rank of V-Fit exceeds."""
    return min(v_half_activations(num_ranks) + _MORE, 2 * num_ranks)


def _without_pauses(request: FamilyRequest, costs: ScheduleCosts) -> Schedule | None:
    """None where microbatches are fewer than ranks, or where none holds what V-Half does."""
    p, m = request.num_ranks, request.num_microbatches
    block = block_without_pauses(costs) if m >= p else None
    if block is None:
        return None
    after_s = np.zeros(p) if request.after_s is None else request.after_s
    held = promised(half_in_flight, request)
    for few in sorted({m, *(n * p for n in _ENDS if n * p < m)}, key=lambda few: few == m):
        short = shortened_ends(block, costs, few, after_s)
        whole = lengthen(short, costs, num_microbatches=m) if few < m else short
        if whole is None or not (simulate(whole, costs).fits and holds(whole, held)):
            continue
        if max(whole.peak_activations) <= v_fit_activations(p):
            return whole
    return None


def shortened_ends(
    block: TimedBlock, costs: ScheduleCosts, num_microbatches: int, after_s: Floats
) -> Schedule:
    """An order of the block whose ends are as short as some effort makes them."""
    best = _justified(whole_order(block, num_microbatches), costs, after_s)
    least_s, random = _ended_s(best, costs, after_s), np.random.default_rng(num_microbatches)
    few, more = _TIMES
    for _ in range(min(_VISITS // best.num_actions, few + int(more * best.num_actions))):
        off = 1 + random.normal(0, _OFF, costs.compute_s.shape)
        moved = _justified(best, replace(costs, compute_s=costs.compute_s * off), after_s)
        found = _justified(moved, costs, after_s)
        found_s = _ended_s(found, costs, after_s)
        if found_s <= least_s:
            best, least_s = found, found_s
    return best


def _justified(schedule: Schedule, costs: ScheduleCosts, after_s: Floats) -> Schedule:
    most = v_fit_activations(schedule.num_ranks)
    return justify(schedule, costs, after_s=after_s, max_activations=most)


def _ended_s(schedule: Schedule, costs: ScheduleCosts, after_s: Floats) -> float:
    """When the last rank is through with what follows its last action."""
    ends_s = simulate(schedule, costs).end_s[schedule.rank_offsets[1:] - 1]
    return float((ends_s + after_s).max())


def block_without_pauses(costs: ScheduleCosts) -> TimedBlock | None:
    """What every rank can repeat without a pause within its limits, if that is found."""
    return timed_block(costs, longest_period_s=_NO_PAUSE * busiest_s(costs), exact=True)


def busiest_s(costs: ScheduleCosts) -> float:
    """Seconds of the rank in V that works longest for a microbatch."""
    of_stage = costs.duration_s[[ActionKind.F, ActionKind.I, ActionKind.W]].sum(axis=0)
    return float((of_stage + of_stage[::-1]).max())


V_FIT = replace(
    ADAPTIVE_V,
    name="v-fit",
    summary="V of two chunks within the bytes of its devices",
    order=v_fit_order,
    searched=Searched.NAMED,
    warm_up=V_HALF.warm_up,
    published_in_flight=half_in_flight,
    least_in_flight=half_in_flight,
    most_activations=v_fit_activations,
    keeps_to_room=True,
    covers=("v-half",),
)
