"""Data parallelism in a step: gradients and parameters on the wire, state in memory, by ZeRO stage.

ZeRO (Rajbhandari et al., 2020) shards optimizer state (1), gradients (2) and weights (3) over the
d replicas. Traffic of a step, gradients g and weights w in bytes per device:

    0   all-reduce g                                        once, under the last backward
    1   scatter g, gather w                                 once; w under the next first forward
    2   scatter g per microbatch, gather w once
    3   scatter g and gather w twice, per microbatch

A transfer hides under the compute it accompanies up to the share `OVERLAP`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainwright.cluster import Accelerator, Hop
from trainwright.costing.communication import all_gather_time_s, all_reduce_time_s
from trainwright.costing.compute import memory_time_s
from trainwright.plan import StageMemory
from trainwright.pricing.stage_work import StageWork
from trainwright.profile import StaticKind

OVERLAP: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelTimes:
    """Per microbatch what is added to forward and backward; per step, the rest."""

    added_forward_s: float
    added_backward_s: float
    sync_s: float
    exposed_sync_s: float


def data_parallel_times(
    work: StageWork, hops: tuple[Hop, ...], *, zero_stage: int
) -> DataParallelTimes:
    """What synchronising one stage over the group of `hops` costs."""
    weight_bytes = float(work.static_bytes[:, StaticKind.WEIGHT].sum())
    gather_s = all_gather_time_s(weight_bytes, hops)
    scatter_s = all_gather_time_s(work.sync_bytes, hops)

    def exposed(transfer_s: float, compute_s: float) -> float:
        return max(0.0, transfer_s - OVERLAP * compute_s)

    if zero_stage == 3:
        backward_s = exposed(gather_s + scatter_s, work.backward_s)
        return DataParallelTimes(
            added_forward_s=exposed(gather_s, work.forward_s),
            added_backward_s=backward_s,
            sync_s=2 * gather_s + scatter_s,
            exposed_sync_s=0.0,
        )
    if zero_stage == 2:
        return DataParallelTimes(
            added_forward_s=0.0,
            added_backward_s=exposed(scatter_s, work.backward_s),
            sync_s=scatter_s + gather_s,
            exposed_sync_s=exposed(gather_s, work.forward_s),
        )
    if zero_stage == 1:
        hidden = exposed(scatter_s, work.backward_s) + exposed(gather_s, work.forward_s)
        return DataParallelTimes(
            added_forward_s=0.0,
            added_backward_s=0.0,
            sync_s=scatter_s + gather_s,
            exposed_sync_s=hidden,
        )
    reduce_s = all_reduce_time_s(work.sync_bytes, hops)
    return DataParallelTimes(
        added_forward_s=0.0,
        added_backward_s=0.0,
        sync_s=reduce_s,
        exposed_sync_s=exposed(reduce_s, work.backward_s),
    )


def optimizer_time_s(
    work: StageWork, accelerator: Accelerator, *, data_parallel: int, zero_stage: int
) -> float:
    """Bytes the update touches: gradients once, states read and written, weights written."""
    weight, gradient, optimizer = work.static_bytes.sum(axis=0).tolist()
    touched = gradient + 2 * optimizer + weight
    shards = data_parallel if zero_stage >= 1 else 1
    return memory_time_s(touched / shards, accelerator) if touched else 0.0


def stage_memory(
    work: StageWork, *, microbatches_in_flight: int, data_parallel: int, zero_stage: int
) -> StageMemory:
    """Peak bytes of one device: shards of the state, activations in flight, the largest transient.

    Gathered weights of ZeRO-3 (a layer in use and the next one) count as transient.
    """
    weight, gradient, optimizer = work.static_bytes.sum(axis=0).tolist()
    d = data_parallel
    gathered = 2 * work.largest_weight_bytes * (1 - 1 / d) if zero_stage == 3 else 0.0
    return StageMemory(
        weight_bytes=weight / (d if zero_stage >= 3 else 1),
        gradient_bytes=gradient / (d if zero_stage >= 2 else 1),
        optimizer_bytes=optimizer / (d if zero_stage >= 1 else 1),
        opaque_bytes=work.opaque_bytes,
        activation_bytes=work.saved_bytes * microbatches_in_flight,
        transient_bytes=work.transient_bytes + min(gathered, weight),
        microbatches_in_flight=microbatches_in_flight,
    )


def shared_gradient_time_s(work: StageWork, hops: tuple[Hop, ...]) -> float:
    """All-reduce of tied parameters' gradients between the two stages that hold them."""
    return all_reduce_time_s(work.shared_gradient_bytes, hops)
