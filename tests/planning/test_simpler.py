"""The simpler of plans that predictions do not tell apart."""

from __future__ import annotations

import pytest

import trainwright
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.errors import InvalidInput
from trainwright.planning.reasons.objectives import PAIRED_ERROR

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
        kinds.append((degrees.tensor, degrees.pipeline, degrees.context, one.schedule))
    assert len(set(kinds)) == len(kinds)
    assert all(other.reason is None for other in planned(calibration="none").alternatives)
