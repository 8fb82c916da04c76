"""How parent and workers talk: files in one temporary folder.

`job.json` says what to run; each rank keeps the action it is at in `at.RANK`, and leaves one
`RUN.RANK.json` per run it finished, or one `failed.RANK.json`. Files that are read by another
process appear whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainwright.measuring.tiny_layers import Stage
from trainwright.plan.results.gradient_check import KeptBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """One run: a schedule file in the folder, and what it cannot say; `stages` are `tiny_layers`.

    Process r of `num_replicas` × ranks is pipeline rank r mod ranks of replica r // ranks.
    """

    csv_name: str
    form: str
    num_microbatches: int
    rank_of_stage: tuple[int, ...]
    stages: tuple[Stage, ...]
    num_replicas: int = 1

    @property
    def num_ranks(self) -> int:
        """Ranks of one pipeline."""
        return max(self.rank_of_stage) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Runs for one group of processes, one after the other."""

    num_processes: int
    num_steps: int
    runs: tuple[RunOrder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one rank found: the gradient nearest to its limit, and its loss error if it has one.

    `kept` is what saved tensors held, as `KeptBytes`.
    """

    error: float
    limit: float
    parameter: str
    loss_error: float | None
    torch_version: str
    kept: KeptBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """Why a rank stopped, when by the system's clock, and whether this PyTorch cannot do it."""

    run: int
    problem: str
    time_s: float
    unsupported: bool = False


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder, by its files."""

    path: Path

    def write_job(self, job: Job, csv_texts: Sequence[str]) -> None:
        """Write the job and its schedule files."""
        for run, text in zip(job.runs, csv_texts, strict=True):
            (self.path / run.csv_name).write_text(text, encoding="utf-8")
        self._write("job.json", asdict(job))

    def read_job(self) -> Job:
        """Read the job."""
        content = json.loads((self.path / "job.json").read_text(encoding="utf-8"))
        runs = tuple(
            RunOrder(
                **run
                | {
                    "rank_of_stage": tuple(run["rank_of_stage"]),
                    "stages": tuple(map(tuple, run["stages"])),
                }
            )
            for run in content.pop("runs")
        )
        return Job(runs=runs, **content)

    def store(self, run: int) -> Path:
        """Where the processes of a run meet."""
        return self.path / f"store.{run}"

    def write_report(self, run: int, rank: int, report: RankReport) -> None:
        """Leave what a rank found."""
        self._write(f"{run}.{rank}.json", asdict(report))

    def read_report(self, run: int, rank: int) -> RankReport | None:
        """What a rank found, if it is that far."""
        content = self._read(f"{run}.{rank}.json")
        if content is None:
            return None
        return RankReport(**content | {"kept": KeptBytes(**content["kept"])})

    def count_reports(self) -> int:
        """Runs that ranks finished, over all ranks."""
        return sum(1 for _ in self.path.glob("[0-9]*.[0-9]*.json"))

    def write_failure(self, rank: int, failure: RankFailure) -> None:
        """Leave why a rank stopped."""
        self._write(f"failed.{rank}.json", asdict(failure))

    def read_failure(self, rank: int) -> RankFailure | None:
        """Why a rank stopped, if it did."""
        content = self._read(f"failed.{rank}.json")
        return None if content is None else RankFailure(**content)

    def log_path(self, rank: int) -> Path:
        """What a rank prints."""
        return self.path / f"{rank}.log"

    def action_path(self, rank: int) -> Path:
        """Which action a rank is at."""
        return self.path / f"at.{rank}"

    def read_action(self, rank: int) -> str:
        """Which action a rank is at; empty while PyTorch is imported."""
        path = self.action_path(rank)
        return path.read_text(encoding="ascii").strip() if path.exists() else ""

    def _write(self, name: str, content: dict[str, object]) -> None:
        unfinished = self.path / f".{name}"
        unfinished.write_text(json.dumps(content), encoding="utf-8")
        unfinished.replace(self.path / name)

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
