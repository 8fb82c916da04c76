"""The catalog as tables, one per topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.text import add_row, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trainwright.plan.results.catalog import CatalogResult


def catalog_report(found: CatalogResult) -> RenderableType:
    """One table per topic."""
    from rich.console import Group

    parts = []
    for topic, items in found.topics.items():
        made = table(topic, (("name", "left"), ("what", "left"), ("source", "left")))
        for item in items:
            add_row(made, item.name, item.summary, item.source)
        parts.append(made)
    return Group(*parts)
