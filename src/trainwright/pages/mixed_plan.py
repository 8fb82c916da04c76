"""The page of a model's plan on several kinds of devices.

Ranks are those of each chain of like replicas, each with the limit of its own kind of device. The
schedule drawn is that of the chain that ends the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.documents.mixed_plan import LAYOUTS, layers_of
from trainwright.documents.printing import layout_line, ranges
from trainwright.documents.view import Cell, Column, Facts, Notes, Table, percent, seconds, size
from trainwright.pages.blocks import Bar, BarChart, Card, Gantt, Part, Section
from trainwright.pages.model_plan import (
    closing_sections,
    cost_cards,
    gap_card,
    plan_content,
    searched_row,
    throughput_cards,
)
from trainwright.pages.step import memory_parts, time_parts
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.documents.mixed_plan import MixedPlanResult, MixedRankRecord
    from trainwright.pages.subject import Content, Subject


# Blocks about a plan on several kinds of devices: groups, ranks by kind, other ways to go
# ----------------------------------------------------------------------------------------


def group_table(document: MixedPlanResult) -> Table:
    """One row per kind of device."""
    return Table(
        title="Groups",
        columns=(
            Column(title="group", key="pool"),
            Column(title="device", key="device_kind", is_number=False),
            Column(title="devices", key="num_devices"),
            Column(title="used", key="devices_used"),
            Column(title="of the work", key="layer_share"),
            Column(title="busy", key="busy"),
            Column(title="fullest", key="peak_memory_bytes"),
            Column(title="usable", key="memory_limit_bytes"),
        ),
        rows=tuple(
            (
                Cell.of(group.pool),
                Cell.of(group.device_kind),
                Cell.of(group.num_devices),
                Cell.of(group.devices_used),
                percent(group.layer_share),
                percent(group.busy),
                size(group.peak_memory_bytes),
                size(group.memory_limit_bytes),
            )
            for group in document.groups
        ),
        note="Work is passes of microbatches through layers; busy is the share of the step in "
        "which the devices in use work on microbatches.",
    )


def group_bars(document: MixedPlanResult) -> BarChart:
    """How much of the step each kind works."""
    bars = []
    for group in document.groups:
        parts = (
            Part(kind="compute", label="busy", amount=group.busy, text=f"{group.busy:.1%}"),
            Part(kind="unused", label="idle", amount=1 - group.busy, text=f"{1 - group.busy:.1%}"),
        )
        total = f"{group.devices_used} of {group.num_devices} used"
        bars.append(Bar(label=group.device_kind, parts=parts, total=total))
    return BarChart(title="Share of the step that each kind works", bars=tuple(bars), label="kind")


def rank_table(document: MixedPlanResult) -> Table:
    """One row per rank of each chain of like replicas."""
    binding = document.binding
    binds = (
        at
        for at, rank in enumerate(document.ranks)
        if binding is not None and (rank.chain, rank.rank) == (binding.chain, binding.rank)
    )
    return Table(
        title="Plan",
        columns=(
            Column(title="rank", key="rank"),
            Column(title="device", key="device_kind", is_number=False),
            Column(title="replicas", key="count"),
            Column(title="microbatches", key="num_microbatches"),
            Column(title="layers", key="layers", is_number=False),
            Column(title="recomputed", key="num_recomputed"),
            Column(title="forward", key="forward_s"),
            Column(title="backward", key="backward_s"),
            Column(title="busy", key="busy"),
            Column(title="memory", key="memory_bytes"),
            Column(title="of limit", key="memory_share"),
        ),
        rows=tuple(tuple(_rank_cells(document, rank)) for rank in document.ranks),
        marked=frozenset(binds),
        note="Times of one microbatch; microbatches are those of one replica in a step. The marked "
        "rank binds.",
    )


def _rank_cells(document: MixedPlanResult, rank: MixedRankRecord) -> Iterator[Cell]:
    layers, recomputed = layers_of(document, rank)
    for value in (rank.rank, rank.device_kind, rank.count, rank.num_microbatches):
        yield Cell.of(value)
    yield Cell.of(ranges(layers))
    yield Cell(text=f"{recomputed} of {len(layers)}", value=recomputed)
    yield seconds(rank.prediction.forward_s)
    yield seconds(rank.prediction.backward_s)
    yield percent(rank.busy)
    yield size(rank.memory_bytes)
    yield percent(rank.memory_bytes / rank.memory_limit_bytes)


def time_bars(document: MixedPlanResult) -> BarChart:
    """What every rank does with the step."""
    bars = tuple(
        Bar(
            label=f"{rank.rank}, {rank.device_kind}",
            parts=time_parts(_parts_s(document, rank)),
            total=f"{rank.busy:.1%} busy",
        )
        for rank in document.ranks
    )
    step = format_seconds(document.step_time_s or 0.0)
    return BarChart(
        title="Time of a step by rank",
        bars=bars,
        label="rank and device",
        note=f"Every bar is the step, {step}. Recomputation is without the exchanges it repeats.",
    )


def _parts_s(document: MixedPlanResult, rank: MixedRankRecord) -> dict[str, float]:
    """Where the step of a rank goes; what is left of it is waiting."""
    found, m = rank.prediction, rank.num_microbatches
    inside = {
        "tensor": m * found.tensor_parallel_s,
        "context": m * found.context_parallel_s,
        "expert": m * found.expert_parallel_s,
    }
    busy_s, step_s = m * (found.forward_s + found.backward_s), document.step_time_s or 0.0
    work_s = max(0.0, busy_s - sum(inside.values()))
    # a rank's share of exchanges is the same in what it repeats as in all that it does
    recompute_s = m * found.recompute_s * (work_s / busy_s if busy_s else 0.0)
    after = {
        "data": document.exposed_gradient_sync_s or 0.0,
        "optimizer": document.optimizer_s or 0.0,
    }
    pipeline_s = document.pipeline_s or 0.0
    overhead_s = max(0.0, step_s - pipeline_s - sum(after.values()))
    return {
        "compute": work_s - recompute_s,
        "recompute": recompute_s,
        **inside,
        **after,
        "overhead": overhead_s,
        "bubble": max(0.0, pipeline_s - busy_s),
    }


def memory_bars(document: MixedPlanResult) -> tuple[BarChart, ...]:
    """What the ranks on each kind hold when they are fullest, with the limit of the kind."""
    charts = []
    for group in document.groups:
        own = [rank for rank in document.ranks if rank.pool == group.pool]
        limit = group.memory_limit_bytes
        bars = tuple(
            Bar(
                label=str(rank.rank),
                parts=memory_parts(rank.prediction.memory),
                total=format_bytes(rank.memory_bytes),
                is_over=rank.memory_bytes > limit * (1 + 1e-12),
            )
            for rank in own
        )
        if bars:
            charts.append(
                BarChart(
                    title=f"Memory of {group.device_kind} at its fullest, by rank",
                    bars=bars,
                    limit=limit,
                    limit_text=f"usable {format_bytes(limit)}",
                )
            )
    return tuple(charts)


def other_ways(document: MixedPlanResult) -> tuple[BarChart, Table]:
    """The best plan found of every other way, beside the plan."""
    step_s = document.step_time_s or 0.0
    steps = [("the plan", step_s, 1.0)]
    steps += [
        (f"{number}: {LAYOUTS[other.layout]}", other.step_time_s, other.slowdown)
        for number, other in enumerate(document.alternatives, 1)
    ]
    bars = tuple(
        Bar(
            label=name,
            parts=(Part(kind="plain", label="step", amount=time_s, text=format_seconds(time_s)),),
            total=f"{slowdown:.3g}×",
        )
        for name, time_s, slowdown in steps
    )
    rows = tuple(
        (
            Cell.of(number),
            Cell.of(LAYOUTS[other.layout]),
            Cell.of((" → " if other.layout == "across" else " + ").join(other.device_kinds)),
            Cell.of(other.devices_used),
            Cell.of(layout_line(other.parallelism)),
            Cell.of(other.micro_batch),
            Cell.of(other.schedule),
            seconds(other.step_time_s),
            percent(other.slowdown - 1),
        )
        for number, other in enumerate(document.alternatives, 1)
    )
    table = Table(
        title="Each with the best plan found of it",
        columns=(
            Column(title="", key="number"),
            Column(title="way", key="way", is_number=False),
            Column(title="devices", key="device_kinds", is_number=False),
            Column(title="used", key="devices_used"),
            Column(title="layout", key="layout", is_number=False),
            Column(title="microbatch", key="micro_batch"),
            Column(title="schedule", key="schedule", is_number=False),
            Column(title="step", key="step_time_s"),
            Column(title="slower", key="slower"),
        ),
        rows=rows,
    )
    return BarChart(title="Step time", bars=bars, label="way"), table


# The page of a model's plan on several kinds of devices
# ------------------------------------------------------


def mixed_plan_content(subject: Subject[MixedPlanResult]) -> Content:
    """Everything the page says about a plan on several kinds of devices."""
    document = subject.document
    return plan_content(
        document,
        _sections(subject),
        peak_bytes=max((rank.memory_bytes for rank in document.ranks), default=None),
        kind=None if document.layout is None else LAYOUTS[document.layout],
    )


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
    yield from closing_sections(subject)


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
    yield from throughput_cards(document, peak="peak of all devices used")
    fullest = max(document.ranks, key=lambda rank: rank.memory_bytes / rank.memory_limit_bytes)
    yield Card(
        label="fullest device",
        value=format_bytes(fullest.memory_bytes),
        note=f"rank {fullest.rank} on {fullest.device_kind}, of "
        f"{format_bytes(fullest.memory_limit_bytes)}",
        tone="plain" if document.fits else "bad",
    )
    yield from cost_cards(document)
    yield gap_card(document, bound_s=document.lower_bound_s, gap=document.gap or 0.0)


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
    rows.append(searched_row(document))
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
