"""Placements and layer schedules in their times, as a guard of orders of magnitude."""

from __future__ import annotations

import json
import os
import random
from itertools import pairwise
from pathlib import Path

import pytest

from trainwright.chips.layer_schedule import CoreOperator, LayerProblem, Unit, schedule_layer
from trainwright.execution import Budget
from trainwright.formats.phaze_json import read_phaze
from trainwright.partitioning.placement import place_case, placement_rules

SLOWEST_RATIO = 5
SHARED = os.environ.get("TRAINWRIGHT_SHARED")


def random_chain(devices: int, widths: tuple[int, ...], *, seed: int = 0):
    """98 layers, no two alike, with recomputation."""
    rng = random.Random(seed)
    sizes = [rng.uniform(0.5, 1.5) for _ in range(98)]

    def layer(v: int, width: int) -> dict:
        part = sizes[v] / width
        return {
            "id": v,
            "parameterSize": 3.6e9 * part,
            "activationSize": 2.8e9 * part,
            "optimalLatencyFw": 0.05 * part * (1 + 0.05 * width),
            "optimalLatencyBw": 0.1 * part * (1 + 0.05 * width),
            "isTensorParallelized": True,
        }

    edges = [{"sourceId": u, "destId": v, "communicationCost": 5e7} for u, v in pairwise(range(98))]
    return read_phaze(
        {
            "maxMemoryPerDevice": 80e9,
            "maxDevices": devices,
            "bandwidth": 4.3e9,
            "mbsInBatch": 4096,
            "nodes": {str(w): [layer(v, w) for v in range(98)] for w in widths},
            "edges": {str(w): edges for w in widths},
            "activationRecomputation": True,
            "optimizerAlgorithm": "SGD",
        }
    )


@pytest.mark.parametrize("cost_model", ["native", "phaze-compat"])
@pytest.mark.parametrize(("devices", "widths"), [(1024, (1, 2, 4, 8)), (2048, (4, 8))])
def test_ninety_eight_different_layers_are_placed(benchmark, devices, widths, cost_model) -> None:
    case, rules = random_chain(devices, widths), placement_rules(cost_model)
    found = benchmark.pedantic(
        place_case, (case,), {"rules": rules, "budget": Budget()}, rounds=3, warmup_rounds=1
    )
    assert found.status.value == "optimal"
    assert found.solver_s <= 0.3


@pytest.mark.skipif(SHARED is None, reason="needs reference data: set TRAINWRIGHT_SHARED")
def test_the_published_gpt3_case_is_placed(benchmark) -> None:
    path = Path(SHARED or "", "data", "codesign", "placement", "24_gpt3_D1024.json")
    case, rules = read_phaze(json.loads(path.read_text())), placement_rules("phaze-compat")
    found = benchmark.pedantic(
        place_case, (case,), {"rules": rules, "budget": Budget()}, rounds=3, warmup_rounds=1
    )
    assert found.cost.time_s == pytest.approx(88.0856154779657, rel=1e-9)
    assert found.solver_s <= 0.1


def test_a_dense_layer_is_scheduled_at_once(benchmark) -> None:
    operators = tuple(
        CoreOperator(unit=Unit.TENSOR, single_s=4.0 + v, spread_s=1.0 + v / 2) for v in range(16)
    )
    problem = LayerProblem(
        operators=operators,
        edges=tuple(pairwise(range(16))),
        num_tensor_cores=8,
        num_vector_cores=2,
    )
    assert benchmark(schedule_layer, problem).status.value == "optimal"
    assert benchmark.stats.stats.min <= SLOWEST_RATIO * 50e-6
