"""Level 1 of `verify`: the whole schedule, unfolded, replayed on this machine.

Times are held against costs and needs without a simulator, every message is passed through queues
without names, memory is added up action by action. Where PyTorch is installed, the same actions run
with real autograd on small stages, and gradients and kept bytes are compared.
"""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainwright.documents.printing import counted
from trainwright.documents.schedule import ScheduleResult, ScheduleVerification
from trainwright.documents.schedule_methods import by_family, by_search
from trainwright.documents.verification import Check, Control, GradientCheck, KeptBytes, Outcome
from trainwright.errors import Fault, InvalidInput, UnsupportedFeature, how_to_install
from trainwright.execution import Budget
from trainwright.formats.schedule_json import (
    CsvForm,
    ScheduleSpec,
    format_compute_comms,
    format_compute_only,
)
from trainwright.frameworks.dry_run import case_of, program_text
from trainwright.lab import gloo_check, token_replay
from trainwright.lab.verify_orders import (
    Pipeline,
    Replicas,
    Verifiable,
    check,
    in_known_terms,
    left_out,
)
from trainwright.options.schedule import Method, ScheduleCase, SearchOptions
from trainwright.plans.job import Job
from trainwright.plans.lowered import LoweredSchedule, Timeline
from trainwright.plans.plan import DEFAULT_SCHEDULE
from trainwright.plans.schedule import ActionKind, Placement, Schedule, ScheduleCosts
from trainwright.scheduling.families import FAMILIES, FamilyRequest, generate
from trainwright.scheduling.lower import as_pytorch_runs, lower
from trainwright.scheduling.simulate import timeline_faults
from trainwright.step import pipeline
from trainwright.units import format_bytes, format_seconds

# The same kind of schedule on fewer ranks, where the machine at hand cannot run all of them
# ------------------------------------------------------------------------------------------
# A family is generated again, a search repeated, with the same placement. Chunks and proportions of
# times stay (medians over stages), the memory limit shrinks with the ranks; microbatches are at
# most 16, in whole rounds of the ranks where there are as many. What a real run of the folded
# schedule shows is about the family, or about what such a search finds, not about every rank of the
# full one.

_MOST_MICROBATCHES = 16
_EVALUATIONS = 2000  # of a search that is repeated: seconds


def fold(
    document: ScheduleResult, timeline: Timeline, *, ranks: int, microbatches: int | None = None
) -> Timeline:
    """The schedule of the document's family, or of another search, on `ranks` ranks.

    `microbatches` are at most 16 where left out. Raises UnsupportedFeature
    where the orders have no family to be rebuilt from.
    """
    request, full = document.request, timeline.schedule
    if request.method == Method.SIMULATE or request.group is not None:
        raise UnsupportedFeature(
            f"at most {ranks} ranks are run for real, got {full.num_ranks}, and these orders "
            "cannot be rebuilt for fewer",
            alternative=f"verify a schedule of {ranks} ranks, or a family by its name",
        )
    limit = request.max_activations
    case = replace(
        _median_case(timeline),
        ranks=ranks,
        microbatches=microbatches or fewer_microbatches(full.num_microbatches, ranks),
        virtual_stages=document.chunks_per_rank,
        max_activations=None if limit is None else math.ceil(limit * ranks / full.num_ranks),
    )
    if is_searched(document):
        options = SearchOptions(
            placement=_placement_name(timeline), seed=request.seed, evaluations=_EVALUATIONS
        )
        folded = by_search(case, options, method=Method.SEARCH, budget=Budget()).timeline
    else:
        folded = by_family(case, document.family, budget=Budget()).timeline
    if folded is None:
        problem = (
            f"{document.family} has no schedule on {ranks} ranks within the limit in proportion"
        )
        raise UnsupportedFeature(problem, alternative="verify it without the limit")
    return folded


def is_searched(document: ScheduleResult) -> bool:
    """Whether its orders have no family's name: they were searched for."""
    return document.request.method != Method.SIMULATE and document.family not in FAMILIES


def _placement_name(timeline: Timeline) -> str:
    placement = timeline.schedule.placement
    ranks, chunks = placement.num_ranks, placement.num_stages // placement.num_ranks
    if placement.is_v:
        return "v"
    if placement == Placement.loop(ranks, virtual_stages=chunks):
        return "loop"
    return "wave" if placement == Placement.wave(ranks, virtual_stages=chunks) else "any"


def _median_case(timeline: Timeline) -> ScheduleCase:
    costs = timeline.costs
    times = {kind: (float(np.median(costs.duration_s[kind])),) for kind in ActionKind}
    transfers = costs.forward_transfer_s
    spec = ScheduleSpec(
        forward_s=times[ActionKind.F],
        input_grad_s=times[ActionKind.I],
        weight_grad_s=times[ActionKind.W],
        backward_s=times[ActionKind.B],
        transfer_s=(float(np.median(transfers)),) if len(transfers) else (),
    )
    return ScheduleCase.of(spec)


def fewer_microbatches(count: int, ranks: int) -> int:
    """At most 16, in whole rounds of the ranks where there are as many."""
    fewer = min(count, _MOST_MICROBATCHES)
    return fewer - fewer % ranks if fewer >= ranks else fewer


# Does a schedule train the same model? Its files run for real, and so do files broken on purpose
# -----------------------------------------------------------------------------------------------
# The orders are written in both of PyTorch's forms and executed on this machine's CPU, one process
# per rank (`lab.gloo_check`); those that PyTorch has no actions for run in lowered form without its
# runtime (`lab.gloo_steps`). Beside them run two files that must fail: one without the reduction
# of gradients, one that mixes two microbatches up. A check that passes those would check nothing,
# so it counts as failed.


_NO_CONTROLS = "one microbatch leaves no sum of gradients to divide and no order to swap"


def verify_folded(document: ScheduleResult, timeline: Timeline) -> ScheduleVerification:
    """Run a schedule; one of more ranks than are run for real is first folded to fewer."""
    ranks = timeline.schedule.num_ranks
    if ranks <= gloo_check.MOST_RANKS:
        return verify(timeline)
    folded = fold(document, timeline, ranks=gloo_check.MOST_RANKS)
    full = f"{ranks} ranks, {timeline.schedule.num_microbatches} microbatches"
    if is_searched(document):
        full += ", searched again"
    return verify(folded, folded_from=full)


def verify(timeline: Timeline, *, folded_from: str | None = None) -> ScheduleVerification:
    """Run the orders of `timeline` and compare loss and gradients over two steps.

    Raises UnsupportedFeature for more than 4 ranks, MissingExtra without PyTorch.
    """
    runs = _runs_of(timeline.schedule, timeline.costs)
    controls = list(_controls(runs).values()) if _can_be_broken(timeline.schedule) else []
    checks = gloo_check.check_gradients([*runs, *controls])
    own, broken = checks[: len(runs)], checks[len(runs) :]
    return ScheduleVerification(
        passed=all(check.passed for check in own) and not any(check.passed for check in broken),
        runs=own,
        controls=broken,
        controls_left_out=None if controls else _NO_CONTROLS,
        folded_from=folded_from,
    )


# Level 1 of `verify`: the whole schedule, unfolded, replayed on this machine
# ---------------------------------------------------------------------------

MOST_STEPS: Final = 3_000_000  # about 15 s and 1 GB
MOST_VISITS: Final = 6_000  # of a stage by a microbatch, with autograd: about 20 s
_TOLERANCE: Final = 1e-9
NO_TORCH: Final = f"needs PyTorch: {how_to_install('torch')}"


def pipeline_checks(
    subject: Pipeline, lowered: LoweredSchedule
) -> tuple[tuple[Check, ...], tuple[KeptBytes, ...]]:
    """All checks of level 1, and what autograd kept on each rank."""
    checks = [_check_times(subject), _check_tokens(subject, lowered)]
    autograd, kept = _autograd_checks(subject, lowered)
    return (*checks, *autograd), kept


def _check_times(subject: Pipeline) -> Check:
    timeline = subject.timeline
    faults = timeline_faults(timeline)
    claimed_s, found_s = subject.makespan_s, timeline.makespan_s
    if claimed_s is not None and abs(claimed_s - found_s) > 1e-6 * found_s:
        fault = Fault("makespan_s", f"is {claimed_s!r} in the document, {found_s!r} unfolded")
        faults = (*faults, fault)
    actions = counted(timeline.schedule.num_actions, "action")
    detail = f"{actions}: durations, one at a time, every input, arrival and peak"
    return check(1, "times", detail, InvalidInput(faults) if faults else None)


def _check_tokens(subject: Pipeline, lowered: LoweredSchedule) -> Check:
    if len(lowered.actions) > MOST_STEPS:
        return left_out(1, "replay", f"more than {MOST_STEPS:,} steps are not replayed")
    try:
        found = token_replay.replay_tokens(lowered, subject.timeline.costs.memory)
    except InvalidInput as error:
        return check(1, "replay", "", error)
    faults = tuple(_memory_faults(subject, found))
    detail = (
        f"{counted(found.num_steps, 'step')}, {counted(found.num_messages, 'message')}; "
        "memory of every rank peaks as predicted"
    )
    return check(1, "replay", detail, InvalidInput(faults) if faults else None)


def _memory_faults(subject: Pipeline, found: token_replay.Replayed) -> Iterator[Fault]:
    for rank, peak in enumerate(found.peak_bytes):
        simulated = float(subject.timeline.peak_bytes[rank])
        claims = {"simulated": simulated}
        if subject.peak_bytes:
            claims["in the document"] = subject.peak_bytes[rank]
        for whose, claimed in claims.items():
            if abs(peak - claimed) > _TOLERANCE * max(1.0, abs(peak)):
                yield Fault(f"rank {rank}", f"peaks at {peak!r} bytes, {claimed!r} {whose}")
    for rank, claimed in enumerate(subject.peak_activations):
        if claimed != (held := found.peak_activations[rank]):
            yield Fault(f"peak_activations_per_rank[{rank}]", f"is {claimed}, replayed {held}")


def _autograd_checks(
    subject: Pipeline, lowered: LoweredSchedule
) -> tuple[tuple[Check, ...], tuple[KeptBytes, ...]]:
    names = ("gradients", "kept bytes")
    schedule = subject.timeline.schedule
    visits = schedule.placement.num_stages * schedule.num_microbatches
    if importlib.util.find_spec("torch") is None:
        return tuple(left_out(1, name, NO_TORCH) for name in names), ()
    if visits > MOST_VISITS:
        why = f"{visits:,} forwards; more than {MOST_VISITS:,} are not replayed with autograd"
        return tuple(left_out(1, name, why) for name in names), ()
    from trainwright.lab.autograd_replay import replay_autograd

    most = max(schedule.placement.num_stages, min(64, MOST_VISITS // schedule.num_microbatches))
    stages = token_replay.whole_model(token_replay.fewer_layers(subject.stages, most=most))
    try:
        found = replay_autograd(lowered, stages)
    except InvalidInput as error:
        return (check(1, names[0], "", error),), ()
    right = found.error <= found.limit and found.loss_error <= token_replay.LOSS_LIMIT
    layers = counted(sum(map(len, stages)), "layer")
    gradients = Check(
        level=1,
        name=names[0],
        outcome=Outcome.PASS if right else Outcome.FAIL,
        detail=(
            f"{counted(found.num_actions, 'action')} with autograd, {layers}: max error "
            f"{found.error:.1e} (limit {found.limit:.1e}), loss {found.loss_error:.1e}"
        ),
        where=() if right else (found.parameter,),
    )
    saving = _saving(found.kept_bytes, found.kept_without_recompute_bytes)
    return (gradients, kept_check(1, found.ranks, saving)), found.ranks


def _saving(kept: float, without: float) -> str:
    return "" if kept == without else f"; recomputation keeps {kept / without:.0%} of all"


def kept_check(level: int, ranks: tuple[KeptBytes, ...], more: str = "") -> Check:
    """Whether what saved tensors hold follows the predicted curve on every rank."""
    off = [
        f"rank {each.rank}: {each.largest_difference_bytes:,.0f} bytes off its curve, which peaks "
        f"at {each.predicted_peak_bytes:,.0f}"
        for each in ranks
        if each.largest_difference_bytes > 0
    ]
    peaks = [each.peak_bytes for each in ranks]
    actions = counted(sum(each.num_actions for each in ranks), "action")
    detail = (
        f"saved tensors follow the curve at {actions}, "
        f"peaks {min(peaks) / 1024:.0f} to {max(peaks) / 1024:.0f} KiB{more}"
    )
    return Check(
        level=level,
        name="kept bytes",
        outcome=Outcome.FAIL if off else Outcome.PASS,
        detail=detail,
        where=tuple(off),
    )


def replica_checks(subject: Replicas) -> tuple[Check, ...]:
    """1F1B over replicated stages: it gets to its end, holds what is claimed, takes that long."""
    stages, m = subject.replicated, subject.num_microbatches
    if 2 * m * len(stages) > MOST_STEPS:
        why = f"{2 * m * len(stages):,} actions; more than {MOST_STEPS:,} are not replayed"
        return (left_out(1, "replay", why),)
    try:
        found = token_replay.replay_replicas(stages, m)
    except InvalidInput as error:
        return (check(1, "replay", "", error),)
    faults = tuple(_replica_faults(subject, found.end_s, found.most_in_flight))
    batch_s = max(found.end_s)
    workers = counted(sum(stage.replicas for stage in stages), "worker")
    detail = (
        f"{counted(found.num_actions, 'action')} of {workers} in {counted(len(stages), 'stage')}: "
        f"a batch in {format_seconds(batch_s)}"
    )
    if subject.time_per_sample_s:
        detail += f", {batch_s / (m * subject.time_per_sample_s):.2f}x its steady state"
    return (check(1, "replay", detail, InvalidInput(faults) if faults else None),)


def _replica_faults(
    subject: Replicas, end_s: tuple[float, ...], most: tuple[int, ...]
) -> Iterator[Fault]:
    m = subject.num_microbatches
    for at, (claimed, held) in enumerate(zip(subject.in_flight, most, strict=True)):
        if min(claimed, -(-m // subject.replicated[at].replicas)) != held:
            yield Fault(f"stages[{at}]", f"holds {held} microbatches, {claimed} in the document")
    simulated = pipeline.one_f_one_b_ends_s(
        [
            pipeline.PipelineStage(
                forward_s=stage.forward_s,
                backward_s=stage.backward_s,
                in_flight=stage.in_flight,
                replicas=stage.replicas,
                feeds=tuple((target, 0.0) for target in stage.feeds),
            )
            for stage in subject.replicated
        ],
        num_microbatches=m,
    )
    for at, (own_s, other_s) in enumerate(zip(end_s, simulated, strict=True)):
        if abs(own_s - other_s) > _TOLERANCE * max(own_s, other_s):
            yield Fault(f"stages[{at}]", f"ends at {own_s!r} s, {other_s!r} s simulated")
    if subject.batch_s is not None and abs(max(end_s) - subject.batch_s) > 1e-6 * subject.batch_s:
        yield Fault("simulated_time_s", f"is {subject.batch_s!r} s less syncs, got {max(end_s)!r}")


# Level 2 of `verify`: the schedule files run on PyTorch, one process per rank, over gloo
# ---------------------------------------------------------------------------------------
# At most four processes run. A pipeline of more ranks is folded: the same family and placement on
# four, or a search repeated there, with stages picked from the whole plan. Where the pipeline
# leaves processes free and the plan has replicas, they run side by side on data of their own, and
# their gradients are averaged.
MOST_MICROBATCHES: Final = 32  # of a pipeline that is run as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """A schedule that fits this machine; `label` says how it follows from the whole one.

    `beside` are those of other chains of the plan, each of one replica.
    """

    schedule: Schedule
    lowered: LoweredSchedule
    stages: tuple[token_replay.Stage, ...]
    num_replicas: int
    label: str = ""
    beside: tuple[Small, ...] = ()


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
    controls = _controls(runs) if self_test and _can_be_broken(small.schedule) else {}
    found = gloo_check.check_gradients([*runs, *controls.values()])
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
    """What is run of a subject; raises UnsupportedFeature where nothing stands for it.

    Of a plan with several chains a replica of each runs, if there is room for all.
    """
    chains = subject.chains if isinstance(subject, Pipeline) else (subject,)
    first, *others = (_small_of(document, chain) for chain in chains)
    room = gloo_check.MOST_RANKS // first.schedule.num_ranks
    if len(chains) > room:
        raise UnsupportedFeature(
            f"at most {gloo_check.MOST_RANKS} ranks are run for real, and one replica of each of "
            f"the plan's {len(chains)} chains has {len(chains) * first.schedule.num_ranks}"
        )
    more = max(0, min(first.num_replicas, room - len(others)) - 1)
    told = [each.label for each in (first, *others)]
    if others:
        counts = " and ".join(str(each.schedule.num_microbatches) for each in (first, *others))
        told.append(f"chains of {counts} microbatches side by side")
    return replace(
        first,
        num_replicas=1 + more,
        beside=tuple(others),
        label="; ".join(dict.fromkeys(filter(None, told))),
    )


def _small_of(document: Verifiable, subject: Pipeline | Replicas) -> Small:
    if isinstance(subject, Pipeline):
        (schedule, lowered), label = _small_schedule(document, subject)
    else:
        schedule, label = _one_f_one_b(subject)
        lowered = lower(schedule)
    length = schedule.placement.num_stages // schedule.placement.num_pipelines
    stages = token_replay.fewer_layers(token_replay.spread(subject.stages, length))
    if sum(map(len, stages)) < sum(map(len, subject.stages)):
        label = "; ".join(filter(None, (label, f"{sum(map(len, stages))} layers")))
    free = gloo_check.MOST_RANKS // schedule.num_ranks
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
    if full.num_ranks <= gloo_check.MOST_RANKS and full.num_microbatches <= MOST_MICROBATCHES:
        return subject.runnable(), ""
    ranks = min(full.num_ranks, gloo_check.MOST_RANKS)
    if isinstance(document, ScheduleResult):
        folded = fold(document, subject.timeline, ranks=ranks).schedule
        how = "searched again" if is_searched(document) else "folded"
    else:
        folded, how = _folded_family(subject, ranks), "folded"
    before = f"{full.num_ranks} ranks x {full.num_microbatches} microbatches"
    schedule = in_known_terms(folded)
    return (schedule, lower(schedule)), f"{how} from {before}"


def _folded_family(subject: Pipeline, ranks: int) -> Schedule:
    full = subject.timeline.schedule
    chunks = full.placement.num_stages // full.num_ranks
    shape = pipeline.PipelineShape(
        family=subject.schedule,
        num_ranks=ranks,
        num_microbatches=fewer_microbatches(full.num_microbatches, ranks),
        virtual_stages=chunks,
    )
    even = np.ones(ranks * chunks)
    times = pipeline.PipelineTimes(
        forward_s=even, input_grad_s=even, weight_grad_s=even, transfer_s=np.zeros(len(even) - 1)
    )
    try:
        return pipeline.schedule_of(shape, times)
    except InvalidInput as error:
        raise UnsupportedFeature(
            f"{subject.schedule} has no such schedule on {ranks} ranks: {error}"
        ) from error


def _one_f_one_b(subject: Replicas) -> tuple[Schedule, str]:
    """Stages of a profile's plan, a rank each."""
    count = len(subject.replicated)
    ranks = min(count, gloo_check.MOST_RANKS)
    shared = subject.num_microbatches // max(1, max(s.replicas for s in subject.replicated))
    microbatches = fewer_microbatches(max(1, shared), ranks)
    request = FamilyRequest(num_ranks=ranks, num_microbatches=microbatches)
    schedule = generate(DEFAULT_SCHEDULE, request)
    assert isinstance(schedule, Schedule), "without a limit there is always an order"
    label = f"folded from {count} stages" if count > ranks else ""
    if microbatches < subject.num_microbatches:
        more = f"{microbatches} of {subject.num_microbatches} microbatches"
        label = "; ".join(filter(None, (label, more)))
    return schedule, label


def _runs(small: Small) -> tuple[gloo_check.PipelineRun, ...]:
    beside = [
        [(run.csv, run.num_microbatches, each.stages) for run in _runs_of_small(each)]
        for each in small.beside
    ]
    return tuple(
        replace(
            run,
            stages=small.stages,
            num_replicas=small.num_replicas,
            beside=tuple(each[form] for each in beside),
        )
        for form, run in enumerate(_runs_of_small(small))
    )


def _runs_of_small(small: Small) -> tuple[gloo_check.PipelineRun, ...]:
    return _runs_of(small.schedule, None, lowered=small.lowered)


def _runs_of(
    schedule: Schedule, costs: ScheduleCosts | None, *, lowered: LoweredSchedule | None = None
) -> tuple[gloo_check.PipelineRun, ...]:
    """Both of PyTorch's forms, or else the lowered orders alone for a runtime of our own."""
    try:
        runnable = as_pytorch_runs(schedule)
    except UnsupportedFeature:
        if (np.diff(schedule.rank_offsets) == 0).any():  # a rank without a stage has no gradients
            raise
        own = lower(schedule, costs=costs) if lowered is None else lowered
        texts = {gloo_check.OWN_RUNTIME: gloo_check.format_orders(own)}
    else:
        if lowered is None:
            lowered = lower(runnable, costs=costs)
        texts = {
            CsvForm.COMPUTE_ONLY.value: format_compute_only(runnable),
            CsvForm.COMPUTE_COMMS.value: format_compute_comms(lowered),
        }
    return tuple(
        gloo_check.PipelineRun(
            csv=text,
            form=form,
            placement=schedule.placement,
            num_microbatches=schedule.num_microbatches,
            num_slices=schedule.num_slices,
            head_barriers=schedule.head_barriers,
        )
        for form, text in texts.items()
    )


def _can_be_broken(schedule: Schedule) -> bool:
    """Whether there is a sum of gradients to divide."""
    return schedule.num_microbatches > schedule.num_slices


def _controls(runs: tuple[gloo_check.PipelineRun, ...]) -> dict[str, gloo_check.PipelineRun]:
    first, last = runs[0], runs[-1]
    broken = {
        "gradients not reduced": replace(last, csv=gloo_check.without_gradient_reduction(last.csv))
    }
    if first.form == gloo_check.OWN_RUNTIME:
        broken["messages exchanged"] = replace(
            last, csv=gloo_check.with_exchanged_messages(last.csv)
        )
    else:
        broken["microbatches swapped"] = replace(
            first, csv=gloo_check.with_swapped_microbatches(first.csv)
        )
    return broken


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


# What the ranks of a plan hold, from PyTorch itself: its program run here on fake tensors
# ----------------------------------------------------------------------------------------
# `rank_program.py` is started as a process of its own, because PyTorch remembers process groups.
# The ranks that it runs are those of the pipeline; the others of a pipeline rank hold the same.
# Costs one to five seconds a rank and no memory to speak of, whatever the size of the model.


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
    gloo_check.require_pytorch()
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
