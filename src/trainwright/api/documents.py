"""Reading documents back, whatever command wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainwright.api.result import Report
from trainwright.plan.results.estimate import EstimateResult
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.results.plan import PlanResult
from trainwright.plan.results.schedule import ScheduleResult

Priced = PlanResult | ModelPlanResult | EstimateResult
Readable = Priced | ScheduleResult
AnyDocument = str | Path | Report[Any] | Readable

PRICED_KINDS: dict[str, type[Priced]] = {
    "plan": PlanResult,
    "model-plan": ModelPlanResult,
    "estimate": EstimateResult,
}
KINDS: dict[str, type[Readable]] = {**PRICED_KINDS, "schedule": ScheduleResult}


def open_document(document: AnyDocument) -> Readable:
    """The plan, estimate or schedule document at a path, or the one a result carries."""
    found = document.document if isinstance(document, Report) else document
    return load_document(found) if isinstance(found, (str, Path)) else found


def load_document(path: str | Path) -> Readable:
    """Read a document and check its figures; every fault of the file is named."""
    from trainwright.api.recheck import recheck
    from trainwright.api.schedule_recheck import recheck_schedule
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.document_json import decode_document
    from trainwright.formats.json_text import parse_json

    value = parse_json(read_bytes(path, name="document"), source=str(path))
    document = decode_document(value, KINDS, source=str(path))
    if isinstance(document, ScheduleResult):
        return recheck_schedule(document, source=str(path))
    return recheck(document, source=str(path))
