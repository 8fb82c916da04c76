"""Whether a document still says what its own request makes of its plan.

A document carries its model, where it runs and the decisions, so every price in it can be computed
again; a file that was edited by hand says something else and is refused. What only the search knows
(the bound, other plans' times, the reasons) is held against the rest. Prices of a profile are a
matter of definition; those of a model belong to the version that estimated them, so a document of
another version is let through with a warning.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from trainwright._version import __version__
from trainwright.documents.mixed_plan import MixedPlanResult
from trainwright.documents.model_plan import ModelPlanResult, recompute_model_plan
from trainwright.documents.placement import PlacementResult
from trainwright.documents.profile_plan import (
    EstimateResult,
    PlanResult,
    recompute_estimate,
    recompute_plan,
    refuse,
)
from trainwright.errors import Fault, InvalidInput
from trainwright.options.inputs import content_hash
from trainwright.plans.status import OPTIMAL_TOLERANCE, BoundKind, Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainwright.documents.model_estimate import ModelEstimateRequest, ModelEstimateResult
    from trainwright.documents.open import Priced
    from trainwright.plans.request import PlanRequest

    Checked: TypeAlias = Priced | PlacementResult | MixedPlanResult

CheckedT = TypeVar("CheckedT", bound="Checked")

_TOLERANCE: Final = 1e-9
_ROUNDING: Final = 1e-14  # of a gap or a bubble, which are differences of numbers near 1

_NEWER: Final = (
    "step_time_low_s",
    "step_time_high_s",
    "tokens_per_s_per_device",
    "time_by_part_s",
    "ranks",
    "assumptions",
)


def recheck(document: CheckedT, *, source: str | None = None) -> CheckedT:
    """The document itself, perhaps with a warning; raises `InvalidInput` with every contradiction.

    Costs what pricing one plan costs: reading the embedded model, no search.
    """
    warning = None
    try:
        refuse(hash_faults(document.request))
        if document.stages:
            computed = _recomputed(document)
            document = cast("CheckedT", _with_newer_figures(document, computed))
            warning = _recheck_figures(document, computed)
        refuse(_claim_faults(document))
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=source) from None
    return replace(document, warnings=(*document.warnings, warning)) if warning else document


def recheck_estimate(
    document: ModelEstimateResult, *, source: str | None = None
) -> ModelEstimateResult:
    """The same for the estimate of a model: its figures follow from its request alone."""
    from trainwright.documents.model_estimate import recompute_model_estimate

    request = document.request
    try:
        refuse(hash_faults(request))
        changed = tuple(changes(recompute_model_estimate(document), document, ""))
        if changed and request.trainwright_version != __version__:
            made = f"made by version {request.trainwright_version}"
            warning = f"{made}; {__version__} computes other figures: {changed[0]}"
            return replace(document, warnings=(*document.warnings, warning))
        refuse_figures(changed)
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=source) from None
    return document


def _with_newer_figures(document: Checked, computed: Checked) -> Checked:
    """Figures that documents did not have at first are filled in where all are missing."""
    if isinstance(document, ModelPlanResult) and not document.ranks:
        assert isinstance(computed, ModelPlanResult)
        stages = (
            replace(stage, rank=other.rank)
            for stage, other in zip(document.stages, computed.stages, strict=True)
        )
        newer = {name: getattr(computed, name) for name in _NEWER}
        return replace(document, stages=tuple(stages), **newer)
    return document


def _recheck_figures(document: Checked, computed: Checked) -> str | None:
    """Raise for figures that do not follow from the plan; a warning where they may differ."""
    changed = tuple(changes(computed, document, ""))
    version = document.request.trainwright_version
    estimated = isinstance(document, (ModelPlanResult, MixedPlanResult))
    if changed and estimated and version != __version__:
        return f"made by version {version}; {__version__} computes other figures: {changed[0]}"
    if estimated:
        refuse_figures(changed)
    refuse(changed)
    return None


def refuse_figures(changed: Sequence[Fault]) -> None:
    """Raise `InvalidInput` for estimated figures that are not ours, with how that comes about."""
    if changed:
        how = f"was edited, or made by another build of version {__version__}"
        fix = "make it anew with the command that wrote it"
        raise InvalidInput((*changed, Fault("document", f"{how}; {fix}")))


def _recomputed(document: Checked) -> Checked:
    if isinstance(document, PlanResult):
        return recompute_plan(document)
    if isinstance(document, EstimateResult):
        return recompute_estimate(document)
    if isinstance(document, MixedPlanResult):
        from trainwright.documents.mixed_plan import recompute_mixed_plan

        return recompute_mixed_plan(document)
    if isinstance(document, PlacementResult):
        from trainwright.documents.placement import recompute_placement

        return recompute_placement(document)
    return recompute_model_plan(document)


def hash_faults(request: PlanRequest | ModelEstimateRequest) -> Iterator[Fault]:
    """Contents that their hash does not belong to."""
    for name, part in (("model", request.model), ("cluster", request.cluster)):
        if part is not None and (found := content_hash(part.content)) != part.sha256:
            wanted = f"must be {found}, the hash of the content"
            yield Fault(f"request.{name}.sha256", f'{wanted}, got "{part.sha256}"; it was edited')


def _claim_faults(document: Checked) -> Iterator[Fault]:
    """What status, bound and gap claim about each other."""
    if isinstance(document, EstimateResult):
        if not document.stages:
            yield Fault("stages", "must have at least 1 entry, got 0")
        return
    status, bound_s = document.status, document.lower_bound_s
    time_s = getattr(document, document.objective, None)
    if document.objective not in ("time_per_sample_s", "step_time_s", "time_per_batch_s"):
        yield Fault("objective", f'must be a time of the document, got "{document.objective}"')
    planned = status in (Status.OPTIMAL, Status.GAP)
    if planned != bool(document.stages):
        having = "stages" if document.stages else "no stages"
        yield Fault("status", f'must fit a document with {having}, got "{status}"')
    if bound_s is not None and bound_s < 0:
        yield Fault("lower_bound_s", f"must be >= 0, got {bound_s!r}")
    if time_s is None or not planned:
        return
    if bound_s is not None and bound_s > time_s * (1 + _TOLERANCE):
        yield Fault("lower_bound_s", f"must be at most the {time_s!r} of the plan, got {bound_s!r}")
    all_s, gap = getattr(document, "lower_bound_all_s", None), document.gap or 0.0
    if all_s is not None:
        gap = max(gap, getattr(document, "gap_all", None) or 0.0)
        if not 0 <= all_s <= (bound_s or 0.0):
            wanted = f"must be from 0 to the {bound_s!r} of fewer plans"
            yield Fault("lower_bound_all_s", f"{wanted}, got {all_s!r}")
    proved = document.bound_kind is BoundKind.PROVED and gap <= OPTIMAL_TOLERANCE
    if status is Status.OPTIMAL and not proved:
        yield Fault("status", 'must be "gap" unless bound and time prove more, got "optimal"')


def changes(expected: Any, found: Any, path: str) -> Iterator[Fault]:
    """Every figure of `found` that differs from the expected one, leaf by leaf."""
    if expected is found:
        return
    for name, one, other in _members(expected, found):
        dot = "." if path and not name.startswith("[") else ""
        yield from changes(one, other, f"{path}{dot}{name}")
        found = expected
    if not _same(expected, found):
        yield Fault(path, f"must be {_shown(expected)}, as the request gives, got {_shown(found)}")


def _members(expected: Any, found: Any) -> Iterator[tuple[str, Any, Any]]:
    """Parts of two values of the same shape; nothing for leaves and other shapes."""
    if is_dataclass(expected) and type(expected) is type(found):
        for field in fields(expected):
            yield field.name, getattr(expected, field.name), getattr(found, field.name)
    elif isinstance(expected, tuple) and isinstance(found, tuple) and len(expected) == len(found):
        for index, pair in enumerate(zip(expected, found, strict=True)):
            yield f"[{index}]", *pair
    elif isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        for key, value in expected.items():
            yield f'["{key}"]', value, found[key]


def _same(expected: Any, found: Any) -> bool:
    if isinstance(expected, float) and isinstance(found, (int, float)):
        return math.isclose(expected, found, rel_tol=_TOLERANCE, abs_tol=_ROUNDING)
    return bool(expected == found)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} entries"
    return "nothing" if value is None else repr(value) if isinstance(value, float) else f"{value}"
