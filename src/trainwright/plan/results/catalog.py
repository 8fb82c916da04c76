"""What is built in, with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.plan.results.request import FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogItem:
    """One entry: its name, its key figure in words, its source."""

    name: str
    summary: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogResult:
    """Entries by topic."""

    kind: str = "catalog"
    format_version: int = FORMAT_VERSION
    topics: dict[str, tuple[CatalogItem, ...]]
