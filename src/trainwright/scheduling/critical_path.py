"""Which actions make a schedule as long as it is, and what each of them waited for.

Traced back from the last action: every action started when its rank became free or when its input
arrived, whichever was later. Where both are at once, the input is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.plan.schedule import ActionKind
from trainwright.plan.schedule_costs import TransferModel
from trainwright.plan.timeline import CriticalStep, Timeline, WaitsFor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.schedule import Schedule

_F, _I, _W, _B, _R = ActionKind


class _Cause(NamedTuple):
    row: int | None
    waits_for: WaitsFor


def critical_path(timeline: Timeline) -> tuple[CriticalStep, ...]:
    """The chain that ends with the last action (lowest row where several do), in time order."""
    tracer = _Tracer(timeline)
    row: int | None = int(np.argmax(timeline.end_s))
    steps = []
    while row is not None:
        cause = tracer.cause_of(row)
        steps.append(CriticalStep(row, timeline.schedule.action(row), cause.waits_for))
        row = cause.row
    return tuple(reversed(steps))


class _Tracer:
    """Finds what an action waited for; knows the row of every producer."""

    def __init__(self, timeline: Timeline) -> None:
        schedule = timeline.schedule
        self.timeline = timeline
        self.schedule = schedule
        self.owner: tuple[int, ...] = schedule.placement.rank_of_stage
        self.forward_row = _row_by_microbatch(schedule, (_F,))
        self.backward_row = _row_by_microbatch(schedule, (_I, _B))
        stages = schedule.actions[schedule.pairs, 1]
        overlapped = schedule.pairs[np.isfinite(timeline.costs.pair_s[stages])]
        self.pair_starts = frozenset(overlapped.tolist())

    def cause_of(self, row: int) -> _Cause:
        together = self._rows_started_together(row)
        start_s = float(self.timeline.start_s[row])
        for member in together:
            producer = self._producer_of(member)
            if producer is not None and self._arrival_s(producer) >= start_s:
                return self._arrival_cause(producer, member)
        rank = self._rank_of(row)
        if together[0] > self.schedule.rank_offsets[rank]:
            return _Cause(together[0] - 1, WaitsFor.RANK)
        return _Cause(None, WaitsFor.NOTHING)

    def _rows_started_together(self, row: int) -> tuple[int, ...]:
        if row in self.pair_starts:
            return (row, row + 1)
        if row - 1 in self.pair_starts:
            return (row - 1, row)
        return (row,)

    def _rank_of(self, row: int) -> int:
        return self.owner[int(self.schedule.actions[row, 1])]

    def _producer_of(self, row: int) -> int | None:
        """The row whose output of another stage this row needs."""
        kind, stage, microbatch = self.schedule.actions[row].tolist()
        if kind == _F and stage > 0:
            return int(self.forward_row[stage - 1, microbatch])
        if kind in (_I, _B) and stage + 1 < len(self.owner):
            return int(self.backward_row[stage + 1, microbatch])
        return None

    def _arrival_s(self, producer: int) -> float:
        kind, stage, microbatch = self.schedule.actions[producer].tolist()
        timeline = self.timeline
        arrival = timeline.forward_arrival_s if kind == _F else timeline.backward_arrival_s
        return float(arrival[stage, microbatch])

    def _arrival_cause(self, producer: int, consumer: int) -> _Cause:
        if self._rank_of(producer) == self._rank_of(consumer):
            return _Cause(producer, WaitsFor.INPUT)
        if self.timeline.costs.transfer_model is TransferModel.LINK:
            first = self._first_of_queue(producer, consumer)
            if first != producer:
                return _Cause(first, WaitsFor.LINK)
        return _Cause(producer, WaitsFor.TRANSFER)

    def _first_of_queue(self, producer: int, consumer: int) -> int:
        """The producer of the transfer that found the link free, before which none waited."""
        sender, receiver = self._rank_of(producer), self._rank_of(consumer)
        while self._transfer_start_s(producer) > self.timeline.end_s[producer]:
            producer -= 1
            while self._receiver_of(producer) != receiver:
                producer -= 1
            assert self._rank_of(producer) == sender, "a queue has a first transfer"
        return producer

    def _transfer_start_s(self, producer: int) -> float:
        kind, stage, _ = self.schedule.actions[producer].tolist()
        costs = self.timeline.costs
        forward, backward = costs.forward_transfer_s, costs.backward_transfer_s
        return self._arrival_s(producer) - float(
            forward[stage] if kind == _F else backward[stage - 1]
        )

    def _receiver_of(self, row: int) -> int | None:
        action = self.schedule.action(row)
        if action.kind is _F and action.stage + 1 < len(self.owner):
            return self.owner[action.stage + 1]
        if action.kind in (_I, _B) and action.stage > 0:
            return self.owner[action.stage - 1]
        return None


def _row_by_microbatch(schedule: Schedule, kinds: tuple[ActionKind, ...]) -> NDArray[np.int64]:
    """Row of the action of one of `kinds`, by stage and microbatch, shape [S, m]."""
    table = np.full((schedule.placement.num_stages, schedule.num_microbatches), -1, np.int64)
    rows = np.flatnonzero(np.isin(schedule.actions[:, 0], kinds))
    table[schedule.actions[rows, 1], schedule.actions[rows, 2]] = rows
    return table
