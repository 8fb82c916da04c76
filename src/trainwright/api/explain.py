"""`trainwright explain`: a document as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.api.documents import AnyDocument, load_explained_document
from trainwright.api.printed import Report
from trainwright.errors import InvalidInput
from trainwright.plan.results.schedule import ScheduleResult

if TYPE_CHECKING:
    from trainwright.api.documents import Explained
    from trainwright.plan.results.constants import ConstantsResult
    from trainwright.plan.results.request import Embedded


def explain(document: AnyDocument | Explained) -> Report[Explained]:
    """Take a plan, estimate or schedule document (a path or a result); the report prints its table.

    A what-if is shown as `whatif` printed it, two plans beside each other; so is an improvement.
    Raises `InvalidInput` with every fault of the file.
    """
    given = document.document if isinstance(document, Report) else document
    found = load_explained_document(given) if isinstance(given, (str, Path)) else given
    if isinstance(found, ScheduleResult):
        from trainwright.api.schedule_document import timeline_of
        from trainwright.api.schedule_report import ScheduleReport

        return ScheduleReport(found, timeline_of(found))  # type: ignore[return-value]
    return Report(found)


def explain_constants(document: AnyDocument | Explained) -> Report[ConstantsResult]:
    """Every constant of the document's cluster (a path or a result) with its origin and source.

    Raises `InvalidInput` where the document has no cluster.
    """
    from trainwright.cluster import Cluster
    from trainwright.formats.document_json import decode
    from trainwright.plan.results.constants import ConstantsResult
    from trainwright.reporting.constants_table import constants_of

    embedded = _cluster_of(explain(document).document)
    if embedded is None:
        raise InvalidInput.of("constants", "must be those of a document with a cluster, got none")
    cluster = decode(Cluster, embedded.content, path="request.cluster.content")
    return Report(ConstantsResult(cluster=cluster.name, constants=tuple(constants_of(cluster))))


def _cluster_of(document: Explained) -> Embedded | None:
    from trainwright.plan.results.what_if import WhatIfResult

    plan = document.after if isinstance(document, WhatIfResult) else document
    found: Embedded | None = getattr(plan.request, "cluster", None)
    return found
