"""The page of a pipeline schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.documents.view import Cell, Column, Facts, Notes, Table, size
from trainwright.pages.blocks import (
    Bar,
    BarChart,
    Card,
    Gantt,
    Part,
    Point,
    Section,
    time_against_memory,
)
from trainwright.pages.subject import Content, Figure, provenance_section, reproduce_section
from trainwright.plans.status import Status
from trainwright.units import format_bytes, format_percent_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.documents.schedule import FrontPoint, ScheduleResult
    from trainwright.pages.blocks import Scatter
    from trainwright.pages.subject import Subject

_KINDS = {"F": "forward", "I": "input gradient", "W": "weight gradient", "B": "backward"}
_KINDS |= {"R": "recompute"}
_COLORS = {"F": "compute", "I": "traffic", "W": "sync", "B": "tensor", "R": "recompute"}


def schedule_content(subject: Subject[ScheduleResult]) -> Content:
    """Everything the page says about a schedule."""
    document = subject.document
    name = document.family
    if document.found_by is not None and document.found_by != name:
        name = f"{name} ({document.found_by})"
    return Content(
        title=f"{name}: {document.ranks} ranks, {document.microbatches} microbatches",
        subtitle=f"Schedule: {_verdict(document)} · objective {document.objective}",
        figures=tuple(_figures(document)),
        sections=tuple(_sections(subject)),
    )


def _verdict(document: ScheduleResult) -> str:
    if document.status is Status.OPTIMAL:
        return "optimal, proved"
    if document.status is Status.GAP:
        return f"at most {format_percent_up(document.gap or 0.0)} from the best"
    return str(document.status)


def _figures(document: ScheduleResult) -> Iterator[Figure]:
    time = document.request.time_unit.describe
    makespan, bubble = document.makespan_s, document.bubble_of_makespan
    peak = document.peak_activations
    shown = (
        ("makespan_s", "makespan", makespan, time(makespan) if makespan is not None else ""),
        ("bubble_of_makespan", "bubble", bubble, "" if bubble is None else f"{bubble:.2%}"),
        ("peak_activations", "activations", peak, "" if peak is None else str(peak)),
        ("ranks", "ranks", document.ranks, str(document.ranks)),
    )
    for key, title, value, text in shown:
        yield Figure(key=key, title=title, value=value, text=text)


def _sections(subject: Subject[ScheduleResult]) -> Iterator[Section]:
    document = subject.document
    yield Section(name="summary", label="Summary", title="Summary", cards=tuple(_cards(document)))
    yield _why(document)
    if document.peak_activations_per_rank:
        yield Section(name="plan", label="Plan", title="The ranks", blocks=(_rank_table(document),))
    if subject.panel is not None:
        gantt = Gantt(note=f"{subject.panel.num_bars:,} actions.")
        yield Section(
            name="schedule",
            label="Schedule",
            title="Schedule and memory over time",
            blocks=(gantt,),
        )
    if len(document.points) > 1:
        blocks = _front(document)
        yield Section(
            name="alternatives", label="Alternatives", title="Memory against time", blocks=blocks
        )
    yield provenance_section(subject, {"costs": f"as {document.request.costs.name} states them"})
    yield reproduce_section(subject, (document.request.costs,))


def _cards(document: ScheduleResult) -> Iterator[Card]:
    time = document.request.time_unit.describe
    if document.makespan_s is None or document.span_s is None:
        yield Card(label="status", value=str(document.status), tone="bad")
        return
    yield Card(label="makespan", value=time(document.makespan_s), note="of all ranks")
    yield Card(label="span", value=time(document.span_s), note="of the rank longest at work")
    yield Card(label="bubble", value=f"{document.bubble_of_span or 0:.2%}", note="of the span")
    yield Card(
        label="activations held", value=str(document.peak_activations), note="at most on a rank"
    )
    if document.peak_memory_bytes is not None:
        over = document.fits is False
        yield Card(
            label="peak memory",
            value=format_bytes(document.peak_memory_bytes),
            note="over the limit" if over else "",
            tone="bad" if over else "plain",
        )
    if document.lower_bound_s is not None:
        proved = document.status is Status.OPTIMAL
        note = f"no {document.objective} below {time(document.lower_bound_s)}, by {document.bound}"
        value = "proved" if proved else f"≤ {format_percent_up(document.gap or 0.0)}"
        tone = "good" if proved else "plain"
        yield Card(
            label="optimality" if proved else "optimality gap", value=value, note=note, tone=tone
        )
    if document.verification is not None:
        passed = document.verification.passed
        yield Card(
            label="verified",
            value="passed" if passed else "failed",
            note="gradients of a real run",
            tone="good" if passed else "bad",
        )


def _why(document: ScheduleResult) -> Section:
    blocks: list[BarChart | Facts | Notes] = []
    path, makespan_s = document.critical_path, document.makespan_s
    if path is not None and makespan_s:
        time = document.request.time_unit.describe
        parts = [
            Part(kind=_COLORS[kind], label=_KINDS[kind], amount=spent_s, text=time(spent_s))
            for kind, spent_s in path.by_kind_s.items()
        ]
        if path.transfer_s > 0:
            text = time(path.transfer_s)
            parts.append(
                Part(kind="transfers", label="transfers", amount=path.transfer_s, text=text)
            )
        bar = Bar(label="", parts=tuple(parts), total=time(makespan_s))
        blocks.append(BarChart(title="The critical path", bars=(bar,), label=""))
        waits = ", ".join(f"{reason} {count:,}" for reason, count in path.waits_for.items())
        rows = (
            ("actions on the critical path", f"{path.num_actions:,}"),
            ("what they waited for", waits),
        )
        blocks.append(Facts(rows=rows))
    if document.binding is not None:
        lines = (document.binding.description, *document.binding.fixes)
        blocks.append(Notes(title="What does not fit", lines=lines, tone="bad"))
    title = "Why it is not shorter" if document.makespan_s is not None else "Why nothing fits"
    return Section(name="why", label="Why", title=title, blocks=tuple(blocks))


def _rank_table(document: ScheduleResult) -> Table:
    stages: list[list[str]] = [[] for _ in range(document.ranks)]
    for stage, rank in enumerate(document.rank_of_stage):
        stages[rank].append(str(stage))
    in_bytes = document.peak_memory_bytes_per_rank
    columns = [
        Column(title="rank", key="rank"),
        Column(title="stages", key="stages", is_number=False),
        Column(title="activations", key="peak_activations"),
    ]
    if in_bytes:
        columns.append(Column(title="memory", key="peak_memory_bytes"))
    rows = []
    for rank, held in enumerate(document.peak_activations_per_rank):
        cells = [Cell.of(rank), Cell.of(", ".join(stages[rank])), Cell.of(held)]
        rows.append((*cells, size(in_bytes[rank])) if in_bytes else tuple(cells))
    return Table(title="Ranks at their fullest", columns=tuple(columns), rows=tuple(rows))


def _front(document: ScheduleResult) -> tuple[Table] | tuple[Scatter, Table]:
    time = document.request.time_unit.describe
    rows = tuple(
        (
            Cell.of(point.family),
            Cell.of(point.peak_activations),
            Cell(text=time(_value_s(document, point)), value=_value_s(document, point)),
            Cell(text=f"{point.bubble_of_span:.2%}", value=point.bubble_of_span),
            Cell(text=format_percent_up(point.gap), value=point.gap),
        )
        for point in document.points
    )
    table = Table(
        title="The front",
        columns=(
            Column(title="schedule", key="family", is_number=False),
            Column(title="activations", key="peak_activations"),
            Column(title=document.objective, key=f"{document.objective}_s"),
            Column(title="bubble of span", key="bubble_of_span"),
            Column(title="gap", key="gap"),
        ),
        rows=rows,
    )
    if any(point.peak_memory_bytes is None for point in document.points):
        return (table,)
    points = [_point(document, point) for point in document.points]
    return time_against_memory(points, limit_bytes=None), table


def _value_s(document: ScheduleResult, point: FrontPoint) -> float:
    return point.span_s if document.objective == "span" else point.makespan_s


def _point(document: ScheduleResult, point: FrontPoint) -> Point:
    value_s, held = _value_s(document, point), point.peak_memory_bytes or 0.0
    time = document.request.time_unit.describe(value_s)
    return Point(
        name=point.family,
        x=value_s,
        y=held,
        x_text=time,
        y_text=format_bytes(held),
        facts=(
            (document.objective, time),
            ("peak memory", format_bytes(held)),
            ("activations", str(point.peak_activations)),
            ("bubble of span", f"{point.bubble_of_span:.2%}"),
        ),
    )
