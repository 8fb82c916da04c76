"""What the ranks of a plan hold, from PyTorch itself: its program run here on fake tensors.

`rank_program.py` is started as a process of its own, because PyTorch remembers process groups. The
ranks that it runs are those of the pipeline; the others of a pipeline rank hold the same. Costs one
to five seconds a rank and no memory to speak of, whatever the size of the model.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainwright.documents.verification import Check, Outcome
from trainwright.errors import UnsupportedFeature
from trainwright.frameworks.dry_run import case_of, program_text
from trainwright.lab.gloo_check import require_pytorch
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.plans.job import Job

LEVEL: Final = 2
# Above the prediction by this share of it, a rank was promised memory that it does not have.
TOLERANCE: Final = 0.05
_SECONDS_A_RANK: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDryRun:
    """The peak of a pipeline rank as tensors hold it, and its classes at that moment."""

    name: str
    rank: int
    torch: str
    allocated_bytes: float
    static_bytes: float
    by_class: dict[str, float]
    cpu_s: float


def dry_runs(cases: Sequence[dict[str, Any]]) -> tuple[RankDryRun, ...]:
    """Every rank of cases that `frameworks.dry_run.case_of` made, in their order.

    Raises `MissingExtra` without PyTorch, `UnsupportedFeature` with PyTorch's own words where a
    case does not run.
    """
    require_pytorch()
    ranks = sum(len(case["ranks"]) for case in cases)
    with tempfile.TemporaryDirectory() as folder:
        program, case = Path(folder, "dry_run.py"), Path(folder, "case.json")
        program.write_text(program_text(), encoding="utf-8")
        case.write_text(json.dumps(list(cases)), encoding="utf-8")
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", str(program), str(case), "--fake"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS_A_RANK * ranks,
        )
    if ran.returncode:
        said = [line for line in ran.stderr.splitlines() if "Error" in line] or [ran.stderr[-300:]]
        raise UnsupportedFeature(f"PyTorch could not run this rank: {said[-1].strip()}")
    return tuple(RankDryRun(**json.loads(line)) for line in ran.stdout.splitlines())


def dry_run_check(job: Job, predicted_bytes: Sequence[float]) -> Check:
    """Hold the predicted peak of every rank, without what no tensor holds, against the dry run."""
    found = dry_runs([case_of(job)])
    fullest = max(found, key=lambda run: run.allocated_bytes)
    lines, exceeded = [], []
    for run, predicted in zip(found, predicted_bytes, strict=True):
        error = predicted / run.allocated_bytes - 1
        line = (
            f"rank {run.rank}: {format_bytes(run.allocated_bytes)} allocated, "
            f"{format_bytes(predicted)} predicted ({error:+.1%})"
        )
        lines.append(line)
        if run.allocated_bytes > predicted * (1 + TOLERANCE):
            exceeded.append(run.rank)
    detail = (
        f"PyTorch {fullest.torch} on fake tensors: rank {fullest.rank} is the fullest, "
        f"{format_bytes(fullest.allocated_bytes)}"
    )
    if exceeded:
        detail += f"; predicted more than {TOLERANCE:.0%} too low for ranks {exceeded}"
    return Check(
        level=LEVEL,
        name="memory of a dry run",
        outcome=Outcome.FAIL if exceeded else Outcome.PASS,
        detail=detail,
        where=tuple(lines),
    )
