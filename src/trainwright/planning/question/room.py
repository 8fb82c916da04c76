"""What a plan may fill of a device: all that is usable, less what its run keeps beside the model.

Libraries keep workspaces, the allocator loses some to fragmentation, the user wants some free
(`plans.configuration.MemoryOverheads`); a pipeline rank keeps a tensor and its gradient for each of
its boundaries, and a tensor group the gathered input of a layer. The search counts on every rank
the boundaries of the rank that has most, one more than the first and the last need; pricing counts
each rank's own. So what is found here fits there, under the rule by which `estimate` decides
(`step.figures.missing_bytes`). What a framework keeps beside the model's tensors is known of a plan
alone: one that misses the device by it is looked for again with less room.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from trainwright.model import LayerKind
from trainwright.plans.configuration import Configuration
from trainwright.plans.parallelism import Parallelism
from trainwright.profile import Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.step.figures import missing_bytes, most_allocated_bytes, num_groups
from trainwright.step.pipeline import PipelineShape, placement_of

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.planning.question.question import Candidate, ModelQuestion
    from trainwright.plans import Plan, StepPrediction
    from trainwright.profile import Profile

_LEAST_BYTES: Final = 1.0  # a device with nothing left still is one


def room_of_devices(question: ModelQuestion) -> Cluster:
    """The cluster with no more usable than what plans may fill, buffers included."""
    return with_usable(question.cluster, room_bytes(question, groups=0))


def room_of_candidate(
    question: ModelQuestion, candidate: Candidate, profile: Profile, *, groups: int | None = None
) -> Cluster:
    """The same, less the buffers of a rank of the candidate.

    `groups` are the process groups of a device, those of the candidate's degrees where absent.
    """
    if groups is None:
        groups = num_groups(candidate.degrees)
    left_bytes = room_bytes(question, groups=groups)
    if question.overheads.buffers:
        left_bytes -= rank_buffer_bytes(candidate, profile)
    return with_usable(question.cluster, left_bytes)


def rank_buffer_bytes(candidate: Candidate, profile: Profile) -> float:
    """Communication buffers of one device of the rank with most boundaries, cut between blocks."""
    passed = min((edge.bytes for edge in profile.structure.edges), default=0.0)
    gathered = passed * candidate.tensor if candidate.tensor > 1 else 0.0
    return 2 * passed * _most_boundaries(_shape_of(candidate)) + gathered


def room_bytes(question: ModelQuestion, *, groups: int) -> float:
    """What the peak of a plan with so many process groups may reach, workspaces aside."""
    kept, device = question.overheads, question.cluster.accelerator
    left_bytes = kept.room_bytes(device.usable_bytes)
    return min(left_bytes, account_bytes(question, groups=groups) - kept.workspace_bytes)


def account_bytes(question: ModelQuestion, *, groups: int) -> float:
    """What the peak of a plan with so many process groups may reach by the account, if any."""
    kept = question.overheads
    account, measured = question.account, isinstance(question.model, MeasuredModel)
    if account is None or not kept.fit_probability or (account.counted and not measured):
        return math.inf  # what is counted one by one may be less than the step's own peak
    limit_bytes = question.cluster.accelerator.memory_bytes - kept.reserve_bytes
    return most_allocated_bytes(account, groups, limit_bytes, kept.fit_probability)


def missing_of_plan(
    question: ModelQuestion, plan: Plan, profile: Profile, step: StepPrediction
) -> float:
    """What a device lacks to hold the plan; at most 0 where it fits, as `estimate` decides."""
    device = question.cluster.accelerator
    if question.account is None:
        return question.overheads.over_bytes(step.peak_memory_bytes, device.usable_bytes)
    alone = isinstance(question.model, MeasuredModel) or plan.parallelism is None
    return missing_bytes(
        None if alone else question.config,
        run_of_plan(question, plan, profile),
        step,
        device,
        question.account,
    )


def run_of_plan(question: ModelQuestion, plan: Plan, profile: Profile) -> Configuration:
    """The plan as a launcher would state it, with the mode that most of its blocks recompute in."""
    settings, degrees = question.settings, plan.parallelism
    kinds = [layer.name for layer in profile.structure.layers]
    index_of = {layer.id: at for at, layer in enumerate(profile.structure.layers)}
    modes = [
        Recompute(mode)
        for stage in plan.stages
        for layer, mode in stage.option_of.items()
        if kinds[index_of[layer]] == LayerKind.BLOCK and mode in tuple(Recompute)
    ]
    blocks = tuple(
        sum(kinds[index_of[layer]] == LayerKind.BLOCK for layer in stage.layers)
        for stage in plan.stages
    )
    return Configuration(
        parallelism=degrees or narrowest(plan),
        microbatch_size=plan.microbatch_size or 1,
        global_batch=question.workload.global_batch,
        sequence_length=question.workload.sequence_length,
        schedule=plan.schedule if plan.order is None else plan.order.family,
        recompute=max(sorted(set(modes)), key=modes.count, default=Recompute.NONE),
        blocks_per_stage=blocks if degrees is not None and any(blocks) else None,
        fused_attention=settings.fused_attention,
        fused_cross_entropy=settings.fused_cross_entropy,
        vocabulary_multiple=settings.vocabulary_multiple,
        recipe=replace(
            settings.recipe, precision=question.workload.precision or settings.recipe.precision
        ),
        overheads=question.overheads,
    )


def narrowest(plan: Plan) -> Parallelism:
    """Degrees that stand for stages which differ: the narrowest tensor group, the most replicas."""
    return Parallelism(
        tensor=min(stage.tensor_parallel for stage in plan.stages),
        pipeline=len(plan.stages),
        data=max(stage.data_parallel for stage in plan.stages),
    )


def with_usable(cluster: Cluster, usable_bytes: float) -> Cluster:
    """The cluster with so many bytes of each device usable."""
    pool = cluster.pool_of()
    device = pool.accelerator
    if usable_bytes == device.usable_bytes:
        return cluster
    share = max(usable_bytes, _LEAST_BYTES) / device.memory_bytes
    left = replace(device, usable_fraction=share)
    return replace(cluster, pools=(replace(pool, accelerator=left),))


def _shape_of(candidate: Candidate) -> PipelineShape:
    return PipelineShape(
        family=candidate.schedule,
        num_ranks=candidate.pipeline,
        num_microbatches=1,
        virtual_stages=candidate.virtual_stages,
    )


@lru_cache(maxsize=1024)
def _most_boundaries(shape: PipelineShape) -> int:
    """Boundaries to other ranks of the rank that has most of them."""
    ranks = placement_of(shape).rank_of_stage
    counts = [0] * shape.num_ranks
    for sender, receiver in pairwise(ranks):
        if sender != receiver:
            counts[sender] += 1
            counts[receiver] += 1
    return max(counts)
