"""Does a schedule file train the same model? Run it on PyTorch, one process per rank, and compare.

The files themselves are executed by PyTorch's own runtime over gloo on the CPU of this machine,
with a tiny transformer in as many stages; every gradient and the loss of each step are compared
with the same model in one piece. Most of the time goes into importing PyTorch, so runs share
processes.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.errors import InvalidInput, MissingExtra, UnsupportedFeature
from trainwright.measuring.children import started
from trainwright.measuring.run_folder import Job, RankFailure, RankReport, RunFolder, RunOrder
from trainwright.measuring.tiny_layers import BLOCK, Stage, whole_model
from trainwright.measuring.tolerance import LOSS_LIMIT
from trainwright.plan.placement import Placement
from trainwright.plan.results.gradient_check import GradientCheck

if TYPE_CHECKING:
    from subprocess import Popen

MOST_RANKS = 4
STALL_TIMEOUT_S = 60.0
IMPORT_TIMEOUT_S = 300.0  # on a busy machine with a cold disk

_WORKER = "trainwright.measuring.gloo_worker"
_POLL_S = 0.05
_GRACE_S = 0.5
_LONGEST_PROBLEM = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """A schedule file: its text, its form ("compute_only" or "compute_comms"), and for whom.

    `stages` says what each holds (see `tiny_layers`), a block where it is left out. So many
    replicas of the pipeline run side by side, on data of their own.
    """

    csv: str
    form: str
    placement: Placement
    num_microbatches: int
    stages: tuple[Stage, ...] = ()
    num_replicas: int = 1

    @property
    def num_processes(self) -> int:
        """Ranks of all replicas."""
        return self.placement.num_ranks * self.num_replicas


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
                stages=whole_model(run.stages or ((BLOCK,),) * run.placement.num_stages),
                num_replicas=run.num_replicas,
            )
            for index, run in enumerate(runs)
        ),
    )
    with tempfile.TemporaryDirectory(prefix="trainwright-", ignore_cleanup_errors=True) as name:
        folder = RunFolder(Path(name))
        folder.write_job(job, [run.csv for run in runs])
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
        num_replicas=order.num_replicas,
        num_stages=len(order.rank_of_stage),
        num_microbatches=order.num_microbatches,
        num_steps=job.num_steps,
        loss_limit=LOSS_LIMIT,
        problem=problem,
        torch_version=importlib.metadata.version("torch"),
    )


def _compared(job: Job, order: RunOrder, reports: Sequence[RankReport]) -> GradientCheck:
    worst = max(reports, key=lambda report: report.error / report.limit)
    loss_error = max(report.loss_error for report in reports if report.loss_error is not None)
    if not math.isfinite(worst.error) or not math.isfinite(loss_error):
        return _failed(job, order, f"{worst.parameter} or the loss is not finite")
    return GradientCheck(
        passed=worst.error <= worst.limit and loss_error <= LOSS_LIMIT,
        form=order.form,
        num_ranks=order.num_ranks,
        num_replicas=order.num_replicas,
        num_stages=len(order.rank_of_stage),
        num_microbatches=order.num_microbatches,
        num_steps=job.num_steps,
        max_error=worst.error,
        gradient_limit=worst.limit,
        worst_parameter=worst.parameter,
        loss_error=loss_error,
        loss_limit=LOSS_LIMIT,
        torch_version=worst.torch_version,
        kept=tuple(report.kept for report in reports[: order.num_ranks]),
    )
