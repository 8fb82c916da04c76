"""What a family in V holds in memory: the published form of its order, and at most.

Families in V order actions by the times of their stages, so what a rank holds is known when a split
is. But each of them is published as one order for equal times, made for a memory, and repeats it in
the middle of a step whatever the times are: ZB-V the word F0 I0 W0 F1 I1 W1 after a warm-up, V-Half
and V-Min a block every six slots. How many microbatches wait for their input gradients then depends
on the rank alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.scheduling.v_pattern import PERIOD, v_half_block, v_min_block

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints
    from trainwright.scheduling.v_pattern import VBlock

# Chunk activations that no rank of a family exceeds, by the number of ranks.
MOST_ACTIVATIONS: Final[Mapping[str, Callable[[int], int]]] = {
    "v-min": lambda p: 2 * ((p + 4) // 3),
    "v-half": lambda p: 2 * (p // 2) + 2,
    "zb-v": lambda p: 2 * p,
    "adaptive-v": lambda p: 2 * p,
}
# Of either chunk, in flight on a rank with so many ranks up to it, at most m.
LEAST_OF_EITHER: Final[Mapping[str, Callable[[Ints], Ints]]] = {
    "v-min": lambda ranks: (ranks + 2) // 3,
    "v-half": lambda ranks: (ranks + 1) // 2,
    "zb-v": lambda ranks: ranks,
    "adaptive-v": lambda ranks: ranks,
}
_BLOCKS: Final[Mapping[str, Callable[[int], VBlock]]] = {
    "v-min": v_min_block,
    "v-half": v_half_block,
}


@lru_cache(maxsize=256)
def published_in_flight(
    family: str, num_ranks: int, num_microbatches: int
) -> tuple[Floats, Floats]:
    """Of stage r and of stage 2p-1-r on every rank, waiting for input gradients: [N, p] each.

    At each of the N instants of a rank that can be its fullest in the family's published order.
    """
    if family in _BLOCKS:
        near, far = _in_block(_BLOCKS[family](num_ranks), num_microbatches)
    else:
        near, far = _in_zb_v(num_ranks, num_microbatches)
    return near.astype(np.float64), far.astype(np.float64)


def most_in_flight(num_ranks: int, most: int) -> tuple[Floats, Floats]:
    """The same for orders that hold `most` chunk activations on every rank, whatever the times.

    At the one instant as many of the far stage as it ever does, at the other as few. The far stage
    waits longer the nearer to the turn it lies.
    """
    share = (most / 2 - 1) * np.arange(num_ranks) / max(1, num_ranks - 1)
    far = np.stack([np.minimum(most / 2, np.ceil(share) + 2), np.floor(share)])
    return most - far, far


def _in_zb_v(num_ranks: int, num_microbatches: int) -> tuple[Ints, Ints]:
    """With F0, and with F1, of the steady word begun last; fewer microbatches are all begun."""
    p, m, r = num_ranks, num_microbatches, np.arange(num_ranks)
    near, far = 2 * p - 1 - r, r + 1
    held = np.stack((near, np.where(m > near, near + 1, near))), np.stack((far, far - 1))
    return np.minimum(held[0], m), np.minimum(held[1], m)


def _in_block(block: VBlock, num_microbatches: int) -> tuple[Ints, Ints]:
    """While forwards run, the only actions that add to what is held."""
    enough = min(num_microbatches, 2 * block.num_ranks + 2)
    begun = np.stack((block.forward_0, block.forward_1))  # [2, p]
    freed = np.stack((block.input_grad_0, block.input_grad_1)) + 1
    at = (begun[:, np.newaxis] + PERIOD * np.arange(enough)[:, np.newaxis]).reshape(
        -1, block.num_ranks
    )
    held = _so_far(at, begun, enough) - _so_far(at, freed, enough)
    rows = [_undominated(held[:, :, rank].T) for rank in range(block.num_ranks)]
    most = max(map(len, rows))
    padded = np.stack([own[np.minimum(np.arange(most), len(own) - 1)] for own in rows], axis=1)
    return padded[:, :, 0], padded[:, :, 1]


def _so_far(at: Ints, first: Ints, count: int) -> Ints:
    """How many of `count` events a period apart happened at these times or before, [2, N, p]."""
    happened: Ints = np.clip((at - first[:, np.newaxis]) // PERIOD + 1, 0, count)
    return happened


def _undominated(rows: Ints) -> Ints:
    """Those of rows [N, 2] of which no other has at least as much of both."""
    rows = np.unique(rows, axis=0)
    best = np.maximum.accumulate(rows[::-1, 1])[::-1]
    kept: Ints = rows[np.append(rows[:-1, 1] > best[1:], True)]
    return kept


CHAIN: Final = ("1f1b", "zb-h1", "zb-h2", "eager-1f1b", "gpipe")
LOOPED: Final = ("interleaved", "depth-first", "breadth-first")
IN_V: Final = tuple(MOST_ACTIVATIONS)
SEARCHED: Final = (*CHAIN, *LOOPED, *IN_V)


def chunks_per_rank(family: str) -> int | None:
    """Virtual stages per rank; None where any number of them will do."""
    return None if family in LOOPED else 2 if family in IN_V else 1


ONE_F_ONE_B: Final = "1f1b"


# How many microbatches go forward on a rank before its first backward, by schedule family
# ----------------------------------------------------------------------------------------

# Forwards before the first backward of a rank with so many ranks from it on, at most m.
WARM_UP: Final[Mapping[str, Callable[[Ints], Ints]]] = {
    ONE_F_ONE_B: lambda ranks: ranks,
    "zb-h1": lambda ranks: ranks,
    "zb-h2": lambda ranks: 2 * ranks - 1,
    **LEAST_OF_EITHER,
}
