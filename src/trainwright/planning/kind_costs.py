"""What every kind of stage costs under given degrees: seconds and bytes that need no schedule.

Times are lower bounds that hold however a stage recomputes, except those of the front. Of the
state, optimizer and synchronisation each chunk of a rank has its part, so that a rank's are sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.costing.communication import point_to_point_time_s
from trainwright.pricing.placement import RankSpacing
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.cluster import Cluster
    from trainwright.costing.communication import Lines
    from trainwright.plan.overlap import Overlap
    from trainwright.plan.parallelism import Parallelism
    from trainwright.planning.stage_kinds import StageKinds
    from trainwright.pricing.sharding import Replicas

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerTimes:
    """Least seconds of phases, by class [C] and of all layers before one, [L + 1].

    `input_grad_s` are without recomputation.
    """

    forward_s: Floats
    input_grad_s: Floats
    weight_grad_s: Floats
    total_s: Floats
    forward_before_s: Floats
    input_grad_before_s: Floats
    total_before_s: Floats

    @classmethod
    def of(cls, kinds: StageKinds) -> LayerTimes:
        """From the rows of each class."""
        costs = kinds.profile.costs
        assert costs.phases is not None, "an estimate has phases"
        classes = [layer.layer_class for layer in kinds.profile.structure.layers]

        def least(rows: Floats) -> Floats:
            found: Floats = np.minimum.reduceat(rows, costs.class_offsets[:-1])
            return found

        def before(values: Floats) -> Floats:
            found: Floats = np.concatenate(([0.0], np.cumsum(values[classes])))
            return found

        forward_s = least(costs.phases.forward_s)
        input_grad_s = least(costs.phases.input_grad_s)
        total_s = least(costs.phases.total_s)
        return cls(
            forward_s=forward_s,
            input_grad_s=input_grad_s,
            weight_grad_s=least(costs.phases.weight_grad_s),
            total_s=total_s,
            forward_before_s=before(forward_s),
            input_grad_before_s=before(input_grad_s),
            total_before_s=before(total_s),
        )


# Of {weight, gradient, optimizer} bytes, beside the weights that the update writes.
TOUCHED: Final = np.array([0.0, 1.0, 2.0])


def gathered_bytes(kinds: StageKinds, zero_stage: int) -> Floats:
    """Weights that replicas gather, [K, 2]: all under ZeRO-3, else those that were updated."""
    if zero_stage < 3:
        return kinds.trained_bytes
    weights: Floats = kinds.static_bytes[:, :, StaticKind.WEIGHT]
    return weights


def held_static_bytes(kinds: StageKinds, replicas: Replicas) -> Floats:
    """State of one device by kind, gathered weights left out, shape [K]."""
    shards = np.array([[replicas.shards(g, kind) for kind in StaticKind] for g in range(2)])
    held: Floats = (kinds.static_bytes / shards).sum(axis=(1, 2)) + kinds.opaque_bytes
    return held


def optimizer_s(
    static: Floats, trained: Floats, replicas: Replicas, cluster: Cluster, *, chunks_per_rank: int
) -> Floats:
    """Each chunk's part of the update of its rank, from state [K, 2, 3], trained weights [K, 2]."""
    shards = [replicas.shards(group, StaticKind.OPTIMIZER) for group in range(2)]
    touched = (static @ TOUCHED + trained) @ (1 / np.array(shards))
    device = cluster.accelerator
    memory = device.efficiency.memory
    # At the efficiency max · b / (b + half) moving b bytes takes (b + half) / (bandwidth · max).
    once = np.where(touched > 0, memory.half / chunks_per_rank, 0.0)
    pace = device.memory_bandwidth_bytes_per_s * memory.max
    if device.cores is not None:
        pace = min(pace, device.cores.update_bytes_per_s)
    times_s: Floats = (touched + once) / pace
    return times_s


def exposed_after(first_s: Floats, then_s: Floats, under_s: Floats) -> Floats:
    """How much longer both take than the first alone, beyond what hides; less where more hides."""
    longer_s: Floats = np.maximum(0.0, first_s + then_s - under_s)
    return longer_s - np.maximum(0.0, first_s - under_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sharing:
    """Seconds of collectives among replicas by kind, [K]; see `pricing.sharding`."""

    zero_stage: int
    overlap: Overlap
    reduce_s: Floats
    gather_s: Floats
    scatter_s: Floats
    between_s: Floats

    @classmethod
    def of(cls, kinds: StageKinds, replicas: Replicas) -> Sharing:
        """Of whole stages, nothing hidden."""
        return cls(
            zero_stage=replicas.zero_stage,
            overlap=kinds.overlap,
            reduce_s=lines_s(replicas.reduce, kinds.sync_bytes),
            gather_s=lines_s(replicas.gather, gathered_bytes(kinds, replicas.zero_stage)),
            scatter_s=lines_s(replicas.gather, kinds.sync_bytes),
            between_s=lines_s(replicas.between, kinds.sync_bytes),
        )

    def with_added(self, kind: Ints, forward_s: Floats, time_s: Floats) -> Floats:
        """Seconds per microbatch from those without replicas, each of a kind, [N]."""
        if self.zero_stage < 2:
            return time_s
        under_s = self.overlap.gradients * np.maximum(0.0, time_s - forward_s)
        waiting_s, gathered_s = self.scatter_s[kind], np.zeros(len(kind))
        if self.zero_stage == 3:
            gather_s = self.gather_s[kind]
            waiting_s = waiting_s + gather_s
            gathered_s = np.maximum(0.0, gather_s - self.overlap.parameters * forward_s)
        total: Floats = time_s + gathered_s + np.maximum(0.0, waiting_s - under_s)
        return total

    def tail_s(self, forward_s: Floats, slowest_s: Floats) -> Floats:
        """What is exposed after the last microbatch, by kind; `slowest_s` of any way to run it."""
        under_s = self.overlap.gradients * np.maximum(0.0, slowest_s - forward_s)
        scattered_s = np.maximum(0.0, self.scatter_s + self.between_s - under_s)
        gathered_s = np.maximum(0.0, self.gather_s - self.overlap.parameters * forward_s)
        tail_s: Floats
        match self.zero_stage:
            case 0:
                tail_s = np.maximum(0.0, self.reduce_s - under_s)
            case 1:
                tail_s = scattered_s + gathered_s
            case 2:
                tail_s = gathered_s + exposed_after(self.scatter_s, self.between_s, under_s)
            case _:
                tail_s = exposed_after(self.gather_s + self.scatter_s, self.between_s, under_s)
        return tail_s


def slowest_s(kinds: StageKinds) -> Floats:
    """Seconds of a microbatch by kind, with all the recomputation that is left, [K]."""
    costs = kinds.profile.costs
    assert costs.phases is not None, "an estimate has phases"
    longest_s: Floats = np.maximum.reduceat(costs.phases.total_s, costs.class_offsets[:-1])
    found_s: Floats = kinds.counts.astype(np.float64) @ longest_s
    return found_s


def lines_s(lines: tuple[Lines, Lines], sizes: Floats) -> Floats:
    """Of the dense and the expert group, one after the other, for sizes of shape [K, 2]."""
    total = np.zeros(len(sizes))
    for group, ways in enumerate(lines):
        if ways:
            own = sizes[:, group]
            each = np.min([start_s + own * byte_s for start_s, byte_s in ways], axis=0)
            total += np.where(own > 0, each, 0.0)
    return total


def least_transfers_s(
    kinds: StageKinds, degrees: Parallelism, cluster: Cluster, ranks: tuple[int, ...]
) -> Floats:
    """Least seconds between the ranks of neighbours, wherever the chain is cut, [S - 1]."""
    edges = kinds.profile.structure.edges
    crossing = [edge.bytes for edge in edges if edge.target == edge.source + 1]
    least_bytes = min(crossing, default=0.0)
    levels = cluster.pool_of().levels
    spacing = RankSpacing.of(degrees)
    times_s = [
        point_to_point_time_s(least_bytes, spacing.level_between(levels, a, b))
        for a, b in pairwise(ranks)
    ]
    return np.array(times_s, dtype=np.float64)
