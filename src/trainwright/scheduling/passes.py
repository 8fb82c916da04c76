"""Passes over schedules: each takes one, returns one, keeps it legal, and stands on its own.

repeat      a building block for m microbatches (`scheduling.block.repeat`)
squeeze     earliest times in the given order (`scheduling.simulate.simulate`)
fill        weight gradients into waits, as late as memory allows
reorder     actions into earlier idle gaps, under the peak
trim        without the last microbatches

Sources: the weight gradient as filler is Qi et al. (ICLR 2024), building blocks and reordering are
Qi et al. (NeurIPS 2024).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trainwright._native import _core
from trainwright.errors import InvalidInput
from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.plans.schedule_costs import ScheduleCosts
from trainwright.plans.status import Objective
from trainwright.scheduling.simulate import native_costs, native_memory, native_orders

SWEEPS = 16  # at most, of closing gaps


class Window(NamedTuple):
    """Seconds from the start: actions that start in it, the end excluded."""

    from_s: float = 0.0
    until_s: float = math.inf


_ALWAYS = Window()


def fill_weight_grads(
    schedule: Schedule, costs: ScheduleCosts, *, tolerated_idle_s: float = math.inf
) -> Schedule | None:
    """Place every W anew, given the order of everything else; None where the limits forbid it.

    W goes where its rank would otherwise wait, and before an action that would exceed the memory
    limit of `costs`. A wait too short for it stays empty while the idle time of the rank is at most
    `tolerated_idle_s`: infinity is plain filling, 0 delays the next action instead. O(actions).
    """
    filled = _core.fill_weight_grads(
        native_orders(schedule),
        native_costs(costs),
        native_memory(costs.memory),
        tolerated_idle_s=tolerated_idle_s,
    )
    if not filled.complete:
        return None
    return replace(schedule, actions=filled.actions, rank_offsets=filled.rank_offsets)


def improve_weight_grads(
    schedule: Schedule, costs: ScheduleCosts, *, objective: Objective, budget: int
) -> Schedule:
    """Move W, given the order of everything else, for a smaller objective within the limits.

    Per rank a shortest path over the number of W done before each other action, ranks in turn, see
    `native/schedule/improve_weight_grads.hpp`. `budget` counts simulated actions. Never worse than
    given.
    """
    improved = _core.improve_weight_grads(
        native_orders(schedule),
        native_costs(costs),
        native_memory(costs.memory),
        span=objective is Objective.SPAN,
        budget=budget,
    )
    return replace(schedule, actions=improved.actions)


def reorder(schedule: Schedule, costs: ScheduleCosts, *, window: Window = _ALWAYS) -> Schedule:
    """Move actions that start in `window` into earlier idle gaps that are long enough.

    No rank's peak rises, except up to its limit where it has one. Nothing else is delayed, so the
    makespan never grows.
    """
    memory = costs.memory
    peaks = _core.peak_bytes(native_orders(schedule), native_memory(memory))
    limits = np.where(np.isfinite(memory.limit_bytes), memory.limit_bytes, peaks)
    moved = _core.reorder(
        native_orders(schedule),
        native_costs(costs),
        native_memory(replace(memory, limit_bytes=limits)),
        from_s=window.from_s,
        until_s=window.until_s,
        sweeps=SWEEPS,
    )
    if not moved.complete:
        raise InvalidInput.of("orders", "must run without deadlock")
    return replace(schedule, actions=moved.actions)


def trim(schedule: Schedule, *, num_microbatches: int) -> Schedule:
    """Drop microbatches `num_microbatches` and above."""
    if num_microbatches > schedule.num_microbatches:
        raise InvalidInput.of(
            "num_microbatches",
            f"must be <= {schedule.num_microbatches}, the schedule's, got {num_microbatches}",
        )
    kept = schedule.actions[:, 2] < num_microbatches
    counts = np.concatenate(([0], np.cumsum(kept)))
    rows = schedule.pairs[kept[schedule.pairs] & kept[schedule.pairs + 1]]
    return replace(
        schedule,
        num_microbatches=num_microbatches,
        actions=schedule.actions[kept],
        rank_offsets=counts[schedule.rank_offsets],
        pairs=counts[rows],
    )


def drop_weight_grads(schedule: Schedule) -> Schedule:
    """Forget where W is: what `fill_weight_grads` starts from. Not a legal schedule by itself."""
    kept = schedule.actions[:, 0] != ActionKind.W
    counts = np.concatenate(([0], np.cumsum(kept)))
    return replace(
        schedule, actions=schedule.actions[kept], rank_offsets=counts[schedule.rank_offsets]
    )
