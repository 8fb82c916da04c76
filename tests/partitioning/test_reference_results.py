"""Published profiles and proven optima (Tarnawski et al., NeurIPS 2021, and exact re-computation).

Every plan, baseline and optimum of the reference results, within 1e-9 relative, both ways: a value
below the proven optimum would mean that a constraint is broken. Where the published program stayed
above the optimum, matching it is a failure too.
"""

from __future__ import annotations

import os

import pytest

from instances import plan_of, stages_of
from oracles import time_of_legal_plan
from published_partitions import BASELINES, SOLVER_MODES, load, published_modes
from trainwright.partitioning.downset_dp import solve
from trainwright.partitioning.evaluate import evaluate, find_overflows, time_per_sample_s
from trainwright.partitioning.profile_planner import plan_equal
from trainwright.plans import Status

TOLERANCE = 1e-9


def cases(modes, *, having="feasible"):
    """Parameters of a test; none, and so a visible skip, without the data."""
    if "TRAINWRIGHT_SHARED" not in os.environ:
        return []
    return [
        pytest.param(instance, mode, id=f"{instance['name']}-{mode}")
        for instance, mode in published_modes(modes, having=having)
    ]


@pytest.mark.parametrize(("instance", "mode"), cases({"full"}, having="stages"))
def test_the_evaluator_reproduces_the_published_time_of_each_plan(instance, mode):
    _, profile, setting = load(instance)
    published = instance["modes"][mode]
    costs = evaluate(plan_of(published["stages"], instance["mbsInBatch"]), profile, setting)
    assert not find_overflows(costs, setting)
    assert time_per_sample_s(costs) == pytest.approx(published["time_per_sample"], rel=TOLERANCE)


@pytest.mark.parametrize(("instance", "mode"), cases(BASELINES))
def test_the_equal_split_reproduces_the_published_baselines(instance, mode):
    piper, profile, setting = load(instance)
    published = instance["modes"][mode]
    plan = plan_equal(profile, setting, **BASELINES[mode])
    assert (plan is not None) == published["feasible"]
    if plan is not None:
        time_s = time_of_legal_plan(piper, stages_of(plan))
        assert time_s == pytest.approx(published["time_per_sample"], rel=TOLERANCE)
        first = plan.stages[0]
        shape = len(plan.stages), first.data_parallel, first.tensor_parallel
        assert shape == (published["n_stages"], published["d"], published["t"])


@pytest.mark.parametrize(("instance", "mode"), cases(SOLVER_MODES))
def test_the_solver_proves_the_published_optimum(instance, mode):
    piper, profile, setting = load(instance)
    published = instance["modes"][mode]
    outcome = solve(profile, setting, restrictions=SOLVER_MODES[mode])
    if not published["feasible"]:
        assert outcome.status is Status.INFEASIBLE
        return
    assert outcome.status is Status.OPTIMAL
    assert outcome.lower_bound_s >= outcome.time_per_sample_s * (1 - TOLERANCE)
    assert outcome.time_per_sample_s == pytest.approx(published["time_per_sample"], rel=TOLERANCE)
    time_s = time_of_legal_plan(piper, stages_of(outcome.plan))
    assert outcome.time_per_sample_s == pytest.approx(time_s, rel=1e-13)
    if "original_excess" in published:
        original = published["original"]["time_per_sample"]
        assert outcome.time_per_sample_s < original * (1 - TOLERANCE)
