"""The roomy problem never promises too much, a lean profile never proves too much."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.costing.estimate import Estimator
from trainwright.formats import catalog
from trainwright.partitioning.evaluate import evaluate, find_overflows
from trainwright.planning.question.question import (
    Candidate,
    ModelQuestion,
    Point,
    Workload,
    estimate_profile,
)
from trainwright.planning.search.plans import (
    candidate_setting,
    hold_tied_once,
    require_largest_transient,
    roomy_problem,
    state_bytes,
)
from trainwright.plans import Plan, Stage
from trainwright.plans.plan import Parallelism
from trainwright.profile import StaticKind
from trainwright.step.predict import predict_step

MODES = ("none", "selective", "full")
TIED = replace(catalog.model("gpt2").config, num_layers=5)
UNTIED = replace(catalog.model("llama3-8b").config, num_layers=5)


def question(model):
    cluster = catalog.cluster("dgx-h100").with_nodes(2)
    return ModelQuestion(
        model=model,
        cluster=cluster,
        workload=Workload(global_batch=64, sequence_length=1024),
        num_devices=cluster.num_devices,
    )


@st.composite
def plans(draw):
    """A question, a candidate of it, and any plan of that candidate."""
    asked = question(draw(st.sampled_from([TIED, UNTIED])))
    zero_stage = draw(st.integers(0, 3))
    tensor, data = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 4), (1, 4)]))
    size = draw(st.sampled_from([1, 4]))
    estimator = Estimator(model=asked.model, cluster=asked.cluster)
    profile = estimate_profile(estimator, asked, Point(microbatch_size=size, tensor=tensor))
    layers = profile.structure.layers
    most = min(len(layers), asked.num_devices // (tensor * data))
    cuts = draw(st.sets(st.integers(1, len(layers) - 1), max_size=most - 1))
    borders = [0, *sorted(cuts), len(layers)]
    repeated = np.bincount([layer.layer_class for layer in layers]) > 1
    options = [
        draw(st.sampled_from(MODES)) if repeated[layer.layer_class] else "none" for layer in layers
    ]
    depth = len(borders) - 1
    candidate = Candidate(
        microbatch_size=size, tensor=tensor, pipeline=depth, data=data, zero_stage=zero_stage
    )
    plan = Plan(
        stages=tuple(
            Stage.uniform(
                tuple(range(a, b)), tuple(options[a:b]), data_parallel=data, tensor_parallel=tensor
            )
            for a, b in pairwise(borders)
        ),
        num_microbatches=64 // size,
        microbatch_size=size,
        parallelism=Parallelism(
            tensor=tensor,
            pipeline=depth,
            data=data,
            sequence_parallel=tensor > 1,
            zero_stage=zero_stage,
        ),
    )
    return asked, candidate, profile, plan


def fits(problem, plan: Plan) -> bool:
    profile, setting = problem
    return not find_overflows(evaluate(plan, profile, setting), setting)


@cases(120)
@given(plans(), st.floats(0.5, 1.5))
def test_what_fits_the_roomy_problem_fits_and_what_fits_fits_the_lean_profile(drawn, share):
    """The limit is drawn around what the plan needs; lean profiles are for plans without ZeRO."""
    asked, candidate, profile, plan = drawn
    assume(candidate.pipeline * candidate.data <= plan.num_microbatches)
    peak_bytes = predict_step(plan, profile, asked.cluster).peak_memory_bytes
    device = asked.cluster.accelerator
    memory_bytes = share * peak_bytes / device.usable_fraction
    tight = replace(asked, cluster=asked.cluster.with_memory(memory_bytes))
    really = peak_bytes <= tight.cluster.accelerator.usable_bytes
    if fits(roomy_problem(tight, candidate, profile), plan):
        assert really
    if really and candidate.zero_stage == 0:
        lean = require_largest_transient(hold_tied_once(profile))
        assert fits((lean, candidate_setting(tight, candidate, profile)), plan)


@pytest.mark.parametrize("num_mtp_layers", range(4))
def test_further_tokens_share_embedding_and_head_once(num_mtp_layers):
    """However many layers predict them: each is like the others, and holds no share of its own."""
    model = replace(UNTIED, num_mtp_layers=num_mtp_layers)
    asked = question(model)
    estimator = Estimator(model=model, cluster=asked.cluster)
    profile = estimate_profile(estimator, asked, Point(microbatch_size=1, tensor=1))
    layers = profile.structure.layers
    options = ("none",) * len(layers)
    stage = Stage.uniform(tuple(range(len(layers))), options, data_parallel=1, tensor_parallel=1)
    plan = Plan(stages=(stage,), num_microbatches=64, microbatch_size=1, parallelism=Parallelism())
    memory = predict_step(plan, profile, asked.cluster).stages[0].memory
    assert state_bytes(profile).sum() == pytest.approx(memory.static_bytes)


@pytest.mark.parametrize("model", [TIED, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("zero_stage", range(4))
def test_the_roomy_problem_adds_no_more_than_what_a_device_holds_for_a_while(model, zero_stage):
    """The transients of all kinds of layers, and twice their gathered weights."""
    asked = question(model)
    estimator = Estimator(model=model, cluster=asked.cluster)
    profile = estimate_profile(estimator, asked, Point(microbatch_size=1, tensor=1))
    candidate = Candidate(microbatch_size=1, tensor=1, pipeline=1, data=8, zero_stage=zero_stage)
    layers = profile.structure.layers
    stage = Stage.uniform(
        tuple(range(len(layers))), ("none",) * len(layers), data_parallel=8, tensor_parallel=1
    )
    parallelism = Parallelism(data=8, zero_stage=zero_stage)
    plan = Plan(stages=(stage,), num_microbatches=64, microbatch_size=1, parallelism=parallelism)
    peak_bytes = predict_step(plan, profile, asked.cluster).peak_memory_bytes

    def needed(problem):
        (cost,) = evaluate(plan, *problem)
        return cost.memory_bytes + asked.cluster.accelerator.usable_bytes - problem[1].memory_bytes

    roomy_bytes = needed(roomy_problem(asked, candidate, profile))
    assert peak_bytes <= roomy_bytes * (1 + 1e-12)
    costs = profile.costs
    passing = costs.transient_bytes.copy()
    if zero_stage == 3:
        passing += 2 * costs.static_bytes[:, :, StaticKind.WEIGHT].sum(axis=1)
    assert roomy_bytes - peak_bytes <= np.maximum.reduceat(passing, costs.class_offsets[:-1]).sum()
