"""The figures of a document about a model, computed again from what it carries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.api.plan_model import allowed_by
from trainwright.api.recompute import inside, read_plan
from trainwright.errors import Fault, InvalidInput
from trainwright.plan.parallelism import Parallelism

if TYPE_CHECKING:
    from trainwright.plan.results.model_plan import ModelPlanResult
    from trainwright.plan.results.request import PlanRequest
    from trainwright.planning.model_question import ModelQuestion


def recompute_model_plan(document: ModelPlanResult) -> ModelPlanResult:
    """The document with every figure that follows from its plan; it has stages.

    Raises `InvalidInput` where model or cluster cannot be read or the plan breaks a rule.
    """
    from trainwright.api.model_records import with_plan
    from trainwright.costing.estimate import Estimator
    from trainwright.model import model_flops_per_sequence
    from trainwright.plan import Plan
    from trainwright.planning.model_question import estimate_profile
    from trainwright.pricing.step import predict_step

    question = _question(document.request)
    size = _microbatch_size(document, question)
    plan = Plan(
        stages=read_plan(document),
        num_microbatches=question.workload.global_batch // size,
        microbatch_size=size,
        parallelism=_parallelism(document, question),
    )
    if plan.devices_used > question.num_devices:
        wanted = f"must be at most the {question.num_devices} asked for"
        raise InvalidInput.of("devices_used", f"{wanted}, got {plan.devices_used}")
    profile = estimate_profile(
        Estimator(model=question.model, cluster=question.cluster),
        question,
        microbatch_size=size,
        tensor=_tensor_degrees(document, question),
    )
    flops = model_flops_per_sequence(question.model, question.workload.sequence_length)
    step = predict_step(plan, profile, question.cluster, model_flops_per_sequence=flops)
    computed = with_plan(document, question, plan, profile, step)
    return replace(
        computed,
        memory_limit_bytes=question.cluster.accelerator.usable_bytes,
        alternatives=tuple(
            replace(other, slowdown=other.step_time_s / step.step_time_s)
            for other in document.alternatives
        ),
    )


def _question(request: PlanRequest) -> ModelQuestion:
    """What was asked about a model, as the planner takes it."""
    from trainwright.cluster import Cluster
    from trainwright.formats.document_json import decode
    from trainwright.model import TransformerConfig
    from trainwright.partitioning.restrictions import Restrictions
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.model_space import Workload

    space, stated, where = request.space, request.workload, request.cluster
    missing = [
        Fault(f"request.{name}", "required field is missing")
        for name, part in (("cluster", where), ("workload", stated))
        if part is None
    ]
    if missing or where is None or stated is None:
        raise InvalidInput(missing)
    model = decode(TransformerConfig, request.model.content, path="request.model.content")
    cluster = decode(Cluster, where.content, path="request.cluster.content")
    with inside("request"):
        return ModelQuestion(
            model=model,
            cluster=cluster,
            workload=Workload(
                global_batch=stated.global_batch,
                sequence_length=stated.sequence_length,
                precision=stated.precision,
            ),
            num_devices=request.num_devices or cluster.num_devices,
            allowed=allowed_by(
                Restrictions(
                    data_parallel=space.data_parallel,
                    tensor_parallel=space.tensor_parallel,
                    recompute=space.recompute,
                    excluded_options=frozenset(space.excluded_options),
                ),
                micro_batch=space.micro_batch,
                zero_stage=space.zero_stage,
            ),
        )


def _microbatch_size(document: ModelPlanResult, question: ModelQuestion) -> int:
    size, batch = document.micro_batch, question.workload.global_batch
    if size is None or size < 1 or batch % size:
        raise InvalidInput.of("micro_batch", f"must divide the global batch of {batch}, got {size}")
    return size


def _parallelism(document: ModelPlanResult, question: ModelQuestion) -> Parallelism | None:
    """The degrees of the stages, where the document says that all agree."""
    if document.parallelism is None:
        return None
    tensor, data = document.stages[0].tensor_parallel, document.stages[0].data_parallel
    for index, stage in enumerate(document.stages):
        if (stage.tensor_parallel, stage.data_parallel) != (tensor, data):
            problem = f"must have the degrees of stages[0], data {data} and tensor {tensor}"
            raise InvalidInput.of(f"stages[{index}]", problem)
    return Parallelism(
        tensor=tensor,
        pipeline=len(document.stages),
        data=data,
        sequence_parallel=tensor > 1,
        zero_stage=question.allowed.zero_stages[0],
    )


def _tensor_degrees(document: ModelPlanResult, question: ModelQuestion) -> tuple[int, ...]:
    """The degrees of the profile that the plan was cut from."""
    from trainwright.planning.model_space import tensor_degrees

    if document.parallelism is not None:
        return (document.stages[0].tensor_parallel,)
    return tensor_degrees(
        question.model, question.cluster, question.workload, question.allowed.tensor
    )
