"""The page of a profile's plan, found by `plan` or given to `estimate`.

A profile states one time per microbatch and stage, not when forwards and backwards run, so there is
no schedule to draw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.documents.profile_plan import (
    PlanResult,
    baseline_table,
    explain_stages,
    is_over,
    overflow_lines,
    plan_verdict,
    stage_table,
)
from trainwright.documents.view import Facts, Notes
from trainwright.pages.blocks import Bar, BarChart, Card, Part, Section
from trainwright.pages.subject import Content, Figure, provenance_section, reproduce_section
from trainwright.plans.status import Status
from trainwright.units import format_bandwidth, format_bytes, format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainwright.documents.placement import PlacedStageRecord
    from trainwright.documents.profile_plan import EstimateResult, StageRecord
    from trainwright.pages.subject import Subject

    Document = PlanResult | EstimateResult

_PARTS = (
    ("compute", "compute", "compute_s"),
    ("traffic", "traffic of edges", "edge_traffic_s"),
    ("sync", "gradient synchronisation", "gradient_sync_s"),
)


def profile_plan_content(subject: Subject[Document]) -> Content:
    """Everything the page says about a plan of a profile."""
    document = subject.document
    devices = document.devices_used
    where = f" on {devices} devices" if devices else ""
    stages = f"{document.num_stages or 'no'} stages"
    return Content(
        title=f"{document.request.model.name}{where}",
        subtitle=f"{_verdict(document)} · {stages} · {_setting(document)}",
        figures=tuple(_figures(document)),
        sections=tuple(_sections(subject)),
    )


def _verdict(document: Document) -> str:
    if not isinstance(document, PlanResult):
        return f"Estimate: {'fits' if document.fits else 'does not fit'}"
    return f"Plan: {plan_verdict(document)}"


def _setting(document: Document) -> str:
    setting = document.request.setting
    if setting is None:
        return "no setting"
    return (
        f"{setting.num_devices} devices of {format_bytes(setting.memory_bytes)}, "
        f"{format_bandwidth(setting.bandwidth_bytes_per_s)}, "
        f"{setting.num_microbatches} microbatches"
    )


def _figures(document: Document) -> Iterator[Figure]:
    time_s = document.time_per_sample_s
    peak = max((stage.memory_bytes for stage in document.stages), default=None)
    shown = (
        ("time_per_sample_s", "per microbatch", time_s, format_seconds(time_s) if time_s else ""),
        ("peak_memory_bytes", "peak memory", peak, format_bytes(peak) if peak else ""),
        ("devices_used", "devices", document.devices_used, f"{document.devices_used or ''}"),
        ("num_stages", "stages", document.num_stages, f"{document.num_stages or ''}"),
    )
    for key, title, value, text in shown:
        yield Figure(key=key, title=title, value=value, text=text)


def _sections(subject: Subject[Document]) -> Iterator[Section]:
    document = subject.document
    limit = document.request.setting.memory_bytes if document.request.setting else None
    yield Section(
        name="summary", label="Summary", title="Summary", cards=tuple(_cards(document, limit))
    )
    yield _why(document, limit)
    if document.stages:
        table = stage_table(document.stages, limit)
        yield Section(name="plan", label="Plan", title="The plan", blocks=(table,))
        bars = (_time_bars(document.stages), memory_bars(document.stages, limit))
        yield Section(
            name="stages", label="Stages", title="Time and memory of the stages", blocks=bars
        )
    if isinstance(document, PlanResult) and document.baselines:
        blocks = (baseline_table(document.baselines),)
        yield Section(
            name="alternatives", label="Alternatives", title="Compared with", blocks=blocks
        )
    yield provenance_section(subject, {"times and sizes": "as the profile states them"})
    yield reproduce_section(subject, (document.request.model,))


def _cards(document: Document, limit: float | None) -> Iterator[Card]:
    time_s = document.time_per_sample_s
    if time_s is None:
        yield Card(label="status", value=_verdict(document).partition(": ")[2], tone="bad")
        return
    yield Card(label="time per microbatch", value=format_seconds(time_s), note="at steady state")
    if document.stages:
        found = explain_stages(document.stages, limit)
        fullest = document.stages[found.fullest_stage].memory_bytes
        left = "" if found.free_bytes is None else f", {format_bytes(found.free_bytes)} left"
        note = f"stage {found.fullest_stage}{left}"
        tone = "bad" if is_over(fullest, limit) else "plain"
        yield Card(label="peak memory", value=format_bytes(fullest), note=note, tone=tone)
        idle = f"{found.idle_fraction:.1%}"
        yield Card(label="idle", value=idle, note="of device time, waiting for the slowest stage")
    if isinstance(document, PlanResult):
        yield _gap_card(document)


def _gap_card(document: PlanResult) -> Card:
    if document.lower_bound_s is None:
        return Card(label="optimality", value=str(document.status))
    note = f"no plan of the space takes less than {format_seconds(document.lower_bound_s)}"
    if document.status is Status.OPTIMAL:
        return Card(label="optimality", value="proved", note=note, tone="good")
    gap = format_percent_up(document.gap or 0.0)
    return Card(label="optimality gap", value=f"≤ {gap}", note=note)


def _why(document: Document, limit: float | None) -> Section:
    blocks: list[Facts | Notes] = []
    if document.stages:
        found = explain_stages(document.stages, limit)
        terms = ", ".join(f"{kind} {part:.1%}" for kind, part in found.time_share.items())
        rows = [("slowest stage", f"{found.slowest_stage}: {terms}")]
        if isinstance(document, PlanResult) and document.lower_bound_s is not None:
            bound = format_seconds(document.lower_bound_s)
            rows.append((f"bound ({document.bound_kind or 'unproved'})", bound))
        blocks.append(Facts(rows=tuple(rows)))
    if isinstance(document, PlanResult):
        if document.binding is not None:
            blocks.append(Notes(title="What cannot fit", lines=(document.binding.description,)))
        if document.relaxations:
            lines = tuple(f"{fix.change}: {fix.description}" for fix in document.relaxations)
            blocks.append(Notes(title="Any one of these is enough", lines=lines))
    else:
        if lines := tuple(overflow_lines(document)):
            blocks.append(Notes(title="Does not fit", lines=lines, tone="bad"))
    title = "Why it is not faster" if document.stages else "Why nothing fits"
    return Section(name="why", label="Why", title=title, blocks=tuple(blocks))


def _time_bars(stages: tuple[StageRecord, ...]) -> BarChart:
    bars = []
    for index, stage in enumerate(stages):
        spent = [(kind, label, getattr(stage.breakdown, name)) for kind, label, name in _PARTS]
        parts = tuple(
            Part(
                kind=kind,
                label=label,
                amount=amount,
                text=format_seconds(amount),
            )
            for kind, label, amount in spent
        )
        total = format_seconds(stage.time_per_sample_s)
        bars.append(Bar(label=str(index), parts=parts, total=total))
    return BarChart(title="Time of a microbatch by stage", bars=tuple(bars), label="stage")


def memory_bars(stages: Sequence[StageRecord | PlacedStageRecord], limit: float | None) -> BarChart:
    """What a device of every stage holds, with the limit."""
    bars = []
    for index, stage in enumerate(stages):
        text = format_bytes(stage.memory_bytes)
        part = Part(kind="plain", label="memory", amount=stage.memory_bytes, text=text)
        over = is_over(stage.memory_bytes, limit)
        total = f"{text} over" if over else text
        bars.append(Bar(label=str(index), parts=(part,), total=total, is_over=over))
    return BarChart(
        title="Memory of a device by stage",
        bars=tuple(bars),
        label="stage",
        limit=limit,
        limit_text=f"limit {format_bytes(limit)}" if limit else "",
    )
