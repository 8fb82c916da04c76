"""The document of `report`: what was written about what."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.plan.results.request import FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedDocument:
    """A document on the page; `left_out` says what could not be shown of it, and why."""

    kind: str
    name: str
    sha256: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult:
    """A page: its size and hash, and the documents it shows."""

    kind: str = "report"
    format_version: int = FORMAT_VERSION
    size_bytes: int
    sha256: str
    documents: tuple[ReportedDocument, ...]
