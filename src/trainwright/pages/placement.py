"""The page of a placement: stages of forward and backward loads, and the strategy of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.documents.placement import placement_verdict, stage_table, strategy_line
from trainwright.documents.view import Facts, Notes
from trainwright.pages.blocks import Bar, BarChart, Card, Part, Section
from trainwright.pages.profile_plan import memory_bars
from trainwright.pages.subject import Content, Figure, provenance_section, reproduce_section
from trainwright.plans.status import Status
from trainwright.units import format_bytes, format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.documents.placement import PlacedStageRecord, PlacementResult
    from trainwright.pages.subject import Subject


def placement_content(subject: Subject[PlacementResult]) -> Content:
    """Everything the page says about a placement."""
    document = subject.document
    devices = f" on {document.devices_used} devices" if document.devices_used else ""
    return Content(
        title=f"{document.request.model.name}{devices}",
        subtitle=f"Placement: {placement_verdict(document)} · {document.num_stages or 'no'} stages",
        figures=tuple(_figures(document)),
        sections=tuple(_sections(subject)),
    )


def _figures(document: PlacementResult) -> Iterator[Figure]:
    time_s, peak = document.time_per_batch_s, document.peak_memory_bytes
    shown = (
        ("time_per_batch_s", "per batch", time_s, format_seconds(time_s) if time_s else ""),
        ("peak_memory_bytes", "peak memory", peak, format_bytes(peak) if peak else ""),
        ("devices_used", "devices", document.devices_used, f"{document.devices_used or ''}"),
        ("num_stages", "stages", document.num_stages, f"{document.num_stages or ''}"),
    )
    for key, title, value, text in shown:
        yield Figure(key=key, title=title, value=value, text=text)


def _sections(subject: Subject[PlacementResult]) -> Iterator[Section]:
    document = subject.document
    limit = document.request.setting.memory_bytes if document.request.setting else None
    cards = tuple(_cards(document, limit))
    yield Section(name="summary", label="Summary", title="Summary", cards=cards)
    yield _why(document)
    if document.stages:
        blocks = (stage_table(document),)
        yield Section(name="plan", label="Plan", title="The placement", blocks=blocks)
        bars = (_time_bars(document.stages), memory_bars(document.stages, limit))
        title = "Time and memory of the stages"
        yield Section(name="stages", label="Stages", title=title, blocks=bars)
    yield provenance_section(subject, {"times and sizes": "as the file states them"})
    yield reproduce_section(subject, (document.request.model,))


def _cards(document: PlacementResult, limit: float | None) -> Iterator[Card]:
    if document.time_per_batch_s is None:
        yield Card(label="status", value=str(document.status), tone="bad")
        return
    rounds = f"{document.rounds} rounds of the slowest stage" if document.rounds else ""
    value = format_seconds(document.time_per_batch_s)
    yield Card(label="time per batch", value=value, note=rounds)
    if document.peak_memory_bytes is not None:
        note = "" if limit is None else f"of {format_bytes(limit)}"
        value = format_bytes(document.peak_memory_bytes)
        yield Card(label="peak memory", value=value, note=note)
    if document.gradient_sync_s is not None:
        value = format_seconds(document.gradient_sync_s)
        yield Card(label="gradient synchronisation", value=value, note="after the batch")
    if document.lower_bound_s is not None:
        proved = document.status is Status.OPTIMAL
        note = f"no placement takes less than {format_seconds(document.lower_bound_s)}"
        value = "proved" if proved else f"≤ {format_percent_up(document.gap or 0.0)}"
        tone = "good" if proved else "plain"
        label = "optimality" if proved else "optimality gap"
        yield Card(label=label, value=value, note=note, tone=tone)


def _why(document: PlacementResult) -> Section:
    blocks: list[Facts | Notes] = []
    rows = []
    if document.stages:
        loads = [stage.load_s for stage in document.stages]
        slowest = loads.index(max(loads))
        mean = sum(loads) / len(loads) / max(loads) if max(loads) > 0 else 1.0
        pace = f"{slowest}: {format_seconds(loads[slowest])}; on average {mean:.1%} of it"
        rows.append(("slowest stage", pace))
    if document.lower_bound_s is not None:
        bound = format_seconds(document.lower_bound_s)
        rows.append((f"bound ({document.bound_kind or 'unproved'})", bound))
    if (stated := document.fixed_strategy) is not None:
        rows.append(("the strategy of the file", strategy_line(stated)))
    if rows:
        blocks.append(Facts(rows=tuple(rows)))
    if document.binding is not None:
        blocks.append(Notes(title="What cannot fit", lines=(document.binding.description,)))
    if document.relaxations:
        lines = tuple(f"{fix.change}: {fix.description}" for fix in document.relaxations)
        blocks.append(Notes(title="Any one of these is enough", lines=lines))
    title = "Why it is not faster" if document.stages else "Why nothing fits"
    return Section(name="why", label="Why", title=title, blocks=tuple(blocks))


def _time_bars(stages: tuple[PlacedStageRecord, ...]) -> BarChart:
    bars = []
    for index, stage in enumerate(stages):
        spent = (("compute", "forward", stage.forward_s), ("tensor", "backward", stage.backward_s))
        parts = tuple(
            Part(kind=kind, label=label, amount=amount, text=format_seconds(amount))
            for kind, label, amount in spent
        )
        bars.append(Bar(label=str(index), parts=parts, total=format_seconds(stage.load_s)))
    title = "Time of a microbatch by stage"
    return BarChart(title=title, bars=tuple(bars), label="stage")
