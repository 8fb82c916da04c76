"""The partitioner's speed table, one process per row, as Markdown on standard output.

    TRAINWRIGHT_SHARED=... python benchmarks/partition.py > table.md

CPU seconds of the search alone (the least of seven runs, profile already parsed, evaluator
included; fewer once they took 10 s), peak resident memory of the row's process, and the CPU of
whole commands.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from partition_cases import CASES, DATA, Case

from trainwright.partitioning.downset_dp import solve

RUNS = 7
COMMANDS = (
    "--help",
    "plan bert32a100.json --json",
    "plan bert32a100.json --devices 2048 --memory 8GiB --microbatches 1920 --json",
)


def measure(case: Case) -> dict[str, object]:
    """Solve one row in this process."""
    profile, setting = case.load()
    outcomes = [solve(profile, setting)]
    while len(outcomes) < RUNS and sum(outcome.solver_s for outcome in outcomes) < 10:
        outcomes.append(solve(profile, setting))
    best = min(outcomes, key=lambda outcome: outcome.solver_s)
    return {
        "status": best.status.value,
        "time_per_sample": best.time_per_sample_s,
        "seconds": best.solver_s,
        "slowest_s": max(outcome.solver_s for outcome in outcomes),
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "counters": dict(best.counters),
    }


def row(case: Case, found: dict[str, object]) -> str:
    """One line of the table."""
    original, seconds, counters = case.original_s, found["seconds"], found["counters"]
    time = found["time_per_sample"]
    cells = (
        case.name,
        f"{case.num_microbatches:,}",
        f"{counters['downsets']:,}",
        found["status"],
        "-" if time is None else f"{time:.10g}",
        "-" if original is None else f"{original:.3g}",
        f"{case.target_s:g}",
        f"{seconds:.4f}",
        "-" if original is None else f"{original / seconds:,.0f}",
        f"{found['rss_mib']:.0f}",
        str(counters["passes"]),
    )
    return "| " + " | ".join(cells) + " |"


def command_seconds(arguments: str) -> float:
    """CPU seconds of a whole command, interpreter included: the least of seven runs."""
    best = float("inf")
    command = [str(Path(sys.executable).with_name("trainwright")), *arguments.split()]
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=DATA / "profiles", stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def main() -> None:
    if len(sys.argv) == 2:
        print(json.dumps(measure(CASES[int(sys.argv[1])])))
        return
    print(
        "| instance | N | downsets | status | time per sample | original CPU s | target s |", end=""
    )
    print(" CPU s | ratio | peak MiB | passes |")
    print("|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|")
    for i, case in enumerate(CASES):
        command = [sys.executable, __file__, str(i)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
        print(row(case, json.loads(done.stdout)), flush=True)
    print("\n| command | CPU s |\n|---|--:|")
    for arguments in COMMANDS:
        print(f"| `trainwright {arguments}` | {command_seconds(arguments):.2f} |")


if __name__ == "__main__":
    main()
