"""Level 2 of `verify`: the schedule files run on PyTorch, one process per rank, over gloo.

At most four processes run. A pipeline of more ranks is folded: the same family and placement on
four, or a search repeated there, with stages picked from the whole plan. Where the pipeline leaves
processes free and the plan has replicas, they run side by side on data of their own, and their
gradients are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.api.schedule_fold import fewer_microbatches, fold, is_searched
from trainwright.api.verify_orders import left_out
from trainwright.api.verify_replay import kept_check
from trainwright.api.verify_subject import Pipeline
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.pytorch_csv import CsvForm, format_compute_comms, format_compute_only
from trainwright.measuring.gloo_check import MOST_RANKS, PipelineRun, check_gradients
from trainwright.measuring.negative_controls import (
    with_swapped_microbatches,
    without_gradient_reduction,
)
from trainwright.measuring.tiny_layers import fewer_layers, spread
from trainwright.plan.results.schedule import ScheduleResult
from trainwright.plan.results.verification import Check, Control, Outcome
from trainwright.plan.schedule import Schedule
from trainwright.scheduling.lower import lower
from trainwright.scheduling.pytorch_rules import as_pytorch_runs

if TYPE_CHECKING:
    from trainwright.api.verify_subject import Replicas, Verifiable
    from trainwright.measuring.tiny_layers import Stage
    from trainwright.plan.lowered import LoweredSchedule
    from trainwright.plan.results.gradient_check import GradientCheck
MOST_MICROBATCHES: Final = 32  # of a pipeline that is run as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """A schedule that fits this machine; `label` says how it follows from the whole one."""

    schedule: Schedule
    lowered: LoweredSchedule
    stages: tuple[Stage, ...]
    num_replicas: int
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFindings:
    """What level 2 found."""

    checks: tuple[Check, ...]
    runs: tuple[GradientCheck, ...] = ()
    controls: tuple[Control, ...] = ()


def run_checks(
    document: Verifiable, subject: Pipeline | Replicas, *, self_test: bool
) -> RunFindings:
    """Run both forms of the schedule file, and with `self_test` two files broken on purpose.

    Raises MissingExtra without PyTorch.
    """
    try:
        small = small_of(document, subject)
        runs = _runs(small)
    except UnsupportedFeature as error:
        return RunFindings(checks=(left_out(2, "run", str(error)),))
    controls = _controls(runs) if self_test and small.schedule.num_microbatches > 1 else {}
    found = check_gradients([*runs, *controls.values()])
    own = found[: len(runs)]
    return RunFindings(
        checks=tuple(_check(each, small) for each in own) + _kept_checks(own),
        runs=own,
        controls=tuple(
            Control(
                level=2,
                name=name,
                caught=not each.passed,
                said=each.problem or f"{each.worst_parameter} is {each.max_error:.1e} off",
            )
            for name, each in zip(controls, found[len(runs) :], strict=True)
        ),
    )


def small_of(document: Verifiable, subject: Pipeline | Replicas) -> Small:
    """What is run of a subject; raises UnsupportedFeature where nothing stands for it."""
    if isinstance(subject, Pipeline):
        (schedule, lowered), label = _small_schedule(document, subject)
    else:
        schedule, label = _one_f_one_b(subject)
        lowered = lower(schedule)
    stages = fewer_layers(spread(subject.stages, schedule.placement.num_stages))
    if sum(map(len, stages)) < sum(map(len, subject.stages)):
        label = "; ".join(filter(None, (label, f"{sum(map(len, stages))} layers")))
    free = MOST_RANKS // schedule.num_ranks
    return Small(
        schedule=schedule,
        lowered=lowered,
        stages=stages,
        num_replicas=min(subject.data_parallel, free),
        label=label,
    )


def _small_schedule(
    document: Verifiable, subject: Pipeline
) -> tuple[tuple[Schedule, LoweredSchedule], str]:
    full = subject.timeline.schedule
    if full.num_ranks <= MOST_RANKS and full.num_microbatches <= MOST_MICROBATCHES:
        return subject.runnable(), ""
    ranks = min(full.num_ranks, MOST_RANKS)
    if isinstance(document, ScheduleResult):
        folded = fold(document, subject.timeline, ranks=ranks).schedule
        how = "searched again" if is_searched(document) else "folded"
    else:
        folded, how = _folded_family(subject, ranks), "folded"
    before = f"{full.num_ranks} ranks x {full.num_microbatches} microbatches"
    schedule = as_pytorch_runs(folded)
    return (schedule, lower(schedule)), f"{how} from {before}"


def _folded_family(subject: Pipeline, ranks: int) -> Schedule:
    from trainwright.pricing.pipeline_run import PipelineShape, PipelineTimes, schedule_of

    full = subject.timeline.schedule
    chunks = full.placement.num_stages // full.num_ranks
    shape = PipelineShape(
        family=subject.schedule,
        num_ranks=ranks,
        num_microbatches=fewer_microbatches(full.num_microbatches, ranks),
        virtual_stages=chunks,
    )
    even = np.ones(ranks * chunks)
    times = PipelineTimes(
        forward_s=even, input_grad_s=even, weight_grad_s=even, transfer_s=np.zeros(len(even) - 1)
    )
    try:
        return schedule_of(shape, times)
    except InvalidInput as error:
        raise UnsupportedFeature(
            f"{subject.schedule} has no such schedule on {ranks} ranks: {error}"
        ) from error


def _one_f_one_b(subject: Replicas) -> tuple[Schedule, str]:
    """Stages of a profile's plan, a rank each."""
    from trainwright.scheduling.families import FamilyRequest, generate

    count = len(subject.replicated)
    ranks = min(count, MOST_RANKS)
    shared = subject.num_microbatches // max(1, max(s.replicas for s in subject.replicated))
    microbatches = fewer_microbatches(max(1, shared), ranks)
    request = FamilyRequest(num_ranks=ranks, num_microbatches=microbatches)
    schedule = generate("1f1b", request)
    assert isinstance(schedule, Schedule), "without a limit there is always an order"
    label = f"folded from {count} stages" if count > ranks else ""
    if microbatches < subject.num_microbatches:
        more = f"{microbatches} of {subject.num_microbatches} microbatches"
        label = "; ".join(filter(None, (label, more)))
    return schedule, label


def _runs(small: Small) -> tuple[PipelineRun, ...]:
    texts = {
        CsvForm.COMPUTE_ONLY: format_compute_only(small.schedule),
        CsvForm.COMPUTE_COMMS: format_compute_comms(small.lowered),
    }
    return tuple(
        PipelineRun(
            csv=text,
            form=form.value,
            placement=small.schedule.placement,
            num_microbatches=small.schedule.num_microbatches,
            stages=small.stages,
            num_replicas=small.num_replicas,
        )
        for form, text in texts.items()
    )


def _controls(runs: tuple[PipelineRun, ...]) -> dict[str, PipelineRun]:
    plain, lowered = runs
    return {
        "gradients not reduced": replace(lowered, csv=without_gradient_reduction(lowered.csv)),
        "microbatches swapped": replace(plain, csv=with_swapped_microbatches(plain.csv)),
    }


def _check(run: GradientCheck, small: Small) -> Check:
    replicas = f" ({run.num_ranks} ranks x {run.num_replicas} replicas)"
    size = f"gloo x{run.num_ranks * run.num_replicas}{replicas if run.num_replicas > 1 else ''}"
    labelled = f", {small.label}" if small.label else ""
    name = f"run {run.form}"
    if run.problem is not None:
        return Check(
            level=2,
            name=name,
            outcome=Outcome.FAIL,
            detail=f"{size}{labelled}",
            where=(run.problem,),
        )
    assert (
        run.max_error is not None and run.gradient_limit is not None and run.loss_error is not None
    )
    detail = (
        f"{size}, {run.num_steps} steps: max error {run.max_error:.1e} (limit "
        f"{run.gradient_limit:.1e}), loss {run.loss_error:.1e}{labelled}"
    )
    where = () if run.passed else (f"{run.worst_parameter}: gradient off by {run.max_error:.1e}",)
    outcome = Outcome.PASS if run.passed else Outcome.FAIL
    return Check(level=2, name=name, outcome=outcome, detail=detail, where=where)


def _kept_checks(runs: tuple[GradientCheck, ...]) -> tuple[Check, ...]:
    kept = tuple(each for run in runs for each in run.kept)
    return (kept_check(2, kept),) if kept else ()
