"""How a configuration's blocks are dealt out to virtual stages, shared by many configurations."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING

import numpy as np

from trainwright.cluster import Hop
from trainwright.costing.communication import all_reduce_lines, fastest_s, point_to_point_time_s
from trainwright.plan.configuration import even_blocks
from trainwright.pricing.block_sums import Interval
from trainwright.pricing.pipeline_run import placement_of
from trainwright.pricing.placement import RankSpacing
from trainwright.pricing.ragged import Ragged
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.cluster import NetworkLevel
    from trainwright.costing.communication import Lines
    from trainwright.plan.configuration import Configuration
    from trainwright.plan.overlap import Overlap
    from trainwright.pricing.block_sums import BlockSums
    from trainwright.pricing.pipeline_run import PipelineShape

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """What lies between stages: `levels` that differ, by neighbours `between`.

    `stages_of` ranks, of which each has so many `crossings` to other ranks; `ends` are the ways to
    all-reduce between the ranks of the first and of the last stage, the `outer_ranks`.
    """

    stages_of: tuple[tuple[int, ...], ...]
    levels: tuple[NetworkLevel | None, ...]
    between: tuple[int, ...]
    crossings: tuple[int, ...]
    outer_ranks: tuple[int, int]
    ends: Lines


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """All virtual stages as `works`, rows of the table of works [S]; the rest by rank [p].

    `tied_s` is what reducing the gradients of tied embeddings takes, where a rank holds them.
    """

    works: tuple[int, ...]
    stages_of: tuple[tuple[int, ...], ...]
    transfer_s: Floats
    buffer_bytes: Floats
    tied_s: Floats
    overlap: Overlap


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cuts:
    """Many cuts, one after another: `works` by stage, what is theirs by rank.

    `by_rank` lists the stages rank after rank, as places among those of their cut, and `held` says
    how many each rank has.
    """

    stages: Ragged
    works: Ints
    by_rank: Ints
    ranks: Ragged
    held: Ints
    buffer_bytes: Floats
    tied_s: Floats

    @classmethod
    def of(cls, cuts: Sequence[Cut]) -> Cuts:
        """Lay them out."""
        owned = [own for cut in cuts for own in cut.stages_of]
        return cls(
            stages=Ragged.of([len(cut.works) for cut in cuts]),
            works=np.array([work for cut in cuts for work in cut.works], dtype=np.int64),
            by_rank=np.array(list(chain.from_iterable(owned)), dtype=np.int64),
            ranks=Ragged.of([len(cut.stages_of) for cut in cuts]),
            held=np.array(list(map(len, owned)), dtype=np.int64),
            buffer_bytes=np.concatenate([cut.buffer_bytes for cut in cuts]),
            tied_s=np.concatenate([cut.tied_s for cut in cuts]),
        )


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
    ends = spacing.level_between(levels, owner[0], owner[-1])
    return Boundaries(
        stages_of=tuple(map(tuple, stages_of)),
        levels=distinct,
        between=tuple(distinct.index(level) for level in between),
        crossings=tuple(crossings),
        outer_ranks=(owner[0], owner[-1]),
        ends=() if ends is None else all_reduce_lines((Hop(level=ends, ranks=2),)),
    )


def cut_of(run: Configuration, boundaries: Boundaries, sums: BlockSums) -> Cut:
    """Deal the blocks out and price what passes between ranks."""
    works, size = _works(run, sums), sums.boundary_bytes
    times_s = [point_to_point_time_s(size, level) for level in boundaries.levels]
    boundary_bytes = 2 * size * np.array(boundaries.crossings, dtype=np.float64)
    return Cut(
        works=works,
        stages_of=boundaries.stages_of,
        transfer_s=np.array([times_s[level] for level in boundaries.between], dtype=np.float64),
        buffer_bytes=boundary_bytes + _gathered_input_bytes(run, size),
        tied_s=_tied_s(works, boundaries, sums),
        overlap=run.overlap,
    )


def _works(run: Configuration, sums: BlockSums) -> tuple[int, ...]:
    counts = run.blocks_per_stage or even_blocks(sums.num_blocks, run.num_stages)
    limit = sums.num_blocks if run.recompute_blocks is None else run.recompute_blocks
    last = len(counts) - 1
    every = run.recompute_blocks is None

    def work(first: int, count: int, *, has_front: bool, has_back: bool) -> int:
        return sums.work(
            Interval(
                first=first,
                last=first + count,
                num_recomputed=min(count, limit),
                mode=run.recompute,
                mtp_mode=run.recompute if every else Recompute.NONE,
                has_front=has_front,
                has_back=has_back,
            )
        )

    if not sums.is_uniform:
        firsts = accumulate(counts, initial=0)
        return tuple(
            work(first, count, has_front=stage == 0, has_back=stage == last)
            for stage, (first, count) in enumerate(zip(firsts, counts, strict=False))
        )
    if last == 0:
        return (work(0, counts[0], has_front=True, has_back=True),)
    inner = counts[1:-1]
    middle = {count: work(0, count, has_front=False, has_back=False) for count in set(inner)}
    return (
        work(0, counts[0], has_front=True, has_back=False),
        *[middle[count] for count in inner],
        work(0, counts[last], has_front=False, has_back=True),
    )


def _tied_s(works: Sequence[int], boundaries: Boundaries, sums: BlockSums) -> Floats:
    """The first and the last stage hold tied embeddings both, where the model has any."""
    times_s = np.zeros(len(boundaries.stages_of))
    if sums.is_tied:
        for work, rank in zip((works[0], works[-1]), boundaries.outer_ranks, strict=True):
            shared_bytes = sums.rows.value(work, "shared_gradient_bytes")
            times_s[rank] += fastest_s(boundaries.ends, shared_bytes)
    return times_s


def _gathered_input_bytes(run: Configuration, boundary_bytes: float) -> float:
    degrees = run.parallelism
    gathers = degrees.sequence_parallel and degrees.tensor > 1
    return boundary_bytes * degrees.tensor if gathers else 0.0
