"""The simpler of plans that predictions do not tell apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainwright
from model_questions import SMALL, question
from model_questions import planned as planned_model
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.planning.question.question import Span
from trainwright.planning.reasons.objectives import (
    PAIRED_ERROR,
    as_published,
    kinds_with_simplest,
    simplest,
    with_plain,
)
from trainwright.planning.search.framework import plan_runnable
from trainwright.planning.search.search import plan_model
from trainwright.planning.splits.types import Priced
from trainwright.plans.plan import KnownLayout, Parallelism

RUN = {"cluster": "dgx-a100", "nodes": 2, "global_batch": 32, "sequence": 16384}


def planned(**options: str) -> ModelPlanResult:
    document = trainwright.plan("llama3-8b", **RUN, **options).document  # type: ignore[arg-type]
    assert isinstance(document, ModelPlanResult)
    return document


def test_a_preference_is_one_of_two_words() -> None:
    with pytest.raises(InvalidInput, match="fastest or simple"):
        planned(prefer="cheap", software="auto")


@pytest.mark.slow
def test_the_simple_plan_costs_less_than_predictions_miss_and_is_shown_with_that_reason() -> None:
    fastest, simple = planned(software="auto"), planned(software="auto", prefer="simple")
    assert fastest.step_time_s is not None and simple.step_time_s is not None
    assert fastest.step_time_s <= simple.step_time_s <= (1 + PAIRED_ERROR) * fastest.step_time_s
    assert fastest.parallelism is not None and simple.parallelism is not None
    assert fastest.parallelism.context > 1  # else the preference changes nothing here
    assert simple.parallelism.context == 1
    assert simple.schedule in ("1f1b", "interleaved")
    assert simple.request.prefer == "simple"
    for other in fastest.alternatives:
        if other.reason is not None:
            assert "simpler" in other.reason
            assert other.slowdown <= 1 + PAIRED_ERROR


@pytest.mark.slow
def test_runners_up_differ_in_kind_and_a_roofline_tells_every_plan() -> None:
    document = planned(software="auto")
    kinds = []
    for one in (document, *document.alternatives):
        degrees = one.parallelism
        assert degrees is not None
        if getattr(one, "published", None) is None:
            shared = degrees.context > 1
            kinds.append((degrees.tensor, degrees.pipeline, shared, one.schedule))
    assert len(set(kinds)) == len(kinds)
    assert all(other.reason is None for other in planned(calibration="none").alternatives)


LAYOUT = KnownLayout(
    model="a gpt",
    parameters=124e6,
    has_experts=False,
    device="A100-80GB-SXM",
    num_devices=8,
    sequence_length=1024,
    parallelism=Parallelism(tensor=2, pipeline=2, data=2),
    by="somebody",
    source="somewhere",
)

WIDE = Parallelism(tensor=4, pipeline=2, data=8)


def told(*layouts: KnownLayout, software: str | None = None) -> tuple[KnownLayout, Priced] | None:
    asked = replace(question(), software=software)
    return as_published(asked, layouts, lambda _: 80 * 2**30, Budget())


def test_the_layout_that_people_run_is_the_nearest_that_the_job_can_have() -> None:
    far = replace(LAYOUT, num_devices=64, parallelism=WIDE)
    found = told(far, LAYOUT)
    assert found is not None and found[0] is LAYOUT
    degrees = found[1].candidate
    assert (degrees.tensor, degrees.pipeline, degrees.context, degrees.data) == (2, 2, 1, 2)
    assert planned_model(SMALL).priced[0].step.step_time_s <= found[1].step.step_time_s
    # No replicas of it on 8 devices.
    whole = replace(LAYOUT, num_devices=6, parallelism=Parallelism(tensor=2, pipeline=3))
    found = told(whole, far)
    assert found is not None and found[0] is far


def test_what_the_named_program_runs_comes_before_what_is_nearer() -> None:
    near = replace(LAYOUT, by="NeMo")
    own = replace(LAYOUT, num_devices=64, parallelism=WIDE, by="torchtitan")
    for software, first in ((None, near), ("nemo", near), ("torchtitan", own), ("fsdp2", own)):
        found = told(near, own, software=software)
        assert found is not None and found[0] is first
    found = told(near, software="torchtitan")
    assert found is not None and found[0] is near


def test_a_layout_of_another_size_or_with_experts_is_not_what_people_run_here() -> None:
    assert told(replace(LAYOUT, parameters=1e9), replace(LAYOUT, has_experts=True)) is None


def test_runners_up_that_differ_in_kind_change_neither_plan_nor_bound() -> None:
    usual, told = planned_model(SMALL), plan_model(SMALL, Budget(), in_kind=True)
    assert told.priced[0].plan == usual.priced[0].plan
    assert told.lower_bound_s == usual.lower_bound_s
    kinds = [
        ((one.tensor, one.pipeline, one.num_devices, one.schedule), one.context > 1)
        for one in (each.candidate for each in told.priced)
    ]
    assert len(kinds) > 1
    for cut, shared in kinds:  # one that shares sequences comes before one that does not, or alone
        assert [each for own, each in kinds if own == cut] in ([shared], [True, False])


def test_where_one_kind_is_known_those_next_to_the_best_join_it() -> None:
    outcome = plan_model(SMALL, Budget(), num_alternatives=0)
    (best,) = outcome.priced
    found = with_plain(SMALL, outcome, Budget(), count=2, is_first=False).priced
    assert found[0] is best
    cuts = [(one.tensor, one.pipeline) for one in (each.candidate for each in found)]
    assert len(set(cuts)) == len(cuts) == 3
    steps = [each.step.step_time_s for each in found]
    assert steps == sorted(steps)
    none = with_plain(SMALL, outcome, Budget(), count=0, is_first=False).priced
    assert none == (best,)
    flat = replace(SMALL, allowed=replace(SMALL.allowed, framework="trl", zero_stages=(3,)))
    outcome = plan_runnable(flat, Budget(), num_alternatives=0)
    found = with_plain(flat, outcome, Budget(), count=2, is_first=False).priced
    assert found[0] is outcome.priced[0]
    assert {each.candidate.pipeline for each in found} == {1}  # it has no pipeline


def test_the_simple_plan_is_shown_whatever_number_of_kinds_comes_before() -> None:
    wide = replace(SMALL, allowed=replace(SMALL.allowed, context=Span(most=8)))
    ranked = plan_model(wide, Budget(), num_alternatives=40).priced
    first = next(each for each in ranked if each.candidate.context > 1)
    listed = (first, *(each for each in ranked if each.step.step_time_s > first.step.step_time_s))
    simple = simplest(listed)
    assert simple is not None and simple.candidate.context == 1
    for count in range(2, 6):
        assert any(each is simple for each in kinds_with_simplest(listed, count))


def test_a_plan_of_a_published_layout_says_whose_it_is() -> None:
    run = {"cluster": "dgx-a100", "nodes": 1, "global_batch": 64, "sequence": 2048}
    alone = {"pp": 1, "cp": 1, "micro_batch": 4}
    for tensor, own in ((1, True), (2, False)):
        asked = {**run, **alone, "tp": tensor, "software": "auto", "framework": "megatron"}
        result = trainwright.plan("llama3.2-1b", **asked)  # type: ignore[arg-type]
        document = result.document
        assert isinstance(document, ModelPlanResult)
        assert (document.published is not None) == own
        assert all(other.published is None for other in document.alternatives)
        assert ("these degrees were published by" in str(result.explain())) == own
        if own:
            assert document.published is not None
            assert document.published.startswith("Megatron-LM for gpt-1.7b on 32 A100-80GB-SXM")
