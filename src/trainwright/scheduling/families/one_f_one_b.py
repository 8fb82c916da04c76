"""GPipe, and 1F1B: after a warm-up, each rank alternates one forward and one backward.

The warm-up of rank r is p-1-r forwards, the fewest with which the last rank never waits at zero
transfer time (PipeDream-flush; Narayanan et al., ICML 2021). Eager 1F1B warms up with 2(p-1-r):
same bubble at zero transfer time, and transfers are hidden, for up to 2p-1 activations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.scheduling.families import family
from trainwright.scheduling.orders import actions, alternating, one_after_another

if TYPE_CHECKING:
    from trainwright.plans.schedule import Actions


def order(request: family.FamilyRequest) -> Schedule:
    """The least warm-up."""
    return _alternate(request, warmup_per_rank_after=1)


def eager_order(request: family.FamilyRequest) -> Schedule:
    """Twice the least warm-up."""
    return _alternate(request, warmup_per_rank_after=2)


def _alternate(request: family.FamilyRequest, *, warmup_per_rank_after: int) -> Schedule:
    p, m = request.num_ranks, request.num_microbatches
    orders = [
        _rank_order(rank, m, warmup=min(m, warmup_per_rank_after * (p - 1 - rank)))
        for rank in range(p)
    ]
    return Schedule.of_ranks(orders, placement=family.one_chunk(request), num_microbatches=m)


def _rank_order(rank: int, num_microbatches: int, *, warmup: int) -> Actions:
    forwards = actions(ActionKind.F, rank, np.arange(num_microbatches))
    backwards = actions(ActionKind.B, rank, np.arange(num_microbatches))
    return alternating(forwards, backwards, warm_up=warmup)


ONE_F_ONE_B = family.Family(
    name="1f1b",
    summary="one forward, one backward in turn; at most p activations",
    source="Narayanan et al., ICML 2021 (PipeDream-flush)",
    place=family.one_chunk,
    order=order,
    steady=family.Steady(5, 1, 2),  # at most p in flight on every rank
    planned=True,
    searched=family.Searched.ALWAYS,
    warm_up=lambda ranks: ranks,
    tried=True,
    on_chips=True,
)
EAGER_ONE_F_ONE_B = family.Family(
    name="eager-1f1b",
    summary="1F1B with twice the warm-up: hides transfers for up to 2p-1 activations",
    source="Zhuang et al., MLSys 2023",
    place=family.one_chunk,
    order=eager_order,
    steady=family.Steady(8, 2, 3),
    planned=True,
    held_at_once=lambda ranks: 2 * ranks - 1,
)


# GPipe: all forwards, then all backwards (Huang et al., NeurIPS 2019). Every activation waits
# ---------------------------------------------------------------------------------------------


def all_forwards_first(request: family.FamilyRequest) -> Schedule:
    """Microbatches in order 0..m-1 in both passes."""
    microbatches = np.arange(request.num_microbatches)
    orders = [
        one_after_another(
            actions(ActionKind.F, rank, microbatches), actions(ActionKind.B, rank, microbatches)
        )
        for rank in range(request.num_ranks)
    ]
    return Schedule.of_ranks(
        orders, placement=family.one_chunk(request), num_microbatches=request.num_microbatches
    )


GPIPE = family.Family(
    name="gpipe",
    summary="all forwards, then all backwards",
    source="Huang et al., NeurIPS 2019",
    place=family.one_chunk,
    order=all_forwards_first,
    planned=True,
    held_at_once=family.all_at_once,
)
