"""Exported folders through torchtitan's own parser, 0.2.2 and 0.3.0, on a CPU without triton.

`make test-exports-all` installs both beside the environment and names them in TRAINWRIGHT_TITAN.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from export_jobs import bundle, job
from trainwright.plans.job import Job
from trainwright.profile import Recompute

WHERE = os.environ.get("TRAINWRIGHT_TITAN")
pytestmark = [
    pytest.mark.exports,
    pytest.mark.skipif(not WHERE, reason="needs torchtitan: make test-exports-all"),
]
TARGETS = {"torchtitan@0.2": ("0.2.2", "torchtitan.toml"),
           "torchtitan@0.3": ("0.3.0", "trainwright_config.py")}  # fmt: skip


def jobs() -> dict[str, Job]:
    degrees = {"tensor": 2, "sequence_parallel": True, "pipeline": 4, "data": 2, "zero_stage": 2}
    return {
        "v-half": job("llama3-8b", schedule="v-half", virtual_stages=2, global_batch=32, **degrees),
        "uneven 1f1b": job(
            "llama3-8b", global_batch=32, blocks_per_stage=(7, 9, 9, 7),
            recompute=Recompute.FULL, **degrees,
        ),
        "loop": job(
            "llama3-8b", schedule="interleaved", virtual_stages=2, global_batch=32, **degrees
        ),
        "fsdp": job("llama3-70b", data=16, zero_stage=3, global_batch=64),
    }  # fmt: skip


def titan(
    target: str, made: Job, folder: Path, *more: str, edit: dict[str, str] | None = None
) -> dict[str, Any]:
    """What torchtitan makes of the files."""
    version, name = TARGETS[target]
    files = dict(bundle(made, target).files)
    for old, new in (edit or {}).items():
        files[name] = files[name].replace(old, new)
    for each, text in files.items():
        (folder / each).write_text(text)
    tables = {"version": version, "file": str(folder / name), "more": more}
    wanted = (
        *("pipeline_parallel_degree", "tensor_parallel_degree", "data_parallel_shard_degree"),
        *("fsdp_reshard_after_forward", "pipeline_parallel_schedule_csv"),
    )
    parts = [version, "common", "data"]
    path = os.pathsep.join(str(Path(WHERE or "") / part) for part in parts)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", Path(__file__).with_name("titan_check.py")],
        input=json.dumps({**tables, "wanted": wanted}),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", jobs())
def test_torchtitan_reads_what_was_planned(name: str, target: str, tmp_path: Path) -> None:
    made = jobs()[name]
    found = titan(target, made, tmp_path)
    degrees = made.degrees
    assert found["parallelism"]["tensor_parallel_degree"] == degrees.tensor
    assert found["parallelism"]["data_parallel_shard_degree"] == degrees.data
    assert found["training"]["seq_len"] == made.sequence_length
    assert found["training"]["global_batch_size"] == made.global_batch
    if degrees.pipeline > 1:
        assert found["names"] == "agree"
        placed = [list(stages) for stages in made.placement.stages_of_rank]
        assert found["stages"] == placed


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    edit = {"[training]": "[training]\nsurprise = 1"}
    found = titan("torchtitan@0.2", jobs()["fsdp"], tmp_path, edit=edit)
    assert "ValueError" in found["refused"]


def test_an_unknown_flag_is_refused(tmp_path: Path) -> None:
    found = titan("torchtitan@0.3", jobs()["fsdp"], tmp_path, "--parallelism.surprise", "1")
    assert "SystemExit: 2" in found["refused"]
