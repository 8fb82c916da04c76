"""Generated wide graphs: how many are proved, with what gap, in what time and memory.

    python benchmarks/wide.py found.jsonl > table.md            # 20 seeds, every row: hours
    python benchmarks/wide.py found.jsonl 5 32:1 32:1,2 256:1   # 5 seeds of some rows

A row is a number of devices and the tensor degrees; from three degrees on parameters and boundary
bytes are drawn per option. Three memory limits per seed. Every solve runs in a process of its own
and stops after LIMIT_S wall seconds. Each is kept as a line of the file; what is there already is
not run again.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

from wide_graphs import WideSpec, wide_profile, wide_setting

from trainwright.execution import Budget
from trainwright.partitioning.downset_dp import solve

ROWS = tuple(f"{k}:{degrees}" for k in (32, 256) for degrees in ("1", "1,2", "1,2,4", "1,2,4,8"))
TIGHTNESS = (0.3, 0.5, 0.7)
LIMIT_S = 60.0


def run(row: str, seed: int, tightness: float) -> dict[str, float | str]:
    """Solve one instance in this process."""
    num_devices, degrees = row.split(":")
    offered = tuple(int(t) for t in degrees.split(","))
    profile = wide_profile(WideSpec(seed=seed, degrees=offered, varied=len(offered) > 2))
    setting = wide_setting(profile, num_devices=int(num_devices), tightness=tightness)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = solve(profile, setting, budget=Budget(time_limit_s=LIMIT_S))
    return {
        "status": found.status.value,
        "gap": (found.status.value != "infeasible") * (1.0 if found.gap is None else found.gap),
        "seconds": found.solver_s,
        "downsets": found.counters["downsets"],
        "passes": found.counters["passes"],
        "mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def summary(row: str, found: list[dict[str, float | str]]) -> str:
    """One line of the table."""
    num_devices, degrees = row.split(":")
    seconds = sorted(float(one["seconds"]) for one in found)
    gaps = sorted(float(one["gap"]) for one in found)
    proved = sum(one["status"] in ("optimal", "infeasible") for one in found)
    cells = (
        num_devices,
        degrees,
        str(len(found)),
        f"{100 * proved / len(found):.0f}%",
        *(f"{100 * gap:.2f}%" for gap in (median(gaps), gaps[-1 - len(gaps) // 10], gaps[-1])),
        f"{min(one['downsets'] for one in found):,} - {max(one['downsets'] for one in found):,}",
        f"{seconds[0]:.2f}",
        f"{median(seconds):.2f}",
        f"{seconds[-1]:.2f}",
        f"{max(float(one['mib']) for one in found):.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def settled(path: Path, row: str, seed: int, tightness: float) -> dict[str, float | str]:
    """The instance's line in the file, solved in a new process where it is missing."""
    case = [row, seed, tightness]
    if path.exists():
        for line in path.read_text().splitlines():
            kept = json.loads(line)
            if kept["case"] == case:
                return kept["found"]
    command = [sys.executable, __file__, "one", row, str(seed), str(tightness)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    with path.open("a") as file:
        file.write(json.dumps({"case": case, "found": found}) + "\n")
    return found


def main() -> None:
    if sys.argv[1] == "one":
        print(json.dumps(run(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))
        return
    path = Path(sys.argv[1])
    num_seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    print("| K | degrees | solved | proved | gap: median | 90% | largest | downsets |", end="")
    print(" least CPU s | median | most | MiB over the interpreter |")
    print("|--:|---|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|")
    for row in sys.argv[3:] or ROWS:
        cases = [(seed, tightness) for seed in range(num_seeds) for tightness in TIGHTNESS]
        print(summary(row, [settled(path, row, *case) for case in cases]), flush=True)


if __name__ == "__main__":
    main()
