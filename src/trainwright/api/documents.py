"""Reading documents back, whatever command wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from trainwright.api.printed import Report
from trainwright.errors import InvalidInput
from trainwright.plan.results.estimate import EstimateResult
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.results.placement import PlacementResult
from trainwright.plan.results.plan import PlanResult
from trainwright.plan.results.schedule import ScheduleResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainwright.plan.results.improvement import ImprovementResult
    from trainwright.plan.results.mixed_plan import MixedPlanResult
    from trainwright.plan.results.model_estimate import ModelEstimateResult
    from trainwright.plan.results.model_sweep import ModelSweepResult
    from trainwright.plan.results.what_if import WhatIfResult

Priced = PlanResult | ModelPlanResult | EstimateResult
Readable = Priced | PlacementResult | ScheduleResult
AnyDocument = str | Path | Report[Any] | Readable
if TYPE_CHECKING:
    Explained = (
        Readable
        | MixedPlanResult
        | ModelEstimateResult
        | ModelSweepResult
        | WhatIfResult
        | ImprovementResult
    )

PRICED_KINDS: dict[str, type[Priced]] = {
    "plan": PlanResult,
    "model-plan": ModelPlanResult,
    "estimate": EstimateResult,
}
KINDS: dict[str, type[Readable]] = {
    **PRICED_KINDS,
    "placement": PlacementResult,
    "schedule": ScheduleResult,
}

OF_SEVERAL_POOLS: Final = (
    'must not be "mixed-plan": a plan on several kinds of devices can be shown (explain, report), '
    "and nothing else yet; plan again with what you would change, or on a cluster of one pool"
)


def open_document(document: AnyDocument) -> Readable:
    """The plan, estimate or schedule document at a path, or the one a result carries."""
    found = document.document if isinstance(document, Report) else document
    return load_document(found) if isinstance(found, (str, Path)) else found


def load_document(path: str | Path) -> Readable:
    """Read a document and check its figures; every fault of the file is named."""
    return _rechecked(read_document(path, KINDS), source=str(path))


def open_model_plan(document: AnyDocument) -> ModelPlanResult:
    """A model's plan at a path, its figures checked, or the one a result carries.

    Raises `InvalidInput` for documents of other kinds.
    """
    found: Any = document.document if isinstance(document, Report) else document
    if isinstance(found, (str, Path)):
        read = read_document(found, {"model-plan": ModelPlanResult})
        return cast("ModelPlanResult", _rechecked(read, source=str(found)))
    if isinstance(found, ModelPlanResult):
        return found
    if found.kind == "mixed-plan":
        raise InvalidInput.of("kind", OF_SEVERAL_POOLS)
    raise InvalidInput.of("kind", f'must be "model-plan", a model\'s plan, got "{found.kind}"')


def read_document(path: str | Path, kinds: Mapping[str, type[Any]]) -> Any:
    """A document of these kinds as it is stored; raises `InvalidInput` with every fault."""
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.document_json import decode_document
    from trainwright.formats.json_text import parse_json

    value = parse_json(read_bytes(path, name="document"), source=str(path))
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind == "mixed-plan" and kind not in kinds:
        raise InvalidInput.of("kind", OF_SEVERAL_POOLS, source=str(path))
    return decode_document(value, kinds, source=str(path))


def load_any_document(
    path: str | Path,
) -> Readable | ModelEstimateResult | ModelSweepResult | WhatIfResult:
    """Like `load_document`, and also estimates of a model, plans on several sizes, what-ifs."""
    return cast(
        "Readable | ModelEstimateResult | ModelSweepResult | WhatIfResult",
        _load(path, _any_kinds()),
    )


def load_explained_document(path: str | Path) -> Explained:
    """Like `load_any_document`, and also plans on several kinds of devices, and improvements."""
    from trainwright.api.improve_recheck import recheck_improvement
    from trainwright.plan.results.improvement import ImprovementResult
    from trainwright.plan.results.mixed_plan import MixedPlanResult

    kinds = {**_any_kinds(), "mixed-plan": MixedPlanResult, "improvement": ImprovementResult}
    document = read_document(path, kinds)
    if isinstance(document, ImprovementResult):
        return recheck_improvement(document, source=str(path))
    return _checked(document, path)


def _any_kinds() -> dict[str, type[Any]]:
    from trainwright.plan.results.model_estimate import ModelEstimateResult
    from trainwright.plan.results.model_sweep import ModelSweepResult
    from trainwright.plan.results.what_if import WhatIfResult

    return {
        **KINDS,
        "model-estimate": ModelEstimateResult,
        "model-sweep": ModelSweepResult,
        "whatif": WhatIfResult,
    }


def _load(
    path: str | Path, kinds: dict[str, type[Any]]
) -> Readable | MixedPlanResult | ModelEstimateResult | ModelSweepResult | WhatIfResult:
    return _checked(read_document(path, kinds), path)


def _checked(
    document: Any, path: str | Path
) -> Readable | MixedPlanResult | ModelEstimateResult | ModelSweepResult | WhatIfResult:
    from trainwright.plan.results.mixed_plan import MixedPlanResult
    from trainwright.plan.results.model_estimate import ModelEstimateResult
    from trainwright.plan.results.model_sweep import ModelSweepResult
    from trainwright.plan.results.what_if import WhatIfResult

    if isinstance(document, ModelEstimateResult):
        from trainwright.api.recheck import recheck_estimate

        return recheck_estimate(document, source=str(path))
    if isinstance(document, MixedPlanResult):
        from trainwright.api.recheck import recheck

        return recheck(document, source=str(path))
    if isinstance(document, ModelSweepResult):
        from trainwright.api.sweep_recheck import recheck_sweep

        return recheck_sweep(document, source=str(path))
    if isinstance(document, WhatIfResult):
        for plan in (document.before, document.after):
            _rechecked(plan, source=str(path))
        return document
    return _rechecked(document, source=str(path))


def _rechecked(document: Readable, *, source: str) -> Readable:
    from trainwright.api.recheck import recheck
    from trainwright.api.schedule_recheck import recheck_schedule

    if isinstance(document, ScheduleResult):
        return recheck_schedule(document, source=source)
    return recheck(document, source=source)
