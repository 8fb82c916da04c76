"""Sizes near the largest float: an answer, never a crash or a false proof."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from small_profiles import transformer
from trainwright.formats.piper_json import read_piper
from trainwright.partitioning.downset_dp import solve
from trainwright.plans.status import Status

LARGEST = sys.float_info.max


def sized(kept_bytes: float, state_bytes: float):
    value = transformer(num_blocks=2)
    for node in value["nodes"]:
        for configs in node["TMPCs"].values():
            for config in configs:
                config["memoryUsageA"], config["memoryUsageB"] = kept_bytes, state_bytes
    file = read_piper(value, source="sized")
    return file.profiles[0], file.setting


@pytest.mark.parametrize("memory_bytes", [1.0, 16e9, 1e200, 1.7e308, LARGEST])
def test_layers_beyond_all_memory_never_fit(memory_bytes):
    profile, setting = sized(1.7e308, 1.7e308)
    answer = solve(profile, replace(setting, memory_bytes=memory_bytes))
    assert answer.status is Status.INFEASIBLE


@pytest.mark.parametrize(("unit", "memory_bytes"), [(1e300, LARGEST), (1e150, 1e155), (1.0, 1e308)])
def test_layers_that_fit_into_huge_memory_do(unit, memory_bytes):
    profile, setting = sized(unit, unit)
    answer = solve(profile, replace(setting, memory_bytes=memory_bytes))
    ordinary = solve(*sized(1.0, 1.0))
    assert answer.status is Status.OPTIMAL
    assert answer.plan == ordinary.plan


@pytest.mark.parametrize("unit", [1.0, 1e150, 2.0**600])
def test_the_limit_is_as_sharp_in_any_unit(unit):
    profile, setting = sized(unit, unit)
    # On four devices, three stages of 1, 1 and 2 layers are leanest: 3 + 1, 2 + 1 and 2·(1 + 1).
    four = replace(setting, num_devices=4)
    enough = solve(profile, replace(four, memory_bytes=4 * unit))
    assert enough.status is Status.OPTIMAL
    less = solve(profile, replace(four, memory_bytes=4 * unit * (1 - 1e-9)))
    assert less.status is Status.INFEASIBLE


def test_one_enormous_option_does_not_spoil_the_others():
    value = transformer(num_blocks=2)
    for node in value["nodes"]:
        node["TMPCs"]["1"][1]["memoryUsageB"] = 1.7e308
    file = read_piper(value, source="one")
    answer = solve(file.profiles[0], file.setting)
    assert answer.status is Status.OPTIMAL


@pytest.mark.parametrize("memory_bytes", [sys.float_info.max / 2, sys.float_info.max])
def test_a_degree_that_few_layers_offer_does_not_spoil_huge_memory(memory_bytes):
    """What says that such a layer never fits is twice the memory, which may be no number."""
    value = transformer(num_blocks=2)
    for node in value["nodes"][1:]:
        node["TMPCs"].pop("4", None)
    file = read_piper(value, source="few")
    profile, setting = file.profiles[0], file.setting
    ordinary = solve(profile, replace(setting, memory_bytes=1e15))
    answer = solve(profile, replace(setting, memory_bytes=memory_bytes))
    assert answer.status is Status.OPTIMAL
    assert answer.plan == ordinary.plan
