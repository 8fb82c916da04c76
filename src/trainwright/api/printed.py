"""A document that prints and saves itself: what every call returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

Document = TypeVar("Document")


@dataclass(frozen=True, slots=True)
class Report(Generic[Document]):
    """A document and its table."""

    document: Document

    def renderable(self) -> RenderableType:
        """The table, for a rich console."""
        from trainwright.reporting.render import render

        return render(self.document)

    def explain(self) -> str:
        """The table as plain text."""
        from trainwright.reporting.text import to_text

        return to_text(self.renderable())

    def to_dict(self) -> dict[str, Any]:
        """The document as JSON values."""
        from trainwright.formats.document_json import encode

        return encode(self.document)

    def to_json(self) -> str:
        """The document as JSON text, one line."""
        import json

        return json.dumps(self.to_dict(), allow_nan=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the document; nothing is left behind where that fails."""
        from trainwright.formats.atomic_file import write_text

        write_text(path, self.to_json())

    def __str__(self) -> str:
        return self.explain()
