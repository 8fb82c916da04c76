"""The job that a stated run or a plan comes to, and what a framework cannot express of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from trainwright.cluster import Cluster
from trainwright.documents.printing import no_plan
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.document_json import decode
from trainwright.model import (
    BESIDE_BLOCKS,
    DEFAULT_RECIPE,
    LayerKind,
    TransformerConfig,
    layer_graph,
)
from trainwright.options.question import call_of, trained_in
from trainwright.planning.bounds.pools import common_precision
from trainwright.plans import configuration
from trainwright.plans.capability import (
    OTHER_TARGETS,
    TARGETS,
    Demands,
    Gap,
    capability_of,
    unsupported,
)
from trainwright.plans.job import Job, StagePart, unsaid_training, unwritable
from trainwright.plans.plan import DEFAULT_SCHEDULE, Parallelism
from trainwright.plans.prediction import RankRecord
from trainwright.plans.schedule import FamilyShape
from trainwright.profile import Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.scheduling.families import family_named
from trainwright.step.account import TimeRange, time_range
from trainwright.step.pipeline import PipelineShape, placement_of
from trainwright.step.pools import processes_per_node
from trainwright.step.predict import shape_of

if TYPE_CHECKING:
    from trainwright.documents.fit import FitRequest
    from trainwright.documents.model_estimate import ModelEstimateRequest
    from trainwright.documents.model_plan import ModelPlanResult
    from trainwright.profile.measured_model import Trained


def trained_and_cluster(
    request: configuration.PlanRequest | ModelEstimateRequest,
) -> tuple[Trained, Cluster]:
    """What a request carries of the model, which may be known by its costs alone, and the cluster.

    Raises `InvalidInput` under its keys.
    """
    if request.cluster is None:
        raise InvalidInput.of("request.cluster", "required field is missing")
    cluster = decode(Cluster, request.cluster.content, path="request.cluster.content")
    if isinstance(request, configuration.PlanRequest):
        return call_of(request).question.model, cluster
    return trained_in(request.model, sequence=stated_length(request.configuration)), cluster


def stated_length(run: configuration.Configuration) -> int | None:
    """Tokens of a sequence of a run; None for 1, which stands for a length that nobody said."""
    return None if run.sequence_length == 1 else run.sequence_length


def batch_in_words(run: configuration.Configuration) -> str:
    """What a step trains on."""
    length = stated_length(run)
    tokens = "" if length is None else f" of {length:,} tokens"
    return f"{run.global_batch:,} sequences{tokens} per step"


def range_of(
    model: Trained, cluster: Cluster, run: configuration.Configuration
) -> TimeRange | None:
    """The ratios to the predicted step that hold nine of ten measured ones.

    None where layers were measured: how far such steps are from real ones nobody has counted yet.
    """
    return None if isinstance(model, MeasuredModel) else time_range(model, cluster, run)


def model_and_cluster(
    request: configuration.PlanRequest | ModelEstimateRequest | FitRequest,
) -> tuple[TransformerConfig, Cluster]:
    """What a request carries of model and cluster; raises `InvalidInput` under its keys."""
    if request.cluster is None:
        raise InvalidInput.of("request.cluster", "required field is missing")
    if request.model.kind == "profile":
        raise UnsupportedFeature(
            f"{request.model.name} is a profile: it says what layers cost, not what they are, and "
            "no framework can be told to build them",
            alternative="say what it is to export, with --model, or plan the model itself, by its "
            "config.json or its name in the catalog",
        )
    model = decode(TransformerConfig, request.model.content, path="request.model.content")
    return model, decode(Cluster, request.cluster.content, path="request.cluster.content")


def job_of_configuration(
    run: configuration.Configuration, model: TransformerConfig, cluster: Cluster, *, model_name: str
) -> Job:
    """The job of a run stated in degrees."""
    pool, shape = cluster.pool_of(), shape_of(run)
    return Job(
        model=model,
        model_name=model_name,
        parallelism=run.parallelism,
        stages=_stages_of(run, model),
        placement=placement_of(shape),
        shape=family_shape(shape),
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


def planned_job(
    document: ModelPlanResult,
    model: TransformerConfig,
    cluster: Cluster,
    measured: tuple[StagePart, ...] | None = None,
) -> Job:
    """The job of the plan, whose replicas all run alike; its stages, where layers were `measured`.

    Raises `InvalidInput` where the document holds none, `UnsupportedFeature` where replicas on
    several pools run differently, or lie on parts of nodes.
    """
    workload, size = document.request.workload, document.micro_batch
    if not document.stages or workload is None or size is None:
        raise no_plan(document.status)
    refuse_unlike_replicas(document)
    degrees = document.parallelism
    shape = PipelineShape(
        family=document.schedule or DEFAULT_SCHEDULE,
        num_ranks=len(document.stages) if degrees is None else degrees.pipeline,
        num_microbatches=1 if degrees is None else workload.global_batch // (size * degrees.data),
        virtual_stages=(degrees or Parallelism()).virtual_stages,
        order=document.order,
    )
    nodes = _nodes(document, cluster)
    return Job(
        model=model,
        model_name=document.request.model.name or "model",
        parallelism=degrees,
        stages=planned_parts(document, model) if measured is None else measured,
        placement=placement_of(shape),
        shape=family_shape(shape),
        microbatch_size=size,
        global_batch=workload.global_batch,
        sequence_length=workload.sequence_length or 1,
        precision=common_precision(cluster, workload.precision),
        schedule=shape.family,
        recipe=document.request.recipe or DEFAULT_RECIPE,
        recompute_modules=document.request.space.recompute_modules,
        **asdict(document.request.kernels or configuration.USUAL_KERNELS),
        overlap=document.request.overlap or configuration.DEFAULT_OVERLAP,
        overheads=document.request.overheads or configuration.NO_OVERHEADS,
        devices_per_node=min(cluster.pools[pool].devices_per_node for pool in nodes or (0,)),
        node_kinds=tuple(cluster.pools[pool].accelerator.name for pool in nodes),
    )


def planned_parts(
    document: ModelPlanResult, model: TransformerConfig, ranks: Sequence[RankRecord] = ()
) -> tuple[StagePart, ...]:
    """The stages of a plan as the first replica runs them, or those of a chain with these ranks."""
    kinds, parts = layer_kinds(model), []
    for stage in document.stages:
        first, last = min(stage.layers), max(stage.layers)
        options = stage.options_of(ranks[stage.rank]) if ranks else stage.first_options
        modes = [Recompute(options[str(layer)]) for layer in sorted(stage.layers)]
        parts.append(stage_part(kinds[first : last + 1], modes, kinds, first))
    return tuple(parts)


def refuse_unlike_replicas(document: ModelPlanResult) -> None:
    """Raise `UnsupportedFeature` where replicas differ in microbatches or recomputation."""
    for number, stage in enumerate(document.stages):
        for what, told in (
            ("number of microbatches", {each.num_microbatches for each in stage.replicas}),
            ("recomputation", {tuple(sorted(each.options.items())) for each in stage.replicas}),
        ):
            if len(told) > 1:
                raise UnsupportedFeature(
                    f"stages[{number}].replicas: replicas on several kinds of devices, each with "
                    f"its own {what}, are expressed by no target",
                    alternative="plan with more pipeline stages (--pp), which may lie on several "
                    "kinds, or on a cluster of one pool",
                )


def _nodes(document: ModelPlanResult, cluster: Cluster) -> tuple[int, ...]:
    """The pool of each node in the order of ranks, pipeline stages outermost; () of one pool."""
    degrees = document.parallelism
    if len(cluster.pools) == 1 or degrees is None:
        return ()
    spans: list[tuple[int, int]] = []  # a pool, and devices in it that follow on each other
    for rank in range(degrees.pipeline):
        for own in (each for each in document.ranks if each.rank == rank):
            count = own.count * degrees.tensor * degrees.context
            if spans and spans[-1][0] == own.pool:
                count += spans.pop()[1]
            spans.append((own.pool, count))
    most = min(cluster.pools[pool].devices_per_node for pool, _ in spans)
    each = processes_per_node((count for _, count in spans), most)
    nodes = tuple(pool for pool, count in spans for _ in range(count // each))
    for index, pool in enumerate(cluster.pools):
        if nodes.count(index) > pool.num_nodes:
            raise UnsupportedFeature(
                f"stages.replicas.device_kind: nodes with one number of processes each would be "
                f"{nodes.count(index)} of {pool.accelerator.name}, of which there are "
                f"{pool.num_nodes}: this plan parts nodes between stages",
                alternative="plan with --tp, --pp and --dp that fill whole nodes of each pool",
            )
    return nodes


def family_shape(shape: PipelineShape) -> FamilyShape:
    """Placing of the orders, and whether they split backwards; one that was found may do so."""
    if shape.order is not None:
        return FamilyShape(placement_of(shape).placing, split_backward=True)
    return family_named(shape.family).shape(shape.virtual_stages)


def layer_kinds(model: TransformerConfig) -> tuple[LayerKind, ...]:
    """The kind of every layer of the model, in order."""
    return layer_graph(model).kinds


def _stages_of(run: configuration.Configuration, model: TransformerConfig) -> tuple[StagePart, ...]:
    kinds = layer_kinds(model)
    first = kinds.index(LayerKind.BLOCK)
    counts = run.blocks_per_stage or configuration.even_blocks(model.num_layers, run.num_stages)
    cuts = [first + count for count in accumulate(counts, initial=0)]
    cuts[0], cuts[-1] = 0, len(kinds)
    stages = []
    for start, after in pairwise(cuts):
        own = kinds[start:after]
        limit, seen, modes = run.recompute_blocks, 0, []
        for kind in own:
            again = kind in BESIDE_BLOCKS and limit is None
            if kind is LayerKind.BLOCK:
                again = limit is None or seen < limit
                seen += 1
            modes.append(run.recompute if again else Recompute.NONE)
        stages.append(stage_part(own, modes, kinds, start))
    return tuple(stages)


def stage_part(
    own: tuple[LayerKind, ...], modes: list[Recompute], kinds: tuple[LayerKind, ...], start: int
) -> StagePart:
    """A stage of the job: `own` of all `kinds` from `start` on, and how each of them recomputes."""
    return StagePart(
        kinds=own,
        recompute=tuple(modes),
        first_block=kinds[:start].count(LayerKind.BLOCK),
    )


# What a framework cannot express
# -------------------------------


def gaps_of(job: Job, target: str) -> tuple[Gap, ...]:
    """Everything of the job that the target cannot express."""
    return () if target in OTHER_TARGETS else _gaps_of(job, job.demands, target)


def _gaps_of(job: Job, demands: Demands, target: str) -> tuple[Gap, ...]:
    if capability_of(target).splits_itself and job.parallelism is not None:
        is_uneven = not splits_alike(job, target)
        demands = replace(demands, uneven_stages=is_uneven, ends_apart=False, head_apart=False)
    return unsupported(demands, target)


def able_targets(job: Job) -> tuple[str, ...]:
    """The frameworks that can express all of the job: its plan, its model and how it trains."""
    demands = job.demands
    return tuple(
        name
        for name in TARGETS
        if not (
            *_gaps_of(job, demands, name),
            *unwritable(job.model, name),
            *unsaid_training(job.model, job.recipe, name),
        )
    )


def splits_alike(job: Job, target: str) -> bool:
    """Whether a framework that takes no stages would cut the model as the plan does."""
    if job.degrees.pipeline == 1:
        return True
    own = configuration.own_split(target, job.model, len(job.stages))
    return job.has_usual_ends and job.blocks_per_stage == own


def runs_on(
    run: configuration.Configuration, model: Trained, cluster: Cluster, target: str
) -> bool:
    """Whether the framework runs all of it; none runs a model of which only the costs are known."""
    return not isinstance(model, MeasuredModel) and not gaps_of_run(run, model, cluster, target)


def gaps_of_run(
    run: configuration.Configuration, model: TransformerConfig, cluster: Cluster, target: str
) -> tuple[str, ...]:
    """One line each; empty where the framework runs all of it."""
    job = job_of_configuration(run, model, cluster, model_name="model")
    return tuple(dict.fromkeys(str(gap.fault) for gap in gaps_of(job, target)))
