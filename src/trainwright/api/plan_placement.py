"""`plan` on a placement problem: the question, the search, the document, and its recheck."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from trainwright._version import __version__
from trainwright.api.inputs import PlacementInput, setting_record
from trainwright.api.recompute import inside
from trainwright.errors import Fault, InvalidInput
from trainwright.plan.results.placement import (
    FixedStrategyRecord,
    PlacedStageRecord,
    PlacementResult,
)
from trainwright.plan.results.request import PlanRequest, SpaceRecord
from trainwright.plan.status import BoundKind, relative_gap

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.partitioning.placement_price import PlacedCost, PlacedPlan
    from trainwright.partitioning.restrictions import Restrictions
    from trainwright.planning.fixed_strategy import PricedStrategy
    from trainwright.profile.placement_case import PlacementCase


PLANNERS: Final = ("exact", "profile")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementQuestion:
    """A placement problem to plan, what may be used, and whose costs it has."""

    given: PlacementInput
    restrictions: Restrictions
    cost_model: str
    planner: str = "exact"
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.planner not in PLANNERS:
            listed = ", ".join(PLANNERS)
            raise InvalidInput.of("planner", f'must be one of {listed}, got "{self.planner}"')


def plan_placement(question: PlacementQuestion, budget: Budget) -> PlacementResult:
    """Search, price the fixed strategy, and say what is missing where nothing fits."""
    from trainwright.partitioning.placement_rules import placement_rules
    from trainwright.planning.placement_planner import plan_placement as answer

    started_s = budget.cpu_s
    case, restrictions = question.given.case, question.restrictions
    rules = placement_rules(question.cost_model)
    found = answer(
        case, rules=rules, restrictions=restrictions, budget=budget, planner=question.planner
    )
    outcome, cost, plan = found.outcome, found.outcome.cost, found.outcome.plan
    made = PlacementResult(
        status=outcome.status,
        lower_bound_s=outcome.lower_bound_s,
        bound_kind=BoundKind.PROVED,
        gap=outcome.gap,
        fixed_strategy=_fixed_record(case, found.fixed, cost),
        binding=found.binding,
        relaxations=found.relaxations,
        interrupted=budget.interrupted,
        warnings=(*question.given.warnings, *question.warnings),
        solver_s=outcome.solver_s,
        search_s=budget.cpu_s - started_s,
        request=_request(question, budget),
    )
    if plan is None or cost is None:
        return made
    return with_figures(made, plan, cost, case)


def with_figures(
    document: PlacementResult, plan: PlacedPlan, cost: PlacedCost, case: PlacementCase
) -> PlacementResult:
    """The document with every figure that follows from its plan."""
    from trainwright.partitioning.placement_simulate import simulated_time_s

    return replace(
        document,
        time_per_batch_s=cost.time_s,
        gap=relative_gap(cost.time_s, document.lower_bound_s or 0.0),
        data_parallel=plan.data_parallel,
        tensor_parallel=plan.tensor_parallel,
        devices_used=cost.devices_used,
        num_stages=len(plan.stages),
        rounds=cost.rounds,
        simulated_time_s=simulated_time_s(plan, cost, case),
        gradient_sync_s=cost.gradient_sync_s,
        peak_memory_bytes=cost.peak_memory_bytes,
        stages=tuple(
            PlacedStageRecord(
                layers=layers,
                data_parallel=plan.data_parallel,
                tensor_parallel=stage.num_devices,
                num_recomputed=len(layers) if recomputes else 0,
                forward_s=stage.forward_s,
                backward_s=stage.backward_s,
                memory_bytes=stage.memory_bytes,
                microbatches_in_flight=stage.microbatches_in_flight,
            )
            for layers, recomputes, stage in zip(
                plan.stages, plan.recomputes, cost.stages, strict=True
            )
        ),
    )


def recompute_placement(document: PlacementResult) -> PlacementResult:
    """The document with every figure that follows from its stages and its request.

    Raises `InvalidInput` where the input cannot be read or the plan breaks a rule or a limit.
    """
    from trainwright.partitioning.placement_price import fits, price_placement
    from trainwright.partitioning.placement_rules import placement_rules
    from trainwright.planning.fixed_strategy import price_strategy

    case = _stated_case(document.request)
    rules = placement_rules(document.request.cost_model or "")
    plan = _stated_plan(document)
    cost = price_placement(plan, case, rules)
    if not fits(cost, case):
        needs = f"needs {cost.devices_used} devices, {cost.peak_memory_bytes!r} bytes on one"
        raise InvalidInput.of("stages", f"must fit into the machine of the request; {needs}")
    made = with_figures(document, plan, cost, case)
    return replace(made, fixed_strategy=_fixed_record(case, price_strategy(case, rules), cost))


def _stated_case(request: PlanRequest) -> PlacementCase:
    from trainwright.formats.phaze_json import read_phaze

    if request.setting is None:
        raise InvalidInput.of("request.setting", "required field is missing")
    setting = request.setting
    given = {
        "num_devices": setting.num_devices,
        "memory_bytes": setting.memory_bytes,
        "bandwidth_bytes_per_s": setting.bandwidth_bytes_per_s,
        "num_microbatches": setting.num_microbatches,
    }
    with inside("request.model.content"):
        case = read_phaze(request.model.content, given=given)
    return replace(case, recompute=case.recompute and request.space.recompute)


def _stated_plan(document: PlacementResult) -> PlacedPlan:
    from trainwright.partitioning.placement_price import PlacedPlan

    if document.tensor_parallel is None or document.data_parallel is None:
        raise InvalidInput(
            Fault(name, "required field is missing") for name in ("tensor_parallel",)
        )
    depth = len(document.stages)
    return PlacedPlan(
        tensor_parallel=document.tensor_parallel,
        data_parallel=document.data_parallel,
        stages=tuple(stage.layers for stage in document.stages),
        recomputes=tuple(stage.num_recomputed > 0 for stage in document.stages),
        depth=depth,
        positions=tuple(range(depth)),
    )


def _fixed_record(
    case: PlacementCase, priced: PricedStrategy | None, best: PlacedCost | None
) -> FixedStrategyRecord | None:
    fixed = case.fixed
    if fixed is None or priced is None:
        return None
    feasible, cost = priced.reason is None, priced.cost
    time_s = cost.time_s if feasible and cost else None
    return FixedStrategyRecord(
        feasible=feasible,
        time_per_batch_s=time_s,
        reason=priced.reason,
        slowdown=time_s / best.time_s if time_s is not None and best and best.time_s > 0 else None,
        num_stages=fixed.num_stages,
        data_parallel=fixed.data_parallel,
        tensor_parallel=fixed.tensor_parallel,
        peak_memory_bytes=cost.peak_memory_bytes if cost else None,
    )


def _request(question: PlacementQuestion, budget: Budget) -> PlanRequest:
    restrictions = question.restrictions
    return PlanRequest(
        trainwright_version=__version__,
        model=question.given.embedded,
        setting=setting_record(question.given.case.setting),
        space=SpaceRecord(
            data_parallel=restrictions.data_parallel,
            tensor_parallel=restrictions.tensor_parallel,
            recompute=restrictions.recompute,
            per_stage_degrees=False,
            planner=question.planner,
        ),
        cost_model=question.cost_model,
        time_limit_s=budget.time_limit_s,
    )
