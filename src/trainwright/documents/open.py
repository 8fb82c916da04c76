"""Reading documents back, whatever command wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from trainwright.documents.difference import WhatIfResult
from trainwright.documents.mixed_plan import MixedPlanResult
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.placement import PlacementResult
from trainwright.documents.printing import Report
from trainwright.documents.profile_plan import EstimateResult, PlanResult
from trainwright.documents.schedule import ScheduleResult
from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainwright.documents.improvement import ImprovementResult
    from trainwright.documents.mixed_plan import MixedStageRecord
    from trainwright.documents.model_estimate import ModelEstimateResult
    from trainwright.documents.model_plan import ModelStageRecord
    from trainwright.documents.placement import PlacedStageRecord
    from trainwright.documents.profile_plan import StageRecord
    from trainwright.documents.sweep import ModelSweepResult
    from trainwright.plans.status import Status

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
    from trainwright.documents.improvement import ImprovementResult, recheck_improvement
    from trainwright.documents.mixed_plan import MixedPlanResult

    kinds = {**_any_kinds(), "mixed-plan": MixedPlanResult, "improvement": ImprovementResult}
    document = read_document(path, kinds)
    if isinstance(document, ImprovementResult):
        return recheck_improvement(document, source=str(path))
    return _checked(document, path)


def _any_kinds() -> dict[str, type[Any]]:
    from trainwright.documents.difference import WhatIfResult
    from trainwright.documents.model_estimate import ModelEstimateResult
    from trainwright.documents.sweep import ModelSweepResult

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
    from trainwright.documents.difference import WhatIfResult
    from trainwright.documents.mixed_plan import MixedPlanResult
    from trainwright.documents.model_estimate import ModelEstimateResult
    from trainwright.documents.sweep import ModelSweepResult

    if isinstance(document, ModelEstimateResult):
        from trainwright.documents.recheck import recheck_estimate

        return recheck_estimate(document, source=str(path))
    if isinstance(document, MixedPlanResult):
        from trainwright.documents.recheck import recheck

        return recheck(document, source=str(path))
    if isinstance(document, ModelSweepResult):
        from trainwright.documents.sweep import recheck_sweep

        return recheck_sweep(document, source=str(path))
    if isinstance(document, WhatIfResult):
        for plan in (document.before, document.after):
            _rechecked(plan, source=str(path))
        return document
    return _rechecked(document, source=str(path))


def _rechecked(document: Readable, *, source: str) -> Readable:
    from trainwright.documents.recheck import recheck
    from trainwright.documents.schedule import recheck_schedule

    if isinstance(document, ScheduleResult):
        return recheck_schedule(document, source=source)
    return recheck(document, source=source)


# Documents that have a page, from files or from results
# ------------------------------------------------------
# What a page repeats of a document is computed again first, so that an edited one is refused:
# prices of plans, estimates and runs, schedules; not the searches of a co-design and of an
# explanation, nor measured runs, which are not part of the document that scores them.

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
        name, document = Path(document).name, _load_for_report(document)
    if isinstance(document, WhatIfResult):
        start = f"{name}: " if name else ""
        yield document.before, f"{start}before"
        yield document.after, f"{start}after"
    else:
        yield document, name


def _load_for_report(path: str | Path) -> Any:
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.document_json import decode_document
    from trainwright.formats.json_text import parse_json

    source = str(path)
    value = parse_json(read_bytes(path, name="document"), source=source)
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in _INSTEAD:
        raise InvalidInput.of("kind", f'"{kind}" has no page; {_INSTEAD[kind]}', source=source)
    return _rechecked_for_report(decode_document(value, kinds_with_a_page(), source=source), source)


def kinds_with_a_page() -> dict[str, type[Any]]:
    """By `kind`, every document that `trainwright report` takes."""
    from trainwright.documents.explanation import ModelExplanation
    from trainwright.documents.improvement import ImprovementResult
    from trainwright.documents.mixed_plan import MixedPlanResult
    from trainwright.documents.model_estimate import ModelEstimateResult
    from trainwright.documents.sweep import ModelSweepResult
    from trainwright.documents.validation import ValidationResult
    from trainwright.documents.verification import VerificationResult
    from trainwright.formats.codesign_document import CodesignResult

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


def _rechecked_for_report(document: Any, source: str) -> Any:
    from trainwright.documents.recheck import recheck, recheck_estimate
    from trainwright.documents.schedule import recheck_schedule

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
            from trainwright.documents.sweep import recheck_sweep

            return recheck_sweep(document, source=source)
        case "improvement":
            from trainwright.documents.improvement import recheck_improvement

            return recheck_improvement(document, source=source)
    return document


# The answer of `plan`
# --------------------


class Result(Report[PlanResult | ModelPlanResult | MixedPlanResult | PlacementResult]):
    """The answer of `plan`: status, stages, times, and the proof's bound."""

    __slots__ = ()

    @property
    def status(self) -> Status:
        """How much is proved."""
        return self.document.status

    @property
    def stages(
        self,
    ) -> (
        tuple[StageRecord, ...]
        | tuple[ModelStageRecord, ...]
        | tuple[MixedStageRecord, ...]
        | tuple[PlacedStageRecord, ...]
    ):
        """Stages in pipeline order; empty without a plan."""
        return self.document.stages

    @property
    def time_per_sample_s(self) -> float | None:
        """Seconds per microbatch at steady state; `None` for a placement or without a plan."""
        document = self.document
        if isinstance(document, (PlacementResult, MixedPlanResult)):
            return None
        return document.time_per_sample_s

    @property
    def time_per_batch_s(self) -> float | None:
        """Seconds of a batch; `None` without a placement."""
        document = self.document
        return document.time_per_batch_s if isinstance(document, PlacementResult) else None

    @property
    def step_time_s(self) -> float | None:
        """Predicted seconds of a training step; `None` for a profile or without a plan."""
        document = self.document
        if isinstance(document, (ModelPlanResult, MixedPlanResult)):
            return document.step_time_s
        return None

    @property
    def lower_bound_s(self) -> float | None:
        """No plan of the searched space is faster than this."""
        return self.document.lower_bound_s

    @property
    def gap(self) -> float | None:
        """How far, relatively, the plan can be from the optimum at most."""
        return self.document.gap
