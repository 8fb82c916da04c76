from __future__ import annotations

from random import Random

import pytest
from hypothesis import event, given

from instances import profile_of, setting_of, stages_of
from oracles import least_equal_time, stack_order, time_of_legal_plan
from random_cases import cases
from strategies import BLOCK_NAME, piper_objects, random_piper
from trainwright.errors import InvalidInput
from trainwright.partitioning.downset_dp import Restrictions
from trainwright.partitioning.profile_planner import plan_equal


def names_of(piper):
    return {node["name"] for node in piper["nodes"]}


def equal_stages(piper, **options):
    plan = plan_equal(profile_of(piper), setting_of(piper), **options)
    return None if plan is None else stages_of(plan)


def assert_equals_the_oracle(piper, *, block_name, tensor_degrees):
    stages = equal_stages(
        piper, block_layer=block_name, restrictions=Restrictions(tensor_degrees=tensor_degrees)
    )
    least = least_equal_time(piper, block_name=block_name, tensor_degrees=tensor_degrees)
    if least is None:
        assert stages is None
    else:
        assert stages is not None
        assert time_of_legal_plan(piper, stages) == pytest.approx(least, rel=1e-12)
    return least


@pytest.mark.slow
@given(piper_objects())
@cases(60)
def test_it_finds_the_fastest_of_all_equal_splits(piper):
    for block_name in (None, *sorted(names_of(piper))):
        for tensor_degrees in (None, (1,)):
            least = assert_equals_the_oracle(
                piper, block_name=block_name, tensor_degrees=tensor_degrees
            )
            event("none fits" if least is None else "fits")


@pytest.mark.parametrize("first", [0, pytest.param(40, marks=pytest.mark.slow)])
def test_it_finds_the_fastest_of_all_equal_splits_on_a_fixed_corpus(first):
    outcomes = []
    for seed in range(first, first + 60 if first else 40):
        piper = random_piper(Random(seed), max_devices=30)
        for name in sorted(names_of(piper)):
            least = assert_equals_the_oracle(piper, block_name=name, tensor_degrees=None)
            outcomes.append(least is not None)
    assert 0.2 < sum(outcomes) / len(outcomes) < 0.8


def layered(num_blocks, *, before=1, after=1, **setting):
    """Equal blocks in a row between lighter outer layers."""
    names = ["embedding"] * before + [BLOCK_NAME] * num_blocks + ["head"] * after
    ids = range(len(names))
    return {
        "maxMemoryPerDevice": 1000,
        "maxDevices": 64,
        "bandwidth": 1000,
        "mbsInBatch": 12,
        "nodes": [
            {
                "id": v,
                "name": name,
                "TMPCs": {
                    t: [
                        {
                            "id": "plain",
                            "timePerSample": 8 / int(t) if name == BLOCK_NAME else 1 / int(t),
                            "parameterSize": 0,
                            "memoryUsageA": 10 / int(t),
                            "memoryUsageB": 1,
                            "syncTimeFw": {str(v - 1): 0} if v else {},
                            "syncTimeBw": {str(v + 1): 0} if v + 1 < len(names) else {},
                        }
                    ]
                    for t in ("1", "2")
                },
            }
            for v, name in enumerate(names)
        ],
        "edges": [{"sourceId": u, "destId": u + 1, "communicationCost": 1} for u in ids[:-1]],
    } | setting


def test_the_last_stages_get_the_blocks_left_over():
    piper = layered(5, before=0, after=0, maxDevices=3, mbsInBatch=3, maxMemoryPerDevice=42)
    stages = equal_stages(piper, restrictions=Restrictions(tensor_parallel=False))
    assert [stage["nodes"] for stage in stages] == [[0], [1, 2], [3, 4]]


def test_outer_layers_join_the_first_and_the_last_stage_where_devices_are_short():
    piper = layered(4, maxDevices=2, mbsInBatch=2, maxMemoryPerDevice=63)
    stages = equal_stages(piper, restrictions=Restrictions(tensor_parallel=False))
    assert [stage["nodes"] for stage in stages] == [[0, 1, 2], [3, 4, 5]]


def test_outer_layers_stand_alone_where_that_is_faster():
    piper = layered(1, before=3, after=3, mbsInBatch=3)
    no_degrees = Restrictions(data_parallel=False, tensor_parallel=False)
    stages = equal_stages(piper, restrictions=no_degrees)
    assert [stage["nodes"] for stage in stages] == [[0, 1, 2], [3], [4, 5, 6]]


def test_without_tensor_parallelism_every_degree_is_1():
    stages = equal_stages(layered(4), restrictions=Restrictions(tensor_parallel=False))
    assert {stage["t"] for stage in stages} == {1}
    assert {stage["t"] for stage in equal_stages(layered(4, mbsInBatch=1))} == {2}


def test_among_equally_fast_splits_the_one_on_fewest_devices_wins():
    piper = layered(4)
    for node in piper["nodes"]:
        for (config,) in node["TMPCs"].values():
            config["timePerSample"] = 0
    for edge in piper["edges"]:
        edge["communicationCost"] = 0
    (stage,) = equal_stages(piper)
    assert (stage["d"], stage["t"]) == (1, 1)


def test_layers_within_a_plan_follow_the_stack_order():
    for seed in range(50):
        piper = random_piper(Random(seed), max_devices=30)
        stages = equal_stages(piper | {"maxMemoryPerDevice": 10**6}, block_layer=None)
        if stages is not None:
            assert [v for stage in stages for v in stage["nodes"]] == stack_order(piper)


def test_nothing_fits_into_too_little_memory():
    assert equal_stages(layered(4, maxMemoryPerDevice=5)) is None


def test_a_split_that_misses_by_a_billionth_does_not_fit():
    alone = Restrictions(data_parallel=False, tensor_parallel=False)
    piper = layered(1, before=0, after=0)
    assert equal_stages(piper | {"maxMemoryPerDevice": 11}, restrictions=alone) is not None
    assert equal_stages(piper | {"maxMemoryPerDevice": 11 - 1e-9}, restrictions=alone) is None


def test_splits_that_would_run_an_edge_backwards_are_dropped():
    piper = layered(4, before=0, after=0)
    piper["nodes"][2]["name"] = "glue"  # a non-block in front of a block joins the first stage
    alone = Restrictions(data_parallel=False, tensor_parallel=False)
    (only,) = equal_stages(piper, restrictions=alone)
    assert set(only["nodes"]) == {0, 1, 2, 3}


def test_an_unknown_block_name_is_refused():
    with pytest.raises(InvalidInput, match=r'block_layer: .* got "decoder"'):
        equal_stages(layered(2), block_layer="decoder")


def test_the_largest_floats_are_split_without_a_warning():
    huge = 1.7e308
    piper = layered(4, before=0, after=0, bandwidth=0.5)
    for node in piper["nodes"]:
        for (config,) in node["TMPCs"].values():
            config["parameterSize"] = huge
    assert {stage["d"] for stage in equal_stages(piper)} == {1}  # gradients forbid replicas
    for edge in piper["edges"]:
        edge["communicationCost"] = huge
    for node in piper["nodes"]:
        for (config,) in node["TMPCs"].values():
            config["timePerSample"] = huge
    assert equal_stages(piper) is not None
