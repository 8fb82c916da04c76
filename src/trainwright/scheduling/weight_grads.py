"""From orders without weight gradients to the best full schedule.

A family may know several orders of forwards and input gradients, and which is best depends on the
times. Each is filled with weight gradients in two ways and its idle gaps are closed; the best few
then get better places for their weight gradients. Large schedules are judged by fewer microbatches:
warm-up, one period and cool-down do not change with m.

A family may promise how many activations its ranks hold at some instant, so that others know what
every order of it needs (`Family.least_in_flight`). Orders that never do are left out, and gaps stay
open where closing them would end that.

All effort is counted in actions, so that results repeat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright._native import _core
from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.plans.status import Objective
from trainwright.scheduling.bounds import LeastCosts, best_bound
from trainwright.scheduling.passes import (
    SWEEPS,
    Window,
    fill_weight_grads,
    improve_weight_grads,
    reorder,
)
from trainwright.scheduling.simulate import native_costs, native_memory, native_orders, simulate

if TYPE_CHECKING:
    from typing import TypeAlias

    from trainwright.arrays import Ints
    from trainwright.plans.schedule import Placement
    from trainwright.plans.schedule_costs import ScheduleCosts
    from trainwright.plans.timeline import Timeline

    Order: TypeAlias = Callable[[int], Schedule]  # of a number of microbatches; W left out

_SMALL = 30_000  # above, orders are judged by fewer microbatches and only their ends reordered
_TRIALS = 200_000  # spent on filling orders
_PASSES = 40  # simulations of the schedule while placing weight gradients, in each round
_ROUNDS = 4
_IMPROVABLE = 6_500_000  # actions times ranks
_NUM_LARGE = 5  # orders tried in full where they can be improved
_NUM_IMPROVED = 3  # of these that get better places for their weight gradients
_POLISHED = 40_000  # actions of all orders that are polished, which are 3 to 24


class _Trial(NamedTuple):
    order: Order
    tolerated_idle_s: float
    schedule: Schedule
    timeline: Timeline

    def cost(self, objective: Objective) -> tuple[float, float]:
        """The objective, then span and makespan together."""
        return objective.of(self.timeline), self.timeline.span_s + self.timeline.makespan_s


def best_of(
    orders: Sequence[Order],
    placement: Placement,
    costs: ScheduleCosts,
    *,
    num_microbatches: int,
    objective: Objective = Objective.SPAN,
    held: Ints | None = None,
) -> Schedule | None:
    """The schedule of least objective within the limits of `costs`; None if none fits.

    Orders are tried as given, until one meets a lower bound or the effort is spent. By each row of
    `held` [N, S] a rank has, at one instant, so many microbatches of all of its stages between
    their forward and their input gradient, at least.
    """
    enough_s = _enough_s(placement, costs, num_microbatches, objective)
    if held is None:
        held = np.zeros((0, placement.num_stages), dtype=np.int64)
    if 3 * costs.num_stages * num_microbatches > _SMALL:
        return _best_of_large(orders, costs, num_microbatches, enough_s, objective, held)
    return _best_of_small(orders, placement, costs, num_microbatches, enough_s, objective, held)


def _best_of_small(
    orders: Sequence[Order],
    placement: Placement,
    costs: ScheduleCosts,
    num_microbatches: int,
    enough_s: float,
    objective: Objective,
    held: Ints,
) -> Schedule | None:
    """Every order closed, the best polished, in the core (`native/schedule/order_trials.hpp`)."""
    trials = _core.OrderTrials(
        native_costs(costs),
        native_memory(costs.memory),
        span=objective is Objective.SPAN,
        enough_s=enough_s,
        sweeps=SWEEPS,
        held=held.reshape(-1).tolist(),
    )
    effort = 0
    for order in orders:
        partial = order(num_microbatches)
        effort += 2 * partial.num_actions
        if trials.add(native_orders(partial)) or effort > _TRIALS:
            break
    num_actions = 3 * costs.num_stages * num_microbatches
    best = trials.best(
        num_finalists=min(max(_POLISHED // num_actions, 3), 24),
        rounds=_ROUNDS,
        simulations=max(_PASSES, 3 * placement.num_ranks),
    )
    if not best.complete:
        return None
    return Schedule(
        placement=placement,
        num_microbatches=num_microbatches,
        actions=best.actions,
        rank_offsets=best.rank_offsets,
    )


def _best_of_large(
    orders: Sequence[Order],
    costs: ScheduleCosts,
    num_microbatches: int,
    enough_s: float,
    objective: Objective,
    held: Ints,
) -> Schedule | None:
    """Of the orders that are best with fewer microbatches, the best that fits with all of them."""
    fewer = min(max(1, _SMALL // (3 * costs.num_stages)), num_microbatches)
    trials = sorted(
        _trials(orders, costs, fewer),
        key=lambda trial: trial.cost(objective),
    )
    is_improvable = _is_improvable(costs, num_microbatches)
    finalists = []
    for trial in islice(
        _filled_trials(trials, costs, num_microbatches, held), _NUM_LARGE if is_improvable else 1
    ):
        if objective.of(trial.timeline) <= enough_s and not is_improvable:
            return trial.schedule
        ends = _reorder_ends(trial.schedule, costs)
        closed = _with_schedule(trial, ends, costs) if _holds(ends, held) else trial
        if objective.of(closed.timeline) <= enough_s:
            return closed.schedule
        finalists.append(closed)
    if is_improvable:  # the shortest as they are may not be so in the end
        improved = sorted(finalists, key=lambda trial: trial.cost(objective))[:_NUM_IMPROVED]
        for trial in improved:
            better = _improved(trial.schedule, costs, rounds=1, objective=objective)
            if _holds(better, held):
                finalists.append(_with_schedule(trial, better, costs))
    best = min(finalists, key=lambda trial: trial.cost(objective), default=None)
    return None if best is None else best.schedule


def _holds(schedule: Schedule, held: Ints) -> bool:
    """Whether every rank has so many microbatches of its stages in flight at one instant."""
    for rank, stages in enumerate(schedule.placement.stages_of_rank):
        rows, own = schedule.actions[schedule.rows_of(rank)], held[:, list(stages)]
        mine = rows[:, 1, np.newaxis] == np.array(stages)
        begun = np.cumsum(mine & (rows[:, :1] == ActionKind.F), axis=0)
        in_flight = begun - np.cumsum(mine & (rows[:, :1] == ActionKind.I), axis=0)
        if not all((in_flight >= row).all(axis=1).any() for row in own):
            return False
    return True


def _is_improvable(costs: ScheduleCosts, num_microbatches: int) -> bool:
    """Whether every rank can have a turn; each costs a simulation of all actions."""
    num_actions = 3 * costs.num_stages * num_microbatches
    return num_actions * costs.memory.num_ranks <= _IMPROVABLE


def _filled_trials(
    trials: Sequence[_Trial], costs: ScheduleCosts, num_microbatches: int, held: Ints
) -> Iterator[_Trial]:
    """The trials with another number of microbatches, those that fit."""
    for trial in trials:
        filled = fill_weight_grads(
            trial.order(num_microbatches), costs, tolerated_idle_s=trial.tolerated_idle_s
        )
        if filled is not None and _holds(filled, held):
            yield _with_schedule(trial, filled, costs)


def _trials(
    orders: Sequence[Order], costs: ScheduleCosts, num_microbatches: int
) -> Iterator[_Trial]:
    """Orders filled in two ways, each result once."""
    effort = 0
    seen = set()
    for order in orders:
        partial = order(num_microbatches)
        for tolerated_idle_s in (math.inf, 0.0):
            filled = fill_weight_grads(partial, costs, tolerated_idle_s=tolerated_idle_s)
            if filled is None or (key := filled.actions.tobytes()) in seen:
                continue
            seen.add(key)
            yield _Trial(order, tolerated_idle_s, filled, simulate(filled, costs))
        effort += 2 * partial.num_actions
        if effort > _TRIALS:
            return


def _enough_s(
    placement: Placement, costs: ScheduleCosts, num_microbatches: int, objective: Objective
) -> float:
    """None is shorter: a lower bound, of very large schedules only that no rank may wait."""
    if _is_improvable(costs, num_microbatches):
        least = LeastCosts.of(placement, costs)
        bound = best_bound(least, num_microbatches, objective=objective)
        return bound.value_s * (1 + 1e-9)
    split_s = costs.duration_s[[ActionKind.F, ActionKind.I, ActionKind.W]].sum(axis=0)
    busiest_s = max(split_s[list(stages)].sum() for stages in placement.stages_of_rank)
    return float(num_microbatches * busiest_s) * (1 + 1e-9)


def _with_schedule(trial: _Trial, schedule: Schedule, costs: ScheduleCosts) -> _Trial:
    return trial._replace(schedule=schedule, timeline=simulate(schedule, costs))


def polish(schedule: Schedule, costs: ScheduleCosts) -> Schedule:
    """Close gaps and place weight gradients anew, within the limits; never a longer span.

    In a large schedule gaps are only closed.
    """
    schedule = reorder(schedule, costs)
    if schedule.num_actions > _SMALL:
        return schedule
    return _improved(schedule, costs, rounds=_ROUNDS)


def _improved(
    schedule: Schedule,
    costs: ScheduleCosts,
    *,
    rounds: int,
    objective: Objective = Objective.SPAN,
) -> Schedule:
    """Place weight gradients anew and close gaps, until nothing is gained."""
    budget = schedule.num_actions * max(_PASSES, 3 * schedule.num_ranks)
    least_s = math.inf
    for _ in range(rounds):
        placed = improve_weight_grads(schedule, costs, objective=objective, budget=budget)
        schedule = reorder(placed, costs)
        found_s = objective.of(simulate(schedule, costs))
        if found_s >= least_s:
            break
        least_s = found_s
    return schedule


def _reorder_ends(schedule: Schedule, costs: ScheduleCosts) -> Schedule:
    """Reorder warm-up (until stage 0 ends its first backward), then cool-down (from its last F)."""
    timeline = simulate(schedule, costs)
    warm_up = Window(until_s=float(timeline.backward_arrival_s[0, 0]))
    schedule = reorder(schedule, costs, window=warm_up)
    timeline = simulate(schedule, costs)
    rows = schedule.rows_of(schedule.placement.rank_of_stage[0])
    kinds, stages = schedule.actions[rows, 0], schedule.actions[rows, 1]
    forwards = timeline.start_s[rows][(kinds == ActionKind.F) & (stages == 0)]
    return reorder(schedule, costs, window=Window(from_s=float(forwards.max())))
