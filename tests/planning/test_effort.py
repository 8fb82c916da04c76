"""What ends a search is said, with the option that buys more, and more effort proves more."""

from __future__ import annotations

import math

import pytest

import trainwright
from mixed_clusters import two_kinds
from trainwright.documents.open import open_model_plan
from trainwright.errors import InvalidInput
from trainwright.planning.splits.types import THOROUGH
from trainwright.plans.status import Status

SMALL = {"cluster": "dgx-h100", "devices": 4, "global_batch": 16, "sequence": 1024, "top": 0}
SMALL["calibration"] = "none"


def planned(effort=None, **options):
    return trainwright.plan("gpt2", **SMALL, pp=4, effort=effort, **options).document


@pytest.mark.slow
def test_more_effort_proves_the_best_loop():
    little, more, usual = (planned(effort, schedule="depth-first") for effort in (0.01, 0.25, None))
    assert [each.status for each in (little, more, usual)] == [Status.GAP, Status.GAP, "optimal"]
    assert little.lower_bound_s < more.lower_bound_s < usual.lower_bound_s
    assert usual.step_time_s <= more.step_time_s <= little.step_time_s
    assert more.left_open.startswith("the effort ended first; --effort 1 may win or prove")
    assert (little.request.effort, usual.request.effort) == (0.01, None)


@pytest.mark.slow
def test_a_bound_that_effort_does_not_raise_is_named():
    found = planned(schedule="v-half", micro_batch=1, recompute="none")
    assert "no sharper bound is known of v-half on 4 ranks" in found.left_open


def test_a_chain_with_a_cut_head_has_no_bound_that_effort_raises():
    found, more = (planned(effort, schedule="vocab-1", cp=1, tp=1) for effort in (None, 4))
    assert "no sharper bound is known of vocab-1 on 4 ranks" in found.left_open
    assert found.left_open == more.left_open
    assert found.lower_bound_s == more.lower_bound_s < found.step_time_s


@pytest.mark.parametrize("model", ["gpt2", "gpt2-xl"])
def test_a_chain_whose_splits_were_too_many_may_be_proved_by_more_effort(model):
    """Of the smaller the search ended before it came to look at any."""
    job = {**SMALL, "devices": 4 if model == "gpt2" else 8}
    job |= {"schedule": "1f1b", "cp": 1, "tp": 1, "dp": 1}
    little, usual = (trainwright.plan(model, **job, effort=effort) for effort in (0.01, None))
    assert little.document.left_open.startswith("the effort ended first; --effort 0.04 may win")
    assert usual.document.status is Status.OPTIMAL


@pytest.mark.slow
def test_a_search_that_its_effort_ended_names_the_option_that_buys_more(tmp_path):
    job = {"cluster": "dgx-h100", "devices": 16, "global_batch": 128, "sequence": 8192, "top": 0}
    job["framework"] = "any"
    little = trainwright.plan("llama3-8b", **job, effort=0.02)
    assert little.document.left_open.startswith("the effort ended first; --effort 0.08 may win")
    assert "left open: the effort ended first" in little.explain()
    little.save(tmp_path / "plan.json")
    assert open_model_plan(tmp_path / "plan.json") == little.document
    more = trainwright.plan("llama3-8b", **job).document
    assert more.status is Status.OPTIMAL
    assert more.left_open is None


def test_a_search_that_the_time_limit_ended_says_so():
    budget = trainwright.Budget()
    budget.on_progress = lambda progress: ends_with_a_plan(budget, progress)
    stopped = trainwright.plan("gpt2", **SMALL, budget=budget).document
    assert stopped.status is Status.GAP
    assert stopped.left_open.startswith("the time limit of")
    assert "--time-limit" in stopped.left_open


def ends_with_a_plan(budget, progress):
    if math.isfinite(progress.best):
        budget.time_limit_s = 1e-9


def test_patience_grows_with_the_effort():
    twice = THOROUGH.times(2)
    assert twice.gaps == THOROUGH.gaps
    for searched in (100, 1000, 4000):
        assert twice.gap(2 * searched) == THOROUGH.gap(searched)


@pytest.mark.parametrize("effort", [0, -1, 1e-3, 1e6])
def test_efforts_out_of_range_are_refused(effort):
    with pytest.raises(InvalidInput, match="effort"):
        planned(effort)


@pytest.mark.slow
def test_effort_is_spent_on_all_pools(tmp_path):
    job = {"cluster": two_kinds(), "global_batch": 64, "sequence": 1024, "schedule": "1f1b"}
    job |= {"cp": 1, "recompute": "none", "calibration": "none"}
    little, usual = (trainwright.plan("llama3-8b", **job, effort=own) for own in (0.01, None))
    assert (little.document.status, usual.document.status) == (Status.GAP, Status.OPTIMAL)
    assert little.document.lower_bound_s < usual.document.lower_bound_s
    assert little.document.left_open.startswith("the effort ended first; --effort 0.04 may win")
    assert "left open: the effort ended first" in little.explain()
    assert usual.document.left_open is None
    little.save(tmp_path / "plan.json")
    again = open_model_plan(tmp_path / "plan.json")
    assert (again, again.request.effort) == (little.document, 0.01)
