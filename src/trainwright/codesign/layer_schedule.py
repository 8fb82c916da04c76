"""The shortest schedule of a layer's operators on a chip's cores, with a bound and a gap.

Three methods, in order: a layer whose operators depend on each other in one order takes the sum of
their shorter times, at once and proved; any other is scheduled by lists (no extra packages), and
searched in full where it is small; the constraint solver of the extra [exact] shortens the rest on
request. Every result passes an independent replay (`layer_check`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwright.codesign.layer_bounds import lower_bound_s
from trainwright.codesign.layer_list import SMALL, Found, list_schedule, search_small
from trainwright.codesign.layer_replay import Run
from trainwright.plan.status import OPTIMAL_TOLERANCE, Status, relative_gap

if TYPE_CHECKING:
    from trainwright.codesign.layer_problem import LayerProblem
    from trainwright.execution import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSchedule:
    """When and where each operator runs; `lower_bound_s` holds for every schedule.

    `method` is "chain", "list", "search" or "solver".
    """

    runs: tuple[Run, ...]
    makespan_s: float
    lower_bound_s: float
    method: str

    @property
    def gap(self) -> float:
        """(T − bound) / T, as a fraction."""
        return relative_gap(self.makespan_s, self.lower_bound_s)

    @property
    def status(self) -> Status:
        """`optimal` where the bound is met, else `gap`."""
        return Status.OPTIMAL if self.gap <= OPTIMAL_TOLERANCE else Status.GAP


def schedule_layer(problem: LayerProblem, *, moves: int = 25) -> LayerSchedule:
    """Schedule without extra packages; `moves` bounds how many improvements are tried.

    Never an error: what is not proved has status `gap`. Chains take microseconds, 60 operators
    about ten milliseconds.
    """
    if problem.is_chain:
        return _chain(problem)
    bound_s = lower_bound_s(problem)
    found, method = list_schedule(problem, moves=moves), "list"
    if len(problem.operators) <= SMALL and found.makespan_s > bound_s:
        found, method = search_small(problem, found, bound_s), "search"
    return made(found, bound_s, method)


def shorten_layer(
    problem: LayerProblem, schedule: LayerSchedule, *, budget: Budget, effort: float = 10.0
) -> LayerSchedule:
    """Shorten a schedule, or prove more of it, with the solver; never worse than what was given.

    `effort` is the solver's own deterministic clock, some three CPU seconds each. Out of effort or
    of time, the best schedule and bound so far come back. Raises `MissingExtra` without OR-Tools.
    """
    if schedule.status is Status.OPTIMAL:
        return schedule
    from trainwright.codesign.layer_exact import solve_layer

    return solve_layer(problem, schedule, budget=budget, effort=effort)


def made(found: Found, bound_s: float, method: str) -> LayerSchedule:
    """A schedule with its bound, which a proof closes."""
    proved = found.proved or found.makespan_s <= bound_s
    return LayerSchedule(
        runs=found.runs,
        makespan_s=found.makespan_s,
        lower_bound_s=found.makespan_s if proved else bound_s,
        method=method,
    )


def _chain(problem: LayerProblem) -> LayerSchedule:
    """One after another, each in its shorter time: no two can ever run at once."""
    now_s, runs = 0.0, [_NOTHING] * len(problem.operators)
    every = (range(problem.num_tensor_cores), range(problem.num_vector_cores))
    for v in problem.order:
        operator = problem.operators[v]
        spread = operator.spread_s is not None and operator.spread_s < operator.single_s
        start_s, now_s = now_s, now_s + operator.least_s
        tensor, vector, _ = problem.demand_of(v, spread=spread)
        runs[v] = Run(
            start_s=start_s,
            end_s=now_s,
            spread=spread,
            tensor_cores=tuple(every[0][:tensor]),
            vector_cores=tuple(every[1][:vector]),
        )
    return LayerSchedule(runs=tuple(runs), makespan_s=now_s, lower_bound_s=now_s, method="chain")


_NOTHING = Run(start_s=0.0, end_s=0.0, spread=False)
