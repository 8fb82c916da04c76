"""The baselines beside a plan: never better than it, and what they claim to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instances import profile_of, setting_of
from random_cases import cases
from small_profiles import transformer
from strategies import piper_objects
from trainwright.execution import Budget
from trainwright.formats.piper_json import read_piper
from trainwright.partitioning.downset_dp import UNRESTRICTED, Restrictions, solve
from trainwright.partitioning.profile_planner import baselines
from trainwright.plans.status import Status

FULL = (
    "no data parallelism",
    "no tensor parallelism",
    "no recomputation",
    "equal split",
    "equal split, no tensor parallelism",
)


def compared(profile, setting, allowed=UNRESTRICTED, best_s=None):
    found = baselines(
        profile,
        setting,
        restrictions=allowed,
        best_time_s=best_s,
        block_layer=None,
        budget=Budget(),
    )
    return {baseline.name: baseline for baseline in found}


@pytest.fixture
def small():
    file = read_piper(transformer(), source="small.json")
    return file.profiles[0], file.setting


def test_each_mode_is_the_optimum_under_its_own_restriction(small):
    best = solve(*small)
    found = compared(*small, best_s=best.time_per_sample_s)
    assert tuple(found) == FULL
    for name, mode in zip(
        FULL,
        (
            Restrictions(data_parallel=False),
            Restrictions(tensor_parallel=False),
            Restrictions(recompute=False),
        ),
        strict=False,
    ):
        alone = solve(*small, restrictions=mode)
        assert found[name].time_per_sample_s == alone.time_per_sample_s
        assert found[name].slowdown == alone.time_per_sample_s / best.time_per_sample_s
        assert found[name].num_stages == len(alone.plan.stages)


@pytest.mark.parametrize(
    ("allowed", "left"),
    [
        (Restrictions(data_parallel=False), FULL[1:]),
        (Restrictions(recompute=False), (FULL[0], FULL[1], FULL[3], FULL[4])),
        (Restrictions(tensor_parallel=False), (FULL[0], FULL[2], FULL[4])),
    ],
)
def test_a_mode_that_was_asked_for_is_not_compared_again(small, allowed, left):
    assert tuple(compared(*small, allowed)) == left


def test_without_a_best_time_there_is_no_slowdown(small):
    assert all(baseline.slowdown is None for baseline in compared(*small).values())


@pytest.mark.slow
@cases(80)
@given(piper_objects(max_layers=5), st.booleans(), st.booleans())
def test_no_baseline_beats_the_plan(piper, data_parallel, recompute):
    problem = profile_of(piper), setting_of(piper)
    allowed = Restrictions(data_parallel=data_parallel, recompute=recompute)
    best = solve(*problem, restrictions=allowed)
    for baseline in compared(*problem, allowed, best.time_per_sample_s).values():
        if baseline.time_per_sample_s is None:
            assert baseline.slowdown is None
            assert baseline.status in (Status.INFEASIBLE, Status.UNKNOWN)
        else:
            assert best.time_per_sample_s is not None
            assert baseline.time_per_sample_s >= best.time_per_sample_s * (1 - 1e-9)
