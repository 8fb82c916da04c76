"""How long a command takes as a whole: CPU seconds of the process, start to end."""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import pytest
from partition_cases import DATA

import trainwright

PROGRAM = (sys.executable, "-m", "trainwright")
ESTIMATE = (
    *("estimate", "gpt3-175b", "--cluster", "dgx-a100", "--nodes", "128", "--tp", "8"),
    *("--pp", "16", "--global-batch", "1536", "--sequence", "2048", "--virtual-stages", "3"),
)
PLAN = ("--devices", "2048", "--memory", "8GiB", "--microbatches", "1920", "--json")


def cpu_s(*arguments: str) -> float:
    """User and system seconds of one call."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*PROGRAM, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def quickest_cpu_s(benchmark, *arguments: str) -> float:
    """The least of several calls: a busy machine only ever adds to it."""
    taken: list[float] = []
    benchmark.pedantic(
        lambda: taken.append(cpu_s(*arguments)), rounds=5, warmup_rounds=1, iterations=1
    )
    return min(taken)


@pytest.mark.parametrize("command", ["", "plan"])
def test_help_takes_less_than_a_quarter_second(benchmark, command: str) -> None:
    assert quickest_cpu_s(benchmark, *command.split(), "--help") <= 0.25


def test_a_plan_of_a_profile_takes_less_than_half_a_second(benchmark) -> None:
    if DATA is None:
        pytest.skip("needs reference data: set TRAINWRIGHT_SHARED")
    profile = str(DATA / "profiles" / "bert32a100.json")
    assert quickest_cpu_s(benchmark, "plan", profile, *PLAN) <= 0.5


def test_an_estimate_takes_less_than_half_a_second(benchmark) -> None:
    assert quickest_cpu_s(benchmark, *ESTIMATE, "--json") <= 0.5


@pytest.mark.parametrize("degrees", [{"tp": 8}, {"tp": 4, "pp": 2}, {"tp": 1, "pp": 8}])
def test_one_of_many_that_do_not_fit_takes_less_than_thirty_milliseconds(
    benchmark, degrees
) -> None:
    taken: list[float] = []

    def ask() -> None:
        start_s = time.process_time()
        found = trainwright.estimate(
            "llama3-70b",
            cluster="dgx-h100",
            micro_batch=1,
            global_batch=128,
            sequence=8192,
            **degrees,
        )
        taken.append(time.process_time() - start_s)
        assert not found.document.fits

    benchmark.pedantic(ask, rounds=9, warmup_rounds=1, iterations=1)
    assert min(taken) <= 0.03
