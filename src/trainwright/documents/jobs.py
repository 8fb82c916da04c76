"""From a document to the job that exporters write: of the planner, or of a stated run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright._version import __version__
from trainwright.documents.model_estimate import ModelEstimateResult
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.printing import Report
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.planning.search.plans import own_split
from trainwright.plans.capability import CHROME_TRACE, TARGETS, unsupported

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.model import LayerKind, TransformerConfig
    from trainwright.options.inputs import ModelInput
    from trainwright.plans import Plan
    from trainwright.plans.capability import Gap
    from trainwright.plans.configuration import Configuration
    from trainwright.plans.job import Job, StagePart, Stamp
    from trainwright.plans.request import PlanRequest
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
    if request.model.kind == "profile":
        raise UnsupportedFeature(
            f"{request.model.name} is a profile: it says what layers cost, not what they are, and "
            "no framework can be told to build them",
            alternative="plan the model itself, by its config.json or its name in the catalog",
        )
    model = decode(TransformerConfig, request.model.content, path="request.model.content")
    return model, decode(Cluster, request.cluster.content, path="request.cluster.content")


def stamp_of(document: Jobbed) -> Stamp:
    """Who writes, and the hash of what the document decides: same plan, same hash."""
    from trainwright.formats.document_json import encode
    from trainwright.options.inputs import content_hash
    from trainwright.plans.job import Stamp

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
    from trainwright.plans.job import Job
    from trainwright.step.pipeline import placement_of
    from trainwright.step.predict import shape_of

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
    from trainwright.plans.configuration import even_blocks
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
    from trainwright.plans.configuration import DEFAULT_OVERLAP, NO_OVERHEADS
    from trainwright.plans.job import Job
    from trainwright.plans.parallelism import Parallelism
    from trainwright.profile import Recompute
    from trainwright.step.pipeline import PipelineShape, placement_of

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
        sequence_length=workload.sequence_length or 1,
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
    from trainwright.plans.job import StagePart

    return StagePart(
        kinds=own,
        recompute=tuple(modes),
        first_block=kinds[:start].count(LayerKind.BLOCK),
    )


def with_orders(job: Job, plan: Plan, profile: Profile, cluster: Cluster) -> Job:
    """The job with its schedule written out, at the predicted times of its stages."""
    from trainwright.plans.job import Orders
    from trainwright.scheduling.lower import as_pytorch_runs, lower
    from trainwright.step.account import step_timeline

    timeline = step_timeline(plan, profile, cluster, overlap=job.overlap, overheads=job.overheads)
    schedule = as_pytorch_runs(timeline.schedule)
    sharded = range(len(job.stages)) if job.demands.zero_stage >= 2 else ()
    lowered = lower(schedule, costs=timeline.costs, sharded_stages=frozenset(sharded))
    return replace(job, orders=Orders(schedule=schedule, lowered=lowered, timeline=timeline))


def plan_and_profile(document: Jobbed, job: Job) -> tuple[Plan, Profile, Cluster]:
    """The plan of a document beside the profile that prices it."""
    from trainwright.step.predict import estimator_of, plan_of, point_of

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
    from trainwright.costing.estimate import Estimator
    from trainwright.documents.profile_plan import read_plan
    from trainwright.plans import Plan
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


# The run that a document is about: what an estimate states, or what a plan comes to
# ----------------------------------------------------------------------------------


def run_of_document(
    document: str | Path | Report[Any],
) -> tuple[ModelInput, Cluster, Configuration]:
    """Model, cluster and run of an estimate or a plan of a model (a path or a result).

    Raises `InvalidInput` for other kinds, `UnsupportedFeature` for a plan that no options of
    `estimate` state: with an order that was searched, or blocks recomputed one by one.
    """
    from trainwright.documents.model_estimate import ModelEstimateResult
    from trainwright.documents.model_plan import ModelPlanResult
    from trainwright.documents.open import load_any_document
    from trainwright.options.inputs import ModelInput
    from trainwright.plans.capability import RecomputeForm

    found = document.document if isinstance(document, Report) else load_any_document(document)
    if isinstance(found, ModelEstimateResult):
        run = found.request.configuration
    elif isinstance(found, ModelPlanResult):
        if found.order is not None:
            raise UnsupportedFeature(
                "this plan has an order of actions that was searched, which no stated run has",
                alternative=f"plan again with --schedule {found.order.family} and give that",
            )
        job = job_of(found)
        if job.recompute_form in (RecomputeForm.MIXED, RecomputeForm.ANY):
            raise UnsupportedFeature(
                "this plan recomputes blocks one by one, which no stated run does",
                alternative="it is the planner's own; compare others with: trainwright diff",
            )
        run = job.configuration()
    else:
        kind = getattr(found, "kind", type(found).__name__)
        raise InvalidInput.of("document", f'must be an estimate or plan of a model, got "{kind}"')
    config, where = model_and_cluster(found)
    return ModelInput(config=config, embedded=found.request.model), where, run


def gaps_of(job: Job, target: str) -> tuple[Gap, ...]:
    """Everything of the job that the target cannot express."""
    if target == CHROME_TRACE:
        return ()
    demands = job.demands
    if (
        target == "nanotron" and job.parallelism is not None
    ):  # its own split is what must not differ
        demands = replace(demands, uneven_stages=not splits_alike(job), ends_apart=False)
    return unsupported(demands, target)


def able_targets(job: Job) -> tuple[str, ...]:
    """The frameworks that can express all of the job."""
    return tuple(name for name in TARGETS if not gaps_of(job, name))


def splits_alike(job: Job) -> bool:
    """Whether nanotron would cut the model as the plan does."""
    if job.degrees.pipeline == 1:
        return True
    return job.has_usual_ends and job.blocks_per_stage == own_split(job.model, len(job.stages))


# What a framework cannot express of a stated run
# -----------------------------------------------


def gaps_of_run(
    run: Configuration, model: TransformerConfig, cluster: Cluster, target: str
) -> tuple[str, ...]:
    """One line each; empty where the framework runs all of it."""
    # REGROUP

    job = job_of_configuration(run, model, cluster, model_name="model")
    return tuple(dict.fromkeys(str(gap.fault) for gap in gaps_of(job, target)))
