"""`plan` on a model and a cluster of several pools: the best plan, as a document, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.api.inputs import naming_options
from trainwright.api.mixed_records import mixed_alternatives, with_mixed_plan
from trainwright.api.model_request import call_of, request_of
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.plan.axis_order import DATA_INSIDE, mapping_name
from trainwright.plan.results.mixed_plan import MixedPlanResult
from trainwright.plan.status import BoundKind, Status, relative_gap
from trainwright.planning.allowed import ANY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainwright.api.model_request import ModelCall
    from trainwright.execution import Budget
    from trainwright.execution.executor import Crew
    from trainwright.plan import Plan
    from trainwright.planning.mixed_planner import MixedOutcome
    from trainwright.planning.mixed_space import MixedShelf
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.profile import Profile


def plan_mixed_model(
    call: ModelCall, budget: Budget, *, warnings: Sequence[str] = (), crew: Crew | None = None
) -> MixedPlanResult:
    """Search each pool alone and all ways to use several; a `crew` helps."""
    from trainwright.api.model_options import QUESTION_OPTION_OF
    from trainwright.planning.mixed_planner import plan_mixed

    if call.per_stage_degrees:
        raise UnsupportedFeature(
            "per-stage-degrees: stages on several pools share their degrees",
            alternative="leave it out, or give a cluster of one pool",
        )
    question, started_s = call.question, budget.cpu_s
    with naming_options(QUESTION_OPTION_OF):
        outcome = plan_mixed(question, budget, crew=crew)
    document = MixedPlanResult(
        status=_status(outcome),
        lower_bound_s=outcome.lower_bound_s,
        bound_kind=BoundKind.PROVED,
        interrupted=outcome.interrupted,
        warnings=(*warnings, *_warnings(question)),
        considered=outcome.considered,
        pruned=outcome.pruned,
        not_reached=outcome.not_reached,
        request=request_of(call, time_limit_s=budget.time_limit_s),
    )
    if outcome.priced:
        best = outcome.priced[0]
        document = replace(
            with_mixed_plan(document, question, best.plan, best.profiles, best.step),
            alternatives=tuple(mixed_alternatives(question, outcome.priced[: 1 + call.top])),
        )
    return replace(document, search_s=budget.cpu_s - started_s)


def _status(outcome: MixedOutcome) -> Status:
    if not outcome.priced:
        return Status.INFEASIBLE if outcome.exhausted else Status.UNKNOWN
    best_s = outcome.priced[0].step.step_time_s
    return Status.OPTIMAL if relative_gap(best_s, outcome.lower_bound_s) <= 1e-9 else Status.GAP


def _warnings(question: ModelQuestion) -> Iterator[str]:
    """What was left out where several pools are used."""
    from trainwright.planning.mixed_space import FAMILIES, is_mixable, mixed_families

    if question.allowed.framework is not None:
        yield (
            f"framework: {question.allowed.framework} runs no plan of ours on several pools; "
            "each pool was planned alone"
        )
    elif not is_mixable(question.allowed):
        yield (
            f"mapping, state-copies: several pools are used in the order "
            f"{mapping_name(DATA_INSIDE)} and with one copy of sharded state only; each pool was "
            "planned alone"
        )
    elif not mixed_families(question):
        yield (
            f"schedule: several pools are used under {', '.join(FAMILIES)} only; each pool was "
            "planned alone"
        )


def refuse_empty_mixed_space(question: ModelQuestion) -> None:
    """Raise `InvalidInput` where no pool has a point that the options allow."""
    from trainwright.api.model_options import refuse_empty_space

    free = replace(question.allowed, pipeline=ANY, data=ANY)  # of all pools together
    refused = []
    for pool in range(len(question.cluster.pools)):
        cluster = question.cluster.alone(pool)
        try:
            refuse_empty_space(
                replace(question, cluster=cluster, num_devices=cluster.num_devices, allowed=free)
            )
        except InvalidInput as error:
            refused.append(error)
    if len(refused) == len(question.cluster.pools):
        raise refused[0]


def recompute_mixed_plan(document: MixedPlanResult) -> MixedPlanResult:
    """The document with every figure that follows from its plan; it has stages.

    Raises `InvalidInput` where model or cluster cannot be read or the plan breaks a rule.
    """
    from trainwright.planning.mixed_priced import Shape, priced_mixed

    shelf, plan, profiles = planned_mixed(document)
    question = shelf.question
    shape = Shape(name=document.layout or "alone", pools=tuple(profiles))
    priced = priced_mixed(shelf, shape, plan, profiles)
    computed = with_mixed_plan(document, question, plan, profiles, priced.step)
    return replace(
        computed,
        alternatives=tuple(
            replace(other, slowdown=other.step_time_s / priced.step.step_time_s)
            for other in document.alternatives
        ),
    )


def planned_mixed(document: MixedPlanResult) -> tuple[MixedShelf, Plan, dict[int, Profile]]:
    """The question of a document that has stages, its plan, and the profiles of the pools used.

    Raises `InvalidInput` where model or cluster cannot be read or the plan does not suit them.
    """
    from trainwright.planning.mixed_space import MixedShelf

    shelf = MixedShelf.of(call_of(document.request).question)
    plan = _plan_in(document, shelf.question)
    return shelf, plan, _profiles(shelf, plan)


def _plan_in(document: MixedPlanResult, question: ModelQuestion) -> Plan:
    from trainwright.plan import Plan, ReplicaGroup, Stage

    size, batch = document.micro_batch, question.workload.global_batch
    if size is None or size < 1 or batch % size:
        raise InvalidInput.of("micro_batch", f"must divide the global batch of {batch}, got {size}")
    total, pools = batch // size, len(question.cluster.pools)
    stages = []
    for number, stage in enumerate(document.stages):
        groups = []
        for index, own in enumerate(stage.replicas):
            path = f"stages[{number}].replicas[{index}]"
            if not 0 <= own.pool < pools:
                raise InvalidInput.of(f"{path}.pool", f"must be in 0..{pools - 1}, got {own.pool}")
            missing = [str(layer) for layer in stage.layers if str(layer) not in own.options]
            if missing:
                raise InvalidInput.of(f"{path}.options", f"must name layer {missing[0]}")
            groups.append(
                ReplicaGroup(
                    count=own.count,
                    tensor_parallel=own.tensor_parallel,
                    device_kind=own.device_kind,
                    share=own.count * own.num_microbatches / total,
                    pool=own.pool,
                    options=tuple(own.options[str(layer)] for layer in stage.layers),
                )
            )
        first, layers = groups[0].options, stage.layers
        stages.append(Stage(layers=layers, options=first, replicas=tuple(groups)))
    return Plan(
        stages=tuple(stages),
        num_microbatches=total,
        microbatch_size=size,
        schedule=document.schedule or "1f1b",
        parallelism=document.parallelism,
    )


def _profiles(shelf: MixedShelf, plan: Plan) -> dict[int, Profile]:
    from trainwright.planning.model_space import Point

    degrees = plan.parallelism
    if degrees is None or plan.microbatch_size is None:
        raise InvalidInput.of("parallelism", "required field is missing")
    point = Point(
        microbatch_size=plan.microbatch_size,
        tensor=degrees.tensor,
        context=degrees.context,
        expert=degrees.expert,
        expert_tensor=degrees.expert_tensor,
    )
    pools = sorted({group.pool for stage in plan.stages for group in stage.replicas})
    return {pool: shelf.profile(pool, point) for pool in pools}


def refuse_export(document: MixedPlanResult) -> None:
    """Raise `UnsupportedFeature` naming the field that no target can express."""
    if not document.stages:
        raise InvalidInput.of("document", f'holds no plan: its status is "{document.status}"')
    for number, stage in enumerate(document.stages):
        counts = {(own.pool, own.num_microbatches) for own in stage.replicas}
        if len(counts) > 1:
            raise UnsupportedFeature(
                f"stages[{number}].replicas: replicas on several kinds of devices, each with its "
                "own number of microbatches, are expressed by no target",
                alternative="plan with --cluster of one pool to export",
            )
    pools = {own.pool for stage in document.stages for own in stage.replicas}
    kinds = ", ".join(group.device_kind for group in document.groups if group.pool in pools)
    where = "device_kind" if len(pools) > 1 else "pool"
    raise UnsupportedFeature(
        f"stages.replicas.{where}: files that say which kind of device runs a stage ({kinds}) are "
        "written for no target yet",
        alternative="plan with --cluster of one pool to export",
    )
