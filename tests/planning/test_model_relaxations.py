"""Changes that make a model fit: each is tried, and priced as planning under it prices it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainwright
from trainwright.commands.export import bundle_of
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.options.clusters import without_host
from trainwright.planning.question.question import Allowed, ModelQuestion, Span, Workload
from trainwright.planning.reasons.infeasible import (
    diagnose_model,
    leaner_trainings,
    priced_relaxations,
    relaxed,
)
from trainwright.planning.search.framework import plan_runnable
from trainwright.plans.status import Relaxation
from trainwright.profile import Recompute
from trainwright.units import format_seconds

ONE_OF_EACH = {
    "context": Span.only(1),
    "microbatch_size": Span.only(1),
    "schedules": ("1f1b",),
}


def asked(memory_gib: float, **allowed) -> ModelQuestion:
    cluster = catalog.cluster("dgx-h100").with_memory(memory_gib * 2**30)
    return ModelQuestion(
        model=catalog.model("gpt2-xl").config,
        cluster=cluster,
        workload=Workload(global_batch=8, sequence_length=1024),
        num_devices=2,
        allowed=Allowed(**ONE_OF_EACH | allowed),
    )


CASES = {
    "state": asked(8.0),
    "sharding": asked(14.0, zero_stages=(0,), tensor=Span.only(1), pipeline=Span.only(1)),
    "activations": asked(
        19.0,
        recompute=(Recompute.NONE,),
        tensor=Span.only(1),
        pipeline=Span.only(1),
        zero_stages=(1,),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("question", CASES.values(), ids=CASES)
def test_every_change_is_priced_by_the_best_plan_under_it(question):
    assert not plan_runnable(question, Budget()).priced
    diagnosis = diagnose_model(question, Budget())
    fixes = tuple(priced_relaxations(question, diagnosis.relaxations, Budget()))
    assert {"memory", "devices"} & {fix.change for fix in fixes}
    for fix in fixes:
        changed = relaxed(question, fix)
        best = plan_runnable(changed, Budget()).priced[0]
        assert fix.step_time_s == best.step.step_time_s
        assert fix.devices_used == best.plan.devices_used <= changed.num_devices


def test_a_sequence_is_shortened_only_where_that_is_enough():
    changes = {f.change: f for f in diagnose_model(CASES["activations"], Budget()).relaxations}
    assert changes["sequence"].value in (512, 256, 128, 64)
    state = asked(1.0, tensor=Span.only(1), pipeline=Span.only(1), zero_stages=(1,))
    assert "sequence" not in {f.change for f in diagnose_model(state, Budget()).relaxations}


@pytest.mark.parametrize(
    ("framework", "changes"),
    [
        ("megatron", {"gradient-dtype", "all-bf16", "offload-optimizer"}),
        ("nanotron", {"gradient-dtype"}),
        ("automodel", {"lora"}),
        ("trl", {"moment-dtype", "all-bf16", "offload-states", "lora", "qlora"}),
        ("torchtitan@0.3", {"moment-dtype", "all-bf16"}),
        (None, {"gradient-dtype", "moment-dtype", "all-bf16", "offload-states", "lora", "qlora"}),
    ],
)
def test_another_training_is_offered_as_far_as_the_framework_can(framework, changes):
    question = asked(8.0, framework=framework)
    offered = [fix for family in leaner_trainings(question) for fix, _ in family]
    assert {fix.change for fix in offered} == changes
    assert all(fix.option.startswith("--") for fix in offered)
    names = [fix.change for fix in offered]
    assert names == sorted(names, key=lambda name: name in ("lora", "qlora"))
    for fix in offered:
        recipe, model = relaxed(question, fix).settings.recipe, relaxed(question, fix).model
        assert (recipe, model) != (question.settings.recipe, question.model)


def test_a_host_that_nobody_describes_keeps_nothing():
    question = asked(8.0, framework="megatron")
    families = leaner_trainings(replace(question, cluster=without_host(question.cluster)))
    changes = [fix.change for family in families for fix, _ in family]
    assert changes == ["gradient-dtype", "all-bf16"]


def test_out_of_time_the_changes_are_listed_without_prices():
    budget = Budget()
    budget.interrupt()
    fixes = (Relaxation(change="memory", description="more", value=2.0**36),)
    assert tuple(priced_relaxations(asked(1.0), fixes, budget)) == fixes


def test_a_plan_that_waits_on_its_host_says_that_all_in_16_bit_would_not():
    """Others train in it where nothing else fits; numbers differ, so nobody chooses it silently."""
    asked_for = {"devices": 1, "global_batch": 1, "sequence": 4096, "framework": "trl"}
    found = trainwright.plan("llama2-7b", cluster="dgx-h100", **asked_for).document
    (said,) = [each for each in found.warnings if "all in bf16" in each]
    narrow = trainwright.plan(
        "llama2-7b", cluster="dgx-h100", main_weight_dtype="none", gradient_dtype="bf16",
        moment_dtype="bf16", **asked_for,
    ).document  # fmt: skip
    assert narrow.step_time_s < 0.1 * found.step_time_s
    assert format_seconds(narrow.step_time_s) in said
    files = bundle_of(narrow, "trl").files
    assert "bf16: false" in files["sft.yaml"] and "dtype: bfloat16" in files["sft.yaml"]
    assert "mixed_precision: 'no'" in files["accelerate.yaml"].replace('"', "'")


@pytest.mark.slow
def test_a_surer_plan_is_offered_more_than_memory_that_nobody_sells() -> None:
    """Where an account alone refuses all plans, each kind of change is tried on whole plans."""
    made = trainwright.plan(
        "llama3-8b",
        cluster="dgx-h100",
        devices=2,
        global_batch=16,
        sequence=8192,
        framework="torchtitan",
        fit_probability=0.9,
    ).document
    assert made.parallelism is None
    offered = {fix.change for fix in made.relaxations}
    assert {"devices", "moment-dtype"} <= offered
    assert "memory" not in offered
    assert all(fix.step_time_s for fix in made.relaxations)
    more = next(fix for fix in made.relaxations if fix.change == "devices")
    assert more.value == 4


def test_leanest_steps_are_offered_with_more_of_an_axis_where_neither_is_enough() -> None:
    """What two changes reach together is no dearer than sixteen context ranks alone."""
    found = trainwright.estimate(
        "llama3-70b",
        cluster="dgx-h100",
        nodes=4,
        zero=3,
        micro_batch=2,
        global_batch=64,
        sequence=8192,
        software="torchtitan",
        fit_probability=0.9,
        changes=True,
    ).document
    assert not found.fits
    both = [each for each in found.changes if "--recompute full --cp 2" in each.options]
    assert len(both) == 1
    assert both[0].device_time_ratio == min(each.device_time_ratio for each in found.changes)
    again = trainwright.estimate(
        "llama3-70b",
        cluster="dgx-h100",
        nodes=4,
        zero=3,
        micro_batch=1,
        global_batch=64,
        sequence=8192,
        software="torchtitan",
        fit_probability=0.9,
        recompute="full",
        cp=2,
    ).document
    assert again.fits
