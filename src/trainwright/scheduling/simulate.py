"""Schedule and costs to timeline, through the native simulator (`native/schedule/simulate.hpp`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from trainwright._native import _core
from trainwright.errors import Fault, InvalidInput
from trainwright.plans.lowered import CriticalStep, LoweredAction, Timeline, WaitsFor
from trainwright.plans.schedule import (
    ON_HOST_LINK,
    Action,
    ActionKind,
    Schedule,
    ScheduleCosts,
    ScheduleMemory,
    TransferModel,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright._native._core import Simulation


# What makes orders a legal schedule
# ----------------------------------
# 1. A rank runs only stages it owns.
# 2. Each stage runs F once per microbatch, and either B once or I and W once; R at most once; O, D
#    and L all once or not at all. Where a head is cut, every rank runs V and T once per microbatch,
#    written with its first stage.
# 3. On its rank, F comes before R, R before the backward, I before W; after F come O, D and L in
#    this order, before what computes with the activations; V before T. Of the slices of a
#    microbatch, F runs from the first to the last, because tokens attend to earlier ones, and I or
#    B back.
# 4. A pair is a forward and, next on the same rank, F, I, W or B.
# 5. No rank waits for ever: the needs of all ranks, pairs beginning together, have no cycle.


_F, _I, _W, _B, _R, _O, _D, _L, _V, _T = ActionKind
_OWN_NEEDS: Final = (
    *((_F, _R), (_F, _I), (_F, _B), (_R, _I), (_R, _B), (_I, _W)),
    *((_F, _O), (_O, _D), (_D, _L), (_L, _R), (_L, _I), (_L, _B), (_V, _T)),
)


def validate(schedule: Schedule, *, source: str | None = None) -> None:
    """Raise InvalidInput, naming the file `source`, with the first law broken; O(actions)."""
    for law in (_owned, _counted, _ordered, _paired, _acyclic):
        for fault in law(schedule):
            raise InvalidInput((fault,), source=source)


def _owned(schedule: Schedule) -> Iterator[Fault]:
    owner = np.array(schedule.placement.rank_of_stage)[schedule.actions[:, 1]]
    for row in np.flatnonzero(owner != schedule.rank_of_row).tolist():
        action = schedule.action(row)
        yield Fault(
            schedule.place_of(row),
            f"{action} must run on rank {owner[row]}, which owns stage {action.stage}",
        )


def _counted(schedule: Schedule) -> Iterator[Fault]:
    """Law 2, over a table of counts by kind, stage and microbatch."""
    shape = (len(ActionKind), schedule.placement.num_stages, schedule.num_microbatches)
    flat = np.ravel_multi_index(tuple(schedule.actions.T), shape)
    counts = np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape)
    rules = (
        (_F, counts[_F], counts[_F] != 1, "F must run once"),
        (_B, counts[_I] + counts[_B], counts[_I] + counts[_B] != 1, "either B or I must run once"),
        (_W, counts[_W], counts[_W] != counts[_I], "W must run once where I does, and only there"),
        (_R, counts[_R], counts[_R] > 1, "R must run at most once"),
        (_O, counts[_O], counts[_O] > 1, "O must run at most once"),
        (_D, counts[_D], counts[_D] != counts[_O], "D must run once where O does, and only there"),
        (_L, counts[_L], counts[_L] != counts[_O], "L must run once where O does, and only there"),
        *(_head_rule(schedule, counts, kind) for kind in (_V, _T)),
    )
    for kind, runs, broken, rule in rules:
        for stage, microbatch in np.argwhere(broken):
            found = {other.name: int(counts[other, stage, microbatch]) for other in ActionKind}
            listed = ", ".join(f"{count} {name}" for name, count in found.items() if count)
            where = f"stage {stage} microbatch {microbatch}"
            missing = f"; {Action(kind, int(stage), int(microbatch))} is missing"
            more = "" if runs[stage, microbatch] else missing
            yield Fault("orders", f"{rule} for {where}, got {listed or 'nothing'}{more}")


def _head_rule(
    schedule: Schedule, counts: NDArray[np.int64], kind: ActionKind
) -> tuple[ActionKind, NDArray[np.int64], NDArray[np.bool_], str]:
    wanted = np.zeros(schedule.placement.num_stages, np.int64)
    if schedule.head_barriers:
        wanted[[stages[0] for stages in schedule.placement.stages_of_rank]] = 1
    rule = f"{kind.name} must run once on the first stage of every rank of a cut head, else never"
    return kind, counts[kind], counts[kind] != wanted[:, None], rule


def _row_of_each(schedule: Schedule) -> NDArray[np.int64]:
    """Row of each action by kind, stage and microbatch, [kinds, S, m]; -1 where there is none."""
    shape = (len(ActionKind), schedule.placement.num_stages, schedule.num_microbatches)
    rows = np.full(shape, -1, np.int64)
    rows[tuple(schedule.actions.T)] = np.arange(schedule.num_actions)
    return rows


def _ordered(schedule: Schedule) -> Iterator[Fault]:
    """Law 3; counts are right, so each action has one row."""
    rows = _row_of_each(schedule)
    for before, after in _OWN_NEEDS:
        wrong = (rows[after] >= 0) & (rows[before] > rows[after])
        for stage, microbatch in np.argwhere(wrong):
            early = Action(after, int(stage), int(microbatch))
            problem = f"{early} must come after {early._replace(kind=before)}"
            yield Fault(schedule.place_of(int(rows[after, stage, microbatch])), problem)
    if schedule.num_slices == 1:
        return
    same = np.arange(1, schedule.num_microbatches) % schedule.num_slices > 0
    backward = np.maximum(rows[_I], rows[_B])
    directions = (
        ("from the first to the last", rows[_F], np.greater),
        ("from the last back", backward, np.less),
    )
    for direction, table, is_early in directions:
        wrong = same & is_early(table[:, :-1], table[:, 1:])
        for stage, earlier in np.argwhere(wrong):
            row = min(table[stage, earlier], table[stage, earlier + 1])
            problem = f"{schedule.action(int(row))} comes too early: slices run {direction}"
            yield Fault(schedule.place_of(int(row)), problem)


def _paired(schedule: Schedule) -> Iterator[Fault]:
    ranks = schedule.rank_of_row
    for row in schedule.pairs.tolist():
        whole = row + 1 < schedule.num_actions and ranks[row] == ranks[row + 1]
        kinds = schedule.actions[row : row + 2, 0].tolist()
        if not whole or kinds[0] != _F or kinds[1] not in (_F, _I, _W, _B):
            yield Fault(
                schedule.place_of(row), "a pair must be F and then F, I, W or B on one rank"
            )


def _acyclic(schedule: Schedule) -> Iterator[Fault]:
    simulation = _core.simulate(native_orders(schedule), native_costs(all_paired(schedule)))
    if not simulation.complete:
        yield Fault("orders", describe_cycle(find_cycle(schedule, simulation)))


def all_paired(schedule: Schedule) -> ScheduleCosts:
    """Equal costs, with which both actions of every pair begin together."""
    return ScheduleCosts.of(
        schedule.placement, recompute_s=1.0, pair_s=1.0, head_s=1.0, network_s={_F: 0.5}
    )


# Whether the times of a schedule can be kept, without simulating anything again
# ------------------------------------------------------------------------------
# A timeline is a certificate: given when everything starts and ends, each law can be looked up.
#
# 1. Every action takes the time its costs say; a pair starts together where the costs overlap it.
# 2. A rank does one thing at a time, in the order of its row.
# 3. A forward starts after the output of the stage before it arrived, a backward after the gradient
#    of the stage behind it and after its own forward, a weight gradient after its input gradient.
# 4. What another rank made arrives no sooner than its end and the transfer.
# 5. What needs a copy to the host or a barrier of a cut head starts no sooner than its end; a copy
#    is issued after the computation before it, and a link carries one at a time.
# 6. Memory, added up over time from what starts and ends, is the peak that is claimed.
#
# O(actions · log actions); shares no code with the native simulator.
_TOLERANCE: Final = 1e-9
_MOST_FAULTS: Final = 5  # of one law; the rest follow from them


def timeline_faults(timeline: Timeline) -> tuple[Fault, ...]:
    """What of the times or the memory does not hold, law by law; empty where all does."""
    laws = (_durations, _one_at_a_time, _inputs, _own_needs, _arrivals, _barriers, _memory)
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
    wanted_s = costs.of_rows(schedule)
    together, pair_s = costs.overlapped_pairs(schedule)
    for half in (together, together + 1):
        wanted_s[half] = pair_s
    apart_s = abs(timeline.start_s[together] - timeline.start_s[together + 1])
    for row in together[apart_s > _slack_s(timeline)].tolist():
        problem = f"{schedule.action(row)} and {schedule.action(row + 1)} are a pair"
        yield Fault(timeline.schedule.place_of(row), f"{problem} and must start together")
    taken_s = timeline.end_s - timeline.start_s
    for row in np.flatnonzero(abs(taken_s - wanted_s) > _slack_s(timeline)).tolist():
        problem = (
            f"{schedule.action(row)} takes {taken_s[row]:.9g} s, costs say {wanted_s[row]:.9g} s"
        )
        yield Fault(timeline.schedule.place_of(row), problem)


def _one_at_a_time(timeline: Timeline) -> Iterator[Fault]:
    """Laws 2 and 5: of the computations of a rank, of the copies of its link, of both in turn."""
    schedule, ends_s = timeline.schedule, timeline.end_s
    together, _ = timeline.costs.overlapped_pairs(schedule)
    copies = np.isin(schedule.actions[:, 0], ON_HOST_LINK)
    rows = np.arange(schedule.num_actions)
    last_of_rank = np.maximum.accumulate(np.where(copies, -1, rows))
    issued = np.stack([last_of_rank[copies], rows[copies]])
    in_turn = [np.stack([own[:-1], own[1:]]) for own in (rows[~copies], rows[copies])]
    before, after = np.concatenate([*in_turn, issued], axis=1)
    ranks = schedule.rank_of_row
    follows = (before >= 0) & (ranks[before] == ranks[after]) & ~np.isin(before, together)
    early = follows & (timeline.start_s[after] < ends_s[before] - _slack_s(timeline))
    for one, row in zip(before[early].tolist(), after[early].tolist(), strict=True):
        previous, action = schedule.action(one), schedule.action(row)
        problem = f"{action} starts at {timeline.start_s[row]:.9g} s, before {previous} ends"
        yield Fault(timeline.schedule.place_of(row), f"{problem} at {ends_s[one]:.9g} s")


def _inputs(timeline: Timeline) -> Iterator[Fault]:
    """Law 3, what comes from neighbouring stages."""
    schedule = timeline.schedule
    edge = np.concatenate([[False], schedule.placement.has_edge, [False]])
    kind, stage, microbatch = schedule.actions.T
    forward = np.flatnonzero((kind == _F) & edge[stage])
    backward = np.flatnonzero(((kind == _I) | (kind == _B)) & edge[stage + 1])
    for rows, arrival_s, step in (
        (forward, timeline.forward_arrival_s, -1),
        (backward, timeline.backward_arrival_s, 1),
    ):
        there_s = arrival_s[stage[rows] + step, microbatch[rows]]
        early = timeline.start_s[rows] < there_s - _slack_s(timeline)
        for row, when_s in zip(rows[early].tolist(), there_s[early].tolist(), strict=True):
            problem = f"{schedule.action(row)} starts at {timeline.start_s[row]:.9g} s"
            yield Fault(
                timeline.schedule.place_of(row), f"{problem}, its input arrives at {when_s:.9g} s"
            )


def _own_needs(timeline: Timeline) -> Iterator[Fault]:
    """Law 3, what the same stage has to have done."""
    schedule = timeline.schedule
    row_of = _row_of_each(schedule)
    for before, after in _OWN_NEEDS:
        both = (row_of[before] >= 0) & (row_of[after] >= 0)
        first, second = row_of[before][both], row_of[after][both]
        early = timeline.start_s[second] < timeline.end_s[first] - _slack_s(timeline)
        for one, other in zip(first[early].tolist(), second[early].tolist(), strict=True):
            problem = f"{schedule.action(other)} starts before {schedule.action(one)} ends"
            yield Fault(timeline.schedule.place_of(other), problem)


def _arrivals(timeline: Timeline) -> Iterator[Fault]:
    """Law 4; neighbours on one rank pass on at once."""
    schedule, costs = timeline.schedule, timeline.costs
    ranks = np.array(schedule.placement.rank_of_stage)
    kind, stage, microbatch = schedule.actions.T
    edge = np.concatenate([[False], schedule.placement.has_edge, [False]])
    forward = np.flatnonzero((kind == _F) & edge[stage + 1])
    backward = np.flatnonzero(((kind == _I) | (kind == _B)) & edge[stage])
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
            yield Fault(timeline.schedule.place_of(row), problem)


def _barriers(timeline: Timeline) -> Iterator[Fault]:
    """Law 5, of a head that is cut over all ranks."""
    schedule = timeline.schedule
    if not schedule.head_barriers:
        return
    kind, stage, microbatch = schedule.actions.T
    at_end = stage == schedule.placement.num_stages - 1
    backward = at_end & ((kind == _I) | (kind == _B))
    gate = _V if schedule.head_barriers == 1 else _T
    for needed, needing in (
        ((kind == _F) & at_end, kind == _V),
        (kind == _V, kind == _T),
        (kind == gate, backward),
    ):
        done_s = np.zeros(schedule.num_microbatches)
        np.maximum.at(done_s, microbatch[needed], timeline.end_s[needed])
        rows = np.flatnonzero(needing)
        there_s = done_s[microbatch[rows]] + timeline.costs.barrier_s
        for row in rows[timeline.start_s[rows] < there_s - _slack_s(timeline)].tolist():
            problem = f"{schedule.action(row)} starts before its barrier"
            yield Fault(timeline.schedule.place_of(row), problem)


def _memory(timeline: Timeline) -> Iterator[Fault]:
    """Law 6: what starts allocates, what ends frees, and of one instant the release comes first."""
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
    copies = np.isin(kind, ON_HOST_LINK)  # L takes its memory when it is issued
    issued = np.maximum.accumulate(np.where(copies, 0.0, end))
    start, end = np.where(copies, issued, start), np.where(copies, issued, end)
    position = 2 * np.arange(len(start))
    times = np.concatenate([start, end])
    change = np.concatenate(
        [np.maximum(delta, 0.0) + transient, np.minimum(delta, 0.0) - transient]
    )
    # Of one instant: what an earlier action frees, then what a later one takes.
    order = np.lexsort((np.concatenate([position, position + 1]), times))
    held = np.cumsum(change[order])
    return float(memory.static_bytes[rank] + held.max(initial=0.0))


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
        self.forward_row = schedule.rows_by_microbatch((_F,))
        self.backward_row = schedule.rows_by_microbatch((_I, _B))
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
