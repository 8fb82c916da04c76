"""Scanning supersets, the way of large graphs, equals exhaustive search on small ones too.

Small graphs keep cursors for all pairs of downsets; without room for any, they are scanned and the
gap is closed by windows, which nothing else compares with an oracle.
"""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from wide_graphs import WideSpec, star_profile, wide_setting

from instances import profile_of, setting_of
from seeded_pipers import least_time_of
from strategies import random_piper
from trainwright._native import _core
from trainwright.partitioning.downset_dp import UNRESTRICTED, compile_problem

MANY_DIVISORS = 10_080  # 72 of them, more than a scan keeps a row of limits for


def solved(piper, **limits):
    native = compile_problem(profile_of(piper), setting_of(piper), UNRESTRICTED).native
    return _core.solve_partition(native, time_limit_s=inf, poll=None, **limits)


def assert_scan_equals(piper, least, **limits):
    found = solved(piper, max_pairs=0, **limits)
    if least is None:
        assert found.status == "infeasible"
        return
    assert found.status == "optimal"
    assert found.time_per_sample_s == pytest.approx(least, rel=1e-9, abs=0)
    assert least * (1 - 1e-9) <= found.lower_bound_s <= least * (1 + 1e-12)


def test_a_scan_equals_exhaustive_search_on_a_fixed_corpus():
    for seed in range(300):
        piper = random_piper(Random(seed))
        assert_scan_equals(piper, least_time_of(seed))


def test_a_bound_that_follows_the_stages_excludes_no_best_plan():
    """By default it is used on many devices only, where there is no oracle."""
    for seed in range(300):
        piper = random_piper(Random(seed))
        assert_scan_equals(piper, least_time_of(seed), priced_from=0)


def test_a_scan_equals_cursors_when_the_batch_has_many_divisors():
    for seed in range(40):
        piper = random_piper(Random(seed))
        piper = piper | {"maxDevices": MANY_DIVISORS, "mbsInBatch": MANY_DIVISORS}
        piper.pop("maxBatchSize", None)
        by_cursors = solved(piper, max_pairs=None)
        found = solved(piper, max_pairs=0)
        assert found.status == by_cursors.status
        if found.status == "optimal":
            assert found.time_per_sample_s == pytest.approx(
                by_cursors.time_per_sample_s, rel=1e-9, abs=0
            )


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "num_devices"), [(0, 96), (1, 96), (2, 163)])
def test_passes_near_the_best_plan_do_not_change_what_is_proved(seed, num_devices):
    """Many devices and several degrees: such passes come before those over all labels."""
    profile = star_profile(WideSpec(seed=seed, degrees=(1, 2)), width=11)
    setting = wide_setting(profile, num_devices=num_devices, tightness=0.4)
    native = compile_problem(profile, setting, UNRESTRICTED).native

    def found(**limits):
        return _core.solve_partition(native, time_limit_s=inf, poll=None, **limits)

    by_cursors, by_scan, among_few = found(), found(max_pairs=0), found(max_downsets=1000)
    assert by_cursors.status == by_scan.status == "optimal"
    least = by_cursors.time_per_sample_s
    assert by_scan.time_per_sample_s == pytest.approx(least, rel=1e-9, abs=0)
    assert among_few.lower_bound_s <= least * (1 + 1e-12)
    assert among_few.time_per_sample_s >= least * (1 - 1e-12)
