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
from trainwright.measuring.replica_replay import ReplicatedStage
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

    from trainwright.plan.job import Job, StagePart
    from trainwright.plan.lowered import LoweredSchedule
    from trainwright.plan.results.plan import StageRecord
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
_FORWARD_SHARE = 1 / 3  # of a profile's stage time, which is of both directions


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
        return _own_degrees(document, job)
    plan, profile, cluster = plan_and_profile(document, job)
    return Pipeline(
        timeline=step_timeline(plan, profile, cluster),
        schedule=job.schedule,
        stages=_tiny_stages(job),
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
    run = document.request.configuration
    return Pipeline(
        timeline=step_timeline(
            plan, profile, cluster, overlap=run.overlap, overheads=run.overheads
        ),
        schedule=job.schedule,
        stages=_tiny_stages(job),
        data_parallel=job.degrees.data,
        is_sharded=job.demands.zero_stage >= _SHARDING,
        makespan_s=document.pipeline_s,
        peak_bytes=tuple(rank.total_bytes for rank in document.memory),
        notes=tuple(_job_notes(job)),
    )


@subject_of.register
def _(document: PlanResult) -> Replicas:
    return _of_profile(document)


@subject_of.register
def _(document: EstimateResult) -> Replicas:
    return _of_profile(document)


@subject_of.register
def _(document: PlacementResult) -> Replicas:
    setting = document.request.setting
    if not document.stages or setting is None:
        raise InvalidInput.of("document", f'holds no plan: its status is "{document.status}"')
    last = len(document.stages) - 1
    replicas = document.data_parallel or 1
    sync_s = document.gradient_sync_s or 0.0
    simulated_s = document.simulated_time_s
    return Replicas(
        replicated=tuple(
            ReplicatedStage(
                forward_s=stage.forward_s,
                backward_s=stage.backward_s,
                replicas=1,
                in_flight=stage.microbatches_in_flight,
                feeds=(at + 1,) if at < last else (),
            )
            for at, stage in enumerate(document.stages)
        ),
        num_microbatches=-(-setting.num_microbatches // replicas),
        schedule="1f1b",
        stages=tuple(
            _generic(len(stage.layers), stage.num_recomputed) for stage in document.stages
        ),
        data_parallel=replicas,
        in_flight=tuple(stage.microbatches_in_flight for stage in document.stages),
        batch_s=None if simulated_s is None else simulated_s - sync_s,
        notes=("one of the equal replicas of the pipeline is replayed",) if replicas > 1 else (),
    )


def _of_profile(document: PlanResult | EstimateResult) -> Replicas:
    setting = document.request.setting
    if not document.stages or setting is None:
        raise InvalidInput.of("document", "holds no plan: it has no stages")
    feeds = _feeds(document)
    whole = sorted({target for targets in feeds for target in targets})
    chain = whole == list(range(1, len(feeds))) and all(len(each) <= 1 for each in feeds)
    branches = "stages that branch are run one after the other at level 2"
    return Replicas(
        replicated=tuple(map(_replicated, document.stages, feeds)),
        num_microbatches=setting.num_microbatches,
        schedule="1f1b",
        stages=tuple(
            _generic(len(stage.layers), stage.num_recomputed) for stage in document.stages
        ),
        data_parallel=_common([stage.data_parallel for stage in document.stages]),
        in_flight=tuple(stage.microbatches_in_flight for stage in document.stages),
        time_per_sample_s=document.time_per_sample_s,
        notes=(
            "a profile does not say how a stage's time splits; a third is taken as forward",
            *(() if chain else (branches,)),
        ),
    )


def _replicated(stage: StageRecord, feeds: tuple[int, ...]) -> ReplicatedStage:
    own_s = stage.time_per_sample_s * stage.data_parallel
    return ReplicatedStage(
        forward_s=own_s * _FORWARD_SHARE,
        backward_s=own_s * (1 - _FORWARD_SHARE),
        replicas=stage.data_parallel,
        in_flight=stage.microbatches_in_flight,
        feeds=feeds,
    )


def _feeds(document: PlanResult | EstimateResult) -> tuple[tuple[int, ...], ...]:
    """For each stage the stages that take a tensor of it."""
    from trainwright.api.recompute import profile_of_request

    structure = profile_of_request(document.request).structure
    stage_of = {layer: at for at, stage in enumerate(document.stages) for layer in stage.layers}
    found: list[set[int]] = [set() for _ in document.stages]
    for edge in structure.edges:
        source, target = (stage_of[structure.ids[end]] for end in (edge.source, edge.target))
        if source != target:
            found[source].add(target)
    return tuple(tuple(sorted(targets)) for targets in found)


def _own_degrees(document: ModelPlanResult, job: Job) -> Replicas:
    """A model's plan whose stages differ in degrees."""
    workload, last = document.request.workload, len(document.stages) - 1
    assert workload is not None and document.micro_batch is not None, "a plan has both"
    return Replicas(
        replicated=tuple(
            ReplicatedStage(
                forward_s=rank.forward_s,
                backward_s=rank.backward_s,
                replicas=stage.data_parallel,
                in_flight=rank.memory.microbatches_in_flight,
                feeds=(at + 1,) if at < last else (),
            )
            for at, (stage, rank) in enumerate(zip(document.stages, document.ranks, strict=True))
        ),
        num_microbatches=workload.global_batch // document.micro_batch,
        schedule=job.schedule,
        stages=_tiny_stages(job),
        data_parallel=1,
        in_flight=tuple(rank.memory.microbatches_in_flight for rank in document.ranks),
        notes=("transfers are taken as free",),
    )


def _common(degrees: list[int]) -> int:
    return degrees[0] if len(set(degrees)) == 1 else 1


def _generic(num_layers: int, num_recomputed: int) -> Stage:
    """Layers that are not told apart: blocks, of which the first are recomputed."""
    again = (f"{BLOCK}:full",) * num_recomputed
    return again + (BLOCK,) * (num_layers - num_recomputed)


def _tiny_stages(job: Job) -> tuple[Stage, ...]:
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
