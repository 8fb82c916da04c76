"""What makes orders a legal schedule.

1. A rank runs only stages it owns.
2. Each stage runs F once per microbatch, and either B once or I and W once; R at most once; O, D
   and L all once or not at all. Where a head is cut, every rank runs V and T once per microbatch,
   written with its first stage.
3. On its rank, F comes before R, R before the backward, I before W; after F come O, D and L in this
   order, before what computes with the activations; V before T. Of the slices of a microbatch, F
   runs from the first to the last, because tokens attend to earlier ones, and I or B back.
4. A pair is a forward and, next on the same rank, a backward.
5. No rank waits for ever: the needs of all ranks, pairs beginning together, have no cycle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright._native import _core
from trainwright.errors import Fault, InvalidInput
from trainwright.plans.schedule import ON_HOST_LINK, Action, ActionKind, Schedule, ScheduleCosts
from trainwright.scheduling.simulate import describe_cycle, find_cycle, native_costs, native_orders

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plans.lowered import Timeline

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
            _place(schedule, row),
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


def _ordered(schedule: Schedule) -> Iterator[Fault]:
    """Law 3; counts are right, so each action has one row."""
    shape = (len(ActionKind), schedule.placement.num_stages, schedule.num_microbatches)
    rows = np.full(shape, -1, np.int64)
    rows[tuple(schedule.actions.T)] = np.arange(schedule.num_actions)
    for before, after in _OWN_NEEDS:
        wrong = (rows[after] >= 0) & (rows[before] > rows[after])
        for stage, microbatch in np.argwhere(wrong):
            early = Action(after, int(stage), int(microbatch))
            problem = f"{early} must come after {early._replace(kind=before)}"
            yield Fault(_place(schedule, int(rows[after, stage, microbatch])), problem)
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
            yield Fault(_place(schedule, int(row)), problem)


def _paired(schedule: Schedule) -> Iterator[Fault]:
    ranks = schedule.rank_of_row
    for row in schedule.pairs.tolist():
        whole = row + 1 < schedule.num_actions and ranks[row] == ranks[row + 1]
        kinds = schedule.actions[row : row + 2, 0].tolist()
        if not whole or kinds[0] != _F or kinds[1] not in (_I, _B):
            yield Fault(_place(schedule, row), "a pair must be F and then I or B on one rank")


def _acyclic(schedule: Schedule) -> Iterator[Fault]:
    costs = ScheduleCosts.of(schedule.placement, pair_s=1.0)
    simulation = _core.simulate(native_orders(schedule), native_costs(costs))
    if not simulation.complete:
        yield Fault("orders", describe_cycle(find_cycle(schedule, simulation)))


def _place(schedule: Schedule, row: int) -> str:
    rank = int(np.searchsorted(schedule.rank_offsets, row, side="right")) - 1
    return f"orders[{rank}][{row - schedule.rank_offsets[rank]}]"


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
        yield Fault(_place_in_time(timeline, row), f"{problem} and must start together")
    taken_s = timeline.end_s - timeline.start_s
    for row in np.flatnonzero(abs(taken_s - wanted_s) > _slack_s(timeline)).tolist():
        problem = (
            f"{schedule.action(row)} takes {taken_s[row]:.9g} s, costs say {wanted_s[row]:.9g} s"
        )
        yield Fault(_place_in_time(timeline, row), problem)


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
        yield Fault(_place_in_time(timeline, row), f"{problem} at {ends_s[one]:.9g} s")


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
                _place_in_time(timeline, row), f"{problem}, its input arrives at {when_s:.9g} s"
            )


def _own_needs(timeline: Timeline) -> Iterator[Fault]:
    """Law 3, what the same stage has to have done."""
    schedule = timeline.schedule
    shape = (len(ActionKind), schedule.placement.num_stages, schedule.num_microbatches)
    row_of = np.full(shape, -1, np.int64)
    row_of[tuple(schedule.actions.T)] = np.arange(schedule.num_actions)
    for before, after in _OWN_NEEDS:
        both = (row_of[before] >= 0) & (row_of[after] >= 0)
        first, second = row_of[before][both], row_of[after][both]
        early = timeline.start_s[second] < timeline.end_s[first] - _slack_s(timeline)
        for one, other in zip(first[early].tolist(), second[early].tolist(), strict=True):
            problem = f"{schedule.action(other)} starts before {schedule.action(one)} ends"
            yield Fault(_place_in_time(timeline, other), problem)


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
            yield Fault(_place_in_time(timeline, row), problem)


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
            yield Fault(_place_in_time(timeline, row), problem)


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


def _place_in_time(timeline: Timeline, row: int) -> str:
    schedule = timeline.schedule
    rank = int(np.searchsorted(schedule.rank_offsets, row, side="right")) - 1
    return f"orders[{rank}][{row - schedule.rank_offsets[rank]}]"
