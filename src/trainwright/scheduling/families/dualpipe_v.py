"""DualPipeV: two chunks in V, forwards of one paired with backwards of the other.

DualPipe cut in half: p ranks in V run what 2p ranks run there, with one copy of the parameters (Qi
et al., "DualPipe could be better without the Dual", Sea AI Lab, 2025; the order is that of
DeepSeek-AI's program, github.com/deepseek-ai/DualPipe, 2025). Each rank has eight phases. A pair of
a forward and a backward may take less time than both, if the costs say so; weight gradients are
split off only near the end, where they fill. In slots of one chunk, with equal times and nothing
gained from pairs, the bubble is p - 1, and a rank holds 2p + 1 activations of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import Fault
from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.scheduling.families.family import Family, FamilyRequest, two_chunks_in_v
from trainwright.scheduling.orders import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plans.schedule import Actions

# A backward is whole (B) or split (I); `_W` takes the oldest weight gradient that waits, of either
# chunk; a pair is a forward of one chunk and a backward of the other.
_F0, _F1, _B0, _B1, _I0, _I1, _W, _PAIR0, _PAIR1 = range(9)
_PAIRS = {_PAIR0: (_F0, _B1), _PAIR1: (_F1, _B0)}


def order(request: FamilyRequest) -> Schedule:
    """All ranks in turn."""
    p, m = request.num_ranks, request.num_microbatches
    orders, pairs, first_row = [], [], 0
    for rank in range(p):
        rows, paired = rank_order(p, rank, m, stages=(rank, 2 * p - 1 - rank))
        orders.append(rows)
        pairs.append(paired + first_row)
        first_row += len(rows)
    return Schedule.of_ranks(
        orders,
        placement=two_chunks_in_v(request),
        num_microbatches=m,
        pairs=np.concatenate(pairs),
    )


def rank_order(
    num_ranks: int, rank: int, num_microbatches: int, *, stages: tuple[int, int]
) -> tuple[Actions, NDArray[np.int64]]:
    """Rows over the near and the far of two `stages`, and which of them begin a pair."""
    before, after = rank, num_ranks - 1 - rank
    overlapped = [_PAIR0, _PAIR1] * (num_microbatches - 2 * num_ranks + before + 1)
    if after == 0:  # the last rank's first backward needs the forward before it done
        overlapped[0:1] = _PAIRS[_PAIR0]
    word = [
        *[_F0] * (2 * after),
        *[_F0, _F1] * (before + 1),
        *[_I1, _W, _F1] * after,
        *overlapped,
        *[_B1, _PAIR1] * after,
        *_split_in_the_middle(rank),
        *[_W, _I0] * after,
        *[_W] * (before + 1),
    ]
    letters = np.array(word)
    is_pair = letters >= _PAIR0
    width = 1 + is_pair
    starts = np.cumsum(width) - width
    unpaired = np.repeat(letters, width)
    for pair, members in _PAIRS.items():
        first = starts[letters == pair]
        unpaired[first], unpaired[first + 1] = members
    return _rows(unpaired, stages=stages), starts[is_pair]


def _split_in_the_middle(rank: int) -> list[int]:
    """Backwards of both chunks in turn; from the middle on their weight gradients wait."""
    steps = rank + 1
    whole = 2 * (steps // 2) + (1 - rank % 2)
    return ([_B1, _B0] * steps)[:whole] + ([_I1, _I0] * steps)[whole:]


def _rows(word: NDArray[np.int64], *, stages: tuple[int, int]) -> Actions:
    """Count microbatches: backwards of a chunk together, be they whole or split."""
    is_split = (word == _I0) | (word == _I1)
    is_weight_grad = word == _W
    stream = np.where(is_split, word - (_I0 - _B0), word)
    streams = [(ActionKind.F, stage) for stage in stages]
    streams += [(ActionKind.B, stage) for stage in stages]
    rows = np.empty((len(word), 3), np.int32)
    rows[~is_weight_grad] = counted(stream[~is_weight_grad], streams)
    rows[is_split, 0] = ActionKind.I
    rows[is_weight_grad] = rows[is_split]
    rows[is_weight_grad, 0] = ActionKind.W
    return rows


def rules(request: FamilyRequest) -> Iterator[Fault]:
    """The phases need 2p microbatches."""
    p, m = request.num_ranks, request.num_microbatches
    if m < 2 * p:
        yield Fault(
            "num_microbatches",
            f"must be >= {2 * p}, twice the ranks, for dualpipe-v, got {m}; zb-v takes any number",
        )


DUALPIPE_V = Family(
    name="dualpipe-v",
    summary="V of two chunks, forward and backward in overlapping pairs",
    source="DeepSeek-AI, 2025",
    place=two_chunks_in_v,
    order=order,
    rules=rules,
    splits_backward=True,
)
