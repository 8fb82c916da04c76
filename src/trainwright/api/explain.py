"""`trainwright explain`: a document as a table."""

from __future__ import annotations

from trainwright.api.documents import AnyDocument, Priced, open_document
from trainwright.api.result import Report


def explain(document: AnyDocument) -> Report[Priced]:
    """Take a plan or estimate document (a path or a result); the report prints its table.

    Raises `InvalidInput` with every fault of the file.
    """
    return Report(open_document(document))
