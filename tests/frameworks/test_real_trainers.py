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

import trainwright
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
    return read_by(trainer, folder / FILES[trainer])


def read_by(trainer: str, path: Path) -> dict[str, Any]:
    quiet = {"DISABLE_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", Path(__file__).with_name("trainers_check.py")],
        input=json.dumps({"file": str(path), "trainer": trainer}),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **quiet, "PYTHONPATH": WHERE or ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert "refused" not in found, found["refused"]
    return found


# As people write them, each with room for a better microbatch.
FOUND = {
    "axolotl": """\
# A comment that stays.
base_model: meta-llama/Meta-Llama-3-8B   # the model
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
sequence_len: 2048
sample_packing: true
attn_implementation: flash_attention_2
micro_batch_size: 1
gradient_accumulation_steps: 8
gradient_checkpointing: true
bf16: true
optimizer: adamw_torch_fused
""",
    "llamafactory": """\
model_name_or_path: meta-llama/Meta-Llama-3-8B
stage: sft  # supervised
finetuning_type: lora
lora_rank: 8
cutoff_len: 2048
packing: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
""",
    "trl": """\
model_name_or_path: meta-llama/Meta-Llama-3-8B
use_peft: true
lora_r: 16
max_length: 2048
packing: true
gradient_checkpointing: true  # little memory
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
""",
}


@pytest.mark.parametrize("trainer", FOUND)
def test_a_patched_file_is_taken_by_its_trainer(trainer: str, tmp_path: Path) -> None:
    before, copy = tmp_path / "job.yaml", tmp_path / "better.yaml"
    before.write_text(FOUND[trainer])
    found = trainwright.improve(source=(trainer, before), cluster="dgx-h100", patch=copy).document
    back = trainwright.estimate(source=(trainer, copy), cluster="dgx-h100").document
    assert back.step_time_s == pytest.approx(found.recommended.step_time_s, rel=1e-9)
    kept = set(FOUND[trainer].splitlines()) - set(copy.read_text().splitlines())
    assert 0 < len(kept) <= 3  # lines with the settings that change
    assert read_by(trainer, copy)


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
    assert found["cutoff_len"] == made.sequence_length - 1  # it keeps one apart where it packs
    assert found["finetuning_type"] == "full"
    assert found["deepspeed"]
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
