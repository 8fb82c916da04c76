"""What makes orders a legal schedule.

1. A rank runs only stages it owns.
2. Each stage runs F once per microbatch, and either B once or I and W once; R at most once.
3. On its rank, F comes before R, R before the backward, I before W.
4. A pair is a forward and, next on the same rank, a backward.
5. No rank waits for ever: the needs of all ranks together have no cycle.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainwright._native import _core
from trainwright.errors import Fault, InvalidInput
from trainwright.plan.schedule import Action, ActionKind, Schedule
from trainwright.plan.schedule_costs import ScheduleCosts
from trainwright.scheduling.deadlock import describe_cycle, find_cycle
from trainwright.scheduling.simulate import native_costs, native_orders

_F, _I, _W, _B, _R = ActionKind


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
    )
    for kind, runs, broken, rule in rules:
        for stage, microbatch in np.argwhere(broken):
            found = {other.name: int(counts[other, stage, microbatch]) for other in ActionKind}
            listed = ", ".join(f"{count} {name}" for name, count in found.items() if count)
            where = f"stage {stage} microbatch {microbatch}"
            missing = f"; {Action(kind, int(stage), int(microbatch))} is missing"
            more = "" if runs[stage, microbatch] else missing
            yield Fault("orders", f"{rule} for {where}, got {listed or 'nothing'}{more}")


def _ordered(schedule: Schedule) -> Iterator[Fault]:
    """Law 3; counts are right, so each action has one row."""
    shape = (len(ActionKind), schedule.placement.num_stages, schedule.num_microbatches)
    rows = np.full(shape, -1, np.int64)
    rows[tuple(schedule.actions.T)] = np.arange(schedule.num_actions)
    for before, after in ((_F, _R), (_F, _I), (_F, _B), (_R, _I), (_R, _B), (_I, _W)):
        wrong = (rows[after] >= 0) & (rows[before] > rows[after])
        for stage, microbatch in np.argwhere(wrong):
            early = Action(after, int(stage), int(microbatch))
            problem = f"{early} must come after {early._replace(kind=before)}"
            yield Fault(_place(schedule, int(rows[after, stage, microbatch])), problem)


def _paired(schedule: Schedule) -> Iterator[Fault]:
    ranks = schedule.rank_of_row
    for row in schedule.pairs.tolist():
        whole = row + 1 < schedule.num_actions and ranks[row] == ranks[row + 1]
        kinds = schedule.actions[row : row + 2, 0].tolist()
        if not whole or kinds[0] != _F or kinds[1] not in (_I, _B):
            yield Fault(_place(schedule, row), "a pair must be F and then I or B on one rank")


def _acyclic(schedule: Schedule) -> Iterator[Fault]:
    costs = ScheduleCosts.of(schedule.placement)
    simulation = _core.simulate(native_orders(schedule), native_costs(costs))
    if not simulation.complete:
        yield Fault("orders", describe_cycle(find_cycle(schedule, simulation)))


def _place(schedule: Schedule, row: int) -> str:
    rank = int(np.searchsorted(schedule.rank_offsets, row, side="right")) - 1
    return f"orders[{rank}][{row - schedule.rank_offsets[rank]}]"
