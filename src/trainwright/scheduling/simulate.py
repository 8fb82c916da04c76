"""Schedule and costs to timeline, through the native simulator (`native/schedule/simulate.hpp`)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright._native import _core
from trainwright.errors import Fault, InvalidInput
from trainwright.plans.lowered import CriticalStep, Timeline, WaitsFor
from trainwright.plans.schedule import ON_HOST_LINK, Action, ActionKind, TransferModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright._native._core import Simulation
    from trainwright.arrays import Floats
    from trainwright.plans.lowered import LoweredAction
    from trainwright.plans.schedule import Schedule, ScheduleCosts, ScheduleMemory


# Why orders cannot run: the cycle of waits
# -----------------------------------------
# Every rank that does not finish waits for one action, which its rank runs only after the action it
# waits with itself. Following these waits from rank to rank ends in a cycle, or at an action that
# no rank runs.

_F, _I, _W, _B, _R, _O, _D, _L, _V, _T = ActionKind


class Wait(NamedTuple):
    """`action`, next on `rank`, waits for `needed` of `needed_rank`, if that ever runs it."""

    rank: int
    action: Action | LoweredAction
    needed: Action | LoweredAction
    needed_rank: int
    exists: bool = True


def find_cycle(schedule: Schedule, simulation: Simulation) -> tuple[Wait, ...]:
    """The waits that form a cycle, or a single wait for an action that nobody runs."""
    waits: dict[int, Wait] = {}
    blocked = simulation.blocked_rows.tolist()
    rank = next(rank for rank, row in enumerate(blocked) if row >= 0)
    while rank not in waits:
        wait = _wait_of(schedule, simulation, rank, blocked[rank])
        if not wait.exists:
            return (wait,)
        waits[rank] = wait
        rank = wait.needed_rank
    chain = list(waits.values())
    return tuple(chain[list(waits).index(rank) :])


def describe_cycle(cycle: tuple[Wait, ...]) -> str:
    """One sentence that a user can act on."""
    if not cycle[0].exists:
        wait = cycle[0]
        return f"{wait.action} on rank {wait.rank} waits for {wait.needed}, which no rank runs"
    links = [
        f"{wait.action} on rank {wait.rank} waits for {wait.needed}, "
        f"which rank {wait.needed_rank} runs only after {following.action}"
        for wait, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True)
    ]
    return "deadlock: " + "; ".join(links)


def _wait_of(schedule: Schedule, simulation: Simulation, rank: int, row: int) -> Wait:
    action = schedule.action(row)
    if _has_input(schedule, simulation, action):
        action = schedule.action(row + 1)  # the forward of a pair waits for its backward's input
    needed = _missing_input(schedule, simulation, action)
    if needed.kind in (_V, _T):  # of the ranks that a barrier waits for, the first
        needed = _late_at_barrier(schedule, blocked=simulation.blocked_rows, needed=needed)
    owner = schedule.placement.rank_of_stage[needed.stage]
    start, end = schedule.rank_offsets[owner : owner + 2]
    later = schedule.actions[max(start, simulation.blocked_rows[owner]) : end]
    same = (later[:, 1] == needed.stage) & (later[:, 2] == needed.microbatch)
    fused = same & (later[:, 0] == _B)
    if needed.kind is _I and fused.any():
        needed = needed._replace(kind=_B)
    exists = bool((same & (later[:, 0] == needed.kind)).any())
    exists = exists and simulation.blocked_rows[owner] >= 0
    return Wait(rank, action, needed, owner, exists)


def _late_at_barrier(schedule: Schedule, *, blocked: NDArray[np.int64], needed: Action) -> Action:
    of_kind = schedule.actions[:, 0] == needed.kind
    rows = np.flatnonzero(of_kind & (schedule.actions[:, 2] == needed.microbatch))
    stopped = blocked[schedule.rank_of_row[rows]]
    late = rows[(stopped >= 0) & (rows >= stopped)]
    return schedule.action(int(late[0])) if len(late) else needed


def _is_first(schedule: Schedule, stage: int) -> bool:
    return stage == 0 or not schedule.placement.has_edge[stage - 1]


def _is_last(schedule: Schedule, stage: int) -> bool:
    return stage == schedule.placement.num_stages - 1 or not schedule.placement.has_edge[stage]


def _has_input(schedule: Schedule, simulation: Simulation, action: Action) -> bool:
    if action.kind is not _F or _is_first(schedule, action.stage):
        return action.kind is _F
    producer = (action.stage - 1) * schedule.num_microbatches + action.microbatch
    return bool(simulation.forward_arrival_s[producer] >= 0)


def _missing_input(schedule: Schedule, simulation: Simulation, action: Action) -> Action:
    kind, stage, microbatch = action
    if kind is _F:
        return Action(_F, stage - 1, microbatch)
    if kind is _W:
        return Action(_I, stage, microbatch)
    if kind in (_D, _L):
        return Action(_O, stage, microbatch)
    if kind is _V:
        return Action(_F, schedule.placement.num_stages - 1, microbatch)
    if kind is _T:
        return Action(_V, stage, microbatch)
    ran_forward = simulation.forward_arrival_s[stage * schedule.num_microbatches + microbatch] >= 0
    if not ran_forward:
        return Action(_F, stage, microbatch)
    if kind is _R or (_is_last(schedule, stage) and not schedule.head_barriers):
        return Action(_L, stage, microbatch)
    if _is_last(schedule, stage):
        return Action(_V if schedule.head_barriers == 1 else _T, stage, microbatch)
    return Action(_I, stage + 1, microbatch)


# Schedule and costs to timeline, through the native simulator (`native/schedule/simulate.hpp`)
# ------------------------------------------------------------------------------------


def simulate(schedule: Schedule, costs: ScheduleCosts) -> Timeline:
    """Run every action at its earliest time.

    Raises InvalidInput where the costs describe another number of stages or ranks, and where the
    orders deadlock; the message names the cycle.
    """
    _require_same_shape(schedule, costs)
    orders = native_orders(schedule)
    times = native_costs(costs)
    simulation = _core.simulate(orders, times)
    if not simulation.complete:
        problem = describe_cycle(find_cycle(schedule, simulation))
        raise InvalidInput.of("orders", problem)
    shape = (schedule.placement.num_stages, schedule.num_microbatches)
    return Timeline(
        schedule=schedule,
        costs=costs,
        start_s=simulation.start_s,
        end_s=simulation.end_s,
        forward_arrival_s=simulation.forward_arrival_s.reshape(shape),
        backward_arrival_s=simulation.backward_arrival_s.reshape(shape),
        peak_bytes=_core.peak_bytes(orders, native_memory(costs.memory), times),
    )


def slack(timeline: Timeline) -> Floats:
    """How long each action could be delayed without a later end of all, shape [n], orders kept.

    Of plain orders only.
    """
    orders, costs = native_orders(timeline.schedule), native_costs(timeline.costs)
    last_end_s = np.full(timeline.schedule.num_ranks, timeline.end_s.max())
    return _core.latest_starts(orders, costs, last_end_s) - timeline.start_s


def native_orders(schedule: Schedule) -> _core.Orders:
    """The orders as the core takes them; no copies of the large arrays."""
    return _core.Orders(
        actions=schedule.actions,
        rank_offsets=schedule.rank_offsets,
        rank_of_stage=_ranks(schedule.placement.rank_of_stage),
        pairs=schedule.pairs,
        num_microbatches=schedule.num_microbatches,
        num_pipelines=schedule.placement.num_pipelines,
        head_barriers=schedule.head_barriers,
    )


@lru_cache(maxsize=64)
def _ranks(rank_of_stage: tuple[int, ...]) -> NDArray[np.int32]:
    ranks: NDArray[np.int32] = np.array(rank_of_stage, np.int32)
    ranks.flags.writeable = False
    return ranks


@lru_cache(maxsize=4)  # the same costs time many schedules, one after the other
def native_costs(costs: ScheduleCosts) -> _core.ActionCosts:
    """The times as the core takes them."""
    return _core.ActionCosts(
        duration_s=costs.duration_s,
        forward_transfer_s=costs.forward_transfer_s,
        backward_transfer_s=costs.backward_transfer_s,
        pair_s=costs.pair_s,
        network_s=costs.network_s.ravel(),
        slice_s=costs.slice_s.ravel(),
        barrier_s=costs.barrier_s,
        model=costs.transfer_model.value,
        blocking_fraction=costs.blocking_fraction,
    )


@lru_cache(maxsize=4)
def native_memory(memory: ScheduleMemory) -> _core.ActionMemory:
    """The memory model as the core takes it."""
    return _core.ActionMemory(
        delta_bytes=memory.delta_bytes,
        transient_bytes=memory.transient_bytes,
        static_bytes=memory.static_bytes,
        limit_bytes=memory.limit_bytes,
    )


def _require_same_shape(schedule: Schedule, costs: ScheduleCosts) -> None:
    placement = schedule.placement
    faults = [
        Fault(f"costs.{name}", f"must be {wanted}, as in the schedule, got {got}")
        for name, wanted, got in (
            ("num_stages", placement.num_stages, costs.num_stages),
            ("num_ranks", placement.num_ranks, costs.memory.num_ranks),
            ("num_slices", schedule.num_slices, costs.slice_s.shape[2] or schedule.num_slices),
        )
        if wanted != got
    ]
    if faults:
        raise InvalidInput(faults)


# Which actions make a schedule as long as it is, and what each of them waited for
# --------------------------------------------------------------------------------
# Traced back from the last action: every action started when its rank became free or when its input
# arrived, whichever was later. Where both are at once, the input is named.


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
        overlapped, _ = timeline.costs.overlapped_pairs(schedule)
        self.pair_starts = frozenset(overlapped.tolist())
        self.row_of = {} if schedule.is_plain else _rows_by_action(schedule)

    def cause_of(self, row: int) -> _Cause:
        together = self._rows_started_together(row)
        start_s = float(self.timeline.start_s[row])
        for member in together:
            for needed, ready_s in self._other_needs(member):
                if ready_s >= start_s:
                    same = self._rank_of(needed) == self._rank_of(member)
                    return _Cause(needed, WaitsFor.INPUT if same else WaitsFor.TRANSFER)
            producer = self._producer_of(member)
            if producer is not None and self._arrival_s(producer) >= start_s:
                return self._arrival_cause(producer, member)
        before = self._before_on_rank(together[0])
        if before is None:
            return _Cause(None, WaitsFor.NOTHING)
        return _Cause(before, WaitsFor.RANK)

    def _before_on_rank(self, row: int) -> int | None:
        """The row whose end made room for this one: of its resource, or, of a copy, of both."""
        first = int(self.schedule.rank_offsets[self._rank_of(row)])
        if not self.row_of:
            return row - 1 if row > first else None
        ends_s, kinds = self.timeline.end_s, self.schedule.actions[:, 0]
        link = np.isin(kinds[first:row], ON_HOST_LINK)
        found = [first + int(at[-1]) for at in (np.flatnonzero(~link),) if len(at)]
        if kinds[row] in ON_HOST_LINK and link.any():
            found.append(first + int(np.flatnonzero(link)[-1]))
        return max(found, key=lambda at: (ends_s[at], at), default=None)

    def _other_needs(self, row: int) -> list[tuple[int, float]]:
        """Rows of a host link or a cut head that this row needs, and when they were done."""
        if not self.row_of:
            return []
        kind, stage, microbatch = self.schedule.action(row)
        ends_s, barrier_s = self.timeline.end_s, self.timeline.costs.barrier_s
        found = []
        for of_copy in {_D: (_O,), _L: (_O,), _R: (_L,), _I: (_L,), _B: (_L,)}.get(kind, ()):
            copy = self.row_of.get((of_copy, stage, microbatch))
            found += [(copy, float(ends_s[copy]))] if copy is not None else []
        waits_for = None
        if kind is _T or (kind in (_I, _B) and _is_last(self.schedule, stage)):
            waits_for = _V if kind is _T or self.schedule.head_barriers == 1 else _T
        if kind is _V or (waits_for and self.schedule.head_barriers):
            last = len(self.owner) - 1
            own = [self.row_of[_F, last, microbatch]] if kind is _V else []
            every = own or [
                self.row_of[waits_for, stages[0], microbatch]
                for stages in self.schedule.placement.stages_of_rank
                if waits_for is not None
            ]
            latest = max(every, key=lambda at: (ends_s[at], -at))
            found.append((latest, float(ends_s[latest]) + barrier_s))
        return found

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
        if kind == _F and not _is_first(self.schedule, stage):
            return int(self.forward_row[stage - 1, microbatch])
        if kind in (_I, _B) and not _is_last(self.schedule, stage):
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
            queues = self._transfer_s(producer) > 0  # what takes no time does not wait either
            first = self._first_of_queue(producer, consumer) if queues else producer
            if first != producer:
                return _Cause(first, WaitsFor.LINK)
        return _Cause(producer, WaitsFor.TRANSFER)

    def _first_of_queue(self, producer: int, consumer: int) -> int:
        """The producer of the transfer that found the link free, before which none waited.

        A transfer waited where the one before it on the link arrived after its own producer ended.
        """
        sender, receiver = self._rank_of(producer), self._rank_of(consumer)
        first = producer
        for row in range(producer - 1, int(self.schedule.rank_offsets[sender]) - 1, -1):
            if self._receiver_of(row) != receiver or self._transfer_s(row) == 0:
                continue
            if self._arrival_s(row) <= self.timeline.end_s[first]:
                break
            first = row
        return first

    def _transfer_s(self, producer: int) -> float:
        kind, stage, _ = self.schedule.actions[producer].tolist()
        costs = self.timeline.costs
        forward, backward = costs.forward_transfer_s, costs.backward_transfer_s
        return float(forward[stage] if kind == _F else backward[stage - 1])

    def _receiver_of(self, row: int) -> int | None:
        action = self.schedule.action(row)
        if action.kind is _F and not _is_last(self.schedule, action.stage):
            return self.owner[action.stage + 1]
        if action.kind in (_I, _B) and not _is_first(self.schedule, action.stage):
            return self.owner[action.stage - 1]
        return None


def _rows_by_action(schedule: Schedule) -> dict[tuple[int, int, int], int]:
    return {tuple(action): row for row, action in enumerate(schedule.actions.tolist())}


def _row_by_microbatch(schedule: Schedule, kinds: tuple[ActionKind, ...]) -> NDArray[np.int64]:
    """Row of the action of one of `kinds`, by stage and microbatch, shape [S, m]."""
    table = np.full((schedule.placement.num_stages, schedule.num_microbatches), -1, np.int64)
    rows = np.flatnonzero(np.isin(schedule.actions[:, 0], kinds))
    table[schedule.actions[rows, 1], schedule.actions[rows, 2]] = rows
    return table
