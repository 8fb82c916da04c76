"""Every file that states an export's settings, and every script that starts it, is its plan."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trainwright
from export_jobs import STAMP, cluster_of, job, ordered
from trainwright.documents.jobs import job_of
from trainwright.documents.runs import job_of_configuration
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.frameworks import write
from trainwright.frameworks.launch import Launcher
from trainwright.model import Recipe
from trainwright.plans.capability import TARGETS, capability_of
from trainwright.plans.capability_table import Feature, own_reduction
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


# What a plan is asked for: a pipeline of every target that runs one; and what no file of it says.
CUT = {"pp": 4, "zero": (0, 1)}
UNCUT = {"pp": 1}
MADE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(TARGETS, UNCUT),
    **{name: CUT for name in TARGETS if capability_of(name).can(Feature.PIPELINE)},
    "deepspeed": CUT | {"tp": 1},
}
UNSAID = {
    "deepspeed": {"sequence": 2048},
    "accelerate": {"sequence": 2048, "global_batch": 64},
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_plan_that_is_exported_reads_back_as_itself(tmp_path: Path, target: str) -> None:
    batch = {"global_batch": 64, "sequence": 2048, "micro_batch": 2}
    planned = trainwright.plan(
        "tinyllama-1.1b",  # 22 blocks, which four ranks share unevenly
        cluster="dgx-h100",
        nodes=2,
        framework=target,
        top=0,
        **batch,
        **MADE[target],
    )
    planned.save(tmp_path / "plan.json")
    trainwright.export(tmp_path / "plan.json", to=target, output=tmp_path / "files")
    priced = trainwright.estimate(
        "tinyllama-1.1b",
        source=(None, tmp_path / "files" / "launch.sh"),
        cluster="dgx-h100",
        **UNSAID.get(target, {}),
    )
    asked, found = job_of(planned.document), job_of(priced.document)
    assert found.degrees.pipeline == MADE[target]["pp"]
    same = replace(found.degrees, expert_tensor=None)
    assert same == replace(asked.degrees, expert_tensor=None)
    assert found.blocks_per_stage == asked.blocks_per_stage
    open_ones = [each for each in priced.document.warnings if "is not in this file" in each]
    assert bool(open_ones) == (target == "accelerate")
    if target == "accelerate":
        assert "the microbatch is not in this file: taken as 1" in open_ones[0]
    else:
        assert found.microbatch_size == asked.microbatch_size == 2


def exported_pipeline(folder: Path) -> dict[str, Any]:
    """Files of DeepSpeed with 4 stages of unlike blocks on 16 devices, and the options beside."""
    made = job(
        "llama3-8b", pipeline=4, data=4, zero_stage=1, blocks_per_stage=(7, 9, 9, 7), **BATCH
    )
    for name, text in write(made, STAMP, "deepspeed", launcher=Launcher.TORCHRUN).files.items():
        (folder / name).write_text(text)
    return {"model": "llama3-8b", "cluster": "dgx-h100", **LENGTH}


def test_the_cuts_of_a_deepspeed_pipeline_stand_in_its_module(tmp_path: Path) -> None:
    around = exported_pipeline(tmp_path)
    for name in ("launch.sh", "ds_config.json"):
        priced = trainwright.estimate(**around, source=("deepspeed", tmp_path / name)).document
        assert job_of(priced).blocks_per_stage == (7, 9, 9, 7)
        assert priced.devices_used == 16


def test_stages_without_their_module_follow_from_devices_and_replicas(tmp_path: Path) -> None:
    around = exported_pipeline(tmp_path)
    (tmp_path / "pipeline.py").unlink()
    script, settings = tmp_path / "launch.sh", tmp_path / "ds_config.json"
    priced = trainwright.estimate(**around, source=("deepspeed", script)).document
    assert job_of(priced).blocks_per_stage == (8, 8, 8, 8)
    told = "16 devices, 4 replicas: a pipeline of 4 stages, cut evenly, as neither is said"
    assert any(told in each for each in priced.warnings)
    alone = trainwright.estimate(**around, source=("deepspeed", settings)).document
    assert any("how many stages is not in this file: give --pp" in w for w in alone.warnings)
    given = trainwright.estimate(**around, source=("deepspeed", settings), pp=4).document
    assert job_of(given).blocks_per_stage == (8, 8, 8, 8)
    assert not any("not in this file" in each for each in given.warnings)


def test_devices_that_no_stated_degree_uses_are_told(tmp_path: Path) -> None:
    around = exported_pipeline(tmp_path)
    settings = tmp_path / "ds_config.json"
    stated = json.loads(settings.read_text())
    del stated["pipeline"]
    settings.write_text(json.dumps(stated))
    source = ("deepspeed", tmp_path / "launch.sh")
    found = trainwright.estimate(**around, source=source).document
    wanted = "16 devices, 4 replicas of 1 device: priced are 4; give --pp, --tp or --dp"
    assert any(wanted in each for each in found.warnings)
    cut = trainwright.estimate(**around, source=source, tp=4).document
    assert not any("priced are" in each for each in cut.warnings)


def test_the_files_for_megatron_say_what_reads_them_back(tmp_path: Path) -> None:
    written(tmp_path, "megatron")
    source, around = (None, tmp_path / "launch.sh"), {"cluster": "dgx-h100"}
    with pytest.raises(InvalidInput, match="give --vocab-size"):
        trainwright.estimate(source=source, **around)
    readme = (tmp_path / "README.md").read_text()
    told = re.search(r"to read them back .*: the model, or --vocab-size (\d+);", readme)
    assert told is not None
    alone = trainwright.estimate(source=source, vocab_size=int(told[1]), **around).document
    beside = trainwright.estimate("llama3-8b", source=source, **around).document
    assert alone.step_time_s == beside.step_time_s
    assert alone.peak_memory_bytes == beside.peak_memory_bytes
