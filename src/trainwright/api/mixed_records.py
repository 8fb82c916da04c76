"""The priced plan on several pools, as a document carries it, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.api.model_records import memory_assumption, mfu_in_words
from trainwright.model import precision_named
from trainwright.plan.results.mixed_plan import (
    MixedAlternative,
    MixedBinding,
    MixedGroupRecord,
    MixedPlanResult,
    MixedRankRecord,
    MixedReplicaRecord,
    MixedStageRecord,
)
from trainwright.plan.status import relative_gap
from trainwright.profile import Recompute
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainwright.cluster import Cluster
    from trainwright.plan import Plan, Stage
    from trainwright.plan.mixed_prediction import MixedPrediction
    from trainwright.planning.mixed_priced import MixedPriced
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.pricing.interval import TimeRange
    from trainwright.profile import Profile


def with_mixed_plan(
    document: MixedPlanResult,
    question: ModelQuestion,
    plan: Plan,
    profiles: Mapping[int, Profile],
    step: MixedPrediction,
) -> MixedPlanResult:
    """The document with all that follows from its plan."""
    cluster, time_s = question.cluster, step.step_time_s
    spread = _range(question, plan, step)
    ranks = tuple(_ranks(question, step))
    groups = tuple(_groups(cluster, plan, step, ranks))
    used = sum(group.devices_used for group in groups)
    return replace(
        document,
        step_time_s=time_s,
        step_time_low_s=time_s * spread.low_ratio,
        step_time_high_s=time_s * spread.high_ratio,
        gap=relative_gap(time_s, document.lower_bound_s or 0.0),
        fits=all(rank.margin_bytes >= 0 for rank in ranks),
        tokens_per_s=step.tokens_per_s,
        tokens_per_s_per_device=step.tokens_per_s / used if step.tokens_per_s else None,
        mfu=step.mfu,
        pipeline_s=step.pipeline_s,
        exposed_gradient_sync_s=step.exposed_gradient_sync_s,
        optimizer_s=step.optimizer_s,
        layout=layout_of(step),
        parallelism=plan.parallelism,
        schedule=plan.schedule,
        micro_batch=plan.microbatch_size,
        devices_used=used,
        groups=groups,
        stages=tuple(_stages(cluster, plan, profiles)),
        ranks=ranks,
        binding=_binding(ranks, step),
        assumptions=_assumptions(question, plan, profiles, spread),
    )


def layout_of(step: MixedPrediction) -> str:
    """How the plan uses its pools; "woven" where chains cross pools in ways of their own."""
    pools = {pool for chain in step.chains for pool in chain.pools}
    if len(pools) == 1:
        return "alone"
    if all(len(set(chain.pools)) == 1 for chain in step.chains):
        return "beside"
    return "across" if len(step.chains) == 1 else "woven"


def mixed_alternatives(
    question: ModelQuestion, priced: Sequence[MixedPriced]
) -> Iterator[MixedAlternative]:
    """The plans of the other shapes, and what they lose to the first."""
    for other in priced[1:]:
        degrees, size = other.plan.parallelism, other.plan.microbatch_size
        assert degrees is not None, "all stages share their degrees"
        assert size is not None, "a model's plan has a microbatch"
        pools = question.cluster.pools
        yield MixedAlternative(
            layout=other.shape.name,
            pools=other.shape.pools,
            device_kinds=tuple(pools[pool].accelerator.name for pool in other.shape.pools),
            parallelism=degrees,
            micro_batch=size,
            schedule=other.plan.schedule,
            devices_used=other.plan.devices_used,
            step_time_s=other.step.step_time_s,
            slowdown=other.step.step_time_s / priced[0].step.step_time_s,
        )


def _ranks(question: ModelQuestion, step: MixedPrediction) -> Iterator[MixedRankRecord]:
    cluster, needed_bytes = question.cluster, question.overheads.needed_bytes
    for number, chain in enumerate(step.chains):
        for rank, (pool, found) in enumerate(zip(chain.pools, chain.step.stages, strict=True)):
            device = cluster.pools[pool].accelerator
            peak_bytes = found.memory.total_bytes
            yield MixedRankRecord(
                chain=number,
                rank=rank,
                pool=pool,
                device_kind=device.name,
                count=chain.count,
                num_microbatches=chain.num_microbatches,
                prediction=found,
                busy=chain.busy_s(rank) / step.step_time_s,
                memory_bytes=peak_bytes,
                memory_limit_bytes=device.usable_bytes,
                margin_bytes=device.usable_bytes - needed_bytes(peak_bytes),
            )


def _groups(
    cluster: Cluster, plan: Plan, step: MixedPrediction, ranks: Sequence[MixedRankRecord]
) -> Iterator[MixedGroupRecord]:
    from trainwright.pricing.mixed_placement import MixedPlacement

    placement = MixedPlacement(plan=plan, cluster=cluster)
    lengths = [0] * len(step.chains[0].pools)
    for stage, rank in zip(plan.stages, placement.rank_of_stage, strict=True):
        lengths[rank] += len(stage.layers)
    passes = sum(lengths) * plan.num_microbatches
    for index, (pool, used) in enumerate(zip(cluster.pools, placement.devices_used, strict=True)):
        own = [rank for rank in ranks if rank.pool == index]
        replicas = sum(rank.count for rank in own)
        yield MixedGroupRecord(
            pool=index,
            device_kind=pool.accelerator.name,
            num_devices=pool.num_devices,
            devices_used=used,
            layer_share=sum(r.count * r.num_microbatches * lengths[r.rank] for r in own) / passes,
            busy=sum(r.count * r.busy for r in own) / replicas if replicas else 0.0,
            peak_memory_bytes=max((rank.memory_bytes for rank in own), default=0.0),
            memory_limit_bytes=pool.accelerator.usable_bytes,
        )


def _stages(
    cluster: Cluster, plan: Plan, profiles: Mapping[int, Profile]
) -> Iterator[MixedStageRecord]:
    from trainwright.pricing.mixed_placement import MixedPlacement

    placement = MixedPlacement(plan=plan, cluster=cluster)
    for stage, rank in zip(plan.stages, placement.rank_of_stage, strict=True):
        yield MixedStageRecord(
            layers=stage.layers,
            rank=rank,
            replicas=tuple(_replicas(cluster, plan, stage, profiles)),
        )


def _replicas(
    cluster: Cluster, plan: Plan, stage: Stage, profiles: Mapping[int, Profile]
) -> Iterator[MixedReplicaRecord]:
    for group in stage.replicas:
        options = group.options or stage.options
        modes = _modes(profiles[group.pool])
        yield MixedReplicaRecord(
            pool=group.pool,
            device_kind=cluster.pools[group.pool].accelerator.name,
            count=group.count,
            tensor_parallel=group.tensor_parallel,
            num_microbatches=round(plan.num_microbatches * group.share / group.count),
            options={
                str(layer): option for layer, option in zip(stage.layers, options, strict=True)
            },
            num_recomputed=sum(modes[option] is not Recompute.NONE for option in options),
        )


def _modes(profile: Profile) -> dict[str, Recompute]:
    return dict(zip(profile.costs.option_ids, profile.costs.recompute, strict=True))


def _binding(ranks: Sequence[MixedRankRecord], step: MixedPrediction) -> MixedBinding:
    """The busiest rank of the chain that ends last; memory binds where it makes it recompute."""
    own = [rank for rank in ranks if rank.chain == step.slowest]
    found = max(own, key=lambda rank: (rank.busy, -rank.rank))
    full = found.memory_bytes / found.memory_limit_bytes
    repeated = found.prediction.recompute_s > 0
    text = f"rank {found.rank} on {found.device_kind} works {found.busy:.1%} of the step"
    if repeated:
        text += f" and recomputes, its memory {full:.1%} full"
    others = [r for r in ranks if r.pool != found.pool]
    if others:
        most = max(others, key=lambda rank: rank.busy)
        text += f"; the busiest {most.device_kind} works {most.busy:.1%}"
    fullest = max(ranks, key=lambda rank: rank.memory_bytes / rank.memory_limit_bytes)
    text += (
        f"; fullest is rank {fullest.rank} on {fullest.device_kind}, "
        f"{format_bytes(fullest.margin_bytes)} free"
    )
    return MixedBinding(
        pool=found.pool,
        device_kind=found.device_kind,
        chain=found.chain,
        rank=found.rank,
        resource="memory" if repeated else "compute",
        description=text,
    )


def _range(question: ModelQuestion, plan: Plan, step: MixedPrediction) -> TimeRange:
    """From the least to the greatest ratio of any pool in use."""
    from trainwright.plan.configuration import Configuration
    from trainwright.pricing.interval import time_range

    assert plan.parallelism is not None
    run = Configuration(
        parallelism=plan.parallelism,
        microbatch_size=plan.microbatch_size or 1,
        global_batch=question.workload.global_batch,
        sequence_length=question.workload.sequence_length,
        schedule=plan.schedule,
    )
    pools = sorted({pool for chain in step.chains for pool in chain.pools})
    found = [time_range(question.model, question.cluster.alone(pool), run) for pool in pools]
    return replace(
        found[0],
        low_ratio=min(each.low_ratio for each in found),
        high_ratio=max(each.high_ratio for each in found),
        source="; ".join(dict.fromkeys(each.source for each in found)),
    )


def _assumptions(
    question: ModelQuestion, plan: Plan, profiles: Mapping[int, Profile], spread: TimeRange
) -> dict[str, str]:
    first = next(iter(profiles.values()))
    sources = [profile.costs.provenance for _, profile in sorted(profiles.items())]
    used = [question.cluster.pools[pool].accelerator for pool in sorted(profiles)]
    return {
        "times": "; ".join(dict.fromkeys(f"{each.origin}: {each.source}" for each in sources)),
        "range": spread.source,
        "mfu": mfu_in_words(used, precision_named(str(first.point.precision))),
        "precision": str(first.point.precision),
        "kernels": ", ".join(first.point.kernels),
        "optimizer": "Adam, states and master weights in 32 bit",
        "memory": "; ".join(
            f"{device.name}: {memory_assumption(device, question.overheads)}" for device in used
        ),
        "schedule": f"{plan.schedule}, simulated for each chain of like replicas",
    }
