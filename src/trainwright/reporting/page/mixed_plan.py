"""The page of a model's plan on several kinds of devices.

Ranks are those of each chain of like replicas, each with the limit of its own kind of device. The
schedule drawn is that of the chain that ends the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from trainwright.reporting.page.planned import (
    closing_sections,
    cost_cards,
    gap_card,
    plan_content,
    searched_row,
    throughput_cards,
)
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.results.mixed_plan import MixedPlanResult
    from trainwright.reporting.page.subject import Content, Subject


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
