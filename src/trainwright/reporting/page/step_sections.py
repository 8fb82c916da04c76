"""What pages about one priced step share: its figures, its ranks, its schedule and its network."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from trainwright.reporting.page.blocks import Section
from trainwright.reporting.page.network_blocks import network_bars, network_table
from trainwright.reporting.page.step_blocks import gantt, memory_bars, rank_table, time_bars
from trainwright.reporting.page.subject import Figure
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.results.mixed_plan import MixedPlanResult
    from trainwright.plan.results.model_estimate import ModelEstimateResult
    from trainwright.plan.results.model_plan import ModelPlanResult
    from trainwright.reporting.page.subject import Subject

    Stepped: TypeAlias = ModelPlanResult | MixedPlanResult | ModelEstimateResult


def step_figures(document: Stepped, *, peak_bytes: float | None, layout: str) -> Iterator[Figure]:
    """Columns of a comparison; `peak_bytes` is that of the fullest device."""
    step_s, tokens, mfu = document.step_time_s, document.tokens_per_s, document.mfu
    devices = document.devices_used
    shown = (
        ("step_time_s", "step", step_s, format_seconds(step_s) if step_s else ""),
        ("tokens_per_s", "tokens/s", tokens, f"{tokens:,.0f}" if tokens else ""),
        ("mfu", "MFU", mfu, f"{mfu:.1%}" if mfu else ""),
        ("peak_memory_bytes", "peak memory", peak_bytes, _size(peak_bytes)),
        ("devices_used", "devices", devices, f"{devices or ''}"),
        ("layout", "layout", layout, layout),
    )
    for key, title, value, text in shown:
        yield Figure(key=key, title=title, value=value, text=text)


def _size(amount: float | None) -> str:
    return format_bytes(amount) if amount else ""


def step_sections(
    subject: Subject[ModelPlanResult] | Subject[ModelEstimateResult], *, title: str
) -> Iterator[Section]:
    """Ranks in a table called `title` and in bars, schedule, network; nothing without a step."""
    priced, limit = subject.priced, subject.document.memory_limit_bytes
    if priced is None:
        return
    table = rank_table(priced, limit_bytes=limit)
    yield Section(name="plan", label="Plan", title=title, blocks=(table,))
    bars = (time_bars(priced), memory_bars(priced, limit))
    yield Section(name="ranks", label="Ranks", title="Time and memory of the ranks", blocks=bars)
    if subject.panel is not None:
        blocks = (gantt(subject.panel, priced),)
        yield Section(
            name="schedule", label="Schedule", title="Schedule and memory over time", blocks=blocks
        )
    if priced.network:
        step_s = priced.step.step_time_s
        network = (network_bars(priced.network, step_s), network_table(priced.network, step_s))
        yield Section(name="network", label="Network", title="Network", blocks=network)
