"""What a plan decides stands in the files of a target, or the export is refused by name."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import trainwright
from export_jobs import STAMP, bundle, job
from trainwright.errors import Inexpressible, InvalidInput
from trainwright.frameworks import write
from trainwright.frameworks.jobs import Beside, read
from trainwright.frameworks.jobs.megatron import read_megatron
from trainwright.frameworks.jobs.torchtitan import read_torchtitan
from trainwright.frameworks.launch import Launcher
from trainwright.model import Recipe
from trainwright.model.config import LowRank, Tuning
from trainwright.model.recipe import Offload
from trainwright.plans.capability import TARGETS, capability_of
from trainwright.plans.capability_table import Feature
from trainwright.plans.job import Job

# What a format is called in the files of a target; None where it is what the target does unasked.
FORMATS = {
    "megatron": {"bf16": "--bf16", "fp16": "--fp16", "fp8": "--fp8-format", "fp32": None},
    "megatron-bridge": {
        "bf16": "'bf16_mixed'", "fp16": "'fp16_mixed'", "fp8": "fp8",
        "fp32": "mixed_precision = None",
    },
    "primus": {"bf16": "bf16: true", "fp16": "fp16: true", "fp8": "fp8", "fp32": "bf16: false"},
    "torchtitan@0.2": {"bf16": None, "fp32": '"float32"', "fp8": '"float8"'},
    "torchtitan@0.3": {"bf16": None, "fp32": "'float32'"},
    "deepspeed": {"bf16": '"bf16"', "fp16": '"fp16"', "fp32": None},
    "trl": {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp32": '"no"'},
    "accelerate": {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp32": '"no"'},
    "axolotl": {
        "bf16": "bf16: true", "fp16": "fp16: true", "fp8": "fp8: true", "fp32": "float32: true",
    },
    "llamafactory": {"bf16": "bf16: true", "fp16": "fp16: true", "fp32": None},
    "automodel": {"bf16": None},
    "maxtext": {"bf16": "dtype: bfloat16", "fp8": "quantization: fp8", "fp32": "dtype: float32"},
    "nanotron": {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"},
}  # fmt: skip


FSDP = ("pytorch", "torchtitan", "accelerate", "trl", "axolotl", "automodel", "maxtext")


def plain(target: str, precision: str) -> Job:
    zero = 3 if target.startswith(FSDP) else 1
    recipe = Recipe(precision=precision)
    return job("llama3-8b", data=8, zero_stage=zero, global_batch=16, recipe=recipe)


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32", "fp8"])
def test_a_number_format_is_in_the_files_or_refused(target: str, precision: str) -> None:
    words = FORMATS[target]
    assert (precision in words) == (precision in capability_of(target).precisions)
    if precision not in words:
        with pytest.raises(Inexpressible, match="precision"):
            bundle(plain(target, precision), target)
        return
    text = "".join(bundle(plain(target, precision), target).files.values())
    others = [word for name, word in words.items() if name not in (precision, "fp8") and word]
    if (word := words[precision]) is not None:
        assert word in text
    elif others:
        assert not any(word in text for word in others)


def test_a_capacity_is_in_the_files_or_refused() -> None:
    made = job(
        "mixtral-8x7b", data=8, expert=8, zero_stage=1, global_batch=16,
        recipe=Recipe(capacity_factor=1.25),
    )  # fmt: skip
    for target in TARGETS:
        try:
            files = bundle(made, target).files
        except Inexpressible as error:
            assert error.target == target
        else:
            text = "".join(files.values())
            assert "1.25" in text or target in ("pytorch", "deepspeed")


def test_replicas_of_experts_alone_are_sharded() -> None:
    made = job(
        "mixtral-8x7b", tensor=8, expert=2, expert_tensor=1, zero_stage=3, global_batch=8,
        sequence_parallel=True,
    )  # fmt: skip
    text = bundle(made, "megatron").files["megatron_args.sh"]
    assert read_megatron(text, Beside(vocabulary=32_000)).zero == 3


@pytest.mark.parametrize(
    ("data", "nodes", "each"), [(4, 1, 4), (8, 1, 8), (12, 2, 6), (16, 2, 8), (10, 2, 5)]
)
def test_as_many_processes_start_as_the_plan_has_devices(data: int, nodes: int, each: int) -> None:
    made = job("gpt2", data=data, zero_stage=1, global_batch=2 * data, sequence_length=512)
    files = write(made, STAMP, "megatron", launcher=Launcher.SLURM).files
    assert f'"${{NUM_NODES:-{nodes}}}" --nproc-per-node {each} ' in files["launch.sh"]
    assert f"#SBATCH --nodes={nodes}\n" in files["launch.slurm"]
    assert f"#SBATCH --gpus-per-node={each}\n" in files["launch.slurm"]


@pytest.mark.parametrize("script", ["launch.sh", "launch.slurm"])
def test_our_own_scripts_read_back(tmp_path, script: str) -> None:
    made = job("llama3-8b", tensor=4, data=4, zero_stage=1, global_batch=16, sequence_parallel=True)
    for name, text in write(made, STAMP, "megatron", launcher=Launcher.SLURM).files.items():
        (tmp_path / name).write_text(text)
    text = (tmp_path / script).read_text()
    run = read_megatron(text, Beside(folder=tmp_path, name=script, vocabulary=128_256))
    assert (run.tp, run.num_devices, run.zero, run.global_batch) == (4, 16, 1, 16)
    assert run.unknown == ()
    assert run.overlap == {"gradients": 0.9, "parameters": 0.9}


def test_a_pipeline_of_torchtitan_takes_the_batch_in_microbatches() -> None:
    made = job(
        "llama3-8b", pipeline=2, data=2, zero_stage=0, global_batch=32, microbatch_size=2
    )  # fmt: skip
    text = bundle(made, "torchtitan@0.2").files["torchtitan.toml"]
    stated = dict(re.findall(r"^(\w+) = (\d+)$", text, re.MULTILINE))
    assert stated["local_batch_size"] == "16"  # 8 microbatches of 2 on each replica
    assert stated["pipeline_parallel_microbatch_size"] == "2"
    assert stated["global_batch_size"] == "32"
    run = read_torchtitan(text)
    assert (run.micro_batch, run.batch_per_replica, run.global_batch) == (2, 16, 32)


def test_an_inner_stage_without_a_block_is_refused_by_its_option() -> None:
    with pytest.raises(InvalidInput, match="blocks: must give a block to every inner stage"):
        trainwright.estimate(
            "gpt2", cluster="dgx-h100", pp=4, dp=1, global_batch=8, sequence=512,
            blocks=[6, 0, 0, 6],
        )  # fmt: skip


OFFLOADS = {
    "megatron": "--optimizer-offload-fraction 0.5",
    "megatron-bridge": "optimizer.optimizer_offload_fraction=0.5",
    "primus": "optimizer_offload_fraction: 0.5",
    "deepspeed": '"offload_optimizer"',
}


@pytest.mark.parametrize("target", TARGETS)
def test_optimizer_states_on_the_host_are_in_the_files_or_refused(target: str) -> None:
    zero = 3 if target.startswith(FSDP) else 1
    recipe = Recipe(offload=Offload(optimizer=0.5))
    moved = job("llama3-8b", data=8, zero_stage=zero, global_batch=16, recipe=recipe)
    able = capability_of(target).can(Feature.OFFLOAD)
    if not able:
        with pytest.raises(Inexpressible, match="offload"):
            bundle(moved, target)
    elif target in OFFLOADS:
        assert OFFLOADS[target] in "".join(bundle(moved, target).files.values())


def test_a_share_of_the_optimizer_on_the_host_is_read_back() -> None:
    recipe = Recipe(offload=Offload(optimizer=0.5))
    moved = job("llama3-8b", data=8, zero_stage=1, global_batch=16, recipe=recipe)
    script = bundle(moved, "megatron").files["megatron_args.sh"]
    assert read_megatron(script, Beside()).on_host == {"optimizer": 0.5}


ADAPTERS = LowRank(rank=16, targets=("query", "value"), dropout=0.05)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bits", [None, 4, 8])
def test_adapters_are_in_the_files_or_refused(
    target: str, bits: int | None, tmp_path: Path
) -> None:
    zero = 3 if target.startswith(FSDP) else 1
    made = job("llama3-8b", data=8, zero_stage=zero, global_batch=16)
    low_rank = replace(ADAPTERS, bits=bits)
    made = replace(made, model=replace(made.model, tuning=Tuning(low_rank=low_rank)))
    try:
        found = bundle(made, target)
    except Inexpressible as error:
        assert error.faults[0].path in ("lora_rank", "weight_bits")
        assert target not in ("trl", "axolotl", "llamafactory")
        return
    if target not in ("trl", "axolotl", "llamafactory", "automodel"):
        assert any("adapted" in each for each in found.asked_of_user)
        return
    for name, text in found.files.items():
        (tmp_path / name).write_text(text)
    name = "sft.yaml" if target == "trl" else f"{target}.yaml"
    run = read(target, found.files[name], Beside(folder=tmp_path, name=name))
    stated = (run.lora_rank, run.lora_targets, run.lora_dropout, run.weight_bits)
    assert stated == (16, ("query", "value"), 0.05, bits)
    assert run.unknown == ()


@pytest.mark.parametrize("target", TARGETS)
def test_formats_of_optimizer_states_are_in_the_files_or_refused(target: str) -> None:
    zero = 3 if target.startswith(FSDP) else 1
    recipe = Recipe(main_weight_dtype="none", moment_dtypes=("bf16",))
    made = job("llama3-8b", data=8, zero_stage=zero, global_batch=16, recipe=recipe)
    try:
        found = bundle(made, target)
    except (Inexpressible, InvalidInput) as error:
        assert {fault.path for fault in error.faults} <= {"main_weight_dtype", "moment_dtypes"}
    else:
        said = " ".join(found.not_represented)
        assert target == "pytorch" or "number formats of gradients and optimizer state" in said
