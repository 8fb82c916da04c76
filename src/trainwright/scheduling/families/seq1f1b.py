"""Seq1F1B: 1F1B over slices of each sequence (Sun et al., 2024).

A microbatch is cut along its tokens into q slices. Tokens attend to earlier ones, so forwards run
from the first slice to the last and backwards from the last to the first; a pipeline fills with
slices, not with microbatches, and both bubble and memory shrink with q.

Rank r warms up with p-1-r + q-1 slices. In slices it loses (p-1)(F+B) and holds p + q - 1: the
share lost is (p-1)/(p-1+qm). The authors cut sequences where slices take equal times; plans cut
them into four so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.scheduling.families.family import Family, FamilyRequest, Searched, one_chunk
from trainwright.scheduling.orders import actions, alternating

if TYPE_CHECKING:
    from trainwright.plans.schedule import Actions, Placement

_SLICES = 4  # of a sequence, where nobody says


def seq_order(request: FamilyRequest) -> Schedule:
    """One chunk per rank."""
    slices = request.num_slices or _SLICES
    warm_up = [request.num_ranks - 1 - rank + slices - 1 for rank in range(request.num_ranks)]
    return order_of_slices(request, one_chunk(request), slices, warm_up)


def order_of_slices(
    request: FamilyRequest, placement: Placement, slices: int, warm_up: list[int]
) -> Schedule:
    """After so many forwards per rank, a forward and a backward of a slice in turn."""
    orders = []
    for stages, first in zip(placement.stages_of_rank, warm_up, strict=True):
        forward = _stream(ActionKind.F, stages, range(slices), request.num_microbatches, slices)
        back = range(slices - 1, -1, -1)
        backward = _stream(ActionKind.B, stages[::-1], back, request.num_microbatches, slices)
        orders.append(alternating(forward, backward, warm_up=min(first, len(forward))))
    return Schedule.of_ranks(
        orders,
        placement=placement,
        num_microbatches=request.num_microbatches * slices,
        num_slices=slices,
    )


def _stream(
    kind: ActionKind, stages: tuple[int, ...], within: range, num_microbatches: int, slices: int
) -> Actions:
    """Microbatch after microbatch, in each chunk after chunk, in each slice after slice."""
    first = np.arange(num_microbatches)[:, None, None] * slices
    unit = np.broadcast_to(first + np.array(within), (num_microbatches, len(stages), slices))
    stage = np.broadcast_to(np.array(stages)[None, :, None], unit.shape)
    return actions(kind, stage.ravel(), unit.ravel())


SEQ_ONE_F_ONE_B = Family(
    name="seq1f1b",
    summary="1F1B over slices of each sequence, for less bubble and memory at long context",
    source="Sun et al., Seq1F1B, 2024",
    place=one_chunk,
    order=seq_order,
    is_plain=False,
    slices=lambda ranks: _SLICES,
    planned=True,
    searched=Searched.ASKED,
    warm_up=lambda ranks: ranks + _SLICES - 1,
)
