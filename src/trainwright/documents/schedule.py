"""The document of `schedule`: orders, their times and memory, how much shorter they could be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.documents.printing import ranges
from trainwright.documents.verification import GradientCheck
from trainwright.documents.view import (
    Cell,
    Line,
    Table,
    column,
    size,
    table_of,
    warning_lines,
    words,
)
from trainwright.errors import InvalidInput
from trainwright.formats.document_json import decode, encode_compact
from trainwright.formats.schedule_json import ScheduleSpec, order_rows, read_order_rows
from trainwright.options.inputs import embed
from trainwright.options.schedule import Method, ScheduleCase, SearchOptions
from trainwright.plans.lowered import CriticalStep, Timeline, WaitsFor
from trainwright.plans.plan import FORMAT_VERSION, CommandLine, Embedded
from trainwright.plans.schedule import ActionKind, Placement, Schedule, ScheduleCosts
from trainwright.plans.status import (
    OPTIMAL_TOLERANCE,
    Bound,
    BoundKind,
    Objective,
    Status,
    relative_gap,
    status_at,
)
from trainwright.provenance import __version__
from trainwright.scheduling.bounds import LeastCosts, best_bound, misfit, resource_bound
from trainwright.scheduling.simulate import critical_path, simulate, validate
from trainwright.units import TimeUnit, format_bytes, format_percent_up

if TYPE_CHECKING:
    from trainwright.scheduling.search import ParetoPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRequest:
    """What was asked. `method` is how: a family by name, a search, a front, given orders.

    `costs` is a schedule spec; `time_unit` says how its times are meant to be printed.
    """

    trainwright_version: str
    method: str
    costs: Embedded
    time_unit: TimeUnit
    num_ranks: int
    num_microbatches: int
    family: str | None = None
    placement: str | None = None
    virtual_stages: int | None = None
    group: int | None = None
    max_activations: int | None = None
    orders_name: str | None = None
    seed: int | None = None
    evaluations: int | None = None
    time_limit_s: float | None = None
    command_line: CommandLine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why nothing is returned: `needed` on a rank where `limit` is there, in `unit`.

    `least` is what every schedule of this placement needs, however long it takes.
    """

    rank: int | None = None
    needed: float | None = None
    limit: float
    least: float | None = None
    unit: str  # "activations" or "bytes"
    description: str
    fixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """What the chain of actions that makes the schedule so long consists of.

    Seconds by kind of action and by rank; `transfer_s` is what lies between actions of different
    ranks; `waits_for` counts what its actions waited for: their rank, an input, a transfer, a link.
    """

    num_actions: int
    by_kind_s: dict[str, float]
    by_rank_s: tuple[float, ...]
    transfer_s: float
    waits_for: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundAtPlacement:
    """How much shorter a schedule of the pipeline found (placement, chunks, modes) could be."""

    lower_bound_s: float
    bound: str
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundAtPeak:
    """How much shorter a schedule of this placement could be that holds no more activations."""

    max_activations: int
    lower_bound_s: float
    bound: str
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A schedule that none beats in both memory and time; its bound holds for no more memory."""

    family: str
    peak_activations: int
    peak_memory_bytes: float | None = None
    makespan_s: float
    span_s: float
    bubble_of_span: float
    lower_bound_s: float
    bound: str
    gap: float
    rank_of_stage: tuple[int, ...]
    orders: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleVerification:
    """What real runs gave: of the orders themselves, and of files broken on purpose.

    `controls_left_out` says why there are none of the latter.
    """

    passed: bool
    runs: tuple[GradientCheck, ...]
    controls: tuple[GradientCheck, ...]
    controls_left_out: str | None = None
    folded_from: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleResult:
    """A schedule with its price and proof. Keys without a value are left out.

    `makespan_s` is the last end minus the first start, `span_s` the largest over ranks of the same
    on one rank; `lower_bound_s` and `gap` are about the one named by `objective`, and hold for
    every schedule within the limits asked for: of this placement, or where several were `tried`, of
    all of them; then `bound_at_placement` is about the one found. Beside orders that break a limit
    they are about every schedule of their placement. `interrupted` says that Ctrl-C or a time limit
    ended a search. Activations count chunks.
    `orders` has a row of actions per rank, as in PyTorch's CSV. Where the model is there in several
    `pipelines`, a microbatch is cut into `slices`, or the head over all ranks with `head_barriers`,
    `microbatches` counts what every stage runs, and the bound is about schedules with the same
    actions. A search may cut every stage that
    the costs describe into `parts_per_stage` equal ones. `generate_s` is CPU seconds.
    """

    kind: str = "schedule"
    format_version: int = FORMAT_VERSION
    status: Status
    objective: str
    family: str
    found_by: str | None = None
    ranks: int
    microbatches: int
    chunks_per_rank: int | None = None
    pipelines: int | None = None
    slices: int | None = None
    head_barriers: int | None = None
    parts_per_stage: int | None = None
    makespan_s: float | None = None
    span_s: float | None = None
    bubble_of_span: float | None = None
    bubble_of_makespan: float | None = None
    peak_activations: int | None = None
    peak_activations_per_rank: tuple[int, ...] = ()
    peak_memory_bytes: float | None = None
    peak_memory_bytes_per_rank: tuple[float, ...] = ()
    fits: bool | None = None
    lower_bound_s: float | None = None
    bound: str | None = None
    bound_kind: BoundKind | None = None
    gap: float | None = None
    bound_at_placement: BoundAtPlacement | None = None
    bound_at_peak: BoundAtPeak | None = None
    critical_path: CriticalPath | None = None
    binding: Shortfall | None = None
    points: tuple[FrontPoint, ...] = ()
    verification: ScheduleVerification | None = None
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    evaluations: int | None = None
    tried: int | None = None
    generate_s: float | None = None
    search_s: float | None = None
    solver_s: float | None = None
    rank_of_stage: tuple[int, ...] = ()
    orders: tuple[str, ...] = ()
    request: ScheduleRequest


# What a method answers: a schedule with times and a bound, or why there is none
# ------------------------------------------------------------------------------

_F, _I, _W, _B, _R, *_ = ActionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The schedule found, if any, and what is proved about it.

    `tried` counts the pipelines (placements, chunks, modes) it was chosen from; `bound` is about
    all of them, and where there are several `pipeline_bound` about its own. Each stage that the
    costs describe is `parts_per_stage` stages of the schedule. `shortfall` says why nothing was
    found, or why what was given does not fit.
    """

    family: str
    timeline: Timeline | None = None
    bound: Bound | None = None
    pipeline_bound: Bound | None = None
    shortfall: Shortfall | None = None
    found_by: str | None = None
    tried: int = 1
    parts_per_stage: int = 1
    evaluations: int | None = None
    interrupted: bool = False
    generate_s: float | None = None
    search_s: float | None = None
    solver_s: float | None = None
    points: tuple[ParetoPoint, ...] = ()
    warnings: tuple[str, ...] = ()


def proved_bound(
    placement: Placement,
    num_microbatches: int,
    costs: ScheduleCosts,
    *,
    objective: Objective,
    max_activations: int | None,
    offload: bool = False,
) -> Bound:
    """The best bound on schedules of this placement within the limits of the costs and this one.

    With `offload`, on those that copy activations to the host, too.
    """
    least = LeastCosts.of(
        placement, costs, max_activations=max_activations or None, offload=offload
    )
    return best_bound(least, num_microbatches, objective=objective)


def bound_for(case: ScheduleCase, schedule: Schedule, costs: ScheduleCosts) -> Bound:
    """The bound on schedules of the same placement within the limits of the case.

    Where the schedule uses more than the computation of one pipeline, on those with its actions.
    """
    if not schedule.is_plain:
        return resource_bound(schedule, costs, objective=Objective(case.objective))
    return bound_within(case, schedule, costs)


def bound_within(case: ScheduleCase, schedule: Schedule, costs: ScheduleCosts) -> Bound:
    """The bound on every schedule of one pipeline placed so within the limits of the case.

    Where stages may recompute, on schedules in which any do.
    """
    return proved_bound(
        schedule.placement,
        schedule.num_microbatches,
        case.leanest(schedule, costs),
        objective=Objective(case.objective),
        max_activations=case.max_activations,
        offload=bool(case.spec.offload_s),
    )


# From an answer to its document, and from a document back to orders and costs
# ----------------------------------------------------------------------------


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
    given = schedule if method is Method.SIMULATE else None  # others may cut microbatches up
    return ScheduleRequest(
        trainwright_version=__version__,
        method=method,
        costs=embed("schedule_spec", case.name, spec_content(case.spec)),
        time_unit=case.time_unit,
        num_ranks=schedule.num_ranks if schedule else case.num_ranks,
        num_microbatches=given.num_microbatches if given else case.num_microbatches,
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
    if parts < 1:
        raise InvalidInput.of("parts_per_stage", f"must be >= 1, got {parts}", source=source)
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
        num_pipelines=document.pipelines or 1,
        num_slices=document.slices or 1,
        head_barriers=document.head_barriers or 0,
        source=source,
    )


def objective_of(document: ScheduleResult) -> Objective:
    """What a document says it is about; raises InvalidInput for anything unknown."""
    if document.objective not in tuple(Objective):
        wanted = " or ".join(Objective)
        raise InvalidInput.of("objective", f'must be {wanted}, got "{document.objective}"')
    return Objective(document.objective)


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
    cut = replace(case, parts_per_stage=answer.parts_per_stage)
    status = status_at(gap)
    return replace(
        bare,
        status=status if answer.shortfall is None else Status.INFEASIBLE,
        fits=answer.shortfall is None,
        lower_bound_s=bound.value_s,
        bound=str(bound.name),
        bound_kind=BoundKind.PROVED,
        gap=gap,
        bound_at_placement=_bound_at_placement(answer, objective.of(timeline)),
        bound_at_peak=_bound_at_peak(timeline, cut),
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
        "pipelines": schedule.placement.num_pipelines if not schedule.is_plain else None,
        "slices": schedule.num_slices if not schedule.is_plain else None,
        "head_barriers": schedule.head_barriers if not schedule.is_plain else None,
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


def _bound_at_peak(timeline: Timeline, case: ScheduleCase) -> BoundAtPeak | None:
    """None where the peak says little: what else there is, or may be, than computation."""
    schedule, objective, costs = timeline.schedule, Objective(case.objective), timeline.costs
    if not schedule.is_plain or case.spec.offload_s:
        return None
    peak = max(schedule.peak_activations)
    if misfit(schedule, costs.memory, max_activations=peak, costs=costs) is not None:
        case = case.without_limits  # no bound within them is about these orders
        costs = case.costs_of(schedule)
    bound = proved_bound(
        schedule.placement,
        schedule.num_microbatches,
        case.leanest(schedule, costs),
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


# The document again: times and memory simulated from its own orders and costs
# ----------------------------------------------------------------------------


def priced_again(document: ScheduleResult) -> ScheduleResult:
    """The document with every figure that follows from its orders, if it has any, and its costs.

    Bounds and names are taken over: they are what some version proves and how it orders families.
    Raises `InvalidInput` for orders that break a law, or costs that cannot be read.
    """
    objective, timeline = objective_of(document), timeline_of(document)
    if timeline is None:
        return document
    value_s, bound_s = objective.of(timeline), document.lower_bound_s or 0.0
    case = case_of(document)
    at_placement = document.bound_at_placement
    if at_placement is not None:  # the bound on one placement is no less than that on all
        own_s = min(max(at_placement.lower_bound_s, bound_s), value_s)
        gap = relative_gap(value_s, own_s)
        at_placement = replace(at_placement, lower_bound_s=own_s, gap=gap)
    return replace(
        document,
        **figures(timeline, counts_bytes=case.counts_bytes),
        gap=relative_gap(value_s, bound_s),
        bound_at_placement=at_placement,
        bound_at_peak=_bound_at_peak(timeline, case),
    )


# A schedule as tables: how long, how full, how far from the best, and what makes it so long
# ------------------------------------------------------------------------------------------

KINDS = {
    "F": "forward",
    "I": "input gradient",
    "W": "weight gradient",
    "B": "backward",
    "R": "recompute",
    "O": "copy to the host",
    "D": "drop",
    "L": "copy from the host",
    "V": "head",
    "T": "gradients of the head",
}
_WAITS = {
    "rank": "for their rank",
    "input": "for an input of their rank",
    "transfer": "for a transfer",
    "link": "for a busy link",
}
_MOST_RANKS = 16


def schedule_view(document: ScheduleResult) -> Iterator[Line]:
    """Headline, figures, ranks, what makes it so long, the front, what real runs gave."""
    yield _headline(document)
    if document.makespan_s is not None:
        yield _figures(document)
        if document.ranks <= _MOST_RANKS:
            yield rank_table(document)
        yield from _explanation(document)
    yield from _reasons(document)
    if document.points:
        yield front_table(document)
    yield from _verification(document)
    yield from warning_lines(document.warnings)


def _headline(document: ScheduleResult) -> str:
    size = f"{_counted(document.ranks, 'rank')}, {_counted(document.microbatches, 'microbatch')}"
    if document.chunks_per_rank is not None and document.chunks_per_rank > 1:
        size += f", {document.chunks_per_rank} chunks per rank"
    return f"{name_of(document)} on {size}: {_verdict(document)}"


def name_of(document: ScheduleResult) -> str:
    """The family, and by what it was found where that is another."""
    if document.found_by in (None, document.family):
        return document.family
    return f"{document.family} ({document.found_by})"


def _verdict(document: ScheduleResult) -> str:
    if document.status is Status.OPTIMAL:
        return f"{document.objective} optimal, proved"
    if document.status is Status.GAP:
        best = f"{document.objective} within {format_percent_up(document.gap or 0.0)} of the best"
        own = document.bound_at_placement
        met = own is not None and own.gap <= OPTIMAL_TOLERANCE
        return f"{best}, optimal for its pipeline" if met else best
    if document.status is Status.INFEASIBLE:
        return "infeasible" if document.makespan_s is None else "does NOT fit"
    return "unknown: the limit was reached before a schedule was found"


def _figures(document: ScheduleResult) -> Table:
    columns = (words(""), column("time"), column("bubble"), words(""))
    return table_of("Times", columns, _figure_rows(document))


def _figure_rows(document: ScheduleResult) -> Iterator[tuple[str, ...]]:
    time = document.request.time_unit.describe
    assert document.makespan_s is not None
    assert document.span_s is not None
    bubbles = (_percent(document.bubble_of_makespan), _percent(document.bubble_of_span))
    yield "makespan", time(document.makespan_s), bubbles[0], "of all ranks"
    yield "span", time(document.span_s), bubbles[1], "of the rank that is longest at work"
    if document.lower_bound_s is not None:
        where = f" in any of {document.tried} pipelines tried" if document.tried else ""
        note = f"no {document.objective} is shorter{where}, by {document.bound}"
        yield "bound", time(document.lower_bound_s), "", note
    own = document.bound_at_placement
    if own is not None and own.lower_bound_s > (document.lower_bound_s or 0.0):
        yield "", time(own.lower_bound_s), "", f"nor of this pipeline, by {own.bound}"
    at_peak = document.bound_at_peak
    if at_peak is not None and at_peak.lower_bound_s > _best_bound_s(document):
        note = f"nor with no more than {at_peak.max_activations} activations, by {at_peak.bound}"
        yield "", time(at_peak.lower_bound_s), "", note


def _best_bound_s(document: ScheduleResult) -> float:
    own = document.bound_at_placement
    return max(document.lower_bound_s or 0.0, own.lower_bound_s if own else 0.0)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{max(share, 0.0):.2%}"


def rank_table(document: ScheduleResult) -> Table:
    """What each rank holds at its fullest, where bytes are known in bytes, too."""
    in_bytes = document.peak_memory_bytes_per_rank
    stages: list[list[int]] = [[] for _ in range(document.ranks)]
    for stage, rank in enumerate(document.rank_of_stage):
        stages[rank].append(stage)
    return table_of(
        "Ranks at their fullest",
        (
            column("rank"),
            words("stages"),
            column("activations", "peak_activations"),
            column("memory", "peak_memory_bytes", on="both" if in_bytes else "none"),
        ),
        (
            (rank, ranges(stages[rank]), held, size(in_bytes[rank] if in_bytes else None))
            for rank, held in enumerate(document.peak_activations_per_rank)
        ),
    )


def _explanation(document: ScheduleResult) -> Iterator[str]:
    if document.ranks > _MOST_RANKS:
        yield f"at most {_counted(document.peak_activations or 0, 'activation')} on a rank"
        if document.peak_memory_bytes is not None:
            yield f"at most {format_bytes(document.peak_memory_bytes)} on a rank"
    if document.parts_per_stage is not None:
        parts = f"every stage described is {document.parts_per_stage} stages here, in time and"
        yield f"{parts} activations: {as_limited(document)}"
    path = document.critical_path
    if path is not None and document.makespan_s:
        yield from _path_lines(path, document)


def as_limited(document: ScheduleResult) -> str:
    """The fullest rank's activations as a limit counts them, of the stages that were described."""
    held = document.peak_activations or 0
    described = held / (document.parts_per_stage or 1)
    return f"{_counted(held, 'activation')} are {described:g} of those that a limit counts"


def _path_lines(path: CriticalPath, document: ScheduleResult) -> Iterator[str]:
    assert document.makespan_s is not None
    total_s = document.makespan_s
    shares = [
        f"{KINDS[kind]} {taken_s / total_s:.0%}"
        for kind, taken_s in sorted(path.by_kind_s.items(), key=lambda item: -item[1])
    ]
    if path.transfer_s > OPTIMAL_TOLERANCE * total_s:
        shares.append(f"transfers {path.transfer_s / total_s:.0%}")
    yield f"critical path, {_counted(path.num_actions, 'action')}: {', '.join(shares)}"
    waits = [
        f"{path.waits_for[key]} {said}" for key, said in _WAITS.items() if key in path.waits_for
    ]
    busiest = max(range(len(path.by_rank_s)), key=path.by_rank_s.__getitem__)
    share = path.by_rank_s[busiest] / total_s
    waited = ", ".join(waits) or "for nothing"
    yield f"its actions waited {waited}; {share:.0%} is on rank {busiest}"


def _reasons(document: ScheduleResult) -> Iterator[str]:
    found = document.binding
    if found is not None:
        yield f"why: {found.description}"
        if found.fixes:
            yield "any one of these is enough:"
            yield from (f"  {fix}" for fix in found.fixes)
    if document.interrupted:
        yield "interrupted: this is the best schedule found so far"


def front_table(document: ScheduleResult) -> Table:
    """Schedules that none beats in both memory and time."""
    return table_of(
        "The front",
        (
            column("activations", "peak_activations"),
            column(
                "memory",
                "peak_memory_bytes",
                on="none" if document.peak_memory_bytes is None else "both",
            ),
            column(document.objective, f"{document.objective}_s"),
            column("bubble of span", "bubble_of_span"),
            column("gap"),
            words("schedule", "family"),
        ),
        (tuple(_front_row(point, document)) for point in document.points),
        caption="memory against time",
    )


def _front_row(point: FrontPoint, document: ScheduleResult) -> Iterator[Cell | float | str]:
    yield point.peak_activations
    yield size(point.peak_memory_bytes)
    value_s = value_of(document, point)
    yield Cell(text=document.request.time_unit.describe(value_s), value=value_s)
    yield Cell(text=_percent(point.bubble_of_span), value=point.bubble_of_span)
    gap = point.gap if point.gap > OPTIMAL_TOLERANCE else 0.0
    yield Cell(text=format_percent_up(gap), value=point.gap)
    yield point.family


def value_of(document: ScheduleResult, point: FrontPoint) -> float:
    """The objective's value of a schedule of the front."""
    return point.span_s if document.objective == "span" else point.makespan_s


def _verification(document: ScheduleResult) -> Iterator[str]:
    found = document.verification
    if found is None:
        return
    yield f"verify: {'PASS' if found.passed else 'FAIL'}"
    if found.folded_from is not None:
        yield f"  folded to 4 ranks from {found.folded_from}: the same family and placement"
    for run in found.runs:
        yield f"  {'PASS' if run.passed else 'FAIL'} {_run_line(run)}"
    for run in found.controls:
        caught = "caught" if not run.passed else "NOT caught"
        yield f"  broken on purpose, {caught}: {_run_line(run)}"
    if found.controls_left_out is not None:
        yield f"  nothing broken on purpose was run: {found.controls_left_out}"


def _run_line(run: GradientCheck) -> str:
    size = f"{run.form}, gloo x{run.num_ranks}, {_counted(run.num_microbatches, 'microbatch')}"
    if run.problem is not None:
        return f"{size}: {run.problem}"
    return (
        f"{size}: max gradient error {run.max_error:.1e} (limit {run.gradient_limit:.1e}, "
        f"{run.worst_parameter}), loss error {run.loss_error:.1e}"
    )


def _counted(number: int, one: str) -> str:
    many = f"{one}es" if one.endswith("ch") else f"{one}s"
    return f"{number:,} {one if number == 1 else many}"
