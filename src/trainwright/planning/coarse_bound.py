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

Memory makes layers recompute, so W is no less than `recompute_bound` says, and neither is that of
⌈n / p⌉ like layers in the room of one rank. Where even the leanest options need more, nothing fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trainwright.costing.communication import point_to_point_time_s
from trainwright.costing.compute import memory_time_s
from trainwright.plan.overlap import DEFAULT_OVERLAP
from trainwright.planning.after_way import AfterWay
from trainwright.planning.chain_ends import Slopes
from trainwright.planning.exchange_bounds import exchanged_s, tail_of
from trainwright.planning.family_bounds import family_step_bound_s
from trainwright.planning.kind_costs import TOUCHED
from trainwright.planning.like_layers import Rooms
from trainwright.planning.ramps import split_backward_s
from trainwright.planning.recompute_bound import recomputed_work_s
from trainwright.planning.replica_groups import ReplicaGroups
from trainwright.planning.schedules import ONE_F_ONE_B
from trainwright.planning.shared_times import SharedTimes
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.cluster import Cluster
    from trainwright.plan.overlap import Overlap
    from trainwright.planning.family_bounds import ChainWork
    from trainwright.planning.layouts import Layouts
    from trainwright.planning.model_space import Point
    from trainwright.planning.pair_batch import Batch
    from trainwright.planning.point_work import PointWork

    Floats = NDArray[np.float64]


@dataclass(slots=True)
class CoarseBounds:
    """Bounds of a point's pairs; groups of replicas are looked up once."""

    cluster: Cluster
    overlap: Overlap = DEFAULT_OVERLAP
    _groups: ReplicaGroups = field(init=False)

    def __post_init__(self) -> None:
        self._groups = ReplicaGroups(self.cluster)

    def bounds_s(self, work: PointWork, point: Point, batch: Batch, *, chain: ChainWork) -> Floats:
        """Of every pair, [N]."""
        device, layouts = self.cluster.accelerator, batch.layouts
        shared = SharedTimes.of(work, self._groups.of_point(point, batch.groups))
        if layouts.inside.any():
            shared = shared.nearer_and_farther(work, self.cluster.levels)
        shards = shared.shards()
        p, m = layouts.pipeline, layouts.num_microbatches
        gathered = batch.of_pairs(shared.gathered())
        held_bytes = batch.of_pairs((work.static_bytes / shards).sum(axis=(2, 3)))
        work_s = recomputed_work_s(work, chain, batch, gathered, held_bytes, device.usable_bytes)
        backward_s = np.where(np.isfinite(work_s), work_s, 0.0) - work.forward_s
        added_s, sync_s = exchanged_s(
            shared, batch, work.forward_s, backward_s, overlap=self.overlap
        )
        total_s = work_s + added_s
        bounds_s = (m * total_s + sync_s) / p
        bounds_s = np.maximum(bounds_s, self._busiest_s(work, batch, shared, shards, gathered))
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

    def _busiest_s(
        self, work: PointWork, batch: Batch, shared: SharedTimes, shards: Floats, gathered: Floats
    ) -> Floats:
        """Of the rank that holds most layers of a class, whichever that is, [N]."""
        layer_held = np.tensordot(1 / shards, work.layer_static_bytes, axes=([2, 3], [1, 2]))
        usable_bytes = self.cluster.accelerator.usable_bytes
        ramp, warm_up = batch.ramp(work.shares), batch.warm_up()
        most_s = np.zeros(batch.layouts.size)
        for like, held in zip(work.classes, np.moveaxis(layer_held, 2, 0), strict=True):
            busiest_s = like.busiest_s(
                Rooms(usable_bytes, batch.of_pairs(held), gathered),
                tail_of(like, shared, batch, self.overlap),
                pipeline=batch.layouts.pipeline,
                num_microbatches=batch.layouts.num_microbatches,
                in_flight=warm_up,
                ramp=ramp,
            )
            most_s = np.maximum(most_s, busiest_s)
        return most_s

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


def _ramp_s(
    work: PointWork, chain: ChainWork, work_s: Floats, layouts: Layouts, family: str
) -> Floats:
    """What the ends of a step leave idle under a family, [N]."""
    p, m = layouts.pipeline, layouts.num_microbatches
    return np.maximum(
        family_step_bound_s(chain, family=family, pipeline=p, num_microbatches=m),
        split_backward_s(work.shares, work_s, family=family, pipeline=p, num_microbatches=m),
    )
