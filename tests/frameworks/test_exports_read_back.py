"""Every file that states an export's settings, and every script that starts it, is its plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trainwright
from export_jobs import STAMP, cluster_of, job, ordered
from trainwright.documents.runs import job_of_configuration
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.frameworks import write
from trainwright.frameworks.launch import Launcher
from trainwright.model import Recipe
from trainwright.plans.capability import TARGETS
from trainwright.plans.capability_table import own_reduction
from trainwright.plans.job import Job

BATCH = {"global_batch": 64, "sequence_length": 2048}
SHARDED = {"data": 16, "zero_stage": 3}
DEEP = {"tensor": 2, "pipeline": 4, "data": 2, "zero_stage": 1, "sequence_parallel": True}
# Degrees of the largest job that a target has, and what its own files leave open, by option.
DEGREES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(TARGETS, SHARDED),
    **dict.fromkeys(("megatron", "megatron-bridge", "primus"), DEEP),
    "deepspeed": {"data": 16, "zero_stage": 1},
    "nanotron": {"tensor": 2, "data": 8, "zero_stage": 1, "sequence_parallel": True},
}
LENGTH = {"sequence": 2048}
OPEN: dict[str, dict[str, Any]] = {
    "deepspeed": LENGTH,
    "accelerate": LENGTH | {"micro_batch": 1, "global_batch": 64},
}
# Texts that state the settings of a run.
SETTINGS = {
    "megatron": ("megatron_args.sh",),
    "megatron-bridge": ("trainwright_recipe.py", "overrides.txt"),
    "primus": ("primus.yaml",),
    "torchtitan@0.2": ("torchtitan.toml",),
    "torchtitan@0.3": ("trainwright_config.py",),
    "pytorch": ("stages.json",),
    "deepspeed": ("ds_config.json",),
    "accelerate": ("accelerate.yaml",),
    "nanotron": ("nanotron.yaml",),
    "trl": (),  # half in accelerate.yaml, half in sft.yaml
    "axolotl": ("axolotl.yaml",),
    "llamafactory": ("llamafactory.yaml",),
    "automodel": ("automodel.yaml",),
    "maxtext": ("maxtext.yml",),
}


def written(folder: Path, target: str) -> Job:
    """The files of a target in a folder, and the job that they are of."""
    recipe = Recipe(precision="bf16", reduce_dtype=own_reduction(target, "bf16"))
    made = job("llama3-8b", **DEGREES[target], **BATCH, recipe=recipe)
    made, stamp = ordered(made, target), replace(STAMP, software=target)
    for name, text in write(made, stamp, target, launcher=Launcher.SLURM).files.items():
        (folder / name).write_text(text)
    return replace(made, orders=None)


@pytest.mark.parametrize("target", TARGETS)
def test_what_an_export_writes_reads_back_as_its_plan(tmp_path: Path, target: str) -> None:
    asked = written(tmp_path, target)
    around = {"cluster": "dgx-h100", "nodes": 2, **OPEN.get(target, {})}
    steps = set()
    for name in (*SETTINGS[target], "launch.sh", "launch.slurm"):
        read = trainwright.estimate("llama3-8b", source=(None, tmp_path / name), **around).document
        run = read.request.configuration
        degrees = replace(run.parallelism, expert_tensor=None)  # of experts that are none
        assert degrees.context == 1  # so how context ranks meet, as the file says it, is of none
        recipe = replace(run.recipe, context_exchange=asked.recipe.context_exchange)
        run = replace(run, parallelism=degrees, overheads=asked.overheads, recipe=recipe)
        again = job_of_configuration(run, asked.model, cluster_of(2), model_name="llama3-8b")
        assert again == asked, name
        steps.add(read.step_time_s)
    assert len(steps) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_what_an_export_writes_can_be_improved(tmp_path: Path, target: str) -> None:
    asked = written(tmp_path, target)
    around: dict[str, Any] = {"cluster": "dgx-h100", "nodes": 2, "model": "llama3-8b"}
    around |= {k: v for k, v in OPEN.get(target, {}).items() if k != "micro_batch"}
    name = next(iter(SETTINGS[target]), "launch.sh")
    for file in dict.fromkeys((name, "launch.sh")):
        found = trainwright.improve(
            tmp_path / file, **around, budget=Budget(time_limit_s=0.01)
        ).document
        assert found.request.configuration.parallelism.num_devices == asked.degrees.num_devices
        assert found.request.configuration.global_batch == 64


@pytest.mark.slow
@pytest.mark.parametrize("target", ["axolotl", "automodel", "primus"])
def test_a_copy_is_of_the_file_that_a_script_starts(tmp_path: Path, target: str) -> None:
    written(tmp_path, target)
    (file,) = SETTINGS[target]
    given: dict[str, Any] = {"cluster": "dgx-h100", "model": "llama3-8b"}
    given |= {"patch": tmp_path / "copy.yaml"}
    with pytest.raises(InvalidInput) as refused:
        trainwright.improve(tmp_path / "launch.sh", **given)
    assert f"give {tmp_path / file} and --nodes 2 in place of launch.sh" in str(refused.value)
    trainwright.improve(tmp_path / file, **given, nodes=2, budget=Budget(time_limit_s=5.0))
    assert (tmp_path / "copy.yaml").exists()
