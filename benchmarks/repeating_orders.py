"""How short can an order be that repeats itself every n microbatches? What a solver says.

`python benchmarks/repeating_orders.py N…` with numbers of the questions of
`schedule_search.within_p_questions` (all with at most eight ranks where none is given); needs the
extra `exact`. Rows of the section on repeating orders of the dated report.

Microbatch j + n starts every action a period P after microbatch j. With t the start of an action of
the first n and phase(t) = t mod P: no two of a rank may overlap in phase (circularly), and at the
start of each forward of a rank no more activations may be live than fit, counted over all j. For a
given P that is a finite problem. P is halved down between what the bound allows and what is found;
a P that is neither reached nor refuted within the time says nothing.
"""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
from ortools.sat.python import cp_model
from schedule_search import within_p_questions

from trainwright.execution import Budget
from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.scheduling.candidates import SearchOutcome, SearchQuestion, candidates
from trainwright.scheduling.search import default_evaluations, lower_bound, search_schedule
from trainwright.scheduling.simulate import simulate

KINDS = _F, _I, _W = ActionKind.F, ActionKind.I, ActionKind.W
EFFORT = 20.0  # of the solver, per period: some ten seconds
HALVINGS = 7
SHARE_OF_WORK = 0.4
Key = tuple[ActionKind, int, int]  # kind, stage, microbatch of the first n


def starts(question: SearchQuestion, n: int, period: int) -> dict[Key, int] | bool | None:
    """Start times of the first n microbatches; False where none exist, None where not decided."""
    placement, costs, room = question.placement, question.costs, question.max_activations
    model, rank_of = cp_model.CpModel(), placement.rank_of_stage
    lasts = {
        key: round(costs.duration_s[key]) for key in itertools.product(KINDS, range(len(rank_of)))
    }
    most = 3 * len(rank_of) + 6  # periods that one microbatch may take
    at: dict[Key, Any] = {}
    turn: dict[Key, Any] = {}
    phase: dict[Key, Any] = {}
    for key in itertools.product(KINDS, range(len(rank_of)), range(n)):
        turn[key] = model.new_int_var(0, most, "")
        phase[key] = model.new_int_var(0, period - 1, "")
        at[key] = model.new_int_var(0, most * period, "")
        model.add(at[key] == turn[key] * period + phase[key])

    def after(later: Key, earlier: Key, lag: float = 0.0) -> None:
        model.add(at[later] >= at[earlier] + lasts[earlier[:2]] + round(lag))

    for s, j in itertools.product(range(len(rank_of)), range(n)):
        hop = s > 0 and rank_of[s - 1] != rank_of[s]
        if s > 0:
            after((_F, s, j), (_F, s - 1, j), hop * costs.forward_transfer_s[s - 1])
            after((_I, s - 1, j), (_I, s, j), hop * costs.backward_transfer_s[s - 1])
        after((_I, s, j), (_F, s, j))
        after((_W, s, j), (_I, s, j))
        for kind in KINDS:
            if j > 0:
                after((kind, s, j), (kind, s, j - 1))
    model.add(turn[_F, 0, 0] == 0)
    model.add(phase[_F, 0, 0] == 0)
    for stages in placement.stages_of_rank:
        own = list(itertools.product(KINDS, stages, range(n)))
        before: dict[tuple[Key, Key], Any] = {}
        for one, two in itertools.combinations(own, 2):
            first = before[one, two] = model.new_bool_var("")
            before[two, one] = first.negated()
            for a, b, holds in ((one, two, first), (two, one, first.negated())):
                model.add(phase[a] + lasts[a[:2]] <= phase[b]).only_enforce_if(holds)
                model.add(phase[b] + lasts[b[:2]] <= phase[a] + period)
        for new in (key for key in own if key[0] is _F):
            # Of a stage, floor((t - start) / P) + 1 have started by t, and as many less ended.
            live = [
                turn[_W, s, j]
                - turn[_F, s, j]
                + (1 if (_F, s, j) == new else before[(_F, s, j), new])
                - before[(_W, s, j), new]
                for s, j in itertools.product(stages, range(n))
            ]
            model.add(sum(live) <= room)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = EFFORT
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return False
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return {key: solver.value(at[key]) for key in turn}


def check(question: SearchQuestion, found: dict[Key, int], n: int, period: int) -> None:
    """The unrolled order runs in the simulator, fits, and takes no more than it should."""
    m = n * 12
    orders: list[list[tuple[int, int, int, int]]] = [[] for _ in range(question.num_ranks)]
    for (kind, stage, j), start in found.items():
        for again in range(m // n):
            row = (start + again * period, kind, stage, j + again * n)
            orders[question.placement.rank_of_stage[stage]].append(row)
    schedule = Schedule.of_ranks(
        [np.array([row[1:] for row in sorted(order)], np.int32) for order in orders],
        placement=question.placement,
        num_microbatches=m,
    )
    timeline = simulate(schedule, question.costs)
    assert max(schedule.peak_activations) <= question.max_activations
    most = max(found.values()) + (m // n - 1) * period + question.costs.duration_s.max()
    assert timeline.makespan_s <= most


def least_period(question: SearchQuestion, n: int, low: float, high: float) -> tuple[float, float]:
    """Per microbatch: more than what an order that repeats takes, and what one does take.

    A longer period is never worse: all starts can be stretched.
    """
    refuted, reached = math.ceil(low * n) - 1, math.ceil(high * n)
    undecided = reached
    for _ in range(HALVINGS):
        if undecided - refuted <= 1:
            break
        period = (refuted + undecided) // 2
        found = starts(question, n, period)
        if found is False:
            refuted = period
            continue
        undecided = period
        if found is not None:
            check(question, found, n, period)
            reached = period
    return refuted / n, reached / n


def of_many(question: SearchQuestion, m: int) -> tuple[float, float]:
    """What is found and proved for so many microbatches."""
    evaluations = SHARE_OF_WORK * default_evaluations(3 * question.placement.num_stages * m)
    asked = replace(question, num_microbatches=m, evaluations=math.ceil(evaluations))
    outcome = search_schedule(asked, budget=Budget())
    assert isinstance(outcome, SearchOutcome)
    return outcome.value_s, lower_bound(asked, candidates(asked)[0]).value_s


if __name__ == "__main__":
    wanted = set(map(int, sys.argv[1:]))
    for number, (label, question) in enumerate(within_p_questions()):
        if wanted and number not in wanted:
            continue
        p = question.num_ranks
        (few_s, few_bound_s), (many_s, many_bound_s) = (of_many(question, k * p) for k in (3, 6))
        found, bound = (many_s - few_s) / (3 * p), (many_bound_s - few_bound_s) / (3 * p)
        cells = [label, f"{bound:.1f}", f"{found:.1f}"]
        for n in (1,) if question.placement.num_stages > p else (1, 2):
            low, high = least_period(question, n, bound, 1.5 * found)
            cells.append(f"{low:.1f} to {high:.1f}")
        print("| " + " | ".join(cells) + " |", flush=True)
