"""What a method answers: a schedule with times and a bound, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwright.plan.results.schedule import Shortfall
from trainwright.plan.schedule import ActionKind
from trainwright.plan.schedule_bound import Bound, Objective
from trainwright.scheduling.bounds import best_bound
from trainwright.scheduling.least_costs import LeastCosts

if TYPE_CHECKING:
    from trainwright.api.schedule_inputs import ScheduleCase
    from trainwright.plan.placement import Placement
    from trainwright.plan.schedule import Schedule
    from trainwright.plan.schedule_costs import ScheduleCosts
    from trainwright.plan.timeline import Timeline
    from trainwright.scheduling.pareto import ParetoPoint

_F, _I, _W, _B, _R = ActionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The schedule found, if any, and what is proved about it.

    `tried` counts the pipelines (placements, chunks, modes) it was chosen from; `bound` is about
    all of them, and where there are several `pipeline_bound` about its own. Each stage that the
    costs describe is `parts_per_stage` stages of the schedule. `shortfall` says why nothing was
    found, or why what was given does not fit.
    """

    family: str
    timeline: Timeline | None = None
    bound: Bound | None = None
    pipeline_bound: Bound | None = None
    shortfall: Shortfall | None = None
    found_by: str | None = None
    tried: int = 1
    parts_per_stage: int = 1
    evaluations: int | None = None
    interrupted: bool = False
    generate_s: float | None = None
    search_s: float | None = None
    solver_s: float | None = None
    points: tuple[ParetoPoint, ...] = ()
    warnings: tuple[str, ...] = ()


def proved_bound(
    placement: Placement,
    num_microbatches: int,
    costs: ScheduleCosts,
    *,
    objective: Objective,
    max_activations: int | None,
) -> Bound:
    """The best bound on schedules of this placement within the limits of the costs and this one."""
    least = LeastCosts.of(placement, costs, max_activations=max_activations or None)
    return best_bound(least, num_microbatches, objective=objective)


def bound_for(case: ScheduleCase, schedule: Schedule, costs: ScheduleCosts) -> Bound:
    """The bound on schedules of the same placement within the limits of the case."""
    return proved_bound(
        schedule.placement,
        schedule.num_microbatches,
        costs,
        objective=Objective(case.objective),
        max_activations=case.max_activations,
    )
