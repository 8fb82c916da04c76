"""More of what a plan may use never makes the best plan slower: the whole planner, small models.

What fits and how long it takes is never worse with more devices, memory or bandwidth, so the bound
of the larger question holds for the plan of the smaller one; where the search of the larger one
ends without a gap, its plan is no slower.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.planning.question.question import Allowed, ModelQuestion, Span, Workload
from trainwright.planning.search.search import ModelOutcome, plan_model
from trainwright.plans.configuration import DEFAULT_OVERHEADS
from trainwright.plans.status import OPTIMAL_TOLERANCE, relative_gap

LLAMA = catalog.model("llama3-8b").config
MIXTRAL = catalog.model("mixtral-8x7b").config
GIB = 2**30

models = st.sampled_from(
    [
        replace(LLAMA, num_layers=3),
        replace(LLAMA, num_layers=6),
        catalog.model("gpt2").config,
        replace(MIXTRAL, num_layers=2),
    ]
)
families = st.sampled_from([("1f1b",), ("1f1b", "zb-h1", "zb-h2"), ("1f1b", "interleaved")])


@st.composite
def questions(draw) -> ModelQuestion:
    cluster = catalog.cluster("dgx-h100").with_nodes(2)
    (pool,) = cluster.pools
    inner, outer = pool.levels
    slow = replace(outer, bandwidth_bytes_per_s=draw(st.sampled_from([1e9, 1e10, 5e10])))
    cluster = replace(cluster, pools=(replace(pool, levels=(inner, slow)),))
    return ModelQuestion(
        model=draw(models),
        cluster=cluster.with_memory(draw(st.floats(6, 80)) * GIB),
        workload=Workload(
            global_batch=draw(st.sampled_from([4, 6, 16])),
            sequence_length=draw(st.sampled_from([512, 1024])),
        ),
        num_devices=draw(st.integers(1, 12)),
        overheads=DEFAULT_OVERHEADS,
        allowed=Allowed(
            schedules=draw(families),
            zero_stages=draw(st.sampled_from([(1,), (0, 1), (1, 3)])),
            context=draw(st.sampled_from([Span.only(1), Span()])),
        ),
    )


def planned(question: ModelQuestion) -> ModelOutcome:
    return plan_model(question, Budget(), num_alternatives=0)


def assert_no_slower(more: ModelQuestion, less: ModelQuestion) -> None:
    before = planned(less)
    assume(before.priced)
    after = planned(more)
    assert after.priced
    found_s, known_s = (each.priced[0].step.step_time_s for each in (after, before))
    assert after.lower_bound_s <= known_s * (1 + 1e-9)
    if relative_gap(found_s, after.lower_bound_s) <= OPTIMAL_TOLERANCE:
        assert found_s <= known_s * (1 + 1e-9)


@pytest.mark.slow
@cases(40)
@given(question=questions(), more=st.integers(1, 4))
def test_more_devices_are_never_slower(question, more):
    assert_no_slower(replace(question, num_devices=question.num_devices + more), question)


@pytest.mark.slow
@cases(40)
@given(question=questions(), factor=st.floats(1.0, 2.0))
def test_more_memory_is_never_slower(question, factor):
    memory_bytes = question.cluster.accelerator.memory_bytes * factor
    assert_no_slower(
        replace(question, cluster=question.cluster.with_memory(memory_bytes)), question
    )


@pytest.mark.slow
@cases(40)
@given(question=questions(), factor=st.floats(1.0, 4.0), level=st.sampled_from(["intra", "inter"]))
def test_more_bandwidth_is_never_slower(question, factor, level):
    levels = question.cluster.levels
    own = levels[0] if level == "intra" else levels[-1]
    faster = question.cluster.with_bandwidth(level, own.bandwidth_bytes_per_s * factor)
    assert_no_slower(replace(question, cluster=faster), question)


@pytest.mark.slow
@cases(30)
@given(question=questions(), less=st.floats(0.0, 0.2))
def test_keeping_less_free_is_never_slower(question, less):
    kept = replace(question, overheads=replace(DEFAULT_OVERHEADS, fragmentation=0.2))
    freer = replace(question, overheads=replace(DEFAULT_OVERHEADS, fragmentation=less))
    assert_no_slower(freer, kept)
