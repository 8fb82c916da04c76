"""State in several copies: what it costs in memory, inside a group and between groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.cluster import Hop
from trainwright.costing.communication import all_gather_time_s, all_reduce_time_s
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.plans.configuration import Configuration, Overlap
from trainwright.plans.plan import AXIS_ORDERS, PIPELINE_INSIDE, Parallelism
from trainwright.step.predict import price_configuration
from trainwright.step.stages import group_replicas

MODEL = replace(catalog.model("llama3-8b").config, num_layers=4)
MIXTURE = replace(catalog.model("mixtral-8x7b").config, num_layers=4)
CLUSTER = catalog.cluster("dgx-h100").with_nodes(4)
OPEN = Overlap(gradients=0.0, parameters=0.0)


def run(overlap=OPEN, **degrees):
    given = {"data": 32, "zero_stage": 3} | degrees
    return Configuration(
        parallelism=Parallelism(**given, sequence_parallel=given.get("tensor", 1) > 1),
        microbatch_size=1,
        global_batch=128,
        sequence_length=2048,
        overlap=overlap,
    )


def part(step, kind):
    return next(each for each in step.communication if each.kind == kind)


def test_a_copy_in_each_node_is_gathered_there_and_reduced_between_nodes():
    inner, outer = CLUSTER.levels
    node, across = (Hop(level=inner, ranks=8),), (Hop(level=outer, ranks=4),)
    replicas = group_replicas(CLUSTER.pool_of(), run(state_copies=4).parallelism)
    assert replicas.sizes[0] == 8
    ((start_s, byte_s),) = replicas.gather[0]
    assert start_s + byte_s * 1e9 == pytest.approx(all_gather_time_s(1e9, node))
    between_s = min(start + slope * 1e9 for start, slope in replicas.between[0])
    assert between_s == pytest.approx(all_reduce_time_s(1e9 / 8, across))


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_each_copy_holds_all_that_is_sharded(zero_stage):
    one, four = (
        price_configuration(MODEL, CLUSTER, run(state_copies=n, zero_stage=zero_stage))
        .stages[0]
        .memory
        for n in (1, 4)
    )
    names = ("optimizer_bytes", "gradient_bytes", "weight_bytes")
    for first_stage, name in enumerate(names, 1):
        factor = 4 if zero_stage >= first_stage else 1
        assert getattr(four, name) == pytest.approx(factor * getattr(one, name))


def test_gradients_are_reduced_between_copies_once_per_step():
    few, many = (
        price_configuration(MODEL, CLUSTER, replace(run(state_copies=4), global_batch=batch))
        for batch in (128, 256)
    )
    replicas = group_replicas(CLUSTER.pool_of(), run(state_copies=4).parallelism)
    scattered_s = (part(many, "gradients").exposed_s - part(few, "gradients").exposed_s) / 4
    between_s = part(few, "gradients").exposed_s - 4 * scattered_s
    alone = price_configuration(MODEL, CLUSTER, run(data=1, zero_stage=0))
    sync_bytes = alone.stages[0].memory.gradient_bytes
    expected_s = min(start + slope * sync_bytes for start, slope in replicas.between[0])
    assert between_s == pytest.approx(expected_s, rel=1e-6)


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_all_that_is_exchanged_is_exposed_where_nothing_hides(zero_stage):
    step = price_configuration(MODEL, CLUSTER, run(state_copies=4, zero_stage=zero_stage))
    for kind in ("gradients", "parameters"):
        assert part(step, kind).exposed_s > 0
        assert part(step, kind).hidden_s == pytest.approx(0.0, abs=1e-12)


@given(
    level=st.sampled_from(["intra", "inter"]),
    zero_stage=st.integers(1, 3),
    copies=st.sampled_from([1, 2, 4]),
    order=st.sampled_from(AXIS_ORDERS),
)
def test_more_bandwidth_is_never_slower(level, zero_stage, copies, order):
    one = run(
        tensor=2, pipeline=2, data=8, zero_stage=zero_stage, state_copies=copies, axis_order=order
    )
    rate = CLUSTER.levels[0 if level == "intra" else 1].bandwidth_bytes_per_s
    slow, fast = (
        price_configuration(MODEL, CLUSTER.with_bandwidth(level, rate * factor), one)
        for factor in (1.0, 1.5)
    )
    assert fast.step_time_s <= slow.step_time_s * (1 + 1e-12)


@pytest.mark.parametrize(
    ("degrees", "problem"),
    [
        ({"zero_stage": 0, "state_copies": 2}, "must be 1 without ZeRO, got 2"),
        ({"state_copies": 3}, r"must divide dp \(32\), got 3"),
        ({"state_copies": 32}, r"must be below dp \(32\), .* got 32; choose ZeRO 0"),
    ],
)
def test_copies_are_equal_groups_of_something_sharded(degrees, problem):
    with pytest.raises(InvalidInput, match=problem):
        price_configuration(MODEL, CLUSTER, run(**degrees))


def test_copies_hold_whole_sets_of_experts():
    with pytest.raises(InvalidInput, match="must divide the 4 replicas of each expert, got 8"):
        price_configuration(MIXTURE, CLUSTER, run(expert=8, state_copies=8))


def test_copies_lie_apart_by_whole_pipelines_where_these_lie_inside():
    degrees = Parallelism(
        tensor=2, pipeline=2, data=8, zero_stage=3, state_copies=4, axis_order=PIPELINE_INSIDE
    )
    replicas = group_replicas(CLUSTER.pool_of(), degrees)
    inner, outer = CLUSTER.levels
    ((start_s, _),) = replicas.gather[0]
    assert (replicas.sizes[0], start_s) == (2, inner.latency_s)
    assert all(start_s >= 2 * outer.latency_s for start_s, _ in replicas.between[0])
