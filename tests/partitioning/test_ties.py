"""Of plans that take the same time, the one that recomputes less."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instances import profile_of, setting_of
from small_profiles import transformer
from strategies import piper_objects
from trainwright.formats.piper_json import read_piper
from trainwright.partitioning.downset_dp import UNRESTRICTED, Restrictions, recompute_least, solve
from trainwright.partitioning.evaluate import find_overflows

RECOMPUTING = "activation recomp"


def free_recomputation(memory_bytes=16e9):
    """Recomputing takes no time here, so only memory speaks for it."""
    value = transformer(4, devices=1, memory_bytes=memory_bytes)
    for node in value["nodes"]:
        for plain, recomputing in node["TMPCs"].values():
            recomputing["timePerSample"] = plain["timePerSample"]
    file = read_piper(value, source="free.json")
    return file.profiles[0], file.setting


def recomputed(outcome):
    return sum(stage.options.count(RECOMPUTING) for stage in outcome.plan.stages)


def test_nothing_is_recomputed_where_everything_fits():
    profile, setting = free_recomputation(20e9)
    found = solve(profile, setting)
    assert recomputed(found) > 0  # else this test shows nothing
    better = recompute_least(found, profile, setting, restrictions=UNRESTRICTED)
    assert recomputed(better) == 0
    assert better.time_per_sample_s == found.time_per_sample_s
    assert better.lower_bound_s == found.lower_bound_s


@pytest.mark.parametrize(("room_bytes", "left"), [(0, 6), (0.45e9, 5), (0.9e9, 4), (1.8e9, 3)])
def test_as_many_layers_are_relieved_as_fit(room_bytes, left):
    """Relieving an end costs 0.45 GB, a block 0.9 GB."""
    profile, setting = free_recomputation()
    (stage,) = solve(profile, setting).stage_costs
    profile, setting = free_recomputation(stage.memory_bytes + room_bytes)
    found = solve(profile, setting)
    better = recompute_least(found, profile, setting, restrictions=UNRESTRICTED)
    assert recomputed(better) == left
    assert not find_overflows(better.stage_costs, setting)


def test_what_is_excluded_stays_excluded():
    profile, setting = free_recomputation()
    without = Restrictions(excluded_options=frozenset({"vanilla"}))
    found = solve(profile, setting, restrictions=without)
    assert recompute_least(found, profile, setting, restrictions=without) == found


@given(piper_objects(), st.booleans())
def test_time_and_proof_stay_and_everything_still_fits(piper, free):
    if free:
        for node in piper["nodes"]:
            for configs in node["TMPCs"].values():
                for config in configs:
                    config["timePerSample"] = configs[0]["timePerSample"]
    profile, setting = profile_of(piper), setting_of(piper)
    found = solve(profile, setting)
    better = recompute_least(found, profile, setting, restrictions=UNRESTRICTED)
    assert (better.status, better.lower_bound_s) == (found.status, found.lower_bound_s)
    if found.plan is None:
        assert better == found
        return
    assert better.time_per_sample_s <= found.time_per_sample_s
    assert not find_overflows(better.stage_costs, setting)
    assert recomputed(better) <= recomputed(found)
    cuts = [stage.layers for stage in better.plan.stages]
    assert cuts == [stage.layers for stage in found.plan.stages]
