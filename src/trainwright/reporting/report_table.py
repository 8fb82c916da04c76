"""What a report shows, as a line and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.text import add_row, counted, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trainwright.plan.results.report import ReportResult


def report_table(document: ReportResult) -> RenderableType:
    """The page's size, its documents, and what was left out."""
    from rich.console import Group
    from rich.text import Text

    shown = counted(len(document.documents), "document")
    made = table(None, (("document", "left"), ("kind", "left"), ("left out", "left")))
    for one in document.documents:
        add_row(made, one.name, one.kind, "; ".join(one.left_out))
    return Group(Text(f"a page of {document.size_bytes / 1e3:,.0f} kB on {shown}"), made)
