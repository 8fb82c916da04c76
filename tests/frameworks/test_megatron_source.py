"""Exported flags through the argument parser of Megatron-LM, on a CPU.

MEGATRON_SRC names a checkout, or an unpacked wheel of megatron-core from 0.17.0 on, the first that
has the parser.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainwright
from export_jobs import bundle, golden_jobs, job
from trainwright.errors import Inexpressible
from trainwright.frameworks.jobs.script import read_launch
from trainwright.frameworks.jobs.settings import NOTHING
from trainwright.frameworks.megatron import megatron_fields
from trainwright.plans.job import Job
from trainwright.plans.plan import PIPELINE_INSIDE

WHERE = os.environ.get("MEGATRON_SRC")
pytestmark = [
    pytest.mark.exports,
    pytest.mark.skipif(not WHERE, reason="needs MEGATRON_SRC: make test-exports-all"),
]
# What a machine without a device needs, and what the files leave to the user.
NO_ENGINE = ("--transformer-impl", "local", "--no-gradient-accumulation-fusion", "--no-rope-fusion")
BESIDE = (
    *("--tokenizer-type", "NullTokenizer", "--vocab-size", "32000", "--mock-data"),
    *("--train-iters", "1", "--lr", "1e-4"),
)


def expressible() -> dict[str, Job]:
    found = {}
    for name, each in golden_jobs().items():
        try:
            bundle(each, "megatron")
        except Inexpressible:
            continue
        found[name] = each
    return found


def flags_of(job: Job) -> list[str]:
    """As the shell reads the exported file."""
    text = bundle(job, "megatron").files["megatron_args.sh"]
    command = f"{text}\nprintf '%s\\n' \"${{TRAINWRIGHT_ARGS[@]}}\""
    shell = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    return shell.stdout.splitlines()


def environment(job: Job) -> dict[str, str]:
    """As the bundle asks for; sharded weights forbid a single connection."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    outside = {key: value for key, value in os.environ.items() if key != name}
    asked = bundle(job, "megatron").environment.get(name)
    return {**outside, "PYTHONPATH": WHERE or "", **({name: "1"} if asked == "1" else {})}


def arguments_of(job: Job) -> dict[str, Any]:
    """What is planned, by names that the parser has too."""
    fields = megatron_fields(job)
    found = {**fields.run, **fields.ddp, **fields.optimizer}
    found["accumulate_allreduce_grads_in_fp32"] = found.pop("grad_reduce_in_fp32")
    if "data_parallel_sharding_strategy" in found:
        found |= {"use_megatron_fsdp": True, "ckpt_format": "fsdp_dtensor"}
    return found


def parsed(job: Job, *more: str, beside: tuple[str, ...] = BESIDE) -> dict[str, Any]:
    return made_of(
        [*flags_of(job), *NO_ENGINE, *beside, *more],
        world=job.degrees.num_devices,
        arguments=[*arguments_of(job)],
        env=environment(job),
    )


def made_of(
    flags: list[str], *, world: int, arguments: list[str], env: dict[str, str]
) -> dict[str, Any]:
    """What Megatron's own parser makes of flags."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", Path(__file__).with_name("megatron_source_check.py")],
        input=json.dumps({"flags": flags, "world": world, "arguments": arguments}),
        capture_output=True,
        text=True,
        timeout=300,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return made


def asked() -> dict[str, Job]:
    inside = {"data": 8, "pipeline": 2, "axis_order": PIPELINE_INSIDE, "zero_stage": 1}
    return {
        **expressible(),
        "copies": job("llama3-8b", data=16, zero_stage=1, state_copies=4, global_batch=16),
        "copies of shards": job(
            "llama3-8b", data=16, zero_stage=2, state_copies=2, global_batch=16
        ),
        "second mapping": job("llama3-8b", **inside, global_batch=16),
    }


@pytest.mark.parametrize("name", asked())
def test_the_parser_makes_of_the_flags_what_was_planned(name: str) -> None:
    job = asked()[name]
    found, wanted = parsed(job), megatron_fields(job).model
    assert "refused" not in found
    assert found["data_parallel_size"] == job.degrees.data
    assert found["global_batch_size"] == job.global_batch
    for key in set(found) & set(wanted):
        if wanted[key] is not None:
            assert found[key] == wanted[key], key
    assert found["arguments"] == arguments_of(job)


def test_the_flags_of_the_tutorial_are_all_that_is_missing() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
    started = page.split("bash job/launch.sh", 1)[1].split("```")[0].replace("\\\n", " ")
    given = tuple(started.split())
    assert {"--rotary-base", "--tokenizer-type", "--vocab-size", "--lr"} <= {*given}
    job = expressible()["llama3-70b uneven loop"]
    assert "refused" not in parsed(job, beside=given)


def test_an_unknown_flag_ends_the_parser() -> None:
    job = next(iter(expressible().values()))
    with pytest.raises(AssertionError, match="unrecognized arguments"):
        parsed(job, "--no-such-flag")


def test_a_batch_that_does_not_divide_is_refused_there_too() -> None:
    job = next(job for job in expressible().values() if job.degrees.data > 1)
    assert "refused" in parsed(job, "--global-batch-size", str(job.global_batch + 1))


def test_a_patched_script_is_taken_by_the_parser(tmp_path: Path) -> None:
    job, copy = Path(__file__).parents[2] / "examples" / "megatron_job.sh", tmp_path / "better.sh"
    improved = trainwright.improve(source=("megatron", job), cluster="dgx-h100", patch=copy)
    back = trainwright.estimate(source=("megatron", copy), cluster="dgx-h100").document
    assert improved.document.recommended is not None
    assert back.step_time_s == pytest.approx(improved.document.recommended.step_time_s, rel=1e-9)
    wanted = back.request.configuration
    launch = read_launch(copy.read_text(), NOTHING)
    outside = {**os.environ, "PYTHONPATH": WHERE or "", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    found = made_of(
        [*(word.shown() for word in launch.words), *NO_ENGINE, "--tokenizer-type", "NullTokenizer"],
        world=launch.devices.total or 0,
        arguments=["micro_batch_size", "use_distributed_optimizer"],
        env=outside,
    )
    assert "refused" not in found, found["refused"]
    degrees = wanted.parallelism
    assert found["tensor_model_parallel_size"] == degrees.tensor
    assert found["pipeline_model_parallel_size"] == degrees.pipeline
    assert found["data_parallel_size"] == degrees.data
    assert found["global_batch_size"] == wanted.global_batch
    assert found["arguments"]["micro_batch_size"] == wanted.microbatch_size
    assert (found["recompute_granularity"] or "none") == str(wanted.recompute).partition(":")[0]
