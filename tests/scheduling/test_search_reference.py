"""The search on published rows: authors' generators, and what a search is known to reach."""

import json
import math

import numpy as np
import pytest

from reference import needs_reference, reference
from trainwright.execution.budget import Budget
from trainwright.plans.schedule import Placement, ScheduleCosts
from trainwright.plans.status import Objective, Status
from trainwright.scheduling.candidates import SearchOutcome, SearchQuestion
from trainwright.scheduling.search import search_schedule
from trainwright.scheduling.simulate import validate

SMALL = [4, 5, 6, 7, 8]
# Spans to reach with the default work: the lower of the authors' generators and of the best
# search known to us, by costs (F, I, W, transfer), ranks, microbatches and limits.
UNIFORM_STAGES = [
    ((3, 4, 2, 0), 4, 8, SMALL, [200, 183, 169, 160, 154]),
    ((2, 3, 2, 0), 4, 8, SMALL, [149, 136, 127, 120, 116]),
    ((4, 5, 3, 0), 4, 12, SMALL, [367, 344, 319, 306, 297]),
    ((1, 1, 1, 0), 4, 8, SMALL, [59, 56, 53, 51, 48]),
    ((1000, 1000, 1000, 0), 8, 32, [8, 10], [215000, 209000]),
    ((1000, 1000, 1000, 50), 8, 32, [8, 10], [223300, 211300]),
    ((1000, 1000, 1000, 0), 16, 64, [12, 18], [443000, 425000]),
    ((1000, 1000, 1000, 50), 16, 64, [12, 18, 32], [463600, 430100, 389200]),
    ((1296, 1260, 870, 20), 16, 64, [12, 18, 32], [579246, 500056, 451698]),
]

UNEQUAL_STAGES = [
    ({0: 1.15, 15: 1.4}, [8, 10, 16], [123785, 116390, 110160]),
    ({3: 1.25, 7: 1.25, 11: 1.25, 15: 1.25}, [8, 10, 16], [125640, 117365, 100080]),
]


def found(question: SearchQuestion) -> SearchOutcome:
    outcome = search_schedule(question, budget=Budget())
    assert isinstance(outcome, SearchOutcome)
    validate(outcome.schedule)
    if question.max_activations is not None and question.placement != "any":
        assert max(outcome.schedule.peak_activations) <= question.max_activations
    return outcome


def v_question(num_ranks: int, num_microbatches: int, limit: int, **times: object):
    placement = Placement.v(num_ranks)
    return SearchQuestion(
        placement=placement,
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        costs=ScheduleCosts.of(placement, **times),
        max_activations=limit,
        objective=Objective.SPAN,
    )


@pytest.mark.papers
@pytest.mark.parametrize(
    ("costs", "p", "m", "limit", "span"),
    [
        (costs, p, m, limit, span)
        for costs, p, m, limits, spans in UNIFORM_STAGES
        for limit, span in zip(limits, spans, strict=True)
    ],
)
def test_spans_with_equal_stages(costs, p, m, limit, span):
    forward_s, input_grad_s, weight_grad_s, transfer_s = costs
    question = v_question(
        p,
        m,
        limit,
        forward_s=forward_s,
        input_grad_s=input_grad_s,
        weight_grad_s=weight_grad_s,
        transfer_s=transfer_s,
    )
    assert found(question).value_s <= span


@pytest.mark.papers
@pytest.mark.parametrize(
    ("factors", "limit", "span"),
    [
        (factors, limit, span)
        for factors, limits, spans in UNEQUAL_STAGES
        for limit, span in zip(limits, spans, strict=True)
    ],
)
def test_spans_with_unequal_stages(factors, limit, span):
    """p = 8, m = 16, factor × (1000, 1000, 700) rounded down, transfers of 20."""
    per_stage = [factors.get(stage, 1.0) for stage in range(16)]
    thousand = [math.floor(1000 * factor + 1e-9) for factor in per_stage]
    question = v_question(
        8,
        16,
        limit,
        forward_s=thousand,
        input_grad_s=thousand,
        weight_grad_s=[math.floor(700 * factor + 1e-9) for factor in per_stage],
        transfer_s=20,
    )
    assert found(question).value_s <= span


@pytest.mark.papers
@needs_reference
def test_no_published_v_schedule_is_shorter_at_its_limit():
    rows = json.loads((reference() / "schedules" / "v_probe.json").read_text())
    limits: dict[tuple[object, ...], float] = {}
    for row in rows:
        key = row["p"], row["m"], tuple(row["cost_FIW_comm"]), row["limit"]
        known = [row["span"], row.get("span_reached_by_constraint_solver_45s", math.inf)]
        limits[key] = min(limits.get(key, math.inf), *known)
    for (p, m, costs, limit), span in limits.items():
        names = ("forward_s", "input_grad_s", "weight_grad_s", "transfer_s")
        question = v_question(p, m, limit, **dict(zip(names, costs, strict=True)))
        assert found(question).value_s <= span, (p, m, costs, limit)


@needs_reference
def test_unequal_stages_reach_the_authors_and_are_proved_optimal():
    rows = json.loads((reference() / "schedules" / "heterogeneous_probe.json").read_text())
    for row in rows:
        outcome = found(heterogeneous(row, Placement.loop(row["p"])))
        runs = (row["makespan_median_policy"], row["makespan_per_stage_times"])
        assert outcome.value_s <= min(run for run in runs if run is not None)
        assert outcome.status is Status.OPTIMAL
        if row["limit"] == 2 * row["p"]:
            assert outcome.value_s == pytest.approx(row["head_plus_work_bound"])


@pytest.mark.papers
@needs_reference
def test_free_placement_and_chunks_recover_a_third_of_the_head():
    rows = json.loads((reference() / "schedules" / "heterogeneous_probe.json").read_text())
    for row in rows:
        head_s = row["head_plus_work_bound"] - row["max_rank_work"]
        outcome = found(heterogeneous(row, "any"))
        assert outcome.value_s <= row["head_plus_work_bound"] - head_s / 3


def heterogeneous(row, placement):
    p = row["p"]
    costs = ScheduleCosts.of(
        Placement.loop(p),
        forward_s=np.array(row["F"]),
        input_grad_s=np.array(row["I"]),
        weight_grad_s=np.array(row["W"]),
        transfer_s=row["comm"],
    )
    return SearchQuestion(
        placement=placement,
        num_ranks=p,
        num_microbatches=row["m"],
        costs=costs,
        max_activations=row["limit"],
    )
