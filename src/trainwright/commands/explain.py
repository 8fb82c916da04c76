"""`trainwright explain`: a document as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.cluster import Cluster
from trainwright.commands.output import budget, emit, finish
from trainwright.documents.explanation import has_reasons, reasons
from trainwright.documents.open import load_explained_document, opened_by, plan_meant
from trainwright.documents.printing import Report
from trainwright.documents.schedule import ScheduleResult, timeline_of
from trainwright.errors import InvalidInput
from trainwright.formats.document_json import decode
from trainwright.plans.plan import Embedded

if TYPE_CHECKING:
    from trainwright.documents.calibration import ConstantsResult
    from trainwright.documents.open import AnyDocument, Explained


def explain(document: AnyDocument | Explained) -> Report[Explained]:
    """Take a plan, estimate or schedule document (a path or a result); the report prints its table.

    A what-if is shown as `whatif` printed it, two plans beside each other; so is an improvement.
    Raises `InvalidInput` with every fault of the file.
    """
    found = opened_by(load_explained_document, document)
    if isinstance(found, ScheduleResult):
        from trainwright.pages.schedule_report import ScheduleReport

        return ScheduleReport(found, timeline_of(found))  # type: ignore[return-value]
    return Report(found)


def explain_constants(document: AnyDocument | Explained) -> Report[ConstantsResult]:
    """Every constant of the document's cluster (a path or a result) with its origin and source.

    Raises `InvalidInput` where the document has no cluster.
    """
    from trainwright.documents.calibration import ConstantsResult, constants_of

    embedded = _cluster_of(explain(document).document)
    if embedded is None:
        raise InvalidInput.of("constants", "must be those of a document with a cluster, got none")
    cluster = decode(Cluster, embedded.content, path="request.cluster.content")
    return Report(ConstantsResult(cluster=cluster.name, constants=tuple(constants_of(cluster))))


def _cluster_of(document: Explained) -> Embedded | None:
    found: Embedded | None = getattr(plan_meant(document).request, "cluster", None)
    return found


# `trainwright explain`
# ---------------------


def command(
    document: str,
    *,
    quick: bool = False,
    constants: bool = False,
    as_json: bool = False,
    verbose: bool = False,
    time_limit: float | None = None,
) -> None:
    """Print the table, and of a model's plan the reasons."""
    if constants:
        emit(explain_constants(document), as_json=as_json, output=None)
        return
    report = explain(document)
    if quick or not has_reasons(report.document):
        emit(report, as_json=as_json, output=None, verbose=verbose)
        return
    with budget(time_limit) as allowed:
        found = reasons(report, budget=allowed)
    emit(found, verbose=verbose, as_json=as_json, output=None)
    finish(0, interrupted=allowed.interrupted)
