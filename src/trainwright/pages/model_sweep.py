"""The page of a model's plans on several numbers of devices: the rows, then the preferred plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.documents.printing import layout_line
from trainwright.documents.sweep import is_late, objective_figure
from trainwright.documents.view import Cell, Column, Notes, Table, percent, seconds, size
from trainwright.pages.blocks import Bar, BarChart, Card, Part, Section
from trainwright.pages.model_plan import model_plan_content
from trainwright.pages.subject import Content, Figure, provenance_section, reproduce_section
from trainwright.units import format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.documents.sweep import ModelSweepResult, SweepRow
    from trainwright.pages.subject import Subject


def model_sweep_content(subject: Subject[ModelSweepResult]) -> Content:
    """The rows, and everything the page says about the best of them."""
    document = subject.document
    request = document.request
    cluster = request.cluster.name if request.cluster else "?"
    sizes = ", ".join(str(row.devices) for row in document.rows)
    best = "no plan" if document.best is None else f"{document.rows[document.best].devices} devices"
    return Content(
        title=f"{request.model.name} on {cluster}: {best}",
        subtitle=f"Best by {document.objective} of {sizes} devices",
        figures=_figures(subject),
        sections=tuple(_sections(subject)),
    )


def _figures(subject: Subject[ModelSweepResult]) -> tuple[Figure, ...]:
    best = _best_content(subject)
    return () if best is None else best.figures


def _best_content(subject: Subject[ModelSweepResult]) -> Content | None:
    plan = subject.document.best_plan
    return None if plan is None else model_plan_content(replace(subject, document=plan))  # type: ignore[arg-type]


def _sections(subject: Subject[ModelSweepResult]) -> Iterator[Section]:
    document = subject.document
    blocks: list[Table | BarChart | Notes] = [_rows(document)]
    planned = [row for row in document.rows if row.tokens_per_s]
    if planned:
        blocks.append(_throughput(planned))
    reasons = tuple(f"{row.devices} devices: {row.reason}" for row in document.rows if row.reason)
    if reasons:
        blocks.append(Notes(title="Without a plan", lines=reasons))
    cards = tuple(_cards(document))
    yield Section(
        name="sizes",
        label="Devices",
        title="Numbers of devices",
        cards=cards,
        blocks=tuple(blocks),
    )
    best = _best_content(subject)
    if best is None:
        yield provenance_section(subject, {})
        yield reproduce_section(subject, (document.request.model,))
        return
    yield from best.sections


def _cards(document: ModelSweepResult) -> Iterator[Card]:
    if document.best is None:
        yield Card(label="status", value=str(document.status), tone="bad")
        return
    row = document.rows[document.best]
    yield Card(label="preferred", value=f"{row.devices}", note=f"devices, by {document.objective}")
    yield Card(
        label="tokens per second and device",
        value=f"{row.tokens_per_s_per_device or 0:,.0f}",
        note=f"{row.tokens_per_s or 0:,.0f} in all",
    )
    if document.gap is not None and document.objective_bound is not None:
        bound = objective_figure(document.objective, document.objective_bound)
        least = f"{document.devices_from} to {document.rows[-1].devices} devices"
        value = f"≤ {format_percent_up(document.gap)}" if document.gap > 0 else "proved"
        yield Card(label="optimality gap", value=value, note=f"bound of all on {least}: {bound}")
    if row.train_s is not None:
        note = "failures and checkpoints included"
        yield Card(label="training", value=f"{row.train_s / 86_400:,.1f} days", note=note)
    if row.cost is not None:
        yield Card(label="cost", value=f"{row.cost:,.0f}", note="of the whole training")


def _rows(document: ModelSweepResult) -> Table:
    rows = tuple(tuple(_row_cells(document, index)) for index in range(len(document.rows)))
    return Table(
        title="The best plan of each number",
        columns=_COLUMNS,
        rows=rows,
        marked=frozenset(() if document.best is None else (document.best,)),
    )


_COLUMNS = (
    Column(title="devices", key="devices"),
    Column(title="step", key="step_time_s"),
    Column(title="tokens/s", key="tokens_per_s"),
    Column(title="per device", key="tokens_per_s_per_device"),
    Column(title="MFU", key="mfu"),
    Column(title="layout", key="layout", is_number=False),
    Column(title="microbatch", key="micro_batch"),
    Column(title="memory", key="peak_memory_bytes"),
    Column(title="useful", key="goodput"),
    Column(title="training", key="train_s"),
    Column(title="", key="mark", is_number=False),
)


def _row_cells(document: ModelSweepResult, index: int) -> Iterator[Cell]:
    row, empty = document.rows[index], Cell.of("")
    yield Cell.of(row.devices)
    yield Cell.of(str(row.status)) if row.step_time_s is None else seconds(row.step_time_s)
    for rate in (row.tokens_per_s, row.tokens_per_s_per_device):
        yield empty if rate is None else Cell(text=f"{rate:,.0f}", value=rate)
    yield empty if row.mfu is None else percent(row.mfu)
    yield Cell.of(layout_line(row.parallelism) if row.parallelism else "")
    yield empty if row.micro_batch is None else Cell.of(row.micro_batch)
    yield empty if row.peak_memory_bytes is None else size(row.peak_memory_bytes)
    yield empty if row.goodput is None else percent(row.goodput)
    yield empty if row.train_s is None else _days(row)
    marks = ["preferred"] if index == document.best else []
    marks += ["on the front"] if index in document.pareto else []
    marks += ["late"] if is_late(document, index) else []
    yield Cell.of(", ".join(marks))


def _days(row: SweepRow) -> Cell:
    assert row.train_s is not None
    return Cell(text=f"{row.train_s / 86_400:,.1f} days", value=row.train_s)


def _throughput(planned: list[SweepRow]) -> BarChart:
    bars = tuple(
        Bar(
            label=str(row.devices),
            parts=(
                Part(
                    kind="plain",
                    label="tokens per second",
                    amount=row.tokens_per_s or 0.0,
                    text=f"{row.tokens_per_s or 0:,.0f}",
                ),
            ),
            total=f"step {format_seconds(row.step_time_s or 0.0)}",
        )
        for row in planned
    )
    return BarChart(title="Tokens per second by devices", bars=bars, label="devices")
