"""Spaces that a framework can run: narrower than what is allowed, and nothing outside it."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import trainwright
from trainwright.documents import model_search
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.options.clusters import expected
from trainwright.options.inputs import resolve_model
from trainwright.options.question import model_call
from trainwright.planning.question.layouts import Layouts, RunnableDegrees
from trainwright.planning.question.question import (
    Allowed,
    ModelQuestion,
    Point,
    Span,
    Workload,
    estimate_profile,
)
from trainwright.planning.search.framework import (
    frameworks_for,
    in_words,
    plan_runnable,
    runnable_spaces,
    sketch_runnable,
)
from trainwright.planning.search.frontier import Shelf, Shelves
from trainwright.planning.search.search import plan_model
from trainwright.planning.splits.types import in_first_blocks
from trainwright.plans.capability import TARGETS, Demands, RecomputeForm, unsupported
from trainwright.plans.configuration import own_split
from trainwright.plans.plan import Parallelism, Stage
from trainwright.plans.schedule import FamilyShape, Placing
from trainwright.profile import Recompute
from trainwright.scheduling.families import family_named


def framework_for(question: ModelQuestion, *, first: str | None = None):
    able, reason = frameworks_for(question, first=first)
    return next(iter(able), None), in_words(able, reason)


def asked(framework: str | None, *, memory_gib: int = 20, **allowed) -> ModelQuestion:
    cluster = catalog.cluster("dgx-h100").with_memory(memory_gib * 2**30)
    return ModelQuestion(
        model=catalog.model("llama3-8b").config,
        cluster=cluster,
        workload=Workload(global_batch=16, sequence_length=4096),
        num_devices=cluster.num_devices,
        allowed=Allowed(framework=framework, **allowed),
    )


def test_without_a_framework_the_space_is_whole():
    assert runnable_spaces(Allowed(zero_stages=(1,))) == (Allowed(zero_stages=(1,)),)


NARROW = {"schedules": ("1f1b",), "context": Span.only(1)}


@cache
def best_of_anything(memory_gib):
    return plan_model(asked(None, memory_gib=memory_gib, **NARROW), Budget())


# One of each kind on every change; those that can the same, or nearly, at length.
AT_ONCE = ("megatron",)
SLOW = ("torchtitan@0.3", "pytorch", "deepspeed", "nanotron", "trl", "automodel")
MEMORY_GIB = {"llamafactory": 40}  # neither cuts layers nor keeps two copies of their state


def repeats_first(plan):
    """Whether as many layers of every stage repeat, from its first block on."""
    counts = {stage.options.count("full") for stage in plan.stages}
    run = ("full",) * max(counts)
    return len(counts) == 1 and all(
        run in (stage.options[: len(run)], stage.options[1 : len(run) + 1]) for stage in plan.stages
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        *AT_ONCE,
        *(
            pytest.param(name, marks=pytest.mark.slow if name in SLOW else pytest.mark.papers)
            for name in TARGETS
            if name not in AT_ONCE
        ),
    ],
)
def test_a_plan_for_a_framework_demands_nothing_it_lacks(target):
    memory_gib = MEMORY_GIB.get(target, 20)
    found = plan_runnable(asked(target, memory_gib=memory_gib, **NARROW), Budget())
    assert found.lower_bound_s >= best_of_anything(memory_gib).lower_bound_s * (1 - 1e-9)
    assert found.priced
    for priced in found.priced:
        plan = priced.plan
        blocks = {o for s in plan.stages for o in s.options[1:-3]}
        mixed = len(blocks) > 1
        demands = Demands(
            parallelism=plan.parallelism,
            schedule=plan.schedule,
            shape=family_named(plan.schedule).shape(plan.parallelism.virtual_stages),
            recompute=(RecomputeForm.FIRST if repeats_first(plan) else RecomputeForm.ANY)
            if mixed
            else {
                Recompute.NONE: RecomputeForm.NONE,
                Recompute.SELECTIVE: RecomputeForm.MODULES,
                Recompute.FULL: RecomputeForm.ALL,
            }[Recompute(next(iter(blocks), "none"))],
        )
        assert unsupported(demands, target) == ()


@pytest.mark.slow
def test_what_one_part_of_a_space_found_is_to_beat_in_the_next_and_changes_no_answer():
    question = asked("megatron", **NARROW)
    whole, led = (plan_runnable(question, Budget(), num_alternatives=n) for n in (1, 0))
    assert led.priced[0].plan == whole.priced[0].plan
    step_s = led.priced[0].step.step_time_s
    assert whole.lower_bound_s <= led.lower_bound_s * (1 + 1e-9) <= step_s * (1 + 2e-9)
    beaten = plan_runnable(question, Budget(), num_alternatives=0, to_beat=0.9 * step_s)
    assert not beaten.priced
    assert beaten.lower_bound_s <= 0.9 * step_s
    free = plan_runnable(question, Budget(), num_alternatives=0, is_bounded=False)
    assert (free.priced[0].plan, free.lower_bound_s) == (led.priced[0].plan, 0.0)


@pytest.mark.parametrize(
    ("target", "pipeline"),
    [pytest.param("nanotron", 2, marks=pytest.mark.slow), ("nanotron", 4), ("automodel", 4)],
)
def test_a_plan_for_a_framework_that_splits_layers_itself_has_its_stages(target, pipeline):
    question = asked(target, **NARROW | {"pipeline": Span.only(pipeline)})
    model = replace(question.model, num_layers=30)  # the best split of these is another
    cluster = question.cluster.with_memory(60 * 2**30)
    question = replace(question, model=model, cluster=cluster)
    found = plan_runnable(question, Budget())
    free = plan_model(replace(question, allowed=Allowed(**NARROW)), Budget())
    assert found.priced
    assert found.lower_bound_s <= found.priced[0].step.step_time_s * (1 + 1e-9)
    assert free.lower_bound_s <= found.priced[0].step.step_time_s * (1 + 1e-9)
    for priced in found.priced:
        names = {layer.id: layer.name for layer in priced.profile.structure.layers}
        blocks = [[names[x] for x in s.layers].count("block") for s in priced.plan.stages]
        assert tuple(blocks) == own_split(target, model, pipeline)
        first, last = ({names[x] for x in priced.plan.stages[at].layers} for at in (0, -1))
        assert "embedding" in first
        assert len(last) > 1


def test_one_that_deals_blocks_out_gives_the_first_stages_one_more():
    model = replace(catalog.model("llama3-8b").config, num_layers=30)
    assert own_split("automodel", model, 4) == (8, 8, 7, 7)
    assert own_split("nanotron", model, 4) != (8, 8, 7, 7)  # whose last stage has a large head


DEALT_OUT = st.builds(
    Point,
    microbatch_size=st.just(1),
    tensor=st.sampled_from((1, 2, 4)),
    context=st.sampled_from((1, 2)),
    expert=st.sampled_from((1, 2, 4)),
    expert_tensor=st.sampled_from((1, 2, 4)),
)


@cache  # what is known of some degrees is said of others
def degrees_of(target):
    model = catalog.model("qwen3-30b-a3b").config
    return RunnableDegrees.of(replace(asked(target), model=model))


@given(
    target=st.sampled_from(tuple(TARGETS)),
    point=DEALT_OUT,
    pair=st.tuples(*[st.sampled_from((1, 2, 4, 8))] * 3),
    zero_stage=st.integers(0, 3),
)
def test_pairs_that_a_search_leaves_are_those_whose_degrees_a_framework_runs(
    target, point, pair, zero_stage
):
    pipeline, data, copies = pair
    assume(data % copies == 0 and point.devices * data % (point.expert_devices * copies) == 0)
    layouts = Layouts(
        pipeline=np.array([pipeline]),
        data=np.array([data]),
        num_microbatches=np.array([8]),
        virtual_stages=np.array([1]),
        inside=np.array([False]),
        copies=np.array([copies]),
        like=np.array([pipeline]),
    )
    found = degrees_of(target)
    alone = Demands(has_experts=True, precision="bf16")
    whole = replace(
        alone,
        parallelism=Parallelism(
            tensor=point.tensor,
            pipeline=pipeline,
            data=data,
            context=point.context,
            expert=point.expert,
            expert_tensor=point.expert_tensor,
            sequence_parallel=point.tensor > 1,
            zero_stage=zero_stage,
            state_copies=copies,
        ),
    )
    more = {gap.field for gap in unsupported(whole, target)} - {
        gap.field for gap in unsupported(alone, target)
    }
    assert found.runs(point, zero_stage, layouts).tolist() == [not more]


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_what_is_kept_of_degrees_is_what_each_of_them_is_told(model):
    """How large degrees are counts, too: experts may be cut into more parts than layers."""
    question = replace(asked("megatron"), model=catalog.model(model).config)
    kept = RunnableDegrees.of(question)
    assert kept is not None
    for degrees in product((1, 2, 4, 8), (1, 2), (1, 2, 4), (None, 1, 2, 4), (0, 1, 3)):
        tensor, context, expert, expert_tensor, zero = degrees
        point = Point(
            microbatch_size=1,
            tensor=tensor,
            context=context,
            expert=expert,
            expert_tensor=expert_tensor,
        )
        alone = [not kept.faults(point, zero, more) for more in range(8)]
        assert kept.at(point, zero).tolist() == alone, degrees


@pytest.mark.parametrize("zero_stages", [(2,), (2, 3), (3,)])
def test_beside_a_pipeline_one_replica_has_any_stage_of_zero(zero_stages):
    spaces = runnable_spaces(Allowed(framework="megatron", zero_stages=zero_stages))
    alone, piped = (
        [s for s in spaces if (s.pipeline == Span.only(1)) is is_alone]
        for is_alone in (True, False)
    )
    assert {space.zero_stages for space in alone} == {zero_stages}
    assert {(space.data, space.context) for space in piped} == {(Span.only(1), Span.only(1))}
    narrow = Allowed(framework="megatron", zero_stages=zero_stages, data=Span.only(2))
    assert all(space.pipeline == Span.only(1) for space in runnable_spaces(narrow))


def test_zero_ends_where_a_framework_says_and_only_beside_a_pipeline():
    spaces = runnable_spaces(Allowed(framework="megatron", recompute=(Recompute.NONE,)))
    assert [(space.pipeline, space.zero_stages) for space in spaces] == [
        (Span.only(1), (0, 1, 2, 3)),
        (Span(least=2), (0, 1)),
    ]
    assert {space.schedules for space in spaces} == {("1f1b", "interleaved")}


@pytest.mark.parametrize(
    ("framework", "allowed", "fault"),
    [
        ("accelerate", {"pipeline": Span(least=2)}, "pipeline: must include 1: accelerate"),
        ("deepspeed", {"context": Span.only(2)}, "context: must include 1: deepspeed"),
        ("pytorch", {"zero_stages": (1,)}, "zero_stages: must hold one that pytorch has: 0, 2, 3"),
        ("accelerate", {"recompute": (Recompute.SELECTIVE,)}, "recompute: must hold one that"),
        ("megatron", {"schedules": ("v-half",)}, "schedules: must name one that megatron runs"),
    ],
)
def test_what_a_framework_cannot_do_at_all_is_refused_with_what_it_can(framework, allowed, fault):
    with pytest.raises(InvalidInput, match=fault):
        runnable_spaces(Allowed(framework=framework, **allowed))


def test_selective_is_there_where_the_framework_has_every_module_that_is_named():
    selective = Allowed(framework="megatron", recompute=(Recompute.SELECTIVE,))
    with pytest.raises(InvalidInput, match="recompute: must hold one that"):
        runnable_spaces(selective)  # no activations of dense blocks, which are usual
    for modules in (("norm",), ("norm", "expert_activation")):
        assert {s.recompute for s in runnable_spaces(selective, modules)} == {selective.recompute}
    with pytest.raises(InvalidInput, match="recompute: must hold one that"):
        runnable_spaces(selective, ("norm", "mlp_activation"))


def test_selective_is_there_where_all_blocks_route_their_tokens(tmp_path):
    """What it repeats of the feed-forward part is then of experts, which the framework can."""
    model = tmp_path / "config.json"
    job = {"cluster": "dgx-h100", "devices": 8, "global_batch": 16, "sequence": 4096}
    degrees = {"tp": 1, "pp": 2, "dp": 4, "cp": 1, "ep": 4, "zero": 1, "micro_batch": 1}
    job |= {"memory": "28GiB", "schedule": "1f1b", **degrees}
    experts = {"num_hidden_layers": 6, "model_type": "mixtral", "hidden_size": 4096}
    experts |= {"intermediate_size": 14336, "num_attention_heads": 32, "vocab_size": 32000}
    experts |= {"num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 8}
    model.write_text(json.dumps(experts))
    run = trainwright.estimate(
        str(model), software="megatron", recompute="selective", **job
    ).document
    assert run.fits
    assert trainwright.export(run, "megatron")
    plan = trainwright.plan(str(model), framework="megatron", top=0, **job).document
    assert plan.step_time_s <= run.step_time_s


def test_selective_is_what_the_kernels_make_it():
    """Without a fused kernel it repeats the attention alone, which the framework can."""
    selective = {"framework": "megatron", "recompute": "selective", "flash_attention": False}
    job = {"cluster": "dgx-h100", "devices": 2, "global_batch": 8, "sequence": 1024, "top": 0}
    plan = trainwright.plan("gpt2", **job, **selective, tp=1, cp=1, pp=1).document
    assert "selective" in plan.stages[0].options.values()
    with pytest.raises(InvalidInput, match="must hold one that megatron has: none, full"):
        trainwright.plan("gpt2", **job, **selective | {"flash_attention": True})


def test_what_is_recomputed_of_a_block_is_named_kept_in_the_document_and_exported(tmp_path):
    document = trainwright.plan(
        "mixtral-8x7b",
        cluster="dgx-h100",
        devices=64,
        global_batch=64,
        sequence=4096,
        tp=1,
        pp=8,
        ep=8,
        micro_batch=1,
        recompute="selective",
        recompute_module=["moe_act"],
        framework="megatron",
    )
    assert document.request.space.recompute_modules == ("expert_activation",)
    trainwright.export(document, to="megatron", output=tmp_path)
    said = (tmp_path / "megatron_args.sh").read_text()
    assert "--recompute-granularity selective" in said
    assert "--recompute-modules moe_act" in said


@pytest.mark.parametrize(
    ("model", "changed", "target", "why"),
    [
        ("llama3-8b", {}, "megatron", None),
        ("llama3-8b", {"schedules": ("zb-v",)}, "torchtitan@0.3", "megatron does not run zb-v"),
        ("llama3-8b", {"searches_orders": True}, "torchtitan@0.3", "searched: megatron"),
        ("command-r-35b", {}, "automodel", "which megatron cannot be told"),
    ],
)
def test_where_nobody_is_named_the_first_that_can_run_the_question_is_planned_for(
    model, changed, target, why
):
    question = replace(
        asked(None),
        model=catalog.model(model).config,
        allowed=Allowed(**changed),
    )
    found, reason = framework_for(question)
    assert found == target
    assert (reason is None) is (why is None)
    assert why is None or why in reason


def test_the_program_that_is_named_comes_first_if_it_is_a_framework_that_can():
    question = asked(None)
    assert framework_for(question, first="nanotron")[0] == "nanotron"
    assert framework_for(question, first="megatron-core")[0] == "megatron"
    piped = replace(question, allowed=Allowed(pipeline=Span.only(2)))
    assert framework_for(piped, first="trl")[0] == "megatron"


def test_number_formats_decide_too_and_what_nobody_can_is_planned_without_anybody():
    question = asked(None)
    recipe = replace(question.settings.recipe, precision="tf32")
    tf32 = replace(
        question,
        workload=replace(question.workload, precision="tf32"),
        settings=replace(question.settings, recipe=recipe),
    )
    assert framework_for(tf32)[0] == "pytorch"
    nobody = replace(tf32, allowed=Allowed(zero_stages=(1,)))
    found, reason = framework_for(nobody)
    assert found is None
    assert reason.startswith("planned without one: ")


def test_a_tpu_is_planned_for_what_drives_it():
    cluster = catalog.cluster("tpu-v5p")
    given = {"global_batch": 64, "sequence": 4096, "cluster": cluster, "top": 0}
    model = resolve_model("llama2-7b")
    alone, named = (model_call(model, {**given, **more}) for more in ({}, {"framework": "maxtext"}))
    assert alone.question.cluster == named.question.cluster == expected(cluster, None)
    assert alone.question.allowed == named.question.allowed
    assert alone.question.allowed.framework == "maxtext"
    assert alone.warnings == named.warnings
    other = model_call(model, {**given, "framework": "megatron"})
    assert other.question.allowed.framework == "megatron"
    split = Allowed(schedules=("zb-h1",), pipeline=Span.only(4))
    found, reason = framework_for(replace(alone.question, allowed=split))
    assert found is None
    assert reason is not None
    assert reason.startswith("planned without one: ")


def test_on_tpus_an_estimate_expects_the_speed_that_a_plan_does():
    job = {"cluster": "tpu-v4", "devices": 4, "global_batch": 16, "sequence": 512}
    plan = trainwright.plan("gpt2", **job, top=0, tp=1, cp=1, pp=1, micro_batch=4).document
    degrees = plan.parallelism
    own = {"dp": degrees.data, "zero": degrees.zero_stage, "micro_batch": plan.micro_batch}
    run = trainwright.estimate("gpt2", **job, **own).document
    assert run.step_time_s == plan.step_time_s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("named", "status", "said"),
    [
        (
            {},
            "optimal",
            "planned for pytorch: no plan fits as asked that megatron, automodel, trl or "
            "torchtitan@0.3 launches",
        ),
        ({"framework": "megatron"}, "infeasible", None),
    ],
)
def test_where_no_plan_of_the_usual_framework_fits_the_others_are_asked(named, status, said):
    given = {"cluster": "dgx-h100", "devices": 1, "global_batch": 8, "sequence": 32768}
    found = trainwright.plan("llama3-8b", **given, top=0, **named).document
    assert found.status == status
    told = [each for each in found.warnings if each.startswith("framework: ")]
    assert told == ([] if said is None else [f"framework: {said}"])
    if said is not None:
        assert found.request.space.framework == "pytorch"
        assert "pytorch" in found.launched_by()


@pytest.mark.slow
def test_that_no_plan_of_any_of_them_fits_is_one_sentence():
    given = {"cluster": "dgx-h100", "devices": 1, "global_batch": 8, "sequence": 1024}
    found = trainwright.plan("llama3-405b", **given, top=0).document
    assert found.status == "infeasible"
    said = "framework: no plan of automodel, trl, torchtitan@0.3 or pytorch fits either"
    assert said in found.warnings
    assert found.request.space.framework == "megatron"


@pytest.mark.parametrize("modes", [("none",), ("full",), ("none", "full")])
def test_layers_in_some_modes_are_those_of_more(modes):
    shelves, wide = Shelves(), asked("megatron", memory_gib=30, **NARROW)
    some = replace(wide.allowed, recompute=tuple(map(Recompute, modes)))
    narrow = replace(wide, allowed=some)
    point = Point(microbatch_size=2, tensor=2)
    assert {*modes} < {*map(str, wide.allowed.recompute)}
    assert len(shelves.of(wide).profile(point).costs.recompute) > len(modes)
    beside, alone = shelves.of(narrow), Shelf.of(narrow)
    assert beside.wider is not None
    assert beside.profile(point) == alone.profile(point)


def test_frameworks_that_cut_layers_in_other_ways_share_these_but_no_stages():
    """Behind Megatron, whose stages each repeat a block, a plan for pytorch once did so, too."""
    modes = (Recompute.NONE, Recompute.FULL)
    narrow = {**NARROW, "recompute": modes, "pipeline": Span.only(4), "memory_gib": 28}
    shelves = Shelves()
    plan_runnable(asked("megatron", **narrow), Budget(), shelves=shelves)
    beside = plan_runnable(asked("pytorch", **narrow), Budget(), shelves=shelves)
    alone = plan_runnable(asked("pytorch", **narrow), Budget())
    assert beside.lower_bound_s == alone.lower_bound_s
    assert beside.priced[0].step == alone.priced[0].step
    first, second = (each for each in shelves._known if each.question.allowed.recompute == modes)
    assert first.made is second.made
    assert first.alike is not second.alike


@pytest.mark.slow
def test_a_brief_search_finds_the_same_behind_what_others_have_priced():
    shelves, room = Shelves(), asked("megatron", memory_gib=30, **NARROW)
    spaces = [
        room,
        asked("megatron", memory_gib=30, **{**NARROW, "zero_stages": (0, 1)}),
        asked("megatron", memory_gib=30, **{**NARROW, "recompute": (Recompute.FULL,)}),
        asked("megatron", memory_gib=80, **NARROW),  # layers cost the same whatever there is room
    ]
    for question in spaces:
        alone, beside = (sketch_runnable(question, Budget(), shelves=s) for s in (None, shelves))
        assert alone is not None
        assert beside is not None
        assert beside.step == alone.step
        assert beside.candidate == alone.candidate
    assert len(shelves._known) < 2 * len(spaces)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.9, 1.0, 1.2])
def test_a_brief_search_tells_only_what_beats_a_step_that_is_known(share):
    question = asked("megatron", memory_gib=30, **NARROW)
    best_s = plan_runnable(question, Budget()).priced[0].step.step_time_s
    for any_will_do in (False, True):
        found = sketch_runnable(
            question, Budget(), to_beat_s=share * best_s, any_will_do=any_will_do
        )
        if share <= 1:
            assert found is None
        else:
            assert best_s * (1 - 1e-9) <= found.step.step_time_s < share * best_s


@pytest.mark.slow
def test_a_search_that_ends_before_its_first_plan_tells_a_usual_one():
    model, cluster = (
        catalog.model("deepseek-v3").config,
        catalog.cluster("dgx-h100").with_nodes(256),
    )
    question = ModelQuestion(
        model=model,
        cluster=cluster,
        workload=Workload(global_batch=15360, sequence_length=4096),
        num_devices=2048,
        allowed=Allowed(framework="megatron"),
    )
    found = plan_runnable(question, Budget(time_limit_s=0.01))
    assert not found.exhausted
    plan = found.priced[0].plan
    assert plan.schedule == "1f1b"
    assert found.lower_bound_s < found.priced[0].step.step_time_s


def test_a_search_that_is_stopped_at_its_first_plan_tells_one_that_people_run(monkeypatch):
    monkeypatch.setattr("trainwright.planning.search.framework._NO_PLAN_S", math.inf)
    question = ModelQuestion(
        model=catalog.model("llama3-405b").config,
        cluster=catalog.cluster("dgx-h100").with_nodes(64),
        workload=Workload(global_batch=512, sequence_length=8192),
        num_devices=512,
        allowed=Allowed(framework="megatron"),
    )
    stopping = Budget()

    def stop(told):
        if math.isfinite(told.best):
            stopping.interrupt()

    stopping.on_progress = stop
    found = plan_runnable(question, stopping, num_alternatives=0)
    assert found.interrupted
    assert not found.exhausted
    degrees = {"tensor": Span.only(8), "pipeline": Span.only(16), "context": Span.only(1)}
    run = replace(question.allowed, **degrees, schedules=("1f1b",), microbatch_size=Span.only(1))
    usual = plan_runnable(replace(question, allowed=run), Budget(), num_alternatives=0)
    assert found.priced[0].step.step_time_s <= usual.priced[0].step.step_time_s


def test_what_no_usual_plan_may_be_is_not_told_as_one():
    narrow = {"context": Span.only(2), "zero_stages": (1,), "schedules": ("interleaved",)}
    question = asked("megatron", memory_gib=80, **narrow)
    found = plan_runnable(question, Budget(time_limit_s=1e-4))
    for each in found.priced:
        assert each.plan.parallelism.context == 2
        assert each.plan.schedule == "interleaved" or each.plan.parallelism.pipeline == 1


def test_who_listens_is_told_of_a_usual_plan_and_how_far_all_parts_are_searched(monkeypatch):
    monkeypatch.setattr("trainwright.planning.search.framework._NO_PLAN_S", 0.0)
    question, told = asked("megatron", memory_gib=40, **NARROW), []
    found = plan_runnable(question, Budget(on_progress=told.append), num_alternatives=0)
    best = found.priced[0].step.step_time_s
    assert len(told) > 2
    assert all(0 < each.lower_bound <= each.best for each in told)
    assert all(best <= each.best < math.inf for each in told)
    alone = plan_runnable(question, Budget(), num_alternatives=0)
    assert alone.priced[0].candidate == found.priced[0].candidate
    assert alone.lower_bound_s == found.lower_bound_s

    stopping = Budget()
    stopping.on_progress = lambda _: stopping.interrupt()
    stopped = plan_runnable(question, stopping, num_alternatives=0)
    assert stopped.priced  # at the first word of it
    assert stopped.interrupted


def test_nothing_stands_beside_a_split_backward_that_pytorch_cannot_run_there():
    """Blocks that run again do so for each half, and weights sharded again get no gradients."""
    framework = "torchtitan"
    spaces = runnable_spaces(Allowed(framework=framework))
    split = [s for s in spaces if {*s.schedules} & {"zb-h1", "zb-v", "v-half"}]
    assert split
    assert all(s.recompute == (Recompute.NONE,) and 3 not in s.zero_stages for s in split)
    assert any(Recompute.FULL in s.recompute for s in spaces)
    assert any(3 in s.zero_stages for s in spaces)
    with pytest.raises(InvalidInput, match="beside a split backward"):
        asked = Allowed(framework=framework, schedules=("zb-v",), recompute=(Recompute.FULL,))
        runnable_spaces(replace(asked, pipeline=Span.only(4)))
    both = Demands(
        parallelism=Parallelism(pipeline=4, data=2, zero_stage=3),
        shape=FamilyShape(Placing.LOOP, split_backward=True),
        recompute=RecomputeForm.ALL,
    )
    fields = {gap.field for gap in unsupported(both, framework)}
    assert fields >= {"recompute", "zero_stage"}
    assert not {
        gap.field for gap in unsupported(replace(both, shape=FamilyShape(Placing.LOOP)), framework)
    }


@pytest.mark.parametrize("memory", ["16GiB", "24GiB", "32GiB"])
def test_no_layout_of_one_microbatch_is_below_the_bound(memory):
    """Its gradients are made anew, so it fits where the search has no room for them."""
    asked = {
        "cluster": "dgx-h100",
        "devices": 2,
        "global_batch": 2,
        "sequence": 4096,
        "memory": memory,
    }
    plan = trainwright.plan("llama3.2-1b", framework="trl", **asked).document
    found = []
    for tensor, zero, recompute in product((1, 2), range(4), ("none", "full")):
        data = 2 // tensor
        layout = {"tp": tensor, "dp": data, "pp": 1, "micro_batch": 2 // data, "zero": zero}
        step = trainwright.estimate(
            "llama3.2-1b", software="trl", recompute=recompute, **asked, **layout
        ).document
        found += [step.step_time_s] * step.fits
    assert plan.lower_bound_s <= min(found) * (1 + 1e-9)
    assert plan.lower_bound_s <= plan.step_time_s


@pytest.mark.parametrize(
    ("memory", "data"),
    [
        ("60GiB", 8),
        pytest.param("55GiB", 8, marks=pytest.mark.slow),
        pytest.param("72GiB", 4, marks=pytest.mark.slow),
    ],
)
def test_a_framework_that_repeats_first_blocks_is_planned_with_as_many_as_memory_asks_for(
    memory, data
):
    """Held to every run without a pipeline that `estimate` can say; all or none would be slower."""
    asked = {"cluster": "dgx-a100", "devices": data, "global_batch": 32, "sequence": 8192}
    asked |= {"memory": memory, "software": "megatron"}
    one = {"tp": "1", "pp": "1", "cp": "1"}
    found = trainwright.plan("llama3-8b", framework="megatron", **one, **asked).document

    def best_of(modes):
        runs = [
            trainwright.estimate(
                "llama3-8b", dp=data, zero=zero, micro_batch=size, recompute=mode, **asked
            ).document
            for zero, size, mode in product(range(4), (1, 2, 4), modes)
        ]
        return min((run.step_time_s for run in runs if run.fits), default=math.inf)

    first = best_of([f"full:{count}" for count in range(1, 32)])
    assert found.step_time_s == pytest.approx(min(first, best_of(("none", "full"))), rel=1e-12)
    assert first < best_of(("none", "full"))
    assert found.status == "optimal"
    assert "megatron" in found.launched_by()


@pytest.mark.parametrize(
    "memory",
    [
        "7.25GiB",
        *(pytest.param(f"{size}GiB", marks=pytest.mark.slow) for size in (5.75, 6.5, 6.75, 7, 7.5)),
    ],
)
def test_where_blocks_differ_no_fewer_first_ones_would_do(memory, tmp_path):
    """Dense blocks and experts save unlike bytes, so that which of them repeat matters."""
    config = {
        "model_type": "qwen3_moe",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 64,
        "vocab_size": 8000,
        "max_position_embeddings": 8192,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 4096,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0, 1, 4, 5, 8, 9],
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    asked = {"cluster": "dgx-a100", "devices": 4, "global_batch": 16, "sequence": 4096}
    asked |= {"memory": memory, "software": "megatron", "zero": 3, "micro_batch": 1}
    one = {"tp": 1, "pp": 1, "cp": 1, "ep": 1}
    found = trainwright.plan(path, framework="megatron", **one, **asked).document
    modes = ("none", *(f"full:{count}" for count in range(1, 12)), "full")
    runs = [trainwright.estimate(path, dp=4, recompute=mode, **asked).document for mode in modes]
    least_s = min(run.step_time_s for run in runs if run.fits)
    assert found.step_time_s == pytest.approx(least_s, rel=1e-12)
    assert found.lower_bound_s <= least_s * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_every_stage_repeats_as_many_of_its_first_blocks(seed):
    """Never fewer than it did, and nothing else; where all layers repeat they go on to."""
    rng = random.Random(seed)
    question = replace(asked("megatron"), model=catalog.model("llama3-8b").config)
    modes = (Recompute.NONE, Recompute.FULL)
    question = replace(question, allowed=replace(question.allowed, recompute=modes))
    profile = estimate_profile(question.estimator(), question, Point(microbatch_size=1, tensor=1))
    layers = profile.structure.layers
    cuts = [0, *sorted(rng.sample(range(2, len(layers) - 1), 3)), len(layers)]
    blocks = {layer.id for layer in layers if layer.name == "block"}
    stages = [
        Stage.uniform(
            tuple(layer.id for layer in layers[first:after]),
            tuple(
                str(rng.choice(modes)) if layer.id in blocks else "none"
                for layer in layers[first:after]
            ),
            data_parallel=1,
            tensor_parallel=1,
        )
        for first, after in pairwise(cuts)
    ]
    made = in_first_blocks(stages, profile)
    counts = []
    for before, now in zip(stages, made, strict=True):
        own = [o for layer, o in zip(now.layers, now.options, strict=True) if layer in blocks]
        count = own.count("full")
        assert own == ["full"] * count + ["none"] * (len(own) - count)
        assert count >= before.options.count("full")
        counts.append((count, len(own)))
    most = max(count for count, _ in counts)
    assert all(count == min(most, size) for count, size in counts)
    everywhere = [
        replace(s, options=tuple("full" if i in blocks else "none" for i in s.layers))
        for s in stages
    ]
    assert in_first_blocks(everywhere, profile) == tuple(everywhere)


@pytest.mark.slow
def test_where_plans_are_counted_more_memory_loses_none():
    """The next search leaves less room than what was found holds, however much there is."""
    job = {"cluster": "dgx-h100", "devices": 16, "global_batch": 16, "sequence": 4096, "top": 0}
    job |= {"framework": "torchtitan", "pp": 1, "tp": 1, "cp": 1, "etp": 1}
    little, more = (
        trainwright.plan("moonlight-16b-a3b", memory=memory, **job).document
        for memory in ("44GiB", "48GiB")
    )
    assert more.step_time_s < little.step_time_s


def test_that_nothing_fits_as_asked_is_said_only_where_it_is_proved(monkeypatch):
    """A search that is not over has found none; that there is none is more."""
    given = {"cluster": "dgx-h100", "devices": 1, "global_batch": 8, "sequence": 4096, "top": 0}
    known = trainwright.plan("llama2-7b", **given).document
    assert any("nothing fits as asked" in each for each in known.warnings)
    plan = model_search.plan_runnable

    def left_open(question, *args, **options):
        return replace(plan(question, *args, **options), exhausted=False)

    monkeypatch.setattr(model_search, "plan_runnable", left_open)
    unknown = trainwright.plan("llama2-7b", **given).document
    assert unknown.step_time_s == known.step_time_s
    assert any("nothing was found to fit as asked" in each for each in unknown.warnings)
    assert not any("nothing fits" in each for each in unknown.warnings)
