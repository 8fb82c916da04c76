"""No child outlives its block, or the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainwright.lab.gloo_check import started

SERVER = ("http.server", [("0",)])  # runs until it is killed


def test_children_are_dead_and_reaped_when_the_block_ends(tmp_path):
    with started(*SERVER, [tmp_path / "log"]) as (child,):
        assert child.poll() is None
    assert child.returncode == -signal.SIGKILL


def test_children_are_dead_when_the_block_breaks_off(tmp_path):
    with pytest.raises(KeyboardInterrupt), started(*SERVER, [tmp_path / "log"]) as (child,):
        raise KeyboardInterrupt
    assert child.returncode == -signal.SIGKILL


PARENT = """
import sys, time
from pathlib import Path
from trainwright.lab.gloo_check import started
folder = sys.argv[1]
arguments = [(folder, "0")]
with started("trainwright.lab.gloo_worker", arguments, [Path(folder) / "log"]) as (child,):
    print(child.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.torch
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_a_parent_that_had_no_chance_to_clean_up(tmp_path, signal_number):
    """The worker waits for a second rank that never comes."""
    (tmp_path / "0.csv").write_text("0F0,0B0\n1F0,1B0\n")
    (tmp_path / "job.json").write_text(
        '{"num_processes": 2, "num_steps": 1, "runs": [{"csv_name": "0.csv", '
        '"form": "compute_only", "num_microbatches": 1, "rank_of_stage": [0, 1], '
        '"stages": [["embedding", "block"], ["block", "head"]]}]}'
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    worker = int(parent.stdout.readline())
    while not (tmp_path / "store.0").exists():
        assert is_running(worker), (tmp_path / "log").read_text()
        time.sleep(0.05)
    parent.send_signal(signal_number)
    parent.wait()
    parent.stdout.close()
    end_s = time.monotonic() + 60
    while is_running(worker) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert not is_running(worker)


def is_running(pid: int) -> bool:
    """Whether the process exists and is not merely waiting to be reaped by init."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rsplit(") ", 1)[1][0] != "Z"
