"""A building block for any placement: walk one microbatch's path and take the next free slot.

The path goes forward through all stages and back again. A hop to a later rank takes `away_slots`,
one to an earlier rank `back_slots`, staying takes 1, and the turn at the loss `turn_slots` more;
where the slot is taken modulo the period, the walk waits for the next one. Each W follows in the
first slot that is still free. Every rank with the most stages works in every slot if the period is
3 slots per stage of it, so no walk costs a bubble per microbatch; longer hops keep activations
longer and make the ends of the schedule shorter. O(S · period).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.scheduling.block import BuildingBlock

if TYPE_CHECKING:
    from trainwright.plan.placement import Placement


class Pace(NamedTuple):
    """Slots from one start on the path to the next: to a later rank, to an earlier one, and what
    the turn takes on top.
    """

    away_slots: int = 1
    back_slots: int = 1
    turn_slots: int = 0


def path_block(
    placement: Placement, pace: Pace, *, period_slots: int | None = None
) -> BuildingBlock:
    """A block without collisions; the shortest possible period unless one is given.

    `period_slots` must be at least 3 per stage of the rank that has most.
    """
    ranks = placement.rank_of_stage
    shortest = 3 * max(map(len, placement.stages_of_rank))
    taken = _TakenSlots(placement.num_ranks, period_slots or shortest)
    starts = np.empty((3, len(ranks)))
    path = [*range(len(ranks)), *reversed(range(len(ranks)))]
    time = -1
    for step, stage in enumerate(path):
        hop = ranks[stage] - ranks[path[step - 1]] if step else 0
        time += pace.away_slots if hop > 0 else pace.back_slots if hop < 0 else 1
        time += pace.turn_slots if step == len(ranks) else 0
        time = taken.take(ranks[stage], time)
        starts[step // len(ranks), stage] = time
    for stage in reversed(range(len(ranks))):
        starts[2, stage] = taken.take(ranks[stage], int(starts[1, stage]) + 1)
    forward, input_grad, weight_grad = starts.tolist()
    return BuildingBlock.of(
        placement,
        period_slots=taken.period,
        forward=forward,
        input_grad=input_grad,
        weight_grad=weight_grad,
    )


class _TakenSlots:
    """Which slots of the period each rank has given away."""

    def __init__(self, num_ranks: int, period: int) -> None:
        self.period = period
        self._taken = [bytearray(period) for _ in range(num_ranks)]

    def take(self, rank: int, earliest: int) -> int:
        """The first free slot from `earliest` on."""
        slot = earliest
        while self._taken[rank][slot % self.period]:
            slot += 1
        self._taken[rank][slot % self.period] = 1
        return slot
