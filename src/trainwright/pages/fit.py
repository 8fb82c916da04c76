"""The page of what fits on devices: the table, and what to ask next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.documents.fit import fit_basis, fit_table
from trainwright.documents.view import Notes
from trainwright.pages.blocks import card, section
from trainwright.pages.subject import Content, figures, reproduce_section
from trainwright.units import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.documents.fit import FitResult
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
    basis = fit_basis(document).capitalize()
    yield section(
        "table", "What trains", fit_table(document), Notes(lines=(basis,)), cards=_cards(document)
    )
    yield reproduce_section(subject, (document.request.model, document.request.cluster))


def _cards(document: FitResult) -> Iterator[Card]:
    yield card("memory of a device", format_bytes(document.device_memory_bytes))
    for row in document.rows:
        yield card(
            row.way,
            "fits" if row.fits else "does not fit",
            f"up to {row.longest_sequence:,} tokens a sequence",
            "good" if row.fits else "bad",
        )
