"""Words about an improvement that promise no more than was found."""

from __future__ import annotations

from dataclasses import replace

import reported
from trainwright.documents.improvement import bounded_plans, choice_gain, choice_title, no_choice


def test_a_bound_on_plans_of_a_framework_is_said_to_be_one() -> None:
    found = replace(reported.improvement(), framework=None)
    assert bounded_plans(found) == "no plan with the run's settings"
    of_one = replace(found, framework="megatron")
    assert bounded_plans(of_one) == "no plan for megatron with the run's settings"


def test_a_bound_on_plans_with_other_kernels_names_them() -> None:
    found = replace(reported.improvement(), framework=None)
    assert found.best_plan is not None
    added = replace(found, best_plan=replace(found.best_plan, options="--flash-attention"))
    said = bounded_plans(added)
    assert said == "no plan with the run's settings, --flash-attention or not,"


def test_a_change_that_falls_short_of_most_of_the_gain_is_not_said_to_have_it() -> None:
    found = reported.improvement()
    assert found.recommended is not None
    enough = replace(found.recommended, gain_share=0.8)
    said = replace(found, recommended=enough)
    assert choice_title(said) == "smallest change with most of the gain"
    assert choice_gain(said, enough).endswith("80% of the gain")
    short = replace(found.recommended, gain_share=0.78)
    said = replace(found, recommended=short)
    assert choice_title(said) == "fastest small change"
    assert choice_gain(said, short).endswith("78% of the gain (none was found that reaches 80%)")


def test_so_it_is_of_a_run_that_does_not_fit() -> None:
    found = replace(reported.improvement(), run_fits=False, best_known_s=1.0)
    assert found.recommended is not None
    for step_s, falls_short in ((1.05, False), (1.1, True)):
        chosen = replace(found.recommended, gain_share=None, step_time_s=step_s)
        said = choice_gain(replace(found, recommended=chosen), chosen)
        assert ("none was found that reaches 95%" in said) == falls_short


def test_only_where_all_changes_were_tried_none_is_said_to_be_faster() -> None:
    found = replace(reported.improvement(), framework=None, tried_all=False)
    assert no_choice(found) == "no change of one or two decisions was found that is faster"
    found = replace(found, tried_all=True)
    assert no_choice(found) == "no change of one or two decisions is faster"
    found = replace(found, framework="deepspeed")
    assert no_choice(found) == "no change of one or two decisions that deepspeed runs is faster"
