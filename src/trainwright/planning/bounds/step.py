"""Bounds on the step of every plan of a pair of degrees, from sums over all layers.

With W the work of a microbatch over all layers and ranks, m microbatches per replica, p ranks and
sync_r what rank r still exchanges after its last backward:

    any order   T ≥ m·P_r + sync_r for every rank, so T ≥ (m·W + Σ sync_r) / p
    any order   some rank holds ⌈n / p⌉ of n like layers
    any order   one microbatch passes all ranks forward, and its gradient comes back to the first
                rank, which exchanges its own layers (`exchanges`)
    any order   T ≥ F + m·(P_r − F_r) + sync_r: nothing goes back before a loss, F after the start
    1F1B        T ≥ m·P_r + Σ_{i<r} P_i, so T ≥ W / (1 − (1 − 1/m)^p)

and the optimizer of the slowest rank follows, no faster than the mean or that of any layer. What is
exchanged costs start + bytes · slope at the fastest of some ways, so parts cost no less than their
sum.

Memory makes layers recompute, so W is no less than `recomputed_work_s`, and neither is that of
⌈n / p⌉ like layers in the room of one rank. Where even the leanest options need more, nothing fits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from trainwright.cluster import Cluster, NetworkLevel
from trainwright.costing.communication import point_to_point_time_s
from trainwright.model import LayerKind
from trainwright.planning.bounds.exchanges import AfterWay, SharedTimes, Slopes
from trainwright.planning.bounds.layers import (
    Blocks,
    LeastLayers,
    LikeLayers,
    PointWork,
    Ramp,
    Rooms,
    Shares,
    Tail,
    split_backward_s,
)
from trainwright.planning.bounds.stages import LayerTimes, StageKinds, busiest_work_s
from trainwright.planning.question.layouts import (
    BRAIDED,
    CHAIN,
    CUTS_HEAD,
    FUSED,
    HELD_AT_ONCE,
    IN_GROUPS,
    ON_HOST,
    PUBLISHED_WARM_UP,
    SLICED,
    SPLIT_BACKWARD,
    WARM_UP,
    WHOLE_BACKWARD,
    WHOLE_GROUPS,
    Layouts,
    ReplicaGroups,
    RunnableDegrees,
    Schedule,
    group_kinds,
    is_replicated,
    is_worth_copying,
    joined,
    layouts_of,
    with_copies,
    with_like_groups,
    with_mappings,
)
from trainwright.planning.question.question import (
    Aim,
    Allowed,
    ModelQuestion,
    Point,
    dense_points,
    estimate_profile,
)
from trainwright.plans.configuration import DEFAULT_OVERLAP, Overlap
from trainwright.profile import CostTable, Profile, TimeKind
from trainwright.scheduling.families import family_named
from trainwright.step import zero
from trainwright.step.pipeline import slices_of
from trainwright.step.stages import head_passes_s, head_times_s, head_work_s

if TYPE_CHECKING:
    from trainwright.arrays import Flags, Floats, Ints

# What replicas exchange at least in every microbatch and after the last, of many pairs at once
# ---------------------------------------------------------------------------------------------


def exchanged_s(
    shared: SharedTimes, batch: Batch, forward_s: float, backward_s: Floats, *, overlap: Overlap
) -> tuple[Floats, Floats]:
    """Of all ranks: what data parallelism adds per microbatch, and after the last one, [N]."""
    traffic, hiding = shared.traffic(batch.zero_stage, batch.group), batch.hiding
    under = zero.Windows(
        overlap.parameters * forward_s * hiding, overlap.gradients * backward_s * hiding
    )
    return zero.least_exposed(batch.zero_stage, traffic, under)


def tail_of(like: LikeLayers, shared: SharedTimes, batch: Batch, overlap: Overlap) -> Tail:
    """What a rank with some of these layers exchanges after the last microbatch, at least."""
    sync, gather = np.array(like.sync_bytes), np.array(like.gather_bytes)
    traffic = zero.Traffic(
        *(
            (byte_s @ own)[batch.group]
            for byte_s, own in (
                (shared.reduce_byte_s, sync),
                (shared.gather_byte_s, sync),
                (shared.gather_byte_s, gather),
                (shared.between_byte_s, sync),
            )
        )
    )
    once = zero.last_microbatch(batch.zero_stage, traffic.once(batch.zero_stage))
    return Tail(
        (
            (once.backward_s, overlap.gradients * like.longest.backward_s),
            (once.forward_s, overlap.parameters * like.longest.forward_s),
        ),
        hiding=batch.hiding,
    )


# Bounds on a step from a few sums alone, for thousands of candidates at once
# ---------------------------------------------------------------------------
# With P the work of a microbatch on all p ranks, m microbatches, h_r the time before rank r can
# start and t_r that after its last backward:
#
#     step ≥ m·P / p + mean of (h_r + t_r)             the average rank
#     step ≥ m·(work of the busiest rank)              see `undivided`
#     step ≥ φ·P / (1 - (1 - φ/m)^p)                   one stage per rank
#
# Stage r of any split has at least r layers before it, whose forwards lead to it; a fused backward
# leaves theirs to run after its last one. With one stage per rank all of a microbatch's work before
# rank r counts, but for a split backward only the share φ that is forward.

_HAIR = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainWork:
    """One microbatch through a chain of L layers, at its least.

    `ahead_s` [L + 1] is the mean over p ranks of the forward of r layers for rank r, `around_s` of
    forward and backward, `behind_s` of the input gradients of the last r layers, `busiest_s` the
    work of the busiest of p ranks. `forward_share` is that of the layer with the least share.
    `blocks` are those of the most frequent class, `num_blocks` of any.
    """

    total_s: float
    forward_share: float
    ahead_s: Floats
    around_s: Floats
    behind_s: Floats
    busiest_s: Floats
    blocks: Blocks
    num_blocks: int

    @classmethod
    def of(cls, kinds: StageKinds) -> ChainWork:
        """The chain of `kinds` with all its options."""
        times, costs = LayerTimes.of(kinds), kinds.profile.costs
        total_s = costs.by_phase.total_s
        works = total_s > 0
        shares = costs.by_phase.forward_s[works] / total_s[works]
        layers = kinds.profile.structure.layers
        own = [layer.layer_class for layer in layers if layer.name == LayerKind.BLOCK]
        input_grad_s = times.input_grad_before_s
        return cls(
            total_s=float(times.total_before_s[-1]),
            forward_share=float(shares.min(initial=1.0)),
            ahead_s=_mean_over_ranks(times.forward_before_s),
            around_s=_mean_over_ranks(times.total_before_s),
            behind_s=_mean_over_ranks(input_grad_s[-1] - input_grad_s[::-1]),
            busiest_s=busiest_work_s(kinds),
            blocks=_blocks_of(costs, max(own, key=own.count), own),
            num_blocks=len(own),
        )


def family_step_bound_s(
    work: ChainWork,
    *,
    family: str,
    pipeline: ArrayLike,
    num_microbatches: ArrayLike,
) -> Floats:
    """No plan of the family has a shorter pipeline; arrays of candidates, broadcast together.

    `num_microbatches` is per replica; p ≤ L.
    """
    p, m = np.asarray(pipeline, dtype=np.int64), np.asarray(num_microbatches, dtype=np.float64)
    around_s = work.ahead_s if family in SPLIT_BACKWARD else work.around_s
    bound_s = m * work.total_s / p + around_s[p]
    bound_s = np.maximum(bound_s, m * work.busiest_s[p])
    if family in CHAIN:
        share = work.forward_share if family in SPLIT_BACKWARD else 1.0
        unfinished = (1 - share / m) ** p
        bound_s = np.maximum(bound_s, share * work.total_s / (1 - unfinished))
    return bound_s


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


def _blocks_of(costs: CostTable, layer_class: int, blocks: list[int]) -> Blocks:
    rows = list(costs.rows_of(layer_class))
    return Blocks.of(
        count=blocks.count(layer_class),
        forward_s=float(costs.by_phase.forward_s[rows].min()),
        time_s=costs.by_phase.total_s[rows],
        kept_bytes=costs.saved_bytes[rows],
        static=0.0,
    )


def _mean_over_ranks(before_s: Floats) -> Floats:
    """Of p ranks, by p from 0 to L: the mean of `before_s` of ranks 0 to p - 1."""
    ranks = np.arange(1, len(before_s))
    return np.concatenate(([0.0], np.cumsum(before_s)[:-1] / ranks))


# Work of a microbatch over all ranks, no less than what memory makes layers recompute
# ------------------------------------------------------------------------------------
# When a microbatch is at the loss all ranks keep their part of it, and at some instant each rank
# keeps w_r microbatches of all of its chunks, with one stage per rank those of its warm-up. With U
# usable bytes and S_r state
#
#     any order   Σ kept_r ≤ Σ (U - S_r)
#     warm-up     Σ kept_r ≤ Σ (U - S_r) / w_r, most where the ranks of large w_r hold the state
#
# so the work is no less than what `PointWork.trade` says at that room. Where even the leanest
# options need more, nothing fits, and the work is infinite.


def recomputed_work_s(
    work: PointWork,
    chain: ChainWork,
    batch: Batch,
    gathered: Floats,
    held_bytes: Floats,
    usable_bytes: float,
    *,
    likely: bool,
) -> Floats:
    """Of all ranks for a microbatch, with what memory makes recompute, [N].

    Of all splits and orders, or where the `likely` ones are meant, of nearly even splits with room
    for what the published order holds.
    """
    in_flight = _held_at_once(likely=likely)
    layouts = batch.layouts
    held_bytes = (
        held_bytes + np.minimum(1.0, gathered) * work.weights.with_largest[layouts.pipeline]
    )
    work_s = np.empty(layouts.size)
    known: dict[Callable[[Ints], Ints], Floats] = {}
    for family, own in batch.families:
        p, held = (
            layouts.pipeline[own],
            held_bytes[own] + _transient_bytes(work, family)[layouts.pipeline[own]],
        )
        room_bytes = p * usable_bytes - held
        own_bytes = room_bytes
        if family in ON_HOST:  # ranks need not hold a microbatch all at once
            own_bytes = np.where(room_bytes < 0, room_bytes, np.inf)
        if family in in_flight:
            warm_up = in_flight[family]
            if warm_up not in known:
                known[warm_up] = batch.warm_up_rooms(warm_up)
            own_bytes = _room_in_warm_up(p, batch.count[own], held, usable_bytes, known[warm_up])
        work_s[own] = work.trade.least_s(own_bytes)
        if likely and family in WHOLE_GROUPS:
            chunks = layouts.virtual_stages[own]
            looped_s = loop_work_s(chain, pipeline=p, virtual_stages=chunks, room_bytes=room_bytes)
            work_s[own] = np.maximum(work_s[own], looped_s)
    return work_s


def _held_at_once(*, likely: bool) -> Mapping[str, Callable[[Ints], Ints]]:
    """By family, of all chunks of a rank at one instant; if `likely` as its published order has."""
    return {**HELD_AT_ONCE, **PUBLISHED_WARM_UP} if likely else HELD_AT_ONCE


def _room_in_warm_up(
    p: Ints, count: Ints, held_bytes: Floats, usable_bytes: float, rooms: Floats
) -> Floats:
    """Bytes that one microbatch may keep over all ranks; all state lies on the first ranks.

    The last x ranks have Σ 1 / w of one device's room; `x` need not be whole. `count` [N] says
    which of the rows of `rooms` a pair has (`Batch.warm_up_rooms`).
    """
    left = np.maximum(0.0, p - held_bytes / usable_bytes)
    whole = left.astype(np.int64)
    of_all, of_next = rooms[:, count, whole]
    room = of_all + (left - whole) * of_next
    return np.where(held_bytes > p * usable_bytes, -1.0, room * usable_bytes)


def _transient_bytes(work: PointWork, family: str) -> Floats:
    """Of all ranks at the first backward of each, by the number of ranks.

    A rank of several chunks keeps all of them when the last begins, whose transients those are.
    """
    return work.transients.with_largest if family in CHAIN else work.transients.anywhere


# Bounds on the step of every plan of a pair of degrees, from sums over all layers
# --------------------------------------------------------------------------------


class RoughBounds(NamedTuple):
    """What is known of pairs before their bounds are sharp (`CoarseBounds.sharper_s`).

    Least seconds of pipelines, `pipeline_s` [N], and of transfers, `sent_s` [N].
    """

    work: PointWork
    point: Point
    batch: Batch
    shared: SharedTimes
    gathered: Floats
    sent_s: Floats
    pipeline_s: Floats


@dataclass(slots=True)
class CoarseBounds:
    """Bounds of a point's pairs; groups of replicas are looked up once.

    They hold for all splits and orders, or where `likely` for nearly even splits with room for what
    the published order holds: what a search goes by.
    """

    cluster: Cluster
    overlap: Overlap = DEFAULT_OVERLAP
    likely: bool = False
    _groups: ReplicaGroups = field(init=False)

    def __post_init__(self) -> None:
        self._groups = ReplicaGroups(self.cluster)

    def rough(
        self, work: PointWork, point: Point, batch: Batch, *, chain: ChainWork
    ) -> RoughBounds:
        """Less than half of the work, which is often enough to see that no pair is good."""
        device, layouts = self.cluster.accelerator, batch.layouts
        shared = SharedTimes.of(work, self._groups.of_point(point, batch.groups))
        p, m = layouts.pipeline, layouts.num_microbatches
        gathered = batch.of_pairs(shared.gathered())
        held_bytes = batch.of_pairs(shared.state_bytes(work.static_bytes))
        work_s = recomputed_work_s(
            work,
            chain,
            batch,
            gathered,
            held_bytes,
            device.most_usable_bytes,
            likely=self.likely,
        )
        backward_s = np.where(np.isfinite(work_s), work_s, 0.0) - work.forward_s
        added_s, sync_s = exchanged_s(
            shared, batch, work.forward_s, backward_s, overlap=self.overlap
        )
        total_s = work_s + added_s
        bounds_s = (m * total_s + sync_s) / p
        way_s = np.full(layouts.size, work.way_s)
        behind_s = chain.behind_s[p]  # from the loss to the first backward of an average rank
        for family, own in batch.families:
            ramp_s = _ramp_s(work, chain, work_s[own], layouts.at(own), family)
            bounds_s[own] = np.maximum(bounds_s[own], ramp_s)
            if family in WHOLE_BACKWARD:
                full_s = total_s[own] / (1 - (1 - 1 / m[own]) ** p[own])
                bounds_s[own] = np.maximum(bounds_s[own], full_s)
            if family in FUSED:
                way_s[own] = work.forward_s + backward_s[own]
            if family in CUTS_HEAD:  # which may fill it
                behind_s[own] = 0.0
        sent_s = 2 * self._transfers_s(work, point, layouts)
        bounds_s = np.maximum(bounds_s, way_s + sent_s)
        back_s = np.maximum(0.0, work_s - work.longest_forward_s)
        back_s = work.forward_s + sent_s / 2 + behind_s + (m * back_s + sync_s) / p
        bounds_s = np.maximum(bounds_s, back_s)
        busiest_s = self._busiest_s(work, batch, shared, gathered, {work.main_class})
        return RoughBounds(
            work, point, batch, shared, gathered, sent_s, np.maximum(bounds_s, busiest_s)
        )

    def sharper_s(self, rough: RoughBounds) -> Floats:
        """The bounds themselves: of all classes of layers, and of what ends a step, [N]."""
        work, point, batch, shared, gathered, sent_s, pipeline_s = rough
        others = {*range(len(work.classes))} - {work.main_class}
        busiest_s = self._busiest_s(work, batch, shared, gathered, others)
        bounds_s = np.maximum(pipeline_s, busiest_s)
        ends_s = self._ends_s(work, point, batch, shared, sent_s, below_s=bounds_s)
        update_s = self._update_s(work, batch, shared)
        step_s = np.maximum(bounds_s, ends_s) + update_s
        found: Floats = step_s + self.cluster.accelerator.step_overhead_s
        return found

    def at_least_s(self, rough: RoughBounds) -> Floats:
        """Of every pair, no more than its bound, [N]."""
        found: Floats = rough.pipeline_s + self.cluster.accelerator.step_overhead_s
        return found

    def _busiest_s(
        self,
        work: PointWork,
        batch: Batch,
        shared: SharedTimes,
        gathered: Floats,
        classes: Collection[int],
    ) -> Floats:
        """Of the rank that holds most layers of one of these classes, whichever that is, [N]."""
        layer_held = shared.layer_bytes(work.layer_static_bytes)
        usable_bytes = self.cluster.accelerator.most_usable_bytes
        ramp = batch.ramp(work.shares)
        held_at_once = batch.counted(_held_at_once(likely=self.likely))
        warm_up = batch.counted(PUBLISHED_WARM_UP if self.likely else WARM_UP)
        most_s = np.zeros(batch.layouts.size)
        for layer_class in classes:
            like = work.classes[layer_class]
            busiest_s = like.busiest_s(
                Rooms(usable_bytes, batch.of_pairs(layer_held[:, :, layer_class]), gathered),
                tail_of(like, shared, batch, self.overlap),
                pipeline=batch.layouts.pipeline,
                num_microbatches=batch.layouts.num_microbatches,
                held_at_once=held_at_once,
                in_flight=warm_up,
                ramp=ramp,
                to_loss_s=work.forward_s,
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
            if family in WHOLE_BACKWARD:
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

    def _update_s(self, work: PointWork, batch: Batch, shared: SharedTimes) -> Floats:
        """Of the rank with most to update: no less than the mean, nor than any layer's, [N]."""
        device, of_layers = self.cluster.accelerator, work.layer_static_bytes
        touched = shared.touched_bytes(work.static_bytes, work.trained_bytes)
        largest = shared.touched_bytes(of_layers, work.ends.first.trained_bytes).max(axis=2)
        update_s, largest_s = (
            np.array([[zero.update_time_s(b, device) for b in row] for row in rows])
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


def head_bounds_s(profile: Profile, batch: Batch) -> Floats:
    """What a head that is cut over all ranks adds to bounds on plans without it, [N].

    Each rank runs its share of it beside its stages, before its last backward, so that it is later
    by that time than bounds without any wait say; see `splits.chain`.
    """
    times_s = head_times_s(profile)[:3]
    added_s = np.zeros(batch.layouts.size)
    for family, own in batch.families:
        barriers = family_named(family).head_barriers
        if barriers:
            layouts = batch.layouts.at(own)
            passes_s = head_passes_s(*times_s, barriers=barriers)
            whole_s = head_work_s(*passes_s, layouts.num_microbatches, barriers=barriers)
            added_s[own] = whole_s / layouts.pipeline
    return added_s


# Braided orders: what a pair hides of its time, at most
# ------------------------------------------------------
# A pair takes no less than what both of its actions compute, nor than the longer of the two. F and
# I each only communicate for half of T, the time in which the layers of a stage do so in both. A
# pair takes at least (1 - φ) of their sum where φ ≥ T / 2F and φ ≥ T / 2I for all options of all
# layers, as for any sum of them; no φ is needed above 1/2. A layer that hides more than others and
# is there once is taken to take no time, which shortens no path by more than m·δ, what it computes
# or communicates in F and I of m microbatches. All else takes its whole time, so with B a bound on
# orders whose pairs run one after the other
#
#     T ≥ (1 - φ)·(B - m·δ)        T ≥ m/p · Σ (F + I + W - T)

MOST_HIDDEN: Final = 0.5


class Hidden(NamedTuple):
    """φ, δ, and the work of a microbatch over all layers with all that may hide taken off."""

    share: float
    alone_s: float
    work_s: float

    @classmethod
    def of(cls, profile: Profile) -> Hidden:
        """What pairs may hide of a profile's layers, for whatever split."""
        costs, phases = profile.costs, profile.costs.by_phase
        both_s = phases.forward_s + phases.input_grad_s + phases.recompute_s
        waits_s = np.zeros_like(both_s)
        if costs.time_by_kind_s is not None:
            waits_s = np.minimum(costs.time_by_kind_s[:, TimeKind.TENSOR_PARALLEL], both_s)
        ways_s = np.stack((phases.forward_s, phases.input_grad_s + phases.recompute_s))
        shares = np.divide(waits_s / 2, ways_s, out=np.zeros_like(ways_s), where=ways_s > 0)
        taken_s = np.maximum(ways_s, waits_s / 2).sum(axis=0)
        first = costs.class_offsets[:-1]
        of_class, longest_s = (
            np.maximum.reduceat(each, first) for each in (shares.max(axis=0), taken_s)
        )
        work_s = np.minimum.reduceat(both_s + phases.weight_grad_s - waits_s, first)
        classes = [layer.layer_class for layer in profile.structure.layers]
        count = np.bincount(classes, minlength=len(first))
        share = min(MOST_HIDDEN, float(of_class[count > 1].max(initial=0.0)) * (1 + _HAIR))
        alone = (count == 1) & (of_class > share)
        return cls(share, float(longest_s[alone].sum()), float((work_s * count).sum()))

    def bound_s(self, bound_s: Floats | float, num_microbatches: Ints | int) -> Floats | float:
        """Of braided orders, from a bound on those whose pairs run one after the other."""
        left_s = np.maximum(0.0, bound_s - num_microbatches * self.alone_s)
        return (1 - self.share) * left_s

    def limit_s(self, limit_s: float, num_microbatches: int) -> float:
        """The bound on such orders that becomes this one."""
        return limit_s / (1 - self.share) + num_microbatches * self.alone_s


# A bound whatever the order in which layers that branch are cut
# --------------------------------------------------------------


def any_order_bounds_s(question: ModelQuestion) -> Floats:
    """The least step on 0 to N devices, [N + 1], of stages that hold any layers; see `ONE_ORDER`.

    With w_l the fastest option of layer l at a microbatch of b sequences and tensor degree t, and
    g = n / t groups of devices for the B sequences of a step,

        T ≥ B / (b · g) · Σ w_l                  the groups share the work
        T ≥ B / (b · min(g, B / b)) · max w_l    some rank holds the slowest layer
        T ≥ Σ (forward_l + input gradient_l)     a microbatch passes all ranks, and comes back

    the least over the points that the question allows; infinite where no point fits.
    """
    count, batch = question.num_devices, question.workload.global_batch
    devices = np.arange(count + 1)
    found = np.full(count + 1, np.inf)
    points = dense_points(
        question.model,
        question.cluster,
        question.workload,
        question.allowed,
        question.settings,
        num_devices=count,
    )
    for point in points:
        profile = estimate_profile(question.estimator(), question, point)
        costs, phases = profile.costs, profile.costs.phases
        assert phases is not None, "profiles of the planner have phases"
        classes = [layer.layer_class for layer in profile.structure.layers]
        starts = costs.class_offsets[:-1]
        work_s = np.minimum.reduceat(costs.duration_s, starts)[classes]
        there_s = np.minimum.reduceat(phases.forward_s + phases.input_grad_s, starts)[classes]
        groups = devices // point.tensor
        with np.errstate(divide="ignore"):
            shared_s = batch / (point.microbatch_size * groups) * work_s.sum()
            replicas = np.minimum(groups, batch // point.microbatch_size)
            slowest_s = batch / (point.microbatch_size * replicas) * work_s.max()
        most = [slices_of(f, question.model.num_layers) for f in question.allowed.schedules or ()]
        passes_s = there_s.sum() / max(most, default=1)
        own_s = np.maximum(np.maximum(shared_s, slowest_s), passes_s)
        found = np.where(groups > 0, np.minimum(found, own_s), found)
    named = frozenset(question.allowed.schedules or ())
    if BRAIDED & named:
        found = found * (1 - MOST_HIDDEN)
    return found


# All pairs of a point under every schedule and ZeRO stage, one after the other, as arrays
# ----------------------------------------------------------------------------------------
# A pair comes once for each number of chunks that a rank may have under a schedule, and under each
# ZeRO stage at which it differs from others. They are counted without being made.


class Part(NamedTuple):
    """Which pairs run under a schedule and ZeRO stage."""

    schedule: Schedule
    zero_stage: int
    own: slice

    @property
    def size(self) -> int:
        """How many."""
        return int(self.own.stop - self.own.start)


class Space(NamedTuple):
    """What pairs of a point become: schedules for a chain of so many blocks, ZeRO stages, copies.

    Where state has no replicas all ZeRO stages are alike: the first stands for them.
    """

    schedules: Sequence[Schedule]
    num_blocks: int
    allowed: Allowed
    sequence_length: int = 0
    runnable: RunnableDegrees | None = None

    def num_candidates(self, point: Point, layouts: Layouts) -> int:
        """How many candidates some pairs are."""
        chunks = sum(self.chunks_at(each, layouts) for each in self.schedules)
        stages = sum(kept.astype(np.int64) for _, kept in self.by_zero_stage(point, layouts))
        return int(np.sum(chunks * stages))

    def has_candidates(self, point: Point, layouts: Layouts) -> bool:
        """Whether they are any: mostly the first schedule tells."""
        kept = np.logical_or.reduce([own for _, own in self.by_zero_stage(point, layouts)])
        return any((self.chunks_at(each, layouts)[kept] > 0).any() for each in self.schedules)

    def chunks_at(self, schedule: Schedule, layouts: Layouts) -> Ints:
        """With how many numbers of chunks each pair is legal under one of them, [N]."""
        return schedule.chunks_at(layouts, self.num_blocks, self.sequence_length)

    def of(self, families: Collection[str]) -> Space:
        """Some families alone."""
        return self._replace(schedules=[s for s in self.schedules if s.family in families])

    def without(self, families: Collection[str]) -> Space:
        """All but some families."""
        return self._replace(schedules=[s for s in self.schedules if s.family not in families])

    def by_zero_stage(self, point: Point, layouts: Layouts) -> list[tuple[int, Flags]]:
        """Which pairs are looked at under each ZeRO stage."""
        first, *others = self.allowed.zero_stages
        replicated, copies = is_replicated(point, layouts), self.allowed.state_copies
        found = [
            (first, is_worth_copying(layouts, first, copies)),
            *((zero, replicated & is_worth_copying(layouts, zero, copies)) for zero in others),
        ]
        if (own := self.runnable) is None:
            return found
        return [(zero, kept & own.runs(point, zero, layouts)) for zero, kept in found]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Pairs in all their forms, [N]; those of a schedule lie next to each other.

    `groups` [D, 4] are the kinds of their replicas (`group_kinds`), `group` [N] says which each
    pair has. `counts` [M] are their numbers of microbatches, `count` [N] says which.
    """

    layouts: Layouts
    zero_stage: Ints
    groups: Ints
    group: Ints
    counts: Ints
    count: Ints
    parts: tuple[Part, ...]
    families: tuple[tuple[str, slice], ...]

    @classmethod
    def of(cls, space: Space, point: Point, layouts: Layouts) -> Batch:
        """All forms of some pairs of one chunk per rank."""
        stages = space.by_zero_stage(point, layouts)
        numbers = np.arange(layouts.size)
        picked, chunks, parts, size = [numbers[:0]], [numbers[:0]], [], 0
        for schedule in space.schedules:
            counts, least = space.chunks_at(schedule, layouts), schedule.virtual_stages.least
            for zero_stage, kept in stages:
                own = np.where(kept, counts, 0)
                if schedule.virtual_stages.most == least:  # one number of chunks or none
                    pairs = np.flatnonzero(own)
                    before = np.arange(len(pairs))
                else:
                    pairs = np.repeat(numbers, own)
                    before = np.repeat(np.cumsum(own) - own, own)
                picked.append(pairs)
                chunks.append(least + np.arange(len(pairs)) - before)
                parts.append(Part(schedule, zero_stage, slice(size, size + len(pairs))))
                size += len(pairs)
        every = layouts.at(np.concatenate(picked))
        return cls._joined(replace(every, virtual_stages=np.concatenate(chunks)), parts)

    @classmethod
    def under(cls, schedule: Schedule, zero_stage: int, layouts: Layouts) -> Batch:
        """Some pairs as they are."""
        return cls._joined(layouts, [Part(schedule, zero_stage, slice(0, layouts.size))])

    @classmethod
    def _joined(cls, layouts: Layouts, parts: Sequence[Part]) -> Batch:
        parts = tuple(part for part in parts if part.size)
        groups, group = group_kinds(layouts)
        counts, count = np.unique(layouts.num_microbatches, return_inverse=True)
        families = []
        for family, own in groupby(parts, key=lambda part: part.schedule.family):
            first, *_, last = (*own,) * 2
            families.append((family, slice(first.own.start, last.own.stop)))
        return cls(
            layouts=layouts,
            zero_stage=np.repeat([part.zero_stage for part in parts], [p.size for p in parts]),
            groups=groups,
            group=group,
            counts=counts,
            count=count,
            parts=parts,
            families=tuple(families),
        )

    def warm_up_rooms(self, warm_up: Callable[[Ints], Ints]) -> Floats:
        """Σ 1 / w of the last x ranks and 1 / w of the one before them, 0 of none: [2, M, p + 1].

        By the numbers of microbatches, `counts`.
        """
        ranks = np.arange(1, int(self.layouts.pipeline.max(initial=0)) + 1)
        rooms = np.zeros((2, len(self.counts), len(ranks) + 1))
        shares = rooms[1, :, :-1]
        shares[:] = 1 / np.minimum(warm_up(ranks), self.counts[:, np.newaxis])
        np.cumsum(shares, axis=1, out=rooms[0, :, 1:])
        return rooms

    def of_pairs(self, table: Floats) -> Floats:
        """From a table by ZeRO stage and kind of replicas, [4, D, ...], the value of each pair."""
        found: Floats = table[self.zero_stage, self.group]
        return found

    @property
    def hiding(self) -> Floats:
        """How many microbatches may hide what a chunk exchanges once a step, [N]."""
        group = np.ones(self.layouts.size)
        for family, own in self.families:
            if family in IN_GROUPS:
                m, p = self.layouts.num_microbatches[own], self.layouts.pipeline[own]
                group[own] = np.where(m % p == 0, np.minimum(m, p), 1)
        return np.asarray(zero.group_hiding(self.zero_stage, group))

    def counted(self, known: Mapping[str, Callable[[Ints], Ints]]) -> Callable[[Ints], Ints]:
        """What is known of families by ranks from one on, for each pair [N]; 1 where nothing is."""
        ranks = np.arange(int(self.layouts.pipeline.max()) + 1)
        table = np.stack([known[f](ranks) if f in known else 0 * ranks + 1 for f in self.names])
        row = np.repeat(np.arange(len(table)), self.sizes)
        return lambda ranks: table[row, ranks]

    def ramp(self, shares: Shares) -> Ramp:
        """That of each pair's family, arrays [N]."""
        ramps = np.array([Ramp.of(family, shares) for family in self.names])
        return Ramp(*np.repeat(ramps, self.sizes, axis=0).T)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the families."""
        return tuple(family for family, _ in self.families)

    @property
    def sizes(self) -> list[int]:
        """Pairs of each family."""
        return [own.stop - own.start for _, own in self.families]


# The pairs of depth and data degree that points have, and the least that plans of each take
# ------------------------------------------------------------------------------------------
# Points of the same microbatch size and devices share their pairs. What each would take if all
# ranks worked all the time and had all memory bounds a point before its pairs are bounded
# (`Batch`).


@lru_cache(maxsize=512)  # reasons of a plan ask for the same points of many spaces
def _layouts_at(
    point: Point,
    allowed: Allowed,
    num_devices: int,
    num_blocks: int,
    global_batch: int,
    levels: tuple[NetworkLevel, ...],
) -> Layouts:
    """All pairs of a point under every order of ranks and number of copies."""
    found = layouts_of(
        point,
        allowed,
        num_devices=num_devices,
        num_blocks=num_blocks,
        num_microbatches=global_batch // point.microbatch_size,
    )
    found = with_mappings(found, allowed.mappings, point, levels)
    found = with_copies(found, allowed.state_copies, point, levels)
    return with_like_groups(found, point, levels)


@lru_cache(maxsize=512)
def _busiest_of(num_layers: int, most: int) -> Ints:
    """⌈n / p⌉ of p ranks by p up to the most, [most + 1]: to look it up beats to divide."""
    found: Ints = -(-num_layers // np.maximum(1, np.arange(most + 1)))
    return found


_Alike: TypeAlias = tuple[int, bool, int, tuple[bytes, ...]]


def _alike(point: Point, space: Space) -> _Alike:
    """What of a point decides how many candidates there are; see `is_replicated`."""
    own, stages = space.runnable, space.allowed.zero_stages
    runs = () if own is None else tuple(own.at(point, zero).tobytes() for zero in stages)
    return point.devices, point.context > 1, point.expert_devices, runs


@dataclass(slots=True)
class PointPairs:
    """Those of a question, in all schedules and ZeRO stages of its `space`."""

    question: ModelQuestion
    aim: Aim
    schedules: tuple[Schedule, ...]
    space: Space = field(init=False)
    _layouts: dict[tuple[int, int, int], Layouts] = field(default_factory=dict)
    _at_one: dict[tuple[int, int], Layouts] = field(default_factory=dict)
    _counts: dict[tuple[_Alike, tuple[int, ...]], int] = field(default_factory=dict)
    _any: dict[tuple[_Alike, int], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        asked = self.question
        blocks, length = asked.model.num_layers, asked.workload.sequence_length
        runnable = RunnableDegrees.of(asked)
        self.space = Space(self.schedules, blocks, asked.allowed, length, runnable)

    @property
    def cuts_head(self) -> bool:
        """Whether some schedule cuts the head over all ranks."""
        return self.has(CUTS_HEAD)

    def has(self, families: Collection[str]) -> bool:
        """Whether some schedule is of these families."""
        return any(schedule.family in families for schedule in self.schedules)

    def of(self, point: Point) -> Layouts:
        """All pairs of a point: of those for one sequence, whose replicas share its microbatches.

        Raises `ValueError` where its microbatches do not divide the batch.
        """
        key = (point.microbatch_size, point.devices, point.expert_devices)
        if key not in self._layouts:
            batch, size = self.question.workload.global_batch, point.microbatch_size
            if batch % size:
                raise ValueError(f"microbatches of {size} do not divide a batch of {batch}")
            every = self._of_one(point)
            own = every.at(batch // size % every.data == 0)
            self._layouts[key] = replace(own, num_microbatches=batch // size // own.data)
        return self._layouts[key]

    def _of_one(self, point: Point) -> Layouts:
        """All pairs of the point for microbatches of one sequence."""
        key = (point.devices, point.expert_devices)
        if key not in self._at_one:
            asked, own = self.question, self.question.allowed
            self._at_one[key] = _layouts_at(
                replace(point, microbatch_size=1),
                Allowed(
                    pipeline=own.pipeline,
                    data=own.data,
                    mappings=own.mappings,
                    state_copies=own.state_copies,
                ),
                asked.num_devices,
                asked.model.num_layers,
                asked.workload.global_batch,
                asked.cluster.levels,
            )
        return self._at_one[key]

    def num_candidates(self, point: Point, sizes: Sequence[int]) -> int:
        """Candidates at a point with microbatches of each of these sizes."""
        key = _alike(point, self.space), tuple(sizes)
        if key not in self._counts:
            every = joined([self.of(replace(point, microbatch_size=size)) for size in sizes])
            self._counts[key] = self.space.num_candidates(point, every)
        return self._counts[key]

    def has_candidates(self, point: Point, size: int) -> bool:
        """Whether there are any with microbatches of a size, which takes less than to count."""
        key = _alike(point, self.space), size
        if key not in self._any:
            own = replace(point, microbatch_size=size)
            self._any[key] = self.space.has_candidates(own, self.of(own))
        return self._any[key]

    def least_keys(
        self,
        point: Point,
        least: Sequence[LeastLayers],
        layouts: Layouts | None = None,
        *,
        body: PointWork | None = None,
    ) -> Floats:
        """Of every pair, or of some, if ranks worked all the time and had all memory, [N].

        Where all layers that no rank shares are priced, in `body`, a microbatch takes its way.
        """
        layouts = self.of(point) if layouts is None else layouts
        p, m = layouts.pipeline, layouts.num_microbatches
        whole_s = sum(each.time_s * each.num_layers for each in least)
        steps_s = m / p * whole_s
        if body is not None and not self.has(SLICED):
            back_s = max(0.0, whole_s - body.longest_forward_s)
            steps_s = np.maximum(steps_s, body.forward_s + m / p * back_s)
            steps_s = np.maximum(steps_s, body.way_s)
        alone_counts, most = not self.cuts_head, int(p.max(initial=1))
        for each in least:
            if each.num_layers > 1 or alone_counts:  # one that is alone may be a cut head
                of_busiest = _busiest_of(each.num_layers, most)[p]
                steps_s = np.maximum(steps_s, m * each.time_s * of_busiest)
        if self.has(BRAIDED):
            steps_s = steps_s * (1 - MOST_HIDDEN)
        steps_s = steps_s + self.question.cluster.accelerator.step_overhead_s
        return self.aim.keys(steps_s, point.devices * p * layouts.data)
