"""What must not change the answer, what must scale it, and what can only improve it."""

from __future__ import annotations

import copy
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instances import profile_of, setting_of, stages_of
from oracles import time_of_legal_plan
from random_cases import cases
from strategies import piper_objects, random_piper
from trainwright.partitioning.downset_dp import solve
from trainwright.plans import Status

BYTES = ("parameterSize", "memoryUsageA", "memoryUsageB")
LARGER = {"max_layers": 9, "max_devices": 20}


def least_time(piper) -> float:
    """The proven optimum, infinite where nothing fits."""
    outcome = solve(profile_of(piper), setting_of(piper))
    if outcome.status is Status.INFEASIBLE:
        return math.inf
    assert outcome.status is Status.OPTIMAL
    time_s = time_of_legal_plan(piper, stages_of(outcome.plan))
    assert outcome.time_per_sample_s == pytest.approx(time_s, rel=1e-13, abs=0)
    return outcome.time_per_sample_s


def same(time_s):
    return pytest.approx(time_s, rel=1e-9, abs=0)


def configs_of(piper):
    return [c for node in piper["nodes"] for configs in node["TMPCs"].values() for c in configs]


def renamed(rng: Random, piper):
    """Other ids, and nodes, edges, degrees and configs in another order."""
    ids = [node["id"] for node in piper["nodes"]]
    new = dict(zip(ids, rng.sample(range(1000, 2000), len(ids)), strict=True))

    def rename(config):
        syncs = {
            key: {str(new[int(v)]): size for v, size in config[key].items()}
            for key in ("syncTimeFw", "syncTimeBw")
        }
        return config | syncs

    nodes = []
    for node in rng.sample(piper["nodes"], len(ids)):
        table = rng.sample(list(node["TMPCs"].items()), len(node["TMPCs"]))
        nodes.append(
            {
                "id": new[node["id"]],
                "name": node["name"],
                "TMPCs": {t: rng.sample([rename(c) for c in cs], len(cs)) for t, cs in table},
            }
        )
    edges = [
        edge | {"sourceId": new[edge["sourceId"]], "destId": new[edge["destId"]]}
        for edge in rng.sample(piper["edges"], len(piper["edges"]))
    ]
    return piper | {"nodes": nodes, "edges": edges}


def with_split_edges(piper):
    """Every edge as two parallel ones that share its bytes."""
    edges = []
    for edge in piper["edges"]:
        part = edge["communicationCost"] // 3
        rest = edge["communicationCost"] - part
        edges += [edge | {"communicationCost": part}, edge | {"communicationCost": rest}]
    return piper | {"edges": edges}


def with_more_configs(rng: Random, piper, change):
    """Beside some config of each layer a copy, changed by `change`."""
    richer = copy.deepcopy(piper)
    for node in richer["nodes"]:
        configs = rng.choice([configs for configs in node["TMPCs"].values() if configs])
        configs.append(change(copy.deepcopy(rng.choice(configs))) | {"id": "added"})
    return richer


def worsened(config):
    syncs = {
        key: {v: size + 1 for v, size in config[key].items()}
        for key in ("syncTimeFw", "syncTimeBw")
    }
    figures = {key: config[key] + 1 for key in ("timePerSample", *BYTES)}
    return config | figures | syncs


def scaled(piper, *, time=1.0, size=1.0):
    """Times and 1/bandwidth times `time`; all bytes, memory and bandwidth times `size`."""
    result = copy.deepcopy(piper)
    for config in configs_of(result):
        config["timePerSample"] *= time
        for key in BYTES:
            config[key] *= size
        for key in ("syncTimeFw", "syncTimeBw"):
            config[key] = {v: value * size for v, value in config[key].items()}
    for edge in result["edges"]:
        edge["communicationCost"] *= size
    result["maxMemoryPerDevice"] *= size
    result["bandwidth"] *= size / time
    return result


@given(piper_objects(**LARGER), st.randoms(use_true_random=False))
@cases(40)
def test_names_and_order_do_not_matter(piper, rng):
    assert least_time(renamed(rng, piper)) == same(least_time(piper))


@given(piper_objects(**LARGER))
@cases(40)
def test_parallel_edges_are_one_edge(piper):
    assert least_time(with_split_edges(piper)) == same(least_time(piper))


@given(piper_objects(**LARGER), st.randoms(use_true_random=False))
@cases(40)
def test_a_dominated_option_changes_nothing(piper, rng):
    assert least_time(with_more_configs(rng, piper, worsened)) == same(least_time(piper))


@given(piper_objects(**LARGER), st.sampled_from((1e-12, 1e-9, 1e-3, 1e5, 1e12)))
@cases(40)
def test_scaled_times_scale_the_answer(piper, factor):
    assert least_time(scaled(piper, time=factor)) == same(least_time(piper) * factor)


@given(piper_objects(**LARGER), st.sampled_from((1e-6, 1e6, 1e9)))
@cases(40)
def test_scaled_bytes_change_nothing(piper, factor):
    assert least_time(scaled(piper, size=factor)) == same(least_time(piper))


def at_most(time_s):
    return time_s * (1 + 1e-9)


@given(piper_objects(**LARGER), st.integers(1, 10))
@cases(40)
def test_more_devices_are_never_slower(piper, more):
    richer = piper | {"maxDevices": piper["maxDevices"] + more}
    assert least_time(richer) <= at_most(least_time(piper))


@given(piper_objects(**LARGER), st.integers(1, 30))
@cases(40)
def test_more_memory_is_never_slower(piper, more):
    richer = piper | {"maxMemoryPerDevice": piper["maxMemoryPerDevice"] + more}
    assert least_time(richer) <= at_most(least_time(piper))


@given(piper_objects(**LARGER), st.sampled_from((1.001, 2, 1e3, 1e9)))
@cases(40)
def test_more_bandwidth_is_never_slower(piper, factor):
    richer = piper | {"bandwidth": piper["bandwidth"] * factor}
    assert least_time(richer) <= at_most(least_time(piper))


@given(piper_objects(**LARGER), st.randoms(use_true_random=False))
@cases(40)
def test_more_options_are_never_slower(piper, rng):
    def vary(config):
        return config | {key: rng.randint(0, 20) for key in ("timePerSample", *BYTES)}

    assert least_time(with_more_configs(rng, piper, vary)) <= at_most(least_time(piper))


def test_the_same_question_has_the_same_answer():
    for seed in range(60):
        piper = random_piper(Random(seed), **LARGER)
        first, second = (solve(profile_of(piper), setting_of(piper)) for _ in range(2))
        assert first.plan == second.plan
        assert (first.status, first.lower_bound_s) == (second.status, second.lower_bound_s)
        assert first.counters == second.counters


def test_a_prime_number_of_microbatches_leaves_one_replica_or_all():
    degrees = set()
    for seed in range(60):
        piper = random_piper(Random(seed)) | {"mbsInBatch": 7, "maxMemoryPerDevice": 1000}
        outcome = solve(profile_of(piper), setting_of(piper))
        if outcome.plan is not None:
            degrees |= {stage.data_parallel for stage in outcome.plan.stages}
    assert degrees == {1, 7}


def test_a_million_devices_are_no_harder_than_the_microbatches_can_use():
    for seed in range(30):
        piper = random_piper(Random(seed), **LARGER)
        enough = least_time(piper | {"maxDevices": 4 * piper["mbsInBatch"]})
        assert least_time(piper | {"maxDevices": 10**6}) == same(enough)


def test_a_free_model_takes_no_time_at_all():
    for seed in range(30):
        piper = scaled(random_piper(Random(seed), **LARGER), time=1.0, size=0.0)
        free = piper | {"maxMemoryPerDevice": 1, "bandwidth": 1, "maxDevices": 100}
        for config in configs_of(free):
            config["timePerSample"] = 0
        assert least_time(free) in (0.0, math.inf)
        assert least_time(free | {"mbsInBatch": 100}) == 0.0
