"""The document of `plan` on a placement problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from trainwright.documents import view
from trainwright.documents.printing import counted, ranges
from trainwright.documents.profile_plan import (
    check_stage,
    proved_words,
    reason_lines,
    was_cut_short,
)
from trainwright.errors import Fault, InvalidInput, one_of
from trainwright.execution import Budget
from trainwright.formats.phaze_json import read_phaze
from trainwright.options.inputs import PlacementInput, inside, setting_record
from trainwright.partitioning.downset_dp import Restrictions
from trainwright.partitioning.placement import (
    PlacedCost,
    PlacedPlan,
    fits,
    placement_rules,
    price_placement,
    simulated_time_s,
)
from trainwright.partitioning.placement_planner import PricedStrategy, price_strategy
from trainwright.partitioning.placement_planner import plan_placement as answer
from trainwright.plans.plan import FORMAT_VERSION, FlatRequest, SpaceRecord
from trainwright.plans.status import Binding, BoundKind, Relaxation, Status, relative_gap
from trainwright.profile.profile import PlacementCase
from trainwright.provenance import __version__
from trainwright.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStageRecord:
    """One stage: its layers in the order they run, and what each replica spends per microbatch.

    `tensor_parallel` counts devices of one replica, 1 for a stage without split layers. Recomputing
    stages recompute all their layers.
    """

    layers: tuple[int, ...]
    data_parallel: int
    tensor_parallel: int
    num_recomputed: int
    forward_s: float
    backward_s: float
    memory_bytes: float
    microbatches_in_flight: int

    def __post_init__(self) -> None:
        check_stage(self.layers, self.data_parallel, self.tensor_parallel)

    @property
    def load_s(self) -> float:
        """Seconds of a replica for each of its microbatches."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedStrategyRecord:
    """The strategy that the file states; `reason` says why it cannot run ("out of memory", …)."""

    feasible: bool
    time_per_batch_s: float | None = None
    reason: str | None = None
    slowdown: float | None = None
    num_stages: int
    data_parallel: int
    tensor_parallel: int
    peak_memory_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementResult:
    """Placement, proof and price of a batch. Keys without a value are left out.

    The batch takes `rounds` times the slowest stage's load, then `gradient_sync_s`;
    `lower_bound_s` and `gap` refer to `objective`. `simulated_time_s` is what the event simulator
    makes of the same plan under 1F1B. `interrupted` says that Ctrl-C, no time limit, ended a
    search.
    """

    kind: str = "placement"
    format_version: int = FORMAT_VERSION
    status: Status
    objective: str = "time_per_batch_s"
    time_per_batch_s: float | None = None
    lower_bound_s: float | None = None
    bound_kind: BoundKind | None = None
    gap: float | None = None
    data_parallel: int | None = None
    tensor_parallel: int | None = None
    devices_used: int | None = None
    num_stages: int | None = None
    rounds: int | None = None
    simulated_time_s: float | None = None
    gradient_sync_s: float | None = None
    peak_memory_bytes: float | None = None
    stages: tuple[PlacedStageRecord, ...] = ()
    fixed_strategy: FixedStrategyRecord | None = None
    binding: Binding | None = None
    relaxations: tuple[Relaxation, ...] = ()
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    solver_s: float | None = None
    search_s: float | None = None
    request: FlatRequest


# `plan` on a placement problem: the question, the search, the document, and its recheck
# --------------------------------------------------------------------------------------


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
            raise InvalidInput.of("planner", one_of(PLANNERS, self.planner))


def plan_placement(question: PlacementQuestion, budget: Budget) -> PlacementResult:
    """Search, price the fixed strategy, and say what is missing where nothing fits."""
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
        interrupted=was_cut_short(budget.interrupted, outcome.status),
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
        interrupted=was_cut_short(document.interrupted, document.status),
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


def remake_placement(document: PlacementResult) -> PlacementResult:
    """The document with every figure that follows from its stages, if any, and its request.

    Raises `InvalidInput` where the input cannot be read or the plan breaks a rule or a limit.
    """
    if not document.stages:
        return document
    case = _stated_case(document.request)
    rules = placement_rules(document.request.cost_model or "")
    plan = _stated_plan(document)
    cost = price_placement(plan, case, rules)
    if not fits(cost, case):
        needs = f"needs {cost.devices_used} devices, {cost.peak_memory_bytes!r} bytes on one"
        raise InvalidInput.of("stages", f"must fit into the machine of the request; {needs}")
    made = with_figures(document, plan, cost, case)
    return replace(made, fixed_strategy=_fixed_record(case, price_strategy(case, rules), cost))


def _stated_case(request: FlatRequest) -> PlacementCase:
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


def _request(question: PlacementQuestion, budget: Budget) -> FlatRequest:
    restrictions = question.restrictions
    return FlatRequest(
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


# A placement as a table: stages, what binds, the stated strategy beside it, or what is missing
# ---------------------------------------------------------------------------------------------

_COLUMNS: Final = (
    *view.STAGE_COLUMNS,
    view.column("load", "load_s"),
    view.column("forward", "forward_s"),
    view.column("backward", "backward_s"),
    view.column("memory", "memory_bytes"),
    view.column("of limit", "memory_share"),
    view.column("held", "microbatches_in_flight"),
    view.MARKS,
)


def placement_view(document: PlacementResult) -> Iterator[view.Line]:
    """Headline, stages, what binds or is missing, and the fixed strategy."""
    yield from _headline(document)
    if document.stages:
        yield stage_table(document)
        yield _what_binds(document)
    yield from reason_lines(document, "placement")
    if document.fixed_strategy is not None:
        yield strategy_line(document.fixed_strategy)
    yield from view.warning_lines(document.warnings)


def _headline(document: PlacementResult) -> Iterator[str]:
    request = document.request
    where = f"{request.model.name} ({request.cost_model})"
    if document.time_per_batch_s is None:
        yield f"{where}: {placement_verdict(document)}"
        return
    offered = request.setting.num_devices if request.setting else document.devices_used
    yield (
        f"{where}: {format_seconds(document.time_per_batch_s)} per batch on "
        f"{document.devices_used} of {offered} devices: {placement_verdict(document)}"
    )
    yield (
        f"tensor {document.tensor_parallel} x data {document.data_parallel} x "
        f"{counted(document.num_stages or 0, 'stage')}"
    )


def placement_verdict(document: PlacementResult) -> str:
    """What is proved of the placement, or of there being none."""
    return proved_words(document.status, document.gap, "placement")


def stage_table(document: PlacementResult) -> view.Table:
    """One row per stage."""
    stages, setting = document.stages, document.request.setting
    limit_bytes = setting.memory_bytes if setting else None
    slowest_s = max(stage.load_s for stage in stages)
    slowest = [at for at, stage in enumerate(stages) if stage.load_s == slowest_s]
    return view.table_of(
        "Placement",
        _COLUMNS,
        (
            (
                index,
                ranges(stage.layers),
                stage.data_parallel,
                stage.tensor_parallel,
                view.recomputed_of(stage.num_recomputed, len(stage.layers)),
                view.seconds(stage.load_s),
                view.seconds(stage.forward_s),
                view.seconds(stage.backward_s),
                view.size(stage.memory_bytes),
                view.percent(stage.memory_bytes / limit_bytes if limit_bytes else None),
                stage.microbatches_in_flight,
                "slowest" if index in slowest else "",
            )
            for index, stage in enumerate(stages)
        ),
        marked=slowest,
        note="Times of one replica and microbatch. Marked: the slowest stage.",
    )


def _what_binds(document: PlacementResult) -> str:
    loads = [stage.load_s for stage in document.stages]
    sync_s, time_s = document.gradient_sync_s or 0.0, document.time_per_batch_s or 0.0
    share = sync_s / time_s if time_s > 0 else 0.0
    simulated_s = document.simulated_time_s
    simulated = "" if simulated_s is None else f"; simulated 1F1B {format_seconds(simulated_s)}"
    return (
        f"{document.rounds} rounds of stage {loads.index(max(loads))}, then gradients: "
        f"{format_seconds(sync_s)}, {share:.1%} of the batch{simulated}"
    )


def strategy_line(fixed: FixedStrategyRecord) -> str:
    """What the strategy of the file takes, or why it cannot run."""
    stated = (
        f"the stated strategy (tensor {fixed.tensor_parallel} x data {fixed.data_parallel} x "
        f"{counted(fixed.num_stages, 'stage')})"
    )
    if fixed.time_per_batch_s is None:
        return f"{stated} cannot run: {fixed.reason}"
    slower = f", {fixed.slowdown:.3f}x the best" if fixed.slowdown is not None else ""
    return f"{stated}: {format_seconds(fixed.time_per_batch_s)} per batch{slower}"
