"""The predicted step and memory of one question."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.costing.estimate import (
    FUSED_ATTENTION,
    FUSED_CROSS_ENTROPY,
    UNFUSED_ATTENTION,
    UNFUSED_CROSS_ENTROPY,
    Estimator,
)
from trainwright.model import LayerKind
from trainwright.plan import Plan, Stage, StepPrediction
from trainwright.plan.configuration import even_blocks
from trainwright.pricing import predict_step
from trainwright.profile import Profile, ProfilePoint, Recompute
from trainwright.validation.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """Seconds of a step with the ends of the 90 % interval; bytes of a device where modelled."""

    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    peak_memory_bytes: float | None = None
    static_memory_bytes: float | None = None


def predict(question: Question) -> RunPrediction:
    """Price one question; raises like `Estimator.profile` and `predict_step`."""
    step = price(question)
    time_s = step.step_time_s + question.cluster.accelerator.step_overhead_s
    return RunPrediction(
        step_time_s=time_s,
        step_time_low_s=time_s,
        step_time_high_s=time_s,
        peak_memory_bytes=step.peak_memory_bytes,
        static_memory_bytes=max(stage.memory.static_bytes for stage in step.stages),
    )


def price(question: Question) -> StepPrediction:
    """The step of a question, stage by stage."""
    asked = question.configuration
    source = Estimator(
        model=question.model,
        cluster=question.cluster,
        recipe=asked.recipe,
        vocabulary_multiple=asked.vocabulary_multiple,
    )
    profile = source.profile(_point(question))
    plan = _plan(question, profile)
    return predict_step(
        plan, profile, question.cluster, overlap=asked.overlap, overheads=asked.overheads
    )


def _point(question: Question) -> ProfilePoint:
    asked, degrees = question.configuration, question.configuration.parallelism
    return ProfilePoint(
        microbatch_size=asked.microbatch_size,
        sequence_length=asked.sequence_length,
        tensor_parallel=(degrees.tensor,),
        context_parallel=degrees.context,
        expert_parallel=degrees.expert,
        expert_tensor_parallel=degrees.expert_tensor,
        sequence_parallel=degrees.sequence_parallel,
        precision=asked.recipe.precision,
        recompute=tuple(dict.fromkeys((Recompute.NONE, asked.recompute))),
        kernels=(
            FUSED_ATTENTION if asked.fused_attention else UNFUSED_ATTENTION,
            FUSED_CROSS_ENTROPY if asked.fused_cross_entropy else UNFUSED_CROSS_ENTROPY,
        ),
    )


def _plan(question: Question, profile: Profile) -> Plan:
    asked, degrees = question.configuration, question.configuration.parallelism
    names = [layer.name for layer in profile.structure.layers]
    num_blocks = sum(name == LayerKind.BLOCK for name in names)
    blocks = asked.blocks_per_stage or even_blocks(num_blocks, asked.num_stages)
    options = [asked.recompute if n == LayerKind.BLOCK else Recompute.NONE for n in names]
    stages = tuple(
        Stage.uniform(
            layers,
            tuple(options[i] for i in layers),
            data_parallel=degrees.data,
            tensor_parallel=degrees.tensor,
        )
        for layers in _layers(blocks, num_after=len(names) - 1 - num_blocks)
    )
    return Plan(
        stages=stages,
        num_microbatches=asked.num_microbatches * degrees.data,
        microbatch_size=asked.microbatch_size,
        schedule=asked.schedule,
        parallelism=degrees,
    )


def _layers(blocks: tuple[int, ...], *, num_after: int) -> list[tuple[int, ...]]:
    """Layer indices of each stage: the embedding is 0, `num_after` layers follow the blocks."""
    stages, first = [], 0
    for index, count in enumerate(blocks):
        size = count + (index == 0) + (num_after if index == len(blocks) - 1 else 0)
        stages.append(tuple(range(first, first + size)))
        first += size
    return stages
