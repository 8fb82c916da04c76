"""Published profiles and proven optima (Tarnawski et al., NeurIPS 2021, and exact re-computation).

Every plan, baseline and optimum of the reference results, within 1e-9 relative, both ways: a value
below the proven optimum would mean that a constraint is broken. Where the published program stayed
above the optimum, matching it is a failure too.
"""

from __future__ import annotations

import json
import os
from functools import cache

import pytest

from instances import plan_of, setting_of, stages_of
from oracles import time_of_legal_plan
from reference import reference
from trainwright.formats.piper_json import read_piper
from trainwright.partitioning.downset_dp import solve
from trainwright.partitioning.equal import plan_equal
from trainwright.partitioning.evaluate import evaluate, find_overflows, time_per_sample_s
from trainwright.partitioning.problem import Restrictions
from trainwright.plans import Status

TOLERANCE = 1e-9

SOLVER_MODES = {
    "full": Restrictions(),
    "nodp": Restrictions(data_parallel=False),
    "notp": Restrictions(tensor_parallel=False),
    "noar": Restrictions(recompute=False),
}
BASELINES = {
    "equi_tp": {},
    "equi_notp": {"restrictions": Restrictions(tensor_parallel=False)},
    "equi_all_layers_notp": {
        "restrictions": Restrictions(tensor_parallel=False),
        "block_layer": None,
    },
}


def cases(modes, *, having="feasible"):
    """(instance, mode) of the reference results; none, and so a visible skip, without the data."""
    if "TRAINWRIGHT_SHARED" not in os.environ:
        return []
    return [
        pytest.param(instance, mode, id=f"{instance['name']}-{mode}")
        for family in sorted((reference() / "partitioning").glob("*.json"))
        for instance in json.loads(family.read_text())["instances"]
        for mode, result in instance["modes"].items()
        if mode in modes and having in result
    ]


@cache
def published_profile(name):
    piper = json.loads((reference() / "profiles" / name).read_text())
    return piper, read_piper(piper).profiles[0]


def load(instance):
    """The instance as a Piper object, and its nouns."""
    piper, profile = published_profile(instance["profile"])
    fields = ("maxMemoryPerDevice", "maxDevices", "mbsInBatch", "bandwidth")
    piper = piper | {field: instance[field] for field in fields}
    return piper, profile, setting_of(piper)


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
