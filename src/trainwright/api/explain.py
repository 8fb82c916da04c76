"""`trainwright explain`: a document as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.api.documents import AnyDocument, Readable, load_explained_document
from trainwright.api.printed import Report
from trainwright.plan.results.schedule import ScheduleResult

if TYPE_CHECKING:
    from trainwright.plan.results.mixed_plan import MixedPlanResult
    from trainwright.plan.results.model_estimate import ModelEstimateResult
    from trainwright.plan.results.model_sweep import ModelSweepResult

    Explained = Readable | MixedPlanResult | ModelEstimateResult | ModelSweepResult


def explain(document: AnyDocument | Explained) -> Report[Explained]:
    """Take a plan, estimate or schedule document (a path or a result); the report prints its table.

    Raises `InvalidInput` with every fault of the file.
    """
    given = document.document if isinstance(document, Report) else document
    found = load_explained_document(given) if isinstance(given, (str, Path)) else given
    if isinstance(found, ScheduleResult):
        from trainwright.api.schedule_document import timeline_of
        from trainwright.api.schedule_report import ScheduleReport

        return ScheduleReport(found, timeline_of(found))  # type: ignore[return-value]
    return Report(found)
