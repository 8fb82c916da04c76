"""Coarse bounds against priced plans: any split, any recomputation that fits, no shorter step."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from family_cases import filled_to
from trainwright.cluster import REFERENCE_DESIGN, Surroundings, networked, template_device
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.model import ContextExchange, LowRank, Optimizer, Recipe, TokenDispatcher, Tuning
from trainwright.planning.bounds.layers import (
    PointWork,
    Ramp,
    Rooms,
    Shares,
    Tail,
    least_layers,
    split_backward_s,
    with_exchanges,
)
from trainwright.planning.bounds.stages import StageKinds
from trainwright.planning.bounds.step import (
    Batch,
    ChainWork,
    CoarseBounds,
    PointPairs,
    loop_work_s,
)
from trainwright.planning.question.layouts import (
    BOUNDED,
    BRAIDED,
    CHAIN,
    CUTS_HEAD,
    ON_HOST,
    SLICED,
    layouts_of,
    schedules_of,
)
from trainwright.planning.question.question import (
    USUAL_SETTINGS,
    Allowed,
    Candidate,
    ModelQuestion,
    Point,
    RunSettings,
    Span,
    StepAim,
    Workload,
    estimate_profile,
)
from trainwright.planning.search.frontier import Frontier, Shelf, least_of
from trainwright.plans import Plan, Stage
from trainwright.plans.configuration import Kernels, Overlap
from trainwright.step.pipeline import PipelineShape, PipelineTimes, pipeline_ends_s
from trainwright.step.predict import predict_step

MIXTRAL = catalog.model("mixtral-8x7b").config
ADAPTERS = LowRank(rank=64, targets=("query", "attention_output", "up", "down"))
DENSE = replace(catalog.model("llama3-8b").config, num_layers=6)
# What their bounds add, take off or cut lies elsewhere.
BESIDE = BRAIDED | CUTS_HEAD | ON_HOST | SLICED
MODELS = {
    "tied": replace(catalog.model("gpt2").config, num_layers=6),
    "dense": DENSE,
    "adapters": replace(DENSE, tuning=Tuning(low_rank=ADAPTERS)),
    "partly frozen": replace(DENSE, tuning=Tuning(num_frozen_blocks=3)),
    "experts": replace(
        MIXTRAL, num_layers=4, ffn_size=4096, experts=replace(MIXTRAL.experts, ffn_size=4096)
    ),
    "grouped experts": replace(
        MIXTRAL,
        num_layers=4,
        ffn_size=4096,
        experts=replace(
            MIXTRAL.experts,
            ffn_size=4096,
            num_experts=16,
            experts_per_token=4,
            num_groups=4,
            groups_per_token=2,
        ),
    ),
}


LINKED = Surroundings(node_devices=8, node_bandwidth_bytes_per_s=900e9)
PAIRS = catalog.cluster("dgx-h100").with_nodes(8)
NEAR, FAR = (replace(level, size=size) for level, size in zip(PAIRS.levels, (2, 8), strict=True))
CLUSTERS = {
    "devices": catalog.cluster("dgx-h100").with_nodes(2),
    "pairs": replace(PAIRS, pools=(replace(PAIRS.pools[0], levels=(NEAR, FAR)),)),
    "chips": networked(template_device(REFERENCE_DESIGN, LINKED), LINKED, num_devices=16),
}


NOTHING_HIDES = Overlap(gradients=0, parameters=0, pipeline=0)
SETTINGS = {
    "usual": USUAL_SETTINGS,
    "nothing overlaps": RunSettings(
        overlap=NOTHING_HIDES, kernels=Kernels(fused_cross_entropy=True)
    ),
    "all overlaps": RunSettings(
        overlap=Overlap(gradients=1, parameters=1, tensor=1, experts=1, pipeline=0.5)
    ),
    "no flash attention": RunSettings(
        kernels=Kernels(fused_attention=False, vocabulary_multiple=1000)
    ),
    "another recipe": RunSettings(
        recipe=Recipe(
            optimizer=Optimizer.SGD,
            gradient_dtype="bf16",
            main_weight_dtype="none",
            dropout=0.1,
            context_exchange=ContextExchange.ALL_TO_ALL,
            expert_imbalance=1.5,
        ),
        recompute_modules=("norm",),
    ),
    "dispatched once": RunSettings(
        recipe=Recipe(
            dispatch_dtype="fp8",
            token_dispatcher=TokenDispatcher.HIERARCHICAL,
            expert_imbalance=1.25,
        )
    ),
    "tokens dropped": RunSettings(recipe=Recipe(capacity_factor=0.5, context_balanced=False)),
}


@cache
def asked(
    model: str, memory_gib: int, cluster: str = "devices", settings: str = "usual"
) -> ModelQuestion:
    cluster = CLUSTERS[cluster].with_memory(memory_gib * 2**30)
    return ModelQuestion(
        model=MODELS[model],
        cluster=cluster,
        workload=Workload(global_batch=32, sequence_length=1024),
        num_devices=cluster.num_devices,
        settings=SETTINGS[settings],
    )


@st.composite
def plans(draw):
    """A question, a candidate and its profile, and any plan of the candidate."""
    question = asked(
        draw(st.sampled_from(sorted(MODELS))),
        draw(st.sampled_from([4, 12, 70])),
        draw(st.sampled_from(sorted(CLUSTERS))),
        draw(st.sampled_from(sorted(SETTINGS))),
    )
    tensor, context, data = (draw(st.sampled_from([1, 2])) for _ in range(3))
    expert = draw(st.sampled_from([1, 2])) if question.model.experts else 1
    point = Point(
        microbatch_size=draw(st.sampled_from([1, 4])),
        tensor=tensor,
        context=context,
        expert=expert,
        expert_tensor=1 if question.model.experts else None,
    )
    assume(point.devices * data % point.expert_devices == 0)
    family = draw(st.sampled_from(("1f1b", *(one for one in BOUNDED if one not in BESIDE))))
    chunks = 1 if family in CHAIN else 2
    pipeline = draw(st.integers(1 if family == "1f1b" else 2, 4 if chunks == 1 else 3))
    candidate = Candidate(
        microbatch_size=point.microbatch_size,
        tensor=tensor,
        context=context,
        expert=point.expert,
        expert_tensor=point.expert_tensor,
        pipeline=pipeline,
        data=data,
        zero_stage=draw(st.integers(0, 3)),
        schedule=family,
        virtual_stages=chunks,
    )
    profile = estimate_profile(question.estimator(), question, point)
    layers = profile.structure.layers
    count = pipeline * chunks
    assume(count <= len(layers))
    cuts = draw(st.sets(st.integers(1, len(layers) - 1), min_size=count - 1, max_size=count - 1))
    costs = profile.costs
    options = [
        draw(st.sampled_from([costs.option_ids[r] for r in costs.rows_of(x.layer_class)]))
        for x in layers
    ]
    stages = tuple(
        Stage.uniform(
            tuple(range(a, b)), tuple(options[a:b]), data_parallel=data, tensor_parallel=tensor
        )
        for a, b in pairwise([0, *sorted(cuts), len(layers)])
    )
    plan = Plan(
        stages=stages,
        num_microbatches=data * draw(st.integers(1, 16)),  # few wait longest for the first loss
        microbatch_size=point.microbatch_size,
        schedule=family,
        parallelism=candidate.degrees,
    )
    return question, candidate, profile, plan


@pytest.mark.parametrize("just_fits", [False, True])
@given(case=plans())
def test_no_plan_that_fits_has_a_shorter_step_than_its_coarse_bound(just_fits, case):
    question, candidate, profile, plan = case
    try:
        overlap = question.settings.overlap
        step = predict_step(plan, profile, question.cluster, overlap=overlap)
    except InvalidInput:
        assume(False)
    if just_fits:
        cluster = filled_to(question.cluster, step.peak_memory_bytes)
        question = replace(question, cluster=cluster)
    assume(step.peak_memory_bytes <= question.cluster.accelerator.usable_bytes)
    point = candidate.point
    layouts = layouts_of(
        point,
        Allowed(pipeline=Span.only(candidate.pipeline), data=Span.only(candidate.data)),
        num_devices=question.num_devices,
        num_blocks=question.model.num_layers,
        num_microbatches=plan.num_microbatches,
    )
    (schedule,) = schedules_of(Allowed(schedules=(candidate.schedule,)))
    work = PointWork.of(profile)
    coarse = CoarseBounds(question.cluster, overlap)
    batch = Batch.under(schedule, candidate.zero_stage, layouts)
    chain = ChainWork.of(StageKinds.of(profile, overlap))
    bounds_s = coarse.sharper_s(coarse.rough(work, point, batch, chain=chain))
    assert bounds_s.shape == (1,)
    pairs = PointPairs(question, StepAim(), (schedule,))
    keys = pairs.least_keys(point, least_of(work), layouts, body=work)
    assert keys[0] <= step.step_time_s * (1 + 1e-9)
    assert coarse.at_least_s(coarse.rough(work, point, batch, chain=chain))[0] <= bounds_s[0]
    assert bounds_s[0] <= step.step_time_s * (1 + 1e-9)
    if question.model.experts is not None:
        least = with_exchanges(question, point, least_layers(question, point))
        floors = sum(each.time_s * each.num_layers for each in least)
        assert floors <= float(work.trade.time_s[-1]) * (1 + 1e-9)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(
    ("model", "cluster"), [("experts", "devices"), ("grouped experts", "pairs")]
)
@pytest.mark.parametrize(
    ("tensor", "expert", "expert_tensor"), [(1, 2, 1), (2, 2, 2), (2, 4, 1), (1, 8, 1)]
)
def test_no_dealing_of_experts_costs_less_than_its_floor(
    tensor, expert, expert_tensor, model, cluster, settings
):
    """With four sequences exchanges are long enough to tell whether they hide."""
    question = asked(model, 70, cluster, settings)
    point = Point(
        microbatch_size=4, tensor=tensor, expert=expert, expert_tensor=expert_tensor, context=1
    )
    work = PointWork.of(estimate_profile(question.estimator(), question, point))
    least = with_exchanges(question, point, least_layers(question, point))
    floor_s = sum(each.time_s * each.num_layers for each in least)
    assert 0 < floor_s <= float(work.trade.time_s[-1]) * (1 + 1e-9)


@pytest.mark.parametrize("likely", [False, True])
@pytest.mark.parametrize("model", ["tied", "experts"])
def test_candidates_come_alike_whenever_their_bounds_are_made_sharp(model, likely):
    """To count them makes all bounds sharp at once, which else are when they are the least."""
    some = Allowed(tensor=Span.only(2), context=Span.only(1), microbatch_size=Span(least=1, most=2))
    question = replace(asked(model, 60), allowed=some)
    schedules = schedules_of(question.allowed)
    late, soon = (
        Frontier(question, Shelf.of(question), StepAim(), schedules, likely=likely)
        for _ in range(2)
    )
    assert late.open(Budget())
    assert soon.open(Budget())
    bounds_s, last_s = [], -np.inf
    while np.isfinite(late.least_s) and len(bounds_s) < 80:
        soon.count_below(np.inf)
        assert late.least_s == soon.least_s
        taken = late.take()
        assert taken == soon.take()
        if taken is not None:
            bounds_s.append(taken[0])
            assert taken[0] >= last_s
            last_s = taken[0]
    assert len(bounds_s) == 80
    families = {"interleaved", "1f1b"}
    assert late.least_among_s(families) == soon.least_among_s(families)
    late.set_aside(families)
    soon.set_aside(families)
    assert late.num_aside == soon.num_aside > 0


@given(st.floats(0, 1), st.sampled_from(sorted(MODELS)))
def test_more_room_never_costs_time(share, model):
    question = asked(model, 70)
    point = Point(microbatch_size=1, tensor=1, expert_tensor=1 if question.model.experts else None)
    estimator = question.estimator()
    trade = PointWork.of(estimate_profile(estimator, question, point)).trade
    low, high = float(trade.kept_bytes[0]), float(trade.kept_bytes[-1])
    room = np.array([low, low + share * (high - low), high])
    times_s = trade.least_s(room)
    assert times_s[0] >= times_s[1] >= times_s[2] > 0
    assert np.isinf(trade.least_s(np.array([low * 0.9]))).all()


@given(
    family=st.sampled_from(["zb-h1", "zb-h2"]),
    works_s=st.lists(st.floats(0.1, 10), min_size=2, max_size=6),
    num_microbatches=st.integers(1, 12),
    forward=st.floats(0.2, 0.4),
    handed_on=st.floats(0.5, 0.9),
)
def test_no_zero_bubble_step_is_shorter_than_its_ramps(
    family, works_s, num_microbatches, forward, handed_on
):
    work_s, p = np.array(works_s), len(works_s)
    shape = PipelineShape(family=family, num_ranks=p, num_microbatches=num_microbatches)
    times = PipelineTimes(
        forward_s=forward * work_s,
        input_grad_s=(handed_on - forward) * work_s,
        weight_grad_s=(1 - handed_on) * work_s,
        transfer_s=np.zeros(p - 1),
    )
    step_s = float(pipeline_ends_s(shape, times).max())
    bound_s = split_backward_s(
        Shares(forward=forward, handed_on=handed_on, others_s=0.0),
        work_s.sum(keepdims=True),
        family=family,
        pipeline=np.array([p]),
        num_microbatches=np.array([num_microbatches]),
    )
    assert bound_s[0] <= step_s * (1 + 1e-9)
    assert bound_s[0] >= num_microbatches * work_s.mean() * (1 - 1e-9)


def test_layers_that_no_device_can_hold_have_no_step():
    question = asked("dense", 4)
    point = Point(microbatch_size=32, tensor=1)
    estimator = question.estimator()
    work = PointWork.of(estimate_profile(estimator, question, point))
    head = work.classes[-1]
    device_bytes = question.cluster.accelerator.usable_bytes
    assert head.levels[0][0] > device_bytes  # transients alone
    busiest_s = head.busiest_s(
        Rooms(device_bytes, np.zeros(1), np.zeros(1)),
        Tail((), np.ones(1)),
        pipeline=np.array([4]),
        num_microbatches=np.array([8]),
        held_at_once=np.ones_like,
        in_flight=np.ones_like,
        ramp=Ramp(0.0, 0.0, 1),
        to_loss_s=0.0,
    )
    assert np.isinf(busiest_s[0])


def test_a_loop_of_two_stages_keeps_no_block_for_long_however_little_room_there_is():
    question = asked("dense", 70)
    profile = estimate_profile(question.estimator(), question, Point(microbatch_size=1, tensor=1))
    chain = ChainWork.of(StageKinds.of(profile, question.settings.overlap))
    work_s = loop_work_s(
        chain,
        pipeline=np.array([1, 2]),
        virtual_stages=np.array([2, 3]),
        room_bytes=np.array([1.0, 1.0]),
    )
    assert work_s[0] == chain.total_s
    assert work_s[1] == np.inf
