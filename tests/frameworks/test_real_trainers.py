"""Exported files through the parsers of TRL, axolotl, LLaMA-Factory and NeMo Automodel, on a CPU.

`make test-exports-all` installs them beside the environment and names them in TRAINWRIGHT_TRAINERS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from export_jobs import bundle, golden_jobs, job
from trainwright.model import LowRank, Tuning
from trainwright.plans.job import Job
from trainwright.profile import Recompute

WHERE = os.environ.get("TRAINWRIGHT_TRAINERS")
pytestmark = [
    pytest.mark.exports,
    pytest.mark.skipif(not WHERE, reason="needs the trainers: make test-exports-all"),
]
FILES = {
    "trl": "sft.yaml",
    "axolotl": "axolotl.yaml",
    "llamafactory": "llamafactory.yaml",
    "automodel": "automodel.yaml",
}


def understood(made: Job, trainer: str, folder: Path) -> dict[str, Any]:
    for name, text in bundle(made, trainer).files.items():
        (folder / name).write_text(text)
    quiet = {"DISABLE_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", Path(__file__).with_name("trainers_check.py")],
        input=json.dumps({"file": str(folder / FILES[trainer]), "trainer": trainer}),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **quiet, "PYTHONPATH": WHERE or ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert "refused" not in found, found["refused"]
    return found


def sharded() -> Job:
    return golden_jobs()["llama3-8b fsdp"]


def adapted(bits: int | None = 4) -> Job:
    made = job("llama3-8b", data=8, zero_stage=0, global_batch=16, recompute=Recompute.FULL)
    low_rank = LowRank(rank=16, targets=("query", "value"), dropout=0.05, bits=bits)
    return replace(made, model=replace(made.model, tuning=Tuning(low_rank=low_rank)))


def on_a_mesh() -> Job:
    return job(
        "llama3-8b", data=2, tensor=2, context=2, sequence_parallel=True, zero_stage=3,
        global_batch=16, recompute=Recompute.FULL,
    )  # fmt: skip


def test_axolotl_takes_the_degrees_and_the_adapters(tmp_path: Path) -> None:
    found = understood(on_a_mesh(), "axolotl", tmp_path)
    assert not found["unknown"]
    names = ("tensor_parallel_size", "context_parallel_size", "dp_shard_size")
    assert [found[name] for name in names] == [2, 2, 2]
    tuned = understood(adapted(), "axolotl", tmp_path)
    assert (tuned["adapter"], tuned["lora_r"], tuned["unknown"]) == ("qlora", 16, [])


def test_llamafactory_takes_deepspeeds_file_and_the_adapters(tmp_path: Path) -> None:
    made = sharded()
    found = understood(made, "llamafactory", tmp_path)
    assert (found["cutoff_len"], found["finetuning_type"]) == (made.sequence_length, "full")
    assert found["deepspeed"] is not None
    tuned = understood(adapted(), "llamafactory", tmp_path)
    assert (tuned["finetuning_type"], tuned["lora_rank"], tuned["quantization_bit"]) == (
        "lora",
        16,
        4,
    )


def test_trl_takes_the_length_and_the_adapters(tmp_path: Path) -> None:
    made = sharded()
    assert understood(made, "trl", tmp_path)["max_length"] == made.sequence_length
    tuned = understood(adapted(), "trl", tmp_path)
    assert (tuned["use_peft"], tuned["lora_r"]) == (True, 16)


def test_automodel_takes_the_degrees(tmp_path: Path) -> None:
    found = understood(on_a_mesh(), "automodel", tmp_path)
    names = ("tp_size", "cp_size", "pp_size", "dp_size", "activation_checkpointing")
    assert [found[name] for name in names] == [2, 2, 1, 2, True]
