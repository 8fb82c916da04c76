"""The page of a pipeline schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.documents.schedule import KINDS, front_table, name_of, rank_table, value_of
from trainwright.documents.view import Facts, Notes
from trainwright.pages.blocks import (
    Bar,
    BarChart,
    Gantt,
    Part,
    Point,
    Verdict,
    card,
    folded,
    gap_card,
    proved_state,
    section,
    time_against_memory,
)
from trainwright.pages.subject import Content, figures, provenance_section, reproduce_section
from trainwright.plans.status import Status
from trainwright.units import format_bytes, format_count, format_percent_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.documents.schedule import FrontPoint, ScheduleResult
    from trainwright.documents.view import Table
    from trainwright.pages.blocks import Card, Scatter, Section
    from trainwright.pages.subject import Figure, Subject

_COLORS = {"F": "compute", "I": "traffic", "W": "sync", "B": "tensor", "R": "recompute"}
_COLORS |= {"O": "hidden", "D": "unused", "L": "buffers", "V": "expert", "T": "context"}


def schedule_content(subject: Subject[ScheduleResult]) -> Content:
    """Everything the page says about a schedule."""
    document = subject.document
    sizes = f"{document.ranks} ranks, {document.microbatches} microbatches"
    return Content(
        title=f"{name_of(document)}: {sizes}",
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
    yield from figures(
        ("makespan_s", "makespan", makespan, time(makespan or 0.0)),
        ("bubble_of_makespan", "bubble", bubble, f"{bubble or 0.0:.2%}"),
        ("peak_activations", "activations", peak, f"{peak}"),
        ("ranks", "ranks", document.ranks, f"{document.ranks}"),
    )


def _sections(subject: Subject[ScheduleResult]) -> Iterator[Section]:
    document = subject.document
    yield section(
        "summary", "The answer", _answer(document), label="Answer", cards=_cards(document)
    )
    if subject.panel is not None:
        gantt = Gantt(note=f"{subject.panel.num_bars:,} actions.")
        yield section("schedule", "Schedule and memory over time", gantt)
    if len(document.points) > 1:
        yield section("alternatives", "Memory against time", *_front(document))
    yield _why(document) if document.makespan_s is None else folded(_why(document))
    if document.peak_activations_per_rank:
        yield folded(section("plan", "The ranks", rank_table(document)))
    yield provenance_section(subject, {"costs": f"as {document.request.costs.name} states them"})
    yield reproduce_section(subject, (document.request.costs,))


def _answer(document: ScheduleResult) -> Verdict:
    """How long the work of a pipeline takes, and how near the best that is."""
    if document.makespan_s is None:
        why = document.binding.description if document.binding else "no order was found in time"
        none = document.status is Status.INFEASIBLE
        return Verdict(state="Nothing fits" if none else "No schedule yet", said=why, tone="bad")
    takes = document.request.time_unit.describe(document.makespan_s)
    held = format_count(document.peak_activations or 0, "activation")
    said = (
        f"{format_count(document.microbatches, 'microbatch')} on "
        f"{format_count(document.ranks, 'rank')} in {takes}, {document.bubble_of_span or 0:.2%} "
        f"of it bubble. A rank holds at most {held}."
    )
    if document.fits is False:
        return Verdict(state="Does not fit", said=said, tone="bad")
    state, tone = proved_state(document.status, document.gap, "A schedule")
    return Verdict(state=state, said=said, tone=tone)


def _cards(document: ScheduleResult) -> Iterator[Card]:
    time = document.request.time_unit.describe
    if document.makespan_s is None or document.span_s is None:
        yield card("status", str(document.status), tone="bad")
        return
    yield card("makespan", time(document.makespan_s), "of all ranks")
    if document.span_s != document.makespan_s:
        yield card("span", time(document.span_s), "of the rank longest at work")
    yield card("bubble", f"{document.bubble_of_span or 0:.2%}", "of the span")
    yield card("activations held", str(document.peak_activations), "at most on a rank")
    if document.peak_memory_bytes is not None:
        note, tone = ("over the limit", "bad") if document.fits is False else ("", "plain")
        yield card("peak memory", format_bytes(document.peak_memory_bytes), note, tone)
    if document.lower_bound_s is not None:
        yield gap_card(
            document.status,
            bound_text=f"{time(document.lower_bound_s)}, by {document.bound}",
            gap=document.gap or 0.0,
            what=document.objective,
            verb="is shorter than",
        )
    if document.verification is not None:
        passed = document.verification.passed
        word, tone = ("passed", "good") if passed else ("failed", "bad")
        yield card("verified", word, "gradients of a real run", tone)


def _why(document: ScheduleResult) -> Section:
    blocks: list[BarChart | Facts | Notes] = []
    path, makespan_s = document.critical_path, document.makespan_s
    if path is not None and makespan_s:
        time = document.request.time_unit.describe
        parts = [
            Part(kind=_COLORS[kind], label=KINDS[kind], amount=spent_s, text=time(spent_s))
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
    return section("why", title, *blocks)


def _front(document: ScheduleResult) -> Iterator[Table | Scatter]:
    if all(point.peak_memory_bytes is not None for point in document.points):
        points = [_point(document, point) for point in document.points]
        yield time_against_memory(points, limit_bytes=None)
    yield front_table(document)


def _point(document: ScheduleResult, point: FrontPoint) -> Point:
    value_s, held = value_of(document, point), point.peak_memory_bytes or 0.0
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
