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
from trainwright.plans.schedule import ActionKind, Placement, Schedule
from trainwright.scheduling.block import SOURCE, BuildingBlock, repeat
from trainwright.scheduling.families.family import Family, FamilyRequest, Searched, Steady, looped
from trainwright.scheduling.orders import actions, alternating, trim

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        orders.append(alternating(forwards, backwards, warm_up=warmup))
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
    tried=True,
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


# GIS and GIS-H: the backward split, groups of g microbatches (Qi et al., NeurIPS 2024)
# -------------------------------------------------------------------------------------
# Within a period of 3gv slots each chunk of a rank runs the g members of a group in every third
# slot; input gradients use the slots in between, weight gradients follow them. GIS has g = p, GIS-H
# g = p/2, for less memory and a longer bubble.


def gis_block(placement: Placement, *, group: int, members: int) -> BuildingBlock:
    """The period of one group: F of chunk c in slots 3gc + 3q + r, I of chunk v-1-c likewise after
    the last chunk's forward and the way back, W in the slot after its I; of q the first `members`.
    """
    p = placement.num_ranks
    chunk, rank = np.divmod(np.arange(placement.num_stages, dtype=float)[:, None], p)
    member = np.arange(members, dtype=float)[None, :]
    last = placement.num_stages // p - 1
    forward = 3 * group * chunk + 3 * member + rank
    turn = 3 * group * last + rank + 3 * (p - 1 - rank) + 1
    input_grad = turn + 3 * group * (last - chunk) + 3 * member
    return BuildingBlock(
        placement=placement,
        period_slots=3.0 * group * (last + 1),
        start_slots={
            ActionKind.F: forward,
            ActionKind.I: input_grad,
            ActionKind.W: input_grad + 1,
        },
    )


def gis_order(request: FamilyRequest) -> Schedule:
    """Groups of p, or of what the request says."""
    return _whole_groups(request, group=request.group or request.num_ranks)


def gis_h_order(request: FamilyRequest) -> Schedule:
    """Groups of p/2 rounded up, or of what the request says."""
    return _whole_groups(request, group=request.group or -(-request.num_ranks // 2))


def _whole_groups(request: FamilyRequest, *, group: int) -> Schedule:
    """Whole groups, trimmed to the microbatches there are."""
    members = min(group, request.num_microbatches)
    whole = -(-request.num_microbatches // members) * members
    schedule = repeat(gis_block(looped(request), group=group, members=members), whole)
    return trim(schedule, num_microbatches=request.num_microbatches)


def gis_rules(request: FamilyRequest) -> Iterator[Fault]:
    """Smaller groups return to rank 0 too early, larger ones only cost memory."""
    least, most = -(-request.num_ranks // 2), request.num_ranks
    if request.group is not None and not least <= request.group <= most:
        yield Fault(
            "group", f"must be from {least} to {most} for {most} ranks, got {request.group}"
        )


GIS = Family(
    name="gis",
    summary="interleaved with split backward in groups of p",
    source=SOURCE,
    place=looped,
    order=gis_order,
    rules=gis_rules,
    splits_backward=True,
    reads_group=True,
)
GIS_H = Family(
    name="gis-h",
    summary="interleaved with split backward in groups of p/2, for less memory",
    source=SOURCE,
    place=looped,
    order=gis_h_order,
    rules=gis_rules,
    splits_backward=True,
    reads_group=True,
)
