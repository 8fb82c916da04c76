"""`trainwright explain`: a document as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.api.documents import AnyDocument, Priced, open_any_document
from trainwright.api.result import Report

if TYPE_CHECKING:
    from trainwright.plan.results.model_estimate import ModelEstimateResult


def explain(
    document: AnyDocument | ModelEstimateResult,
) -> Report[Priced | ModelEstimateResult]:
    """Take a plan or estimate document (a path or a result); the report prints its table.

    Raises `InvalidInput` with every fault of the file.
    """
    return Report(open_any_document(document))
