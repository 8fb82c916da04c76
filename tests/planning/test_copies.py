"""Copies of sharded state in the search: the same optimum as exhaustion, and where they pay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exhaustive import (
    LLAMA,
    TINY_MIXTURE,
    asked,
    distinct,
    eight_over_three_levels,
    least_step_s,
)
from exhaustive import two_nodes_of_two as pairs
from trainwright.execution import Budget
from trainwright.planning.question.question import Span
from trainwright.planning.search.search import plan_model
from trainwright.plans.plan import PIPELINE_INSIDE

ONE, TWO = Span.only(1), Span.only(2)
SPACE = {"context": ONE, "tensor": ONE, "microbatch_size": ONE}
SMALL = replace(LLAMA, num_layers=2, vocabulary_size=8192)


def question(model=SMALL, **given):
    return asked(
        model,
        **{"memory_gib": 60, "batch": 8, "sequence": 2048, "cluster": pairs(5e9)} | SPACE | given,
    )


def assert_found(asked_for):
    outcome = plan_model(asked_for, Budget())
    assert outcome.considered == sum(1 for _ in distinct(asked_for))
    least_s = least_step_s(asked_for)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
    assert outcome.priced[0].step.step_time_s == pytest.approx(least_s, rel=1e-9)
    return outcome.priced[0].candidate


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_the_planner_finds_what_exhaustion_finds_with_copies(zero_stage):
    assert_found(question(zero_stages=(zero_stage,), pipeline=ONE))


def test_so_it_does_under_the_second_mapping_alone():
    alone = {"mappings": (PIPELINE_INSIDE,), "zero_stages": (3,), "data": Span.only(4)}
    best = assert_found(question(**alone, pipeline=ONE, batch=16))
    assert (best.state_copies, best.axis_order) == (2, PIPELINE_INSIDE)


@pytest.mark.slow
@pytest.mark.parametrize("copies", [pytest.param(Span(), marks=pytest.mark.papers), TWO])
def test_so_it_does_beside_a_pipeline_over_three_levels(copies):
    given = {"zero_stages": (1,) if copies == TWO else (2, 3), "state_copies": copies}
    cluster = eight_over_three_levels(20e9, 5e9)
    asked_for = question(**given, cluster=cluster, devices=8, mappings=(PIPELINE_INSIDE,))
    assert_found(asked_for)


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"zero_stages": (0, 1, 2, 3)},
        {"zero_stages": (2, 3), "state_copies": TWO, "data": Span.only(4)},
        pytest.param(
            {"zero_stages": (1, 3), "state_copies": Span(least=1, most=2)}, marks=pytest.mark.papers
        ),
        {"zero_stages": (2, 3), "schedules": ("zb-h1",), "pipeline": ONE, "memory_gib": 14},
        pytest.param({"zero_stages": (3,), "memory_gib": 9}, marks=pytest.mark.papers),
        {"model": TINY_MIXTURE, "zero_stages": (1, 3), "memory_gib": 40},
    ],
)
def test_so_it_does_in_other_spaces(given):
    assert_found(question(**given))


def test_weights_are_gathered_in_the_node_where_memory_allows():
    everywhere = {"zero_stages": (3,), "pipeline": ONE, "data": Span.only(4), "batch": 16}
    best = assert_found(question(**everywhere))
    assert best.state_copies == 2
    tight = question(**everywhere, memory_gib=5)
    assert plan_model(tight, Budget()).priced[0].candidate.state_copies == 1
