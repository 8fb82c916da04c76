"""More cuts never give a worse plan: a proved optimum lies below what any few of the cuts reach."""

from __future__ import annotations

from math import inf

import pytest
from wide_graphs import WideSpec, operator_profile, wide_setting

from trainwright._native import _core
from trainwright.partitioning.downset_dp import UNRESTRICTED, compile_problem

ROUNDING = 1e-12


# In each of them the last label of some window led to a plan below that window, once taken for a
# proof that there is no better one.
LARGER = [(32, 9, 8), (40, 1, 8), (48, 8, 4)]


@pytest.mark.parametrize(
    ("count", "seed", "num_devices"),
    [(32, 0, 8), (32, 10, 4), *(pytest.param(*each, marks=pytest.mark.slow) for each in LARGER)],
)
def test_a_proved_plan_is_no_slower_than_one_on_few_cuts(count, seed, num_devices):
    profile = operator_profile(WideSpec(seed=seed), count=count)
    setting = wide_setting(profile, num_devices=num_devices, tightness=0.5)
    native = compile_problem(profile, setting, UNRESTRICTED).native
    best = _core.solve_partition(native, time_limit_s=inf, poll=None)
    few = _core.solve_partition(native, time_limit_s=inf, poll=None, max_downsets=20)
    assert best.status == "optimal"
    assert few.counters["downsets"] <= best.counters["downsets"]
    assert best.time_per_sample_s <= few.time_per_sample_s * (1 + ROUNDING)
    assert few.lower_bound_s <= best.time_per_sample_s
