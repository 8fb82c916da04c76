"""The page of a model's plans on several numbers of devices: the rows, then the preferred plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.documents.sweep import (
    objective_figure,
    row_table,
    training_table,
    words_of_setting,
)
from trainwright.documents.view import Notes
from trainwright.pages.blocks import Verdict, card, plain_bars, section
from trainwright.pages.first_screen import evidence
from trainwright.pages.model_plan import model_plan_content
from trainwright.pages.subject import Content, provenance_section, reproduce_section
from trainwright.units import format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.documents.sweep import ModelSweepResult, SweepRow
    from trainwright.documents.view import Table
    from trainwright.pages.blocks import BarChart, Card, Section
    from trainwright.pages.subject import Figure, Subject


def model_sweep_content(subject: Subject[ModelSweepResult]) -> Content:
    """The rows, and everything the page says about the best of them."""
    document = subject.document
    request = document.request
    cluster = request.cluster.name if request.cluster else "?"
    sizes = ", ".join(str(row.devices) for row in document.rows) + " devices"
    if document.swept:
        each = (f"{flag} {', '.join(values)}" for flag, values in document.values_swept)
        sizes = "; ".join(each)
    best = "no plan" if document.best is None else _name(document.rows[document.best])
    return Content(
        title=f"{request.model.name} on {cluster}: {best}",
        subtitle=f"Best by {document.objective} of {sizes}",
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
    blocks: list[Verdict | Table | BarChart | Notes] = [_answer(document)]
    planned = [row for row in document.rows if row.tokens_per_s]
    if planned:
        blocks.append(_throughput(planned, document.swept))
    blocks.append(row_table(document))
    if document.training.tokens is not None:
        blocks.append(training_table(document))
    reasons = tuple(f"{_name(row)}: {row.reason}" for row in document.rows if row.reason)
    if reasons:
        blocks.append(Notes(title="Without a plan", lines=reasons))
    yield section("sizes", "The answer", *blocks, label="Answer", cards=_cards(document))
    best = _best_content(subject)
    if best is None:
        yield provenance_section(subject, {})
        yield reproduce_section(subject, (document.request.model,))
        return
    assert document.best is not None, "a plan of the best row"
    first, *rest = best.sections
    title = f"The best plan: {_name(document.rows[document.best])}"
    yield replace(first, title=title, label="Best plan")
    yield from rest


def _answer(document: ModelSweepResult) -> Verdict:
    """Which setting is best, and what it reaches."""
    count = f"{len(document.rows)} settings"
    if not document.swept:
        count = f"{len(document.rows)} numbers of devices"
    if document.best is None or document.best_plan is None:
        return Verdict(state="No plan", said=f"none was found for {count}.", tone="bad")
    row = document.rows[document.best]
    said = (
        f"the best of {count} by {document.objective}: {format_seconds(row.step_time_s or 0.0)} "
        f"per step, {row.tokens_per_s or 0.0:,.0f} tokens per second, "
        f"{row.tokens_per_s_per_device or 0.0:,.0f} per device."
    )
    known = evidence(document.best_plan.assumptions)
    return Verdict(state=_name(row), said=said, tone="good", evidence=known)


def _cards(document: ModelSweepResult) -> Iterator[Card]:
    if document.best is None:
        yield card("status", str(document.status), tone="bad")
        return
    row = document.rows[document.best]
    yield card("preferred", _name(row), f"by {document.objective}")
    yield card(
        "tokens per second and device",
        f"{row.tokens_per_s_per_device or 0:,.0f}",
        f"{row.tokens_per_s or 0:,.0f} in all",
    )
    if document.gap is not None and document.objective_bound is not None:
        bound = objective_figure(document.objective, document.objective_bound)
        least = f"{document.devices_from} to {document.rows[-1].devices} devices"
        value = f"≤ {format_percent_up(document.gap)}" if document.gap > 0 else "proved"
        yield card("optimality gap", value, f"bound of all on {least}: {bound}")
    if row.train_s is not None:
        days = f"{row.train_s / 86_400:,.1f} days"
        yield card("training", days, "failures and checkpoints included")
    if row.cost is not None:
        yield card("cost", f"{row.cost:,.0f}", "of the whole training")


def _name(row: SweepRow) -> str:
    return words_of_setting(row.settings, row.devices)


def _throughput(planned: list[SweepRow], swept: tuple[str, ...]) -> BarChart:
    rows = (
        (
            ", ".join((row.settings or {}).values()) or str(row.devices),
            row.tokens_per_s or 0.0,
            f"{row.tokens_per_s or 0:,.0f}",
            f"step {format_seconds(row.step_time_s or 0.0)}",
        )
        for row in planned
    )
    by = ", ".join(swept) or "devices"
    return plain_bars(f"Tokens per second by {by}", by, rows, what="tokens per second")
