"""Exported folders through DeepSpeed 0.19.8, on a CPU.

`make test-exports-all` installs it beside the environment and names it in TRAINWRIGHT_DEEPSPEED.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from export_jobs import bundle, golden_jobs, job
from trainwright.formats.calibration_toml import framework_memory
from trainwright.frameworks.trainers import bounds
from trainwright.plans.job import Job
from trainwright.profile import Recompute

WHERE = os.environ.get("TRAINWRIGHT_DEEPSPEED")
pytestmark = [
    pytest.mark.exports,
    pytest.mark.skipif(not WHERE, reason="needs deepspeed: make test-exports-all"),
]


def jobs() -> dict[str, Job]:
    return {
        "zero 3": golden_jobs()["llama3-8b fsdp"],
        "uneven pipeline": job(
            "llama3-8b", pipeline=4, data=4, zero_stage=1, global_batch=32,
            blocks_per_stage=(7, 9, 9, 7), recompute=Recompute.FULL,
        ),
    }  # fmt: skip


def deepspeed(made: Job, folder: Path, more: dict[str, Any] | None = None) -> dict[str, Any]:
    for name, text in bundle(made, "deepspeed").files.items():
        (folder / name).write_text(text)
    asked = {
        "folder": str(folder),
        "devices": made.degrees.num_devices,
        "data": made.degrees.data,
        "more": more or {},
    }
    return checked(asked)


def checked(asked: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", Path(__file__).with_name("deepspeed_check.py")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": WHERE or "", "DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", jobs())
def test_deepspeed_reads_what_was_planned(name: str, tmp_path: Path) -> None:
    made = jobs()[name]
    found = deepspeed(made, tmp_path)
    assert (found["batch"], found["micro"]) == (made.global_batch, made.microbatch_size)
    assert (found["steps"], found["zero"]) == (made.num_microbatches, made.degrees.zero_stage)
    if made.degrees.pipeline > 1:
        assert found["parts"] == list(bounds(made))
        assert found["interval"] == found["checkpointed"] == 1


def test_batches_that_disagree_are_refused(tmp_path: Path) -> None:
    found = deepspeed(jobs()["zero 3"], tmp_path, {"train_batch_size": 65})
    assert "AssertionError" in found["refused"]


def test_an_unknown_key_at_the_top_is_not_noticed(tmp_path: Path) -> None:
    """Why only keys that DeepSpeed knows are written."""
    assert "refused" not in deepspeed(jobs()["zero 3"], tmp_path, {"surprise": 1})


LAYERS, WIDTH, BUCKET, RANKS = 16, 1024, 2 * 2**20, 4


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_account_of_its_engine_is_what_it_holds(stage: int) -> None:
    account = framework_memory("trl with deepspeed")
    found = checked(
        {"stage": stage, "devices": RANKS, "layers": LAYERS, "width": WIDTH, "bucket": BUCKET}
    )
    # Bytes a parameter: 16-bit weights, float32 copies and moments, 16-bit gradients of a rank.
    weights, states, own = 2 / (RANKS if stage == 3 else 1), 12 / RANKS, 2 / RANKS
    static = weights + states
    assert found["update"] - static == pytest.approx(
        own + account.update_bytes / RANKS + one_bucket(stage), rel=0.05
    )
    if stage < account.buckets_from or stage == 3:
        return
    gradients = 2 if stage == 1 else 2 * own  # of a new microbatch beside those of the last
    buckets, newest = 2 * 2 * BUCKET / (LAYERS * WIDTH**2), 2 / LAYERS
    assert found["backward"] - static == pytest.approx(gradients + buckets + newest, rel=0.05)


def one_bucket(stage: int) -> float:
    """At stage 3 a bucket stays."""
    return 2 * BUCKET / (LAYERS * WIDTH**2) if stage == 3 else 0.0


def test_zero_3_updates_group_by_group() -> None:
    """Groups of two of sixteen parts: an eighth of what an update makes is there at once."""
    asked = {"stage": 3, "devices": RANKS, "layers": LAYERS, "width": WIDTH, "bucket": BUCKET}
    at_once, by_group = (
        checked(asked | more)["update"] for more in ({}, {"group": 2 * WIDTH**2 // RANKS})
    )
    account = framework_memory("trl with deepspeed")
    spared = account.update_bytes / RANKS * 7 / 8
    assert at_once - by_group == pytest.approx(spared, rel=0.15)
