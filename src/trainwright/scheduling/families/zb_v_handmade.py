"""The published order of ZB-V: no bubble for equal times, at the memory of 1F1B (2p half chunks).

Warm-up and cool-down are stairs, the stable phase is F0 I0 W0 F1 I1 W1 (Qi et al., ICLR 2024).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.scheduling.families.family import Family, two_chunks_in_v
from trainwright.scheduling.families.zero_bubble import SOURCE
from trainwright.scheduling.orders import counted

if TYPE_CHECKING:
    from trainwright.arrays import Ints
    from trainwright.plans.schedule import Actions
    from trainwright.scheduling.families.family import FamilyRequest

_F0, _I0, _W0, _F1, _I1, _W1 = range(6)


def order(request: FamilyRequest) -> Schedule:
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


def in_flight(num_ranks: int, num_microbatches: int) -> tuple[Ints, Ints]:
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
    source=SOURCE,
    place=two_chunks_in_v,
    order=order,
    splits_backward=True,
)
