"""Interleaved 1F1B: v chunks per rank in a loop, groups of microbatches passing chunk by chunk.

Megatron-LM's schedule (Narayanan et al., SC 2021) has groups of p microbatches and so needs m to be
a multiple of p: each rank's k-th forward is chunk (k mod pv) div p of microbatch
(k div pv)·p + k mod p; its k-th backward is the same with chunks counted from the last. A chunk is
1/v of a rank's layers, so is the bubble.

Depth-first is the same order with any group size g >= p and any m: a rest smaller than p joins the
group before it, because a group of fewer than p returns to rank 0 before its last member left it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import Fault
from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.scheduling.families.family import Family, Searched, Steady, all_at_once, looped
from trainwright.scheduling.orders import actions, in_turn, one_after_another

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.scheduling.families.family import FamilyRequest


def order(request: FamilyRequest) -> Schedule:
    """Groups of p."""
    return _grouped_order(request, groups_of(request.num_microbatches, request.num_ranks))


def depth_first_order(request: FamilyRequest) -> Schedule:
    """Groups of `request.group`, p where absent."""
    p, m = request.num_ranks, request.num_microbatches
    groups = groups_of(m, request.group or p)
    if len(groups) > 1 and len(groups[-1]) < p:
        groups[-2:] = [np.concatenate(groups[-2:])]
    return _grouped_order(request, groups)


def groups_of(num_microbatches: int, size: int) -> list[NDArray[np.int64]]:
    """Consecutive microbatches in groups of `size`; the last may be smaller."""
    return np.split(np.arange(num_microbatches), range(size, num_microbatches, size))


def _grouped_order(request: FamilyRequest, groups: Sequence[NDArray[np.int64]]) -> Schedule:
    """Warm up until the first microbatch of the largest group can go back, then alternate."""
    p, m, v = request.num_ranks, request.num_microbatches, request.virtual_stages
    chunk = np.concatenate([np.repeat(np.arange(v), len(group)) for group in groups])
    microbatch = np.concatenate([np.tile(group, v) for group in groups])
    largest = max(map(len, groups))
    orders = []
    for rank in range(p):
        forwards = actions(ActionKind.F, chunk * p + rank, microbatch)
        backwards = actions(ActionKind.B, (v - 1 - chunk) * p + rank, microbatch)
        warmup = min(m * v, 2 * (p - 1 - rank) + (v - 1) * largest)
        steady = m * v - warmup
        orders.append(
            one_after_another(
                forwards[:warmup],
                in_turn(forwards[warmup:], backwards[:steady]),
                backwards[steady:],
            )
        )
    return Schedule.of_ranks(orders, placement=looped(request), num_microbatches=m)


def rules(request: FamilyRequest) -> Iterator[Fault]:
    """Groups of p must come out even."""
    p, m = request.num_ranks, request.num_microbatches
    if m % p:
        near = " or ".join(str(count) for count in (m - m % p, m - m % p + p) if count)
        yield Fault(
            "num_microbatches",
            f"must be a multiple of {p} ranks for interleaved, got {m}; "
            f"use {near}, or the family depth-first",
        )


def depth_first_rules(request: FamilyRequest) -> Iterator[Fault]:
    """Groups must fill the ranks."""
    if request.group is not None and request.group < request.num_ranks:
        yield Fault("group", f"must be >= {request.num_ranks} ranks, got {request.group}")


INTERLEAVED = Family(
    name="interleaved",
    summary="1F1B over v chunks per rank in a loop",
    source="Narayanan et al., SC 2021",
    place=looped,
    order=order,
    rules=rules,
    whole_groups=True,
    steady=Steady(8, 2, 3, by_rank=True),
    planned=True,
    searched=Searched.ALWAYS,
    held_at_once=lambda ranks: ranks,
)
DEPTH_FIRST = Family(
    name="depth-first",
    summary="interleaved with groups of any size >= p: all chunks of a group before the next group",
    source="Lamy-Poirier, MLSys 2023",
    place=looped,
    order=depth_first_order,
    rules=depth_first_rules,
    reads_group=True,
    like="interleaved",
    steady=Steady(12, 4, 4, by_rank=True),  # the last group may be nearly twice as large
    planned=True,
    held_at_once=lambda ranks: ranks,
)


# Breadth-first: a chunk runs all microbatches before the next chunk (Lamy-Poirier, MLSys 2023)
# ---------------------------------------------------------------------------------------------
# All forwards, chunk by chunk, then all backwards, last chunk first. Each chunk is needed once per
# pass, which suits sharded parameters; every activation waits.


def breadth_first_order(request: FamilyRequest) -> Schedule:
    """Microbatches in order 0..m-1 on every chunk, in both passes."""
    placement = looped(request)
    microbatches = np.arange(request.num_microbatches)
    orders = [
        one_after_another(
            *(actions(ActionKind.F, stage, microbatches) for stage in stages),
            *(actions(ActionKind.B, stage, microbatches) for stage in reversed(stages)),
        )
        for stages in placement.stages_of_rank
    ]
    return Schedule.of_ranks(orders, placement=placement, num_microbatches=request.num_microbatches)


BREADTH_FIRST = Family(
    name="breadth-first",
    summary="all microbatches on a chunk before the next chunk, forwards before backwards",
    source="Lamy-Poirier, MLSys 2023",
    place=looped,
    order=breadth_first_order,
    planned=True,
    held_at_once=all_at_once,
)
