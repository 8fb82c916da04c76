"""The figures of a document about a profile, computed again from what it carries."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.status import relative_gap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainwright.plan import Plan, Stage, StageCost
    from trainwright.plan.results.estimate import EstimateResult
    from trainwright.plan.results.model_plan import ModelPlanResult
    from trainwright.plan.results.plan import PlanResult
    from trainwright.plan.results.request import PlanRequest
    from trainwright.profile import Profile, Setting

    Priced = tuple[Plan, Profile, Setting, tuple[StageCost, ...]]


def recompute_plan(document: PlanResult) -> PlanResult:
    """The document with every figure that follows from its plan; it has stages.

    Raises `InvalidInput` where the profile cannot be read or the plan breaks a rule or a limit.
    """
    from trainwright.api.plan_profile import stage_records
    from trainwright.partitioning.evaluate import find_overflows, time_per_sample_s
    from trainwright.planning.compare import slowdown

    plan, profile, setting, costs = _price(document)
    overflows = find_overflows(costs, setting)
    if overflows:
        raise InvalidInput(
            Fault(
                f"stages[{over.stage}].memory_bytes",
                f"must be at most {setting.memory_bytes!r}, needs {over.missing_bytes!r} more",
            )
            for over in overflows
        )
    time_s = time_per_sample_s(costs)
    return replace(
        document,
        time_per_sample_s=time_s,
        gap=relative_gap(time_s, document.lower_bound_s or 0.0),
        devices_used=plan.devices_used,
        num_stages=len(plan.stages),
        stages=stage_records(plan, costs, profile),
        baselines=tuple(
            replace(other, slowdown=slowdown(other.time_per_sample_s, time_s))
            for other in document.baselines
        ),
    )


def recompute_estimate(document: EstimateResult) -> EstimateResult:
    """The document with every figure that follows from its plan; see `recompute_plan`."""
    from trainwright.api.plan_profile import overflow_records, stage_records
    from trainwright.partitioning.evaluate import time_per_sample_s

    plan, profile, setting, costs = _price(document)
    overflows = overflow_records(costs, setting)
    return replace(
        document,
        fits=not overflows,
        time_per_sample_s=time_per_sample_s(costs),
        devices_used=plan.devices_used,
        num_stages=len(plan.stages),
        stages=stage_records(plan, costs, profile),
        overflows=overflows,
    )


def _price(document: PlanResult | EstimateResult) -> Priced:
    from trainwright.partitioning.evaluate import evaluate
    from trainwright.plan import Plan

    profile, setting = profile_of_request(document.request), _setting(document.request)
    plan = Plan(stages=read_plan(document), num_microbatches=setting.num_microbatches)
    return plan, profile, setting, evaluate(plan, profile, setting)


def profile_of_request(request: PlanRequest) -> Profile:
    """The one profile that a request carries."""
    from trainwright.formats.profile_json import read_profile

    with inside("request.model.content"):
        file = read_profile(request.model.content)
    if len(file.profiles) != 1:
        problem = f"must have 1 entry, got {len(file.profiles)}"
        raise InvalidInput.of("request.model.content.points", problem)
    return file.profiles[0]


def _setting(request: PlanRequest) -> Setting:
    if request.setting is None:
        raise InvalidInput.of("request.setting", "required field is missing")
    from trainwright.formats.plan_json import to_setting

    with inside("request.setting"):
        return to_setting(request.setting)


def read_plan(document: PlanResult | ModelPlanResult | EstimateResult) -> tuple[Stage, ...]:
    """The decisions of a document."""
    from trainwright.formats.document_json import encode
    from trainwright.formats.plan_json import read_stages

    return read_stages({"stages": [encode(stage) for stage in document.stages]})


def refuse(found: Iterable[Fault]) -> None:
    """Raise `InvalidInput` with these faults, if there are any."""
    faults = tuple(found)
    if faults:
        raise InvalidInput(faults)


@contextmanager
def inside(path: str) -> Iterator[None]:
    """Faults found in a part of the document, under the part's own path."""
    try:
        yield
    except InvalidInput as error:
        faults = (Fault(f"{path}.{fault.path}", fault.problem) for fault in error.faults)
        raise InvalidInput(faults) from None
