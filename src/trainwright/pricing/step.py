"""A plan on a cluster, priced: how long a step takes and what each stage keeps in memory.

    step = max over stages (end in the 1F1B pipeline + exposed gradient synchronisation)
           + optimizer of the slowest stage

Stages lie on consecutive devices in pipeline order; inside a stage tensor groups are innermost.
Peak memory of a stage = static bytes by ZeRO stage + saved bytes × microbatches in flight + its
largest transient. Ignored: contention between transfers, host time, memory fragmentation, the
norm of the gradients.
"""

from __future__ import annotations

from dataclasses import replace

from trainwright.cluster import Accelerator, Cluster, Hop
from trainwright.costing.communication import point_to_point_time_s
from trainwright.costing.estimate import flat_setting
from trainwright.errors import Fault, InvalidInput
from trainwright.model import precision_named
from trainwright.partitioning.evaluate import find_layer_faults
from trainwright.partitioning.price_list import read_prices
from trainwright.plan import Plan, StagePrediction, StepPrediction
from trainwright.pricing.pipeline import PipelineStage, one_f_one_b_ends_s
from trainwright.pricing.placement import Placement
from trainwright.pricing.sharding import (
    DataParallelTimes,
    data_parallel_times,
    optimizer_time_s,
    shared_gradient_time_s,
    stage_memory,
)
from trainwright.pricing.stage_work import StageWork, cut_bytes, stage_works
from trainwright.profile import Profile, ProfilePoint

Feeds = tuple[tuple[int, float], ...]  # (stage, seconds of one transfer)


def predict_step(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    *,
    model_flops_per_sequence: float | None = None,
) -> StepPrediction:
    """Price one training step of `plan` under 1F1B.

    `model_flops_per_sequence` (forward and backward, attention in full, no recomputation) gives
    MFU. Raises `InvalidInput` where the plan breaks a rule of the profile or does not fit on the
    devices, `UnsupportedFeature` for a cluster of several pools. Not fitting into memory is no
    error: compare `peak_memory_bytes` with the device.
    """
    placement = Placement(plan=plan, pool=cluster.pool_of())
    setting = flat_setting(cluster, num_microbatches=plan.num_microbatches)
    faults = [*find_layer_faults(plan, read_prices(profile), setting)]
    if plan.devices_used > setting.num_devices:
        wanted = f"must use at most {setting.num_devices} devices"
        faults.append(Fault("stages", f"{wanted}, got {plan.devices_used}"))
    if faults:
        raise InvalidInput(faults)
    works = stage_works(plan, profile)
    sharing = [
        data_parallel_times(work, placement.data_hops(i), zero_stage=placement.zero_stage)
        for i, work in enumerate(works)
    ]
    feeds = _feeds(placement, profile)
    tied_s = _tied_s(placement, works, profile)
    stages = tuple(
        _stage(placement, i, works[i], sharing[i], feeds[i], tied_s[i]) for i in range(len(works))
    )
    ends_s = _pipeline_ends_s(placement, stages, feeds)
    step = _step(plan, stages, ends_s)
    return replace(
        step,
        tokens_per_s=_tokens_per_s(step, plan, profile.point),
        mfu=_mfu(step, plan, profile.point, cluster.accelerator, model_flops_per_sequence),
    )


def _stage(
    placement: Placement,
    index: int,
    work: StageWork,
    sharing: DataParallelTimes,
    feeds: Feeds,
    tied_s: float,
) -> StagePrediction:
    d, zero_stage = placement.data_parallel[index], placement.zero_stage
    return StagePrediction(
        forward_s=work.forward_s + sharing.added_forward_s,
        backward_s=work.backward_s + sharing.added_backward_s,
        recompute_s=work.recompute_s,
        tensor_parallel_s=work.tensor_parallel_s,
        send_s=sum(time_s for _, time_s in feeds),
        gradient_sync_s=sharing.sync_s + tied_s,
        exposed_gradient_sync_s=sharing.exposed_sync_s + tied_s,
        optimizer_s=optimizer_time_s(
            work, placement.pool.accelerator, data_parallel=d, zero_stage=zero_stage
        ),
        memory=stage_memory(
            work,
            microbatches_in_flight=placement.in_flight[index],
            data_parallel=d,
            zero_stage=zero_stage,
        ),
    )


def _pipeline_ends_s(
    placement: Placement, stages: tuple[StagePrediction, ...], feeds: list[Feeds]
) -> tuple[float, ...]:
    """Ends of the stages; where all degrees agree, one replica stands for all."""
    degrees = placement.data_parallel
    uniform = len(set(degrees)) == 1
    pipeline = [
        PipelineStage(
            forward_s=stage.forward_s,
            backward_s=stage.backward_s,
            in_flight=stage.memory.microbatches_in_flight,
            replicas=1 if uniform else d,
            feeds=sent,
        )
        for stage, d, sent in zip(stages, degrees, feeds, strict=True)
    ]
    share = degrees[0] if uniform else 1
    return one_f_one_b_ends_s(pipeline, num_microbatches=placement.plan.num_microbatches // share)


def _step(
    plan: Plan, stages: tuple[StagePrediction, ...], ends_s: tuple[float, ...]
) -> StepPrediction:
    pipeline_s = max(ends_s)
    synced_s = max(
        end_s + stage.exposed_gradient_sync_s for end_s, stage in zip(ends_s, stages, strict=True)
    )
    optimizer_s = max(stage.optimizer_s for stage in stages)
    step_s = synced_s + optimizer_s
    busiest_s = max(
        (stage.forward_s + stage.backward_s) * (plan.num_microbatches // placed.data_parallel)
        for stage, placed in zip(stages, plan.stages, strict=True)
    )
    return StepPrediction(
        step_time_s=step_s,
        pipeline_s=pipeline_s,
        exposed_gradient_sync_s=synced_s - pipeline_s,
        optimizer_s=optimizer_s,
        bubble_of_makespan=1 - busiest_s / pipeline_s if pipeline_s > 0 else 0.0,
        stages=stages,
    )


def _tokens_per_s(step: StepPrediction, plan: Plan, point: ProfilePoint) -> float | None:
    if point.microbatch_size is None or point.sequence_length is None or step.step_time_s <= 0:
        return None
    sequences = plan.num_microbatches * point.microbatch_size
    return sequences * point.sequence_length / step.step_time_s


def _mfu(
    step: StepPrediction,
    plan: Plan,
    point: ProfilePoint,
    accelerator: Accelerator,
    flops_per_sequence: float | None,
) -> float | None:
    if flops_per_sequence is None or point.microbatch_size is None or point.precision is None:
        return None
    peak = accelerator.peak(precision_named(point.precision).matmul_dtype)
    flops = plan.num_microbatches * point.microbatch_size * flops_per_sequence
    available = step.step_time_s * peak * plan.devices_used
    return flops / available if available > 0 else None


def _feeds(placement: Placement, profile: Profile) -> list[Feeds]:
    """For each stage the stages it feeds, with the seconds of one transfer."""
    feeds: list[list[tuple[int, float]]] = [[] for _ in placement.plan.stages]
    for (sender, receiver), size in sorted(cut_bytes(placement.plan, profile).items()):
        level = placement.level_between(sender, receiver)
        feeds[sender].append((receiver, point_to_point_time_s(size, level)))
    return [tuple(feed) for feed in feeds]


def _tied_s(placement: Placement, works: tuple[StageWork, ...], profile: Profile) -> list[float]:
    """Per stage, the all-reduce of tied parameters with the other stage that holds them."""
    ids = profile.structure.ids
    stage_of = {
        layer: number
        for number, stage in enumerate(placement.plan.stages)
        for layer in stage.layers
    }
    times_s = [0.0] * len(works)
    for group in profile.structure.shared_parameters:
        holders = sorted({stage_of[ids[layer]] for layer in group.layers})
        if len(holders) < 2:
            continue
        level = placement.level_between(holders[0], holders[-1])
        hops = (Hop(level=level, ranks=len(holders)),)
        for number in holders:
            times_s[number] = shared_gradient_time_s(works[number], hops)
    return times_s
