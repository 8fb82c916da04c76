"""`plan --jobs N`: the same document, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).parent / "trainwright"
LONG = ("deepseek-v3", "--cluster", "dgx-h100", "--devices", "2048", "--global-batch", "15360")
LONG += ("--micro-batch", "..2")  # so that workers have work soon
SHORT = ("llama3-8b", "--cluster", "dgx-h100", "--global-batch", "128", "--framework", "megatron")


def test_jobs_that_are_no_number_are_refused(run):
    result = run("plan", *SHORT, "--nodes", "1", "--jobs", "some")
    assert result.code == 2
    assert result.err.startswith("error: jobs: must be a whole number >= 1 or dask://HOST:PORT")


def test_a_profile_says_that_it_needs_no_jobs(run):
    result = run("plan", "small.json", "--devices", "2", "--jobs", "2", "--json")
    assert "jobs applies to models only and was not used" in json.loads(result.out)["warnings"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [("--devices", "32"), pytest.param(("--devices", "16..32"), marks=pytest.mark.papers)]
)
def test_the_document_is_the_same_for_any_number_of_jobs(run, sizes):
    given = ("plan", *SHORT, "--sequence", "4096", *sizes, "--json")
    one, two = (without_times(json.loads(run(*given, "--jobs", n).out)) for n in "12")
    assert one == two


def without_times(value):
    """A document without the CPU seconds of its searches, which differ from run to run."""
    if isinstance(value, list):
        return [without_times(each) for each in value]
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k != "search_s"}
    return value


@pytest.fixture
def searching():
    """A long search with two workers, in a process group of its own."""
    started = subprocess.Popen(
        [PROGRAM, "plan", *LONG, "--sequence", "4096", "--jobs", "2", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: started.poll() is not None or len(group(started.pid)) >= 3)
    yield started
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.communicate()


@pytest.mark.slow
def test_control_c_keeps_the_best_so_far_and_leaves_no_process(searching):
    """A terminal sends the signal to all processes of the program, workers just starting too."""
    time.sleep(1)
    os.killpg(searching.pid, signal.SIGINT)
    out, err = searching.communicate(timeout=120)
    assert searching.returncode == 130, err
    assert json.loads(out)["interrupted"]
    assert err.strip() == "interrupted: keeping the best found so far"
    wait_until(lambda: not group(searching.pid))


@pytest.mark.slow
def test_workers_end_with_a_program_that_is_killed(searching):
    searching.kill()
    searching.wait(30)
    wait_until(lambda: not group(searching.pid))


def wait_until(condition) -> None:
    end_s = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < end_s, "nothing happened for three minutes"
        time.sleep(0.05)


def group(leader: int) -> list[int]:
    """The processes of a group, but those that have ended and were not waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, own = path.read_text().rpartition(")")[2].split()[:3]
            if int(own) == leader and state != "Z":
                found.append(int(path.parent.name))
    return found
