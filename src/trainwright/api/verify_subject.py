"""What there is to replay of a document: its orders, or 1F1B over replicated stages.

A schedule document and a model's plan or estimate have one pipeline with the same degrees in every
stage: orders, times and memory of every action. A profile's plan has degrees per stage, so there
every replica of a stage is a worker of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from trainwright.errors import InvalidInput
from trainwright.measuring.tiny_layers import BLOCK, EMBEDDING, GAIN, HEAD, NORM, Stage
from trainwright.model.layer_kind import LayerKind
from trainwright.plan.results.estimate import EstimateResult
from trainwright.plan.results.model_estimate import ModelEstimateResult
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.results.placement import PlacementResult
from trainwright.plan.results.plan import PlanResult
from trainwright.plan.results.schedule import ScheduleResult
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.measuring.replica_replay import ReplicatedStage
    from trainwright.plan.job import Job, StagePart
    from trainwright.plan.lowered import LoweredSchedule
    from trainwright.plan.schedule import Schedule
    from trainwright.plan.timeline import Timeline

Verifiable = (
    PlanResult
    | EstimateResult
    | PlacementResult
    | ModelPlanResult
    | ModelEstimateResult
    | ScheduleResult
)

_TINY = {
    LayerKind.EMBEDDING: EMBEDDING,
    LayerKind.BLOCK: BLOCK,
    LayerKind.MTP: BLOCK,
    LayerKind.FINAL_NORM: NORM,
    LayerKind.HEAD_TRANSFORM: NORM,
    LayerKind.LM_HEAD: HEAD,
}
_SHARDING = 2  # from this ZeRO stage on, parameters come and go in the lowered orders


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Orders with times and memory; `claims` are figures of the document that they must give.

    `stages` are layers of the small model, by virtual stage; `peak_activations` and `peak_bytes`
    are by rank, empty where the document does not say. `is_sharded` says that parameters are.
    """

    timeline: Timeline
    schedule: str
    stages: tuple[Stage, ...]
    data_parallel: int = 1
    makespan_s: float | None = None
    peak_activations: tuple[int, ...] = ()
    peak_bytes: tuple[float, ...] = ()
    max_activations: int | None = None
    is_sharded: bool = False
    notes: tuple[str, ...] = ()

    def lowered(self) -> LoweredSchedule:
        """The orders with every transfer, as an export of the plan writes them."""
        return self._lowered(self.timeline.schedule)

    def runnable(self) -> tuple[Schedule, LoweredSchedule]:
        """The same in PyTorch's terms; raises UnsupportedFeature where there are none."""
        from trainwright.scheduling.pytorch_rules import as_pytorch_runs

        schedule = as_pytorch_runs(self.timeline.schedule)
        return schedule, self._lowered(schedule)

    def _lowered(self, schedule: Schedule) -> LoweredSchedule:
        from trainwright.scheduling.lower import lower

        sharded = range(schedule.placement.num_stages) if self.is_sharded else ()
        return lower(schedule, costs=self.timeline.costs, sharded_stages=frozenset(sharded))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Stages with replicas of their own, under 1F1B; `batch_s` is what the document predicts."""

    replicated: tuple[ReplicatedStage, ...]
    num_microbatches: int
    schedule: str
    stages: tuple[Stage, ...]
    data_parallel: int
    in_flight: tuple[int, ...]
    batch_s: float | None = None
    time_per_sample_s: float | None = None
    notes: tuple[str, ...] = ()


@singledispatch
def subject_of(document: Any) -> Pipeline | Replicas:
    """What to replay; raises InvalidInput where the document holds no plan."""
    raise InvalidInput.of("kind", f'a document of kind "{document.kind}" has nothing to run')


@subject_of.register
def _(document: ScheduleResult) -> Pipeline:
    from trainwright.api.schedule_document import timeline_of

    timeline = timeline_of(document)
    if timeline is None:
        raise InvalidInput.of("orders", f"there are none: the document is {document.status}")
    limit = document.request.max_activations
    return Pipeline(
        timeline=timeline,
        schedule=document.family,
        stages=((BLOCK,),) * timeline.schedule.placement.num_stages,
        makespan_s=document.makespan_s,
        peak_activations=document.peak_activations_per_rank,
        peak_bytes=document.peak_memory_bytes_per_rank,
        max_activations=None if limit is None else limit * (document.parts_per_stage or 1),
    )


@subject_of.register
def _(document: ModelPlanResult) -> Pipeline | Replicas:
    from trainwright.api.jobs import job_of, plan_and_profile
    from trainwright.pricing.step_timeline import step_timeline

    job = job_of(document)
    if job.parallelism is None:
        from trainwright.api.verify_replicas import of_own_degrees

        return of_own_degrees(document, job)
    plan, profile, cluster = plan_and_profile(document, job)
    return Pipeline(
        timeline=step_timeline(
            plan, profile, cluster, overlap=job.overlap, overheads=job.overheads
        ),
        schedule=job.schedule,
        stages=tiny_stages(job),
        data_parallel=job.degrees.data,
        is_sharded=job.demands.zero_stage >= _SHARDING,
        peak_bytes=document.peak_memory_bytes_per_rank,
        notes=tuple(_job_notes(job)),
    )


@subject_of.register
def _(document: ModelEstimateResult) -> Pipeline:
    from trainwright.api.jobs import job_of, plan_and_profile
    from trainwright.pricing.step_timeline import step_timeline

    job = job_of(document)
    plan, profile, cluster = plan_and_profile(document, job)
    return Pipeline(
        timeline=step_timeline(
            plan, profile, cluster, overlap=job.overlap, overheads=job.overheads
        ),
        schedule=job.schedule,
        stages=tiny_stages(job),
        data_parallel=job.degrees.data,
        is_sharded=job.demands.zero_stage >= _SHARDING,
        makespan_s=document.pipeline_s,
        peak_bytes=tuple(rank.total_bytes for rank in document.memory),
        notes=tuple(_job_notes(job)),
    )


@subject_of.register
def _(document: PlanResult) -> Replicas:
    from trainwright.api.verify_replicas import of_profile

    return of_profile(document)


@subject_of.register
def _(document: EstimateResult) -> Replicas:
    from trainwright.api.verify_replicas import of_profile

    return of_profile(document)


@subject_of.register
def _(document: PlacementResult) -> Replicas:
    from trainwright.api.verify_replicas import of_placement

    return of_placement(document)


def tiny_stages(job: Job) -> tuple[Stage, ...]:
    """The layers of each virtual stage, as those of the small model."""
    return tuple(_tiny_stage(stage) for stage in job.stages)


def _tiny_stage(stage: StagePart) -> Stage:
    names = []
    for kind, mode in zip(stage.kinds, stage.recompute, strict=True):
        if kind in _TINY:
            is_plain = mode is Recompute.NONE
            is_plain |= mode is Recompute.SELECTIVE and _TINY[kind] != BLOCK
            names.append(_TINY[kind] if is_plain else f"{_TINY[kind]}:{mode.value}")
    return tuple(names) or (GAIN,)


def _job_notes(job: Job) -> Iterator[str]:
    if job.model.num_mtp_layers:
        yield "layers that predict further tokens run as plain blocks"
    if any(Recompute.SELECTIVE in stage.recompute for stage in job.stages):
        yield "selective recomputation runs attention scores and the activation again"
    if job.degrees.zero_stage:
        yield f"ZeRO-{job.degrees.zero_stage}: replicas hold whole parameters here"
