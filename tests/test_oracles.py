"""The oracles are checked too: by hand, and by an enumeration that knows nothing of downsets."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product
from random import Random

import pytest

from oracles import all_downsets, broken_rules, fits, least_time, price_plan, stack_order
from strategies import random_piper

ONE_CONFIG = {"id": "only", "parameterSize": 6, "memoryUsageA": 3, "memoryUsageB": 1}


def two_layers(**setting) -> dict:
    config = ONE_CONFIG | {"timePerSample": 10}
    first = config | {"syncTimeFw": {}, "syncTimeBw": {"2": 5}}
    second = config | {"syncTimeFw": {"1": 7}, "syncTimeBw": {}}
    return {
        "maxMemoryPerDevice": 100,
        "maxDevices": 4,
        "bandwidth": 2,
        "mbsInBatch": 4,
        "nodes": [
            {"id": 1, "name": "a", "TMPCs": {"1": [first]}},
            {"id": 2, "name": "b", "TMPCs": {"1": [second]}},
        ],
        "edges": [{"sourceId": 1, "destId": 2, "communicationCost": 20}],
    } | setting


def stage(nodes, d) -> dict:
    return {"nodes": nodes, "d": d, "t": 1, "config": {str(v): "only" for v in nodes}}


def test_a_pipeline_of_two_stages_is_priced_as_by_hand():
    first, last = price_plan(two_layers(), [stage([1], 2), stage([2], 1)])
    assert (first.compute, last.compute) == (5, 10)
    assert first.edge_traffic == Fraction(2 * (20 + 5), 2 * 2)
    assert last.edge_traffic == Fraction(2 * (20 + 7), 1 * 2)
    assert (first.gradient_sync, last.gradient_sync) == (Fraction(4 * 1 * 6, 2 * 4 * 2), 0)
    assert (first.in_flight, last.in_flight) == (2, 1)
    assert (first.memory, last.memory) == (3 * 2 + 1, 3 * 1 + 1)


def test_the_least_time_of_two_layers_is_that_of_one_replicated_stage():
    together = Fraction(20, 4) + Fraction(4 * 3 * 12, 4 * 4 * 2)
    assert least_time(two_layers()) == together


@pytest.mark.parametrize(("memory_bytes", "least"), [(8, 9.5), (7, 20.0), (6, None)])
def test_less_memory_makes_the_least_time_larger_until_nothing_fits(memory_bytes, least):
    assert least_time(two_layers(maxMemoryPerDevice=memory_bytes)) == least


def test_a_diamond_has_six_downsets():
    edges = [(1, 2), (1, 3), (2, 4), (3, 4)]
    piper = {
        "nodes": [{"id": v} for v in (1, 2, 3, 4)],
        "edges": [{"sourceId": u, "destId": v, "communicationCost": 0} for u, v in edges],
    }
    assert Counter(map(len, all_downsets(piper))) == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1}


def test_the_stack_order_takes_the_layer_pushed_last_first():
    edges = [(5, 1), (5, 2), (1, 3), (2, 3)]
    piper = {
        "nodes": [{"id": v} for v in (4, 5, 1, 2, 3)],
        "edges": [{"sourceId": u, "destId": v, "communicationCost": 0} for u, v in edges],
    }
    assert stack_order(piper) == [5, 2, 1, 3, 4]


def every_plan(piper):
    """All assignments of layers to numbered stages, with all degrees and configs."""
    nodes = piper["nodes"]
    options = [(t, c["id"]) for node in nodes for t in node["TMPCs"] for c in node["TMPCs"][t]]
    degrees = sorted({int(t) for t, _ in options})
    names = sorted({name for _, name in options})
    for places in product(range(len(nodes)), repeat=len(nodes)):
        num_stages = max(places) + 1
        if set(places) != set(range(num_stages)):
            continue
        choices = [list(product(range(1, piper["mbsInBatch"] + 1), degrees))] * num_stages
        for chosen in product(product(*choices), product(names, repeat=len(nodes))):
            shapes, configs = chosen
            yield [
                {
                    "nodes": [
                        v["id"] for v, place in zip(nodes, places, strict=True) if place == i
                    ],
                    "d": d,
                    "t": t,
                    "config": {str(v["id"]): c for v, c in zip(nodes, configs, strict=True)},
                }
                for i, (d, t) in enumerate(shapes)
            ]


@pytest.mark.parametrize(
    ("max_layers", "most_microbatches", "seeds"),
    [(2, 6, 30), pytest.param(3, 2, 5, marks=pytest.mark.slow)],
)
def test_the_least_time_is_that_of_all_conceivable_plans(max_layers, most_microbatches, seeds):
    for seed in range(seeds):
        piper = random_piper(Random(seed), max_layers=max_layers, max_devices=4)
        piper["mbsInBatch"] = min(piper["mbsInBatch"], most_microbatches)
        priced = (
            price_plan(piper, stages)
            for stages in every_plan(piper)
            if not broken_rules(piper, stages)
        )
        times = [max(price.time for price in prices) for prices in priced if fits(piper, prices)]
        least = pytest.approx(float(min(times)), rel=1e-12) if times else None
        assert least_time(piper) == least, seed
