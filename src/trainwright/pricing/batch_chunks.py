"""The virtual stages of a configuration, from sums that many configurations share."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from trainwright.cluster import Hop
from trainwright.costing.communication import point_to_point_time_s
from trainwright.plan.configuration import even_blocks
from trainwright.pricing.block_sums import Interval
from trainwright.pricing.memory_curve import StageActivations
from trainwright.pricing.pipeline_run import placement_of
from trainwright.pricing.sharding import shared_gradient_time_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.cluster import NetworkLevel
    from trainwright.plan.configuration import Configuration
    from trainwright.pricing.block_sums import BlockSums
    from trainwright.pricing.pipeline_run import PipelineShape
    from trainwright.pricing.placement import RankSpacing
    from trainwright.pricing.sharding import RankState
    from trainwright.pricing.stage_work import StageWork

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankGroup:
    """Ranks that run the same stages: which of the distinct ones, their state, all the ranks."""

    stages: tuple[int, ...]
    ranks: NDArray[np.int64]
    state: RankState
    tied_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunks:
    """All virtual stages; `distinct` are those that differ, `index` says which each one is."""

    distinct: tuple[StageWork, ...]
    index: NDArray[np.int64]
    transfer_s: Floats
    activations: StageActivations
    buffer_bytes: Floats
    groups: tuple[RankGroup, ...]

    def of_stages(self, values: list[float]) -> Floats:
        """A value of each distinct stage, for all stages."""
        return np.array(values)[self.index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """What lies between stages: `levels` that differ, by neighbours `between`, and at the `ends`.

    `stages_of` ranks, of which each has so many `crossings` to other ranks.
    """

    stages_of: tuple[tuple[int, ...], ...]
    levels: tuple[NetworkLevel | None, ...]
    between: tuple[int, ...]
    crossings: tuple[int, ...]
    ends: NetworkLevel | None


def boundaries_of(
    shape: PipelineShape, spacing: RankSpacing, levels: tuple[NetworkLevel, ...]
) -> Boundaries:
    """What ranks that lie so have to cross."""
    owner = placement_of(shape).rank_of_stage
    between = [spacing.level_between(levels, a, b) for a, b in pairwise(owner)]
    distinct = tuple(dict.fromkeys(between))
    stages_of: list[list[int]] = [[] for _ in range(max(owner) + 1)]
    crossings = [0] * len(stages_of)
    for stage, rank in enumerate(owner):
        stages_of[rank].append(stage)
        neighbours = (*owner[max(0, stage - 1) : stage], *owner[stage + 1 : stage + 2])
        crossings[rank] += sum(other != rank for other in neighbours)
    return Boundaries(
        stages_of=tuple(map(tuple, stages_of)),
        levels=distinct,
        between=tuple(distinct.index(level) for level in between),
        crossings=tuple(crossings),
        ends=spacing.level_between(levels, owner[0], owner[-1]),
    )


def chunks_of(run: Configuration, boundaries: Boundaries, sums: BlockSums) -> Chunks:
    """Deal the blocks out and price what passes between ranks."""
    works, size = _works(run, sums), sums.boundary_bytes
    times_s = [point_to_point_time_s(size, level) for level in boundaries.levels]
    tied_s = _tied_s(works, boundaries.ends, sums)
    distinct = list({id(stage): stage for stage in works}.values())
    number = {id(stage): i for i, stage in enumerate(distinct)}
    index = np.array([number[id(stage)] for stage in works])
    boundary_bytes = 2 * size * np.array(boundaries.crossings, dtype=np.float64)
    return Chunks(
        distinct=tuple(distinct),
        index=index,
        transfer_s=np.array([times_s[level] for level in boundaries.between], dtype=np.float64),
        activations=_activations(distinct, index),
        buffer_bytes=boundary_bytes + _gathered_input_bytes(run, size),
        groups=_groups(works, boundaries.stages_of, tied_s, sums),
    )


def _works(run: Configuration, sums: BlockSums) -> list[StageWork]:
    counts = run.blocks_per_stage or even_blocks(sums.num_blocks, run.num_stages)
    limit = sums.num_blocks if run.recompute_blocks is None else run.recompute_blocks
    last = len(counts) - 1
    if not sums.is_uniform:
        intervals = zip(accumulate(counts, initial=0), counts, strict=False)
        return [
            sums.work(_interval(first, count, limit, stage, last))
            for stage, (first, count) in enumerate(intervals)
        ]
    front = sums.work(_interval(0, counts[0], limit, 0, last))
    if last == 0:
        return [front]
    middle = {count: sums.work(_interval(0, count, limit, 1, 2)) for count in set(counts[1:-1])}
    back = sums.work(_interval(0, counts[last], limit, last, last))
    return [front, *(middle[count] for count in counts[1:-1]), back]


def _interval(first: int, count: int, limit: int, stage: int, last: int) -> Interval:
    return Interval(
        first=first,
        last=first + count,
        num_recomputed=min(count, limit),
        has_front=stage == 0,
        has_back=stage == last,
    )


def _activations(distinct: list[StageWork], index: NDArray[np.int64]) -> StageActivations:
    table = np.array(
        [
            (
                work.until_input_grad_bytes,
                work.until_weight_grad_bytes,
                work.transient_bytes,
                work.logits_bytes,
            )
            for work in distinct
        ]
    )[index]
    return StageActivations(
        until_input_grad=table[:, 0],
        until_weight_grad=table[:, 1],
        transient=table[:, 2],
        logits=table[:, 3],
    )


def _tied_s(
    works: list[StageWork], level: NetworkLevel | None, sums: BlockSums
) -> tuple[float, ...]:
    """The first and the last stage hold tied embeddings both, where the model has any."""
    times_s = [0.0] * len(works)
    if sums.is_tied and level is not None:
        for stage in (0, len(works) - 1):
            hops = (Hop(level=level, ranks=2),)
            times_s[stage] = shared_gradient_time_s(works[stage], hops)
    return tuple(times_s)


def _gathered_input_bytes(run: Configuration, boundary_bytes: float) -> float:
    degrees = run.parallelism
    gathers = degrees.sequence_parallel and degrees.tensor > 1
    return boundary_bytes * degrees.tensor if gathers else 0.0


def _groups(
    works: list[StageWork],
    stages_of: tuple[tuple[int, ...], ...],
    tied_s: tuple[float, ...],
    sums: BlockSums,
) -> tuple[RankGroup, ...]:
    number = {id(work): i for i, work in enumerate({id(work): work for work in works}.values())}
    index = [number[id(work)] for work in works]
    found: dict[tuple[float, ...], list[int]] = {}
    for rank, own in enumerate(stages_of):
        tied = sum([tied_s[stage] for stage in own])
        found.setdefault((tied, *[index[stage] for stage in own]), []).append(rank)
    return tuple(
        RankGroup(
            stages=tuple([index[stage] for stage in stages_of[ranks[0]]]),
            ranks=np.array(ranks),
            state=sums.state([works[stage] for stage in stages_of[ranks[0]]]),
            tied_s=float(key[0]),
        )
        for key, ranks in found.items()
    )
