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
from trainwright.scheduling.passes import trim

if TYPE_CHECKING:
    from trainwright.arrays import Ints
    from trainwright.plans.schedule import Actions
    from trainwright.scheduling.families.family import FamilyRequest

_F0, _I0, _W0, _F1, _I1, _W1 = range(6)


def order(request: FamilyRequest) -> Schedule:
    """Fewer than 2p-1 microbatches are cut from a schedule of so many."""
    p, m = request.num_ranks, request.num_microbatches
    whole = max(m, 2 * p - 1)
    schedule = Schedule.of_ranks(
        [_rank_order(p, rank, whole) for rank in range(p)],
        placement=two_chunks_in_v(request),
        num_microbatches=whole,
    )
    return trim(schedule, num_microbatches=m)


def _rank_order(num_ranks: int, rank: int, num_microbatches: int) -> Actions:
    p, r, m = num_ranks, rank, num_microbatches
    forwards_0, forwards_1 = 2 * p - 1 - r, p
    warm_up = [_F0] * (2 * (p - r) - 1) + [_F1, _F0] * r + [_F1, _I1, _W1] * (p - r)
    stable = np.tile([_F0, _I0, _W0, _F1, _I1, _W1], m - forwards_0)
    # Chunk 1 still lags; the rounds go on without F0.
    lagging = np.tile([_I0, _W0, _F1, _I1, _W1], forwards_0 - forwards_1)
    cool_down = [_I0, _I1] * r + [_I0, _W0] * (p - r)
    word = np.concatenate([warm_up, stable, lagging, cool_down]).astype(np.int64)
    left = [np.repeat(w, m - np.count_nonzero(word == w)) for w in (_W1, _W0)]
    kinds = (ActionKind.F, ActionKind.I, ActionKind.W)
    return counted(
        np.concatenate([word, *left]),
        [(kind, stage) for stage in (r, 2 * p - 1 - r) for kind in kinds],
    )


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
