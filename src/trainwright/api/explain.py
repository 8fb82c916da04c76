"""`trainwright explain`: a document as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainwright.api.documents import load_document
from trainwright.api.result import Report

if TYPE_CHECKING:
    from pathlib import Path


def explain(document: str | Path) -> Report[Any]:
    """Read a plan or estimate document; its report prints the table of `trainwright explain`."""
    return Report(load_document(document))
