"""A lowered schedule: orders in which every transfer is an action of its own.

What a runtime executes. Compute actions keep their letters; SEND and RECV name the stage that does
it and the microbatch; the three that manage parameters name a stage only. Where a head is cut over
all ranks, SHARE gives others what the head needs and GET waits for all that others give: of F, the
output of the last stage; of V, every rank's part of the softmax; of T, the parts of the gradient.
They have communicators of their own and are named after the first stage of their rank, as V and T.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature
from trainwright.plans.schedule import (
    ON_HOST_LINK,
    Action,
    ActionKind,
    RankOrders,
    Schedule,
    ScheduleCosts,
)
from trainwright.profile.profile import freeze_arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats

NO_MICROBATCH = -1


class LoweredKind(IntEnum):
    """What a rank does; those before SEND_F are `ActionKind`'s."""

    F = ActionKind.F
    I = ActionKind.I  # noqa: E741
    W = ActionKind.W
    B = ActionKind.B
    R = ActionKind.R
    O = ActionKind.O  # noqa: E741
    D = ActionKind.D
    L = ActionKind.L
    V = ActionKind.V
    T = ActionKind.T
    SEND_F = 10
    RECV_F = 11
    SEND_B = 12
    RECV_B = 13
    UNSHARD = 14
    RESHARD = 15
    REDUCE_GRAD = 16
    SHARE_F = 17
    GET_F = 18
    SHARE_V = 19
    GET_V = 20
    SHARE_T = 21
    GET_T = 22


PARAMETER_KINDS = frozenset({LoweredKind.UNSHARD, LoweredKind.RESHARD, LoweredKind.REDUCE_GRAD})
# What is given to other ranks around a cut head, and with what it is taken there.
HEAD_EXCHANGES = {
    LoweredKind.SHARE_F: LoweredKind.GET_F,
    LoweredKind.SHARE_V: LoweredKind.GET_V,
    LoweredKind.SHARE_T: LoweredKind.GET_T,
}
_MOVING, _BARE = (
    "|".join(kind.name for kind in LoweredKind if (kind in PARAMETER_KINDS) == bare)
    for bare in (False, True)
)
# How a step is written; its groups are stage, kind and microbatch, or stage and kind.
STEP = re.compile(rf"([0-9]{{1,9}})(?:({_MOVING})([0-9]{{1,9}})|({_BARE}))")


class LoweredAction(NamedTuple):
    """One step of a rank; `microbatch` is -1 where the kind has none."""

    kind: LoweredKind
    stage: int
    microbatch: int = NO_MICROBATCH

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.name}{self.microbatch if self.microbatch >= 0 else ''}"

    @classmethod
    def parse(cls, text: str) -> LoweredAction:
        """Read `3SEND_F0` or `3UNSHARD`; the whole text must match."""
        match = STEP.fullmatch(text)
        if match is None:
            problem = f'must look like "3F0", "3SEND_F0" or "3UNSHARD", got "{text}"'
            raise InvalidInput.of("action", problem)
        stage, kind, microbatch, of_parameters = match.groups()
        return cls(LoweredKind[kind or of_parameters], int(stage), int(microbatch or NO_MICROBATCH))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoweredSchedule(RankOrders):
    """Per-rank orders of n steps: [n, 3] `LoweredKind`, stage, microbatch."""

    def _faults(self) -> Iterator[Fault]:
        kinds, stages, microbatches = self.actions.T
        bare = np.isin(kinds, list(PARAMETER_KINDS))
        checks = (
            ("kind", kinds, len(LoweredKind)),
            ("stage", stages, self.placement.num_stages),
            ("microbatch", microbatches[~bare], self.num_microbatches),
        )
        for name, values, size in checks:
            for worst in values[(values < 0) | (values >= size)][:1]:
                yield Fault("actions", f"{name} must be from 0 to {size - 1}, got {worst}")
        if (microbatches[bare] != NO_MICROBATCH).any():
            yield Fault("actions", "UNSHARD, RESHARD and REDUCE_GRAD have no microbatch")

    def step(self, row: int) -> LoweredAction:
        """The step in one row."""
        kind, stage, microbatch = self.actions[row].tolist()
        return LoweredAction(LoweredKind(kind), stage, microbatch)

    def order(self, rank: int) -> tuple[LoweredAction, ...]:
        """The steps of one rank, in the order it runs them."""
        rows = self.actions[self.rows_of(rank)].tolist()
        return tuple(LoweredAction(LoweredKind(kind), stage, mb) for kind, stage, mb in rows)

    def peers(self, kind: LoweredKind, rank: int) -> tuple[int, ...]:
        """The ranks that a SHARE of `rank` gives to, or that a GET of it takes from; () if none."""
        last = self.placement.rank_of_stage[-1]
        of_gradient = kind in (LoweredKind.SHARE_T, LoweredKind.GET_T)
        if not self.head_barriers or (of_gradient and self.head_barriers == 1):
            return ()
        if kind in (LoweredKind.SHARE_F, LoweredKind.GET_T) and rank != last:
            return ()
        if kind in (LoweredKind.GET_F, LoweredKind.SHARE_T):
            return (last,) if rank != last else ()
        return tuple(other for other in range(self.num_ranks) if other != rank)

    def without(self, rows: int | NDArray[np.int64]) -> LoweredSchedule:
        """The same orders less some rows."""
        kept = np.ones(len(self.actions), bool)
        kept[rows] = False
        before = np.concatenate([[0], np.cumsum(kept)])
        return replace(
            self,
            actions=self.actions[kept],
            rank_offsets=before[self.rank_offsets],
            pairs=before[self.pairs],
        )

    def compute_only(self) -> Schedule:
        """The orders without transfers and without steps that manage parameters."""
        bare = self.without(np.flatnonzero(self.actions[:, 0] >= LoweredKind.SEND_F))
        return Schedule(
            placement=self.placement,
            num_microbatches=self.num_microbatches,
            actions=bare.actions,
            rank_offsets=bare.rank_offsets,
            pairs=bare.pairs,
            num_slices=self.num_slices,
            head_barriers=self.head_barriers,
        )


# What PyTorch's pipeline runtime cannot run, or runs with wrong gradients (torch 2.13)
# -------------------------------------------------------------------------------------
# It keeps the losses in the order in which the last stage ran its forwards and looks them up by
# microbatch: in any other order than 0, 1, … the gradients are silently those of other
# microbatches.


def refuse_inexpressible(schedule: Schedule) -> None:
    """Raise UnsupportedFeature, naming what can be done instead, for what has no equivalent."""
    for refusal in _inexpressible(schedule):
        raise refusal


def refuse_misordered(schedule: Schedule) -> None:
    """Raise UnsupportedFeature where the last stage meets its microbatches in another order."""
    order = schedule.forward_order(schedule.placement.num_stages - 1)
    if (order != np.arange(len(order))).any():
        shown = ", ".join(map(str, order[:4].tolist()))
        raise UnsupportedFeature(
            "PyTorch gives wrong gradients unless the last stage runs forwards in order 0, 1, …; "
            f"got {shown}",
            alternative="number the microbatches in that order",
        )


def _inexpressible(schedule: Schedule) -> Iterator[UnsupportedFeature]:
    if (schedule.actions[:, 0] == ActionKind.R).any():
        yield UnsupportedFeature(
            "PyTorch schedules have no recompute action",
            alternative="checkpoint inside the module and order without R",
        )
    if schedule.placement.num_pipelines > 1:
        yield UnsupportedFeature(
            "PyTorch schedules have one copy of the model",
            alternative="take a family with one pipeline, such as dualpipe-v",
        )
    if schedule.num_slices > 1:
        yield UnsupportedFeature(
            "PyTorch schedules run whole microbatches, not slices of their tokens",
            alternative="take smaller microbatches",
        )
    if not schedule.is_plain:
        yield UnsupportedFeature(
            "PyTorch schedules have no actions of a host link or of a head cut over ranks",
            alternative="take a family without O, D, L, V and T",
        )
    idle = np.flatnonzero(np.diff(schedule.rank_offsets) == 0)
    if len(idle):
        yield UnsupportedFeature(
            f"PyTorch needs an action on every rank, and rank {idle[0]} has none",
            alternative="place a stage there, or use fewer ranks",
        )


# A schedule with times: when every action and transfer starts and ends, and what it fills
# ----------------------------------------------------------------------------------------
# `span` is the busiest rank's window from its first action to its last, `makespan` that of all
# ranks together. Published bubble rates are of span, which hides the stair at the start; both are
# here.


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

    def by_instant(self, times: Floats) -> MemoryCurve:
        """The curve at rising `times` for its own, the last value of each instant."""
        last = np.append(times[1:] > times[:-1], True)
        return MemoryCurve(times[last], self.bytes[last])


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
        return bool((self.peak_bytes <= self.costs.memory.most_bytes).all())

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
