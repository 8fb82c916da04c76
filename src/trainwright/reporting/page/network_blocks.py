"""Which network levels a step keeps busy, as bars and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.page.blocks import Bar, BarChart, Cell, Column, Part, Table
from trainwright.reporting.page.cells import part_of_step, share
from trainwright.units import format_bandwidth, format_part

if TYPE_CHECKING:
    from trainwright.plan.network_use import LevelUse


def network_bars(levels: tuple[LevelUse, ...], step_time_s: float) -> BarChart:
    """How much of the step each level is under way, exposed and hidden."""
    bars = []
    for level in levels:
        exposed_s = sum(axis.exposed_s for axis in level.axes)
        hidden_s = sum(axis.hidden_s for axis in level.axes)
        idle_s = max(step_time_s - exposed_s - hidden_s, 0.0)
        amounts = (("exposed", exposed_s), ("hidden", hidden_s), ("unused", idle_s))
        parts = tuple(
            Part(
                kind=kind,
                label=kind,
                amount=amount,
                text=format_part(amount, step_time_s),
            )
            for kind, amount in amounts
        )
        used = f"{(exposed_s + hidden_s) / step_time_s:.1%} used" if step_time_s else ""
        bars.append(Bar(label=level.name, parts=parts, total=used))
    return BarChart(title="Use of each network level", bars=tuple(bars), label="level")


def network_table(levels: tuple[LevelUse, ...], step_time_s: float) -> Table:
    """What crosses each level."""
    rows = [
        (
            Cell.of(level.name),
            Cell.of(axis.kind),
            Cell.of(axis.ranks),
            Cell(
                text=format_bandwidth(level.effective_bytes_per_s),
                value=level.effective_bytes_per_s,
            ),
            part_of_step(axis.exposed_s, step_time_s),
            part_of_step(axis.hidden_s, step_time_s),
            share(axis.total_s / step_time_s),
        )
        for level in levels
        for axis in level.axes
    ]
    return Table(
        title="Communication of the busiest rank",
        columns=(
            Column(title="level", key="level", is_number=False),
            Column(title="for", key="kind", is_number=False),
            Column(title="ranks", key="ranks"),
            Column(title="per device", key="effective_bytes_per_s"),
            Column(title="exposed", key="exposed_s"),
            Column(title="hidden", key="hidden_s"),
            Column(title="of step", key="share"),
        ),
        rows=tuple(rows),
        note="A group that spans several levels counts at the outermost one. Exposed time makes "
        "the step longer, hidden time runs beside compute; collectives that recomputation repeats "
        "are included.",
    )
