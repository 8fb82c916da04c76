"""What the table of a model's plan says is proved, and why there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainwright
from trainwright.documents.plan_view import proof
from trainwright.execution import Budget
from trainwright.plans.status import Status


@pytest.fixture(scope="module")
def document():
    return trainwright.plan(
        "gpt2", cluster="dgx-h100", global_batch=8, sequence=1024, devices=2
    ).document


@pytest.mark.parametrize(
    ("one_stage", "words"),
    [
        (None, ""),
        (0.99, ""),
        (1.0, "; none with one stage per rank is faster"),
    ],
)
def test_a_gap_says_of_which_plans_it_is(document, one_stage, words):
    one_stage_s = None if one_stage is None else one_stage * document.step_time_s
    open_plan = replace(document, status=Status.GAP, gap=0.012, lower_bound_one_stage_s=one_stage_s)
    gap = "gap <= 1.20% to a proved bound on every plan that the request admits"
    assert proof(open_plan) == f"{gap} and megatron launches{words}"
    space = replace(open_plan.request.space, framework=None, schedules=("1f1b",))
    anyones = replace(open_plan, request=replace(open_plan.request, space=space))
    assert proof(anyones) == f"{gap}{words}"


def test_an_optimum_has_no_gap(document):
    assert "proved" in proof(replace(document, status=Status.OPTIMAL, gap=0.0))


AT_ONCE = Budget(time_limit_s=1e-9)


def test_a_search_that_ended_too_soon_claims_nothing():
    found = trainwright.plan(
        "gpt2", cluster="dgx-h100", global_batch=64, sequence=1024, devices=16, budget=AT_ONCE
    ).document  # on two devices a millisecond for each part of the space may be enough
    assert found.status is Status.GAP
    assert (found.lower_bound_s, found.gap) == (0.0, 1.0)
    assert proof(found) == "nothing is proved about other plans yet"


def test_a_search_that_ended_before_any_plan_names_its_limit():
    found = trainwright.plan(
        "llama3-405b", cluster="dgx-h100", global_batch=8, sequence=1024, devices=2, budget=AT_ONCE
    ).document
    assert found.status is Status.UNKNOWN
    (said,) = [text for text in found.warnings if text.startswith("time-limit: ")]
    assert "1e-09 s ended before a plan was found" in said
