"""The shortest schedule of a layer by a constraint solver (extra [exact]).

An interval per operator, whose length and cores depend on whether it is spread; one cumulative
constraint per class of cores and one for the link; the longest path and the work of each class as
cuts; the list schedule as hint and upper bound. Where cores come in pairs, an operator chooses its
core. Times are whole numbers inside, so fine that rounding moves no schedule by more than 1e-9 of
its length; what comes back is replayed with the times themselves.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from trainwright.chips.layer_problem import tails_s, work_s
from trainwright.chips.layer_schedule import Run, makespan_s, replay
from trainwright.errors import Contradiction, MissingExtra
from trainwright.plans.status import OPTIMAL_TOLERANCE, Status

if TYPE_CHECKING:
    from types import ModuleType

    from trainwright.chips.layer_problem import LayerProblem
    from trainwright.chips.layer_schedule import Cores, LayerSchedule
    from trainwright.execution import Budget

_DIGITS: Final = 1e11  # ticks of the schedule that is to be shortened
_DECIMALS: Final = 6


def shorten_layer(
    problem: LayerProblem, schedule: LayerSchedule, *, budget: Budget, effort: float = 10.0
) -> LayerSchedule:
    """Shorten a schedule, or raise its bound; the same schedule where effort or time run out.

    `effort` is the solver's own deterministic clock, some three CPU seconds each. One worker:
    without a time limit in `budget` the answer repeats.
    Raises `MissingExtra` without OR-Tools, and `Contradiction` where the solver refutes what runs.
    """
    if schedule.status is Status.OPTIMAL:
        return schedule
    model = _Model(_load(), problem, schedule)
    solver = model.cp.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = effort
    if math.isfinite(budget.remaining_s):
        solver.parameters.max_time_in_seconds = max(budget.remaining_s, 0.01)
    status = solver.solve(model.model)
    runs, proved_s = schedule.runs, schedule.lower_bound_s
    if status == model.cp.UNKNOWN:  # nothing was found, nor proved
        return schedule
    if status not in (model.cp.OPTIMAL, model.cp.FEASIBLE):
        raise Contradiction(f"the solver calls a layer {solver.status_name(status)} that runs")
    runs = min(model.decode(solver), schedule.runs, key=makespan_s)
    best_s = makespan_s(runs)
    proved_s = max(proved_s, model.bound_s(solver.best_objective_bound))
    if proved_s > best_s * (1 + OPTIMAL_TOLERANCE):
        raise Contradiction(f"the solver proved {proved_s!r} s for a layer that takes {best_s!r} s")
    return replace(
        schedule,
        runs=runs,
        makespan_s=best_s,
        lower_bound_s=min(proved_s, best_s),  # equal but for rounding
        method="solver" if runs is not schedule.runs else schedule.method,
    )


def _load() -> ModuleType:
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise MissingExtra("the exact schedule of a layer needs OR-Tools", extra="exact") from None
    found: ModuleType = cp_model
    return found


class _Model:
    """Variables and constraints of one layer."""

    def __init__(self, cp: ModuleType, problem: LayerProblem, schedule: LayerSchedule) -> None:
        self.cp, self.problem = cp, problem
        self.model: Any = cp.CpModel()
        self.scale, self.exact = _scale(problem, schedule.makespan_s)
        count = len(problem.operators)
        slack = 0 if self.exact else count
        self.horizon = math.ceil(schedule.makespan_s * self.scale) + slack
        self.starts = [self.model.new_int_var(0, self.horizon, f"s{v}") for v in range(count)]
        self.ends = [self.model.new_int_var(0, self.horizon, f"e{v}") for v in range(count)]
        self.modes: list[tuple[Any, Any]] = []
        self.cores: list[list[tuple[Any, Cores]]] = [[] for _ in range(count)]
        self.end = self.model.new_int_var(0, self.horizon, "T")
        self._add_intervals()
        self._add_order()
        self._add_hints(schedule.runs)
        self.model.minimize(self.end)

    def ticks(self, time_s: float) -> int:
        """Seconds as whole ticks."""
        return round(time_s * self.scale)

    def bound_s(self, bound: float) -> float:
        """A bound of the model as one of the problem: rounding moves no path by more."""
        slack = 0.0 if self.exact else len(self.problem.operators) / 2
        return max(0.0, math.ceil(bound - 1e-6) - slack) / self.scale

    def _add_intervals(self) -> None:
        """One interval per operator; its size and what it holds depend on how it runs.

        Two optional intervals that share their start and end would say the same, but CP-SAT
        (9.15) calls some such models infeasible that have a solution.
        """
        problem, model = self.problem, self.model
        held: list[list[tuple[Any, Any]]] = [[], [], []]
        by_core: dict[tuple[int, int], list[Any]] = {}
        for v, operator in enumerate(problem.operators):
            single = model.new_bool_var(f"one{v}")
            self.modes.append((single, single.negated()))
            can_spread = operator.spread_s is not None
            if not can_spread:
                model.add(single == 1)

            def chosen(one: int, every: int, single: Any = single) -> Any:
                return every + (one - every) * single if one != every else one

            one_ticks = self.ticks(operator.single_s)
            ticks = self.ticks(problem.duration_s(v, spread=True)) if can_spread else one_ticks
            interval = model.new_interval_var(
                self.starts[v], chosen(one_ticks, ticks), self.ends[v], f"i{v}"
            )
            alone = problem.demand_of(v, spread=False)
            spread = problem.demand_of(v, spread=True) if can_spread else alone
            for pairs, one, every in zip(held, alone, spread, strict=True):
                if one or every:
                    pairs.append((interval, chosen(one, every)))
            if problem.paired:
                self._choose_core(v, single, one_ticks, by_core)
                if can_spread:
                    self._block_cores(v, ticks, by_core)
        capacities = (problem.num_tensor_cores, problem.num_vector_cores, 1)
        for pairs, capacity in zip(held, capacities, strict=True):
            if pairs:
                intervals, demands = zip(*pairs, strict=True)
                model.add_cumulative(intervals, demands, capacity)
        for intervals_of_core in by_core.values():
            model.add_no_overlap(intervals_of_core)

    def _choose_core(
        self, v: int, single: Any, duration: int, by_core: dict[tuple[int, int], list[Any]]
    ) -> None:
        """With pairing an operator on one core says which, and a fused one takes both of a pair."""
        tensor, vector, _ = self.problem.demand_of(v, spread=False)
        limits = (self.problem.num_tensor_cores, self.problem.num_vector_cores)
        offered = (
            min(n for n, wanted in zip(limits, (tensor, vector), strict=True) if wanted)
            if (tensor or vector)
            else 0
        )
        chosen = []
        for core in range(min(offered, len(self.problem.operators))):
            literal = self.model.new_bool_var(f"c{v}.{core}")
            chosen.append(literal)
            own = ((core,) if tensor else (), (core,) if vector else ())
            self.cores[v].append((literal, own))
            interval = self.model.new_optional_fixed_size_interval_var(
                self.starts[v], duration, literal, f"i{v}.{core}"
            )
            for unit, wanted in enumerate((tensor, vector)):
                if wanted:
                    by_core.setdefault((unit, core), []).append(interval)
        if chosen:
            self.model.add(sum(chosen) == single)

    def _block_cores(
        self, v: int, duration: int, by_core: dict[tuple[int, int], list[Any]]
    ) -> None:
        spread = self.problem.demand_of(v, spread=True)
        interval = self.model.new_optional_fixed_size_interval_var(
            self.starts[v], duration, self.modes[v][1], f"i{v}.all"
        )
        for unit in (0, 1):
            for core in range(min(spread[unit], len(self.problem.operators))):
                by_core.setdefault((unit, core), []).append(interval)

    def _add_order(self) -> None:
        problem, model = self.problem, self.model
        for u, v in problem.edges:
            model.add(self.starts[v] >= self.ends[u])
        slack = 0 if self.exact else len(problem.operators)
        for v, tail_s in enumerate(tails_s(problem)):
            model.add(self.end >= self.ends[v])
            model.add(self.starts[v] + max(0, math.floor(tail_s * self.scale) - slack) <= self.end)
        for least_s in work_s(problem):
            model.add(self.end >= max(0, math.floor(least_s * self.scale) - slack))

    def _add_hints(self, runs: tuple[Run, ...]) -> None:
        for v, run in enumerate(runs):
            self.model.add_hint(self.starts[v], self.ticks(run.start_s))
            self.model.add_hint(self.modes[v][0], not run.spread)

    def decode(self, solver: Any) -> tuple[Run, ...]:
        """The solver's order, modes and cores, replayed with exact times."""
        problem = self.problem
        place = {v: k for k, v in enumerate(problem.order)}
        starts = [solver.value(start) for start in self.starts]
        order = sorted(place, key=lambda v: (starts[v], place[v]))
        spread = [not solver.value(single) for single, _ in self.modes]
        cores: list[Cores] | None = None
        if problem.paired:
            cores = [self._cores_of(v, solver, is_spread) for v, is_spread in enumerate(spread)]
        return replay(problem, order, spread, cores)

    def _cores_of(self, v: int, solver: Any, is_spread: bool) -> Cores:
        if is_spread:
            tensor, vector, _ = self.problem.demand_of(v, spread=True)
            return tuple(range(tensor)), tuple(range(vector))
        return next((own for chosen, own in self.cores[v] if solver.value(chosen)), ((), ()))


def _scale(problem: LayerProblem, makespan_s: float) -> tuple[float, bool]:
    """Ticks per second, and whether every time is a whole number of them."""
    times = [operator.single_s for operator in problem.operators]
    times += [o.spread_s for o in problem.operators if o.spread_s is not None]
    for digits in range(_DECIMALS + 1):
        scale = 10.0**digits
        whole = all((time_s * scale).is_integer() for time_s in times)
        if whole and makespan_s * scale < _DIGITS:
            return scale, True
    return (_DIGITS / makespan_s if makespan_s > 0 else 1.0), False
