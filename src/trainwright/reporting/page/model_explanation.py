"""The page of an explained plan: the plan's page, with what its choices buy and what would help."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.plan.status import Status
from trainwright.reporting.layout import layout_line
from trainwright.reporting.page.blocks import Cell, Column, Facts, Table
from trainwright.reporting.page.cells import seconds
from trainwright.reporting.page.model_plan import model_plan_content

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.results.model_explanation import (
        GainRecord,
        ModelExplanation,
        WithoutRecord,
    )
    from trainwright.reporting.page.blocks import Section
    from trainwright.reporting.page.subject import Content, Subject


def model_explanation_content(subject: Subject[ModelExplanation]) -> Content:
    """The plan's content, its reasons extended."""
    document = subject.document
    found = model_plan_content(replace(subject, document=document.plan))  # type: ignore[arg-type]
    sections = tuple(
        _extended(section, document) if section.name == "why" else section
        for section in found.sections
    )
    return replace(found, sections=sections)


def _extended(section: Section, document: ModelExplanation) -> Section:
    return replace(section, blocks=(*section.blocks, *_more(document)))


def _more(document: ModelExplanation) -> Iterator[Table | Facts]:
    if document.without:
        yield Table(
            title="The best plan without",
            columns=(
                Column(title="without", key="name", is_number=False),
                Column(title="step", key="step_time_s"),
                Column(title="slower", key="slowdown"),
                Column(title="layout", key="layout", is_number=False),
            ),
            rows=tuple(tuple(_without_cells(one)) for one in document.without),
            note="Looked for again with a choice forbidden; the best found where time ran out.",
        )
    if document.gains:
        yield Table(
            title="With more of",
            columns=(
                Column(title="resource", key="resource", is_number=False),
                Column(title="more", key="change", is_number=False),
                Column(title="step", key="step_time_s"),
                Column(title="saves", key="saved"),
                Column(title="plan", key="plan", is_number=False),
            ),
            rows=tuple(tuple(_gain_cells(one)) for one in document.gains),
        )
    if document.binding is not None:
        yield Facts(rows=(("what would help most", document.binding),))


def _without_cells(one: WithoutRecord) -> Iterator[Cell]:
    yield Cell.of(one.name)
    if one.step_time_s is None or one.slowdown is None:
        nothing = "nothing fits" if one.status is Status.INFEASIBLE else "not known"
        yield Cell.of(nothing)
        yield Cell.of("")
    else:
        yield seconds(one.step_time_s)
        yield Cell(text=f"{one.slowdown - 1:+.1%}", value=one.slowdown - 1)
    yield Cell.of(layout_line(one.parallelism) if one.parallelism else "")


def _gain_cells(one: GainRecord) -> Iterator[Cell]:
    yield Cell.of(one.resource)
    yield Cell.of(one.change)
    yield seconds(one.step_time_s)
    yield Cell(text=f"{one.saved:.2%}", value=one.saved)
    yield Cell.of("planned again" if one.replanned else "the same plan")
