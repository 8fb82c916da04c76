"""The uniform candidates of a model, and a bound that no plan of a candidate beats."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.cluster import Cluster
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.planning.allowed import ANY, Allowed, Span
from trainwright.planning.model_space import (
    LARGEST_BATCH,
    LARGEST_SEQUENCE,
    Candidate,
    Workload,
    candidates,
    microbatch_sizes,
    step_bound_s,
    tensor_degrees,
)
from trainwright.pricing.pipeline import PipelineStage, one_f_one_b_ends_s

times = st.floats(0, 10)
ZERO_1 = Allowed(zero_stages=(1,))
stage_times = st.lists(st.tuples(times, times, times), min_size=1, max_size=6)


def offered(**changes):
    question = {
        "num_devices": 16,
        "num_layers": 6,
        "num_microbatches": 12,
        "microbatch_size": 1,
        "tensor": 2,
        "allowed": ZERO_1,
    }
    return list(candidates(**question | changes))


@given(st.integers(1, 200), st.integers(1, 12), st.integers(1, 60), st.sampled_from([1, 2, 4, 8]))
def test_candidates_are_exactly_the_degrees_that_fit(devices, layers, microbatches, tensor):
    found = offered(
        num_devices=devices, num_layers=layers, num_microbatches=microbatches, tensor=tensor
    )
    wanted = {
        (p, d)
        for p in range(1, layers + 1)
        for d in range(1, microbatches + 1)
        if microbatches % d == 0 and p * d * tensor <= devices and p * d <= microbatches
    }
    assert [(c.pipeline, c.data) for c in found] == sorted(wanted, key=lambda x: (x[0], -x[1]))
    assert all(c.num_devices <= devices for c in found)


def test_without_data_parallelism_every_depth_has_one_replica():
    assert {c.data for c in offered(allowed=replace(ZERO_1, data=Span.only(1)))} == {1}
    assert [c.pipeline for c in offered(allowed=replace(ZERO_1, data=Span.only(1)))] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]


def test_fewer_devices_than_a_tensor_group_offer_nothing():
    assert offered(num_devices=1) == []


def test_microbatches_are_powers_of_two_that_divide_the_batch():
    assert microbatch_sizes(Workload(global_batch=24, sequence_length=8), ANY) == (1, 2, 4, 8)
    assert microbatch_sizes(Workload(global_batch=7, sequence_length=8), ANY) == (1,)
    assert microbatch_sizes(Workload(global_batch=4096, sequence_length=8), ANY)[-1] == 32
    assert microbatch_sizes(Workload(global_batch=24, sequence_length=8), Span.only(3)) == (3,)


def test_tensor_degrees_divide_heads_node_and_sequence():
    model, cluster = catalog.model("llama3-8b").config, catalog.cluster("dgx-h100")

    def degrees(sequence, *, allowed=ANY, where: Cluster = cluster):
        workload = Workload(global_batch=8, sequence_length=sequence)
        return tensor_degrees(model, where, workload, allowed)

    assert degrees(8192) == (1, 2, 4, 8)
    assert degrees(8190) == (1, 2)
    assert degrees(8191) == (1,)
    assert degrees(8192, allowed=Span.only(1)) == (1,)
    assert degrees(8192, where=catalog.cluster("gb200-nvl72")) == (1, 2, 4)


@pytest.mark.parametrize(
    ("batch", "sequence", "fault"),
    [
        (0, 1, "global_batch: must be from 1 to 1000000, got 0"),
        (LARGEST_BATCH + 1, 1, "global_batch: must be from 1 to 1000000, got 1000001"),
        (1, 0, "sequence_length: must be from 1 to 1000000000, got 0"),
        (1, LARGEST_SEQUENCE + 1, "sequence_length: must be from 1 to 1000000000"),
    ],
)
def test_a_workload_beyond_all_reason_is_refused(batch, sequence, fault):
    with pytest.raises(InvalidInput, match=fault):
        Workload(global_batch=batch, sequence_length=sequence)


@given(stage_times, st.integers(1, 12), st.sampled_from([1, 2, 3]))
def test_no_1f1b_pipeline_beats_the_bound(stages, per_replica, data):
    """The simulated end of the pipeline, transfers included, for any split of the work."""
    depth = len(stages)
    pipeline = [
        PipelineStage(
            forward_s=forward,
            backward_s=backward,
            in_flight=min(per_replica, depth - i),
            feeds=((i + 1, transfer),) if i + 1 < depth else (),
        )
        for i, (forward, backward, transfer) in enumerate(stages)
    ]
    end_s = max(one_f_one_b_ends_s(pipeline, num_microbatches=per_replica))
    candidate = Candidate(microbatch_size=1, tensor=1, pipeline=depth, data=data)
    work_s = sum(forward + backward for forward, backward, _ in stages)
    bound_s = step_bound_s(candidate, work_s=work_s, num_microbatches=per_replica * data)
    assert bound_s <= end_s * (1 + 1e-12)


@given(st.integers(1, 30), st.integers(1, 8))
def test_the_bound_is_the_largest_with_which_its_proof_works(m, depth):
    """Stages that meet every inequality of the proof with equality do the given work."""
    candidate = Candidate(microbatch_size=1, tensor=1, pipeline=depth, data=1)
    bound_s = step_bound_s(candidate, work_s=1.0, num_microbatches=m)
    work, done = [], 0.0
    for _ in range(depth):
        work.append((bound_s - done) / m)
        done += work[-1]
    assert done == pytest.approx(1.0)
    for r in range(depth):
        assert m * work[r] + sum(work[:r]) == pytest.approx(bound_s)


def test_one_stage_does_all_work_in_turn_and_one_microbatch_meets_every_stage():
    flat = Candidate(microbatch_size=1, tensor=1, pipeline=1, data=2)
    assert step_bound_s(flat, work_s=3.0, num_microbatches=8) == pytest.approx(4 * 3.0)
    deep = Candidate(microbatch_size=1, tensor=1, pipeline=5, data=1)
    assert step_bound_s(deep, work_s=3.0, num_microbatches=1) == 3.0


@given(st.integers(1, 8), st.sampled_from([(1, 2), (2, 4), (4, 8), (1, 8)]))
def test_less_data_parallelism_never_has_a_lower_bound(depth, degrees):
    few, many = (
        step_bound_s(
            Candidate(microbatch_size=1, tensor=1, pipeline=depth, data=d),
            work_s=1.0,
            num_microbatches=64,
        )
        for d in degrees
    )
    assert many <= few
    assert math.isfinite(few)
