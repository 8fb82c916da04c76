"""`estimate` on a model: the promised keys, the verdict, refusals by option, and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwright.units import GIB

RUN = (
    *("estimate", "llama3-8b", "--cluster", "dgx-h100", "--nodes", "2", "--tp", "2", "--pp", "2"),
    *("--global-batch", "64", "--sequence", "8192", "--recompute", "selective"),
)
LARGE = (
    *("estimate", "llama3-70b", "--cluster", "dgx-h100", "--nodes", "8", "--tp", "8"),
    *("--global-batch", "64", "--sequence", "8192", "--micro-batch", "4"),
)
CLASSES = (
    *("weight", "gradient", "optimizer", "activation", "logits", "transient", "buffer"),
    "workspace",
)


@pytest.fixture
def refused(run):
    """Run a command that must be refused; gives its message."""

    def call(*arguments: str) -> str:
        done = run(*arguments)
        assert (done.code, done.out) == (2, "")
        assert "Traceback" not in done.err
        return done.err

    return call


def test_one_document_with_the_promised_keys(run):
    done = run(*RUN, "--json")
    assert (done.code, done.err) == (0, "")
    document = done.document
    assert document["kind"] == "model-estimate"
    assert document["step_time_low_s"] < document["step_time_s"] < document["step_time_high_s"]
    assert document["tokens_per_s"] == pytest.approx(64 * 8192 / document["step_time_s"])
    assert document["tokens_per_s_per_device"] == pytest.approx(document["tokens_per_s"] / 16)
    assert 0 < document["mfu"] <= document["hfu"] < 1
    assert 0 < document["bubble_of_makespan"] < 1
    kinds = ["tensor", "context", "expert", "pipeline", "gradients", "parameters"]
    assert list(document["exposed_communication_s"]) == kinds
    assert list(document["hidden_communication_s"]) == kinds
    assert document["devices_used"] == 16
    assert document["num_microbatches"] == 16
    peaks = []
    for index, rank in enumerate(document["memory"]):
        assert rank["rank"] == index
        assert sum(rank[f"{name}_bytes"] for name in CLASSES) == pytest.approx(rank["total_bytes"])
        peaks.append(rank["total_bytes"])
    assert document["peak_memory_bytes"] == max(peaks) == peaks[document["heaviest_rank"]]
    assert document["fits"] is True
    assert document["verdict"] == "fits"
    margin = document["memory_limit_bytes"] - document["peak_memory_bytes"]
    assert document["margin_bytes"] == pytest.approx(margin)
    assert document["changes"] == document["warnings"] == []


def test_it_is_read_back_and_explained_as_it_was_printed(run, folder):
    printed = run(*RUN, "-o", "estimate.json")
    explained = run("explain", "estimate.json")
    assert (explained.code, explained.out) == (0, printed.out)


def test_a_figure_edited_by_hand_is_found_out(run, refused, folder):
    run(*RUN, "-o", "estimate.json")
    document = json.loads((folder / "estimate.json").read_text(encoding="utf-8"))
    document["step_time_s"] /= 2
    (folder / "estimate.json").write_text(json.dumps(document), encoding="utf-8")
    assert "step_time_s: must be" in refused("explain", "estimate.json")


def test_what_does_not_fit_is_priced_with_the_changes_that_help(run):
    done = run(*LARGE, "--json")
    assert done.code == 3
    document = done.document
    assert document["verdict"] == "does not fit"
    assert document["margin_bytes"] < 0
    assert document["step_time_s"] > 0
    assert len(document["changes"]) >= 3
    cost = [change["step_time_s"] * change["devices_used"] for change in document["changes"]]
    assert cost == sorted(cost)
    for change in document["changes"]:
        assert 1.05 * change["peak_memory_bytes"] <= document["memory_limit_bytes"]


@pytest.mark.parametrize("layout", [("--dp", "8", "--zero", "2"), ("--dp", "2", "--pp", "4")])
def test_no_change_is_offered_twice(run, layout):
    """A microbatch is one sequence already, and all blocks of a stage are every block."""
    sizes = ("--nodes", "1", "--global-batch", "32", "--sequence", "32768", "--micro-batch", "1")
    done = run("estimate", "llama3-8b", "--cluster", "dgx-h100", *sizes, *layout, "--json")
    offered = [change["description"] for change in done.document["changes"]]
    assert "recompute every block" in offered
    assert not [text for text in offered if "microbatches of 1" in text or "32 blocks" in text]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (("--micro-batch", "1"), "--micro-batch 1"),
        (("--micro-batch", "4", "--recompute", "full"), "--recompute full"),
    ],
)
def test_no_change_has_what_the_run_has(run, own, said):
    done = run(*LARGE, *own, "--zero", "0", "--json")
    offered = [change["options"] for change in json.loads(done.out)["changes"]]
    assert offered
    assert not [options for options in offered if said in options]


def test_every_offered_change_fits_when_it_is_made(run):
    """The last option of a name wins, so appending a change makes it."""
    offered = run(*LARGE, "--json").document["changes"]
    for change in offered:
        options = change["options"].split()
        done = run(*LARGE, *options, "--json")
        assert done.code == 0, change
        assert done.document["step_time_s"] == pytest.approx(change["step_time_s"])


def test_between_the_margins_it_is_tight(run):
    peak = run(*RUN, "--json").document["peak_memory_bytes"]
    done = run(*RUN, "--memory", f"{1.02 * peak / 0.97:.0f}", "--json")
    assert (done.code, done.document["verdict"]) == (3, "tight")
    reserved = run(*RUN, "--reserve", "70GiB", "--json").document
    assert reserved["verdict"] == "tight"
    plain = run(*RUN, "--json").document
    assert plain["margin_bytes"] - reserved["margin_bytes"] == pytest.approx(70 * GIB)


def test_data_parallelism_fills_the_devices_unless_given(run):
    assert run(*RUN, "--json").document["request"]["configuration"]["parallelism"]["data"] == 4
    fewer = run(*RUN, "--dp", "2", "--json").document
    assert fewer["devices_used"] == 8
    assert fewer["warnings"] == ["uses 8 of 16 devices"]
    grown = run(
        *("estimate", "llama3-8b", "--cluster", "dgx-h100", "--tp", "8", "--dp", "4"),
        *("--global-batch", "64", "--sequence", "8192", "--json"),
    )
    assert grown.document["devices_used"] == 32


@pytest.mark.parametrize("devices", [4, 8, 12])
def test_data_parallelism_fills_the_devices_that_are_given_and_not_their_nodes(run, devices):
    asked = ("estimate", "gpt2", "--cluster", "dgx-h100", "--devices", str(devices), "--tp", "2")
    found = run(*asked, "--global-batch", "24", "--sequence", "512", "--json").document
    assert found["devices_used"] == devices
    assert found["request"]["configuration"]["parallelism"]["data"] == devices // 2


def test_degrees_beyond_the_devices_that_are_given_are_refused(refused):
    asked = (
        "estimate",
        "gpt2",
        "--cluster",
        "dgx-h100",
        "--global-batch",
        "8",
        "--sequence",
        "512",
    )
    said = refused(*asked, "--devices", "4", "--dp", "8")
    assert "devices: tp x pp x dp x cp must be at most the 4 devices, got 8" in said


OPTIONS = [
    ("--cp", "2"),
    ("--zero", "3"),
    ("--micro-batch", "2"),
    ("--schedule", "zb-h1"),
    ("--virtual-stages", "2"),
    ("--blocks", "17,15"),
    ("--no-sequence-parallel",),
    ("--no-flash-attention",),
    ("--fused-cross-entropy",),
    ("--vocabulary-multiple", "1024"),
    ("--precision", "fp8"),
    ("--optimizer", "sgd"),
    ("--gradient-dtype", "bf16"),
    ("--main-weight-dtype", "none"),
    ("--moment-dtype", "bf16"),
    ("--dropout", "0.1"),
    ("--overlap", "gradients=0"),
    ("--recompute", "full:3"),
    ("--recompute-module", "norm"),
    ("--workspace", "1GiB"),
]


@pytest.mark.parametrize("option", OPTIONS, ids=" ".join)
def test_every_option_changes_time_or_memory(run, option):
    before, after = run(*RUN, "--json"), run(*RUN, *option, "--json")
    assert (before.code, after.code) == (0, 0), after.err

    def facts(done):
        ranks = [
            {k: v for k, v in r.items() if k != "margin_bytes"} for r in done.document["memory"]
        ]
        return done.document["step_time_s"], ranks

    assert facts(before) != facts(after)


def test_experts_have_options_of_their_own(run):
    mixture = (
        *("estimate", "mixtral-8x7b", "--cluster", "dgx-h100", "--nodes", "4", "--tp", "2"),
        *("--global-batch", "64", "--sequence", "4096", "--ep", "8", "--etp", "1", "--pp", "2"),
    )
    even = run(*mixture, "--json").document
    assert even["exposed_communication_s"]["expert"] > 0
    skewed = run(*mixture, "--expert-imbalance", "1.5", "--json").document
    assert skewed["step_time_s"] > even["step_time_s"]
    assert skewed["peak_memory_bytes"] > even["peak_memory_bytes"]
    padded = run(*mixture, "--capacity-factor", "1.25", "--json").document
    assert even["step_time_s"] < padded["step_time_s"] < skewed["step_time_s"]


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        (("--tp", "3"), ["tp: must divide the 32 heads, got 3"]),
        (
            ("--global-batch", "63"),
            ["global-batch: must be a multiple of micro-batch x dp (1 x 4)"],
        ),
        (("--pp", "64"), ["pp: x virtual stages must be at most the 32 blocks, got 64 x 1"]),
        (("--schedule", "best"), ["schedule: must be one of gpipe, 1f1b"]),
        (
            ("--recompute", "some"),
            ["recompute: must be one of none, offload, selective, full, offload:N, full:N"],
        ),
        (("--overlap", "luck=1"), ["overlap: must be one of gradients", 'got "luck"']),
        (("--overlap", "tensor=2"), ["overlap.tensor: must be from 0 to 1, got 2.0"]),
        (("--precision", "fp4"), ["precision: H100-80GB-SXM multiplies in", "not in fp4"]),
        (
            ("--precision", "fp7", "--tp", "3", "--cp", "2"),
            ["precision: must be one of bf16, fp16, fp32, tf32, fp8, fp4, fp8_delayed"],
        ),
        (("--optimizer", "lamb"), ["optimizer: must be one of adam, sgd, momentum, muon"]),
        (("--dropout", "much"), ['dropout: must be a number, got "much"']),
        (("--memory", "80"), ['did you mean "80GiB"?']),
        (
            ("--ep", "3", "--zero", "4", "--global-batch", "63"),
            ["zero: must be 0, 1, 2 or 3, got 4"],
        ),
        (
            ("--ep", "2", "--cp", "3", "--dp", "2", "--global-batch", "63"),
            ["global-batch:", "sequence: must be a multiple of", "ep: must be 1 for a model"],
        ),
    ],
)
def test_an_illegal_run_is_refused_with_every_rule_by_its_option(refused, options, faults):
    message = refused(*RUN, *options)
    for fault in faults:
        assert fault in message


def test_a_model_needs_cluster_batch_and_sequence(refused):
    assert "cluster: must be given for a model" in refused("estimate", "llama3-8b")
    message = refused("estimate", "llama3-8b", "--cluster", "dgx-h100")
    assert "global-batch: must be given, as --global-batch N" in message
    assert "sequence: must be given, as --sequence N" in message


def test_the_table_shows_where_time_and_memory_go(run, snapshot):
    assert run(*RUN).report == snapshot


def test_the_table_of_what_does_not_fit(run, snapshot):
    assert run(*LARGE).report == snapshot


def test_a_degree_beyond_every_machine_is_named(run):
    sizes = ("--global-batch", "64", "--sequence", "2048")
    done = run("estimate", "llama3-8b", "--cluster", "dgx-a100", *sizes, "--tp", "9" * 20)
    assert (done.code, done.err) == (2, f"error: tp: must be <= 1000000000, got {10**20}\n")


def test_every_constant_is_printed_with_its_origin(run, folder):
    estimated = run(*RUN, "--calibration", "nemo", "--json", "-o", "estimate.json")
    printed = run("explain", "estimate.json", "--constants").out
    (pool,) = estimated.document["request"]["cluster"]["content"]["pools"]
    for owner in (pool["accelerator"], *pool["levels"]):
        assert owner["name"] in printed
    for constant in ("dense peak, bf16", "memory bandwidth", "start of a kernel", "latency"):
        assert constant in printed
    halves = pool["accelerator"]["efficiency"]
    assert f"{halves['gemm']['half'] / 1e9:,.4g} GFLOP" in printed
    assert f"{halves['attention_half_flops'] / 1e9:,.4g} GFLOP" in printed
    assert "fitted" in printed
    assert "datasheet" in printed
    document = run("explain", "estimate.json", "--constants", "--json").document
    assert (document["kind"], document["cluster"]) == ("constants", "dgx-h100")
    for each in document["constants"]:
        assert all(each[key] in printed for key in ("of", "text", "origin"))
    values = {each["constant"]: each["value"] for each in document["constants"]}
    assert values["dense peak, bf16"] == dict(pool["accelerator"]["peak_flops_per_s"])["bf16"]
    assert values["products reach half of that with"] == halves["gemm"]["half"]
    assert sum("high_value" in each for each in document["constants"]) == 1


def test_what_a_file_states_without_a_source_is_no_usual_value(run, folder):
    mixed = str(Path(__file__).parents[2] / "examples" / "old-and-new.toml")
    one = (
        "--pp",
        "2",
        "--dp",
        "8",
        "--tp",
        "1",
        "--cp",
        "1",
        "--zero",
        "1",
        "--micro-batch",
        "1",
        "--schedule",
        "1f1b",
    )
    sizes = ("--global-batch", "8", "--sequence", "1024", "--recompute", "none")
    run("plan", "gpt2", "--cluster", mixed, *sizes, *one, "--json", "-o", "mixed.json")
    printed = run("explain", "mixed.json", "--constants").out
    (line,) = (line for line in printed.splitlines() if "12.5 GB/s" in line)
    assert "no source stated" in line


OWN = """device_kind = "H100-80GB-SXM"

[[level]]
name = "nvlink"
size = 8
bandwidth_bytes_per_s = 450e9
latency_s = 500e-6

[[level]]
name = "roce"
size = 4
bandwidth_bytes_per_s = 50e9
latency_s = 1e-6
efficiency = 0.97
"""
SMALL = ("--tp", "2", "--global-batch", "64", "--sequence", "2048")


def test_what_replaces_a_figure_of_an_own_network_is_said_unless_its_source_is(run, folder):
    own = folder / "own.toml"
    own.write_text(OWN, encoding="utf-8")
    told = run("estimate", "llama3-8b", "--cluster", "own.toml", *SMALL, "--json").document
    (said,) = (each for each in told["warnings"] if each.startswith("own: "))
    for part in ("(typical)", "roce latency_s 1 µs by ", "roce efficiency 0.97 by ", "sources = "):
        assert part in said
    assert "nvlink latency_s" not in said  # it is slower, and stays
    planned = run("plan", "llama3-8b", "--cluster", "own.toml", *SMALL, "--json").document
    assert said in planned["warnings"]

    sources = """sources = { latency_s = "measured: ours", efficiency = "measured: ours" }\n"""
    own.write_text(OWN + sources, encoding="utf-8")
    kept = run("estimate", "llama3-8b", "--cluster", "own.toml", *SMALL, "--json", "-o", "e.json")
    assert not any("roce" in each for each in kept.document["warnings"])
    assert kept.document["step_time_s"] < told["step_time_s"]
    printed = run("explain", "e.json", "--constants").out
    (line,) = (each for each in printed.splitlines() if "1 µs" in each)
    assert "measured" in line
    assert "ours" in line


def test_a_cluster_of_the_catalog_has_no_figure_of_anybody_to_replace(run, folder):
    usual = run(*RUN, "--json", "-o", "e.json").document
    assert not any("replace" in each for each in usual["warnings"])
    again = run("estimate", "llama3-8b", "--cluster", "e.json", *SMALL, "--json").document
    assert not any("replace" in each for each in again["warnings"])


def test_an_own_cluster_made_larger_is_said_in_one_line(run, folder):
    (folder / "own.toml").write_text(OWN, encoding="utf-8")
    own = ("llama3-8b", "--cluster", "own.toml", *SMALL)

    def said(command: str, *options: str) -> list[str]:
        told = run(command, *own, *options, "--json").document["warnings"]
        return [each for each in told if "4 nodes" in each]

    assert said("estimate", "--devices", "16") == []
    assert said("estimate", "--nodes", "8") == []
    (line,) = said("estimate", "--devices", "64")
    assert line.startswith("own: it has 4 nodes of 8 H100-80GB-SXM; ")
    assert "need 8," in line
    assert said("plan", "--pp", "1", "--devices", "64") == [line]
    run("plan", *own, "--pp", "1", "--json", "-o", "plan.json")
    changed = run("whatif", "plan.json", "--devices", "64", "--json").document
    assert line in changed["after"]["warnings"]


def test_a_model_is_called_as_the_folder_of_its_config_wherever_that_is_read(run, folder):
    config = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "head_dim": 64}
    config |= {"num_attention_heads": 8, "intermediate_size": 1024, "vocab_size": 1000}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for given in ("config.json", str(folder / "config.json"), ".", str(folder)):
        told = run("estimate", given, "--cluster", "dgx-h100", *SMALL, "--json").document
        assert told["request"]["model"]["name"] == folder.name


def test_a_document_without_a_cluster_has_no_constants(run, refused, folder):
    run("schedule", "--family", "1f1b", "--ranks", "2", "--microbatches", "4", "-o", "s.json")
    assert "constants: must be those of a document with a cluster" in refused(
        "explain", "s.json", "--constants"
    )


@pytest.mark.parametrize("sized", [(), ("--devices", "1"), ("--nodes", "1")])
def test_more_replicas_that_share_all_state_are_offered(run, sized):
    alone = ("estimate", "llama3-8b", "--cluster", "dgx-h100", "--dp", "1", "--global-batch", "16")
    alone = (*alone, *sized)
    document = run(*alone, "--sequence", "8192", "--json").document
    offered = {change["options"]: change for change in document["changes"]}
    change = offered["--dp 8 --zero 3 --nodes 1 --devices 8"]
    again = run(*alone, "--sequence", "8192", *change["options"].split(), "--json").document
    assert again["fits"]
    assert again["step_time_s"] == change["step_time_s"]


def test_a_mixture_is_offered_expert_parallelism(run):
    job = ("estimate", "mixtral-8x7b", "--cluster", "dgx-h100", "--nodes", "8", "--dp", "64")
    work = ("--global-batch", "64", "--sequence", "4096", "--memory", "100GiB")
    document = run(*job, *work, "--json").document
    assert not document["fits"]
    assert "--ep 8" in {change["options"] for change in document["changes"]}
    assert run(*job, *work, "--ep", "8", "--json").document["fits"]


def test_degrees_beyond_the_cluster_say_how_many_nodes_are_enough(refused):
    job = ("estimate", "llama3-8b", "--cluster", "dgx-h100", "--tp", "8", "--pp", "3")
    assert "got 24; 3 nodes hold as many" in refused(
        *job, "--global-batch", "8", "--sequence", "64"
    )


# The three figures of memory
# ---------------------------


def test_the_document_has_three_figures_with_ranges_and_a_probability(run):
    document = run(*RUN, "--json").document
    before = 0.0
    for figure in ("allocated", "reserved", "device"):
        low, typical, high = (document[f"{figure}{end}_bytes"] for end in ("_low", "", "_high"))
        assert before < low <= typical <= high
        before = low
    assert document["allocated_bytes"] == document["peak_memory_bytes"]
    assert document["memory_account"] == "typical"
    assert 0 <= document["fit_probability"] <= 1
    assert document["device_memory_bytes"] > document["memory_limit_bytes"]


def test_the_account_is_that_of_the_software_that_is_named(run):
    plain = run(*RUN, "--json").document
    deepspeed = run(*RUN, "--software", "deepspeed", "--json").document
    assert deepspeed["memory_account"] == "deepspeed"
    assert deepspeed["device_bytes"] > plain["device_bytes"]
    assert deepspeed["fit_probability"] <= plain["fit_probability"]


def test_a_layout_that_ran_out_of_memory_is_refused_by_its_framework(run):
    """Of BLOOM's, `tests/step/test_figures.py` has the source: 384 A100, dp 32 x tp 2 x pp 6."""
    tried = (
        *("estimate", "bloom-176b", "--cluster", "dgx-a100", "--nodes", "48", "--zero", "1"),
        *("--tp", "2", "--pp", "6", "--dp", "32", "--global-batch", "512", "--sequence", "2048"),
        *("--precision", "fp16", "--gradient-dtype", "fp16", "--recompute", "full"),
        *("--no-flash-attention", "--no-sequence-parallel"),
    )
    assert run(*tried, "--json").document["fits"] is True
    done = run(*tried, "--software", "deepspeed", "--json")
    assert done.code == 3
    assert (done.document["fits"], done.document["verdict"]) == (False, "does not fit")
    assert done.document["margin_bytes"] > 0
    assert done.document["fit_probability"] < 0.5


def test_the_evidence_tells_the_range_that_the_step_is_given(run):
    """Steps with experts scatter more than the runs of a line do: both ranges are said."""
    words = ("mixtral-8x7b", "--cluster", "dgx-h100", "--devices", "64", "--ep", "8")
    found = run("estimate", *words, "--global-batch", "256", "--sequence", "4096", "--json")
    high = found.document["step_time_high_s"] / found.document["step_time_s"]
    said = found.document["assumptions"]["range"]
    assert "where tokens are dispatched to experts" in said
    assert f"to {high:.2f} times" in said


@pytest.mark.parametrize(
    ("stated", "most"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 4096, "rope_scaling": {"factor": 1e300}}, 4096),
    ],
)
def test_a_sequence_beyond_the_positions_of_a_model_is_priced_and_said(run, tmp_path, stated, most):
    config = tmp_path / "config.json"
    sizes = {"num_attention_heads": 8, "num_hidden_layers": 2, "hidden_size": 512}
    sizes |= {"intermediate_size": 1024, "vocab_size": 1000}
    config.write_text(json.dumps({"model_type": "mistral", **sizes, **stated}))
    asked = ("estimate", str(config), "--cluster", "dgx-h100", "--nodes", "1", "--json")
    asked += ("--global-batch", "8", "--sequence")
    said = f"more than the {most:,} positions"
    long = run(*asked, str(most + 128))
    assert long.code == 0, long.err
    assert any(said in each for each in long.document["warnings"])
    assert not any(said in each for each in run(*asked, str(most)).document["warnings"])
