"""Bounds on the step of every plan of a pair of degrees, from sums over all layers.

With W the work of a microbatch over all layers and ranks, m microbatches per replica, p ranks and
sync_r what rank r still exchanges after its last backward:

    any order   T ≥ m·P_r + sync_r for every rank, so T ≥ (m·W + Σ sync_r) / p
    any order   some rank holds ⌈n / p⌉ of n like layers
    any order   one microbatch passes all ranks forward, and its gradient comes back to the first
                rank, which exchanges its own layers; see `chain_ends`
    1F1B        T ≥ m·P_r + Σ_{i<r} P_i, so T ≥ W / (1 − (1 − 1/m)^p)

and the optimizer of the slowest rank follows, no faster than the mean or that of any layer. What is
exchanged costs start + bytes · slope at the fastest of some ways, so parts cost no less than their
sum.

Memory makes layers recompute. When a microbatch is at the loss all ranks keep their part of it, and
with one stage per rank the w_r forwards of the warm-up are kept at the first backward. With U
usable bytes and S_r state

    any order   Σ kept_r ≤ Σ (U - S_r)
    warm-up     Σ kept_r ≤ Σ (U - S_r) / w_r, most where the ranks of large w_r hold the state

so the work is no less than what `PointWork.trade` says at that room, and neither is that of ⌈n / p⌉
like layers in the room of one rank. Where even the leanest options need more, nothing fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trainwright.costing.communication import fastest_s, point_to_point_time_s
from trainwright.costing.compute import memory_time_s
from trainwright.plan.overlap import DEFAULT_OVERLAP
from trainwright.plan.parallelism import Parallelism
from trainwright.planning.after_way import AfterWay
from trainwright.planning.chain_ends import Slopes
from trainwright.planning.family_bounds import family_step_bound_s, loop_work_s
from trainwright.planning.family_split import CHAIN
from trainwright.planning.kind_costs import TOUCHED
from trainwright.planning.like_layers import Rooms, Tail
from trainwright.planning.ramps import split_backward_s
from trainwright.planning.schedules import ONE_F_ONE_B
from trainwright.planning.shared_times import SharedTimes
from trainwright.planning.warm_up import WARM_UP
from trainwright.pricing.placement import group_replicas
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.cluster import Cluster
    from trainwright.plan.overlap import Overlap
    from trainwright.planning.family_bounds import ChainWork
    from trainwright.planning.layouts import Layouts
    from trainwright.planning.like_layers import LikeLayers
    from trainwright.planning.model_space import Point
    from trainwright.planning.pair_batch import Batch
    from trainwright.planning.point_work import PointWork
    from trainwright.pricing.sharding import Replicas

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_HAIR = 1 + 1e-9


@dataclass(slots=True)
class CoarseBounds:
    """Bounds of a point's pairs; groups of replicas are looked up once."""

    cluster: Cluster
    overlap: Overlap = DEFAULT_OVERLAP
    _groups: dict[tuple[int, ...], Replicas] = field(default_factory=dict)

    def bounds_s(self, work: PointWork, point: Point, batch: Batch, *, chain: ChainWork) -> Floats:
        """Of every pair, [N]."""
        device, layouts = self.cluster.accelerator, batch.layouts
        shared = self._shared(work, point, batch.groups)
        if layouts.inside.any():
            shared = shared.nearer_and_farther(work, self.cluster.levels)
        shards = shared.shards()
        p, m = layouts.pipeline, layouts.num_microbatches
        gathered = batch.of_pairs(shared.gathered())
        held_bytes = batch.of_pairs((work.static_bytes / shards).sum(axis=(2, 3)))
        work_s = _work_s(work, chain, batch, gathered, held_bytes, device.usable_bytes)
        backward_s = np.where(np.isfinite(work_s), work_s, 0.0) - work.forward_s
        added_s, sync_s = _exchanged(
            shared, batch, work.forward_s, backward_s, overlap=self.overlap
        )
        total_s = work_s + added_s
        bounds_s = (m * total_s + sync_s) / p
        layer_held = np.tensordot(1 / shards, work.layer_static_bytes, axes=([2, 3], [1, 2]))
        ramp, warm_up = batch.ramp(work.shares), batch.warm_up()
        for like, held in zip(work.classes, np.moveaxis(layer_held, 2, 0), strict=True):
            busiest_s = like.busiest_s(
                Rooms(device.usable_bytes, batch.of_pairs(held), gathered),
                _tail(like, shared, batch, self.overlap),
                pipeline=p,
                num_microbatches=m,
                in_flight=warm_up,
                ramp=ramp,
            )
            bounds_s = np.maximum(bounds_s, busiest_s)
        way_s = np.full(layouts.size, work.way_s)
        for family, own in batch.families:
            ramp_s = _ramp_s(work, chain, work_s[own], layouts.at(own), family)
            bounds_s[own] = np.maximum(bounds_s[own], ramp_s)
            if family == ONE_F_ONE_B:
                full_s = total_s[own] / (1 - (1 - 1 / m[own]) ** p[own])
                bounds_s[own] = np.maximum(bounds_s[own], full_s)
                way_s[own] = work.forward_s + backward_s[own]
        sent_s = 2 * self._transfers_s(work, point, layouts)
        bounds_s = np.maximum(bounds_s, way_s + sent_s)
        ends_s = self._ends_s(work, point, batch, shared, sent_s, below_s=bounds_s)
        update_s = self._update_s(work, batch, shards)
        found: Floats = np.maximum(bounds_s, ends_s) + update_s + device.step_overhead_s
        return found

    def _ends_s(
        self,
        work: PointWork,
        point: Point,
        batch: Batch,
        shared: SharedTimes,
        sent_s: Floats,
        *,
        below_s: Floats,
    ) -> Floats:
        """The way of a microbatch and what follows it, [N]; 0 where none is above `below_s`."""
        ends, layouts = work.ends, batch.layouts
        size = np.where(layouts.inside, 1, layouts.data) * point.devices
        tied_s = ends.tied_s(self.cluster.pool_of().levels, size, layouts.pipeline)
        passed_s = np.full(layouts.size, work.way_s)
        for family, own in batch.families:
            if family == ONE_F_ONE_B:
                passed_s[own] = ends.whole_way_s
        passed_s += sent_s
        most_s = tied_s + ends.own_weight_grad_s + 2 * shared.most_s
        counts = passed_s + most_s > below_s
        if not counts.any():
            return np.zeros(layouts.size)
        slopes = Slopes(shared.reduce_byte_s, shared.gather_byte_s, shared.between_byte_s)
        after = AfterWay.of(ends, shared.groups, slopes, self.overlap)
        for family, own in batch.families:
            if counts[own].any():
                at = batch.zero_stage[own], batch.group[own]
                passed_s[own] += after.of_family(family, at, layouts.pipeline[own], tied_s[own])
        return passed_s

    def _update_s(self, work: PointWork, batch: Batch, shards: Floats) -> Floats:
        """Of the rank with most to update: no less than the mean, nor than any layer's, [N]."""
        device, parts = self.cluster.accelerator, shards[:, :, :, StaticKind.OPTIMIZER]
        written = work.static_bytes @ TOUCHED + work.trained_bytes
        of_layers = work.layer_static_bytes @ TOUCHED + work.ends.first.trained_bytes
        touched = (written / parts).sum(axis=2)
        largest = (parts**-1 @ of_layers.T).max(axis=2)
        update_s, largest_s = (
            np.array([[memory_time_s(b, device) if b else 0.0 for b in row] for row in rows])
            for rows in (touched.tolist(), largest.tolist())
        )
        p = batch.layouts.pipeline
        found: Floats = np.maximum(batch.of_pairs(update_s) / p, batch.of_pairs(largest_s))
        return found

    def _transfers_s(self, work: PointWork, point: Point, layouts: Layouts) -> Floats:
        """Least seconds of one microbatch between all ranks, one way, [N].

        Where a rank takes a node or more, every transfer leaves a node; where ranks divide nodes
        evenly, those at the end of a node do.
        """
        inner, *outer = self.cluster.pool_of().levels
        near_s = point_to_point_time_s(work.edge_bytes, inner)
        far_s = min((point_to_point_time_s(work.edge_bytes, e) for e in outer), default=near_s)
        size, p = np.where(layouts.inside, 1, layouts.data) * point.devices, layouts.pipeline
        crossing = np.where(size >= inner.size, p - 1, (p * size - 1) // inner.size)
        crossing = np.where((size < inner.size) & (inner.size % size != 0), 0, crossing)
        least_s = min(near_s, far_s)
        total_s: Floats = (p - 1 - crossing) * least_s + crossing * far_s
        return total_s

    def _shared(self, work: PointWork, point: Point, kinds: Ints) -> SharedTimes:
        weights = work.static_bytes[:, StaticKind.WEIGHT].tolist()
        trained = work.trained_bytes.tolist()
        sync = work.sync_bytes.tolist()
        groups = [self._replicas(point, *kind) for kind in kinds.tolist()]
        return SharedTimes(
            groups=groups,
            reduce_s=np.array([_both_s(group.reduce, sync) for group in groups]),
            gather_s=np.array([_both_s(group.gather, weights) for group in groups]),
            update_s=np.array([_both_s(group.gather, trained) for group in groups]),
            scatter_s=np.array([_both_s(group.gather, sync) for group in groups]),
            between_s=np.array([_both_s(group.between, sync) for group in groups]),
            reduce_byte_s=np.array([list(map(_byte_s, group.reduce)) for group in groups]),
            gather_byte_s=np.array([list(map(_byte_s, group.gather)) for group in groups]),
            between_byte_s=np.array([list(map(_byte_s, group.between)) for group in groups]),
            sizes=np.array([group.sizes for group in groups], np.int64).reshape(-1, 2),
        )

    def _replicas(self, point: Point, data: int, copies: int) -> Replicas:
        key = (point.tensor, point.context, point.expert, point.expert_devices, data, copies)
        if key not in self._groups:
            degrees = Parallelism(
                tensor=point.tensor,
                context=point.context,
                data=data,
                expert=point.expert,
                expert_tensor=point.expert_tensor,
                state_copies=copies,
            )
            self._groups[key] = group_replicas(self.cluster.pool_of(), degrees)
        return self._groups[key]


def _work_s(
    work: PointWork,
    chain: ChainWork,
    batch: Batch,
    gathered: Floats,
    held_bytes: Floats,
    usable_bytes: float,
) -> Floats:
    """Of all ranks for a microbatch, with what memory makes recompute, [N]."""
    layouts = batch.layouts
    held_bytes = (
        held_bytes + np.minimum(1.0, gathered) * work.weights.with_largest[layouts.pipeline]
    )
    work_s = np.empty(layouts.size)
    for family, own in batch.families:
        p, held = (
            layouts.pipeline[own],
            held_bytes[own] + _transient_bytes(work, family)[layouts.pipeline[own]],
        )
        room_bytes = p * usable_bytes - held
        if family in WARM_UP:
            m = layouts.num_microbatches[own]
            room_bytes = _room_in_warm_up(p, m, held, usable_bytes, family)
        work_s[own] = work.trade.least_s(room_bytes)
        if family == "interleaved":
            chunks = layouts.virtual_stages[own]
            looped_s = loop_work_s(chain, pipeline=p, virtual_stages=chunks, room_bytes=room_bytes)
            work_s[own] = np.maximum(work_s[own], looped_s)
    return work_s


def _ramp_s(
    work: PointWork, chain: ChainWork, work_s: Floats, layouts: Layouts, family: str
) -> Floats:
    """What the ends of a step leave idle under a family, [N]."""
    p, m = layouts.pipeline, layouts.num_microbatches
    return np.maximum(
        family_step_bound_s(chain, family=family, pipeline=p, num_microbatches=m),
        split_backward_s(work.shares, work_s, family=family, pipeline=p, num_microbatches=m),
    )


def _exchanged(
    shared: SharedTimes, batch: Batch, forward_s: float, backward_s: Floats, *, overlap: Overlap
) -> tuple[Floats, Floats]:
    """Of all ranks: what data parallelism adds per microbatch, and after the last one, [N]."""
    zero, group = batch.zero_stage, batch.group
    under_s = overlap.gradients * backward_s
    gather_s = np.where(zero == 3, shared.gather_s[group], shared.update_s[group])
    scatter_s, between_s = shared.scatter_s[group], shared.between_s[group]
    gathered_s = np.maximum(0.0, gather_s - overlap.parameters * forward_s)
    scattered_s = np.maximum(0.0, scatter_s - under_s)
    both_s = gathered_s + np.maximum(0.0, gather_s + scatter_s - under_s)
    reduced_s = np.maximum(0.0, shared.reduce_s[group] - under_s)
    # Scattering of every microbatch may leave all of what hides to what follows the last.
    left_s = np.maximum(0.0, between_s - under_s)
    last_s = np.maximum(0.0, scatter_s + between_s - under_s)
    added_s = np.select([zero == 2, zero == 3], [scattered_s, both_s], 0.0)
    after_s = [reduced_s, last_s + gathered_s, gathered_s + left_s]
    return added_s, np.select([zero == 0, zero == 1, zero == 2], after_s, left_s)


def _room_in_warm_up(
    p: Ints, m: Ints, held_bytes: Floats, usable_bytes: float, family: str
) -> Floats:
    """Bytes that one microbatch may keep over all ranks; all state lies on the first ranks.

    The last x ranks have Σ 1 / w of one device's room; `x` need not be whole.
    """
    counts, index = np.unique(m, return_inverse=True)
    ranks = np.arange(1, int(p.max(initial=0)) + 1)
    shares = 1 / np.minimum(WARM_UP[family](ranks), counts[:, np.newaxis])
    shares = np.pad(shares, ((0, 0), (0, 1)))
    sums = np.pad(np.cumsum(shares, axis=1), ((0, 0), (1, 0)))
    left = np.maximum(0.0, p - held_bytes / usable_bytes)
    whole = left.astype(np.int64)
    room = sums[index, whole] + (left - whole) * shares[index, whole]
    return np.where(held_bytes > p * usable_bytes * _HAIR, -1.0, room * usable_bytes)


def _transient_bytes(work: PointWork, family: str) -> Floats:
    """Of all ranks at the first backward of each, by the number of ranks.

    A rank of several chunks keeps all of them when the last begins, whose transients those are.
    """
    return work.transients.with_largest if family in CHAIN else work.transients.anywhere


def _tail(like: LikeLayers, shared: SharedTimes, batch: Batch, overlap: Overlap) -> Tail:
    """What a rank with some of these layers exchanges after the last microbatch, at least."""
    zero, group = batch.zero_stage, batch.group
    sync, gather = np.array(like.sync_bytes), np.array(like.gather_bytes)
    reduced_s, scattered_s, between_s, gathered_s = (
        (byte_s @ own)[group]
        for byte_s, own in (
            (shared.reduce_byte_s, sync),
            (shared.gather_byte_s, sync),
            (shared.between_byte_s, sync),
            (shared.gather_byte_s, gather),
        )
    )
    last_s = scattered_s + between_s
    gradients_s = np.select([zero == 0, zero == 1], [reduced_s, last_s], between_s)
    parameters_s = np.where((zero == 1) | (zero == 2), gathered_s, 0.0)
    return Tail(
        (
            (gradients_s, overlap.gradients * like.longest.backward_s),
            (parameters_s, overlap.parameters * like.longest.forward_s),
        )
    )


def _byte_s(ways: tuple[tuple[float, float], ...]) -> float:
    return min((byte_s for _, byte_s in ways), default=0.0)


def _both_s(lines: tuple[tuple[tuple[float, float], ...], ...], sizes: list[float]) -> float:
    return sum(fastest_s(ways, size) for ways, size in zip(lines, sizes, strict=True) if size > 0)
