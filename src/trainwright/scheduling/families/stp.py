"""STP: forwards and backwards of one chunk braided, so that each hides the other's tensor network.

Two chunks in V (Qi et al., Synergistic Tensor and Pipeline Parallelism, arXiv:2510.27257; the order
is that of the authors' program, MICLAB-BUPT/STP). With tensor parallelism an action waits for the
all-reduces inside its layers; a forward and a backward of the same chunk that run as a pair fill
each other's waits. Rank r of p warms up with 3p - 1 - r forwards of its near chunk, so that from
then on every forward has a backward beside it. Where the pipeline fills and empties, weight
gradients are split off and fill. Of chunks that is a bubble of (p-1)(F + I - W) and, between
forward and input gradient, 3p activations on every rank, half as many again as ZB-V, as published;
3p + 1 while a braided pair has both of its own, and with those that wait for their weight gradient
4p - 1 on the last rank. While a rank warms up, two forwards of its near chunk braid, and a forward
with a weight gradient, so that it leaves the all-reduces of at most 2p + 1 forwards exposed.

The published order needs 3p - 1 microbatches; for fewer those beyond the last are left out of it.
How much a pair hides is a matter of costs (`network_s`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.scheduling.families.family import Family, FamilyRequest, Searched, two_chunks_in_v

if TYPE_CHECKING:
    from trainwright.arrays import Ints

_F, _I, _W, _B, *_ = ActionKind
# (kind, chunk); a step is one or two of them, two being a pair that begins with a forward. The W
# that waits longest runs next, of whichever chunk.
_Letter = tuple[ActionKind, int]
_NEXT_W = (_W, -1)


def order(request: FamilyRequest) -> Schedule:
    """All ranks in turn."""
    p, m = request.num_ranks, request.num_microbatches
    orders, pairs, first_row = [], [], 0
    for rank in range(p):
        rows: list[tuple[int, int, int]] = []
        counts: dict[_Letter, int] = {}
        waiting: list[tuple[int, int]] = []
        for step in _steps(p, rank, max(m, 3 * p - 1)):
            run = []
            for kind, chunk in step:
                if kind is _W:
                    stage, microbatch = waiting.pop(0)
                else:
                    stage = rank if chunk == 0 else 2 * p - 1 - rank
                    stream = (_F if kind is _F else _B, chunk)
                    microbatch = counts.get(stream, 0)
                    counts[stream] = microbatch + 1
                if kind is _I:
                    waiting.append((stage, microbatch))
                if microbatch < m:
                    run.append((int(kind), stage, microbatch))
            if len(run) == 2:
                pairs.append(first_row + len(rows))
            rows += run
        orders.append(np.array(rows, np.int32))
        first_row += len(rows)
    return Schedule.of_ranks(
        orders,
        placement=two_chunks_in_v(request),
        num_microbatches=m,
        pairs=np.array(pairs, np.int64),
    )


def _steps(p: int, rank: int, m: int) -> list[tuple[_Letter, ...]]:
    """What one rank runs of m >= 3p - 1 microbatches."""
    after = p - 1 - rank
    near, far = (_F, 0), (_F, 1)
    steady = 2 * (m - 3 * p) + 3 + 2 * rank  # pairs of the far and the near chunk in turn
    braided = [
        ((_F, chunk), (_I if i >= steady - rank else _B, chunk))
        for i in range(steady)
        for chunk in (1 - i % 2,)
    ]
    return [
        *[(near,)] * (2 * after),
        *[(near,), (far,)] * (rank + 1),
        *[(near,)] * ((rank + 1) % 2),
        *[(near, near)] * ((rank + 1) // 2),
        *[(far, (_I, 1)), (near, _NEXT_W)] * after,
        *braided,
        *[((_B, 0),), (far, (_I, 1))] * (2 * (p - 1) - rank),
        *[((_B, 0),), ((_B, 1),)] * (rank + 1),
        ((_B, 0),),
        *[(_NEXT_W,), (_NEXT_W,), ((_B, 0),)] * after,
        *[(_NEXT_W,)] * (2 * rank),
    ]


@lru_cache(maxsize=64)
def in_flight(num_ranks: int, num_microbatches: int) -> tuple[Ints, Ints]:
    """What each rank holds of its near and its far chunk at the instants that none exceeds, [N, p].

    Counted in the order itself, which is the same whatever the times are; 4p microbatches fill it.
    """
    m = min(num_microbatches, 4 * num_ranks)
    schedule = order(FamilyRequest(num_ranks=num_ranks, num_microbatches=m))
    fullest: list[list[tuple[int, int]]] = []
    for rank in range(num_ranks):
        kind, stage, _ = schedule.actions[schedule.rows_of(rank)].T
        held = []
        for chunk in (rank, 2 * num_ranks - 1 - rank):
            own = stage == chunk
            ended = np.cumsum(own & ((kind == _I) | (kind == _B)))
            begun = np.cumsum(own & (kind == _F))
            held.append(begun - np.concatenate(([0], ended[:-1])))
        counts = set(zip(*(each.tolist() for each in held), strict=True))
        fullest.append(
            sorted(
                (near, far)
                for near, far in counts
                if not any(a >= near and b >= far and (a, b) != (near, far) for a, b in counts)
            )
        )
    most = max(map(len, fullest))
    padded = np.array([each + each[-1:] * (most - len(each)) for each in fullest], np.int64)
    return padded[:, :, 0].T, padded[:, :, 1].T


STP = Family(
    name="stp",
    summary="V of two chunks, forward and backward braided: hides tensor parallelism",
    source="Qi et al., Synergistic Tensor and Pipeline Parallelism, arXiv:2510.27257",
    place=two_chunks_in_v,
    order=order,
    splits_backward=True,
    braids=True,
    planned=True,
    searched=Searched.ASKED,
    most_activations=lambda p: 4 * p - 1,
    published_in_flight=in_flight,
    least_in_flight=in_flight,
)
