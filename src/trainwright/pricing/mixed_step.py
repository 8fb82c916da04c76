"""A plan on several kinds of devices, priced: every chain as a pipeline of its own.

    step = max over chains and ranks (end in the pipeline + exposed gradient synchronisation)
           + the slowest optimizer + the longest overhead of a step

Each chain is assembled and simulated by `assemble` as a uniform plan is, with the times of the
device that each of its ranks runs on; a plan on one pool costs what `step.predict_step` says.
Chains meet where replicas sum their gradients: the last one to come there ends the step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.cluster import Hop
from trainwright.costing.communication import point_to_point_time_s
from trainwright.errors import Fault, InvalidInput
from trainwright.model import precision_named
from trainwright.plan.mixed_prediction import ChainPrediction, MixedPrediction
from trainwright.plan.overlap import DEFAULT_OVERLAP, NO_OVERHEADS
from trainwright.pricing.assemble import Layout, RankPlace, StepWork, assemble_step
from trainwright.pricing.mixed_placement import MixedPlacement
from trainwright.pricing.placement import group_axis_hops
from trainwright.pricing.sharding import shared_gradient_time_s
from trainwright.pricing.stage_work import StageWork, cut_bytes, stage_works
from trainwright.pricing.step import gathered_input_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainwright.cluster import Cluster
    from trainwright.plan import Plan
    from trainwright.plan.overlap import MemoryOverheads, Overlap
    from trainwright.pricing.mixed_placement import Chain
    from trainwright.profile import Profile, ProfilePoint


def predict_mixed_step(
    plan: Plan,
    profiles: Mapping[int, Profile],
    cluster: Cluster,
    *,
    model_flops_per_sequence: float | None = None,
    overlap: Overlap = DEFAULT_OVERLAP,
    overheads: MemoryOverheads = NO_OVERHEADS,
) -> MixedPrediction:
    """Price one training step; `profiles` has one of the same layers for each pool in use.

    Raises `InvalidInput` where the plan breaks a rule or does not fit on the pools' devices,
    `UnsupportedFeature` naming the field for what cannot be priced on several pools. Not fitting
    into memory is no error.
    """
    placement = MixedPlacement(plan=plan, cluster=cluster)
    chains = []
    for chain, work, layout in _works(placement, profiles, overlap, overheads):
        step = assemble_step(work, layout)
        chains.append(
            ChainPrediction(
                count=chain.count,
                num_microbatches=chain.num_microbatches,
                pools=tuple(placement.pool_of(chain, rank) for rank in range(len(layout.places))),
                step=step,
            )
        )
    priced = _together(tuple(chains), cluster)
    point = next(iter(profiles.values())).point
    return _with_throughput(priced, placement, point, model_flops_per_sequence)


def mixed_works(
    plan: Plan,
    profiles: Mapping[int, Profile],
    cluster: Cluster,
    *,
    overlap: Overlap = DEFAULT_OVERLAP,
    overheads: MemoryOverheads = NO_OVERHEADS,
) -> tuple[tuple[Chain, StepWork, Layout], ...]:
    """What `predict_mixed_step` simulates of each chain; raises like that."""
    placement = MixedPlacement(plan=plan, cluster=cluster)
    return tuple(_works(placement, profiles, overlap, overheads))


def _works(
    placement: MixedPlacement,
    profiles: Mapping[int, Profile],
    overlap: Overlap,
    overheads: MemoryOverheads,
) -> Iterator[tuple[Chain, StepWork, Layout]]:
    pools = placement.cluster.pools
    faults = [*placement.faults(), *_layer_faults(placement.plan, profiles)]
    if faults:
        raise InvalidInput(faults)
    placement.refuse_coupled()
    replicas = [placement.replicas(rank) for rank in range(placement.degrees.pipeline)]
    for chain in placement.chains:
        places = (
            RankPlace(accelerator=pools[placement.pool_of(chain, rank)].accelerator, replicas=own)
            for rank, own in enumerate(replicas)
        )
        layout = Layout(
            shape=placement.shape(chain),
            places=tuple(places),
            overlap=overlap,
            overheads=overheads,
        )
        yield chain, _work(placement, chain, profiles), layout


def _layer_faults(plan: Plan, profiles: Mapping[int, Profile]) -> Iterator[Fault]:
    """Layers that the profiles do not have; those that no stage has."""
    placed = [layer for stage in plan.stages for layer in stage.layers]
    for index, profile in profiles.items():
        missing = sorted(set(profile.structure.ids) ^ set(placed))
        if missing:
            names = ", ".join(map(str, missing))
            yield Fault("stages", f"must hold every layer of profile {index} once; see {names}")


def _together(chains: tuple[ChainPrediction, ...], cluster: Cluster) -> MixedPrediction:
    steps = [chain.step for chain in chains]
    synced_s = max(step.pipeline_s + step.exposed_gradient_sync_s for step in steps)
    pipeline_s = max(step.pipeline_s for step in steps)
    optimizer_s = max(step.optimizer_s for step in steps)
    used = {pool for chain in chains for pool in chain.pools}
    overhead_s = max(cluster.pools[pool].accelerator.step_overhead_s for pool in used)
    return MixedPrediction(
        step_time_s=synced_s + optimizer_s + overhead_s,
        pipeline_s=pipeline_s,
        exposed_gradient_sync_s=synced_s - pipeline_s,
        optimizer_s=optimizer_s,
        chains=chains,
    )


def _work(placement: MixedPlacement, chain: Chain, profiles: Mapping[int, Profile]) -> StepWork:
    works = _stage_works(placement, chain, profiles)
    profile = profiles[chain.groups[0].pool]
    ranks = placement.rank_of_stage
    sent = cut_bytes(_as_run_by(placement.plan, chain), profile)
    last = len(works) - 1
    sizes = [sent.get((stage, stage + 1), 0.0) for stage in range(last)]
    levels = [
        placement.level_between(chain, ranks[stage], ranks[stage + 1]) for stage in range(last)
    ]
    times_s = [point_to_point_time_s(b, level) for b, level in zip(sizes, levels, strict=True)]
    return StepWork(
        stages=works,
        rank_of_stage=ranks,
        transfer_s=np.array(times_s),
        transfer_bytes=np.array(sizes),
        tied_s=_tied_s(placement, chain, works, profile),
        gathered_input_bytes=gathered_input_bytes(placement.degrees, profile),
    )


def _as_run_by(plan: Plan, chain: Chain) -> Plan:
    """The plan with the options of one chain's groups."""
    stages = (
        replace(
            stage, options=group.options or stage.options, replicas=(replace(group, options=()),)
        )
        for stage, group in zip(plan.stages, chain.groups, strict=True)
    )
    return replace(plan, stages=tuple(stages))


def _stage_works(
    placement: MixedPlacement, chain: Chain, profiles: Mapping[int, Profile]
) -> tuple[StageWork, ...]:
    """Each stage at the prices of the pool that it runs in."""
    plan, pools = _as_run_by(placement.plan, chain), placement.cluster.pools
    of_pool = {
        pool: stage_works(plan, profiles[pool], group_axis_hops(pools[pool], placement.degrees))
        for pool in {group.pool for group in chain.groups}
    }
    return tuple(of_pool[group.pool][stage] for stage, group in enumerate(chain.groups))


def _tied_s(
    placement: MixedPlacement, chain: Chain, works: Sequence[StageWork], profile: Profile
) -> tuple[float, ...]:
    """Per stage, the all-reduce of tied parameters with the other stage that holds them."""
    ids, ranks = profile.structure.ids, placement.rank_of_stage
    stage_of = {layer: n for n, stage in enumerate(placement.plan.stages) for layer in stage.layers}
    times_s = [0.0] * len(works)
    for group in profile.structure.shared_parameters:
        holders = sorted({stage_of[ids[layer]] for layer in group.layers})
        level = placement.level_between(chain, ranks[holders[0]], ranks[holders[-1]])
        if level is None:
            continue
        for number in holders:
            hops = (Hop(level=level, ranks=len(holders)),)
            times_s[number] = shared_gradient_time_s(works[number], hops)
    return tuple(times_s)


def _with_throughput(
    step: MixedPrediction,
    placement: MixedPlacement,
    point: ProfilePoint,
    model_flops_per_sequence: float | None,
) -> MixedPrediction:
    size = placement.plan.microbatch_size
    if size is None or point.sequence_length is None or step.step_time_s <= 0:
        return step
    sequences = placement.plan.num_microbatches * size
    mfu = None
    if model_flops_per_sequence is not None and point.precision is not None:
        dtype = precision_named(point.precision).matmul_dtype
        peak = sum(
            used * pool.accelerator.peak(dtype)
            for pool, used in zip(placement.cluster.pools, placement.devices_used, strict=True)
            if used
        )
        mfu = sequences * model_flops_per_sequence / (step.step_time_s * peak)
    return replace(step, tokens_per_s=sequences * point.sequence_length / step.step_time_s, mfu=mfu)
