"""A schedule with times: when every action and transfer starts and ends, and what it fills.

`span` is the busiest rank's window from its first action to its last, `makespan` that of all ranks
together. Published bubble rates are of span, which hides the stair at the start; both are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.plans.schedule import ON_HOST_LINK, Action, Schedule, freeze_arrays
from trainwright.plans.schedule_costs import ScheduleCosts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfers:
    """Tensors between ranks, one entry each: from the neighbour `source_stage`, forward or not."""

    is_forward: NDArray[np.bool_]
    source_stage: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    start_s: Floats
    end_s: Floats


class MemoryCurve(NamedTuple):
    """Bytes of one rank as a step function: `bytes[i]` from `time_s[i]` on."""

    time_s: Floats
    bytes: Floats


class WaitsFor(StrEnum):
    """What made an action on the critical path start no earlier."""

    NOTHING = "nothing"
    RANK = "rank"  # the action before it on its rank
    INPUT = "input"  # its producer, on the same rank
    TRANSFER = "transfer"  # its producer, on another rank
    LINK = "link"  # an earlier transfer between the same two ranks


class CriticalStep(NamedTuple):
    """One action of the critical path, in which row, and what it waited for."""

    row: int
    action: Action
    waits_for: WaitsFor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """Times of a schedule under costs.

    `start_s` and `end_s` [n] follow the rows of `schedule.actions`. `forward_arrival_s` [S, m] is
    when the output of F(s,j) is where stage s+1 needs it, `backward_arrival_s` [S, m] likewise for
    I or B and stage s-1. `peak_bytes` [p] includes static memory.
    """

    schedule: Schedule
    costs: ScheduleCosts
    start_s: Floats
    end_s: Floats
    forward_arrival_s: Floats
    backward_arrival_s: Floats
    peak_bytes: Floats

    def __post_init__(self) -> None:
        freeze_arrays(self)

    @property
    def makespan_s(self) -> float:
        """Last end minus first start over all ranks."""
        return float(self.end_s.max() - self.start_s.min())

    @property
    def span_by_rank_s(self) -> Floats:
        """Last end minus first start on each rank, shape [p]; 0 on a rank without actions."""
        offsets = self.schedule.rank_offsets
        spans = np.zeros(self.schedule.num_ranks)
        busy = np.flatnonzero(np.diff(offsets))
        spans[busy] = self.end_s[offsets[busy + 1] - 1] - self.start_s[offsets[busy]]
        return spans

    @property
    def span_s(self) -> float:
        """Largest span over ranks."""
        return float(self.span_by_rank_s.max())

    @property
    def work_by_rank_s(self) -> Floats:
        """Seconds each rank computes, shape [p]; an overlapped pair counts once, a copy never."""
        schedule = self.schedule
        busy = self.end_s - self.start_s
        busy[self.costs.overlapped_pairs(schedule)[0]] = 0.0
        busy[np.isin(schedule.actions[:, 0], ON_HOST_LINK)] = 0.0
        work = np.zeros(schedule.num_ranks)
        np.add.at(work, schedule.rank_of_row, busy)
        return work

    @property
    def bubble_of_span(self) -> float:
        """1 - work / span, where work is that of the busiest rank."""
        return _idle_share(self.work_by_rank_s, self.span_s)

    @property
    def bubble_of_makespan(self) -> float:
        """1 - work / makespan, where work is that of the busiest rank."""
        return _idle_share(self.work_by_rank_s, self.makespan_s)

    @property
    def fits(self) -> bool:
        """Whether every rank stays within its memory limit."""
        return bool((self.peak_bytes <= self.costs.memory.limit_bytes).all())

    def memory_curve(self, rank: int) -> MemoryCurve:
        """Bytes of `rank` over time, static memory included."""
        rows = self.schedule.rows_of(rank)
        kinds, stages = self.schedule.actions[rows, 0], self.schedule.actions[rows, 1]
        delta = self.costs.memory.delta_bytes[kinds, stages]
        transient = self.costs.memory.transient_bytes[kinds, stages]
        steps = np.empty(2 * len(delta) + 1)
        steps[0] = self.costs.memory.static_bytes[rank]
        steps[1::2] = np.maximum(delta, 0.0) + transient
        steps[2::2] = np.minimum(delta, 0.0) - transient
        times = np.zeros_like(steps)
        times[1::2], times[2::2] = self.start_s[rows], self.end_s[rows]
        # A copy takes its memory when it is issued, before its link is free, and frees none.
        copies = np.isin(kinds, ON_HOST_LINK)
        issued_s = np.maximum.accumulate(np.where(copies, 0.0, self.end_s[rows]))
        for edge in (times[1::2], times[2::2]):
            edge[copies] = issued_s[copies]
        return MemoryCurve(times, np.cumsum(steps))

    def transfers(self) -> Transfers:
        """All transfers between ranks, forward ones first, by source stage and microbatch."""
        ranks = np.array(self.schedule.placement.rank_of_stage)
        edges = np.flatnonzero((ranks[:-1] != ranks[1:]) & self.schedule.placement.has_edge)
        forward = _transfers_of(edges, self.forward_arrival_s[edges])
        backward = _transfers_of(edges + 1, self.backward_arrival_s[edges + 1])
        durations = np.concatenate(
            [
                np.repeat(self.costs.forward_transfer_s[edges], self.schedule.num_microbatches),
                np.repeat(self.costs.backward_transfer_s[edges], self.schedule.num_microbatches),
            ]
        )
        stages, microbatches, ends = (
            np.concatenate(both) for both in zip(forward, backward, strict=True)
        )
        return Transfers(
            is_forward=np.arange(len(ends)) < len(ends) // 2,
            source_stage=stages,
            microbatch=microbatches,
            start_s=ends - durations,
            end_s=ends,
        )


def _idle_share(work_by_rank_s: Floats, window_s: float) -> float:
    return 1.0 - float(work_by_rank_s.max()) / window_s if window_s > 0 else 0.0


def _transfers_of(
    stages: NDArray[np.int64], arrival_s: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    num_microbatches = arrival_s.shape[1]
    microbatches = np.tile(np.arange(num_microbatches), len(stages))
    return np.repeat(stages, num_microbatches), microbatches, arrival_s.ravel()
