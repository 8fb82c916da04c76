"""What replicas of a chip search hold and exchange: the kernels against `step.zero`, and bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chips.jobs import job
from random_cases import cases
from trainwright._native._core import UniformProblem, fastest_family_plans, fastest_uniform_plans
from trainwright.chips.design_times import LayerTimes
from trainwright.chips.plans import Layout, Shape, _bounds, order_of, problem_of
from trainwright.chips.workload import Chain, Replication, sharing_of
from trainwright.cluster import Surroundings

DEGREES = (8, 4, 2, 1)
AROUND = Surroundings(link_bandwidth_bytes_per_s=1e9, memory_bytes=1e15)
SMALL = job("gpt2-xl", 1024, (1,), layers=4, global_batch=8)
FAMILIES = ("zb-h1", "v-half", "v-min")


@cases(40)
@given(
    degree=st.sampled_from(DEGREES),
    overlap=st.sampled_from([0.0, 0.3, 1.0]),
    sync_bytes=st.sampled_from([0.0, 1.0, 1e8, 1e10]),
    work_s=st.tuples(*[st.floats(0.01, 10.0)] * 2),
    latency_s=st.sampled_from([0.0, 1e-3]),
)
def test_a_kernel_exposes_what_the_rule_says(
    degree: int,
    overlap: float,
    sync_bytes: float,
    work_s: tuple[float, float],
    latency_s: float,
) -> None:
    """One layer on one device: what is beyond its microbatches is exchange and update."""
    around = replace(AROUND, gradient_overlap=overlap, link_latency_s=latency_s)
    static = np.array([[[4.0, 8.0, 24.0], [0.0, 0.0, 0.0]]])
    problem = UniformProblem(
        layer_class=np.zeros(1, dtype=np.int32),
        transfer_s=np.zeros(0),
        saved_bytes=np.zeros((1, 1)),
        transient_bytes=np.zeros((1, 1)),
        sync_bytes=np.array([sync_bytes]),
        data_degrees=np.array([degree]),
        sharing=sharing_of([degree], static, around),
        memory_bytes=4.0 + 8.0 + 24.0 / degree,  # to the byte
        tensor_degree=1,
        num_devices=degree,
        num_microbatches=2 * degree,
    )
    forward_s, backward_s = (np.array([[own]]) for own in work_s)
    found_s, *_ = fastest_uniform_plans(
        problem,
        forward_s=forward_s,
        backward_s=backward_s,
        update_s=np.array([[3.0]]),
        cutoff_s=np.array([math.inf]),
    )
    one = Replication.over(degree, around)
    exposed_s = one.exposed_s([sync_bytes], forward_s[0], backward_s[0])
    expected_s = 2 * sum(work_s) + exposed_s[0] + 3.0 / degree
    assert found_s[0] == pytest.approx(expected_s, rel=1e-12)
    fuller = problem.replace(memory_bytes=problem.memory_bytes - 0.5)
    times = {"forward_s": forward_s, "backward_s": backward_s, "update_s": np.array([[3.0]])}
    assert math.isinf(fastest_uniform_plans(fuller, cutoff_s=np.array([math.inf]), **times)[0][0])


def some_times(chain: Chain, seed: int) -> LayerTimes:
    """Of one design; now and then a layer takes most of the work, or has no gradients."""
    rng = np.random.default_rng(seed)
    classes, options = len(chain.kernels), len(chain.recompute)
    heavy = np.where(np.arange(classes) == rng.integers(classes), rng.choice([1.0, 100.0]), 1.0)
    forward_s, weight_grad_s = (rng.uniform(0.1, 1.0, (1, classes)) * heavy for _ in range(2))
    input_grad_s = rng.uniform(0.1, 1.0, (1, options, classes)) * heavy
    return LayerTimes(
        forward_s=forward_s,
        backward_s=input_grad_s + weight_grad_s[:, np.newaxis],
        weight_grad_s=weight_grad_s,
        update_s=rng.uniform(0.0, 20.0, (1, classes)),
    )


@cases(60)
@given(
    family=st.sampled_from(FAMILIES),
    degree=st.sampled_from([1, 2, 4]),
    num_ranks=st.integers(2, 3),
    overlap=st.sampled_from([0.0, 0.5]),
    option=st.integers(0, 1),
    seed=st.integers(0, 10**6),
)
def test_no_plan_of_a_family_is_faster_than_the_bound_that_passes_it_over(
    family: str, degree: int, num_ranks: int, overlap: float, option: int, seed: int
) -> None:
    chain, around = SMALL.chain(1), replace(AROUND, gradient_overlap=overlap)
    times = some_times(chain, seed)
    order = order_of(
        Shape(
            family=family,
            num_ranks=num_ranks,
            num_microbatches=SMALL.num_microbatches // degree,
            input_grad=1,
            weight_grad=1,
        )
    )
    if order is None:
        return
    step_s, _ = fastest_family_plans(
        problem_of(chain, job=SMALL, surroundings=around, num_devices=64),
        order,
        forward_s=times.forward_s,
        backward_s=times.backward_s.reshape(1, -1),
        weight_grad_s=times.weight_grad_s,
        update_s=times.update_s,
        pending_bytes=chain.pending_bytes,
        restored_bytes=chain.restored_bytes.ravel(),
        cutoff_s=np.array([math.inf]),
        option=option,
        degree=SMALL.data_degrees.tolist().index(degree),
    )
    bounds = _bounds(chain, times, option, {degree: Replication.over(degree, around)})
    layout = Layout(family, option, degree, num_ranks)
    assert bounds.least_s(layout, SMALL.num_microbatches // degree)[0] <= step_s[0]
