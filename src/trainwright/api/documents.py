"""Reading documents back, whatever command wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from trainwright.errors import InvalidInput
from trainwright.plan.results.estimate import EstimateResult
from trainwright.plan.results.plan import PlanResult

if TYPE_CHECKING:
    from pathlib import Path

KINDS: dict[str, type[PlanResult] | type[EstimateResult]] = {
    "plan": PlanResult,
    "estimate": EstimateResult,
}

Kind = TypeVar("Kind", PlanResult, EstimateResult)


def load_document(path: str | Path) -> PlanResult | EstimateResult:
    """Read a plan or estimate document; every fault of the file is named."""
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.document_json import decode_document
    from trainwright.formats.json_text import parse_json

    value = parse_json(read_bytes(path), source=str(path))
    document = decode_document(value, KINDS)
    if not isinstance(document, (PlanResult, EstimateResult)):
        raise InvalidInput.of("kind", f"must be one of {', '.join(KINDS)}")
    return document
