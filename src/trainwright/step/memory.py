"""What can be held at once under a schedule, as counts: memory of any stages in one product.

A row says of one instant of one rank how many microbatches of each of its chunks are kept until
their input gradient, how many until their weight gradient, and whose transients lie beside. The
fullest instant of given stages is the largest of rows · bytes, and an instant that holds no more of
anything than another of its rank is never the fullest, so few rows are left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.plans.schedule import ActionKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats
    from trainwright.plans.schedule import Schedule

    Ints = NDArray[np.int32]

_F, _I, _W, _B, _R, _O, _D, _L, _V, _T = ActionKind
# By kind: whether activations of a chunk come with an action, whether they go with it, whether the
# rest goes with it, and whether its transients lie beside.
_BEGINS, _ENDS, _FREES, _HANDS_ON = (
    np.isin(list(ActionKind), kinds) for kinds in ((_F, _L), (_B, _I, _D), (_B, _W, _D), (_B, _I))
)
_EXACT: Final = 2**62
_FEW: Final = 64  # rows that are all compared at once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeakRows:
    """`rows` [k, 3·c] counts for the up to c chunks of a rank; `stage` [k, c] says which they are.

    Rows of rank r begin at `starts[r]`. A rank with fewer chunks counts none of stage 0.
    """

    rows: Floats
    stage: NDArray[np.int64]
    starts: NDArray[np.int64]


def peak_rows(schedule: Schedule) -> PeakRows:
    """The instants of a schedule that can be the fullest."""
    owned = schedule.placement.stages_of_rank
    most = max(map(len, owned))
    rows, stages = [], []
    for rank, own in enumerate(owned):
        found = _rank_rows(schedule, rank)
        padded = np.zeros((len(found), 3, most))
        padded[:, :, : len(own)] = found.reshape(len(found), 3, len(own))
        rows.append(padded.reshape(len(found), 3 * most))
        chunks = np.zeros(most, np.int64)
        chunks[: len(own)] = own
        stages.append(np.tile(chunks, (len(found), 1)))
    starts = np.cumsum([0, *(len(part) for part in rows[:-1])])
    return PeakRows(rows=np.concatenate(rows), stage=np.concatenate(stages), starts=starts)


def _rank_rows(schedule: Schedule, rank: int) -> NDArray[np.int64]:
    """Of each chunk: kept until input gradient, until weight gradient, transients."""
    actions = schedule.actions[schedule.rows_of(rank)]
    kind, stage = actions[:, 0], actions[:, 1]
    mine = stage[:, np.newaxis] == np.array(schedule.placement.stages_of_rank[rank])
    hands_on = mine & _HANDS_ON[kind, np.newaxis]
    freed_by_input = mine & _ENDS[kind, np.newaxis]
    freed_by_weight = mine & _FREES[kind, np.newaxis]
    begun = np.cumsum(mine & _BEGINS[kind, np.newaxis], axis=0)
    counts = np.concatenate(
        [
            begun - np.cumsum(freed_by_input, axis=0) + freed_by_input,
            begun - np.cumsum(freed_by_weight, axis=0) + freed_by_weight,
            hands_on,
        ],
        axis=1,
    )
    # A forward leaves no more than the action after it begins with, and a weight gradient begins
    # with no more than the action before it does.
    fullest = _HANDS_ON[kind]
    fullest[[0, -1]] = True
    return undominated(_distinct(counts[fullest]))


def _distinct(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows that differ, of counts: read as the digits of one number each where that is exact."""
    digits = rows.max(axis=0) + 1
    if math.prod(digits.tolist()) >= _EXACT:
        return np.unique(rows, axis=0)
    weights = np.append(np.cumprod(digits[:0:-1])[::-1], 1)
    _, first = np.unique(rows @ weights, return_index=True)
    return rows[first]


def undominated(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of distinct rows [k, c] those of which no other has at least as much of everything."""
    order = np.argsort(-rows.sum(axis=1), kind="stable")
    if len(rows) <= _FEW:
        left = rows[order]
        no_more = (left[:, np.newaxis] <= left).all(axis=2)
        alone: NDArray[np.bool_] = no_more.sum(axis=1) == 1  # no more than itself
        return left[alone]
    left, kept = rows[order], []
    while len(left):
        kept.append(left[0])  # of the largest sum: nothing that is left has as much of everything
        left = left[(left > left[0]).any(axis=1)]
    return np.array(kept)


# What a rank holds when its memory is fullest, from the orders of its schedule
# -----------------------------------------------------------------------------
# A rank runs one action at a time, so its memory is a property of its order: the forward of a chunk
# keeps that chunk's activations, its input gradient frees one part of them, its weight gradient the
# rest, and while a backward runs its transients lie beside. Times play no part.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageActivations:
    """Bytes of S virtual stages, per microbatch.

    `logits` are those of the kept bytes that belong to head and loss; `cut_head` is what every rank
    keeps of a head that is cut over all of them, from V to T.
    """

    until_input_grad: Floats
    until_weight_grad: Floats
    transient: Floats
    logits: Floats
    cut_head: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """One rank at its fullest: kept activations, head and loss among them apart, transients."""

    activation_bytes: float
    logits_bytes: float
    transient_bytes: float
    microbatches_in_flight: int

    @property
    def total_bytes(self) -> float:
        """All that the schedule adds to static memory."""
        return self.activation_bytes + self.logits_bytes + self.transient_bytes


def rank_peaks(schedule: Schedule, stages: StageActivations) -> tuple[RankPeak, ...]:
    """The first fullest instant of every rank; in flight are chunk activations held then."""
    tables = _tables(stages)
    return tuple(
        _peak(schedule.actions[schedule.rows_of(rank)], stages, *tables)
        for rank in range(schedule.num_ranks)
    )


def _tables(stages: StageActivations) -> tuple[Floats, Floats]:
    """Bytes by kind of action and stage, [10, S]: what it adds, and what it holds while it runs."""
    kept = stages.until_input_grad + stages.until_weight_grad
    table = np.zeros((len(ActionKind), len(kept)))
    table[ActionKind.F] = kept
    table[ActionKind.I] = -stages.until_input_grad
    table[ActionKind.W] = -stages.until_weight_grad
    table[ActionKind.B] = -kept
    table[ActionKind.D], table[ActionKind.L] = -kept, kept
    table[ActionKind.V], table[ActionKind.T] = stages.cut_head, -stages.cut_head
    transient = np.zeros_like(table)
    transient[ActionKind.I] = transient[ActionKind.B] = stages.transient
    return table, transient


def _peak(actions: Ints, stages: StageActivations, table: Floats, transient: Floats) -> RankPeak:
    kind, stage = actions[:, 0], actions[:, 1]
    delta = table[kind, stage]
    held = np.cumsum(delta) - np.minimum(delta, 0.0)  # releases come at the end of an action
    row = int(np.argmax(held + transient[kind, stage]))
    alive = _alive(actions[: row + 1], num_stages=len(stages.transient))
    logits = float(alive @ stages.logits)
    if stages.cut_head:
        opened, closed = kind[: row + 1] == _V, kind[:row] == _T
        logits += stages.cut_head * (int(opened.sum()) - int(closed.sum()))
    return RankPeak(
        activation_bytes=max(0.0, float(held[row]) - logits),
        logits_bytes=logits,
        transient_bytes=float(transient[kind[row], stage[row]]),
        microbatches_in_flight=int(alive.sum()),
    )


def _alive(actions: Ints, *, num_stages: int) -> Floats:
    """Chunks of each stage between forward and input gradient while the last of `actions` runs.

    Those that are on the host alone do not count.
    """
    begins = _BEGINS[actions[:, 0]]
    opened = np.bincount(actions[begins, 1], minlength=num_stages)
    before = actions[:-1]
    ends = _ENDS[before[:, 0]]
    closed = np.bincount(before[ends, 1], minlength=num_stages)
    return (opened - closed).astype(np.float64)
