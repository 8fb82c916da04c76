"""What people see: help texts and tables, as snapshots."""

from __future__ import annotations

import pytest

PLAN = ("plan", "small.json")
LLAMA = (
    *("plan", "llama3-8b", "--cluster", "dgx-h100", "--nodes", "2", "--cp", "1"),
    *("--global-batch", "64", "--sequence", "8192", "--schedule", "1f1b,zb-h1"),
)


@pytest.mark.parametrize(
    "command",
    [
        "",
        "plan",
        "estimate",
        "schedule",
        "explain",
        "diff",
        "whatif",
        "report",
        "serve",
        "catalog",
        "verify",
    ],
)
def test_help(run, snapshot, command):
    shown = run(*command.split(), "--help")
    assert shown.code == 0
    assert shown.err == ""
    assert shown.out == snapshot


def test_plan_shows_stages_and_what_binds(run, snapshot):
    assert run(*PLAN, "--memory", "3GB").report == snapshot


def test_compare_shows_restricted_modes_and_equal_splits(run, snapshot):
    assert run(*PLAN, "--compare").report == snapshot


def test_an_infeasible_profile_shows_why_and_what_helps(run, snapshot):
    assert run(*PLAN, "--memory", "2.5GB", "--no-recompute").report == snapshot


def test_a_layer_too_large_on_its_own_is_named(run, snapshot):
    assert run(*PLAN, "--memory", "500MB").report == snapshot


def test_the_equal_split_claims_no_proof(run, snapshot):
    assert run(*PLAN, "--planner", "equal").report == snapshot


def test_estimate_shows_every_stage_that_overflows(run, snapshot):
    run(*PLAN, "-o", "plan.json")
    assert run("estimate", "small.json", "--plan", "plan.json").code == 0
    tight = run("estimate", "small.json", "--plan", "plan.json", "--memory", "6GiB")
    assert tight.report == snapshot


def test_explain_shows_the_table_of_plan_again(run):
    planned = run(*PLAN, "-o", "plan.json")
    explained = run("explain", "plan.json")
    assert explained.code == 0
    assert explained.out == planned.out


def test_diff_shows_only_what_differs(run, snapshot):
    run(*PLAN, "--memory", "3GB", "-o", "eight.json")
    run(*PLAN, "--memory", "3GB", "--devices", "6", "--no-data-parallel", "-o", "six.json")
    assert run("diff", "eight.json", "six.json").report == snapshot
    assert run("diff", "six.json", "six.json").out == "no difference\n"


def test_a_schedule_shows_figures_ranks_and_the_critical_path(run, snapshot):
    asked = ("schedule", "--family", "interleaved", "--ranks", "2", "--microbatches", "4")
    assert run(*asked, "--comm", "0.5").report == snapshot


def test_a_schedule_that_does_not_fit_says_what_would(run, snapshot):
    asked = ("schedule", "--family", "1f1b", "--ranks", "8", "--microbatches", "8")
    assert run(*asked, "--memory-limit", "4").report == snapshot


def test_catalog_lists_models(run, snapshot):
    assert run("catalog", "models").report == snapshot


@pytest.mark.slow
def test_catalog_without_a_topic_lists_all(run):
    everything = run("catalog").out
    for topic in ("models", "accelerators", "clusters", "calibrations", "families", "targets"):
        assert run("catalog", topic).out.strip() in everything


def test_a_model_plan_shows_the_step_and_the_runners_up(run, snapshot):
    assert run(*LLAMA).report == snapshot


def test_a_model_that_does_not_fit_shows_what_helps(run, snapshot):
    huge = ("plan", "llama3-70b", "--cluster", "dgx-h100", "--devices", "4", "--no-recompute",
            "--schedule", "1f1b", "--cp", "1", "--zero", "1")  # fmt: skip
    assert run(*huge, "--global-batch", "64", "--sequence", "8192").report == snapshot


def test_options_that_do_not_apply_are_named(run, snapshot):
    shown = run(*PLAN, "--jobs", "2", "--block-layer", "x", "--exclude-option", "y")
    warnings = [line for line in shown.out.splitlines() if line.startswith("warning")]
    assert warnings == snapshot


def test_brackets_in_names_are_no_markup(run, folder):
    (folder / "small.json").rename(folder / "[red]a.json")
    run("plan", "[red]a.json", "-o", "[x.json")
    run("plan", "[red]a.json", "--exclude-option", "[/b]", "-o", "y.json")
    shown = run("explain", "[x.json")
    assert shown.code == 0
    assert shown.out.startswith("[red]a.json: ")
    shown = run("diff", "[x.json", "y.json")
    assert shown.code == 0
    assert "[/b]" in shown.out


@pytest.mark.slow
def test_several_numbers_of_devices_are_one_table(run, snapshot):
    asked = ("plan", "gpt2", "--cluster", "dgx-h100", "--devices", "8,16", "--top", "1",
             "--schedule", "1f1b")  # fmt: skip
    work = ("--global-batch", "64", "--sequence", "1024", "--tokens", "3e11", "--price", "2.5")
    shown = run(*asked, *work, "--objective", "cost", "--pareto", "step-time,cost")
    assert shown.report == snapshot


@pytest.mark.slow
def test_what_if_shows_both_plans_beside_each_other(run, snapshot):
    run(
        "plan",
        "gpt2",
        "--cluster",
        "dgx-h100",
        "--devices",
        "8",
        "--global-batch",
        "64",
        "--sequence",
        "1024",
        *("--schedule", "1f1b", "--cp", "1", "--no-reasons"),
        *("-o", "plan.json"),
    )
    asked = ("whatif", "plan.json", "--bandwidth", "nvlink=1TB/s", "--flops-scale", "1.2")
    assert run(*asked, "--global-batch", "32").report == snapshot


@pytest.mark.slow
def test_explain_says_why_a_models_plan_is_what_it_is(run, snapshot):
    run("plan", "gpt2", "--cluster", "dgx-h100", "--devices", "8", "--global-batch", "64",
        "--sequence", "1024", "--memory", "2GiB", "--cp", "1", "--schedule", "1f1b",
        "--no-reasons", "-o", "plan.json")  # fmt: skip
    assert run("explain", "plan.json", "--time-limit", "10min").report == snapshot
    document = run("explain", "plan.json", "--json").document
    assert document["kind"] == "model-explanation"
    quick = run("explain", "plan.json", "--quick", "--json").document
    assert quick["kind"] == "model-plan"
