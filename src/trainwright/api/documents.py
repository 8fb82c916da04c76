"""Reading documents back, whatever command wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.plan.results.estimate import EstimateResult
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.results.plan import PlanResult

if TYPE_CHECKING:
    from pathlib import Path

Priced = PlanResult | ModelPlanResult | EstimateResult

KINDS: dict[str, type[Priced]] = {
    "plan": PlanResult,
    "model-plan": ModelPlanResult,
    "estimate": EstimateResult,
}


def load_document(path: str | Path) -> Priced:
    """Read a plan or estimate document; every fault of the file is named."""
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.document_json import decode_document
    from trainwright.formats.json_text import parse_json

    value = parse_json(read_bytes(path, name="document"), source=str(path))
    return decode_document(value, KINDS, source=str(path))
