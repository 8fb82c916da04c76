"""From a document to the job that exporters write: of the planner, or of a stated run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainwright._version import __version__
from trainwright.errors import InvalidInput
from trainwright.plan.results.model_estimate import ModelEstimateResult
from trainwright.plan.results.model_plan import ModelPlanResult

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.model import LayerKind, TransformerConfig
    from trainwright.plan import Plan
    from trainwright.plan.bundle import Stamp
    from trainwright.plan.configuration import Configuration
    from trainwright.plan.job import Job, StagePart
    from trainwright.plan.results.request import PlanRequest
    from trainwright.profile import Profile, Recompute

Jobbed = ModelPlanResult | ModelEstimateResult


def job_of(document: Jobbed) -> Job:
    """The job of a document. Raises `InvalidInput` where the document holds no plan."""
    model, cluster = model_and_cluster(document)
    if isinstance(document, ModelPlanResult):
        return _planned(document, model, cluster)
    run = document.request.configuration
    return job_of_configuration(
        run, model, cluster, model_name=document.request.model.name or "model"
    )


def model_and_cluster(document: Jobbed) -> tuple[TransformerConfig, Cluster]:
    """What a document carries of model and cluster."""
    from trainwright.cluster import Cluster
    from trainwright.formats.document_json import decode
    from trainwright.model import TransformerConfig

    request = document.request
    if request.cluster is None:
        raise InvalidInput.of("request.cluster", "required field is missing")
    model = decode(TransformerConfig, request.model.content, path="request.model.content")
    return model, decode(Cluster, request.cluster.content, path="request.cluster.content")


def stamp_of(document: Jobbed) -> Stamp:
    """Who writes, and the hash of what the document decides: same plan, same hash."""
    from trainwright.api.inputs import content_hash
    from trainwright.formats.document_json import encode
    from trainwright.plan.bundle import Stamp

    if isinstance(document, ModelPlanResult):
        decided = {
            "model": document.request.model.sha256,
            "workload": encode(document.request.workload),
            **_trained_so(document.request),
            "parallelism": encode(document.parallelism) if document.parallelism else {},
            "schedule": document.schedule,
            **({} if document.order is None else {"order": encode(document.order)}),
            "micro_batch": document.micro_batch,
            "stages": [[list(stage.layers), stage.options] for stage in document.stages],
        }
    else:
        decided = {
            "model": document.request.model.sha256,
            "configuration": encode(document.request.configuration),
        }
    return Stamp(trainwright_version=__version__, plan_sha256=content_hash(decided))


def _trained_so(request: PlanRequest) -> dict[str, Any]:
    """How the model trains, where that is not as usual."""
    from trainwright.formats.document_json import encode

    parts = {"recipe": request.recipe, "overlap": request.overlap}
    return {name: encode(part) for name, part in parts.items() if part is not None}


def job_of_configuration(
    run: Configuration, model: TransformerConfig, cluster: Cluster, *, model_name: str
) -> Job:
    """The job of a run stated in degrees."""
    from trainwright.plan.job import Job
    from trainwright.pricing.configuration import shape_of
    from trainwright.pricing.pipeline_run import placement_of

    pool = cluster.pool_of()
    return Job(
        model=model,
        model_name=model_name,
        parallelism=run.parallelism,
        stages=_stages_of(run, model),
        placement=placement_of(shape_of(run)),
        microbatch_size=run.microbatch_size,
        global_batch=run.global_batch,
        sequence_length=run.sequence_length,
        precision=run.recipe.precision or pool.accelerator.default_precision,
        schedule=run.schedule,
        recipe=run.recipe,
        recompute_modules=run.recompute_modules,
        fused_attention=run.fused_attention,
        fused_cross_entropy=run.fused_cross_entropy,
        vocabulary_multiple=run.vocabulary_multiple,
        overlap=run.overlap,
        overheads=run.overheads,
        devices_per_node=pool.devices_per_node,
    )


def layer_kinds(model: TransformerConfig) -> tuple[LayerKind, ...]:
    """The kind of every layer of the model, in order."""
    from trainwright.model import RunShape, layer_graph

    # Nothing but the chain is wanted, so the shape is the smallest; no head is padded or split.
    return layer_graph(model, RunShape(microbatch_size=1, sequence_length=1)).kinds


def _stages_of(run: Configuration, model: TransformerConfig) -> tuple[StagePart, ...]:
    from itertools import accumulate, pairwise

    from trainwright.model import LayerKind
    from trainwright.plan.configuration import even_blocks
    from trainwright.profile import Recompute

    kinds = layer_kinds(model)
    first = kinds.index(LayerKind.BLOCK)
    counts = run.blocks_per_stage or even_blocks(model.num_layers, run.num_stages)
    cuts = [first + count for count in accumulate(counts, initial=0)]
    cuts[0], cuts[-1] = 0, len(kinds)
    stages = []
    for start, after in pairwise(cuts):
        own = kinds[start:after]
        limit, seen, modes = run.recompute_blocks, 0, []
        for kind in own:
            again = kind is LayerKind.MTP and limit is None
            if kind is LayerKind.BLOCK:
                again = limit is None or seen < limit
                seen += 1
            modes.append(run.recompute if again else Recompute.NONE)
        stages.append(_part(own, modes, kinds, start))
    return tuple(stages)


def _planned(document: ModelPlanResult, model: TransformerConfig, cluster: Cluster) -> Job:
    from trainwright.model import DEFAULT_RECIPE
    from trainwright.plan.job import Job
    from trainwright.plan.overlap import DEFAULT_OVERLAP, NO_OVERHEADS
    from trainwright.plan.parallelism import Parallelism
    from trainwright.pricing.pipeline_run import PipelineShape, placement_of
    from trainwright.profile import Recompute

    workload, size = document.request.workload, document.micro_batch
    if not document.stages or workload is None or size is None:
        raise InvalidInput.of("document", f'holds no plan: its status is "{document.status}"')
    kinds, stages = layer_kinds(model), []
    for stage in document.stages:
        first, last = min(stage.layers), max(stage.layers)
        modes = [Recompute(stage.options[str(layer)]) for layer in sorted(stage.layers)]
        stages.append(_part(kinds[first : last + 1], modes, kinds, first))
    degrees = document.parallelism
    shape = PipelineShape(
        family=document.schedule or "1f1b",
        num_ranks=len(stages) if degrees is None else degrees.pipeline,
        num_microbatches=1 if degrees is None else workload.global_batch // (size * degrees.data),
        virtual_stages=(degrees or Parallelism()).virtual_stages,
        order=document.order,
    )
    pool = cluster.pool_of()
    return Job(
        model=model,
        model_name=document.request.model.name or "model",
        parallelism=degrees,
        stages=tuple(stages),
        placement=placement_of(shape),
        microbatch_size=size,
        global_batch=workload.global_batch,
        sequence_length=workload.sequence_length,
        precision=workload.precision or pool.accelerator.default_precision,
        schedule=shape.family,
        recipe=document.request.recipe or DEFAULT_RECIPE,
        overlap=document.request.overlap or DEFAULT_OVERLAP,
        overheads=document.request.overheads or NO_OVERHEADS,
        devices_per_node=pool.devices_per_node,
    )


def _part(
    own: tuple[LayerKind, ...], modes: list[Recompute], kinds: tuple[LayerKind, ...], start: int
) -> StagePart:
    from trainwright.model import LayerKind
    from trainwright.plan.job import StagePart

    return StagePart(
        kinds=own,
        recompute=tuple(modes),
        first_block=kinds[:start].count(LayerKind.BLOCK),
    )


def with_orders(job: Job, plan: Plan, profile: Profile, cluster: Cluster) -> Job:
    """The job with its schedule written out, at the predicted times of its stages."""
    from trainwright.plan.job import Orders
    from trainwright.pricing.step_timeline import step_timeline
    from trainwright.scheduling.lower import lower
    from trainwright.scheduling.pytorch_rules import as_pytorch_runs

    timeline = step_timeline(plan, profile, cluster, overlap=job.overlap, overheads=job.overheads)
    schedule = as_pytorch_runs(timeline.schedule)
    sharded = range(len(job.stages)) if job.demands.zero_stage >= 2 else ()
    lowered = lower(schedule, costs=timeline.costs, sharded_stages=frozenset(sharded))
    return replace(job, orders=Orders(schedule=schedule, lowered=lowered, timeline=timeline))


def plan_and_profile(document: Jobbed, job: Job) -> tuple[Plan, Profile, Cluster]:
    """The plan of a document beside the profile that prices it."""
    from trainwright.pricing.configuration import estimator_of, plan_of, point_of

    model, cluster = model_and_cluster(document)
    if isinstance(document, ModelEstimateResult):
        run = document.request.configuration
        profile = estimator_of(model, cluster, run).profile(point_of(run))
        return plan_of(run, profile.structure), profile, cluster
    return planned_stages(document, job, model, cluster)


def planned_stages(
    document: ModelPlanResult, job: Job, model: TransformerConfig, cluster: Cluster
) -> tuple[Plan, Profile, Cluster]:
    """The planner's stages, priced at the point of the plan."""
    from trainwright.api.recompute import read_plan
    from trainwright.costing.estimate import Estimator
    from trainwright.plan import Plan
    from trainwright.profile import ProfilePoint, Recompute

    degrees = job.degrees
    point = ProfilePoint(
        microbatch_size=job.microbatch_size,
        sequence_length=job.sequence_length,
        tensor_parallel=(degrees.tensor,),
        context_parallel=degrees.context,
        expert_parallel=degrees.expert,
        expert_tensor_parallel=degrees.expert_tensor,
        sequence_parallel=degrees.sequence_parallel,
        precision=job.precision,
        recompute=tuple(str(mode) for mode in Recompute),
    )
    plan = Plan(
        stages=read_plan(document),
        num_microbatches=job.num_microbatches * degrees.data,
        microbatch_size=job.microbatch_size,
        schedule=job.schedule,
        order=document.order,
        parallelism=degrees,
    )
    estimator = Estimator(model=model, cluster=cluster, recipe=job.recipe, overlap=job.overlap)
    return plan, estimator.profile(point), cluster
