"""Work of a microbatch over all ranks, no less than what memory makes layers recompute.

When a microbatch is at the loss all ranks keep their part of it, and with one stage per rank the
w_r forwards of the warm-up are kept at the first backward. With U usable bytes and S_r state

    any order   Σ kept_r ≤ Σ (U - S_r)
    warm-up     Σ kept_r ≤ Σ (U - S_r) / w_r, most where the ranks of large w_r hold the state

so the work is no less than what `PointWork.trade` says at that room. Where even the leanest options
need more, nothing fits, and the work is infinite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.planning.family_bounds import loop_work_s
from trainwright.planning.family_split import CHAIN
from trainwright.planning.warm_up import WARM_UP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.planning.family_bounds import ChainWork
    from trainwright.planning.pair_batch import Batch
    from trainwright.planning.point_work import PointWork

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_HAIR: Final = 1 + 1e-9


def recomputed_work_s(
    work: PointWork,
    chain: ChainWork,
    batch: Batch,
    gathered: Floats,
    held_bytes: Floats,
    usable_bytes: float,
) -> Floats:
    """Of all ranks for a microbatch, with what memory makes recompute, [N]."""
    layouts = batch.layouts
    held_bytes = (
        held_bytes + np.minimum(1.0, gathered) * work.weights.with_largest[layouts.pipeline]
    )
    work_s = np.empty(layouts.size)
    for family, own in batch.families:
        p, held = (
            layouts.pipeline[own],
            held_bytes[own] + _transient_bytes(work, family)[layouts.pipeline[own]],
        )
        room_bytes = p * usable_bytes - held
        if family in WARM_UP:
            m = layouts.num_microbatches[own]
            room_bytes = _room_in_warm_up(p, m, held, usable_bytes, family)
        work_s[own] = work.trade.least_s(room_bytes)
        if family == "interleaved":
            chunks = layouts.virtual_stages[own]
            looped_s = loop_work_s(chain, pipeline=p, virtual_stages=chunks, room_bytes=room_bytes)
            work_s[own] = np.maximum(work_s[own], looped_s)
    return work_s


def _room_in_warm_up(
    p: Ints, m: Ints, held_bytes: Floats, usable_bytes: float, family: str
) -> Floats:
    """Bytes that one microbatch may keep over all ranks; all state lies on the first ranks.

    The last x ranks have Σ 1 / w of one device's room; `x` need not be whole.
    """
    counts, index = np.unique(m, return_inverse=True)
    ranks = np.arange(1, int(p.max(initial=0)) + 1)
    shares = 1 / np.minimum(WARM_UP[family](ranks), counts[:, np.newaxis])
    shares = np.pad(shares, ((0, 0), (0, 1)))
    sums = np.pad(np.cumsum(shares, axis=1), ((0, 0), (1, 0)))
    left = np.maximum(0.0, p - held_bytes / usable_bytes)
    whole = left.astype(np.int64)
    room = sums[index, whole] + (left - whole) * shares[index, whole]
    return np.where(held_bytes > p * usable_bytes * _HAIR, -1.0, room * usable_bytes)


def _transient_bytes(work: PointWork, family: str) -> Floats:
    """Of all ranks at the first backward of each, by the number of ranks.

    A rank of several chunks keeps all of them when the last begins, whose transients those are.
    """
    return work.transients.with_largest if family in CHAIN else work.transients.anywhere
