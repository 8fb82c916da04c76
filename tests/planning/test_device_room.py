"""What plans leave free of a device: what is found fits by the rule of `estimate`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.costing.estimate import Estimator
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.planning.question.question import (
    Allowed,
    Candidate,
    ModelQuestion,
    Span,
    Workload,
    estimate_profile,
    rank_buffer_bytes,
    room_of_candidate,
    room_of_devices,
)
from trainwright.planning.reasons.infeasible import diagnose_model
from trainwright.planning.search.search import plan_model
from trainwright.plans.configuration import (
    DEFAULT_OVERHEADS,
    NO_OVERHEADS,
    Configuration,
    MemoryOverheads,
)
from trainwright.profile import Recompute
from trainwright.step.predict import price_configuration

MODEL = replace(catalog.model("llama3-8b").config, num_layers=24)
NODE = catalog.cluster("dgx-h100").with_nodes(1)
GIB = 2**30


def asked(*, memory_gib=80.0, overheads=DEFAULT_OVERHEADS, **allowed):
    return ModelQuestion(
        model=MODEL,
        cluster=NODE.with_memory(memory_gib * GIB),
        workload=Workload(global_batch=24, sequence_length=2048),
        num_devices=8,
        overheads=overheads,
        allowed=Allowed(
            **{
                "schedules": ("1f1b",),
                "zero_stages": (1,),
                "recompute": (Recompute.NONE,),
                "context": Span.only(1),
            }
            | allowed
        ),
    )


@given(
    workspace=st.floats(0, 1e10),
    reserve=st.floats(0, 1e10),
    fragmentation=st.floats(0, 0.99),
    usable=st.floats(3e10, 1e12),
)
def test_the_room_is_the_largest_peak_that_a_device_takes(
    workspace, reserve, fragmentation, usable
):
    kept = MemoryOverheads(
        workspace_bytes=workspace, reserve_bytes=reserve, fragmentation=fragmentation
    )
    room = kept.room_bytes(usable)
    assert kept.needed_bytes(room + workspace) == pytest.approx(usable)


SHAPES = st.sampled_from(
    [
        ("1f1b", 1),
        ("zb-h1", 1),
        ("zb-h2", 1),
        ("interleaved", 2),
        ("interleaved", 3),
        ("zb-v", 2),
        ("v-half", 2),
        ("v-min", 2),
    ]
)


@cases(25)
@given(
    shape=SHAPES,
    ranks=st.sampled_from([1, 2, 4]),
    tensor=st.sampled_from([1, 2]),
    micro=st.sampled_from([1, 2]),
)
def test_the_search_counts_no_less_than_any_rank_keeps_and_all_that_one_does(
    shape, ranks, tensor, micro
):
    family, chunks = shape
    if ranks == 1 and family != "1f1b":
        return
    candidate = Candidate(
        microbatch_size=micro,
        tensor=tensor,
        pipeline=ranks,
        data=1,
        zero_stage=0,
        schedule=family,
        virtual_stages=chunks,
    )
    question = asked()
    profile = estimate_profile(
        Estimator(model=MODEL, cluster=question.cluster), question, candidate.point
    )
    run = Configuration(
        parallelism=candidate.degrees,
        microbatch_size=micro,
        global_batch=24,
        sequence_length=2048,
        schedule=family,
    )
    kept = [s.memory.buffer_bytes for s in price_configuration(MODEL, NODE, run).stages]
    assert rank_buffer_bytes(candidate, profile) == pytest.approx(max(kept))


@pytest.mark.parametrize("memory_gib", [80.0, pytest.param(40.0, marks=pytest.mark.slow), 32.0])
@pytest.mark.parametrize(
    "overheads",
    [
        DEFAULT_OVERHEADS,
        MemoryOverheads(reserve_bytes=4 * GIB, workspace_bytes=GIB, fragmentation=0.2),
    ],
    ids=["usual", "large"],
)
def test_a_plan_is_what_an_estimate_of_it_says_and_fits(memory_gib, overheads):
    question = asked(memory_gib=memory_gib, overheads=overheads, pipeline=Span(least=2, most=8))
    for found in plan_model(question, Budget()).priced:
        blocks = [len(stage.layers) for stage in found.plan.stages]
        blocks[0], blocks[-1] = blocks[0] - 1, blocks[-1] - 3
        if min(blocks) < 0:  # an end shared by two ranks is no stated run's
            continue
        run = Configuration(
            parallelism=found.candidate.degrees,
            microbatch_size=found.candidate.microbatch_size,
            global_batch=24,
            sequence_length=2048,
            blocks_per_stage=tuple(blocks),
            overheads=overheads,
        )
        step = price_configuration(MODEL, question.cluster, run)
        assert found.step.peak_memory_bytes == pytest.approx(step.peak_memory_bytes, rel=1e-12)
        assert found.step.step_time_s == pytest.approx(step.step_time_s, rel=1e-12)
        needed = overheads.needed_bytes(step.peak_memory_bytes)
        assert needed <= question.cluster.accelerator.usable_bytes


def test_where_nothing_is_kept_the_whole_of_what_is_usable_may_be_filled():
    assert room_of_devices(asked(overheads=NO_OVERHEADS)).accelerator == (
        asked().cluster.accelerator
    )


def test_a_device_smaller_than_what_is_kept_of_it_holds_no_plan():
    question = asked(overheads=MemoryOverheads(reserve_bytes=100 * GIB))
    candidate = Candidate(microbatch_size=1, tensor=1, pipeline=2, data=1, zero_stage=0)
    profile = estimate_profile(
        Estimator(model=MODEL, cluster=question.cluster), question, candidate.point
    )
    assert room_of_candidate(question, candidate, profile).accelerator.usable_bytes <= 2
    outcome = plan_model(question, Budget())
    assert outcome.exhausted
    assert not outcome.priced


def test_the_memory_that_is_offered_counts_what_is_kept():
    question = asked(memory_gib=8, overheads=MemoryOverheads(reserve_bytes=2 * GIB))
    (fix,) = [
        fix for fix in diagnose_model(question, Budget()).relaxations if fix.change == "memory"
    ]
    enough = replace(question, cluster=NODE.with_memory(fix.value * (1 + 1e-9)))
    assert plan_model(enough, Budget()).priced
    less = replace(question, cluster=NODE.with_memory(fix.value * 0.95))
    assert not plan_model(less, Budget()).priced
