"""1F1B-V: V placement with whole backwards, two thirds of 1F1B's memory (Qi et al., NeurIPS 2024).

The backward takes two of the period's six slots per chunk. One microbatch runs down and up the V,
then back; before every third backward the clock skips three slots, or slots would collide.
Fewer activations than 1F1B for a longer bubble, and nothing has to be split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainwright.plans.schedule import ScheduleCosts
from trainwright.scheduling.block import SOURCE, BuildingBlock, repeat
from trainwright.scheduling.families.family import Family, two_chunks_in_v
from trainwright.scheduling.orders import reorder
from trainwright.scheduling.simulate import simulate

if TYPE_CHECKING:
    from trainwright.plans.schedule import Placement, Schedule
    from trainwright.scheduling.families.family import FamilyRequest

_PERIOD = 6


def block(placement: Placement) -> BuildingBlock:
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


def order(request: FamilyRequest) -> Schedule:
    """The block repeated, its idle gaps closed under the same peak."""
    placement = two_chunks_in_v(request)
    schedule = repeat(block(placement), request.num_microbatches)
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
    order=order,
    reads_costs=True,
)
