"""Does a schedule file train the same model? Run it on PyTorch, one process per rank, and compare.

The files themselves are executed by PyTorch's own runtime over gloo on the CPU of this machine,
with a tiny transformer in as many stages; every gradient and the loss of each step are compared
with the same model in one piece. Most of the time goes into importing PyTorch, so runs share
processes.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np

from trainwright.documents.verification import GradientCheck, KeptBytes
from trainwright.errors import InvalidInput, MissingExtra, UnsupportedFeature
from trainwright.lab.token_replay import LOSS_LIMIT, Stage, plain_stages, whole_model
from trainwright.plans.lowered import LoweredAction, LoweredSchedule
from trainwright.plans.schedule import Placement

# Schedule files broken on purpose: a check that passes them checks nothing
# -------------------------------------------------------------------------

_MICROBATCH = re.compile(r"(?<=[A-Z])\d+")
_SWAPPED = {"0": "1", "1": "0"}


def without_gradient_reduction(csv: str) -> str:
    """A lowered file less its REDUCE_GRAD cells: gradients are m times too large, losses right."""
    lines = ([cell for cell in line.split(",") if "REDUCE_GRAD" not in cell] for line in _rows(csv))
    return "".join(",".join(cells) + "\n" for cells in lines)


def with_swapped_microbatches(csv: str) -> str:
    """Microbatches 0 and 1 change names everywhere: the last stage meets them in the wrong order.

    The file is as consistent as before, but PyTorch looks losses up by the order of its forwards.
    """
    return _MICROBATCH.sub(lambda found: _SWAPPED.get(found[0], found[0]), csv)


def with_exchanged_messages(csv: str) -> str:
    """A lowered file in which one rank takes two messages in the wrong order.

    Where no rank takes two, the first activation that went to the host does not come back.
    """
    rows = [line.split(",") for line in _rows(csv)]
    for cells in rows:
        for kind in ("RECV_F", "RECV_B"):
            found = [at for at, cell in enumerate(cells) if kind in cell]
            if len(found) > 1:
                one, other = found[:2]
                cells[one], cells[other] = cells[other], cells[one]
                return "".join(",".join(each) + "\n" for each in rows)
    left = [[cell for cell in cells if not re.fullmatch(r"\d+L0", cell)] for cells in rows]
    return "".join(",".join(cells) + "\n" for cells in left)


def _rows(csv: str) -> list[str]:
    return csv.splitlines()


# Lowered orders as text, for the runtime of this program's own
# -------------------------------------------------------------

OWN_RUNTIME = "own_runtime"


def format_orders(lowered: LoweredSchedule) -> str:
    """A line per rank, with steps as `compute_comms` writes them; pairs run in turn."""
    orders = map(lowered.order, range(lowered.num_ranks))
    return "".join(",".join(map(str, order)) + "\n" for order in orders)


def parse_orders(text: str, order: RunOrder) -> LoweredSchedule:
    """What `format_orders` wrote, of the sizes of a run."""
    rows = [[LoweredAction.parse(cell) for cell in line.split(",") if cell] for line in _rows(text)]
    return LoweredSchedule(
        placement=Placement(
            rank_of_stage=order.rank_of_stage,
            num_ranks=order.num_ranks,
            num_pipelines=order.num_pipelines,
        ),
        num_microbatches=order.num_microbatches,
        actions=np.array([step for row in rows for step in row], np.int32),
        rank_offsets=np.cumsum([0, *map(len, rows)]),
        num_slices=order.num_slices,
        head_barriers=order.head_barriers,
    )


# Child processes that never outlive the block they were started in
# -----------------------------------------------------------------


@contextmanager
def started(
    module: str, arguments: Sequence[Sequence[str]], logs: Sequence[Path]
) -> Iterator[tuple[subprocess.Popen[bytes], ...]]:
    """Run `python -m module` once per entry of `arguments`; all are dead when the block ends.

    Each holds the other end of a pipe as its input, so that it can tell when this process is gone
    without a chance to clean up. They do not hear Ctrl-C: that is this process's to handle.
    """
    with ExitStack() as cleanup:
        children = []
        for own, log in zip(arguments, logs, strict=True):
            output = cleanup.enter_context(log.open("wb"))
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *own],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | _quiet_environment(),
                start_new_session=True,
            )
            cleanup.callback(_end, child)
            children.append(child)
        yield tuple(children)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    assert child.stdin is not None
    child.stdin.close()


def _quiet_environment() -> dict[str, str]:
    """One thread each, no accelerator, and no network beyond this machine."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    return {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": loopback,
    }


# How parent and workers talk: files in one temporary folder
# ----------------------------------------------------------
# `job.json` says what to run; each rank keeps the action it is at in `at.RANK`, and leaves one
# `RUN.RANK.json` per run it finished, or one `failed.RANK.json`. Files that are read by another
# process appear whole.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """One run: a schedule file, and what it cannot say; `stages` are those of `token_replay`.

    Process r of replicas × ranks is pipeline rank r mod ranks of replica r // ranks. The first
    `num_replicas` run alike, then one for each of `beside`: its file, microbatches and stages.
    """

    csv_name: str
    form: str
    num_microbatches: int
    rank_of_stage: tuple[int, ...]
    stages: tuple[Stage, ...]
    num_replicas: int = 1
    num_pipelines: int = 1
    num_slices: int = 1
    head_barriers: int = 0
    beside: tuple[tuple[str, int, tuple[Stage, ...]], ...] = ()

    @property
    def num_ranks(self) -> int:
        """Ranks of one pipeline."""
        return max(self.rank_of_stage) + 1

    @property
    def counts(self) -> tuple[int, ...]:
        """Microbatches of every replica, each of all its slices."""
        own = self.num_microbatches // self.num_slices
        return (own,) * self.num_replicas + tuple(count for _, count, _ in self.beside)

    def of_replica(self, replica: int) -> RunOrder:
        """What a replica runs."""
        if replica < self.num_replicas:
            return self
        name, count, stages = self.beside[replica - self.num_replicas]
        return replace(self, csv_name=name, num_microbatches=count, stages=stages)


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

    def write_job(self, job: Job, csv_texts: Mapping[str, str]) -> None:
        """Write the job and its schedule files, by their names."""
        for name, text in csv_texts.items():
            (self.path / name).write_text(text, encoding="utf-8")
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
                    "beside": tuple(
                        (name, count, tuple(map(tuple, stages)))
                        for name, count, stages in run.get("beside", ())
                    ),
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


# Does a schedule file train the same model? Run it on PyTorch, one process per rank, and compare
# -----------------------------------------------------------------------------------------------

MOST_RANKS = 4
STALL_TIMEOUT_S = 60.0
IMPORT_TIMEOUT_S = 300.0  # on a busy machine with a cold disk

_WORKER = "trainwright.lab.gloo_worker"
_POLL_S = 0.05
_GRACE_S = 0.5
_LONGEST_PROBLEM = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """A schedule file: its text, its form ("compute_only" or "compute_comms"), and for whom.

    A file of the form "own_runtime" is run without PyTorch's (`gloo_steps`), and may have
    slices, copies on the host, a cut head and two copies of the model. `stages` says what each
    stage of one copy holds (see `token_replay`), a block where it is left out. So many replicas of
    the pipeline run side by side, on data of their own, then those of `beside`, one each: with a
    file, microbatches and stages of their own, and none of what only our own runtime runs.
    """

    csv: str
    form: str
    placement: Placement
    num_microbatches: int
    stages: tuple[Stage, ...] = ()
    num_replicas: int = 1
    num_slices: int = 1
    head_barriers: int = 0
    beside: tuple[tuple[str, int, tuple[Stage, ...]], ...] = ()

    @property
    def num_processes(self) -> int:
        """Ranks of all replicas."""
        return self.placement.num_ranks * (self.num_replicas + len(self.beside))


def check_gradients(
    runs: Sequence[PipelineRun], *, num_steps: int = 2, stall_timeout_s: float = STALL_TIMEOUT_S
) -> tuple[GradientCheck, ...]:
    """Execute each run and compare with the unpartitioned model, in order.

    A run that fails, or in which no rank moves for `stall_timeout_s`, is reported as such and the
    next one starts afresh. Raises MissingExtra without PyTorch, UnsupportedFeature for more than 4
    ranks or a PyTorch without the runtime.
    """
    for run in runs:
        if run.num_processes > MOST_RANKS:
            raise UnsupportedFeature(
                f"at most {MOST_RANKS} ranks are run for real, got {run.num_processes}",
                alternative=f"check the same family and placement on {MOST_RANKS} ranks",
            )
    if num_steps < 1:
        raise InvalidInput.of("num_steps", f"must be >= 1, got {num_steps}")
    require_pytorch()
    results: list[GradientCheck] = []
    for _, group in groupby(runs, key=lambda run: run.num_processes):
        waiting = list(group)
        while waiting:
            done = _run_group(waiting, num_steps, stall_timeout_s)
            results += done
            del waiting[: len(done)]
    return tuple(results)


def require_pytorch() -> None:
    """Raise MissingExtra where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("running a schedule for real needs PyTorch", extra="torch")


def _run_group(
    runs: Sequence[PipelineRun], num_steps: int, stall_timeout_s: float
) -> list[GradientCheck]:
    """Results up to and including the first failure, at least one."""
    job = Job(
        num_processes=runs[0].num_processes,
        num_steps=num_steps,
        runs=tuple(
            RunOrder(
                csv_name=f"{index}.csv",
                form=run.form,
                num_microbatches=run.num_microbatches,
                rank_of_stage=run.placement.rank_of_stage,
                stages=whole_model(run.stages or plain_stages(run.placement)),
                num_replicas=run.num_replicas,
                num_pipelines=run.placement.num_pipelines,
                num_slices=run.num_slices,
                head_barriers=run.head_barriers,
                beside=tuple(
                    (f"{index}.{number}.csv", count, whole_model(stages))
                    for number, (_, count, stages) in enumerate(run.beside)
                ),
            )
            for index, run in enumerate(runs)
        ),
    )
    texts: dict[str, str] = {}
    for order, run in zip(job.runs, runs, strict=True):
        texts[order.csv_name] = run.csv
        named = zip(order.beside, run.beside, strict=True)
        texts |= {name: text for (name, *_), (text, *_) in named}
    with tempfile.TemporaryDirectory(prefix="trainwright-", ignore_cleanup_errors=True) as name:
        folder = RunFolder(Path(name))
        folder.write_job(job, texts)
        ranks = range(job.num_processes)
        arguments = [(name, str(rank)) for rank in ranks]
        with started(_WORKER, arguments, [folder.log_path(rank) for rank in ranks]) as children:
            problem = _wait(children, folder, stall_timeout_s)
        return list(_collect(folder, job, problem))


def _wait(
    children: Sequence[Popen[bytes]], folder: RunFolder, stall_timeout_s: float
) -> str | None:
    """Until all are done, one has failed or none moves; returns what went wrong."""
    seen, moved_s = None, time.monotonic()
    while True:
        codes = [child.poll() for child in children]
        if any(codes):
            time.sleep(_GRACE_S)  # others may be about to say why they failed
            return _first_failure(folder, codes)
        if all(code == 0 for code in codes):
            return None
        actions = [folder.read_action(rank) for rank in range(len(children))]
        now = (actions, codes, folder.count_reports())
        if now != seen:
            seen, moved_s = now, time.monotonic()
        patience_s = stall_timeout_s if all(actions) else IMPORT_TIMEOUT_S
        if time.monotonic() - moved_s > patience_s:
            return f"no rank moved for {patience_s:g} s: {_whereabouts(folder, codes)}"
        time.sleep(_POLL_S)


def _first_failure(folder: RunFolder, codes: Sequence[int | None]) -> str:
    """What the rank that failed first says; the others fail because it is gone."""
    failures: list[tuple[RankFailure, int]] = []
    for rank in range(len(codes)):
        failure = folder.read_failure(rank)
        if failure is not None:
            failures.append((failure, rank))
    if not failures:
        rank, code = next((rank, code) for rank, code in enumerate(codes) if code)
        lines = folder.log_path(rank).read_text("utf-8", "replace").strip().splitlines()
        return f"rank {rank} ended with status {code}: {lines[-1] if lines else 'no output'}"
    failure, rank = min(failures, key=lambda entry: entry[0].time_s)
    if failure.unsupported:
        raise UnsupportedFeature(failure.problem.removeprefix("UnsupportedFeature: "))
    at = folder.read_action(rank)
    said = " ".join(failure.problem.split())[:_LONGEST_PROBLEM]
    return f"rank {rank} failed{f' at {at}' if at else ''}: {said}"


def _whereabouts(folder: RunFolder, codes: Sequence[int | None]) -> str:
    places = (
        "done" if code == 0 else f"at {folder.read_action(rank) or 'the import of PyTorch'}"
        for rank, code in enumerate(codes)
    )
    return ", ".join(f"rank {rank} {place}" for rank, place in enumerate(places))


def _collect(folder: RunFolder, job: Job, problem: str | None) -> Iterator[GradientCheck]:
    for run, order in enumerate(job.runs):
        reports = [folder.read_report(run, rank) for rank in range(job.num_processes)]
        found = [report for report in reports if report is not None]
        if len(found) < job.num_processes:
            assert problem is not None, "a rank that ends well leaves its reports"
            yield _failed(job, order, problem)
            return
        yield _compared(job, order, found)


def _failed(job: Job, order: RunOrder, problem: str) -> GradientCheck:
    return GradientCheck(
        passed=False,
        form=order.form,
        num_ranks=order.num_ranks,
        num_replicas=len(order.counts),
        num_stages=len(order.rank_of_stage),
        num_microbatches=order.num_microbatches,
        num_microbatches_beside=tuple(count for _, count, _ in order.beside),
        num_steps=job.num_steps,
        loss_limit=LOSS_LIMIT,
        problem=problem,
        torch_version=importlib.metadata.version("torch"),
    )


def worst_of(reports: Sequence[RankReport]) -> RankReport:
    """The report of the gradient nearest to its limit."""
    return max(reports, key=lambda report: report.error / report.limit)


def _compared(job: Job, order: RunOrder, reports: Sequence[RankReport]) -> GradientCheck:
    worst = worst_of(reports)
    loss_error = max(report.loss_error for report in reports if report.loss_error is not None)
    if not math.isfinite(worst.error) or not math.isfinite(loss_error):
        return _failed(job, order, f"{worst.parameter} or the loss is not finite")
    return GradientCheck(
        passed=worst.error <= worst.limit and loss_error <= LOSS_LIMIT,
        form=order.form,
        num_ranks=order.num_ranks,
        num_replicas=len(order.counts),
        num_stages=len(order.rank_of_stage),
        num_microbatches=order.num_microbatches,
        num_microbatches_beside=tuple(count for _, count, _ in order.beside),
        num_steps=job.num_steps,
        max_error=worst.error,
        gradient_limit=worst.limit,
        worst_parameter=worst.parameter,
        loss_error=loss_error,
        loss_limit=LOSS_LIMIT,
        torch_version=worst.torch_version,
        kept=tuple(report.kept for report in reports[: order.num_ranks]),
    )
