"""A plan fits with the probability asked for, by what a device shows; hosts hold the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainwright
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.formats.calibration_toml import deciding_memory, framework_memory
from trainwright.formats.document_json import encode
from trainwright.model.recipe import Offload, Recipe
from trainwright.options.clusters import with_host
from trainwright.planning.question.question import (
    Allowed,
    ModelQuestion,
    RunSettings,
    Span,
    Workload,
    missing_of_plan,
    room_bytes,
    run_of_plan,
)
from trainwright.planning.search.framework import plan_runnable
from trainwright.planning.search.plans import bytes_on_host
from trainwright.planning.search.search import plan_model
from trainwright.plans.configuration import DEFAULT_OVERHEADS, Overlap
from trainwright.step.figures import fullest_figures, most_allocated_bytes
from trainwright.step.predict import price_configuration

ONE = Span.only(1)
MODEL = replace(catalog.model("llama3-8b").config, num_layers=8)


def asked(framework: str, memory_gib: float, probability: float) -> ModelQuestion:
    """A short model on a node of devices with so much memory."""
    cluster = catalog.cluster("dgx-a100").with_nodes(1)
    pool = cluster.pool_of()
    device = replace(pool.accelerator, memory_bytes=memory_gib * 2**30)
    cluster = replace(cluster, pools=(replace(pool, accelerator=device),))
    overheads = replace(DEFAULT_OVERHEADS, fit_probability=probability)
    return ModelQuestion(
        model=MODEL,
        cluster=cluster,
        workload=Workload(global_batch=8, sequence_length=4096),
        num_devices=8,
        allowed=Allowed(tensor=ONE, context=ONE, microbatch_size=ONE, schedules=("1f1b",)),
        overheads=overheads,
        account=deciding_memory(framework, overheads),
    )


@pytest.mark.parametrize(
    ("framework", "memory_gib"),
    [
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("megatron", 16), ("deepspeed", 30))
        ),
        *(
            pytest.param(*one, marks=pytest.mark.papers)
            for one in (("megatron", 30), ("deepspeed", 16))
        ),
    ],
)
def test_what_is_planned_fits_as_probably_as_was_asked(framework: str, memory_gib: float) -> None:
    steps_s, bounds_s = [], []
    for probability in (0.0, 0.01, 0.9):
        question = asked(framework, memory_gib, probability)
        found = plan_model(question, Budget())
        bounds_s.append(found.lower_bound_s)
        for each in found.priced:
            assert missing_of_plan(question, each.plan, each.profile, each.step) <= 0
            if probability:
                figures = fullest_figures(
                    MODEL,
                    run_of_plan(question, each.plan, each.profile),
                    each.step,
                    question.cluster.accelerator,
                    framework_memory(framework),
                )
                limit = question.cluster.accelerator.memory_bytes
                assert figures.fit_probability(limit) >= probability - 1e-6
        steps_s.append(found.priced[0].step.step_time_s if found.priced else float("inf"))
    assert steps_s == sorted(steps_s)
    assert bounds_s == sorted(bounds_s)
    assert all(bound <= step for bound, step in zip(bounds_s, steps_s, strict=True))


def test_room_shrinks_with_the_probability_and_the_groups_of_processes() -> None:
    rooms = [room_bytes(asked("megatron", 80, p), groups=2) for p in (0.0, 0.5, 0.9, 0.99)]
    assert rooms == sorted(rooms, reverse=True) and rooms[-1] < rooms[0]
    question = asked("megatron", 80, 0.9)
    assert room_bytes(question, groups=4) < room_bytes(question, groups=0)


@pytest.mark.parametrize("probability", [0.3, 0.5, 0.9, 0.99])
def test_the_most_that_is_allocated_just_fits(probability: float) -> None:
    account, limit = framework_memory("megatron"), 80.0 * 2**30
    most = most_allocated_bytes(account, 3, limit, probability)
    question = asked("megatron", 80, probability)
    assert 0 < most < limit
    assert room_bytes(question, groups=3) <= most


def test_where_the_host_is_full_the_search_goes_on() -> None:
    recipe = Recipe(offload=Offload(activations=1.0))
    cluster = with_host(catalog.cluster("dgx-a100").with_nodes(1))
    pool = cluster.pool_of()
    device, found = pool.accelerator, []
    assert device.host is not None
    for memory_bytes in (100 * 2**30, 2 * 2**30):
        host = replace(device.host, memory_bytes=memory_bytes)
        small = replace(pool, accelerator=replace(device, host=host))
        question = ModelQuestion(
            model=MODEL,
            cluster=replace(cluster, pools=(small,)),
            workload=Workload(global_batch=8, sequence_length=16384),
            num_devices=8,
            allowed=Allowed(tensor=ONE, context=ONE, pipeline=ONE, microbatch_size=ONE),
            settings=RunSettings(recipe=recipe),
        )
        outcome = plan_runnable(question, Budget())
        for each in outcome.priced:
            held = bytes_on_host(question, each.plan, each.profile, each.step)
            assert 0 < held <= memory_bytes
        assert outcome.lower_bound_s <= outcome.priced[0].step.step_time_s
        found.append(outcome.priced[0].step.step_time_s)
    assert found[0] < found[1]


@pytest.mark.slow
def test_an_even_chance_is_asked_for_unless_another_probability_is() -> None:
    options = {
        "cluster": "dgx-a100",
        "devices": 2,
        "memory": "7.4GiB",
        "global_batch": 8,
        "sequence": 1024,
        "tp": "1",
        "pp": "1",
    }
    margins, usual, sure = (
        trainwright.plan("gpt2", **options, framework="deepspeed", fit_probability=each).document
        for each in (0, None, 0.9)
    )
    assert margins.fit_probability < 0.5 and "memory: by the account" in margins.warnings[0]
    assert "fit_probability" not in encode(margins.request.overheads)
    assert margins.step_time_s <= usual.step_time_s <= sure.step_time_s
    assert usual.fit_probability >= 0.5 and sure.fit_probability >= 0.9
    assert sure.lower_bound_s <= sure.step_time_s
    verdicts = [
        trainwright.estimate(
            "gpt2",
            **options,
            software="deepspeed",
            fit_probability=each,
            dp=2,
            zero=margins.parallelism.zero_stage,
            micro_batch=margins.micro_batch,
            changes=False,
        ).document.verdict
        for each in (0, None, 0.9)
    ]
    assert verdicts == ["fits", "does not fit", "does not fit"]


@pytest.mark.slow
def test_what_is_counted_tensor_by_tensor_decides_what_is_planned() -> None:
    options = {"cluster": "dgx-h100", "nodes": 1, "global_batch": 8, "sequence": 8192}
    narrow = {"tp": "1", "pp": "1", "cp": "1", "recompute": "none,full"}
    plans = [
        trainwright.plan(
            "llama3-8b",
            **options,
            **narrow,
            memory="50GiB",
            framework="torchtitan",
            fit_probability=each,
        ).document
        for each in (0, 0.5, 0.99)
    ]
    assert all(p.fit_probability >= each for p, each in zip(plans, (0, 0.5, 0.99), strict=True))
    assert plans[0].step_time_s <= plans[1].step_time_s <= plans[2].step_time_s
    assert plans[2].step_time_s >= plans[2].lower_bound_s


@pytest.mark.parametrize(("model", "sequence"), [("llama3.2-3b", 8960), ("qwen2.5-3b", 7552)])
def test_a_step_of_one_microbatch_may_fill_the_room_of_gradients_that_it_has_not_made_yet(
    model: str, sequence: int
) -> None:
    """Every run of the framework is stated and priced by itself; the plan is the best that fits.

    All tensors of the one that keeps everything would not fit beside its gradients, which are not
    there when it is fullest.
    """
    where = {"cluster": "dgx-h100", "devices": 1, "global_batch": 1, "sequence": sequence}
    fitting = []
    for recompute in ("none", "full"):
        run = trainwright.estimate(
            model, software="trl", loss_chunk=256, recompute=recompute, **where
        ).document
        fitting += [run.step_time_s] if run.fits else []
    found = trainwright.plan(model, framework="trl", **where).document
    assert found.step_time_s == pytest.approx(min(fitting))
    assert len(fitting) == 2
    assert found.status == "optimal"
    assert found.peak_memory_bytes > found.allocated_bytes


def test_a_plan_stated_as_a_run_takes_as_long_whatever_overlaps():
    question = ModelQuestion(
        model=MODEL,
        cluster=catalog.cluster("dgx-a100").with_nodes(1),
        workload=Workload(global_batch=16, sequence_length=2048),
        num_devices=8,
        allowed=Allowed(tensor=ONE, pipeline=ONE, context=ONE),
        settings=RunSettings(overlap=Overlap(gradients=0.0)),
    )
    best = plan_model(question, Budget()).priced[0]
    run = run_of_plan(question, best.plan, best.profile)
    assert best.plan.parallelism.data == 8
    step = price_configuration(MODEL, question.cluster, run)
    assert step.step_time_s == pytest.approx(best.step.step_time_s, rel=1e-12)
