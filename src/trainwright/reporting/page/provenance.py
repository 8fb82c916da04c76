"""Where the numbers come from: every constant with its source, hashes, and how to ask again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainwright.reporting.constants_table import CONSTANT_COLUMNS, constant_rows
from trainwright.reporting.page.blocks import Cell, Code, Column, Facts, Notes, Section, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainwright.cluster import Cluster
    from trainwright.plan.results.request import Embedded
    from trainwright.reporting.page.subject import Subject


def provenance_section(subject: Subject[Any], assumptions: Mapping[str, str]) -> Section:
    """What the figures rest on."""
    blocks: list[Facts | Table | Notes] = []
    if assumptions:
        blocks.append(Facts(title="Taken for granted", rows=tuple(assumptions.items())))
    if subject.cluster is not None:
        blocks.append(_constants(subject.cluster))
    warnings = tuple(getattr(subject.document, "warnings", ()))
    if warnings:
        blocks.append(Notes(title="Warnings", lines=warnings, tone="warn"))
    return Section(
        name="provenance",
        label="Sources",
        title="Where the numbers come from",
        blocks=tuple(blocks),
    )


def reproduce_section(subject: Subject[Any], inputs: tuple[Embedded, ...]) -> Section:
    """Command line, hashes of what went in and of the document, version."""
    request = subject.document.request
    hashes = [(f"{part.kind} {part.name}", f"sha256 {part.sha256}") for part in inputs]
    facts = (
        ("trainwright", request.trainwright_version),
        *hashes,
        ("this document", f"sha256 {subject.sha256}"),
    )
    blocks: list[Code | Notes | Facts] = [Code(text=subject.command)]
    if subject.command_note:
        blocks.append(Notes(lines=(subject.command_note,)))
    blocks.append(Facts(rows=facts))
    if subject.left_out:
        blocks.append(Notes(title="Left out of this page", lines=subject.left_out))
    return Section(
        name="reproduce", label="Reproduce", title="How to reproduce", blocks=tuple(blocks)
    )


def _constants(cluster: Cluster) -> Table:
    return Table(
        title="Constants",
        columns=tuple(
            Column(title=title, key=key, is_number=False) for key, title in CONSTANT_COLUMNS.items()
        ),
        rows=tuple(tuple(map(Cell.of, row)) for row in constant_rows(cluster)),
    )
