"""Reading documents back, whatever command wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.api.result import Report
from trainwright.plan.results.estimate import EstimateResult
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.results.plan import PlanResult

if TYPE_CHECKING:
    from trainwright.plan.results.model_estimate import ModelEstimateResult

Priced = PlanResult | ModelPlanResult | EstimateResult
AnyDocument = str | Path | Report[Any] | Priced

KINDS: dict[str, type[Priced]] = {
    "plan": PlanResult,
    "model-plan": ModelPlanResult,
    "estimate": EstimateResult,
}


def open_document(document: AnyDocument) -> Priced:
    """The plan or estimate document at a path, or the one a result carries."""
    found = document.document if isinstance(document, Report) else document
    return load_document(found) if isinstance(found, (str, Path)) else found


def open_any_document(
    document: AnyDocument | ModelEstimateResult,
) -> Priced | ModelEstimateResult:
    """Like `open_document`, and also the estimate of a model."""
    found = document.document if isinstance(document, Report) else document
    if not isinstance(found, (str, Path)):
        return found
    from trainwright.api.recheck import recheck_estimate
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.document_json import decode_document
    from trainwright.formats.json_text import parse_json
    from trainwright.plan.results.model_estimate import ModelEstimateResult

    value = parse_json(read_bytes(found, name="document"), source=str(found))
    kinds: dict[str, type[Any]] = {**KINDS, "model-estimate": ModelEstimateResult}
    read = decode_document(value, kinds, source=str(found))
    if isinstance(read, ModelEstimateResult):
        return recheck_estimate(read, source=str(found))
    return _rechecked(read, source=str(found))


def _rechecked(document: Priced, *, source: str) -> Priced:
    from trainwright.api.recheck import recheck

    return recheck(document, source=source)


def load_document(path: str | Path) -> Priced:
    """Read a plan or estimate document and check its figures; every fault of the file is named."""
    from trainwright.api.recheck import recheck
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.document_json import decode_document
    from trainwright.formats.json_text import parse_json

    value = parse_json(read_bytes(path, name="document"), source=str(path))
    return recheck(decode_document(value, KINDS, source=str(path)), source=str(path))
