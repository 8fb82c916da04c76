"""What the chunks of a rank in a loop exchange with replicas, at the least, by its blocks.

Every chunk gathers and scatters its own state, hidden under its own compute (`pricing.sharding`).
So what a rank exchanges depends on how its blocks are dealt to its chunks, and the least of all
ways to deal them is the min-plus convolution of what each chunk exchanges with so many blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from trainwright.planning.kind_costs import LayerTimes, Sharing, slowest_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.planning.stage_kinds import StageKinds
    from trainwright.pricing.sharding import Replicas

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankSharing:
    """Of a rank with its least blocks, one more, ...: [E] each.

    What is added to the forward and to the backward of every microbatch, the latter without
    recomputation, under which more of it would hide; and what follows the last microbatch.
    """

    forward_s: Floats
    backward_s: Floats
    tail_s: Floats

    @classmethod
    def none(cls, size: int) -> RankSharing:
        """Nothing."""
        zeros = np.zeros(size)
        return cls(forward_s=zeros, backward_s=zeros, tail_s=zeros)


def rank_sharing(
    kinds: StageKinds, replicas: Replicas, chunks_of_rank: list[list[Ints]]
) -> tuple[RankSharing, ...]:
    """The least of every rank, whose chunks are listed as the kinds they may be.

    Those of a chunk are in the order of its blocks, from its least on.
    """
    sharing, stage, overlap = Sharing.of(kinds, replicas), replicas.zero_stage, kinds.overlap
    forward_s = kinds.forward_s
    backward_s = kinds.counts @ LayerTimes.of(kinds).total_s - forward_s
    none_s = np.zeros_like(forward_s)
    added_s = (none_s, none_s)
    if stage >= 2:
        waiting_s, gathered_s = sharing.scatter_s, none_s
        if stage == 3:
            waiting_s = waiting_s + sharing.gather_s
            gathered_s = np.maximum(0.0, sharing.gather_s - overlap.parameters * forward_s)
        added_s = gathered_s, np.maximum(0.0, waiting_s - overlap.gradients * backward_s)
    each = (*added_s, sharing.tail_s(forward_s, slowest_s(kinds)))
    made: dict[bytes, RankSharing] = {}
    found = []
    for chunks in chunks_of_rank:
        key = b"|".join(own.tobytes() for own in chunks)
        if key not in made:
            forward, backward, tail = (_dealt_least([of[own] for own in chunks]) for of in each)
            made[key] = RankSharing(forward_s=forward, backward_s=backward, tail_s=tail)
        found.append(made[key])
    return tuple(found)


def _dealt_least(chunks: list[Floats]) -> Floats:
    """The least sum over chunks, by all extra blocks together."""
    return reduce(_convolved, chunks)


def _convolved(a: Floats, b: Floats) -> Floats:
    extra = np.add.outer(np.arange(len(a)), np.arange(len(b))).ravel()
    least = np.full(len(a) + len(b) - 1, np.inf)
    np.minimum.at(least, extra, np.add.outer(a, b).ravel())
    return least
