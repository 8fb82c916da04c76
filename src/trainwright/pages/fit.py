"""The pages of what a model is, and of what fits on devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.documents.fit import fit_basis, fit_table
from trainwright.documents.model_summary import model_summary_report
from trainwright.documents.view import Notes, Table
from trainwright.pages.blocks import Part, Verdict, card, lay_out_areas, section
from trainwright.pages.subject import Content, figures, reproduce_section
from trainwright.units import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.documents.fit import FitResult
    from trainwright.documents.model_summary import ModelSummary
    from trainwright.pages.blocks import Card, Section
    from trainwright.pages.subject import Subject


def fit_content(subject: Subject[FitResult]) -> Content:
    """Everything the page says about what fits."""
    document = subject.document
    request = document.request
    devices = format_count(request.num_devices, "device")
    longest = max((row.longest_sequence for row in document.rows if row.fits), default=0)
    return Content(
        title=f"{request.model.name} on {devices} of {request.cluster.name}",
        subtitle=f"What trains there, with sequences of {request.sequence_length:,} tokens",
        figures=tuple(
            figures(
                ("fits", "ways that fit", sum(row.fits for row in document.rows), ""),
                ("longest_sequence", "longest sequence", longest, f"{longest:,}"),
            )
        ),
        sections=tuple(_sections(subject)),
    )


def _sections(subject: Subject[FitResult]) -> Iterator[Section]:
    document = subject.document
    basis = fit_basis(document)
    blocks = (
        _answer(document),
        fit_table(document),
        Notes(lines=(f"{basis[:1].upper()}{basis[1:]}.",)),
    )
    yield section("table", "The answer", *blocks, label="Answer", cards=_cards(document))
    yield reproduce_section(subject, (document.request.model, document.request.cluster))


def _answer(document: FitResult) -> Verdict:
    """What trains, the first way in full, and what does not."""
    room = format_bytes(document.device_memory_bytes)
    tight = [row.way for row in document.rows if not row.fits]
    lacking = f" Not: {', '.join(tight)}." if tight else ""
    row = next((each for each in document.rows if each.fits), None)
    if row is None:
        return Verdict(state="Nothing fits", said=f"{room} on a device.{lacking}", tone="bad")
    said = (
        f"{row.way} trains at {row.tokens_per_s:,.0f} tokens per second, with "
        f"{format_bytes(row.device_bytes)} of {room} on a device and sequences of up to "
        f"{row.longest_sequence:,} tokens.{lacking}"
    )
    return Verdict(state="Fits", said=said, tone="good")


def _cards(document: FitResult) -> Iterator[Card]:
    for row in document.rows:
        needed = format_bytes(row.device_bytes)
        longest = f"up to {row.longest_sequence:,} tokens a sequence"
        yield card(
            row.way,
            "fits" if row.fits else "does not fit",
            f"{needed} on a device" + (f", {longest}" if row.fits else ""),
            "good" if row.fits else "bad",
        )


# What a model is
# ---------------

_PART_COLORS: Final = (
    "arrays",
    "lanes",
    "global",
    "array-buffers",
    "recompute",
    "workspace",
    "opaque",
)


def model_content(subject: Subject[ModelSummary]) -> Content:
    """Everything the page says about a model."""
    document = subject.document
    total, active = document.parameters_total, document.parameters_active
    return Content(
        title=f"{document.name}: what it is",
        subtitle=f"{document.model_type}, counted by {document.counted_by}",
        figures=tuple(
            figures(
                ("parameters_total", "parameters", total, f"{total:,}"),
                ("parameters_active", "active", active, f"{active:,}"),
            )
        ),
        sections=tuple(_model_sections(subject)),
    )


def _model_sections(subject: Subject[ModelSummary]) -> Iterator[Section]:
    document = subject.document
    first, *lines = model_summary_report(document)
    said = str(first).partition(": ")[2]
    tables = [each for each in lines if isinstance(each, Table)]
    inside = [part for part in document.parts if part.name != "mtp"]  # which stands beside them
    areas = tuple(
        Part(
            kind=_PART_COLORS[min(at, len(_PART_COLORS) - 1)],
            label=part.name,
            amount=part.parameters,
            text=f"{part.parameters:,} ({part.parameters / document.parameters_total:.1%})",
        )
        for at, part in enumerate(sorted(inside, key=lambda each: -each.parameters))
    )
    yield section(
        "summary",
        "The answer",
        Verdict(state=document.name, said=f"{said}.", tone="plain"),
        lay_out_areas(areas, title="Where the parameters are"),
        label="Answer",
        cards=_model_cards(document),
    )
    yield section("made-of", "What it is made of", *tables, label="Made of")
    limits = tuple(each for each in lines if isinstance(each, str))
    yield section("limits", "What it costs, and how it is cut", Notes(lines=limits), label="Limits")
    yield reproduce_section(subject)


def _model_cards(document: ModelSummary) -> Iterator[Card]:
    forward = document.flops_forward_per_token
    note = f"forward, at {document.sequence_length:,} tokens"
    yield card("FLOPs per token", f"{forward / 1e9:,.4g} G", note)
    if document.cache_bytes is not None:
        note = f"of one sequence of {document.sequence_length:,} tokens, 16 bit"
        yield card("cache", format_bytes(document.cache_bytes), note)
    yield card("layers", f"{sum(each.count for each in document.layers):,}")
