"""How far the preferred row, and the front, can be from the best on any number of devices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.api.sweep_rows import row_score
from trainwright.plan.status import OPTIMAL_TOLERANCE, Status, relative_gap

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from trainwright.api.sweep_goal import Goal
    from trainwright.plan.results.model_sweep import ModelSweepResult, SweepRow
    from trainwright.planning.aims import WeightedAim
    from trainwright.planning.objectives import Objective

    Floats = NDArray[np.float64]

LARGEST_POOL: Final = 2**20  # devices up to which every number of them is looked at


def objective_aim(objective: Objective, goal: Goal, *, fewest: int, most: int) -> WeightedAim:
    """What a search makes least for the objective, on `fewest` to `most` devices."""
    from trainwright.planning.objective_bounds import aim_of

    return aim_of(
        objective,
        goal.training,
        fewest=fewest,
        most=most,
        tokens_per_step=goal.tokens_per_step,
        checkpoint_bytes=goal.checkpoint_bytes,
    )


def objectives_to_search(goal: Goal) -> tuple[Objective, ...]:
    """Those that the rows' own bounds leave open; device-seconds tell a front what lies between."""
    from trainwright.planning.objectives import Objective

    wanted = [goal.objective, *goal.pareto]
    if goal.pareto:
        wanted.append(Objective.TOKENS_PER_DEVICE)
    known = {Objective.STEP_TIME} if goal.training.deadline_s is None else set()
    return tuple(each for each in dict.fromkeys(wanted) if each not in known)


def fewest_devices(rows: Iterable[SweepRow]) -> int:
    """Where the numbers of devices begin that a bound is about: the smallest row, or what it uses.

    Rows hold plans on at most their number of devices, so the first may use fewer.
    """
    return min(row.devices_used or row.devices for row in rows)


def bounded(document: ModelSweepResult, goal: Goal) -> ModelSweepResult:
    """The document with what its rows and searches prove of its objective and its front."""
    from trainwright.planning.objective_bounds import (
        least_scores,
        least_steps_s,
        pareto_excess,
    )
    from trainwright.planning.objectives import Objective

    fewest, most = document.devices_from, document.rows[-1].devices
    if fewest is None:
        return document

    def aim_for(objective: Objective) -> WeightedAim:
        return objective_aim(objective, goal, fewest=fewest, most=most)

    steps_s = least_steps_s(
        most,
        ((row.devices, _step_bound_s(row)) for row in document.rows),
        (
            (aim_for(Objective(each.objective)), math.inf if each.bound is None else each.bound)
            for each in document.searched
        ),
    )

    def scores(objective: Objective) -> Floats:
        return least_scores(objective, aim_for(objective), steps_s)[fewest:]

    bound = float(scores(goal.objective).min())
    if document.best is None:
        status = Status.INFEASIBLE if math.isinf(bound) else Status.UNKNOWN
        return replace(document, status=status)
    value = row_score(document.rows[document.best], goal, goal.objective)
    gap = relative_gap(value, bound)
    within = None
    if goal.pareto:
        one, other = goal.pareto
        front = [document.rows[index] for index in document.pareto]
        points = [(row_score(row, goal, one), row_score(row, goal, other)) for row in front]
        excess = pareto_excess(points, scores(one), scores(other))
        within = excess if math.isfinite(excess) else None
    return replace(
        document,
        status=Status.OPTIMAL if gap <= OPTIMAL_TOLERANCE else Status.GAP,
        objective_value=_figure(goal.objective, value),
        objective_bound=_figure(goal.objective, min(bound, value)),
        gap=gap,
        pareto_within=within,
    )


def _step_bound_s(row: SweepRow) -> float:
    """What no step on at most the row's devices is shorter than."""
    if row.status is Status.INFEASIBLE:
        return math.inf
    bound_s = row.lower_bound_s if row.lower_bound_all_s is None else row.lower_bound_all_s
    return bound_s or 0.0


def _figure(objective: Objective, score: float) -> float | None:
    """A score in the objective's own unit: tokens per second and device are to be many."""
    from trainwright.planning.objectives import Objective

    if objective is not Objective.TOKENS_PER_DEVICE:
        return score
    return 1 / score if score > 0 else None
