"""From an answer to its document, and from a document back to orders and costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright._version import __version__
from trainwright.api.inputs import embed
from trainwright.api.schedule_answer import proved_bound
from trainwright.api.schedule_inputs import ScheduleCase
from trainwright.api.schedule_method import Method
from trainwright.errors import InvalidInput
from trainwright.formats.document_json import decode, encode_compact
from trainwright.formats.schedule_json import order_rows, read_order_rows
from trainwright.formats.schedule_spec import ScheduleSpec
from trainwright.plan.results.schedule import (
    BoundAtPeak,
    BoundAtPlacement,
    CriticalPath,
    FrontPoint,
    ScheduleRequest,
    ScheduleResult,
)
from trainwright.plan.schedule import ActionKind
from trainwright.plan.schedule_bound import Objective
from trainwright.plan.status import OPTIMAL_TOLERANCE, BoundKind, Status, relative_gap
from trainwright.plan.timeline import WaitsFor
from trainwright.scheduling.critical_path import critical_path
from trainwright.scheduling.simulate import simulate
from trainwright.scheduling.validate import validate

if TYPE_CHECKING:
    from typing import Any

    from trainwright.api.schedule_answer import Answer
    from trainwright.api.schedule_method import SearchOptions
    from trainwright.plan.schedule import Schedule
    from trainwright.plan.timeline import CriticalStep, Timeline
    from trainwright.scheduling.pareto import ParetoPoint


def request_of(
    case: ScheduleCase,
    answer: Answer,
    options: SearchOptions,
    *,
    method: Method,
    orders_name: str | None,
    time_limit_s: float | None,
) -> ScheduleRequest:
    """Everything that is needed to ask again."""
    schedule = answer.timeline.schedule if answer.timeline else None
    return ScheduleRequest(
        trainwright_version=__version__,
        method=method,
        costs=embed("schedule_spec", case.name, spec_content(case.spec)),
        time_unit=case.time_unit,
        num_ranks=schedule.num_ranks if schedule else case.num_ranks,
        num_microbatches=schedule.num_microbatches if schedule else case.num_microbatches,
        family=answer.family if method is Method.FAMILY else None,
        placement=options.placement,
        virtual_stages=case.virtual_stages,
        group=case.group,
        max_activations=case.max_activations,
        orders_name=orders_name,
        seed=options.seed,
        evaluations=options.evaluations,
        time_limit_s=time_limit_s,
    )


def spec_content(spec: ScheduleSpec) -> dict[str, Any]:
    """A spec as JSON values, defaults left out."""
    kept = {"kind": spec.kind, "format_version": spec.format_version}
    return kept | encode_compact(spec)


def case_of(document: ScheduleResult, *, source: str | None = None) -> ScheduleCase:
    """The costs and limits of a document, to price orders with."""
    request, parts = document.request, document.parts_per_stage or 1
    limit = request.max_activations
    path = "request.costs.content"
    spec = decode(ScheduleSpec, request.costs.content, path=path, source=source)
    return ScheduleCase(
        spec=replace(spec, num_microbatches=None),  # which the request may have overridden
        name=request.costs.name,
        time_unit=request.time_unit,
        ranks=None,
        microbatches=None,
        parts_per_stage=parts,
        max_activations=None if limit is None else limit * parts,
        objective=document.objective,
    )


def schedule_of(document: ScheduleResult, *, source: str | None = None) -> Schedule:
    """The orders of a document; raises InvalidInput where it has none."""
    if not document.orders:
        problem = f"must hold orders, this document is {document.status} and has none"
        raise InvalidInput.of("orders", problem, source=source)
    return read_order_rows(
        document.orders,
        rank_of_stage=document.rank_of_stage,
        num_microbatches=document.microbatches,
        source=source,
    )


def timeline_of(document: ScheduleResult, *, source: str | None = None) -> Timeline | None:
    """The schedule of a document with its times; None where it has none."""
    if not document.orders:
        return None
    schedule = schedule_of(document, source=source)
    validate(schedule, source=source)
    return simulate(schedule, case_of(document, source=source).costs_of(schedule))


def document_of(answer: Answer, case: ScheduleCase, request: ScheduleRequest) -> ScheduleResult:
    """The result document of an answer."""
    bare = ScheduleResult(
        status=Status.INFEASIBLE,
        objective=case.objective,
        family=answer.family,
        found_by=answer.found_by,
        ranks=request.num_ranks,
        microbatches=request.num_microbatches,
        binding=answer.shortfall,
        interrupted=answer.interrupted,
        warnings=answer.warnings,
        evaluations=answer.evaluations,
        tried=answer.tried if answer.tried > 1 else None,
        parts_per_stage=answer.parts_per_stage if answer.parts_per_stage > 1 else None,
        generate_s=answer.generate_s,
        search_s=answer.search_s,
        solver_s=answer.solver_s,
        points=tuple(_front_point(point, case) for point in answer.points),
        request=request,
    )
    if answer.timeline is None:
        return bare
    return _with_schedule(bare, answer, answer.timeline, case)


def _with_schedule(
    bare: ScheduleResult, answer: Answer, timeline: Timeline, case: ScheduleCase
) -> ScheduleResult:
    bound = answer.bound
    assert bound is not None, "a schedule comes with a bound"
    objective = Objective(case.objective)
    gap = relative_gap(objective.of(timeline), bound.value_s)
    status = Status.OPTIMAL if gap <= OPTIMAL_TOLERANCE else Status.GAP
    return replace(
        bare,
        status=status if answer.shortfall is None else Status.INFEASIBLE,
        fits=answer.shortfall is None,
        lower_bound_s=bound.value_s,
        bound=str(bound.name),
        bound_kind=BoundKind.PROVED,
        gap=gap,
        bound_at_placement=_bound_at_placement(answer, objective.of(timeline)),
        bound_at_peak=_bound_at_peak(timeline, objective),
        rank_of_stage=timeline.schedule.placement.rank_of_stage,
        orders=order_rows(timeline.schedule),
        **figures(timeline, counts_bytes=case.counts_bytes),
    )


def figures(timeline: Timeline, *, counts_bytes: bool) -> dict[str, Any]:
    """What follows from orders and costs alone, by key of the document."""
    schedule = timeline.schedule
    peaks = schedule.peak_activations
    by_bytes = tuple(timeline.peak_bytes.tolist()) if counts_bytes else ()
    return {
        "ranks": schedule.num_ranks,
        "microbatches": schedule.num_microbatches,
        "chunks_per_rank": max(map(len, schedule.placement.stages_of_rank)),
        "makespan_s": timeline.makespan_s,
        "span_s": timeline.span_s,
        "bubble_of_span": timeline.bubble_of_span,
        "bubble_of_makespan": timeline.bubble_of_makespan,
        "peak_activations": max(peaks),
        "peak_activations_per_rank": peaks,
        "peak_memory_bytes": max(by_bytes) if by_bytes else None,
        "peak_memory_bytes_per_rank": by_bytes,
        "critical_path": summarise(critical_path(timeline), timeline),
    }


def _bound_at_placement(answer: Answer, value_s: float) -> BoundAtPlacement | None:
    bound = answer.pipeline_bound
    if bound is None:
        return None
    return BoundAtPlacement(
        lower_bound_s=bound.value_s,
        bound=str(bound.name),
        gap=relative_gap(value_s, bound.value_s),
    )


def _bound_at_peak(timeline: Timeline, objective: Objective) -> BoundAtPeak:
    schedule = timeline.schedule
    peak = max(schedule.peak_activations)
    bound = proved_bound(
        schedule.placement,
        schedule.num_microbatches,
        timeline.costs,
        objective=objective,
        max_activations=peak,
    )
    return BoundAtPeak(
        max_activations=peak,
        lower_bound_s=bound.value_s,
        bound=str(bound.name),
        gap=relative_gap(objective.of(timeline), bound.value_s),
    )


def summarise(path: tuple[CriticalStep, ...], timeline: Timeline) -> CriticalPath:
    """Add up a critical path by kind of action and by rank."""
    rows = np.array([step.row for step in path])
    taken_s = (timeline.end_s - timeline.start_s)[rows]
    kinds = timeline.schedule.actions[rows, 0]
    ranks = timeline.schedule.rank_of_row[rows]
    by_kind = np.bincount(kinds, weights=taken_s, minlength=len(ActionKind))
    by_rank = np.bincount(ranks, weights=taken_s, minlength=timeline.schedule.num_ranks)
    waits = Counter(step.waits_for for step in path)
    return CriticalPath(
        num_actions=len(path),
        by_kind_s={kind.name: float(by_kind[kind]) for kind in ActionKind if by_kind[kind] > 0},
        by_rank_s=tuple(by_rank.tolist()),
        transfer_s=max(0.0, timeline.makespan_s - float(taken_s.sum())),
        waits_for={wait.value: waits[wait] for wait in WaitsFor if waits[wait]},
    )


def _front_point(point: ParetoPoint, case: ScheduleCase) -> FrontPoint:
    timeline = point.timeline
    return FrontPoint(
        family=point.source,
        peak_activations=point.peak_activations,
        peak_memory_bytes=point.peak_bytes if case.counts_bytes else None,
        makespan_s=timeline.makespan_s,
        span_s=timeline.span_s,
        bubble_of_span=timeline.bubble_of_span,
        lower_bound_s=point.bound.value_s,
        bound=str(point.bound.name),
        gap=point.gap,
        rank_of_stage=point.schedule.placement.rank_of_stage,
        orders=order_rows(point.schedule),
    )
