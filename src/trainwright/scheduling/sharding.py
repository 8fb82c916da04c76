"""When a rank gathers the parameters of its sharded stages, and when it drops them.

A rank keeps the stages it uses next, as many as it has room for: at each action the ones that are
missing are gathered and the others dropped. A stage that was gathered is used before it is dropped,
because its place among those in use next never gets worse until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.schedule import Schedule

    Rows = NDArray[np.int64]


class ParameterMoves(NamedTuple):
    """Each [k, 3]: stage, row, tie; of one row, the lowest tie first.

    `fetched` and `dropped` come before their row, `left` after the last row of its rank.
    """

    fetched: Rows
    dropped: Rows
    left: Rows


def parameter_moves(schedule: Schedule, sharded: frozenset[int], *, keep: int) -> ParameterMoves:
    """Moves of all ranks that have stages in `sharded`, with room for `keep` of them at once.

    A pair of actions on two stages has room for both.
    """
    none = np.zeros((0, 3), np.int64)
    moves = ParameterMoves(none, none, none)
    for rank, stages in enumerate(schedule.placement.stages_of_rank):
        own = np.array([stage for stage in stages if stage in sharded], np.int64)
        if len(own) and schedule.rank_offsets[rank] < schedule.rank_offsets[rank + 1]:
            more = _moves_of_rank(schedule, rank, own, keep)
            moves = ParameterMoves(*map(np.concatenate, zip(moves, more, strict=True)))
    return moves


def _moves_of_rank(schedule: Schedule, rank: int, own: Rows, keep: int) -> ParameterMoves:
    rows = schedule.rows_of(rank)
    length = rows.stop - rows.start
    next_use = _next_use(schedule.actions[rows, 1], own)
    place = np.argsort(np.argsort(next_use, axis=0, kind="stable"), axis=0, kind="stable")
    whole = (place < keep) & (next_use < length)
    pairs = schedule.pairs[(schedule.pairs >= rows.start) & (schedule.pairs < rows.stop)]
    first = pairs - rows.start
    whole[:, first] |= whole[:, first + 1]
    whole[:, first + 1] = whole[:, first]
    change = np.diff(whole.astype(np.int8), axis=1, prepend=0)
    fetched, dropped = np.nonzero(change == 1), np.nonzero(change == -1)
    left = np.flatnonzero(whole[:, -1])
    return ParameterMoves(
        fetched=_moves(own[fetched[0]], rows.start + fetched[1], place[fetched]),
        dropped=_moves(own[dropped[0]], rows.start + dropped[1], own[dropped[0]]),
        left=_moves(own[left], np.full_like(left, rows.stop - 1), own[left]),
    )


def _next_use(stage_of_row: NDArray[np.int32], own: Rows) -> Rows:
    """Of each own stage the position of its next action, at or after each; [own, rows]."""
    length = len(stage_of_row)
    here = np.arange(length)
    used = np.where(stage_of_row == own[:, None], here, length)
    return np.minimum.accumulate(used[:, ::-1], axis=1)[:, ::-1]


def _moves(stage: Rows, row: Rows, tie: Rows) -> Rows:
    return np.stack([stage, row, tie], axis=1)
