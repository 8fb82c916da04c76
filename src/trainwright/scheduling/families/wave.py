"""Wave: a loop whose direction flips at every end, V repeated, within any limit of activations.

With v chunks per rank the last stage of one pass and the first of the next share a rank, so v-1
transfers per microbatch fall away, and ranks hold long-lived and short-lived activations alike. The
placement is that of Hanayo (Liu et al., SC 2023); orders are building blocks along the path of a
microbatch with the backward split (`scheduling.block`), filled and reordered with real times.

In the memory of 1F1B, vp chunk activations, at most p-1 slots of one chunk are lost at equal times.
v = 2 is V, and `adaptive-v`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from trainwright.plans.schedule import ActionKind, Placement, Schedule, ScheduleCosts
from trainwright.scheduling.block import BuildingBlock, Pace, path_block, repeat
from trainwright.scheduling.families import family
from trainwright.scheduling.families.v_shape import adaptive_order
from trainwright.scheduling.orders import drop_weight_grads
from trainwright.scheduling.simulate import simulate
from trainwright.scheduling.weight_grads import best_of, list_schedule

_PACES = tuple(
    Pace(away, back, turn)
    for away, back in ((4, 1), (3, 2), (2, 2), (2, 1), (1, 2), (1, 1))
    for turn in (0, 1, 2)
)
_STRETCHES = (1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)


def place(request: family.FamilyRequest) -> Placement:
    """The direction flips after every p stages."""
    return Placement.wave(request.num_ranks, virtual_stages=request.virtual_stages)


def order(request: family.FamilyRequest) -> Schedule | None:
    """At most `request.max_activations`; as many as 1F1B where absent, v for each of p."""
    if request.virtual_stages == 2:
        return adaptive_order(request)
    placement = place(request)
    asked = request.max_activations or placement.num_stages
    costs = family.limited_costs(request, placement, max_activations=asked)
    fitting = int(min(asked, *family.activations_that_fit(costs.memory, placement)))
    for blocks in (_dense_blocks(placement, fitting), _sparse_blocks(placement, fitting)):
        orders = [partial(_without_weight_grads, block) for block in blocks]
        best = best_of(orders, placement, costs, num_microbatches=request.num_microbatches)
        if best is not None:
            return best
    return family.least_of(request, placement)


def _dense_blocks(placement: Placement, max_activations: int) -> list[BuildingBlock]:
    """Without a bubble per microbatch, the most demanding first."""
    blocks = [path_block(placement, pace) for pace in _PACES]
    fitting = [(max(block.peak_activations), block) for block in blocks]
    ranked = sorted(fitting, key=lambda entry: -entry[0])
    return [block for peak, block in ranked if peak <= max_activations]


def _sparse_blocks(placement: Placement, max_activations: int) -> Iterator[BuildingBlock]:
    """One microbatch at a time, which needs least, and longer periods than necessary.

    What a block holds falls as its period grows; in vain where it waits for a free slot.
    """
    block = path_block(placement, Pace())
    yield path_block(placement, Pace(), period_slots=3 * placement.num_stages)
    needed = max(block.peak_activations) / max(max_activations, 1)
    for stretch in _STRETCHES:
        period = round(block.period_slots * max(needed, 1.0) * stretch)
        yield path_block(placement, Pace(), period_slots=period)


def _without_weight_grads(block: BuildingBlock, num_microbatches: int) -> Schedule:
    return drop_weight_grads(repeat(block, num_microbatches))


WAVE = family.Family(
    name="wave",
    summary="v chunks per rank, the direction flipping after each: V repeated, any limit",
    source="placement of Hanayo, Liu et al., SC 2023; orders of our own",
    place=place,
    order=order,
    splits_backward=True,
    obeys_limits=True,
    reads_costs=True,
    starts_searches=lambda placement: not placement.is_v,  # there it is `adaptive-v`
)


# Hanayo: 1F1B along waves of v chunks per rank (Liu et al., SC 2023)
# -------------------------------------------------------------------
# The model is cut into vp stages that go down and up the ranks, a wave being two chunks, so that
# each turn needs no transfer, nor is there a second copy of the parameters as in Chimera. A free
# rank runs the first of its actions that are there, by a rule, and a forward only while it holds
# fewer than vp + v - 1 activations. Where as many microbatches as ranks pass, the rule is to take
# what has come farthest on its way; where more follow each other, others keep ranks busier. The
# shortest order is taken, by the times of the request: 4(p-1) chunk slots are lost with one wave
# and m = p, hardly more with others, so that in time the bubble shrinks with the waves.


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


def order_by_rules(request: family.FamilyRequest) -> Schedule:
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
    request: family.FamilyRequest,
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


HANAYO = family.Family(
    name="hanayo",
    summary="1F1B along waves, whole backwards, less bubble the more waves",
    source="Liu et al., Hanayo, SC 2023",
    place=place,
    order=order_by_rules,
    reads_costs=True,
    starts_searches=lambda placement: False,  # its rule is slow to follow, `wave` is a better start
)
