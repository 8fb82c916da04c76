"""Whether lowered orders run to their end when receives block; if not, the cycle of waits.

Only transfers wait, each for one step of one other rank, so a run is a walk of p pointers over the
transfers: O(transfers). With rendezvous, as with messages too large to be buffered, a send also
waits until its receiver gets there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.scheduling.deadlock import Wait

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.lowered import LoweredSchedule

    Rows = NDArray[np.int64]


class Matches(NamedTuple):
    """Rows of a SEND and of its RECV, entry by entry."""

    send: Rows
    receive: Rows


class _Barrier(NamedTuple):
    """The step in `row` runs when rank `other` has reached row `until`."""

    row: int
    other: int
    until: int


def find_lowered_cycle(
    lowered: LoweredSchedule, matches: Matches, *, rendezvous: bool
) -> tuple[Wait, ...]:
    """The waits that form a cycle; empty where every rank gets to its end."""
    barriers = _barriers_by_rank(lowered, matches, rendezvous=rendezvous)
    stuck = _run(barriers)
    if not stuck:
        return ()
    partner = dict(zip(matches.receive.tolist(), matches.send.tolist(), strict=True))
    partner |= dict(zip(matches.send.tolist(), matches.receive.tolist(), strict=True))
    waits: dict[int, Wait] = {}
    rank = min(stuck)
    while rank not in waits:
        barrier = stuck[rank]
        needed = lowered.step(partner[barrier.row])
        waits[rank] = Wait(rank, lowered.step(barrier.row), needed, barrier.other)
        rank = barrier.other
    return tuple(waits.values())[list(waits).index(rank) :]


def _barriers_by_rank(
    lowered: LoweredSchedule, matches: Matches, *, rendezvous: bool
) -> list[list[_Barrier]]:
    """A receive needs its sender past the send; with rendezvous, both need the other there."""
    row = matches.receive
    until = matches.send if rendezvous else matches.send + 1
    other = matches.send
    if rendezvous:
        row = np.concatenate([row, matches.send])
        until = np.concatenate([until, matches.receive])
        other = until
    rank_of_row = lowered.rank_of_row
    order = np.argsort(row, kind="stable")
    columns = (row[order], rank_of_row[other[order]], until[order])
    every = list(map(_Barrier, *(column.tolist() for column in columns)))
    ends = np.searchsorted(row[order], lowered.rank_offsets).tolist()
    return [every[ends[rank] : ends[rank + 1]] for rank in range(lowered.num_ranks)]


def _run(barriers: list[list[_Barrier]]) -> dict[int, _Barrier]:
    """Let every rank go as far as it can; returns what the ranks that stopped short wait for."""
    end = 1 + max((barrier.until for rank in barriers for barrier in rank), default=0)
    reached = [rank[0].row if rank else end for rank in barriers]
    passed = [0] * len(barriers)
    sleepers: list[list[int]] = [[] for _ in barriers]
    stuck: dict[int, _Barrier] = {}
    ready = list(range(len(barriers)))
    while ready:
        rank = ready.pop()
        own, start = barriers[rank], passed[rank]
        at = start
        while at < len(own) and reached[own[at].other] >= own[at].until:
            at += 1
            reached[rank] = own[at].row if at < len(own) else end
        passed[rank] = at
        if at < len(own):
            stuck[rank] = own[at]
            sleepers[own[at].other].append(rank)
        else:
            stuck.pop(rank, None)
        if at > start:
            ready += sleepers[rank]
            sleepers[rank] = []
    return stuck
