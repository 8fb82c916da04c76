"""The stages that a framework makes itself, where a plan cannot tell it others.

What precedes the blocks is in the first stage, what follows them in the last. The bound of a
candidate is that of all its splits; the plan has the one that would be run.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from trainwright.model import LayerKind, model_flops_per_sequence
from trainwright.plan import Plan, Stage
from trainwright.plan.capability import capability_of
from trainwright.plan.feature import Feature
from trainwright.plan.nanotron_split import own_split
from trainwright.planning.chain_split import Site, fastest_ways
from trainwright.planning.device_room import room_of_candidate
from trainwright.planning.split_plan import Priced, options_of
from trainwright.pricing.pipeline_run import PipelineShape
from trainwright.pricing.placement import group_replicas
from trainwright.pricing.step import predict_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.planning.allowed import Allowed
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.model_space import Candidate
    from trainwright.planning.stage_kinds import StageKinds
    from trainwright.profile import Profile


def splits_itself(allowed: Allowed) -> bool:
    """Whether the framework, if one is named, runs a pipeline but takes no stages."""
    if allowed.framework is None:
        return False
    own = capability_of(allowed.framework)
    return own.can(Feature.PIPELINE) and not own.can(Feature.UNEVEN_STAGES)


def price_own_stages(
    question: ModelQuestion, candidate: Candidate, profile: Profile, kinds: StageKinds
) -> Priced | None:
    """The fastest plan of a candidate with one stage per rank; None where none fits.

    `kinds` may be those of another profile of the same costs.
    """
    workload, degrees = question.workload, candidate.degrees
    blocks = own_split(question.model, candidate.pipeline)
    if not all(blocks[:-1]):
        return None
    cuts = cuts_of(profile, blocks)
    room = room_of_candidate(question, candidate, profile)
    replicas = group_replicas(room.pool_of(), degrees)
    shape = PipelineShape(
        family=candidate.schedule,
        num_ranks=candidate.pipeline,
        num_microbatches=candidate.num_microbatches(workload),
    )
    site = Site(kinds=kinds, cluster=room, replicas=replicas)
    chosen = fastest_ways([site] * candidate.pipeline, cuts, shape)
    if chosen is None:
        return None
    layers = profile.structure.layers
    plan = Plan(
        stages=tuple(
            Stage.uniform(
                tuple(layer.id for layer in layers[first:after]),
                options_of(layers[first:after], rows, profile),
                data_parallel=candidate.data,
                tensor_parallel=candidate.tensor,
            )
            for (first, after), rows in zip(pairwise(cuts), chosen, strict=True)
        ),
        num_microbatches=workload.global_batch // candidate.microbatch_size,
        microbatch_size=candidate.microbatch_size,
        schedule=candidate.schedule,
        parallelism=degrees,
    )
    step = predict_step(
        plan,
        profile,
        question.cluster,
        model_flops_per_sequence=model_flops_per_sequence(question.model, workload.sequence_length),
        overlap=question.settings.overlap,
        overheads=question.overheads,
    )
    if not question.holds(step.peak_memory_bytes):
        return None
    return Priced(candidate=candidate, plan=plan, profile=profile, step=step)


def cuts_of(profile: Profile, blocks_per_stage: Sequence[int]) -> tuple[int, ...]:
    """Where stages of so many blocks begin, and the number of layers."""
    layers = profile.structure.layers
    first = next(at for at, layer in enumerate(layers) if layer.name == LayerKind.BLOCK)
    return (0, *(first + before for before in accumulate(blocks_per_stage[:-1])), len(layers))
