"""The place of the pipeline among the axes: geometry by enumeration, the search by exhaustion."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from exhaustive import (
    LLAMA,
    TINY_MIXTURE,
    asked,
    crossings,
    distinct,
    eight_over_three_levels,
    least_step_s,
)
from exhaustive import two_nodes_of_two as pairs
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.planning.question.layouts import (
    Layouts,
    layouts_of,
    schedules_of,
    with_mappings,
)
from trainwright.planning.question.question import Candidate, Point, Span, StepAim
from trainwright.planning.search.framework import plan_runnable
from trainwright.planning.search.frontier import Frontier, Shelf
from trainwright.planning.search.search import plan_model
from trainwright.plans.configuration import Configuration
from trainwright.plans.plan import AXIS_ORDERS, DATA_INSIDE, PIPELINE_INSIDE, Parallelism
from trainwright.step.predict import price_configuration
from trainwright.step.stages import RankSpacing, group_replicas, replica_hops

ONE, TWO = Span.only(1), Span.only(2)
# Little state and long sequences: what a pipeline sends counts beside what replicas exchange.
NARROW = replace(
    LLAMA,
    num_layers=3,
    vocabulary_size=1024,
    hidden_size=2048,
    ffn_size=2048,
    num_heads=16,
    num_kv_heads=2,
)
SPACE = {"context": ONE, "tensor": ONE, "zero_stages": (0, 1), "microbatch_size": ONE}


def question(**given):
    return asked(
        NARROW,
        **{"memory_gib": 8, "batch": 8, "sequence": 8192, "cluster": pairs(5e9)} | SPACE | given,
    )


@given(size=st.integers(1, 6), ranks=st.integers(2, 7), repeats=st.integers(1, 6), data=st.data())
def test_the_level_between_two_ranks_is_that_of_some_pair_of_devices(size, ranks, repeats, data):
    inner, outer = catalog.cluster("dgx-h100").with_nodes(2).levels
    node = data.draw(st.integers(1, 12))
    levels = (replace(inner, size=node), replace(outer, size=size * ranks * repeats // node + 1))
    sender, receiver = data.draw(
        st.lists(st.integers(0, ranks - 1), min_size=2, max_size=2, unique=True)
    )
    starts = [k * ranks * size + j for k in range(repeats) for j in range(size)]
    apart = any((s + sender * size) // node != (s + receiver * size) // node for s in starts)
    found = RankSpacing(size, ranks, repeats).level_between(levels, sender, receiver)
    assert found == levels[1 if apart else 0]


@given(
    sizes=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=4, max_size=4),
    node=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_replicas_meet_where_their_devices_do(sizes, node):
    t, c, d, p = sizes
    cluster = catalog.cluster("dgx-h100").with_nodes(max(1, t * c * d * p // node))
    inner, outer = cluster.levels
    pool = replace(cluster.pools[0], levels=(replace(inner, size=node), outer))
    degrees = Parallelism(tensor=t, context=c, data=d, pipeline=p, axis_order=PIPELINE_INSIDE)
    group = [(k * p * c + j) * t for k in range(d) for j in range(c)]
    near = max(sum(device // node == first // node for device in group) for first in group)
    lines = group_replicas(pool, degrees).gather[0]
    expected_s = (d * c // near - 1) * outer.latency_s + (near - 1) * inner.latency_s
    assert bool(lines) == (d * c > 1)
    assert [start_s for start_s, _ in lines[-1:]] == [pytest.approx(expected_s)] * bool(lines)


@pytest.mark.parametrize("degrees", [{"pipeline": 4}, {"data": 4}, {"tensor": 2, "pipeline": 2}])
def test_without_replicas_or_a_pipeline_the_order_changes_nothing(degrees):
    cluster = pairs(5e9)
    runs = [
        Configuration(
            parallelism=Parallelism(**degrees, axis_order=order),
            microbatch_size=1,
            global_batch=8,
            sequence_length=2048,
        )
        for order in AXIS_ORDERS
    ]
    one, other = (price_configuration(replace(NARROW, num_layers=4), cluster, r) for r in runs)
    assert one == other


def test_the_planner_finds_what_exhaustion_finds_over_both_orders():
    asked_for = question()
    outcome = plan_model(asked_for, Budget())
    assert outcome.considered == sum(1 for _ in distinct(asked_for))
    least_s = least_step_s(asked_for)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
    assert outcome.priced[0].step.step_time_s == pytest.approx(least_s, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"pipeline": TWO, "data": TWO},
        pytest.param(
            {"pipeline": TWO, "data": TWO, "schedules": ("zb-h1", "zb-h2")},
            marks=pytest.mark.papers,
        ),
        {"pipeline": TWO, "data": TWO, "mappings": (PIPELINE_INSIDE,)},
        pytest.param(
            {"pipeline": TWO, "zero_stages": (3,), "cluster": pairs(50e9)}, marks=pytest.mark.papers
        ),
        {"pipeline": TWO, "memory_gib": 2.2},
    ],
)
def test_so_it_does_in_narrower_spaces(given):
    asked_for = question(**given)
    found_s = plan_model(asked_for, Budget()).priced[0].step.step_time_s
    assert found_s == pytest.approx(least_step_s(asked_for), rel=1e-9)


@pytest.mark.slow
def test_experts_fill_what_lies_inside_the_pipeline():
    asked_for = asked(
        TINY_MIXTURE,
        memory_gib=40,
        cluster=pairs(5e9),
        zero_stages=(1,),
        microbatch_size=ONE,
        pipeline=TWO,
        context=ONE,
    )
    outcome = plan_model(asked_for, Budget())
    assert outcome.considered == sum(1 for _ in distinct(asked_for))
    assert outcome.priced[0].step.step_time_s == pytest.approx(least_step_s(asked_for), rel=1e-9)


@pytest.mark.parametrize(
    "given",
    [
        {"pipeline": TWO, "data": TWO},
        {"pipeline": TWO, "batch": 32, "cluster": eight_over_three_levels(200e9, 200e9)},
        {"zero_stages": (0, 3)},
        {"zero_stages": (1, 2), "state_copies": TWO},
        {"context": Span(least=2, most=4)},
        {"cluster": eight_over_three_levels(50e9, 50e9)},
    ],
)
def test_no_plan_of_experts_under_the_second_mapping_alone_is_below_the_roots(given):
    """With its experts on all of its devices a point has pairs that it has not with whole ones."""
    asked_for = asked(
        TINY_MIXTURE,
        memory_gib=40,
        devices=8,
        mappings=(PIPELINE_INSIDE,),
        **SPACE
        | {
            "batch": 8,
            "context": TWO,
            "zero_stages": (1,),
            "cluster": eight_over_three_levels(20e9, 5e9),
        }
        | given,
    )
    frontier = Frontier(asked_for, Shelf.of(asked_for), StepAim(), schedules_of(asked_for.allowed))
    assert frontier.open(Budget())
    least_s = least_step_s(asked_for)
    assert frontier.least_s <= least_s * (1 + 1e-12)
    outcome = plan_model(asked_for, Budget())
    assert outcome.considered == sum(1 for _ in distinct(asked_for))
    assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
    assert outcome.priced[0].step.step_time_s == pytest.approx(least_s, rel=1e-9)


def test_a_pipeline_in_the_node_beats_replicas_in_it_on_a_slow_network():
    both = question(batch=32, pipeline=TWO, data=TWO)
    best = plan_model(both, Budget()).priced[0]
    usual = plan_model(
        replace(both, allowed=replace(both.allowed, mappings=(DATA_INSIDE,))), Budget()
    ).priced[0]
    assert best.candidate.axis_order == PIPELINE_INSIDE
    assert best.step.step_time_s < 0.95 * usual.step.step_time_s


def test_a_framework_with_one_order_is_planned_with_it():
    free = question(batch=32, pipeline=TWO, data=TWO, zero_stages=(1,))
    for framework, order in (("megatron", PIPELINE_INSIDE), ("deepspeed", DATA_INSIDE)):
        allowed = replace(free.allowed, framework=framework)
        best = plan_runnable(replace(free, allowed=allowed), Budget()).priced[0]
        assert best.candidate.axis_order == order


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_the_pipeline_is_put_inside_where_that_brings_ranks_nearer(size):
    question_of = asked(LLAMA, memory_gib=80)
    cluster = catalog.cluster("gb200-nvl72").with_nodes(36)
    point = Point(microbatch_size=1, tensor=size)
    plain = layouts_of(
        point, question_of.allowed, num_devices=144, num_blocks=9, num_microbatches=12
    )
    found = with_mappings(plain, AXIS_ORDERS, point, cluster.levels)
    inside = found.at(found.inside)
    chosen = set(zip(inside.pipeline.tolist(), inside.data.tolist(), strict=True))
    assert all(min(pair) > 1 for pair in chosen)
    for pipeline, data in zip(plain.pipeline.tolist(), plain.data.tolist(), strict=True):
        one = Candidate(microbatch_size=1, tensor=size, pipeline=pipeline, data=data)
        other = replace(one, axis_order=PIPELINE_INSIDE)
        even = [n % (size * pipeline) == 0 or (size * pipeline) % n == 0 for n in (4, 72, 144)]
        counts = zip(even, crossings(other, cluster), crossings(one, cluster), strict=True)
        nearer = any(fills and ours < theirs for fills, ours, theirs in counts)
        if min(pipeline, data) > 1 and nearer:
            assert (pipeline, data) in chosen


@given(
    sizes=st.lists(st.integers(2, 8), min_size=2, max_size=3),
    shape=st.tuples(st.integers(1, 3), st.integers(2, 9), st.integers(2, 16)),
)
def test_where_the_pipeline_is_not_tried_inside_replicas_lie_no_nearer_there(sizes, shape):
    inner, _ = catalog.cluster("dgx-h100").levels
    levels = tuple(replace(inner, size=n) for n in sizes)
    size, p, d = shape
    assume(size * p * d <= math.prod(sizes))
    one = np.array([1])
    pair = Layouts(
        pipeline=p * one,
        data=d * one,
        num_microbatches=one,
        virtual_stages=one,
        inside=one > 1,
        copies=one,
        like=one,
    )
    point = Point(microbatch_size=1, tensor=size)
    if with_mappings(pair, AXIS_ORDERS, point, levels).size == 1:
        for unit in np.cumprod(sizes)[:-1].tolist():
            if unit % size == 0:
                beside = [[(r * d + k) * size // unit for k in range(d)] for r in range(p)]
                apart = [[(k * p + r) * size // unit for k in range(d)] for r in range(p)]
                least = [min(min(Counter(g).values()) for g in own) for own in (beside, apart)]
                assert least[0] >= least[1]


def test_seven_replicas_lie_nearer_with_a_pipeline_of_two_inside() -> None:
    (pool,) = catalog.cluster("dgx-h100").with_nodes(2).pools
    beside = Parallelism(pipeline=2, data=7, zero_stage=1)
    inside = replace(beside, axis_order=PIPELINE_INSIDE)
    near, far = (replica_hops(pool.levels, own)[0] for own in (inside, beside))
    assert [hop.ranks for hop in near] == [3, 3]  # 0, 2, 4, 6 | 8, 10, 12
    assert [hop.ranks for hop in far] == [7]  # 7 | 8 ... 13
