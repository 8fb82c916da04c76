"""The page of a model's estimate: one stated run, its step and its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.documents.memory_figures import figure_table
from trainwright.documents.model_estimate import (
    NONE_ENOUGH,
    communication_table,
    enough_table,
)
from trainwright.documents.printing import layout_line
from trainwright.documents.runs import batch_in_words
from trainwright.documents.view import Facts, Notes
from trainwright.pages.blocks import card, folded, section
from trainwright.pages.first_screen import (
    estimate_changes,
    estimate_verdict,
    first_blocks,
    first_pictures,
)
from trainwright.pages.model_plan import cost_cards, waiting_card
from trainwright.pages.step import step_figures, step_sections, term_table
from trainwright.pages.subject import Content, provenance_section, reproduce_section
from trainwright.units import format_count, format_part, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainwright.documents.model_estimate import ModelEstimateResult, PricedChange
    from trainwright.documents.view import Table
    from trainwright.pages.blocks import Card, Section
    from trainwright.pages.subject import Subject


def model_estimate_content(subject: Subject[ModelEstimateResult]) -> Content:
    """Everything the page says about an estimate."""
    document = subject.document
    request, run = document.request, document.request.configuration
    devices = format_count(document.devices_used, "device")
    batches = format_count(document.num_microbatches, "microbatch")
    subtitle = (
        f"Estimate · {layout_line(run.parallelism)} · {batches} of "
        f"{run.microbatch_size}, schedule {run.schedule}, recompute {run.recompute} · "
        f"{batch_in_words(run)}"
    )
    return Content(
        title=f"{request.model.name} on {devices} of {request.cluster.name}",
        subtitle=subtitle,
        figures=tuple(
            step_figures(
                document,
                peak_bytes=document.peak_memory_bytes,
                layout=layout_line(run.parallelism),
            )
        ),
        sections=tuple(_sections(subject)),
    )


def _sections(subject: Subject[ModelEstimateResult]) -> Iterator[Section]:
    document, priced = subject.document, subject.priced
    pictures = first_pictures(priced, document)
    if not document.fits:  # memory is the question
        pictures = pictures[::-1]
    first = first_blocks(estimate_verdict(document), estimate_changes(subject), pictures)
    yield section("summary", "The answer", *first, label="Answer", cards=_cards(document))
    if document.changes == () and not document.fits:
        yield section("changes", "What would make it fit", enough_block(()))
    steps = tuple(step_sections(subject, title="The run"))
    yield from (each for each in steps if each.name == "schedule")
    if priced is not None:
        why: tuple[object, ...] = (
            term_table(priced),
            _facts(document),
            communication_table(document),
        )
        why += tuple(filter(None, [figure_table(document)]))
        yield folded(section("why", "Why it is not faster", *why))
    yield from (folded(each) for each in steps if each.name != "schedule")
    yield provenance_section(subject, document.assumptions)
    inputs = (document.request.model, document.request.cluster)
    yield reproduce_section(subject, inputs)


def _cards(document: ModelEstimateResult) -> Iterator[Card]:
    if document.tokens_per_s is not None:
        per_device = f"{document.tokens_per_s_per_device or 0.0:,.0f} per device"
        yield card("tokens per second", f"{document.tokens_per_s:,.0f}", per_device)
    if document.mfu is not None:
        yield card("MFU", f"{document.mfu:.1%}", f"with recomputation {document.hfu or 0.0:.1%}")
    yield waiting_card(document.bubble_of_makespan)
    yield from cost_cards(document.tokens_per_s, document.devices_used)


def _facts(document: ModelEstimateResult) -> Facts:
    exposed_s = sum(document.exposed_communication_s.values())
    hidden_s = sum(document.hidden_communication_s.values())
    rows = (
        ("pipeline", format_seconds(document.pipeline_s)),
        ("communication exposed", format_part(exposed_s, document.step_time_s)),
        ("communication hidden", format_part(hidden_s, document.step_time_s)),
        ("optimizer", format_seconds(document.optimizer_s)),
    )
    return Facts(title="The step", rows=rows)


def enough_block(changes: Sequence[PricedChange]) -> Table | Notes:
    """Changes of a run that make it fit, or that there is none."""
    if changes:
        return enough_table(changes)
    return Notes(lines=(f"{NONE_ENOUGH.capitalize()}.",), tone="bad")
