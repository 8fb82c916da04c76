"""Data parallelism in a step: gradients and parameters on the wire, state in memory, by ZeRO stage.

ZeRO (Rajbhandari et al., 2020) shards optimizer state (1), gradients (2) and weights (3) over the
replicas: d·c of the dense parameters, fewer of those of experts. Traffic of a step, gradients g,
weights w and those of them that train u in bytes per device:

    0   all-reduce g                                        once, under the last backward
    1   scatter g, gather u                                 once; u under the next first forward
    2   scatter g per microbatch, gather u once
    3   scatter g and gather w twice, per microbatch

With several copies of the sharded state (hybrid shard; Zhao et al., PyTorch FSDP, 2023; MiCS, Zhang
et al., 2022) groups of replicas scatter and gather among themselves, and like shards of all groups
are reduced once per step, under the last backward too.

A transfer hides under the compute it accompanies, up to a share of that (`plans.configuration`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.costing.communication import (
    all_gather_lines,
    all_reduce_lines,
    all_reduce_time_s,
    fastest_s,
    memory_time_s,
)
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.cluster import Accelerator, Hop
    from trainwright.costing.communication import Lines
    from trainwright.plans.configuration import Overlap
    from trainwright.step.stages import StageWork

    Hops = tuple[Hop, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The groups over which a stage is replicated, (dense, expert): sizes and collectives.

    `reduce` and `gather` hold start and seconds per byte of each way to all-reduce, and to gather
    or scatter; groups are those that share one copy of the state. `between` are the ways to reduce
    its parts over the copies, per byte of the whole.
    """

    sizes: tuple[int, int]
    reduce: tuple[Lines, Lines]
    gather: tuple[Lines, Lines]
    zero_stage: int
    between: tuple[Lines, Lines] = ((), ())

    @classmethod
    def over(
        cls,
        sizes: tuple[int, int],
        hops: tuple[Hops, Hops],
        *,
        zero_stage: int,
        copies: Hops = (),
    ) -> Replicas:
        """Groups of these sizes that cross the network at `hops`; like parts meet at `copies`."""
        dense, expert = hops
        between = all_reduce_lines(copies)
        return cls(
            sizes=sizes,
            reduce=(all_reduce_lines(dense), all_reduce_lines(expert)),
            gather=(all_gather_lines(dense), all_gather_lines(expert)),
            zero_stage=zero_stage,
            between=(_of_parts(between, sizes[0]), _of_parts(between, sizes[1])),
        )

    def shards(self, group: int, kind: StaticKind) -> int:
        """Into how many parts the state of a kind is cut."""
        return self.sizes[group] if self.zero_stage >= _FIRST_STAGE[kind] else 1


def _of_parts(lines: Lines, count: int) -> Lines:
    """For all bytes of which each device moves one part."""
    return tuple((start_s, byte_s / count) for start_s, byte_s in lines)


_FIRST_STAGE = {StaticKind.OPTIMIZER: 1, StaticKind.GRADIENT: 2, StaticKind.WEIGHT: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelTimes:
    """Per microbatch what is added to forward and backward; the rest, and all kinds, per step.

    `gradients_s` and `parameters_s` count what hides too; `exposed_parameters_s` is the share of
    the exposed time, added per microbatch or at the end, that gathers parameters.
    """

    added_forward_s: float = 0.0
    added_backward_s: float = 0.0
    exposed_sync_s: float = 0.0
    gradients_s: float = 0.0
    parameters_s: float = 0.0
    exposed_gradients_s: float = 0.0
    exposed_parameters_s: float = 0.0

    @property
    def sync_s(self) -> float:
        """All synchronisation of a step."""
        return self.gradients_s + self.parameters_s


def data_parallel_times(
    works: Sequence[StageWork], replicas: Replicas, overlap: Overlap, *, num_microbatches: int
) -> tuple[DataParallelTimes, ...]:
    """What synchronising each stage of one rank costs; windows are the stage's own compute."""
    return tuple(_times(work, replicas, overlap, num_microbatches) for work in works)


def _times(
    work: StageWork, replicas: Replicas, overlap: Overlap, num_microbatches: int
) -> DataParallelTimes:
    whole = replicas.zero_stage == 3
    weights = work.static_bytes[:, StaticKind.WEIGHT] if whole else work.trained_weight_bytes
    sync = work.sync_bytes.tolist()
    under_forward_s = overlap.parameters * work.forward_s
    under_backward_s = overlap.gradients * work.backward_s
    if replicas.zero_stage == 0:
        reduce_s = _time_s(replicas.reduce, sync)
        exposed_s = max(0.0, reduce_s - under_backward_s)
        return DataParallelTimes(
            exposed_sync_s=exposed_s, gradients_s=reduce_s, exposed_gradients_s=exposed_s
        )
    gather_s = _time_s(replicas.gather, weights.tolist())
    scatter_s = _time_s(replicas.gather, sync)
    between_s = _time_s(replicas.between, sync)
    gather_exposed_s = max(0.0, gather_s - under_forward_s)
    scatter_exposed_s = max(0.0, scatter_s - under_backward_s)
    m = num_microbatches
    match replicas.zero_stage:
        case 1:
            scatter_s += between_s
            scatter_exposed_s = max(0.0, scatter_s - under_backward_s)
            return DataParallelTimes(
                exposed_sync_s=scatter_exposed_s + gather_exposed_s,
                gradients_s=scatter_s,
                parameters_s=gather_s,
                exposed_gradients_s=scatter_exposed_s,
                exposed_parameters_s=gather_exposed_s,
            )
        case 2:
            last_s = max(0.0, scatter_s + between_s - under_backward_s) - scatter_exposed_s
            return DataParallelTimes(
                added_backward_s=scatter_exposed_s,
                exposed_sync_s=gather_exposed_s + last_s,
                gradients_s=m * scatter_s + between_s,
                parameters_s=gather_s,
                exposed_gradients_s=m * scatter_exposed_s + last_s,
                exposed_parameters_s=gather_exposed_s,
            )
        case _:
            # Backward gathers weights and scatters gradients on the same links.
            both_s = gather_s + scatter_s
            both_exposed_s = max(0.0, both_s - under_backward_s)
            last_s = max(0.0, both_s + between_s - under_backward_s) - both_exposed_s
            scattered_s = min(both_exposed_s, scatter_s)
            regathered_s = both_exposed_s - scattered_s
            return DataParallelTimes(
                added_forward_s=gather_exposed_s,
                added_backward_s=both_exposed_s,
                exposed_sync_s=last_s,
                gradients_s=m * scatter_s + between_s,
                parameters_s=2 * m * gather_s,
                exposed_gradients_s=m * scattered_s + last_s,
                exposed_parameters_s=m * (gather_exposed_s + regathered_s),
            )


def _time_s(lines: tuple[Lines, Lines], sizes: Sequence[float]) -> float:
    """Of the dense and the expert group, one after the other; nothing to send takes no time."""
    dense, expert = sizes
    time_s = fastest_s(lines[0], dense) if dense > 0 else 0.0
    return time_s + fastest_s(lines[1], expert) if expert > 0 else time_s


_NO_STATE: Final = np.zeros((2, len(StaticKind)))
_NO_WEIGHTS: Final = np.zeros(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """State of one rank before sharding: bytes of (dense, expert) × `StaticKind`."""

    static_bytes: tuple[tuple[float, ...], ...]
    trained_weight_bytes: tuple[float, ...]
    largest_weight_bytes: float
    opaque_bytes: float

    @classmethod
    def of(cls, works: Sequence[StageWork]) -> RankState:
        """Add the stages of a rank up."""
        static = sum((work.static_bytes for work in works), start=_NO_STATE)
        trained = sum((work.trained_weight_bytes for work in works), start=_NO_WEIGHTS)
        return cls(
            static_bytes=tuple(map(tuple, static.tolist())),
            trained_weight_bytes=tuple(trained.tolist()),
            largest_weight_bytes=max(work.largest_weight_bytes for work in works),
            opaque_bytes=sum(work.opaque_bytes for work in works),
        )


def optimizer_time_s(state: RankState, replicas: Replicas, accelerator: Accelerator) -> float:
    """Bytes the update touches: gradients and states are read, states and weights written."""
    touched = sum(
        (gradient + 2 * optimizer + trained) / replicas.shards(group, StaticKind.OPTIMIZER)
        for group, ((_, gradient, optimizer), trained) in enumerate(
            zip(state.static_bytes, state.trained_weight_bytes, strict=True)
        )
    )
    return memory_time_s(touched, accelerator) if touched else 0.0


def static_shards(state: RankState, replicas: Replicas) -> tuple[float, float, float, float]:
    """Weight, gradient, optimizer and gathered weight bytes of one device.

    ZeRO-3 gathers the weights of a layer in use and of the next one, at most all of the rank.
    """
    dense, expert = state.static_bytes
    weight, gradient, optimizer = (
        dense[kind] / replicas.shards(0, kind) + expert[kind] / replicas.shards(1, kind)
        for kind in StaticKind
    )
    gathered = 0.0
    if replicas.zero_stage == 3:
        whole = dense[StaticKind.WEIGHT] + expert[StaticKind.WEIGHT]
        gathered = min(2 * state.largest_weight_bytes * (1 - 1 / replicas.sizes[0]), whole)
    return weight, gradient, optimizer, gathered


def shared_gradient_time_s(work: StageWork, hops: Hops) -> float:
    """All-reduce of tied parameters' gradients between the two stages that hold them."""
    return all_reduce_time_s(work.shared_gradient_bytes, hops)
