"""Documents that have a page, from files or from results.

What a page repeats of a document is computed again first, so that an edited one is refused: prices
of plans, estimates and runs, schedules; not the searches of a co-design and of an explanation, nor
measured runs, which are not part of the document that scores them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainwright.api.printed import Report
from trainwright.errors import InvalidInput
from trainwright.plan.results.what_if import WhatIfResult

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSTEAD: Final = {
    "diff": "put the two documents it compares on one page: trainwright report A B",
    "export": "put the plan or the estimate that was exported on a page",
    "explanation": "put the plan that it explains on a page",
}


def opened(given: Any) -> Iterator[tuple[Any, str]]:
    """The documents of a path or a result, each with its name; none where it has no file.

    A what-if is two plans. Raises `InvalidInput` for other kinds, naming those that have a page.
    """
    document = given.document if isinstance(given, Report) else given
    name = ""
    if isinstance(document, (str, Path)):
        name, document = Path(document).name, _load(document)
    if isinstance(document, WhatIfResult):
        start = f"{name}: " if name else ""
        yield document.before, f"{start}before"
        yield document.after, f"{start}after"
    else:
        yield document, name


def _load(path: str | Path) -> Any:
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.document_json import decode_document
    from trainwright.formats.json_text import parse_json

    source = str(path)
    value = parse_json(read_bytes(path, name="document"), source=source)
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in _INSTEAD:
        raise InvalidInput.of("kind", f'"{kind}" has no page; {_INSTEAD[kind]}', source=source)
    return _rechecked(decode_document(value, kinds_with_a_page(), source=source), source)


def kinds_with_a_page() -> dict[str, type[Any]]:
    """By `kind`, every document that `trainwright report` takes."""
    from trainwright.api.documents import KINDS
    from trainwright.plan.results.codesign import CodesignResult
    from trainwright.plan.results.improvement import ImprovementResult
    from trainwright.plan.results.mixed_plan import MixedPlanResult
    from trainwright.plan.results.model_estimate import ModelEstimateResult
    from trainwright.plan.results.model_explanation import ModelExplanation
    from trainwright.plan.results.model_sweep import ModelSweepResult
    from trainwright.plan.results.validation import ValidationResult
    from trainwright.plan.results.verification import VerificationResult

    return {
        **KINDS,
        "mixed-plan": MixedPlanResult,
        "model-estimate": ModelEstimateResult,
        "model-sweep": ModelSweepResult,
        "model-explanation": ModelExplanation,
        "whatif": WhatIfResult,
        "improvement": ImprovementResult,
        "codesign": CodesignResult,
        "validation": ValidationResult,
        "verification": VerificationResult,
    }


def _rechecked(document: Any, source: str) -> Any:
    from trainwright.api.recheck import recheck, recheck_estimate
    from trainwright.api.schedule_recheck import recheck_schedule

    match document.kind:
        case "plan" | "model-plan" | "estimate" | "placement" | "mixed-plan":
            return recheck(document, source=source)
        case "model-estimate":
            return recheck_estimate(document, source=source)
        case "model-explanation":
            recheck(document.plan, source=source)
        case "whatif":
            recheck(document.before, source=source)
            recheck(document.after, source=source)
        case "schedule":
            return recheck_schedule(document, source=source)
        case "model-sweep":
            from trainwright.api.sweep_recheck import recheck_sweep

            return recheck_sweep(document, source=source)
        case "improvement":
            from trainwright.api.improve_recheck import recheck_improvement

            return recheck_improvement(document, source=source)
    return document
