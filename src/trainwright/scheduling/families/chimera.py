"""Chimera: two pipelines in opposite directions, each filling the other's bubbles.

Every rank has a stage of each of two copies of the model. With p ranks a unit of p microbatches,
half of them each way, runs by slots in which a forward and a backward take one each: F(s, j) in
slot s + 2j, B(s, j) in slot 2p - 1 - s + 2j of its own direction. The two directions never meet,
because p is even, and the next unit starts 2p slots later (Li and Hoefler, SC 2021, section 3).

In equal slots the bubble is p - 2 per step, for N = kp microbatches; between p/2 + 1 and p
activations are held. Parameters are there twice, and their gradients are summed over both copies
after the step, which is not part of a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainwright.errors import Fault
from trainwright.plans.schedule import ActionKind, Placement, Schedule
from trainwright.scheduling.families.family import Family, FamilyRequest
from trainwright.scheduling.orders import actions, by_time, one_after_another


def both_ways(request: FamilyRequest) -> Placement:
    """Stage s of one copy on rank s, of the other on rank p-1-s."""
    return Placement.both_ways(request.num_ranks)


def chimera_order(request: FamilyRequest) -> Schedule:
    """Half of the microbatches down, half of them up, by slots."""
    p, each = request.num_ranks, request.num_microbatches // 2
    microbatch = np.arange(each)
    unit, of_unit = np.divmod(microbatch, p // 2)
    first_slot = 2 * p * unit + 2 * of_unit
    orders = []
    for rank in range(p):
        rows, slots = [], []
        for stage, depth in ((rank, rank), (2 * p - 1 - rank, p - 1 - rank)):
            rows += [actions(kind, stage, microbatch) for kind in (ActionKind.F, ActionKind.B)]
            slots += [first_slot + depth, first_slot + 2 * p - 1 - depth]
        orders.append(by_time(one_after_another(*rows), np.concatenate(slots)))
    return Schedule.of_ranks(orders, placement=both_ways(request), num_microbatches=each)


def even_rules(request: FamilyRequest) -> Iterator[Fault]:
    """Ranks and microbatches in two halves."""
    if request.num_ranks % 2:
        yield Fault("num_ranks", f"must be even for two directions, got {request.num_ranks}")
    if request.num_microbatches % 2:
        problem = f"must be even, half for each direction, got {request.num_microbatches}"
        yield Fault("num_microbatches", problem)


CHIMERA = Family(
    name="chimera",
    summary="two pipelines in opposite directions that fill each other's bubbles",
    source="Li and Hoefler, SC 2021",
    place=both_ways,
    order=chimera_order,
    is_plain=False,
    rules=even_rules,
)
