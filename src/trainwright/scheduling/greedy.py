"""Orders by list scheduling: a rank that is free takes the first of its streams that is ready.

A stream is one kind of action of one stage, in the order of microbatches. Streams of a rank have
priorities; a forward is ready only while its rank holds fewer activations than it may, room for
one of each of its later chunks left free, so that what has begun can end. Backwards are whole.
O(n·s) for n actions and s streams per rank. Families use it where a paper gives a rule, no table.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plans.schedule import Action, ActionKind, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.plans.schedule import Placement
    from trainwright.plans.schedule_costs import ScheduleCosts

    Stream = tuple[ActionKind, int]

_F, _B, _V, _T = ActionKind.F, ActionKind.B, ActionKind.V, ActionKind.T


def list_schedule(
    streams: Sequence[Sequence[Stream]],
    *,
    placement: Placement,
    num_microbatches: int,
    costs: ScheduleCosts,
    held: Sequence[int],
    head_barriers: int = 0,
) -> Schedule:
    """Run every stream of every rank `num_microbatches` times.

    `streams` has for each rank its kinds and stages, the most urgent first; `held` is how many
    activations each rank may hold, at least one per chunk.
    """
    run = _Run(placement, num_microbatches, costs, held, head_barriers)
    orders: list[list[Action]] = [[] for _ in streams]
    free = [(0.0, rank) for rank in range(len(streams))]
    heapify(free)
    idle: set[int] = set()
    while free:
        now_s = free[0][0]
        while free and free[0][0] <= now_s:
            idle.add(heappop(free)[1])
        started = False
        for rank in sorted(idle):
            stream = run.first_ready(rank, streams[rank], now_s)
            if stream is None:
                continue
            orders[rank].append(Action(*stream, run.next_of.get(stream, 0)))
            heappush(free, (run.start(rank, stream, now_s), rank))
            idle.discard(rank)
            started = True
        later = run.next_arrival_s(now_s)
        if not started and not free and idle and later is not None:
            free = [(later, rank) for rank in sorted(idle)]
            idle.clear()
        elif idle and free:  # look again when something ends or arrives
            again_s = min(free[0][0], later) if later is not None else free[0][0]
            for rank in sorted(idle):
                heappush(free, (again_s, rank))
            idle.clear()
    return Schedule.of_ranks(
        [np.array(order, np.int32).reshape(-1, 3) for order in orders],
        placement=placement,
        num_microbatches=num_microbatches,
        head_barriers=head_barriers,
    )


class _Run:
    """When everything that was started is done, and what may start."""

    def __init__(
        self,
        placement: Placement,
        num_microbatches: int,
        costs: ScheduleCosts,
        held: Sequence[int],
        head_barriers: int,
    ) -> None:
        self.count, self.costs = num_microbatches, costs
        self.owner = placement.rank_of_stage
        self.last = len(self.owner) - 1
        self.shards = [stages[0] for stages in placement.stages_of_rank] if head_barriers else []
        self.gate = {0: None, 1: _V, 2: _T}[head_barriers]
        self.holds = [0] * placement.num_ranks
        self.may_hold = {
            stage: held[rank] - later
            for rank, stages in enumerate(placement.stages_of_rank)
            for later, stage in enumerate(reversed(stages))
        }
        self.next_of: dict[Stream, int] = {}
        self.there_s: dict[Action, float] = {}
        self.arrivals: list[float] = []

    def first_ready(self, rank: int, streams: Sequence[Stream], now_s: float) -> Stream | None:
        for kind, stage in streams:
            j = self.next_of.get((kind, stage), 0)
            if j == self.count or (kind is _F and self.holds[rank] >= self.may_hold[stage]):
                continue
            needed = self._needs(kind, stage, j)
            if all(self.there_s.get(action, np.inf) <= now_s for action in needed):
                return kind, stage
        return None

    def _needs(self, kind: ActionKind, stage: int, j: int) -> list[Action]:
        if kind is _F:
            return [Action(_F, stage - 1, j)] if stage else []
        if kind is _V:
            return [Action(_F, self.last, j)]
        if kind is _T:
            return [Action(_V, shard, j) for shard in self.shards]
        if stage < self.last:
            return [Action(_F, stage, j), Action(_B, stage + 1, j)]
        gates = [Action(self.gate, shard, j) for shard in self.shards if self.gate is not None]
        return [Action(_F, stage, j), *gates]

    def start(self, rank: int, stream: Stream, now_s: float) -> float:
        kind, stage = stream
        j = self.next_of.get(stream, 0)
        self.next_of[stream] = j + 1
        self.holds[rank] += {_F: 1, _B: -1}.get(kind, 0)
        end_s = now_s + float(self.costs.duration_s[kind, stage])
        there_s = end_s + self._transfer_s(kind, stage)
        self.there_s[Action(kind, stage, j)] = there_s
        heappush(self.arrivals, there_s)
        return end_s

    def _transfer_s(self, kind: ActionKind, stage: int) -> float:
        if kind is _F and stage < self.last and self.owner[stage] != self.owner[stage + 1]:
            return float(self.costs.forward_transfer_s[stage])
        if kind is _B and stage and self.owner[stage] != self.owner[stage - 1]:
            return float(self.costs.backward_transfer_s[stage - 1])
        to_head = self.shards and (kind in (_V, _T) or (kind is _F and stage == self.last))
        return self.costs.barrier_s if to_head else 0.0

    def next_arrival_s(self, now_s: float) -> float | None:
        while self.arrivals and self.arrivals[0] <= now_s:
            heappop(self.arrivals)
        return self.arrivals[0] if self.arrivals else None
