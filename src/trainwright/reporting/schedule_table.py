"""A schedule as tables: how long, how full, how far from the best, and what makes it so long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.plan.status import OPTIMAL_TOLERANCE, Status
from trainwright.reporting.text import add_row, ranges, table
from trainwright.units import format_bytes, format_percent_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trainwright.plan.results.gradient_check import GradientCheck
    from trainwright.plan.results.schedule import CriticalPath, FrontPoint, ScheduleResult

_KINDS = {
    "F": "forward",
    "I": "input gradient",
    "W": "weight gradient",
    "B": "backward",
    "R": "recompute",
}
_WAITS = {
    "rank": "for their rank",
    "input": "for an input of their rank",
    "transfer": "for a transfer",
    "link": "for a busy link",
}
_MOST_RANKS = 16


def schedule_report(document: ScheduleResult) -> RenderableType:
    """Headline, figures, ranks, what makes it so long, the front, what real runs gave."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(_headline(document))]
    if document.makespan_s is not None:
        parts.append(_figures(document))
        if document.ranks <= _MOST_RANKS:
            parts.append(_ranks(document))
        parts.extend(Text(line) for line in _explanation(document))
    parts.extend(Text(line) for line in _reasons(document))
    if document.points:
        parts.append(_front(document))
    parts.extend(Text(line) for line in _verification(document))
    parts.extend(Text(f"warning: {warning}") for warning in document.warnings)
    return Group(*parts)


def _headline(document: ScheduleResult) -> str:
    name = document.family
    if document.found_by is not None and document.found_by != name:
        name = f"{name} ({document.found_by})"
    size = f"{_counted(document.ranks, 'rank')}, {_counted(document.microbatches, 'microbatch')}"
    if document.chunks_per_rank is not None and document.chunks_per_rank > 1:
        size += f", {document.chunks_per_rank} chunks per rank"
    return f"{name} on {size}: {_verdict(document)}"


def _verdict(document: ScheduleResult) -> str:
    if document.status is Status.OPTIMAL:
        return f"{document.objective} optimal, proved"
    if document.status is Status.GAP:
        best = f"{document.objective} within {format_percent_up(document.gap or 0.0)} of the best"
        own = document.bound_at_placement
        met = own is not None and own.gap <= OPTIMAL_TOLERANCE
        return f"{best}, optimal for its placement" if met else best
    if document.status is Status.INFEASIBLE:
        return "infeasible" if document.makespan_s is None else "does NOT fit"
    return "unknown: the limit was reached before a schedule was found"


def _figures(document: ScheduleResult) -> RenderableType:
    time = document.request.time_unit.describe
    assert document.makespan_s is not None
    assert document.span_s is not None
    made = table(None, (("", "left"), ("time", "right"), ("bubble", "right"), ("", "left")))
    rows = (
        ("makespan", document.makespan_s, document.bubble_of_makespan),
        ("span", document.span_s, document.bubble_of_span),
    )
    for name, value_s, bubble in rows:
        note = "of all ranks" if name == "makespan" else "of the rank that is longest at work"
        add_row(made, name, time(value_s), _percent(bubble), note)
    if document.lower_bound_s is not None:
        where = f" in any of {document.tried} pipelines tried" if document.tried else ""
        note = f"no {document.objective} is shorter{where}, by {document.bound}"
        add_row(made, "bound", time(document.lower_bound_s), "", note)
    own = document.bound_at_placement
    if own is not None and own.lower_bound_s > (document.lower_bound_s or 0.0):
        add_row(made, "", time(own.lower_bound_s), "", f"nor of this placement, by {own.bound}")
    at_peak = document.bound_at_peak
    if at_peak is not None and at_peak.lower_bound_s > _best_bound_s(document):
        note = f"nor with no more than {at_peak.max_activations} activations, by {at_peak.bound}"
        add_row(made, "", time(at_peak.lower_bound_s), "", note)
    return made


def _best_bound_s(document: ScheduleResult) -> float:
    own = document.bound_at_placement
    return max(document.lower_bound_s or 0.0, own.lower_bound_s if own else 0.0)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{max(share, 0.0):.2%}"


def _ranks(document: ScheduleResult) -> RenderableType:
    in_bytes = document.peak_memory_bytes_per_rank
    columns = [("rank", "right"), ("stages", "left"), ("activations", "right")]
    made = table(None, [*columns, ("memory", "right")] if in_bytes else columns)
    stages: list[list[int]] = [[] for _ in range(document.ranks)]
    for stage, rank in enumerate(document.rank_of_stage):
        stages[rank].append(stage)
    for rank, held in enumerate(document.peak_activations_per_rank):
        cells = [str(rank), ranges(stages[rank]), str(held)]
        add_row(made, *cells, *((format_bytes(in_bytes[rank]),) if in_bytes else ()))
    return made


def _explanation(document: ScheduleResult) -> Iterator[str]:
    if document.ranks > _MOST_RANKS:
        yield f"at most {_counted(document.peak_activations or 0, 'activation')} on a rank"
        if document.peak_memory_bytes is not None:
            yield f"at most {format_bytes(document.peak_memory_bytes)} on a rank"
    if document.parts_per_stage is not None:
        yield (
            f"every stage described is {document.parts_per_stage} stages here, in time and "
            "activations"
        )
    path = document.critical_path
    if path is not None and document.makespan_s:
        yield from _path_lines(path, document)


def _path_lines(path: CriticalPath, document: ScheduleResult) -> Iterator[str]:
    assert document.makespan_s is not None
    total_s = document.makespan_s
    shares = [
        f"{_KINDS[kind]} {taken_s / total_s:.0%}"
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


def _front(document: ScheduleResult) -> RenderableType:
    in_bytes = document.peak_memory_bytes is not None
    made = table(
        "memory against time",
        (
            ("activations", "right"),
            *((("memory", "right"),) if in_bytes else ()),
            (document.objective, "right"),
            ("bubble of span", "right"),
            ("gap", "right"),
            ("schedule", "left"),
        ),
    )
    for point in document.points:
        add_row(made, *_front_row(point, document))
    return made


def _front_row(point: FrontPoint, document: ScheduleResult) -> Iterator[str]:
    yield str(point.peak_activations)
    if point.peak_memory_bytes is not None:
        yield format_bytes(point.peak_memory_bytes)
    value_s = point.span_s if document.objective == "span" else point.makespan_s
    yield document.request.time_unit.describe(value_s)
    yield _percent(point.bubble_of_span)
    yield format_percent_up(point.gap if point.gap > OPTIMAL_TOLERANCE else 0.0)
    yield point.family


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
