"""The bound for graphs too large to list lies below every plan, and close enough to be stated."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from wide_graphs import WideSpec, operator_profile, wide_profile, wide_setting

from instances import profile_of, setting_of
from seeded_pipers import least_time_of
from strategies import random_piper
from trainwright._native import _core
from trainwright.partitioning.downset_dp import UNRESTRICTED, compile_problem
from trainwright.partitioning.evaluate import evaluate

ROUNDING = 1e-12


def solved(profile, setting, *, max_downsets=None):
    native = compile_problem(profile, setting, UNRESTRICTED).native
    return _core.solve_partition(native, time_limit_s=inf, poll=None, max_downsets=max_downsets)


def test_without_a_list_the_bound_lies_below_the_best_of_all_plans():
    found_plans = 0
    for seed in range(200):
        piper = random_piper(Random(seed))
        least = least_time_of(seed)
        found = solved(profile_of(piper), setting_of(piper), max_downsets=1)
        if least is None:
            assert found.status == "unknown"
            continue
        found_plans += found.status != "unknown"
        assert found.lower_bound_s <= least * (1 + ROUNDING)
        assert found.time_per_sample_s >= least * (1 - ROUNDING)
    assert found_plans > 50


@pytest.mark.parametrize(
    ("num_devices", "degrees"),
    [
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((3, (1, 2, 4)), (500, (1,)))),
        *(pytest.param(n, (1,), marks=pytest.mark.papers) for n in (3, 32, 4000)),
        *(pytest.param(n, (1, 2, 4), marks=pytest.mark.papers) for n in (32, 500, 4000)),
    ],
)
def test_the_bound_holds_for_few_and_for_many_positions(num_devices, degrees):
    """Beyond 64 positions, neighbours are one place."""
    profile = operator_profile(WideSpec(seed=3, degrees=degrees, varied=True), count=24)
    setting = wide_setting(profile, num_devices=num_devices, tightness=0.5)
    best = solved(profile, setting)
    found = solved(profile, setting, max_downsets=1)
    assert best.status == "optimal"
    assert found.status == "gap"
    assert found.lower_bound_s <= best.time_per_sample_s * (1 + ROUNDING)
    assert found.time_per_sample_s >= best.time_per_sample_s * (1 - ROUNDING)


@pytest.mark.parametrize(
    ("profile", "gap"),
    [
        (operator_profile(WideSpec(seed=1), count=60), 0.065),
        pytest.param(operator_profile(WideSpec(seed=1), count=200), 0.023, marks=pytest.mark.slow),
        pytest.param(wide_profile(WideSpec(seed=1)), 0.03, marks=pytest.mark.slow),
    ],
    ids=["60 operators", "200 operators", "blocks of branches"],
)
def test_the_gap_of_generated_graphs_is_a_few_per_cent(profile, gap):
    """One multiplier for all positions left 9 to 11%."""
    found = solved(profile, wide_setting(profile, num_devices=8, tightness=0.5), max_downsets=1000)
    assert 1 - found.lower_bound_s / found.time_per_sample_s < gap


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_few_cuts_come_close_to_the_optimum_of_all_downsets(seed):
    """With the first seed they stay 0.65% above it, with the second they reach it."""
    profile = operator_profile(WideSpec(seed=seed), count=60)
    setting = wide_setting(profile, num_devices=4, tightness=0.5)
    best = solved(profile, setting)
    found = solved(profile, setting, max_downsets=1000)
    assert best.status == "optimal"
    assert best.time_per_sample_s * (1 - ROUNDING) <= found.time_per_sample_s
    assert found.time_per_sample_s <= best.time_per_sample_s * (
        1.007 if seed == 0 else 1 + ROUNDING
    )


def test_layers_exchanged_between_stages_make_a_plan_faster():
    """Cuts that are moved alone end at 91.90 ms here; with the exchange the plan takes 91.44 ms."""
    profile = operator_profile(WideSpec(seed=1), count=120)
    setting = wide_setting(profile, num_devices=8, tightness=0.5)
    native = compile_problem(profile, setting, UNRESTRICTED).native
    found = _core.solve_partition(native, time_limit_s=inf, poll=None, max_downsets=200)
    assert found.time_per_sample_s < 91.7e-3


def test_exchanged_layers_follow_the_edges_and_the_rules_of_several_degrees():
    """The public evaluator takes the plan as it stands, at the time that the core states."""
    profile = operator_profile(WideSpec(seed=2, degrees=(1, 2, 4), varied=True), count=45)
    setting = wide_setting(profile, num_devices=12, tightness=0.4)
    compiled = compile_problem(profile, setting, UNRESTRICTED)
    found = _core.solve_partition(compiled.native, time_limit_s=inf, poll=None, max_downsets=1000)
    costs = evaluate(compiled.decode(found.stages), profile, setting)
    assert max(cost.time_per_sample_s for cost in costs) == pytest.approx(
        found.time_per_sample_s, rel=ROUNDING
    )
    again = _core.solve_partition(compiled.native, time_limit_s=inf, poll=None, max_downsets=1000)
    assert again.time_per_sample_s == found.time_per_sample_s
