"""`trainwright export`: files, refusals, the nearest plan."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.formats.atomic_file import LIST
from trainwright.pages.command import command_of

RUN = (
    *("estimate", "llama3-8b", "--cluster", "dgx-h100", "--nodes", "2", "--tp", "4", "--pp", "2"),
    *("--dp", "2", "--global-batch", "32", "--sequence", "4096"),
)


@pytest.fixture
def estimated(run: Callable[..., Any], tmp_path: Path) -> Callable[..., Path]:
    """A document of an estimate, with further options."""

    def write(*options: str) -> Path:
        path = tmp_path / "run.json"
        assert run(*RUN, *options, "-o", str(path)).code in (0, 3)
        return path

    return write


def test_a_folder_of_files_is_written(
    run: Callable[..., Any], estimated: Callable[..., Path], tmp_path: Path
) -> None:
    document, folder = estimated(), tmp_path / "out"
    done = run("export", str(document), "--to", "megatron", "-o", str(folder), "--json")
    assert done.code == 0
    found = done.document
    assert found["kind"] == "export"
    names = {each["name"] for each in found["files"]}
    assert {path.name for path in folder.iterdir()} == {*names, LIST}
    assert "--tensor-model-parallel-size 4" in (folder / "megatron_args.sh").read_text()


def test_a_program_without_further_tokens_takes_the_model_without_them(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    run_of = ("estimate", "qwen3.5-27b", "--cluster", "dgx-h100", "--nodes", "2", "--tp", "8")
    run_of += ("--dp", "2", "--zero", "2", "--global-batch", "32", "--sequence", "4096")
    document, folder = str(tmp_path / "run.json"), str(tmp_path / "out")
    assert run(*run_of, "-o", document).code in (0, 3)
    refused = run("export", document, "--to", "torchtitan", "-o", folder)
    assert refused.code == 2
    assert "num_mtp_layers: 1" in refused.err
    assert "plan --mtp-layers 0 leaves them out" in refused.err
    assert run(*run_of, "--mtp-layers", "0", "-o", document).code in (0, 3)
    assert run("export", document, "--to", "torchtitan", "-o", folder).code == 0
    assert "qwen35_27b" in (tmp_path / "out" / "trainwright_config.py").read_text()
    more = run(*run_of, "--mtp-layers", "2")
    assert more.code == 2
    assert "mtp-layers: must be at most 1, as qwen3.5-27b has, got 2" in more.err


@pytest.mark.parametrize(
    ("target", "model", "options"),
    [
        ("automodel", "llama3-8b", ("--pp", "3", "--devices", "24", "--tp", "1")),
        ("automodel", "gemma2-2b", ("--pp", "2", "--cp", "2", "--tp", "1", "--zero", "0,2")),
        ("torchtitan@0.3", "deepseek-v2-lite", ("--pp", "1", "--ep", "8", "--zero", "0,2")),
        ("primus", "gemma2-2b", ("--pp", "2", "--dp", "8", "--schedule", "v-half")),
        ("megatron", "gemma2-2b", ("--pp", "1", "--cp", "1", "--optimizer", "muon")),
    ],
)
def test_a_plan_for_a_framework_is_one_that_it_exports(
    run: Callable[..., Any], tmp_path: Path, target: str, model: str, options: tuple[str, ...]
) -> None:
    asked = ("plan", model, "--cluster", "dgx-h100", "--global-batch", "24", "--sequence", "2048")
    asked += ("--micro-batch", "1", "--recompute", "none")
    given = asked if "--devices" in options else (*asked, "--devices", "16")
    document = str(tmp_path / "plan.json")
    planned = run(*given, *options, "--framework", target, "--top", "0", "-o", document)
    assert planned.code == 0
    assert "framework:" not in planned.err
    assert run("export", document, "--to", target, "-o", str(tmp_path / "out")).code == 0


def test_names_of_strangers_reach_no_reader_raw(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what steers a terminal nor markup, in whatever shows the name."""
    monkeypatch.chdir(tmp_path)
    model, cluster = Path("m\x1b[31m\x07<b>`x`[a](b)"), Path("c.toml")
    model.mkdir()
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 999}
    (model / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    cluster.write_text(
        'name = "k\\u001b]0;x\\u0007<b>"\n[[pool]]\ndevice_kind = "H100-80GB-SXM"\n'
        'num_devices = 2\n[[pool.level]]\nname = "l\\u001b[2J"\nsize = 2\n'
        "bandwidth_bytes_per_s = 1e11\nlatency_s = 1e-6\n"
    )
    options = ("--cluster", "c.toml", "--dp", "2", "--global-batch", "8", "--sequence", "128")
    said = [run("estimate", str(model), *options, "-o", "run.json")]
    said.append(run("export", "run.json", "--to", "megatron", "-o", "out"))
    said.append(run("report", "run.json", "-o", "run.html"))
    said.append(run("diff", "run.json", "run.json"))
    assert [done.code for done in said] == [0] * len(said)
    shown = [text for done in said for text in (done.out, done.err)]
    written = [Path("run.html"), *(path for path in Path("out").iterdir() if path.name != LIST)]
    texts = [path.read_text(encoding="utf-8") for path in written]
    steering = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
    assert not [text for text in (*shown, *texts) if steering.search(text)]
    page, readme = texts[0], Path("out", "README.md").read_text(encoding="utf-8")
    assert r"m\x1b[31m\x07" in page
    assert "<b>`x`" not in page
    assert readme.startswith(r"# m\x1b\[31m\x07\<b\>\`x\`\[a\](b) for megatron")


def test_without_a_folder_nothing_is_written(
    run: Callable[..., Any], estimated: Callable[..., Path], tmp_path: Path
) -> None:
    done = run("export", str(estimated()), "--to", "megatron")
    assert done.code == 0
    assert "not written" in done.out
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_refusal_names_fields_and_targets_and_writes_nothing(
    run: Callable[..., Any], estimated: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    done = run("export", str(estimated()), "--to", "torchtitan", "-o", str(folder))
    assert done.code == 2
    assert "zero_stage: 1: torchtitan@0.3 shards gradients with the optimizer state" in done.err
    assert "targets that can express all of it: megatron, megatron-bridge, primus" in done.err
    assert not folder.exists()


def test_the_nearest_plan_is_priced_and_marked(
    run: Callable[..., Any], estimated: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    arguments = ("export", str(estimated()), "--to", "torchtitan@0.2", "-o", str(folder))
    done = run(*arguments, "--allow-nearest", "--json")
    assert done.code == 0
    nearest = done.document["nearest"]
    assert nearest["changes"] == ["zero_stage: 1 becomes 2"]
    assert nearest["after"]["step_time_s"] > 0
    assert nearest["before"]["peak_memory_bytes"] > nearest["after"]["peak_memory_bytes"]
    assert "nearest: zero_stage: 1 becomes 2" in (folder / "torchtitan.toml").read_text()


def test_a_full_folder_is_not_touched(
    run: Callable[..., Any], estimated: Callable[..., Path], tmp_path: Path
) -> None:
    document, folder = estimated(), tmp_path / "full"
    folder.mkdir()
    (folder / "mine").write_text("keep")
    arguments = ("export", str(document), "--to", "megatron", "-o", str(folder))
    assert run(*arguments).code == 2
    assert [path.name for path in folder.iterdir()] == ["mine"]
    assert run(*arguments, "--force").code == 0
    assert (folder / "mine").read_text() == "keep"


def test_a_v_schedule_goes_to_pytorch_in_both_forms(
    run: Callable[..., Any], estimated: Callable[..., Path], tmp_path: Path
) -> None:
    document = estimated("--schedule", "v-half", "--virtual-stages", "2", "--zero", "0")
    folder = tmp_path / "out"
    assert run("export", str(document), "--to", "pytorch", "-o", str(folder)).code == 0
    rows = (folder / "schedule.csv").read_text().splitlines()
    assert len(rows) == 2
    assert "SEND_F" in (folder / "schedule_comms.csv").read_text()
    stages = json.loads((folder / "stages.json").read_text())["stages"]
    assert [stage["rank"] for stage in stages] == [0, 1, 1, 0]


def test_a_trace_is_compressed(
    run: Callable[..., Any], estimated: Callable[..., Path], tmp_path: Path
) -> None:
    import gzip

    folder = tmp_path / "out"
    assert run("export", str(estimated()), "--to", "chrome-trace", "-o", str(folder)).code == 0
    events = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))["traceEvents"]
    assert any(event["ph"] == "X" for event in events)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--to", "horovod"), "to: must be one of megatron"),
        (("--to", "megatron@core-0.1"), "to: must be one of megatron"),
        (("--to", "megatron", "--launcher", "mpirun"), "launcher: must be torchrun or slurm"),
        (("--to", "pytorch", "--check"), "zero_stage: 1: pytorch"),
    ],
)
def test_bad_options_are_refused(
    run: Callable[..., Any], estimated: Callable[..., Path], options: tuple[str, ...], message: str
) -> None:
    done = run("export", str(estimated()), *options)
    assert done.code == 2
    assert message in done.err


def test_a_plan_of_a_profile_is_refused(run: Callable[..., Any], tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert run("plan", "small.json", "-o", str(plan)).code == 0
    done = run("export", str(plan), "--to", "megatron")
    assert done.code == 2
    assert (
        "must be a plan or an estimate of a model, or an improvement, what-if or sweep" in done.err
    )


@pytest.mark.slow
def test_a_plan_is_one_that_megatron_launches_where_nobody_says_otherwise(tmp_path):
    """What the file says of whom a speed is expected prices it again as the plan was."""
    asked = {"cluster": "dgx-h100", "devices": 8, "global_batch": 32, "sequence": 512, "top": 0}
    found = trainwright.plan("gpt2", **asked)
    request = found.document.request
    assert (request.space.framework, request.software) == ("megatron", "typical")
    assert "launched by megatron (core-" in str(found)
    folder = tmp_path / "job"
    trainwright.export(found, to="megatron", output=folder)
    script = (None, folder / "launch.sh")
    back = trainwright.estimate("gpt2", source=script, cluster="dgx-h100").document
    assert back.step_time_s == pytest.approx(found.document.step_time_s, rel=1e-9)
    assert back.memory_account == found.document.memory_account
    words = command_of(found.document).words
    assert not {"--framework", "--software"} & set(words)
    named = trainwright.plan("gpt2", **asked, framework="megatron").document
    assert named.request.software is None
    assert named.step_time_s != found.document.step_time_s  # at the speed of Megatron
    assert "--framework" in command_of(named).words


def test_what_no_framework_launches_is_said_with_what_the_fastest_one_costs():
    asked = {"cluster": "dgx-h100", "devices": 8, "global_batch": 32, "sequence": 1024, "top": 0}
    space = {"schedule": "gpipe", "pp": 2, "cp": 1, "zero": "0,1", "micro_batch": 2}
    found = trainwright.plan("gpt2-xl", **asked, **space, calibration="none", framework="any")
    launched = found.document.launchable
    assert launched.framework == "automodel"
    assert launched.slowdown == launched.step_time_s / found.document.step_time_s > 1
    assert f"launched by no framework: {launched.reason}" in " ".join(str(found).split())
    assert "--framework" in command_of(found.document).words
    again = trainwright.plan("gpt2-xl", **asked, **space, calibration="none", framework="automodel")
    assert re.search(r"launched by automodel \([^()]*, read, not run\)", str(again))
    assert again.document.step_time_s == pytest.approx(launched.step_time_s, rel=1e-12)
