"""Whether the times of a schedule can be kept, without simulating anything again.

A timeline is a certificate: given when everything starts and ends, each law can be looked up.

1. Every action takes the time its costs say; a pair starts together where the costs overlap it.
2. A rank does one thing at a time, in the order of its row.
3. A forward starts after the output of the stage before it arrived, a backward after the gradient
   of the stage behind it and after its own forward, a weight gradient after its input gradient.
4. What another rank made arrives no sooner than its end and the transfer.
5. Memory, added up over time from what starts and ends, is the peak that is claimed.

O(actions · log actions); shares no code with the native simulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.errors import Fault
from trainwright.plan.schedule import ActionKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.timeline import Timeline

    Floats = NDArray[np.float64]

_F, _I, _W, _B, _R = ActionKind
_TOLERANCE: Final = 1e-9
_MOST_FAULTS: Final = 5  # of one law; the rest follow from them


def timeline_faults(timeline: Timeline) -> tuple[Fault, ...]:
    """What of the times or the memory does not hold, law by law; empty where all does."""
    laws = (_durations, _one_at_a_time, _inputs, _own_needs, _arrivals, _memory)
    return tuple(fault for law in laws for fault in _first(law(timeline)))


def _first(faults: Iterator[Fault]) -> Iterator[Fault]:
    for _, fault in zip(range(_MOST_FAULTS), faults, strict=False):
        yield fault


def _slack_s(timeline: Timeline) -> float:
    """What rounding may take away."""
    return _TOLERANCE * max(float(timeline.end_s.max()), 1e-300)


def _durations(timeline: Timeline) -> Iterator[Fault]:
    """Law 1."""
    schedule, costs = timeline.schedule, timeline.costs
    kind, stage = schedule.actions[:, 0], schedule.actions[:, 1]
    wanted_s = costs.duration_s[kind, stage].copy()
    pair_s = costs.pair_s[stage[schedule.pairs]]
    together = schedule.pairs[np.isfinite(pair_s)]
    for half in (together, together + 1):
        wanted_s[half] = costs.pair_s[stage[together]]
    taken_s = timeline.end_s - timeline.start_s
    for row in np.flatnonzero(abs(taken_s - wanted_s) > _slack_s(timeline)).tolist():
        problem = (
            f"{schedule.action(row)} takes {taken_s[row]:.9g} s, costs say {wanted_s[row]:.9g} s"
        )
        yield Fault(_place(timeline, row), problem)


def _one_at_a_time(timeline: Timeline) -> Iterator[Fault]:
    """Law 2."""
    schedule, ends_s = timeline.schedule, timeline.end_s
    follows = np.diff(schedule.rank_of_row) == 0
    together = schedule.pairs[
        np.isfinite(timeline.costs.pair_s[schedule.actions[schedule.pairs, 1]])
    ]
    follows[together] = False
    early = follows & (timeline.start_s[1:] < ends_s[:-1] - _slack_s(timeline))
    for row in (np.flatnonzero(early) + 1).tolist():
        before, action = schedule.action(row - 1), schedule.action(row)
        problem = f"{action} starts at {timeline.start_s[row]:.9g} s, before {before} ends"
        yield Fault(_place(timeline, row), f"{problem} at {ends_s[row - 1]:.9g} s")


def _inputs(timeline: Timeline) -> Iterator[Fault]:
    """Law 3, what comes from neighbouring stages."""
    schedule = timeline.schedule
    last = schedule.placement.num_stages - 1
    kind, stage, microbatch = schedule.actions.T
    forward = np.flatnonzero((kind == _F) & (stage > 0))
    backward = np.flatnonzero(((kind == _I) | (kind == _B)) & (stage < last))
    for rows, arrival_s, step in (
        (forward, timeline.forward_arrival_s, -1),
        (backward, timeline.backward_arrival_s, 1),
    ):
        there_s = arrival_s[stage[rows] + step, microbatch[rows]]
        early = timeline.start_s[rows] < there_s - _slack_s(timeline)
        for row, when_s in zip(rows[early].tolist(), there_s[early].tolist(), strict=True):
            problem = f"{schedule.action(row)} starts at {timeline.start_s[row]:.9g} s"
            yield Fault(_place(timeline, row), f"{problem}, its input arrives at {when_s:.9g} s")


def _own_needs(timeline: Timeline) -> Iterator[Fault]:
    """Law 3, what the same stage has to have done."""
    schedule = timeline.schedule
    shape = (len(ActionKind), schedule.placement.num_stages, schedule.num_microbatches)
    row_of = np.full(shape, -1, np.int64)
    row_of[tuple(schedule.actions.T)] = np.arange(schedule.num_actions)
    for before, after in ((_F, _R), (_F, _I), (_F, _B), (_R, _I), (_R, _B), (_I, _W)):
        both = (row_of[before] >= 0) & (row_of[after] >= 0)
        first, second = row_of[before][both], row_of[after][both]
        early = timeline.start_s[second] < timeline.end_s[first] - _slack_s(timeline)
        for one, other in zip(first[early].tolist(), second[early].tolist(), strict=True):
            problem = f"{schedule.action(other)} starts before {schedule.action(one)} ends"
            yield Fault(_place(timeline, other), problem)


def _arrivals(timeline: Timeline) -> Iterator[Fault]:
    """Law 4; neighbours on one rank pass on at once."""
    schedule, costs = timeline.schedule, timeline.costs
    ranks = np.array(schedule.placement.rank_of_stage)
    kind, stage, microbatch = schedule.actions.T
    last = len(ranks) - 1
    forward = np.flatnonzero((kind == _F) & (stage < last))
    backward = np.flatnonzero(((kind == _I) | (kind == _B)) & (stage > 0))
    for rows, arrival_s, transfer_s, step in (
        (forward, timeline.forward_arrival_s, costs.forward_transfer_s, 1),
        (backward, timeline.backward_arrival_s, costs.backward_transfer_s, -1),
    ):
        own = stage[rows]
        edge = own if step == 1 else own - 1
        crossing_s = np.where(ranks[own] == ranks[own + step], 0.0, transfer_s[edge])
        there_s = arrival_s[own, microbatch[rows]]
        early = there_s < timeline.end_s[rows] + crossing_s - _slack_s(timeline)
        for row in rows[early].tolist():
            problem = f"what {schedule.action(row)} makes arrives sooner than it can be sent"
            yield Fault(_place(timeline, row), problem)


def _memory(timeline: Timeline) -> Iterator[Fault]:
    """Law 5: what starts allocates, what ends frees, and of one instant the release comes first."""
    memory, schedule = timeline.costs.memory, timeline.schedule
    for rank in range(schedule.num_ranks):
        peak = _peak_over_time(timeline, rank)
        claimed = float(timeline.peak_bytes[rank])
        if abs(peak - claimed) > _TOLERANCE * max(abs(peak), 1.0):
            yield Fault(f"peak_bytes[{rank}]", f"is {claimed!r}, over time it is {peak!r}")
        limit = float(memory.limit_bytes[rank])
        if peak > limit * (1 + _TOLERANCE):
            yield Fault(f"peak_bytes[{rank}]", f"{peak!r} is above the limit of {limit!r}")


def _peak_over_time(timeline: Timeline, rank: int) -> float:
    memory, rows = timeline.costs.memory, timeline.schedule.rows_of(rank)
    kind, stage = timeline.schedule.actions[rows, 0], timeline.schedule.actions[rows, 1]
    delta, transient = memory.delta_bytes[kind, stage], memory.transient_bytes[kind, stage]
    start, end = timeline.start_s[rows], timeline.end_s[rows]
    position = 2 * np.arange(len(start))
    times = np.concatenate([start, end])
    change = np.concatenate(
        [np.maximum(delta, 0.0) + transient, np.minimum(delta, 0.0) - transient]
    )
    # Of one instant: what an earlier action frees, then what a later one takes.
    order = np.lexsort((np.concatenate([position, position + 1]), times))
    held = np.cumsum(change[order])
    return float(memory.static_bytes[rank] + held.max(initial=0.0))


def _place(timeline: Timeline, row: int) -> str:
    schedule = timeline.schedule
    rank = int(np.searchsorted(schedule.rank_offsets, row, side="right")) - 1
    return f"orders[{rank}][{row - schedule.rank_offsets[rank]}]"
