"""The page of a model's plan on several kinds of devices.

Ranks are those of each chain of like replicas, each with the limit of its own kind of device. The
schedule drawn is that of the chain that ends the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.plan.status import Status
from trainwright.reporting.layout import layout_line
from trainwright.reporting.mixed_plan_table import LAYOUTS, layers_of
from trainwright.reporting.page.blocks import Card, Facts, Gantt, Notes, Section
from trainwright.reporting.page.mixed_blocks import (
    group_bars,
    group_table,
    memory_bars,
    other_ways,
    rank_table,
    time_bars,
)
from trainwright.reporting.page.provenance import provenance_section, reproduce_section
from trainwright.reporting.page.subject import Content, Figure
from trainwright.units import format_bytes, format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.results.mixed_plan import MixedPlanResult
    from trainwright.reporting.page.subject import Subject

_VERDICTS: Final = {
    Status.OPTIMAL: "optimal, proved",
    Status.GAP: "a plan with a proved bound",
    Status.INFEASIBLE: "infeasible, proved",
    Status.UNKNOWN: "unknown",
}


def mixed_plan_content(subject: Subject[MixedPlanResult]) -> Content:
    """Everything the page says about a plan on several kinds of devices."""
    document = subject.document
    request = document.request
    cluster = request.cluster.name if request.cluster else "?"
    devices = document.devices_used or request.num_devices
    return Content(
        title=f"{request.model.name} on {devices} devices of {cluster}",
        subtitle=_subtitle(document),
        figures=tuple(_figures(document)),
        sections=tuple(_sections(subject)),
    )


def _subtitle(document: MixedPlanResult) -> str:
    workload = document.request.workload
    parts = [f"Plan: {_VERDICTS[document.status]}"]
    if document.layout is not None and document.parallelism is not None:
        parts += [LAYOUTS[document.layout], layout_line(document.parallelism)]
        parts.append(f"microbatch {document.micro_batch}, schedule {document.schedule}")
    if workload is not None:
        parts.append(
            f"{workload.global_batch:,} sequences of {workload.sequence_length:,} tokens per step"
        )
    return " · ".join(parts)


def _figures(document: MixedPlanResult) -> Iterator[Figure]:
    step_s, tokens, mfu = document.step_time_s, document.tokens_per_s, document.mfu
    peak = max((rank.memory_bytes for rank in document.ranks), default=None)
    layout = layout_line(document.parallelism) if document.parallelism else str(document.status)
    shown = (
        ("step_time_s", "step", step_s, format_seconds(step_s) if step_s else ""),
        ("tokens_per_s", "tokens/s", tokens, f"{tokens:,.0f}" if tokens else ""),
        ("mfu", "MFU", mfu, f"{mfu:.1%}" if mfu else ""),
        ("peak_memory_bytes", "peak memory", peak, format_bytes(peak) if peak else ""),
        ("devices_used", "devices", document.devices_used, f"{document.devices_used or ''}"),
        ("layout", "layout", layout, layout),
    )
    for key, title, value, text in shown:
        yield Figure(key=key, title=title, value=value, text=text)


def _sections(subject: Subject[MixedPlanResult]) -> Iterator[Section]:
    document = subject.document
    yield Section(name="summary", label="Summary", title="Summary", cards=tuple(_cards(document)))
    yield _why(document)
    if document.ranks:
        groups = (group_table(document), group_bars(document))
        yield Section(name="groups", label="Groups", title="The kinds of devices", blocks=groups)
        table = (rank_table(document),)
        yield Section(name="plan", label="Plan", title="The plan", blocks=table)
        bars = (time_bars(document), *memory_bars(document))
        yield Section(
            name="ranks", label="Ranks", title="Time and memory of the ranks", blocks=bars
        )
    if subject.panel is not None:
        yield Section(
            name="schedule",
            label="Schedule",
            title="Schedule and memory over time",
            blocks=(_gantt(document, subject.panel.num_bars),),
        )
    if document.alternatives:
        yield Section(
            name="alternatives",
            label="Alternatives",
            title="Other ways to use the devices",
            blocks=other_ways(document),
        )
    yield provenance_section(subject, document.assumptions)
    request = document.request
    yield reproduce_section(subject, tuple(filter(None, (request.model, request.cluster))))


def _cards(document: MixedPlanResult) -> Iterator[Card]:
    if document.step_time_s is None:
        yield Card(label="status", value=str(document.status), tone="bad")
        return
    low_s, high_s = document.step_time_low_s or 0.0, document.step_time_high_s or 0.0
    yield Card(
        label="step time",
        value=format_seconds(document.step_time_s),
        note=f"{format_seconds(low_s)} to {format_seconds(high_s)}, 90 %",
    )
    devices, tokens = document.devices_used or 1, document.tokens_per_s or 0.0
    per_device = f"{tokens / devices:,.0f} per device"
    yield Card(label="tokens per second", value=f"{tokens:,.0f}", note=per_device)
    yield Card(
        label="MFU", value=f"{document.mfu or 0:.1%}", note="of the peak of all devices used"
    )
    fullest = max(document.ranks, key=lambda rank: rank.memory_bytes / rank.memory_limit_bytes)
    yield Card(
        label="fullest device",
        value=format_bytes(fullest.memory_bytes),
        note=f"rank {fullest.rank} on {fullest.device_kind}, of "
        f"{format_bytes(fullest.memory_limit_bytes)}",
        tone="plain" if document.fits else "bad",
    )
    if tokens:
        hours = devices * 1e9 / tokens / 3600
        yield Card(label="cost", value=f"{hours:,.4g}", note="device hours per billion tokens")
    yield _gap_card(document)


def _gap_card(document: MixedPlanResult) -> Card:
    bound_s = document.lower_bound_s
    if not bound_s:
        return Card(label="optimality", value="open", note="the search ended before a bound")
    note = f"no plan of the space takes less than {format_seconds(bound_s)}"
    if document.status is Status.OPTIMAL:
        return Card(label="optimality", value="proved", note=note, tone="good")
    gap = format_percent_up(document.gap or 0.0)
    return Card(label="optimality gap", value=f"≤ {gap}", note=note)


def _why(document: MixedPlanResult) -> Section:
    title = "Why it is not faster" if document.stages else "Why nothing fits"
    rows: list[tuple[str, str]] = []
    if document.binding is not None:
        rows.append(("what binds", document.binding.description))
    if document.pipeline_s is not None:
        rows += [
            ("pipeline", format_seconds(document.pipeline_s)),
            ("gradients exposed", format_seconds(document.exposed_gradient_sync_s or 0.0)),
            ("optimizer", format_seconds(document.optimizer_s or 0.0)),
        ]
    left = f", {document.not_reached:,} not reached" if document.not_reached else ""
    excluded = f"{document.pruned:,} of them excluded by their bounds{left}"
    rows.append(("layouts", f"{document.considered:,} considered, {excluded}"))
    blocks: list[Facts | Notes] = [Facts(title="What blocks a better plan", rows=tuple(rows))]
    if document.interrupted:
        blocks.append(Notes(lines=("Interrupted: this is the best plan found.",), tone="warn"))
    return Section(name="why", label="Why", title=title, blocks=tuple(blocks))


def _gantt(document: MixedPlanResult, num_bars: int) -> Gantt:
    assert document.binding is not None, "a schedule is drawn of a plan"
    chain = document.binding.chain
    own = [rank for rank in document.ranks if rank.chain == chain]
    kinds = " → ".join(dict.fromkeys(rank.device_kind for rank in own))
    layers = sum(len(layers_of(document, rank)[0]) for rank in own)
    return Gantt(
        note=f"One of {own[0].count} like replicas that end the step: {layers} layers on {kinds}, "
        f"{own[0].num_microbatches} microbatches, {num_bars:,} actions, simulated one by one."
    )
