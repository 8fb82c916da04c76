"""Plans whose stages have replicas of their own, as `verify` replays them: 1F1B by worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.api.verify_subject import Replicas, tiny_stages
from trainwright.errors import InvalidInput
from trainwright.measuring.replica_replay import ReplicatedStage
from trainwright.measuring.tiny_layers import BLOCK, Stage

if TYPE_CHECKING:
    from trainwright.plan.job import Job
    from trainwright.plan.results.estimate import EstimateResult
    from trainwright.plan.results.model_plan import ModelPlanResult
    from trainwright.plan.results.placement import PlacementResult
    from trainwright.plan.results.plan import PlanResult, StageRecord

_FORWARD_SHARE: Final = 1 / 3  # of a profile's stage time, which is of both directions


def of_placement(document: PlacementResult) -> Replicas:
    """The stages of a placement, on one of its equal replicas."""
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


def of_profile(document: PlanResult | EstimateResult) -> Replicas:
    """The stages of a profile's plan, each with its own replicas."""
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


def of_own_degrees(document: ModelPlanResult, job: Job) -> Replicas:
    """The stages of a model's plan that differ in degrees."""
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
        stages=tiny_stages(job),
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
