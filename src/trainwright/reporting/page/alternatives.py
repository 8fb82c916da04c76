"""The runners-up of a model's plan: a scatter to pick from, and a table."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from trainwright.plan.axis_order import mapping_name
from trainwright.reporting.layout import layout_line
from trainwright.reporting.losses import is_noticed, main_losses
from trainwright.reporting.page.blocks import Cell, Column, Point, Scatter, Table
from trainwright.reporting.page.cells import seconds, share, size
from trainwright.reporting.page.scatter import time_against_memory
from trainwright.reporting.page.step_blocks import TIME_PARTS
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.parallelism import Parallelism
    from trainwright.plan.results.model_plan import Alternative, ModelPlanResult

_MOST_PARTS = 4  # of what a runner-up loses, listed when it is picked


def alternative_blocks(document: ModelPlanResult) -> tuple[Scatter, Table]:
    """The plan and its runners-up, by step time and peak memory."""
    points = (_winner(document), *(_point(document, other) for other in document.alternatives))
    limit = document.memory_limit_bytes
    return time_against_memory(points, limit_bytes=limit), _table(document)


def _winner(document: ModelPlanResult) -> Point:
    step_s = document.step_time_s or 0.0
    peak = max(document.peak_memory_bytes_per_rank, default=0.0)
    layout = layout_line(document.parallelism) if document.parallelism else "degrees per stage"
    return Point(
        name=f"the plan: {layout}, microbatch {document.micro_batch}",
        x=step_s,
        y=peak,
        x_text=format_seconds(step_s),
        y_text=format_bytes(peak),
        facts=(
            ("step", format_seconds(step_s)),
            ("peak memory", format_bytes(peak)),
            ("chosen", "the fastest plan found"),
        ),
        is_winner=True,
    )


def _point(document: ModelPlanResult, other: Alternative) -> Point:
    return Point(
        name=f"{layout_line(other.parallelism)}, microbatch {other.micro_batch}",
        x=other.step_time_s,
        y=other.peak_memory_bytes,
        x_text=format_seconds(other.step_time_s),
        y_text=format_bytes(other.peak_memory_bytes),
        facts=tuple(_differences(document, other)),
    )


def _differences(document: ModelPlanResult, other: Alternative) -> Iterator[tuple[str, str]]:
    """What this one has that the plan has not."""
    before_s = document.step_time_s or 0.0
    later_s = other.step_time_s - before_s
    step = format_seconds(other.step_time_s)
    yield "step", f"{step}, {other.slowdown - 1:+.1%} ({format_seconds(later_s)} longer)"
    more = other.peak_memory_bytes - max(document.peak_memory_bytes_per_rank, default=0.0)
    sign = "+" if more >= 0 else "−"
    peak = format_bytes(other.peak_memory_bytes)
    yield "peak memory", f"{peak}, {sign}{format_bytes(abs(more))}"
    if document.parallelism is not None:
        yield from _changed(document.parallelism, other.parallelism)
    if other.micro_batch != document.micro_batch:
        yield "microbatch", f"{document.micro_batch} → {other.micro_batch}"
    if other.schedule != document.schedule:
        yield "schedule", f"{document.schedule} → {other.schedule}"
    lost = sorted(other.lost_s.items(), key=lambda item: -abs(item[1]))
    for name, more_s in lost[:_MOST_PARTS]:
        if is_noticed(more_s, other):
            sign = "+" if more_s > 0 else "−"
            yield TIME_PARTS.get(name, name), f"{sign}{format_seconds(abs(more_s))}"


def _changed(one: Parallelism, other: Parallelism) -> Iterator[tuple[str, str]]:
    """Every degree that differs."""
    for field in fields(one):
        before, after = getattr(one, field.name), getattr(other, field.name)
        if before == after:
            continue
        if field.name == "axis_order":
            before, after = mapping_name(before), mapping_name(after)
        yield field.name.replace("_", " "), f"{before} → {after}"


def _table(document: ModelPlanResult) -> Table:
    peak = max(document.peak_memory_bytes_per_rank, default=0.0)
    layout = layout_line(document.parallelism) if document.parallelism else "degrees per stage"
    repeated = sum(stage.num_recomputed for stage in document.stages)
    rows = [
        (
            Cell.of(layout),
            Cell.of(document.micro_batch or 0),
            Cell.of(document.schedule or ""),
            Cell.of(repeated),
            seconds(document.step_time_s or 0.0),
            share(0.0),
            size(peak),
            Cell.of(""),
        )
    ]
    rows += [
        (
            Cell.of(layout_line(other.parallelism)),
            Cell.of(other.micro_batch),
            Cell.of(other.schedule),
            Cell.of("" if other.num_recomputed is None else other.num_recomputed),
            seconds(other.step_time_s),
            share(other.slowdown - 1),
            size(other.peak_memory_bytes),
            Cell.of(_loses_most_in(other)),
        )
        for other in document.alternatives
    ]
    return Table(
        title="The plan and its runners-up",
        columns=(
            Column(title="layout", key="layout", is_number=False),
            Column(title="microbatch", key="micro_batch"),
            Column(title="schedule", key="schedule", is_number=False),
            Column(title="recomputed", key="num_recomputed"),
            Column(title="step", key="step_time_s"),
            Column(title="slower", key="slower"),
            Column(title="peak memory", key="peak_memory_bytes"),
            Column(title="loses most in", key="lost", is_number=False),
        ),
        rows=tuple(rows),
        marked=frozenset({0}),
    )


def _loses_most_in(other: Alternative) -> str:
    """The two largest losses against the plan."""
    words = (f"{TIME_PARTS.get(n, n)} +{format_seconds(s)}" for n, s in main_losses(other))
    return ", ".join(words)
