"""Bounds on a step from a few sums alone, for thousands of candidates at once.

With P the work of a microbatch on all p ranks, m microbatches, h_r the time before rank r can start
and t_r that after its last backward:

    step ≥ m·P / p + mean of (h_r + t_r)             the average rank
    step ≥ m·(work of the busiest rank)              see `undivided`
    step ≥ φ·P / (1 - (1 - φ/m)^p)                   one stage per rank

    step ≥ m·(P + R) / p                             in a loop, R what memory makes recompute

Before the first backward of a rank in a loop p microbatches have passed all its chunks but the
last, so that these may keep the p-th part of all memory.

Stage r of any split has at least r layers before it, whose forwards lead to it; a fused backward
leaves theirs to run after its last one. With one stage per rank all of a microbatch's work before
rank r counts, but for a split backward only the share φ that is forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainwright.model import LayerKind
from trainwright.planning.family_split import CHAIN, IN_V
from trainwright.planning.kind_costs import LayerTimes, optimizer_s
from trainwright.planning.loop_bound import Blocks
from trainwright.planning.undivided import undivided_work_s
from trainwright.pricing.placement import group_replicas

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from trainwright.cluster import Cluster
    from trainwright.plan.parallelism import Parallelism
    from trainwright.planning.stage_kinds import StageKinds
    from trainwright.profile import CostTable

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_HAIR = 1e-9
_SPLIT_BACKWARD = ("zb-h1", "zb-h2", *IN_V)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainWork:
    """One microbatch through a chain of L layers, at its least.

    `ahead_s` [L + 1] is the mean over p ranks of the forward of r layers for rank r, `around_s` of
    forward and backward. `forward_share` is that of the layer with the least share. `blocks` are
    those of the most frequent class, `num_blocks` of any.
    """

    total_s: float
    forward_share: float
    class_s: Floats
    counts: NDArray[np.int64]
    ahead_s: Floats
    around_s: Floats
    blocks: Blocks
    num_blocks: int

    @classmethod
    def of(cls, kinds: StageKinds) -> ChainWork:
        """The chain of `kinds` with all its options."""
        times, costs = LayerTimes.of(kinds), kinds.profile.costs
        assert costs.phases is not None, "an estimate has phases"
        total_s = costs.phases.total_s
        works = total_s > 0
        shares = costs.phases.forward_s[works] / total_s[works]
        layers = kinds.profile.structure.layers
        classes = [layer.layer_class for layer in layers]
        own = [layer.layer_class for layer in layers if layer.name == LayerKind.BLOCK]
        return cls(
            total_s=float(times.total_before_s[-1]),
            forward_share=float(shares.min(initial=1.0)),
            class_s=times.total_s,
            counts=np.bincount(classes, minlength=len(times.total_s)),
            ahead_s=_mean_over_ranks(times.forward_before_s),
            around_s=_mean_over_ranks(times.total_before_s),
            blocks=_blocks_of(costs, max(own, key=own.count), own),
            num_blocks=len(own),
        )


def family_step_bound_s(
    work: ChainWork,
    *,
    family: str,
    pipeline: ArrayLike,
    num_microbatches: ArrayLike,
    overhead_s: float = 0.0,
    after_s: float | Floats = 0.0,
) -> Floats:
    """No plan of the family has a shorter step; arrays of candidates, broadcast together.

    `num_microbatches` is per replica; p ≤ L. `overhead_s` is what every step takes once, `after_s`
    the least that follows the pipeline; see `least_optimizer_s`.
    """
    p, m = np.asarray(pipeline, dtype=np.int64), np.asarray(num_microbatches, dtype=np.float64)
    around_s = work.ahead_s if family in _SPLIT_BACKWARD else work.around_s
    bound_s = m * work.total_s / p + around_s[p]
    depths, index = np.unique(p, return_inverse=True)
    busiest_s = undivided_work_s(work.class_s, work.counts, depths)[index].reshape(p.shape)
    bound_s = np.maximum(bound_s, m * busiest_s)
    if family in CHAIN:
        share = work.forward_share if family in _SPLIT_BACKWARD else 1.0
        unfinished = (1 - share / m) ** p
        bound_s = np.maximum(bound_s, share * work.total_s / (1 - unfinished))
    total: Floats = bound_s + overhead_s + after_s
    return total


def loop_work_s(
    work: ChainWork, *, pipeline: Ints, virtual_stages: Ints, room_bytes: Floats
) -> Floats:
    """Work of a microbatch in the nearly even splits of a loop, with what memory makes recompute.

    `room_bytes` is what all ranks together have for activations; infinite where that is too little.
    """
    blocks, p, v = work.blocks, pipeline, virtual_stages
    each = np.maximum(1, work.num_blocks // (p * v))
    others = work.num_blocks - blocks.count
    kept_long = np.maximum(0, each * ((v - 1) * p - 1) - others)
    kept_bytes = room_bytes / (p * np.maximum(1, kept_long))
    time_s = np.interp(kept_bytes, blocks.kept_bytes[::-1], blocks.time_s[::-1])
    time_s = np.where(kept_bytes < blocks.kept_bytes[-1] * (1 - _HAIR), np.inf, time_s)
    again_s = np.where(kept_long > 0, time_s - blocks.time_s[0], 0.0)
    total_s: Floats = work.total_s + kept_long * again_s
    return total_s


def least_optimizer_s(kinds: StageKinds, degrees: Parallelism, cluster: Cluster) -> float:
    """What the optimizer of the rank with most state takes at least: that of an average rank."""
    replicas = group_replicas(cluster.pool_of(), degrees)
    whole, p = kinds.kind_of[0, kinds.num_layers], degrees.pipeline
    static, trained = kinds.static_bytes[[whole]] / p, kinds.trained_bytes[[whole]] / p
    return float(optimizer_s(static, trained, replicas, cluster, chunks_per_rank=1)[0])


def _blocks_of(costs: CostTable, layer_class: int, blocks: list[int]) -> Blocks:
    assert costs.phases is not None, "an estimate has phases"
    rows = list(costs.rows_of(layer_class))
    return Blocks.of(
        count=blocks.count(layer_class),
        forward_s=float(costs.phases.forward_s[rows].min()),
        time_s=costs.phases.total_s[rows],
        kept_bytes=costs.saved_bytes[rows],
        static=0.0,
    )


def _mean_over_ranks(before_s: Floats) -> Floats:
    """Of p ranks, by p from 0 to L: the mean of `before_s` of ranks 0 to p - 1."""
    ranks = np.arange(1, len(before_s))
    return np.concatenate(([0.0], np.cumsum(before_s)[:-1] / ranks))
