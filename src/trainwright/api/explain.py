"""`trainwright explain`: a document as a table."""

from __future__ import annotations

from trainwright.api.documents import AnyDocument, Readable, open_document
from trainwright.api.result import Report
from trainwright.plan.results.schedule import ScheduleResult


def explain(document: AnyDocument) -> Report[Readable]:
    """Take a plan, estimate or schedule document (a path or a result); the report prints its table.

    Raises `InvalidInput` with every fault of the file.
    """
    found = open_document(document)
    if isinstance(found, ScheduleResult):
        from trainwright.api.schedule_document import timeline_of
        from trainwright.api.schedule_report import ScheduleReport

        return ScheduleReport(found, timeline_of(found))  # type: ignore[return-value]
    return Report(found)
