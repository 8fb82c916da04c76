"""Bad input: exit code 2, a message that names it, nothing on stdout, nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import trainwright
from small_profiles import transformer, write_json
from trainwright.documents.printing import RefusalResult
from trainwright.documents.registry import schema_of
from trainwright.errors import InvalidInput
from trainwright.formats.document_json import decode

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = ("plan", "llama3-8b", "--cluster", "dgx-h100")
FULL = Path("/dev/full")
WORK = ("--global-batch", "64", "--sequence", "2048")


@pytest.fixture
def refused(run, folder):
    """Run a command that must be refused; gives its message."""

    def call(*arguments: str) -> str:
        before = sorted(folder.iterdir())
        done = run(*arguments)
        assert done.code == 2
        assert done.out == ""
        assert "Traceback" not in done.err
        assert sorted(folder.iterdir()) == before
        return done.err

    return call


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--devices", "8.5", 'devices: must be a whole number >= 1, got "8.5"'),
        ("--devices", "0", 'devices: must be a whole number >= 1, got "0"'),
        ("--devices", "-1", 'devices: must be a whole number >= 1, got "-1"'),
        ("--devices", "1e13", "devices: must be <= 1000000000000, got 10000000000000"),
        ("--devices", "inf", 'devices: must be a whole number >= 1, got "inf"'),
        ("--devices", "1e999", 'devices: must be a whole number >= 1, got "1e999"'),
        ("--devices", "nan", 'devices: must be a whole number >= 1, got "nan"'),
        ("--devices", "many", 'devices: must be a whole number >= 1, got "many"'),
        ("--devices", "", 'devices: must be a whole number >= 1, got ""'),
        ("--microbatches", "0", 'microbatches: must be a whole number >= 1, got "0"'),
        ("--microbatches", "1e13", "microbatches: must be <= 1000000000000, got 10000000000000"),
        ("--memory", "80", 'a bare number is in bytes, got "80"; did you mean "80GiB"?'),
        ("--memory", "0GiB", 'memory: must be > 0, such as 80GiB, got "0GiB"'),
        ("--memory", "-3GiB", 'memory: must be > 0, such as 80GiB, got "-3GiB"'),
        ("--memory", "1e999GiB", 'memory: must be finite, got "1e999GiB"'),
        ("--memory", "1e30GiB", "memory: must be at most 1PiB, as no device has more"),
        ("--memory", "nan", 'memory: must be a quantity such as 80GiB, got "nan"'),
        ("--memory", "80 apples", 'memory: must be a quantity such as 80GiB, got "80 apples"'),
        ("--bandwidth", "0", 'bandwidth: must be > 0, such as 25GiB/s or 400Gb/s, got "0"'),
        (
            "--bandwidth",
            "-1GB/s",
            'bandwidth: must be > 0, such as 25GiB/s or 400Gb/s, got "-1GB/s"',
        ),
        ("--bandwidth", "1e-320", "bandwidth: must move all bytes in finite time"),
        ("--bandwidth", "fast", "bandwidth: must be a quantity such as 25GiB/s or 400Gb/s"),
        ("--point", "1", "point: must be from 0 to 0, got 1"),
        ("--point", "-1", 'point: must be a whole number >= 0, got "-1"'),
        ("--point", "x", 'point: must be a whole number >= 0, got "x"'),
        ("--time-limit", "0", 'time-limit: must be > 0, such as 30s or 5min, got "0"'),
        ("--time-limit", "-1s", 'time-limit: must be > 0, such as 30s or 5min, got "-1s"'),
        ("--time-limit", "soon", 'time-limit: must be a quantity such as 30s or 5min, got "soon"'),
        ("--time-unit", "min", 'time-unit: must be one of s, ms, us, µs, ns, got "min"'),
        ("--time-unit", "", 'time-unit: must be one of s, ms, us, µs, ns, got ""'),
        (
            "--planner",
            "best",
            "planner: must be one of exact, equal, or a plug-in of trainwright.partitioners, got",
        ),
        ("--nodes", "0", 'nodes: must be a whole number >= 1, got "0"'),
        (
            "--no-such-option",
            "1",
            "--no-such-option: is no option of plan; trainwright plan --help",
        ),
        ("--devices", "8..16", "devices: several numbers and objectives need a --cluster"),
        ("--objective", "luck", "devices: must be given for an objective, as --devices 64..4096"),
        ("--tokens", "1e9", "tokens: must be given with several --devices or an --objective"),
        ("--tokens", "-1", 'tokens: must be a number > 0, such as 15e12 or 15T, got "-1"'),
    ],
)
def test_a_value_that_breaks_its_rule_is_named(refused, option, value, message):
    assert message in refused("plan", "small.json", option, value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nodes", "1e10"), "nodes: must be <= 1000000000, got 10000000000"),
        (("--devices", "1e10"), "devices: must be <= 1000000000, got 10000000000"),
        (("--nodes", "1", "--devices", "9"), "devices: must be at most the 8 of 1 nodes, got 9"),
        (("--micro-batch", "7"), "micro-batch: must divide the global batch of 64, got 7"),
        (("--micro-batch", "1e300"), "micro-batch: must be a number or a range such as 8, 4..8"),
        (("--zero", "4"), "zero: must be 0, 1, 2 or 3, or a list such as 0,1; got 4"),
        (("--zero", "-1"), "zero: must be 0, 1, 2 or 3, or a list such as 0,1; got -1"),
        (
            ("--tp", "3"),
            "tp: must hold one of 1, 2, 4, 8, which the model, its sequence and devices allow",
        ),
        (("--tp", "8..4"), "tp: must not be empty, got 8..4; write 4..8"),
        (("--cp", "x"), 'cp: must be a number or a range such as 8, 4..8, ..8 or 4.., got "x"'),
        (
            ("--recompute", "some"),
            'recompute: must be one of none, offload, selective, full, got "some"',
        ),
        (("--recompute", "full", "--no-recompute"), "must not be given together with --no-rec"),
        (("--schedule", "2f2b"), "schedule: must be one of gpipe, 1f1b, "),
        (("--schedule", "v-hlf"), 'got "v-hlf"; did you mean "v-half"?'),
        (("--fragmentation", "much"), "fragmentation: must be a number >= 0, such as 0.05 or 5%"),
        (("--fragmentation", "30"), "fragmentation: must be a share from 0 to below 1, got 30.0"),
        (("--reserve", "5"), 'reserve: a bare number is in bytes, got "5"; did you mean "5GiB"?'),
        (("--reserve", "1TiB"), "reserve: must leave something of the 77.21 GiB usable"),
        (
            ("--precision", "fp7"),
            "precision: must be one of bf16, fp16, fp32, tf32, fp8, fp4, fp8_delayed",
        ),
        (("--top", "-1"), 'top: must be a whole number >= 0, got "-1"'),
        (("--devices", "64..8"), "devices: must not be empty, got 64..8; write 8..64"),
        (("--devices", "8,x"), "devices: must be a whole number >= 1, a range such as 64..4096"),
        (("--devices", "8,16", "--nodes", "2"), "nodes: must not be given together with several"),
        (("--devices", "16", "--objective", "luck"), "objective: must be one of step-time, "),
        (("--devices", "16", "--objective", "cost"), "tokens: must be given for cost, as --tokens"),
        (("--devices", "16", "--pareto", "cost"), "pareto: must name two objectives"),
        (("--framework", "nemotron"), "framework: must be one of megatron, "),
        (("--framework", "deepspeed", "--cp", "2"), "cp: must include 1: deepspeed"),
        (("--global-batch", "1e300"), "global-batch: must be from 1 to 1000000, got 1000"),
        (("--sequence", "1e300"), "sequence: must be from 1 to 1000000000, got 1000"),
        (("--sequence", "0"), 'sequence: must be a whole number >= 1, got "0"'),
        (("--cluster", "dgx-h10"), 'got "dgx-h10"; did you mean "dgx-h100"?'),
        (("--devices", "8,16", "--tokens", "1T", "--deadline", "30"), 'did you mean "30d"?'),
        (("--devices", "8,16", "--tokens", "1T", "--deadline", "0"), "deadline: must be from "),
        (("--dp", "7"), "dp: must hold one of 1, 2, 4, 8, which divide the batch, got 7"),
        (("--state-copies", "9"), "state-copies: must be at most 4 on 8 devices, got 9"),
        (("--nodes", "5", "--pp", "40"), "pp: must be at most the 32 blocks, got 40"),
        (("--virtual-stages", "40"), "pp: x virtual-stages must be at most the 32 blocks, got 40"),
        (("--cluster", "H200"), 'got "H200"; did you mean "dgx-h200" or "gh200"'),
        (("--cluster", "A100-40GB-SXM"), 'did you mean "dgx-a100-40gb"?'),
        (("--cluster", "mine.toml"), 'cluster: there is no such file or folder: "mine.toml"'),
        (("--sequence", "8k"), 'got "8k"; did you mean 8192 or 8000?'),
    ],
)
def test_a_models_option_that_breaks_its_rule_is_named(refused, options, message):
    assert message in refused(*MODEL, *WORK, *options)


def test_plan_and_estimate_refuse_what_a_recurrence_cannot_do_in_one_rules_words(refused):
    asked = ("nemotron-h-56b", "--cluster", "dgx-h100", *WORK, "--devices", "8", "--cp", "2")
    rule = "must be 1 with a ring exchange: of state-space heads each token needs the state"
    assert rule in refused("plan", *asked)
    assert rule in refused("estimate", *asked, "--tp", "4", "--pp", "1", "--dp", "1")


def test_a_model_needs_a_cluster_and_a_workload(refused):
    assert "cluster: must be given for a model" in refused("plan", "llama3-8b")
    missing = refused(*MODEL)
    assert "2 faults" in missing
    assert "global-batch: must be given, as --global-batch N" in missing
    assert "sequence: must be given, as --sequence N" in missing


def test_a_near_miss_of_a_catalog_name_is_recognised(refused):
    assert 'got "llama3-9b"; did you mean "llama3-8b"?' in refused("plan", "llama3-9b")
    topics = "models, types, accelerators, clusters, calibrations, families, targets, schemas"
    assert f'topic: must be one of {topics}, got "model"' in refused("catalog", "model")


def test_a_missing_argument_or_command_is_named(run):
    for arguments in (("plan",), ("diff", "small.json"), ("plam",)):
        done = run(*arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("Usage: trainwright")
    assert "model: must be given, got none; give trainwright plan MODEL: a pro" in run("plan").err
    for command, missing, form in (("fit", "gpu", "NAME"), ("export", "to", "TARGET[@VERSION]")):
        done = run(command, "small.json")
        assert done.code == 2
        assert f"{missing}: must be given, got none; give --{missing} {form}: " in done.err
    assert run("estimate", "small.json").err == (
        "error: plan: must be given for a profile, as --plan FILE\n"
    )


@pytest.mark.parametrize(
    ("arguments", "field", "fix"),
    [
        (("plan", "small.json", "--devices", "0"), "devices", None),
        (("plan", "small.json", "--memory", "80"), "memory", 'did you mean "80GiB"?'),
        (("plan", "small.json", "-o", "small.json"), "output", "choose another path"),
        (
            ("plan", "small.json", "--frob", "1"),
            "--frob",
            "trainwright plan --help lists those it has",
        ),
        (
            ("plan",),
            "model",
            "give trainwright plan MODEL: a profile (JSON), a config.json or its folder, or the "
            "name of a catalog model",
        ),
        (("plan", "small.json", "dgx-h100"), "arguments", "did you mean --cluster dgx-h100?"),
        (("schedule", "1f1b"), "arguments", "did you mean --family 1f1b?"),
        (("plna", "small.json"), "command", "did you mean plan?"),
        (
            ("explain", "small.json"),
            "kind",
            "a profile or a config.json becomes a document where it is planned: trainwright plan "
            "small.json -o plan.json",
        ),
        (("diff", "no.json", "small.json"), "document", "name a file that can be read"),
    ],
)
def test_under_json_a_refusal_is_one_document_beside_the_message(run, arguments, field, fix):
    said = run(*arguments)
    done = run(*arguments, "--json")
    assert (done.code, said.out) == (2, "")
    assert done.err.replace(" --json", "") == said.err
    document = done.document
    jsonschema.validate(document, schema_of("refusal"))
    assert document["error"] == "InvalidInput"
    assert (document["kind"], document["exit_code"]) == ("refusal", 2)
    assert document["faults"][0]["field"] == field
    assert document["faults"][0].get("fix") == fix
    assert decode(RefusalResult, document).message == document["message"]


def test_under_json_what_is_unsupported_names_what_would_do(run):
    asked = ("plan", *MODEL[1:], *WORK, "--cluster", "small.json", "--json")
    assert run(*asked).document["kind"] == "refusal"
    refused = run("sweep", "small.json", "--json")
    assert refused.document["faults"][0]["field"] == "command"
    alone = run("--json")  # an option of commands, without one
    assert (alone.code, alone.document["faults"][0]["field"]) == (2, "--json")
    unsupported = run("estimate", "small.json", "--plan", "small.json", "--json").document
    assert unsupported["message"]


def test_an_infeasible_plan_under_json_is_its_own_document(run):
    done = run("plan", "small.json", "--memory", "1MiB", "--json")
    assert (done.code, done.document["kind"]) == (3, "plan")


@pytest.mark.parametrize("target", ["nowhere/plan.json", ".", "small.json/plan.json", "x" * 300])
def test_an_output_that_cannot_be_written_is_refused_before_any_work(refused, folder, target):
    assert "output: cannot be written" in refused("plan", "missing.json", "-o", target)
    assert "output: cannot be written" in refused("plan", "small.json", "-o", target)


@pytest.mark.parametrize("name", ["small.json", "./small.json", "symbolic.json", "hard.json"])
def test_an_output_that_is_the_input_is_refused(refused, folder, name):
    (folder / "symbolic.json").symlink_to("small.json")
    (folder / "hard.json").hardlink_to(folder / "small.json")
    before = (folder / "small.json").read_bytes()
    message = 'output: must not be the input "small.json", which it would replace'
    assert message in refused("plan", "small.json", "-o", name)
    assert (folder / "small.json").read_bytes() == before


def test_an_output_that_is_any_other_input_is_refused(run, refused, folder):
    run("plan", "small.json", "-o", "plan.json")
    run("plan", "small.json", "-o", "plan.json")  # a document is made again
    for name in ("small.json", "plan.json"):
        asked = ("estimate", "small.json", "--plan", "plan.json", "-o", name)
        assert f'output: must not be the input "{name}"' in refused(*asked)
    (folder / "request.toml").write_text("devices = 4", encoding="utf-8")
    asked = ("plan", "small.json", "--config", "request.toml", "-o", "request.toml")
    assert 'must not be the input "request.toml"' in refused(*asked)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    assert 'must not be the input "."' in refused("plan", ".", "-o", "config.json")
    (folder / "c.toml").write_text("x", encoding="utf-8")
    asked = ("plan", "gpt2", "--cluster", "c.toml", "-o", "c.toml")
    assert 'must not be the input "c.toml"' in refused(*asked)


def test_a_document_is_not_written_under_the_name_of_a_page(refused, folder):
    for name in ("plan.html", "plan.HTM"):
        message = refused("plan", "small.json", "-o", name)
        assert "write plan.json, then: trainwright report plan.json -o" in message
        assert not (folder / name).exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_write_protected_output_is_refused(refused, folder):
    (folder / "plan.json").write_text("mine", encoding="utf-8")
    (folder / "plan.json").chmod(0o400)
    assert "permission is denied" in refused("plan", "small.json", "-o", "plan.json")
    assert (folder / "plan.json").read_text(encoding="utf-8") == "mine"


def test_a_failed_plan_leaves_the_old_document_alone(refused, folder):
    (folder / "plan.json").write_text("mine", encoding="utf-8")
    refused("plan", "small.json", "--memory", "80", "-o", "plan.json")
    assert (folder / "plan.json").read_text(encoding="utf-8") == "mine"


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_is_no_crash(folder):
    command = [sys.executable, "-m", "trainwright", "plan", "small.json", "--json"]
    with FULL.open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: output: cannot be printed: No space left on device\n"


@pytest.mark.parametrize("option", ["config", "cluster", "calibration"])
def test_toml_in_too_many_brackets_is_refused(refused, folder, option):
    (folder / "deep.toml").write_text("a = " + "[" * 100_000, encoding="utf-8")
    asked = {"global-batch": "8", "cluster": "dgx-h100", option: "deep.toml"}
    message = refused("plan", "gpt2", *(f"--{name}={value}" for name, value in asked.items()))
    assert f"{option}: must be TOML" in message


def test_a_figure_in_too_many_brackets_is_refused(refused):
    figure = "memories.hbm3.stack_price=" + "[" * 50_000
    message = refused("codesign", "gpt2", "--devices", "8", "--set", figure)
    assert "memories.hbm3.stack_price: must be a number" in message


ODD_FILES = {
    "empty.json": b"",
    "binary.json": bytes(range(256)),
    "deep.json": b"[" * 100_000,
    "nan.json": b'{"nodes": [NaN], "edges": []}',
    "huge.json": b'{"nodes": ' + b"9" * 5000 + b', "edges": []}',
    "surrogate.json": b'"\xed\xa0\x80"',
    "\u00fcn\u00ef \u2713.json": '"\u00dcn\u00efcode \u2713"'.encode(),
}
ODD_NAMES = (
    *("folder", "loop", "missing.json", "", "-", ".", "/", "/dev/null", "x" * 5000),
    pytest.param("secret.json", marks=pytest.mark.skipif(os.geteuid() == 0, reason="root reads")),
)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    """A plan of the small profile, made once."""
    folder = tmp_path_factory.mktemp("plan")
    write_json(folder / "small.json", transformer())
    trainwright.plan(folder / "small.json").save(folder / "plan.json")
    return folder / "plan.json"


@pytest.mark.parametrize("name", [*ODD_FILES, *ODD_NAMES])
@pytest.mark.parametrize(
    "command",
    [
        "plan FILE",
        "explain FILE",
        "diff plan.json FILE",
        "diff FILE plan.json",
        "estimate FILE --plan plan.json",
        "estimate small.json --plan FILE",
        "plan small.json --config FILE",
        "plan gpt2 --global-batch 8 --sequence 128 --cluster FILE",
        "catalog FILE",
    ],
)
def test_whatever_the_file_is_one_message_says_why_it_is_refused(
    run, folder, plan_file, command, name
):
    (folder / "plan.json").symlink_to(plan_file)
    for odd, content in ODD_FILES.items():
        (folder / odd).write_bytes(content)
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "secret.json").touch(mode=0)
    done = run(*[name if word == "FILE" else word for word in command.split()])
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert done.err.startswith("error")
    assert len(done.err.splitlines()) < 10


def test_standard_input_goes_by_its_name(refused):
    assert "for standard input name /dev/stdin" in refused("plan", "-")
    assert "for standard input name /dev/stdin" in refused("explain", "-")


def test_a_file_without_an_end_is_refused(refused):
    assert "must be at most 64 MiB" in refused(*MODEL, *WORK, "--cluster", "/dev/zero")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "must be a JSON object"),
        ("[]", "must be a JSON object"),
        ("", "must not be empty"),
        ("{}", "must be one of: a Piper profile"),
        ('{"kind": "plan"}', '"plan" carries no model'),
        ('{"nodes": {}}', "nodes: must have at least 1 tensor width"),
        ('{"nodes": [], "edges": []}', "nodes: must have at least 1 entry"),
    ],
)
def test_a_file_that_is_no_model_is_refused(refused, folder, content, message):
    (folder / "odd.json").write_text(content, encoding="utf-8")
    assert message in refused("plan", "odd.json")


def test_all_faults_of_a_profile_are_named(refused, folder):
    profile = transformer()
    profile["bandwidth"] = "25e9"
    profile["maxDevices"] = 8.5
    del profile["nodes"][3]["TMPCs"]["2"][0]["syncTimeFw"]
    profile["edges"][2]["communicationCost"] = -1
    write_json(folder / "bad.json", profile)
    message = refused("plan", "bad.json")
    assert message.startswith("error: 4 faults in bad.json\n")
    for path in ("bandwidth", "maxDevices", 'nodes[3].TMPCs["2"][0].syncTimeFw', "edges[2]"):
        assert f"  {path}" in message


def test_a_profile_without_a_setting_says_which_options_state_it(refused, folder, run):
    content = run("plan", "small.json", "--json").document["request"]["model"]["content"]
    del content["setting"]
    write_json(folder / "bare.json", content)
    message = refused("plan", "bare.json", "--devices", "8")
    assert message.startswith("error: 3 faults\n")
    for option in ("memory", "bandwidth", "microbatches"):
        assert f"{option}: the profile does not state it; give --{option}" in message


class TestConfig:
    """`--config request.toml`."""

    def test_the_file_gives_options_and_the_command_line_wins(self, run, folder):
        (folder / "request.toml").write_text(
            'devices = 4\nmemory = "3GB"\ntime-limit = 60\njson = true\nno_recompute = true\n'
            'exclude-option = "y"\n',
            encoding="utf-8",
        )
        document = run("plan", "small.json", "--config", "request.toml", "--devices", "8").document
        request = document["request"]
        assert request["setting"]["num_devices"] == 8
        assert request["setting"]["memory_bytes"] == 3e9
        assert request["time_limit_s"] == 60
        assert request["space"]["recompute"] is False
        assert request["space"]["excluded_options"] == ["y"]

    def test_all_its_faults_are_named_with_near_misses(self, refused, folder):
        (folder / "request.toml").write_text(
            'device = 4\nmodel = "x"\nconfig = "y"\njson = "yes"\nmicrobatches = [1]\n'
            "exclude-option = 3\nmemory = {}\ntime-limit = 3\ntime_limit = 4\n",
            encoding="utf-8",
        )
        message = refused("plan", "small.json", "--config", "request.toml")
        assert message.startswith("error: 8 faults in request.toml\n")
        assert 'device: must be an option of this command; did you mean "devices"?' in message
        assert (
            "config: must be an option of this command; it has activation-input-dtype, " in message
        )
        assert "json: must be true or false, got 'yes'" in message
        assert "microbatches: must be a string or a number, got [1]" in message
        assert "exclude-option: must be a string or an array of strings, got 3" in message
        assert "memory: must be a string or a number, got {}" in message
        assert 'time_limit: must be given once, got "time-limit" too' in message

    def test_a_bare_memory_is_questioned_there_too(self, refused, folder):
        (folder / "request.toml").write_text("memory = 80", encoding="utf-8")
        message = refused("plan", "small.json", "--config", "request.toml")
        assert 'did you mean "80GiB"?' in message

    @pytest.mark.parametrize(
        ("content", "message"),
        [(b"= 3", "must be TOML"), (b"\xff", "must be TOML"), (b"", "must not be empty")],
    )
    def test_a_file_that_is_not_toml_is_refused(self, refused, folder, content, message):
        (folder / "request.toml").write_bytes(content)
        assert message in refused("plan", "small.json", "--config", "request.toml")

    @pytest.mark.parametrize("path", ["missing.toml", "."])
    def test_a_file_that_is_not_there_is_refused(self, refused, path):
        assert "config: cannot be read" in refused("plan", "small.json", "--config", path)


class TestDocuments:
    """Documents that `explain`, `diff` and `estimate` cannot take."""

    @pytest.fixture
    def document(self, run):
        return run("plan", "small.json", "--json", "-o", "plan.json").document

    def test_one_of_a_newer_format(self, refused, folder, document):
        write_json(folder / "new.json", document | {"format_version": 99})
        for command in (("explain", "new.json"), ("estimate", "small.json", "--plan", "new.json")):
            assert "format_version: must be <= 1, got 99; a newer trainwright" in refused(*command)
        for version, problem in ((0, ">= 1, got 0"), ("1", 'an integer, got "1" (string)')):
            write_json(folder / "odd.json", document | {"format_version": version})
            for command in (
                ("explain", "odd.json"),
                ("estimate", "small.json", "--plan", "odd.json"),
            ):
                assert f"format_version: must be {problem}" in refused(*command)
        for others in ({"kind": "catalog"}, {"kind": 3}, {"kind": None}):
            write_json(folder / "new.json", document | others)
            wanted = 'kind: must be one of "plan", "model-plan", "estimate", got '
            assert wanted in refused("estimate", "small.json", "--plan", "new.json")

    def test_one_that_was_cut_short(self, refused, folder, document):
        text = (folder / "plan.json").read_text(encoding="utf-8")
        (folder / "cut.json").write_text(text[: len(text) // 2], encoding="utf-8")
        for command in (
            ("explain", "cut.json"),
            ("diff", "plan.json", "cut.json"),
            ("estimate", "small.json", "--plan", "cut.json"),
        ):
            assert "cut.json" in refused(*command)

    def test_one_of_another_kind(self, refused, run, folder, document):
        (folder / "diff.json").write_text(
            run("diff", "plan.json", "plan.json", "--json").out, encoding="utf-8"
        )
        kinds = '"plan", "model-plan", "estimate", "placement", "schedule", '
        kinds += '"model-estimate", "model-sweep", "whatif", "model-explanation", "improvement"'
        assert f'kind: must be one of {kinds}, got "diff"' in refused("explain", "diff.json")
        assert "document: cannot be read" in refused("explain", "missing.json")

    def test_one_with_stages_without_layers_or_devices(self, refused, folder, document):
        document["stages"][0]["layers"] = []
        document["stages"][1]["data_parallel"] = 0
        write_json(folder / "odd.json", document)
        message = refused("explain", "odd.json")
        assert "stages[0].layers: must have at least 1 entry, got 0" in message
        assert "stages[1].data_parallel: must be >= 1, got 0" in message

    def test_a_plan_that_breaks_rules_has_each_named(self, refused, folder, document):
        first, second = document["stages"]
        first["data_parallel"] = 5
        first["options"]["2"] = "magic"
        second["layers"].remove(7)
        del second["options"]["7"]
        second["tensor_parallel"] = 3
        document["stages"] = [second, first]
        write_json(folder / "odd.json", document)
        message = refused("estimate", "small.json", "--plan", "odd.json")
        for fault in (
            "stages[1].data_parallel: must divide the 48 microbatches, got 5",
            'stages[1].options["2"]: must be one of "vanilla", "activation recomp" at '
            'tensor-parallel degree 2, got "magic"',
            "stages[0].tensor_parallel: must be a degree that layer 4 offers (1, 2, 4), got 3",
            "stages: must place every layer, got none with 7",
            "must keep the order of the edge 3 -> 4",
            "stages: must use at most 8 devices, got 16",
        ):
            assert fault in message

    def test_a_plan_whose_shape_is_wrong_has_each_fault_named(self, refused, folder):
        stages = [
            {"layers": [], "options": {}},
            {"layers": [1, 1], "options": {"1": "vanilla"}, "data_parallel": 0},
            {"layers": [2], "options": {"3": "vanilla"}, "tensor_parallel": 1.5},
            7,
        ]
        write_json(folder / "odd.json", {"stages": stages})
        message = refused("estimate", "small.json", "--plan", "odd.json")
        for path in (
            *("stages[0].layers", "stages[1].layers", "stages[1].data_parallel"),
            *("stages[2].options", "stages[2].tensor_parallel", "stages[3]"),
        ):
            assert path in message
        assert "stages: must be a non-empty array" in refused(
            "estimate", "small.json", "--plan", "small.json"
        )

    def test_a_plan_by_hand_is_enough(self, run, folder):
        layers = list(range(8))
        stage = {"layers": layers, "options": {str(v): "vanilla" for v in layers}}
        write_json(folder / "hand.json", {"stages": [stage]})
        document = run("estimate", "small.json", "--plan", "hand.json", "--json").document
        assert document["fits"] is False
        assert document["time_per_sample_s"] == pytest.approx(6 * 0.012 + 2 * 0.004)
        assert json.dumps(document["overflows"])

    def test_a_model_has_no_plan_to_estimate(self, refused, document):
        assert "plan: must be given for a profile only; a model is given its degrees" in refused(
            "estimate", "llama3-8b", "--plan", "plan.json"
        )


def test_an_option_of_two_values_says_which_other_stands_in_the_place_of_one(refused, folder):
    (folder / "job.yaml").write_text("base_model: a\n")
    message = refused("estimate", "job.yaml", "--from", "axolotl", "--cluster", "dgx-h100")
    assert "from: takes 2 values, FORMAT FILE, and --cluster stands in the place" in message


@pytest.mark.parametrize("behind", [("--cluster", "dgx-h100"), ()])
def test_a_job_without_its_format_is_told_with_the_one_that_its_content_has(
    refused, folder, behind
):
    (folder / "job.sh").write_text("torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64\n")
    for command in (("estimate", "llama3-8b"), ("improve",)):
        message = refused(*command, "--from", "job.sh", *behind)
        assert "from: takes 2 values, FORMAT FILE" in message
        assert "did you mean --from megatron job.sh?" in message


def test_an_option_of_another_command_is_told_with_who_takes_it(refused):
    message = refused("estimate", "llama3-8b", "--framework", "megatron")
    assert "--framework: is no option of estimate, but of plan, improve; did you mean" in message
    assert "but of" not in refused("estimate", "llama3-8b", "--of-nobody", "1")


MISREAD = {
    "schedule 1f1b": 'arguments: schedule takes none, got "1f1b"; did you mean --family 1f1b?',
    "plan llama3-8b dgx-h100": 'got "dgx-h100" beside it; did you mean --cluster dgx-h100?',
    "plan llama3-8b mine.toml": "did you mean --cluster mine.toml or --config mine.toml?",
    "estimate llama3-8b megatron": "did you mean --from megatron FILE?",
    "diff a b c": 'diff takes FIRST and SECOND, got "c" beside them; trainwright diff --help',
    "serve x y": 'serve takes none, got "x" "y"; trainwright serve --help says what it takes',
    "plan --clusterr dgx-h100": "--clusterr: is no option of plan; did you mean --cluster dgx-h",
    "plan -cluster dgx-h100": "-cluster: is no option of plan; did you mean --cluster dgx-h100?",
    "plan --family=1f1b": "--family: is no option of plan, but of schedule; did you mean --sch",
    "plan --batch 8": "--batch: is no option of plan; did you mean --global-batch?",
    "mcp --no-reasons": "--no-reasons: is no option of mcp, but of plan; trainwright mcp --help",
    "plan -x": "-x: is no option of plan; trainwright plan --help lists those it has",
    "--cluster x plan": "--cluster: is no option of trainwright, but of plan, estimate, improve",
    "plan a --cluster": "cluster: must have a value behind it, got none; give --cluster TEXT: a c",
    "plan a -o": "output: must have a value behind it, got none; give -o PATH: write the doc",
    "plan --cluster --tp 2": "cluster: takes a value, TEXT, and --tp stands in the place of one",
    "codesign gpt2 --json=3": 'json: takes no value, got "3"; give --json alone',
    "diff a": "second: must be given, got none; give trainwright diff FIRST SECOND: another one",
    "capture": "give trainwright capture COMMAND...: what to run, behind --, such as -- bash",
    "export a.json": "to: must be given, got none; give --to TARGET[@VERSION]: a framework, as",
    "--completion ksh": "completion: 'ksh' is not one of 'bash', 'zsh', 'fish'",
    "plna": 'command: must be one of trainwright, got "plna"; did you mean plan?',
    "schema": 'got "schema"; it is an option, as in trainwright catalog --schema NAME',
    "verbose": 'got "verbose"; it is an option, as in trainwright plan --verbose\n',
    "no-reasons": "it is an option, as in trainwright plan --no-reasons",
    "catalog plan-config": "; its JSON Schema: trainwright catalog --schema plan-config",
    "catalog --schema Axolotl": 'catalog schemas, got "Axolotl"; did you mean "axolotl"?',
    "catalog --schema training_log": 'got "training_log"; did you mean "training-log"?',
    "catalog --schema job": "job has no JSON Schema: each framework has a format of its own; give",
    "clusters": 'got "clusters"; did you mean trainwright catalog clusters?',
    "small.json": "name one before the file, as trainwright explain small.json",
    "llama3-8b": "name one before the model, as trainwright plan llama3-8b",
    "zb-h1": "did you mean trainwright schedule --family zb-h1?",
    "explain a -- --b=c": 'explain takes DOCUMENT, got "--b=c" beside it; trainwright explain',
    "report .": 'cannot be read, it is a folder: "."; name a file that can be read',
    "topology": 'got "topology"; there are plan, estimate, fit,',
    "plan a \x1b[31m": r'got "\x1b[31m" beside it',
}


@pytest.mark.parametrize("typed", MISREAD)
def test_words_that_are_no_command_line_are_told_with_the_rule_and_the_fix(refused, typed):
    assert MISREAD[typed] in refused(*typed.split())


def test_a_number_behind_a_list_is_told_how_lists_are_written(refused):
    for tp in (("--tp", "2"), ("--tp=2",)):
        message = refused("profile", "gpt2", *tp, "8")
        assert 'profile takes MODEL, got "8" beside it; did you mean --tp 2,8?' in message
    assert "did you mean" not in refused("profile", "gpt2", "--micro-batch", "2", "8")


def test_an_option_of_two_values_at_the_end_says_which_it_got(refused, folder):
    assert 'takes 2 values, FORMAT FILE, got "megatron" alone' in refused(
        "estimate", "llama3-8b", "--from", "megatron"
    )
    assert "takes 2 values, FORMAT FILE, got none" in refused("estimate", "llama3-8b", "--from")


def test_a_file_that_is_no_job_is_not_told_that_it_is_no_profile(refused, folder):
    (folder / "job.yaml").write_text("trainer: {mine: 1}\n")
    message = refused("estimate", "job.yaml", "--cluster", "dgx-h100")
    assert "no job whose format is told by its content" in message
    assert "--from FORMAT FILE" in message
    (folder / "model.json").write_text("trainer: 1\n")
    assert "must be a JSON object" in refused("estimate", "model.json", "--cluster", "dgx-h100")


def test_more_devices_than_the_nodes_asked_for_are_offered_with_their_nodes(run):
    asked = ("plan", "llama3-70b", "--cluster", "dgx-a100-40gb", "--nodes", "1", "--no-reasons")
    asked += ("--global-batch", "8", "--sequence", "2048", "--tp", "8", "--json")
    done = run(*asked)
    assert done.code == 3
    (fix,) = (each for each in done.document["relaxations"] if each["change"] == "devices")
    devices, nodes = fix["value"], fix["nodes"]
    assert devices == 8 * nodes > 8
    again = run(*asked, "--nodes", str(nodes), "--devices", str(devices), "--effort", "0.1")
    assert again.code == 0, again.err


TRAINED = ("--cluster", "dgx-h100", "--dp", "8", "--global-batch", "8", "--sequence", "1024")
MEANT = (
    (("estimate", "gpt2", *TRAINED, "--optimizer", "lionn"), "optimizer", "lion"),
    (("estimate", "gpt2", *TRAINED, "--precision", "bf17"), "precision", "bf16"),
    (("estimate", "gpt2", *TRAINED, "--gradient-dtype", "pf32"), "gradient-dtype", "fp32"),
    (("estimate", "gpt2", *TRAINED, "--moment-dtype", "bf61"), "moment-dtype", "bf16"),
    (("estimate", "gpt2", *TRAINED, "--recompute", "ful"), "recompute", "full"),
    (("estimate", "gpt2", *TRAINED, "--schedule", "1f1bb"), "schedule", "1f1b"),
    (("estimate", "gpt2", *TRAINED, "--overlap", "gradient=1"), "overlap", "gradients"),
    (("estimate", "gpt2", *TRAINED, "--offload", "weight=1"), "offload", "weights"),
    (("estimate", "gpt2", *TRAINED, "--software", "megatorn"), "software", "megatron"),
    (("estimate", "gpt2", *TRAINED, "--calibration", "nemmo"), "calibration", "nemo"),
    (("estimate", "gpt2", "--cluster", "dgx-h101", *TRAINED[2:]), "cluster", "dgx-h100"),
    (("estimate", "gpt22", *TRAINED), "model", "gpt2"),
    (
        ("plan", "gpt2", *TRAINED[:2], *TRAINED[4:], "--framework", "megatorn"),
        "framework",
        "megatron",
    ),
    (("plan", "gpt2", *TRAINED[:2], *TRAINED[4:], "--schedule", "serched"), "schedule", "searched"),
    (("fit", "gpt2", "--gpu", "RTX9090"), "gpu", "RTX-5090"),
    (("support", "gpt2", "RTX9090"), "device", "RTX-5090"),
    (("schedule", "--family", "zbh1", "--ranks", "2", "--microbatches", "2"), "family", "zb-h1"),
    (("codesign", "gpt2", "--devices", "8", "--chip", "tpu-v44"), "chip", "TPU-v4"),
    (("codesign", "gpt2", "--devices", "8", "--precision", "bf17"), "precision", "bf16"),
    (("catalog", "model"), "topic", "models"),
)


@pytest.mark.parametrize(("words", "name", "meant"), MEANT)
def test_a_word_that_is_nearly_another_is_refused_with_that_one(refused, words, name, meant):
    said = refused(*words)
    assert f"{name}: must be" in said
    assert f'did you mean "{meant}"?' in said


def test_what_a_profile_without_a_cluster_lacks_is_said_with_what_to_do(tmp_path: Path) -> None:
    profile, planned = EXAMPLES / "profile.json", tmp_path / "plan.json"
    trainwright.plan(profile).save(planned)
    asked: dict[str, Callable[[], object]] = {
        "plan the profile again with what changes": lambda: trainwright.what_if(
            planned, memory="16GiB"
        ),
        "plan the profile with --cluster": lambda: trainwright.export(
            planned, to="pytorch", model="llama3-8b"
        ),
        "leave it out, or give --cluster": lambda: trainwright.plan(profile, tp=2),
    }
    for told, ask in asked.items():
        with pytest.raises(InvalidInput, match=told):
            ask()


@pytest.mark.parametrize("ask", [trainwright.plan, trainwright.estimate])
def test_a_document_in_place_of_a_model_names_its_own_cluster(
    tmp_path: Path, ask: Callable[..., Any]
) -> None:
    written = tmp_path / "run.json"
    around = {"global_batch": 8, "sequence": 1024}
    trainwright.estimate("gpt2-xl", cluster="dgx-h100", dp=8, **around).save(written)
    with pytest.raises(InvalidInput, match=f"or --cluster {written} for that of the document"):
        ask(written, **around)
    assert ask(written, cluster=written, **around).document.devices_used == 8
    with pytest.raises(InvalidInput, match=r"trainwright catalog clusters$"):
        ask("gpt2-xl", **around)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "model: must be a JSON object, got text that breaks off"),
        ("{}", "got an object without keys"),
    ],
)
def test_a_file_that_is_no_model_is_not_called_a_profile(run, folder, text, said):
    (folder / "config.json").write_text(text, encoding="utf-8")
    done = run("plan", "config.json")
    assert done.code == 2
    assert said in done.err
    assert "profile: " not in done.err
