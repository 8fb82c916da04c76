"""The figures of a document about a model, computed again from what it carries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.api.model_request import call_of
from trainwright.api.recompute import read_plan, refuse
from trainwright.api.space_options import schedule_words
from trainwright.errors import Fault, InvalidInput
from trainwright.plan.axis_order import mapping_name
from trainwright.plan.parallelism import Parallelism
from trainwright.plan.searched_order import SEARCHED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan import Plan, StepPrediction
    from trainwright.plan.results.model_plan import ModelPlanResult
    from trainwright.planning.allowed import Allowed
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.model_space import Point
    from trainwright.profile import Profile

_SHARED: Final = (
    *("tensor", "pipeline", "data", "context", "expert", "virtual_stages", "state_copies"),
)


def recompute_model_plan(document: ModelPlanResult) -> ModelPlanResult:
    """The document with every figure that follows from its plan; it has stages.

    Raises `InvalidInput` where model or cluster cannot be read or the plan breaks a rule.
    """
    from trainwright.api.model_records import with_plan

    question, plan, profile = planned(document)
    step = predicted(question, plan, profile)
    computed = with_plan(document, question, plan, profile, step)
    return replace(
        computed,
        memory_limit_bytes=question.cluster.accelerator.usable_bytes,
        alternatives=tuple(
            replace(other, slowdown=other.step_time_s / step.step_time_s)
            for other in document.alternatives
        ),
    )


def planned(document: ModelPlanResult) -> tuple[ModelQuestion, Plan, Profile]:
    """What was asked, the plan that answers it, and the profile it was cut from.

    Raises `InvalidInput` where model or cluster cannot be read or the plan breaks a rule.
    """
    question = call_of(document.request).question
    plan = _plan_in(document, question)
    return question, plan, profile_of(question, plan)


def _plan_in(document: ModelPlanResult, question: ModelQuestion) -> Plan:
    """The decisions of a document; raises `InvalidInput` where the question does not allow them."""
    from trainwright.plan import Plan

    size = _microbatch_size(document, question)
    plan = Plan(
        stages=read_plan(document),
        num_microbatches=question.workload.global_batch // size,
        microbatch_size=size,
        schedule=document.schedule or "1f1b",
        order=document.order,
        parallelism=_parallelism(document, question),
    )
    if plan.devices_used > question.num_devices:
        wanted = f"must be at most the {question.num_devices} asked for"
        raise InvalidInput.of("devices_used", f"{wanted}, got {plan.devices_used}")
    return plan


def profile_of(question: ModelQuestion, plan: Plan) -> Profile:
    """What the layers cost on the question's cluster at the plan's degrees."""
    from trainwright.planning.model_question import estimate_profile_of_degrees

    return estimate_profile_of_degrees(
        question.estimator(),
        question,
        _point(plan),
        tensor=_tensor_degrees(plan, question),
    )


def predicted(question: ModelQuestion, plan: Plan, profile: Profile) -> StepPrediction:
    """The price of the plan."""
    from trainwright.model import model_flops_per_sequence
    from trainwright.pricing.step import predict_step

    flops = model_flops_per_sequence(question.model, question.workload.sequence_length)
    return predict_step(
        plan,
        profile,
        question.cluster,
        model_flops_per_sequence=flops,
        overlap=question.settings.overlap,
        overheads=question.overheads,
    )


def _microbatch_size(document: ModelPlanResult, question: ModelQuestion) -> int:
    size, batch = document.micro_batch, question.workload.global_batch
    if size is None or size < 1 or batch % size:
        raise InvalidInput.of("micro_batch", f"must divide the global batch of {batch}, got {size}")
    return size


def _parallelism(document: ModelPlanResult, question: ModelQuestion) -> Parallelism | None:
    """The degrees that all stages share; raises where stages or request say otherwise."""
    degrees = document.parallelism
    if degrees is None:
        return None
    refuse(_degree_faults(document, degrees))
    refuse(_space_faults(document, degrees, question.allowed))
    return degrees


def _degree_faults(document: ModelPlanResult, degrees: Parallelism) -> Iterator[Fault]:
    pair = (degrees.tensor, degrees.data)
    for index, stage in enumerate(document.stages):
        if (stage.tensor_parallel, stage.data_parallel) != pair:
            wanted = f"must have the degrees of parallelism, data {pair[1]} and tensor {pair[0]}"
            yield Fault(f"stages[{index}]", wanted)
    count = degrees.pipeline * degrees.virtual_stages
    if len(document.stages) != count:
        yield Fault("stages", f"must be {count} by parallelism, got {len(document.stages)}")
    if degrees.sequence_parallel != (degrees.tensor > 1):
        wanted = "must be true just where tensor > 1"
        yield Fault("parallelism.sequence_parallel", wanted)


def _space_faults(
    document: ModelPlanResult, degrees: Parallelism, allowed: Allowed
) -> Iterator[Fault]:
    """What the request does not allow."""
    for name in _SHARED:
        if (value := getattr(degrees, name)) not in getattr(allowed, name):
            yield Fault(f"parallelism.{name}", f"must be one that the request allows, got {value}")
    if degrees.expert_tensor is not None and degrees.expert_shards not in allowed.expert_tensor:
        value = degrees.expert_shards
        yield Fault("parallelism.expert_tensor", f"must be allowed by the request, got {value}")
    if degrees.zero_stage not in allowed.zero_stages:
        stages = ", ".join(map(str, allowed.zero_stages))
        yield Fault("parallelism.zero_stage", f"must be one of {stages}, got {degrees.zero_stage}")
    if degrees.axis_order not in allowed.mappings:
        orders = ", ".join(map(mapping_name, allowed.mappings))
        given = mapping_name(degrees.axis_order)
        yield Fault("parallelism.axis_order", f"must be that of {orders}, got {given}")
    words, order = schedule_words(allowed) or (), document.order
    if words not in ((), (SEARCHED,)) and document.schedule not in words:
        yield Fault("schedule", f'must be one of {", ".join(words)}, got "{document.schedule}"')
    if order is not None and not allowed.searches_orders:
        yield Fault("schedule", "must be asked for: the request names no searched orders")
    if order is not None and order.family not in (allowed.schedules or (order.family,)):
        families = ", ".join(allowed.schedules or ())
        yield Fault("order.family", f'must be one of {families}, got "{order.family}"')


def _point(plan: Plan) -> Point:
    from trainwright.planning.model_space import Point

    size, tensor = plan.microbatch_size or 1, plan.stages[0].tensor_parallel
    degrees = plan.parallelism
    if degrees is None:
        return Point(microbatch_size=size, tensor=tensor)
    return Point(
        microbatch_size=size,
        tensor=tensor,
        context=degrees.context,
        expert=degrees.expert,
        expert_tensor=degrees.expert_tensor,
    )


def _tensor_degrees(plan: Plan, question: ModelQuestion) -> tuple[int, ...]:
    """The degrees of the profile that the plan was cut from."""
    from trainwright.planning.model_space import tensor_degrees

    if plan.parallelism is not None:
        return (plan.stages[0].tensor_parallel,)
    return tensor_degrees(
        question.model, question.cluster, question.workload, question.allowed.tensor
    )
