"""From a configuration to a predicted step: lay the model out as stated, then price it."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from trainwright.costing.estimate import (
    FUSED_ATTENTION,
    FUSED_CROSS_ENTROPY,
    UNFUSED_ATTENTION,
    UNFUSED_CROSS_ENTROPY,
    Estimator,
)
from trainwright.errors import Fault, InvalidInput
from trainwright.model import LayerKind, layer_graph, model_flops_per_sequence
from trainwright.plan import Plan, Stage
from trainwright.plan.configuration import even_blocks
from trainwright.plan.legality import broken_rules, run_shape
from trainwright.pricing.pipeline_run import PipelineShape, placement_of
from trainwright.pricing.step import predict_step
from trainwright.profile import ProfilePoint, Recompute
from trainwright.scheduling.families import family_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.cluster import Cluster
    from trainwright.model import TransformerConfig
    from trainwright.plan import StepPrediction
    from trainwright.plan.configuration import Configuration
    from trainwright.profile import Profile, Structure


def price_configuration(
    model: TransformerConfig, cluster: Cluster, configuration: Configuration
) -> StepPrediction:
    """Time and memory of one step. Raises `InvalidInput` with every rule that is broken."""
    require_legal(model, cluster, configuration)
    estimator = estimator_of(model, cluster, configuration)
    profile = estimator.profile(point_of(configuration))
    return price_profiled(model, cluster, configuration, profile)


def price_profiled(
    model: TransformerConfig, cluster: Cluster, configuration: Configuration, profile: Profile
) -> StepPrediction:
    """The same on a profile at hand, estimated or measured, at the configuration's point."""
    plan = plan_of(configuration, profile.structure)
    return predict_step(
        plan,
        profile,
        cluster,
        model_flops_per_sequence=model_flops_per_sequence(model, configuration.sequence_length),
        hardware_flops_per_sequence=hardware_flops_per_sequence(model, cluster, configuration),
        overlap=configuration.overlap,
        overheads=configuration.overheads,
    )


def estimator_of(
    model: TransformerConfig, cluster: Cluster, configuration: Configuration
) -> Estimator:
    """What prices the layers of the configuration."""
    return Estimator(
        model=model,
        cluster=cluster,
        recipe=configuration.recipe,
        overlap=configuration.overlap,
        selective_modules=configuration.recompute_modules,
        vocabulary_multiple=configuration.vocabulary_multiple,
    )


def point_of(configuration: Configuration) -> ProfilePoint:
    """The circumstances under which the configuration runs its layers."""
    degrees = configuration.parallelism
    attention = FUSED_ATTENTION if configuration.fused_attention else UNFUSED_ATTENTION
    entropy = FUSED_CROSS_ENTROPY if configuration.fused_cross_entropy else UNFUSED_CROSS_ENTROPY
    modes = dict.fromkeys((str(Recompute.NONE), str(configuration.recompute)))
    return ProfilePoint(
        microbatch_size=configuration.microbatch_size,
        sequence_length=configuration.sequence_length,
        tensor_parallel=(degrees.tensor,),
        context_parallel=degrees.context,
        expert_parallel=degrees.expert,
        expert_tensor_parallel=degrees.expert_tensor,
        sequence_parallel=degrees.sequence_parallel,
        precision=configuration.recipe.precision,
        recompute=tuple(modes),
        kernels=(attention, entropy),
    )


def plan_of(configuration: Configuration, structure: Structure) -> Plan:
    """The layers dealt out: blocks as the configuration says, the ends to the outer stages."""
    degrees = configuration.parallelism
    names = [layer.name for layer in structure.layers]
    blocks = [index for index, name in enumerate(names) if name == LayerKind.BLOCK]
    counts = configuration.blocks_per_stage or even_blocks(len(blocks), configuration.num_stages)
    cuts = [blocks[0] + count for count in accumulate(counts, initial=0)]
    cuts[0], cuts[-1] = 0, len(names)
    limit = configuration.recompute_blocks
    heads = [i for i, name in enumerate(names) if name == LayerKind.MTP and limit is None]
    stages = []
    for first, last in pairwise(cuts):
        own = range(first, last)
        again = {*[i for i in own if names[i] == LayerKind.BLOCK][:limit], *heads}
        stages.append(
            Stage.uniform(
                tuple(structure.layers[i].id for i in own),
                tuple(str(configuration.recompute if i in again else Recompute.NONE) for i in own),
                data_parallel=degrees.data,
                tensor_parallel=degrees.tensor,
            )
        )
    return Plan(
        stages=tuple(stages),
        num_microbatches=configuration.num_microbatches * degrees.data,
        microbatch_size=configuration.microbatch_size,
        schedule=configuration.schedule,
        parallelism=degrees,
    )


def hardware_flops_per_sequence(
    model: TransformerConfig, cluster: Cluster, configuration: Configuration
) -> float:
    """FLOPs of a step on one sequence by the convention of HFU: recomputation counts as work."""
    whole = replace(
        configuration,
        microbatch_size=1,
        global_batch=1,
        parallelism=type(configuration.parallelism)(),
        blocks_per_stage=None,
    )
    device = cluster.pool_of().accelerator
    precision = configuration.recipe.precision or device.default_precision
    graph = layer_graph(model, run_shape(whole, precision=precision))
    rule = estimator_of(model, cluster, configuration).rule(
        configuration.recompute, fused_attention=configuration.fused_attention
    )
    repeated = [
        sum(op.model_flops for op in c.operators if rule.repeats(op)) for c in graph.classes
    ]
    blocks = [c for c, kind in zip(graph.layers, graph.kinds, strict=True) if _is_block(kind)]
    counts = configuration.blocks_per_stage or even_blocks(len(blocks), configuration.num_stages)
    again, first = 0.0, 0
    for count in counts:
        own = blocks[first : first + count][: configuration.recompute_blocks]
        again += sum(repeated[c] for c in own)
        first += count
    return model_flops_per_sequence(model, configuration.sequence_length) + again


def _is_block(kind: LayerKind) -> bool:
    return kind is LayerKind.BLOCK


def require_legal(model: TransformerConfig, cluster: Cluster, configuration: Configuration) -> None:
    """Raise `InvalidInput` with every rule that is broken: of arithmetic, model and schedule."""
    faults = list(broken_rules(configuration, model, cluster.pool_of()))
    faults += schedule_faults(configuration)
    if faults:
        raise InvalidInput(faults)


def shape_of(configuration: Configuration) -> PipelineShape:
    """The pipeline of the configuration."""
    degrees = configuration.parallelism
    return PipelineShape(
        family=configuration.schedule,
        num_ranks=degrees.pipeline,
        num_microbatches=max(1, configuration.num_microbatches),
        virtual_stages=degrees.virtual_stages,
    )


def schedule_faults(configuration: Configuration) -> Iterator[Fault]:
    """What the schedule family forbids, and chunks that it does not make."""
    shape = shape_of(configuration)
    try:
        family = family_named(shape.family)
    except InvalidInput as error:
        for fault in error.faults:
            yield Fault("schedule", fault.problem)
        return
    yield from family.rules(shape.request)
    made = len(placement_of(shape).rank_of_stage) // shape.num_ranks
    if made != shape.virtual_stages:
        wanted = f"must be {made} for the schedule {shape.family}"
        yield Fault("virtual_stages", f"{wanted}, got {shape.virtual_stages}")
