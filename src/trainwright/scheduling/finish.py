"""From orders without weight gradients to the best full schedule.

A family may know several orders of forwards and input gradients, and which is best depends on the
times. Each is filled with weight gradients in two ways and its idle gaps are closed; the best few
then get better places for their weight gradients. Large schedules are judged by fewer microbatches:
warm-up, one period and cool-down do not change with m.

All effort is counted in actions, so that results repeat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from trainwright.plan.schedule import ActionKind
from trainwright.plan.schedule_bound import Objective
from trainwright.scheduling.bounds import best_bound
from trainwright.scheduling.least_costs import LeastCosts
from trainwright.scheduling.passes import (
    Window,
    fill_weight_grads,
    improve_weight_grads,
    reorder,
)
from trainwright.scheduling.simulate import simulate

if TYPE_CHECKING:
    from typing import TypeAlias

    from trainwright.plan.placement import Placement
    from trainwright.plan.schedule import Schedule
    from trainwright.plan.schedule_costs import ScheduleCosts
    from trainwright.plan.timeline import Timeline

    Order: TypeAlias = Callable[[int], Schedule]  # of a number of microbatches; W left out

_SMALL = 30_000  # above, orders are judged by fewer microbatches and only their ends reordered
_TRIALS = 200_000  # spent on filling orders
_PASSES = 40  # simulations of the schedule while placing weight gradients, in each round
_ROUNDS = 4
_POLISHED = 40_000  # actions of all orders that are polished, which are 3 to 24


class _Trial(NamedTuple):
    order: Order
    tolerated_idle_s: float
    schedule: Schedule
    timeline: Timeline

    @property
    def cost(self) -> tuple[float, float]:
        return self.timeline.span_s, self.timeline.makespan_s


def best_of(
    orders: Sequence[Order],
    placement: Placement,
    costs: ScheduleCosts,
    *,
    num_microbatches: int,
) -> Schedule | None:
    """The schedule of least span, then makespan, within the limits of `costs`; None if none fits.

    Orders are tried as given, until one meets a lower bound or the effort is spent.
    """
    if 3 * costs.num_stages * num_microbatches > _SMALL:
        never_idle_s = num_microbatches * _busiest_s(placement, costs)
        return _best_of_large(orders, costs, num_microbatches, never_idle_s * (1 + 1e-9))
    bound = best_bound(LeastCosts.of(placement, costs), num_microbatches, objective=Objective.SPAN)
    enough_s = bound.value_s * (1 + 1e-9)
    trials = []
    for trial in _trials(orders, costs, num_microbatches):
        closed = _with_schedule(trial, reorder(trial.schedule, costs), costs)
        if closed.timeline.span_s <= enough_s:
            return closed.schedule
        trials.append(closed)
    num_finalists = _POLISHED // (3 * costs.num_stages * num_microbatches)
    finalists = sorted(trials, key=lambda trial: trial.cost)[: min(max(num_finalists, 3), 24)]
    polished = [_with_schedule(trial, polish(trial.schedule, costs), costs) for trial in finalists]
    best = min((*finalists, *polished), key=lambda trial: trial.cost, default=None)
    return None if best is None else best.schedule


def _best_of_large(
    orders: Sequence[Order], costs: ScheduleCosts, num_microbatches: int, enough_s: float
) -> Schedule | None:
    """The order that is best with fewer microbatches and also fits with all of them."""
    fewer = max(1, _SMALL // (3 * costs.num_stages))
    trials = _trials(orders, costs, min(fewer, num_microbatches))
    for trial in sorted(trials, key=lambda trial: trial.cost):
        filled = fill_weight_grads(
            trial.order(num_microbatches), costs, tolerated_idle_s=trial.tolerated_idle_s
        )
        if filled is not None:
            done = simulate(filled, costs).span_s <= enough_s
            return filled if done else _reorder_ends(filled, costs)
    return None


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


def _busiest_s(placement: Placement, costs: ScheduleCosts) -> float:
    """Seconds per microbatch of the rank that has most work, backwards split."""
    split_s = costs.duration_s[[ActionKind.F, ActionKind.I, ActionKind.W]].sum(axis=0)
    return float(max(split_s[list(stages)].sum() for stages in placement.stages_of_rank))


def _with_schedule(trial: _Trial, schedule: Schedule, costs: ScheduleCosts) -> _Trial:
    return trial._replace(schedule=schedule, timeline=simulate(schedule, costs))


def polish(schedule: Schedule, costs: ScheduleCosts) -> Schedule:
    """Close gaps and place weight gradients anew, within the limits; never a longer span.

    In a large schedule gaps are only closed.
    """
    schedule = reorder(schedule, costs)
    if schedule.num_actions > _SMALL:
        return schedule
    span_s = math.inf
    for _ in range(_ROUNDS):
        placed = improve_weight_grads(
            schedule, costs, objective=Objective.SPAN, budget=_PASSES * schedule.num_actions
        )
        schedule = reorder(placed, costs)
        timeline = simulate(schedule, costs)
        if timeline.span_s >= span_s:
            break
        span_s = timeline.span_s
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
