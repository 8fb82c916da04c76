"""What agents and scripts ask: support, capture, a server on the official SDK, and the skill."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.commands.mcp import TOOLS, answer, server
from trainwright.errors import InvalidInput, MissingExtra
from trainwright.plans.capability import TARGETS

SCRIPT = """\
TP=$(python3 -c 'print(1 + 1)')
echo preparing
if [ "$TP" -gt 1 ]; then EXTRA="--sequence-parallel"; fi
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP $EXTRA \\
  --num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 256 --vocab-size 1000 \\
  --micro-batch-size 1 --global-batch-size 8 --bf16 --save "a b"
"""


def test_support_says_what_is_known_and_who_runs_it() -> None:
    found = trainwright.support("llama3-70b", "H100-80GB-SXM").document
    assert found.min_devices == 16  # 70.55e9 x 18 bytes over 82.9e9
    assert "fp8" in found.precisions
    assert [each.name for each in found.targets] == list(TARGETS)
    assert not any(each.lacks for each in found.targets)
    ranges = {each.software: each.high_ratio - each.low_ratio for each in found.speeds}
    assert ranges["nemo"] < ranges["typical"]


def test_support_names_what_a_framework_cannot_say_of_a_model(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "gptj", "n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 1000,
        "n_positions": 512,
    }))  # fmt: skip
    found = run("support", str(path), "dgx-a100", "--json").document
    lacking = {each["name"]: each.get("lacks", []) for each in found["targets"]}
    assert "has attention and feed-forward part side by side" in lacking["megatron"]
    assert not lacking["pytorch"]
    assert "must be a cluster of the catalog" in run("support", "gpt2", "abacus").err


def test_a_device_is_known_by_what_people_call_it(run: Callable[..., Any]) -> None:
    asked = {"h100": "H100-80GB-SXM", "dgx-h100": "H100-80GB-SXM", "RTX4090": "RTX-4090"}
    for name, accelerator in asked.items():
        assert trainwright.support("gpt2", name).document.accelerator == accelerator
    shown = run("support", "gpt2", "h100").out
    assert "at least 1 device\n" in shown
    assert shown.count("nine of ten") == 1


def test_a_script_is_run_with_launchers_that_only_record(
    tmp_path: Path, run: Callable[..., Any]
) -> None:
    path, copy = tmp_path / "train.sh", tmp_path / "captured.sh"
    path.write_text(SCRIPT)
    (line,) = trainwright.capture(["bash", str(path)])
    assert "--tensor-model-parallel-size 2 --sequence-parallel --num-layers 4" in line
    assert line.endswith("--save 'a b'")
    assert run("capture", "-o", str(copy), "--", "bash", str(path)).code == 0
    priced = run("estimate", str(copy), "--cluster", "dgx-h100", "--json").document
    assert priced["request"]["configuration"]["parallelism"]["tensor"] == 2


def test_a_command_that_launches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="started no launcher"):
        trainwright.capture(["true"])
    with pytest.raises(InvalidInput, match="cannot be run"):
        trainwright.capture([str(tmp_path / "nothing")])
    with pytest.raises(InvalidInput, match="must be given behind --"):
        trainwright.capture([])


@pytest.mark.slow
def test_a_tool_answers_with_the_document_and_writes_nothing() -> None:
    found = json.loads(answer("support", ["gpt2", "dgx-h100"]))
    assert found["kind"] == "support"
    refused = json.loads(answer("estimate", ["gpt2"]))
    assert refused["kind"] == "refusal"
    for word in ("-o", "-oplan.json", "--output", "--output=plan.json", "--patch"):
        with pytest.raises(InvalidInput, match="must write no file"):
            answer("plan", ["gpt2", word])
    with pytest.raises(InvalidInput, match="must be one of plan"):
        answer("export", [])


@pytest.mark.skipif(find_spec("mcp") is not None, reason="the SDK is installed")
def test_without_the_sdk_the_extra_is_named() -> None:
    with pytest.raises(MissingExtra, match="needs the package mcp"):
        server()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra [mcp]")
def test_the_server_offers_every_tool() -> None:
    import asyncio

    offered = asyncio.run(server().list_tools())
    assert {each.name for each in offered} == set(TOOLS)


def test_the_skill_travels_with_the_package_and_names_commands_that_exist() -> None:
    from trainwright.commands.main import COMMANDS

    text = (resources.files("trainwright") / "SKILL.md").read_text()
    assert text.startswith("---\nname: trainwright\n")
    named = {part.split()[0] for part in text.split("`trainwright ")[1:]}
    assert named >= {"support", "estimate", "improve", "plan", "export", "capture"}
    assert named <= set(COMMANDS)
