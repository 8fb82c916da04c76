"""What the reader makes of a Piper object is worth what the object itself says."""

from __future__ import annotations

from random import Random

import pytest

from instances import plan_of, setting_of
from oracles import broken_rules, price_plan
from strategies import random_piper, random_stages
from trainwright.formats.piper_json import read_piper
from trainwright.partitioning.evaluate import evaluate


def test_a_plan_costs_as_read_what_the_file_says():
    num_legal = 0
    for seed in range(300):
        rng = Random(seed)
        piper = random_piper(rng, max_devices=30)
        stages = random_stages(rng, piper)
        file = read_piper(piper)
        assert file.setting == setting_of(piper)
        if broken_rules(piper, stages):
            continue
        num_legal += 1
        plan = plan_of(stages, piper["mbsInBatch"])
        costs = evaluate(plan, file.profiles[0], file.setting)
        for cost, exact in zip(costs, price_plan(piper, stages), strict=True):
            assert cost.time_per_sample_s == pytest.approx(float(exact.time), rel=1e-14)
            assert cost.memory_bytes == float(exact.memory)
    assert num_legal > 80
