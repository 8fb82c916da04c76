"""Plans of models that do not train in the usual way: number formats, overlap, dispatch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import trainwright
from mixed_clusters import two_kinds
from trainwright.documents.jobs import job_of, run_of_document, stamp_of
from trainwright.documents.open import recheck
from trainwright.errors import InvalidInput
from trainwright.formats.document_json import encode
from trainwright.model import DEFAULT_RECIPE
from trainwright.options.question import call_of
from trainwright.pages.command import command_of
from trainwright.plans.configuration import DEFAULT_OVERLAP, Kernels

MODEL = "deepseek-v2-lite"
QUESTION = {
    "cluster": "dgx-h100",
    "global_batch": 64,
    "sequence": 4096,
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "ep": 16,
    "etp": 1,
    "zero": 1,
    "micro_batch": 1,
    "recompute": "none",
    "devices": 16,
    "top": 0,
}
RECIPE = {
    "precision": "fp8",
    "moment_dtype": ["bf16"],
    "dispatch_dtype": "fp8",
    "token_dispatcher": "hierarchical",
    "overlap": {"experts": 0.5},
}


@pytest.fixture(scope="module")
def usual():
    return trainwright.plan(MODEL, **QUESTION).document


@pytest.fixture(scope="module")
def trained_so():
    return trainwright.plan(MODEL, **QUESTION, **RECIPE).document


def test_a_plan_costs_what_its_estimate_under_the_same_recipe_costs(usual, trained_so):
    for plan, recipe in ((usual, {}), (trained_so, RECIPE)):
        run = trainwright.estimate(
            MODEL,
            cluster="dgx-h100",
            devices=16,
            global_batch=64,
            sequence=4096,
            ep=16,
            etp=1,
            **recipe,
        ).document
        assert plan.step_time_s == run.step_time_s
        assert max(plan.peak_memory_bytes_per_rank) == run.peak_memory_bytes
        assert plan.assumptions["dispatch"] == run.assumptions["dispatch"]
    difference = trainwright.diff(trained_so, run).document
    assert difference.request_changes == difference.result_changes == ()


def test_tokens_that_cross_once_in_8_bit_take_a_part_of_the_time(usual):
    expert_s = [usual.time_by_part_s["expert"]]
    for options in ({"dispatch_dtype": "fp8"}, {"token_dispatcher": "hierarchical"}):
        own = trainwright.plan(MODEL, **QUESTION, **options).document
        expert_s.append(own.time_by_part_s["expert"])
        assert own.lower_bound_s <= own.step_time_s * (1 + 1e-9)
    assert all(other < 0.8 * expert_s[0] for other in expert_s[1:])


def test_a_document_carries_what_is_not_usual_and_says_nothing_else(usual, trained_so):
    assert {"recipe", "overlap"}.isdisjoint(encode(usual.request))
    settings = call_of(usual.request).question.settings
    assert (settings.recipe, settings.overlap) == (DEFAULT_RECIPE, DEFAULT_OVERLAP)
    settings = call_of(trained_so.request).question.settings
    assert settings.recipe == trained_so.request.recipe
    assert settings.overlap.experts == 0.5
    assert recheck(trained_so) == trained_so
    job = job_of(trained_so)
    assert (job.precision, job.recipe, job.overlap) == (
        "fp8",
        trained_so.request.recipe,
        trained_so.request.overlap,
    )


def test_figures_of_another_recipe_are_refused(trained_so):
    recipe = replace(trained_so.request.recipe, dispatch_dtype="bf16")
    edited = replace(trained_so, request=replace(trained_so.request, recipe=recipe))
    with pytest.raises(InvalidInput, match="step_time_s"):
        recheck(edited)
    assert stamp_of(edited).plan_sha256 != stamp_of(trained_so).plan_sha256


def test_the_command_of_a_plan_names_its_recipe(usual, trained_so):
    assert (
        "--precision fp8 --moment-dtype bf16 --dispatch-dtype fp8 --token-dispatcher hierarchical "
        "--overlap experts=0.5"
    ) in command_of(trained_so).text
    assert "--overlap" not in command_of(usual).text


def test_differences_name_what_trains_otherwise(usual, trained_so):
    changed = {c.key for c in trainwright.diff(usual, trained_so).document.request_changes}
    assert {"precision", "moment_dtypes", "dispatch_dtype", "token_dispatcher"} <= changed
    assert "experts" in changed


def test_the_dispatch_can_be_asked_again(usual):
    asked = trainwright.what_if(usual, token_dispatcher="hierarchical", dispatch_dtype="fp8")
    changes = {c.key: (c.before, c.after) for c in asked.document.changes}
    assert changes == {
        "dispatch_dtype": (None, "fp8"),
        "token_dispatcher": ("all_to_all", "hierarchical"),
    }
    assert asked.document.after.step_time_s < usual.step_time_s
    assert "hierarchical" in asked.explain()
    with pytest.raises(InvalidInput, match="token-dispatcher: must be one of all_to_all"):
        trainwright.what_if(usual, token_dispatcher="pigeon")


def test_a_sweep_keeps_the_recipe():
    question = {**QUESTION, "ep": 8, "devices": "8,16"}
    document = trainwright.sweep(MODEL, **question, **RECIPE).document
    assert document.request.recipe.dispatch_dtype == "fp8"
    assert document.best_plan.request.recipe == document.request.recipe
    assert "--dispatch-dtype fp8" in command_of(document).text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dispatch_dtype": "int8"}, 'dispatch-dtype: must be one of fp32.*got "int8"'),
        ({"token_dispatcher": "x"}, "token-dispatcher: must be one of all_to_all, hierarchical"),
        ({"overlap": {"expert": 1.0}}, "overlap: must be one of gradients"),
        ({"overlap": {"experts": 2.0}}, "overlap.experts: must be from 0 to 1, got 2.0"),
        ({"expert_loads": "1,x"}, "expert-loads: must be numbers with commas between, or one of"),
        ({"expert_loads": 0.5}, "expert-loads: must be >= 1 where it is one number, that of the"),
        ({"expert_loads": "0,0"}, "expert-loads: must be finite and >= 0, and not all 0"),
        ({"expert_imbalance": 0.5}, "expert-imbalance: must be from 1 to 1000000, got 0.5"),
        ({"expert_imbalance": math.inf}, "expert-imbalance: must be from 1 to 1000000, got inf"),
        (
            {"capacity_factor": math.inf},
            "capacity-factor: must be > 0 and at most 1000000, got inf",
        ),
        (
            {"precision": "fp8", "cluster": "dgx-a100"},
            "precision: A100-80GB-SXM multiplies in bf16, fp16, tf32, fp32, not in fp8",
        ),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(options, problem):
    with pytest.raises(InvalidInput, match=problem):
        trainwright.plan(MODEL, **{**QUESTION, **options})


def test_a_document_with_a_format_of_another_device_is_refused(trained_so):
    request = replace(trained_so.request, cluster=_a100())
    with pytest.raises(InvalidInput, match=r"request\.recipe\.precision: A100"):
        call_of(request)


def _a100():
    return trainwright.plan(MODEL, **{**QUESTION, "cluster": "dgx-a100"}).document.request.cluster


def test_a_document_with_a_format_that_one_of_several_pools_has_not_is_refused():
    narrow = {"global_batch": 32, "sequence": 1024, "tp": 1, "pp": 1, "micro_batch": 1, "cp": 1}
    found = trainwright.plan("gpt2", cluster=two_kinds(), **narrow, optimizer="sgd").document
    recipe = replace(found.request.recipe, precision="fp8")
    with pytest.raises(InvalidInput, match=r"request\.recipe\.precision: A100"):
        call_of(replace(found.request, recipe=recipe))


def test_options_without_effect_are_named():
    plan = trainwright.plan(
        "gpt2",
        cluster="dgx-h100",
        devices=1,
        global_batch=8,
        sequence=1024,
        dispatch_dtype="fp8",
        top=0,
    ).document
    assert "gpt2 has no experts: --dispatch-dtype changes nothing" in plan.warnings
    run = trainwright.estimate(
        MODEL, cluster="dgx-h100", devices=8, global_batch=64, sequence=4096, dispatch_dtype="fp8"
    ).document
    assert any(warning.startswith("dispatch-dtype") for warning in run.warnings)
    together = trainwright.plan(
        MODEL, **{**QUESTION, "ep": 1, "zero": 3}, dispatch_dtype="fp8"
    ).document
    assert any(warning.startswith("dispatch-dtype") for warning in together.warnings)


def test_adamw_keeps_what_adam_keeps():
    run = {"cluster": "dgx-h100", "global_batch": 8, "sequence": 1024}
    named = trainwright.estimate("gpt2", optimizer="adamw", **run).document
    assert named == trainwright.estimate("gpt2", optimizer="adam", **run).document


@pytest.mark.parametrize(
    "kernels",
    [
        {"flash_attention": False},
        {"fused_cross_entropy": True},
        {"vocabulary_multiple": 1000},
    ],
)
def test_kernels_of_a_plan_are_those_of_its_estimate_its_job_and_its_command(kernels):
    where = {"cluster": "dgx-h100", "nodes": 1, "global_batch": 16, "sequence": 1024}
    degrees = {"tp": 1, "pp": 1, "dp": 8, "zero": 1, "micro_batch": 1, "schedule": "1f1b"}
    found = trainwright.plan("gpt2-xl", **where, **degrees, recompute="none", **kernels)
    usual = trainwright.plan("gpt2-xl", **where, **degrees, recompute="none")
    priced = trainwright.estimate("gpt2-xl", **where, **degrees, recompute="none", **kernels)
    assert found.step_time_s == pytest.approx(priced.document.step_time_s, rel=1e-12)
    assert found.step_time_s != usual.step_time_s
    assert run_of_document(found).configuration.kernels == Kernels(
        **{name.replace("flash", "fused"): value for name, value in kernels.items()}
    )
    assert recheck(found.document) == found.document
    ((name, value),) = kernels.items()
    flag = name.replace("_", "-")
    words = {False: f"--no-{flag}", True: f"--{flag}"}.get(value, f"--{flag} {value}")
    assert words in command_of(found.document).text
    assert {change.key for change in trainwright.diff(usual, found).document.request_changes} == {
        name.replace("flash", "fused")
    }


@pytest.mark.parametrize(("precision", "differs"), [("bf16", False), ("fp16", True)])
def test_a_usual_precision_that_is_stated_is_no_difference(precision, differs):
    asked = {"cluster": "dgx-h100", "global_batch": 8, "sequence": 1024, "tp": 1, "pp": 1}
    usual = trainwright.plan("gpt2-xl", **asked, top=0)
    stated = trainwright.estimate("gpt2-xl", **asked, precision=precision)
    for pair in ((usual, stated), (stated, usual)):
        found = trainwright.diff(*pair).document.request_changes
        assert ("precision" in {change.key for change in found}) == differs


def test_a_plan_that_its_framework_cannot_run_is_not_said_to_be_launched_by_it():
    asked = {"cluster": "dgx-h100", "devices": 8, "global_batch": 8, "sequence": 1024, "top": 0}
    space = {"tp": 1, "pp": 1, "dp": 8, "zero": (1,), "recompute": ("none",)}
    tiled = trainwright.plan("gpt2-xl", framework="megatron", mlp_tile=256, **asked, **space)
    assert "as the warnings say, not launched by megatron" in str(tiled)
    assert "fits, but megatron cannot run it" in " ".join(str(tiled).split())
    assert any(said.startswith("framework: mlp_tile") for said in tiled.document.warnings)
    with pytest.raises(trainwright.Inexpressible) as refused:
        trainwright.export(tiled, "megatron")
    assert "and without the options named here" in str(refused.value)
    usual = trainwright.plan("gpt2-xl", framework="megatron", **asked, **space)
    assert "launched by megatron" in str(usual)
    assert "not launched by" not in str(usual)
    assert "cannot run it" not in str(usual)


def test_a_plan_says_what_its_framework_cannot_be_told_of_the_model():
    asked = {"cluster": "dgx-h100", "devices": 8, "global_batch": 8, "sequence": 1024, "top": 0}
    space = {"tp": 1, "pp": 1, "zero": (1,), "recompute": ("none",)}
    plan = trainwright.plan("olmo2-1b", framework="megatron", **asked, **space).document
    said = "framework: model: has norms behind the halves of a block alone"
    assert f"{said}, which megatron cannot be told" in plan.warnings
    with pytest.raises(trainwright.Inexpressible, match="norms behind the halves"):
        trainwright.export(plan, "megatron")
