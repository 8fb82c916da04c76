"""The shortest schedule of a small pipeline, proved by a constraint solver (extra [exact]).

Every action is an interval; actions of a rank do not overlap, inputs arrive before their readers,
and what a rank holds at the start of an action stays within its limits. Microbatches are
interchangeable, so each stream runs them in order. On its own a solver proves next to nothing
(span bound 24 after 45 s where the work alone is 48 slots): the lower bound found outside is a
constraint, and the schedule found by the search a hint and an upper bound.

Times are integers inside: they are scaled by a power of ten until all are whole, at most six
digits. Transfers are free of contention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.errors import Contradiction, Fault, InvalidInput, MissingExtra, UnsupportedFeature
from trainwright.plans.schedule import SUM_ROUNDING, ActionKind, Schedule, TransferModel
from trainwright.plans.status import OPTIMAL_TOLERANCE, Bound, BoundName, Objective
from trainwright.scheduling.candidates import (
    Backward,
    Candidate,
    SearchOutcome,
    SearchQuestion,
    candidates,
    fusing_saves_memory,
)
from trainwright.scheduling.simulate import simulate

if TYPE_CHECKING:
    from trainwright.arrays import Floats
    from trainwright.execution import Budget

_F, _I, _W, _B, _R, *_ = ActionKind
_MAX_DIGITS = 6
_MAX_ACTIONS = 2000


def solve_exactly(
    question: SearchQuestion, found: SearchOutcome, *, budget: Budget, effort: float = 30.0
) -> SearchOutcome:
    """Shorten `found`, or prove more of it, until optimal or out of effort or of `budget`.

    `effort` is the solver's own deterministic clock, about a second each: without a time limit in
    `budget` the answer repeats.

    The answer keeps the placement and modes of `found`. Raises MissingExtra without OR-Tools,
    UnsupportedFeature for contended transfers and where activations may go to the host,
    InvalidInput beyond 2000 actions, and Contradiction where the solver refutes `found` or proves
    more than it takes.
    """
    cp_model = load_solver()
    schedule = found.schedule
    if question.offload:
        raise UnsupportedFeature(
            "exact search with copies to the host", alternative="leave out offload_s"
        )
    if schedule.num_actions > _MAX_ACTIONS:
        raise InvalidInput(
            [Fault("exact", f"at most {_MAX_ACTIONS} actions, got {schedule.num_actions}")]
        )
    if found.timeline.costs.transfer_model is not TransferModel.FREE:
        raise UnsupportedFeature(
            "exact search with contended transfers", alternative="use the transfer model free"
        )
    model = _Model(cp_model, question, found)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # more workers answer differently from run to run
    solver.parameters.random_seed = question.seed
    solver.parameters.max_deterministic_time = effort
    if math.isfinite(budget.remaining_s):
        solver.parameters.max_time_in_seconds = max(budget.remaining_s, 0.1)
    status = solver.solve(model.model)
    if status == cp_model.UNKNOWN:  # nothing was found, nor proved
        return found
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise Contradiction(
            f"the solver calls {solver.status_name(status)} what runs: {found.winner}"
        )
    timeline = simulate(model.schedule(solver), found.timeline.costs)
    proved_s = model.seconds(math.ceil(solver.best_objective_bound - 1e-6))
    best = found.timeline
    # Of actions at one instant the model does not say which comes first.
    if model.candidate.fits(timeline) and found.objective.of(timeline) < found.value_s:
        best = timeline
    value_s = found.objective.of(best)
    if proved_s > value_s * (1 + OPTIMAL_TOLERANCE):
        raise Contradiction(f"the solver proved {proved_s!r} s for a schedule of {value_s!r} s")
    own = found.pipeline_bound
    if proved_s > own.value_s * (1 + 1e-12):
        own = Bound(min(proved_s, value_s), BoundName.SOLVER)  # equal but for rounding
    is_open = found.is_open or _asks_more(question, found)
    bound = found.bound if is_open else own  # what others allow was not asked
    shortened = value_s < found.value_s
    return replace(
        found,
        timeline=best,
        bound=bound,
        pipeline_bound=own,
        is_open=is_open,
        winner="solver" if shortened else found.winner,
    )


def _asks_more(question: SearchQuestion, found: SearchOutcome) -> bool:
    """Whether other backwards, fused or split, could be shorter than in the modes of `found`."""
    fuses = bool((found.schedule.actions[:, 0] == _B).any())
    return question.backward is Backward.ANY and (
        fuses or fusing_saves_memory(found.timeline.costs)
    )


def load_solver() -> ModuleType:
    """OR-Tools' CP-SAT; raises MissingExtra where it is not installed."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise MissingExtra("exact search needs OR-Tools", extra="exact") from error
    module: ModuleType = cp_model
    return module


@dataclass(frozen=True, slots=True)
class _Scale:
    """Whole numbers for seconds."""

    units_per_s: float

    @classmethod
    def of(cls, *tables: Floats) -> _Scale:
        values = np.concatenate([table.ravel() for table in tables])
        values = values[np.isfinite(values)]
        for digits in range(_MAX_DIGITS + 1):
            scaled = values * 10.0**digits
            if np.allclose(scaled, np.round(scaled), rtol=1e-12, atol=1e-9):
                return cls(10.0**digits)
        raise UnsupportedFeature(
            f"exact search with times of more than {_MAX_DIGITS} decimals",
            alternative="round the times",
        )

    def whole(self, seconds: float) -> int:
        return round(seconds * self.units_per_s)


class _Model:
    """The constraints of one candidate; `start` [kind, stage, microbatch] are its variables."""

    def __init__(
        self, cp_model: ModuleType, question: SearchQuestion, found: SearchOutcome
    ) -> None:
        self.model: Any = cp_model.CpModel()
        self.found = found
        costs, schedule = found.timeline.costs, found.schedule
        self.placement = schedule.placement
        self.scale = _Scale.of(
            costs.duration_s, costs.forward_transfer_s, costs.backward_transfer_s
        )
        self.rows = {tuple(row): at for at, row in enumerate(schedule.actions.tolist())}
        self.kinds = sorted({(kind, stage) for kind, stage, _ in self.rows})
        self.microbatches = range(schedule.num_microbatches)
        self.horizon = self.scale.whole(found.timeline.makespan_s) * (
            1 if found.objective is Objective.MAKESPAN else 2
        )
        self.start: dict[tuple[int, ...], Any] = {}
        self.interval: dict[tuple[int, ...], Any] = {}
        self._add_actions()
        self._add_needs()
        self.candidate = _candidate_of(question, found)
        self._add_memory()
        self._add_objective()

    def seconds(self, units: float) -> float:
        return units / self.scale.units_per_s

    def duration(self, kind: int, stage: int) -> int:
        return self.scale.whole(float(self.found.timeline.costs.duration_s[kind, stage]))

    def _add_actions(self) -> None:
        for key in self.rows:
            kind, stage, _ = key
            length = self.duration(kind, stage)
            start = self.model.new_int_var(0, self.horizon - length, "")
            self.start[key] = start
            self.interval[key] = self.model.new_fixed_size_interval_var(start, length, "")
            self.model.add_hint(start, self.scale.whole(float(self._hint_s(key))))
        for stages in self.placement.stages_of_rank:
            own = [i for (_, stage, _), i in self.interval.items() if stage in stages]
            self.model.add_no_overlap(own)

    def _hint_s(self, key: tuple[int, ...]) -> float:
        return float(self.found.timeline.start_s[self.rows[tuple(key)]])

    def _after(self, later: tuple[int, ...], earlier: tuple[int, ...], transfer_s: float) -> None:
        wait = self.duration(*earlier[:2]) + self.scale.whole(transfer_s)
        self.model.add(self.start[later] >= self.start[earlier] + wait)

    def _add_needs(self) -> None:
        """Inputs, and every stream in microbatch order."""
        for kind, stage in self.kinds:
            for j in self.microbatches:
                key = (kind, stage, j)
                for need, transfer_s in self._needs_of(kind, stage):
                    self._after(key, (*need, j), transfer_s)
                if j > 0:
                    self._after(key, (kind, stage, j - 1), 0.0)

    def _needs_of(self, kind: int, stage: int) -> list[tuple[tuple[int, int], float]]:
        costs = self.found.timeline.costs
        ranks = self.placement.rank_of_stage
        needs: list[tuple[tuple[int, int], float]] = []
        if kind == _F and stage > 0:
            hop = ranks[stage - 1] != ranks[stage]
            needs.append(((_F, stage - 1), hop * float(costs.forward_transfer_s[stage - 1])))
        if kind in (_I, _B):
            needs.append(((_R if (_R, stage) in self.kinds else _F, stage), 0.0))
            if stage + 1 < len(ranks):
                hop = ranks[stage + 1] != ranks[stage]
                back = _B if (_B, stage + 1) in self.kinds else _I
                needs.append(((back, stage + 1), hop * float(costs.backward_transfer_s[stage])))
        if kind == _W:
            needs.append(((_I, stage), 0.0))
        if kind == _R:
            needs.append(((_F, stage), 0.0))
        return needs

    def _add_memory(self) -> None:
        """Levels as reservoirs: gains at starts, releases at ends, releases first."""
        delta, transient, room = self.candidate.resources
        size = len(ActionKind)
        for r in range(len(room)):
            self._add_limit(delta[r * size :][:size], transient[r * size :][:size], room[r])

    def _add_limit(self, delta: Floats, transient: Floats, room: Floats) -> None:
        scale = _Scale.of(delta, transient, room)
        for rank, stages in enumerate(self.placement.stages_of_rank):
            if not np.isfinite(room[rank]):
                continue
            times, changes = [], []
            for key in self.rows:
                kind, stage, _ = key
                if stage not in stages:
                    continue
                at_start = max(delta[kind, stage], 0.0) + transient[kind, stage]
                at_end = min(delta[kind, stage], 0.0) - transient[kind, stage]
                end = self.start[key] + self.duration(kind, stage)
                for time, change in ((self.start[key], at_start), (end, at_end)):
                    if change:
                        times.append(time)
                        changes.append(scale.whole(float(change)))
            capacity = math.floor(room[rank] * (1 + SUM_ROUNDING) * scale.units_per_s + 1e-6)
            self.model.add_reservoir_constraint(times, changes, -sum(map(abs, changes)), capacity)

    def _add_objective(self) -> None:
        found = self.found
        length = self.model.new_int_var(
            math.ceil(found.pipeline_bound.value_s * self.scale.units_per_s - 1e-6),
            self.scale.whole(found.value_s),
            "length",
        )
        for stages in self.placement.stages_of_rank:
            own = [key for key in self.rows if key[1] in stages]
            ends = [key for key in own if key[2] == self.microbatches[-1]]
            first = [(_F, stage, 0) for stage in stages]
            for key in ends:
                end = self.start[key] + self.duration(*key[:2])
                if found.objective is Objective.MAKESPAN:
                    self.model.add(length >= end)
                else:
                    # The rank's first action is the first forward of one of its stages.
                    lowest = min(first)
                    self.model.add(length >= end - self.start[lowest])
        self.model.minimize(length)

    def schedule(self, solver: Any) -> Schedule:
        """Orders by the solver's start times; of two at once, the one without duration first."""
        orders = []
        for stages in self.placement.stages_of_rank:
            own = [key for key in self.rows if key[1] in stages]
            own.sort(
                key=lambda key: (
                    solver.value(self.start[key]),
                    self.duration(*key[:2]),
                    key[0],
                    key[1] if key[0] == _F else -key[1],
                    key[2],
                )
            )
            orders.append(np.array(own, np.int32).reshape(-1, 3))
        return Schedule.of_ranks(
            orders,
            placement=self.placement,
            num_microbatches=self.found.schedule.num_microbatches,
        )


def _candidate_of(question: SearchQuestion, found: SearchOutcome) -> Candidate:
    """The candidate that `found` answers: same placement, same recomputed and fused stages."""
    kinds = {(kind, stage) for kind, stage, _ in found.schedule.actions.tolist()}
    recomputes = {stage for kind, stage in kinds if kind == _R}
    return next(
        candidate
        for candidate in candidates(question)
        if candidate.placement == found.schedule.placement
        and set(np.flatnonzero(candidate.recomputed).tolist()) == recomputes
    )
