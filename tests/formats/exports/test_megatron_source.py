"""Exported flags through the argument parser of a Megatron-LM source tree, on a CPU.

The wheel of megatron-core has no parser of arguments. MEGATRON_SRC names a checkout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from export_jobs import bundle, golden_jobs
from trainwright.errors import Inexpressible
from trainwright.formats.exports.megatron_fields import megatron_fields
from trainwright.plan.job import Job

WHERE = os.environ.get("MEGATRON_SRC")
pytestmark = [
    pytest.mark.exports,
    pytest.mark.skipif(not WHERE, reason="MEGATRON_SRC names no checkout of Megatron-LM"),
]
# What the files leave to the user, and what a machine without a device needs.
BESIDE = (
    *("--transformer-impl", "local", "--no-gradient-accumulation-fusion"),
    *("--tokenizer-type", "NullTokenizer", "--vocab-size", "32000", "--mock-data"),
    *("--train-iters", "1", "--lr", "1e-4"),
)


def expressible() -> dict[str, Job]:
    found = {}
    for name, job in golden_jobs().items():
        try:
            bundle(job, "megatron")
        except Inexpressible:
            continue
        found[name] = job
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


def parsed(job: Job, *more: str) -> dict[str, Any]:
    flags = flags_of(job)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", Path(__file__).with_name("megatron_source_check.py")],
        input=json.dumps({"flags": [*flags, *BESIDE, *more], "world": job.degrees.num_devices}),
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(job),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return made


@pytest.mark.parametrize("name", expressible())
def test_the_parser_makes_of_the_flags_what_was_planned(name: str) -> None:
    job = expressible()[name]
    found, wanted = parsed(job), megatron_fields(job).model
    assert "refused" not in found
    assert found["data_parallel_size"] == job.degrees.data
    assert found["global_batch_size"] == job.global_batch
    for key in set(found) & set(wanted):
        if wanted[key] is not None:
            assert found[key] == wanted[key], key


def test_an_unknown_flag_ends_the_parser() -> None:
    job = next(iter(expressible().values()))
    with pytest.raises(AssertionError, match="unrecognized arguments"):
        parsed(job, "--no-such-flag")


def test_a_batch_that_does_not_divide_is_refused_there_too() -> None:
    job = next(job for job in expressible().values() if job.degrees.data > 1)
    assert "refused" in parsed(job, "--global-batch-size", str(job.global_batch + 1))
