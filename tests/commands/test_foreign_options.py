"""Options of another kind of input are refused: a plan without them answers another question."""

from __future__ import annotations

import json

import pytest

from small_profiles import write_json

WORK = ("--global-batch", "32", "--sequence", "1024")
PLAN = ("plan", "gpt2", "--cluster", "dgx-h100", *WORK, "--devices")
ESTIMATE = ("estimate", "gpt2", "--cluster", "dgx-h100", *WORK, "--nodes", "1")

OF_BOTH = (
    ("--bandwidth", "1MB/s", "a model's links come from --cluster: edit its file, or ask whatif"),
    ("--bandwidth", "25", "a model's links come from --cluster"),
    ("--microbatches", "3", "those of a model follow from --global-batch, --micro-batch and --dp"),
    ("--point", "0", "a model has no points"),
    ("--time-unit", "ms", "times of a model are seconds"),
)
OF_PLAN = (
    ("--planner", "equal", "a model has one planner"),
    ("--planner", "no-such", "a model has one planner"),
    ("--block-layer", "foo", "a model is not split by names of layers"),
    ("--compare", None, "plan a model with each restriction"),
)


def words(option: str, value: str | None) -> tuple[str, ...]:
    return (option,) if value is None else (option, value)


def is_refused(done, message: str) -> bool:
    return (done.code, done.out) == (2, "") and message in done.err


@pytest.mark.parametrize("devices", ["8", "8..16"])
@pytest.mark.parametrize(("option", "value", "instead"), [*OF_BOTH, *OF_PLAN])
def test_options_of_profiles_are_refused_by_plan_on_a_model(run, devices, option, value, instead):
    done = run(*PLAN, devices, *words(option, value))
    wanted = f"{option.removeprefix('--')}: must be given for a profile only; {instead}"
    assert is_refused(done, wanted)


@pytest.mark.parametrize(("option", "value", "instead"), OF_BOTH)
def test_options_of_profiles_are_refused_by_estimate_on_a_model(run, option, value, instead):
    wanted = f"{option.removeprefix('--')}: must be given for a profile only; {instead}"
    assert is_refused(run(*ESTIMATE, option, value), wanted)


@pytest.mark.parametrize("devices", ["8", "8..16"])
def test_costs_of_placement_problems_are_refused_for_a_model(run, devices):
    wanted = "cost-model: must be given for a placement problem only; costs of a model come from"
    assert is_refused(run(*PLAN, devices, "--cost-model", "native"), wanted)


@pytest.mark.parametrize("devices", ["8", "8..16"])
def test_a_model_is_excluded_only_what_its_layers_offer(run, devices):
    done = run(*PLAN, devices, "--exclude-option", "foo", "--exclude-option", "full")
    wanted = 'exclude-option: must be one of none, offload, selective, full for a model, got "foo"'
    assert is_refused(done, wanted)


def test_every_foreign_option_is_named_at_once(run):
    done = run(*PLAN, "8", "--compare", "--point", "0", "--bandwidth", "25")
    assert done.err.startswith("error: 3 faults\n")


def test_defaults_written_out_are_no_foreign_options(run):
    assert run(*PLAN, "1", "--planner", "exact", "--top", "0", "--pp", "1").code == 0


@pytest.mark.parametrize(
    ("option", "value", "instead"),
    [
        ("--nodes", "3", "the machine is given as --devices, --memory and --bandwidth"),
        ("--global-batch", "8", "the batch is given as --microbatches"),
        ("--micro-batch", "1", "the batch is given as --microbatches"),
        ("--sequence", "128", "a file with times and sizes states how it trains"),
        ("--zero", "0", "a file with times and sizes states how it trains"),
        ("--tp", "2", "a file with times and sizes states how it trains"),
        ("--moment-dtype", "bf16", "a file with times and sizes states how it trains"),
        ("--dispatch-dtype", "fp8", "a file with times and sizes states how it trains"),
        ("--calibration", "nowhere", "a file with times and sizes states how it trains"),
        ("--recompute", "full", "--no-recompute drops what recomputes"),
    ],
)
def test_options_of_models_are_refused_for_a_profile(run, option, value, instead):
    wanted = f"{option.removeprefix('--')}: must be given for a model only; {instead}"
    assert is_refused(run("plan", "small.json", option, value), wanted)
    run("plan", "small.json", "-o", "plan.json")
    done = run("estimate", "small.json", "--plan", "plan.json", option, value)
    assert is_refused(done, wanted)


ON_A_CLUSTER = ("plan", "small.json", "--cluster", "dgx-h100", "--nodes", "1")


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("--bandwidth", "25GB/s", "bandwidth: must be given for a profile without --cluster only"),
        ("--microbatches", "8", "microbatches: must be given for a profile without --cluster only"),
        ("--planner", "equal", "planner: must be given for a profile without --cluster only"),
        ("--framework", "megatron", "framework: must be given for a model only"),
        ("--optimizer", "sgd", "optimizer: must be given for a model only"),
        ("--zero", "1", "zero: must hold 0: the profile does not tell weights"),
        ("--micro-batch", "2", "micro-batch: must hold one of 1, which the profile has"),
        ("--cp", "2", "cp: must hold 1: the profile has no other"),
        ("--exclude-option", "vanilla", None),
    ],
)
def test_a_profile_on_a_cluster_takes_what_means_something_there(run, option, value, wanted):
    done = run(*ON_A_CLUSTER, "--global-batch", "8", option, value)
    assert done.code == 0 if wanted is None else is_refused(done, wanted)


def test_a_profile_on_a_cluster_is_followed_like_a_model(run):
    assert run(*ON_A_CLUSTER, "--global-batch", "8", "-o", "plan.json").code == 0
    assert run("explain", "plan.json").code == 0
    assert run("whatif", "plan.json", "--memory", "20GiB").code == 0
    assert run("report", "plan.json", "-o", "plan.html").code == 0
    done = run("export", "plan.json", "--to", "pytorch", "-o", "run")
    assert is_refused(done, "small.json is a profile: it says what layers cost")


@pytest.mark.parametrize("flag", ["--no-flash-attention", "--flash-attention"])
def test_flags_of_models_are_refused_for_a_profile_either_way(run, flag):
    run("plan", "small.json", "-o", "plan.json")
    done = run("estimate", "small.json", "--plan", "plan.json", flag)
    assert is_refused(done, "flash-attention: must be given for a model only")
    assert is_refused(
        run("plan", "small.json", "--per-stage-degrees"),
        "per-stage-degrees: must be given for a model only",
    )


def test_costs_of_placement_problems_are_refused_for_a_profile(run):
    wanted = "cost-model: must be a plug-in of trainwright.cost_models, got"
    assert is_refused(run("plan", "small.json", "--cost-model", "native"), wanted)


def test_a_file_that_states_its_unit_takes_no_other(run, folder):
    content = run("plan", "small.json", "--json").document["request"]["model"]["content"]
    write_json(folder / "own.json", content)
    wanted = "time-unit: must be given for a Piper profile only; own.json states its unit"
    assert is_refused(run("plan", "own.json", "--time-unit", "ms"), wanted)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dispatch-dtype", "fp8"), "--dispatch-dtype changes nothing"),
        (("--token-dispatcher", "hierarchical"), "--token-dispatcher changes nothing"),
        (("--expert-imbalance", "1.5"), "--expert-imbalance changes nothing"),
        (
            ("--capacity-factor", "1.2", "--dispatch-dtype", "fp8"),
            "--capacity-factor, --dispatch-dtype change nothing",
        ),
    ],
)
@pytest.mark.parametrize("command", [(*PLAN, "1", "--top", "0"), ESTIMATE])
def test_options_of_experts_change_nothing_of_a_dense_model(run, command, options, said):
    done = run(*command, *options, "--json")
    assert f"gpt2 has no experts: {said}" in json.loads(done.out)["warnings"]


@pytest.mark.parametrize("tokens", ["15B", "15b", "0.015T", "15000M", "15_000_000K", "15e9"])
def test_tokens_are_counted_in_thousands_to_trillions(run, tokens):
    done = run(*PLAN, "1..2", "--tokens", tokens, "--top", "0", "--pp", "1", "--json")
    assert done.document["training"]["tokens"] == pytest.approx(15e9, rel=1e-12)


@pytest.mark.parametrize("tokens", ["T", "15Q", "15TT", "-1T", "0B", "1e308T", "nanT", ""])
def test_what_is_no_count_of_tokens_is_refused(run, tokens):
    done = run(*PLAN, "1..2", "--tokens", tokens)
    assert is_refused(done, f'tokens: must be a number > 0, such as 15e12 or 15T, got "{tokens}"')
