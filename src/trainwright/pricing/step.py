"""A plan on a cluster, priced: how long a step takes and what each rank keeps in memory.

    step = max over ranks (end in the pipeline + exposed gradient synchronisation)
           + optimizer of the slowest rank

The pipeline is simulated under the plan's schedule on the times of its own stages. Peak memory of a
rank = static bytes by ZeRO stage + what its order of actions holds at its fullest + overheads.
Ignored: contention between transfers of different kinds, the norm of the gradients, data loading.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.cluster import Hop
from trainwright.costing.communication import point_to_point_time_s
from trainwright.costing.estimate import flat_setting
from trainwright.errors import Fault, InvalidInput, UnsupportedFeature
from trainwright.model import precision_named
from trainwright.partitioning.evaluate import find_layer_faults
from trainwright.partitioning.price_list import read_prices
from trainwright.plan import StepPrediction
from trainwright.plan.overlap import DEFAULT_OVERLAP, NO_OVERHEADS
from trainwright.pricing.assemble import Layout, RankPlace, StepWork, assemble_step
from trainwright.pricing.pipeline import PipelineStage, one_f_one_b_ends_s
from trainwright.pricing.placement import Placement
from trainwright.pricing.sharding import shared_gradient_time_s
from trainwright.pricing.stage_work import StageWork, cut_bytes, stage_works

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.cluster import Cluster
    from trainwright.plan import Plan
    from trainwright.plan.overlap import MemoryOverheads, Overlap
    from trainwright.plan.parallelism import Parallelism
    from trainwright.profile import Profile, ProfilePoint

    Feeds = tuple[tuple[int, float, float], ...]  # (stage, seconds of one transfer, bytes)


def predict_step(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    *,
    model_flops_per_sequence: float | None = None,
    hardware_flops_per_sequence: float | None = None,
    overlap: Overlap = DEFAULT_OVERLAP,
    overheads: MemoryOverheads = NO_OVERHEADS,
) -> StepPrediction:
    """Price one training step of `plan` under its schedule.

    `model_flops_per_sequence` (forward and backward, attention in full, no recomputation) gives
    MFU, `hardware_flops_per_sequence` (recomputation included) HFU. Raises `InvalidInput` where the
    plan breaks a rule of the profile or its schedule or does not fit on the devices,
    `UnsupportedFeature` for a cluster of several pools. Not fitting into memory is no error:
    compare `peak_memory_bytes` with the device.
    """
    placement = Placement(plan=plan, pool=cluster.pool_of())
    _require_legal(plan, profile, cluster)
    tensor = plan.stages[0].tensor_parallel
    works = stage_works(plan, profile, placement.axis_hops(tensor))
    feeds = _feeds(placement, profile)
    if placement.is_uniform and _is_chain(feeds):
        step = _simulated(placement, works, feeds, profile, overlap, overheads)
    else:
        step = _longest_path(placement, works, feeds, profile, overlap, overheads)
    return with_throughput(
        step,
        profile.point,
        num_sequences=_sequences(plan, profile.point),
        num_devices=plan.devices_used,
        cluster=cluster,
        model_flops_per_sequence=model_flops_per_sequence,
        hardware_flops_per_sequence=hardware_flops_per_sequence,
    )


def with_throughput(
    step: StepPrediction,
    point: ProfilePoint,
    *,
    num_sequences: int | None,
    num_devices: int,
    cluster: Cluster,
    model_flops_per_sequence: float | None,
    hardware_flops_per_sequence: float | None,
) -> StepPrediction:
    """The step with tokens per second and the shares of the devices' peak, where known."""
    if num_sequences is None or point.sequence_length is None or step.step_time_s <= 0:
        return step

    def share(flops_per_sequence: float | None) -> float | None:
        if flops_per_sequence is None or point.precision is None:
            return None
        peak = cluster.accelerator.peak(precision_named(point.precision).matmul_dtype)
        return num_sequences * flops_per_sequence / (step.step_time_s * peak * num_devices)

    return replace(
        step,
        tokens_per_s=num_sequences * point.sequence_length / step.step_time_s,
        mfu=share(model_flops_per_sequence),
        hfu=share(hardware_flops_per_sequence),
    )


def _sequences(plan: Plan, point: ProfilePoint) -> int | None:
    size = point.microbatch_size
    return None if size is None else plan.num_microbatches * size


def _require_legal(plan: Plan, profile: Profile, cluster: Cluster) -> None:
    setting = flat_setting(cluster, num_microbatches=plan.num_microbatches)
    faults = [*find_layer_faults(plan, read_prices(profile), setting)]
    if plan.devices_used > setting.num_devices:
        wanted = f"must use at most {setting.num_devices} devices"
        faults.append(Fault("stages", f"{wanted}, got {plan.devices_used}"))
    degrees = plan.parallelism
    if degrees is not None and len(plan.stages) % degrees.pipeline:
        wanted = f"must be a multiple of the {degrees.pipeline} pipeline ranks"
        faults.append(Fault("stages", f"{wanted}, got {len(plan.stages)}"))
    if faults:
        raise InvalidInput(faults)


def _is_chain(feeds: list[Feeds]) -> bool:
    return all(target == index + 1 for index, sent in enumerate(feeds) for target, *_ in sent)


def _simulated(
    placement: Placement,
    works: Sequence[StageWork],
    feeds: list[Feeds],
    profile: Profile,
    overlap: Overlap,
    overheads: MemoryOverheads,
) -> StepPrediction:
    return assemble_step(*_laid_out(placement, works, feeds, profile, overlap, overheads))


def work_of_plan(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    *,
    overlap: Overlap = DEFAULT_OVERLAP,
    overheads: MemoryOverheads = NO_OVERHEADS,
) -> tuple[StepWork, Layout]:
    """What `predict_step` simulates, for a closer look at it; raises like that.

    Raises `UnsupportedFeature` for stages that branch or differ in degrees, too.
    """
    placement = Placement(plan=plan, pool=cluster.pool_of())
    _require_legal(plan, profile, cluster)
    works = stage_works(plan, profile, placement.axis_hops(plan.stages[0].tensor_parallel))
    feeds = _feeds(placement, profile)
    if not (placement.is_uniform and _is_chain(feeds)):
        raise UnsupportedFeature("stages that branch or differ in degrees have no timeline")
    return _laid_out(placement, works, feeds, profile, overlap, overheads)


def _laid_out(
    placement: Placement,
    works: Sequence[StageWork],
    feeds: list[Feeds],
    profile: Profile,
    overlap: Overlap,
    overheads: MemoryOverheads,
) -> tuple[StepWork, Layout]:
    place = RankPlace(accelerator=placement.pool.accelerator, replicas=placement.replicas(0))
    layout = Layout(
        shape=placement.shape,
        places=(place,) * placement.shape.num_ranks,
        overlap=overlap,
        overheads=overheads,
    )
    sent = [{target: (s, b) for target, s, b in each} for each in feeds]
    pairs = [sent[i].get(i + 1, (0.0, 0.0)) for i in range(len(works) - 1)]
    work = StepWork(
        stages=tuple(works),
        rank_of_stage=placement.rank_of_stage,
        transfer_s=np.array([time_s for time_s, _ in pairs]),
        transfer_bytes=np.array([size for _, size in pairs]),
        tied_s=tuple(_tied_s(placement, works, profile)),
        gathered_input_bytes=gathered_input_bytes(placement.degrees, profile),
    )
    return work, layout


def gathered_input_bytes(degrees: Parallelism, profile: Profile) -> float:
    """What sequence parallelism gathers for one layer: the whole of what neighbours send."""
    if not degrees.sequence_parallel or degrees.tensor == 1 or not profile.structure.edges:
        return 0.0
    return profile.structure.edges[0].bytes * degrees.tensor


def _longest_path(
    placement: Placement,
    works: Sequence[StageWork],
    feeds: list[Feeds],
    profile: Profile,
    overlap: Overlap,
    overheads: MemoryOverheads,
) -> StepPrediction:
    """Stages that differ in degrees, or branch: 1F1B without a simulator."""
    plan = placement.plan
    if plan.schedule != "1f1b" or len(works) != placement.degrees.pipeline:
        raise UnsupportedFeature(
            f"stages that branch or differ in degrees are not priced under {plan.schedule}",
            alternative="use the schedule 1f1b without virtual stages",
        )
    single = [
        assemble_step(
            StepWork.alone(work, tied_s=tied_s),
            Layout(
                shape=replace(
                    placement.shape,
                    family="1f1b",
                    num_ranks=1,
                    num_microbatches=plan.num_microbatches // d,
                    virtual_stages=1,
                ),
                places=(
                    RankPlace(
                        accelerator=placement.pool.accelerator, replicas=placement.replicas(index)
                    ),
                ),
                overlap=overlap,
                overheads=overheads,
            ),
        ).stages[0]
        for index, (work, d, tied_s) in enumerate(
            zip(works, placement.data_parallel, _tied_s(placement, works, profile), strict=True)
        )
    ]
    stages = tuple(
        replace(
            stage,
            send_s=sum(time_s for _, time_s, _ in sent),
            memory=replace(
                stage.memory,
                activation_bytes=stage.memory.activation_bytes * held,
                logits_bytes=stage.memory.logits_bytes * held,
                microbatches_in_flight=held,
            ),
        )
        for stage, sent, held in zip(single, feeds, placement.in_flight, strict=True)
    )
    ends_s = one_f_one_b_ends_s(
        [
            PipelineStage(
                forward_s=stage.forward_s,
                backward_s=stage.backward_s,
                in_flight=held,
                replicas=d,
                feeds=tuple((target, time_s) for target, time_s, _ in sent),
            )
            for stage, held, d, sent in zip(
                stages, placement.in_flight, placement.data_parallel, feeds, strict=True
            )
        ],
        num_microbatches=plan.num_microbatches,
    )
    pipeline_s = max(ends_s)
    synced_s = max(e + s.exposed_gradient_sync_s for e, s in zip(ends_s, stages, strict=True))
    optimizer_s = max(stage.optimizer_s for stage in stages)
    busiest_s = max(
        (stage.forward_s + stage.backward_s) * (plan.num_microbatches // d)
        for stage, d in zip(stages, placement.data_parallel, strict=True)
    )
    return StepPrediction(
        step_time_s=synced_s + optimizer_s + placement.pool.accelerator.step_overhead_s,
        pipeline_s=pipeline_s,
        exposed_gradient_sync_s=synced_s - pipeline_s,
        optimizer_s=optimizer_s,
        bubble_of_makespan=1 - busiest_s / pipeline_s if pipeline_s > 0 else 0.0,
        stages=stages,
    )


def _feeds(placement: Placement, profile: Profile) -> list[Feeds]:
    """For each stage the stages it feeds, with seconds and bytes of one transfer."""
    feeds: list[list[tuple[int, float, float]]] = [[] for _ in placement.plan.stages]
    for (sender, receiver), size in sorted(cut_bytes(placement.plan, profile).items()):
        level = placement.level_between(sender, receiver)
        feeds[sender].append((receiver, point_to_point_time_s(size, level), size))
    return [tuple(feed) for feed in feeds]


def _tied_s(placement: Placement, works: Sequence[StageWork], profile: Profile) -> list[float]:
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
        level = placement.level_between(holders[0], holders[-1]) if len(holders) > 1 else None
        if level is None:
            continue
        hops = (Hop(level=level, ranks=len(holders)),)
        for number in holders:
            times_s[number] = shared_gradient_time_s(works[number], hops)
    return times_s
