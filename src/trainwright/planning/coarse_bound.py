"""Bounds on the step of every plan of a pair of degrees, from sums over all layers.

With W the work of a microbatch over all layers and ranks, m microbatches per replica, p ranks and
sync_r what rank r still exchanges after its last backward:

    any order   T ≥ m·P_r + sync_r for every rank, so T ≥ (m·W + Σ sync_r) / p
    any order   some rank holds ⌈n / p⌉ of n like layers
    any order   one microbatch passes all ranks forward, and its gradient comes back
    1F1B        T ≥ m·P_r + Σ_{i<r} P_i, so T ≥ W / (1 − (1 − 1/m)^p)

and the optimizer of the slowest rank, no faster than the mean, follows. What is exchanged costs
start + bytes · slope at the fastest of some ways, so parts cost no less than their sum.

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
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.costing.communication import fastest_s, point_to_point_time_s
from trainwright.costing.compute import memory_time_s
from trainwright.plan.overlap import DEFAULT_OVERLAP
from trainwright.plan.parallelism import Parallelism
from trainwright.planning.family_bounds import family_step_bound_s, loop_work_s
from trainwright.planning.family_split import CHAIN
from trainwright.planning.kind_costs import TOUCHED
from trainwright.planning.like_layers import Rooms, Tail
from trainwright.planning.mappings import exchanges_no_nearer
from trainwright.planning.ramps import Ramp, split_backward_s
from trainwright.planning.schedules import ONE_F_ONE_B
from trainwright.planning.v_memory import LEAST_OF_EITHER
from trainwright.pricing.placement import group_replicas
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from trainwright.cluster import Cluster, NetworkLevel
    from trainwright.planning.family_bounds import ChainWork
    from trainwright.planning.layouts import Layouts
    from trainwright.planning.like_layers import LikeLayers
    from trainwright.planning.model_space import Point
    from trainwright.planning.point_work import PointWork
    from trainwright.planning.schedules import Schedule
    from trainwright.pricing.sharding import Replicas

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_HAIR = 1 + 1e-9
# Forwards before the first backward of a rank with so many ranks from it on, at most m.
WARM_UP: Final[Mapping[str, Callable[[Ints], Ints]]] = {
    ONE_F_ONE_B: lambda ranks: ranks,
    "zb-h1": lambda ranks: ranks,
    "zb-h2": lambda ranks: 2 * ranks - 1,
    **LEAST_OF_EITHER,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shared:
    """What replicas of D kinds exchange of all layers, nothing hidden, [D]; their sizes [D, 2].

    `gather_s` is of all weights, `update_s` of those that the optimizer changes, `between_s` over
    copies of sharded state. `reduce_byte_s`, `gather_byte_s` and `between_byte_s` [D, 2] are the
    least seconds that a byte takes.
    """

    reduce_s: Floats
    gather_s: Floats
    update_s: Floats
    scatter_s: Floats
    between_s: Floats
    reduce_byte_s: Floats
    gather_byte_s: Floats
    between_byte_s: Floats
    sizes: Ints

    def nearer_and_farther(self, work: PointWork, levels: tuple[NetworkLevel, ...]) -> _Shared:
        """These, and after them the least where the same groups lie farther apart, [2·D].

        That is what their bytes take at best; nothing where levels get faster outwards.
        """
        share = 1.0 if exchanges_no_nearer(levels) else 0.0
        reduce_byte_s, gather_byte_s = share * self.reduce_byte_s, share * self.gather_byte_s
        between_byte_s = share * self.between_byte_s
        weights = work.static_bytes[:, StaticKind.WEIGHT]
        return _Shared(
            reduce_s=np.append(self.reduce_s, reduce_byte_s @ work.sync_bytes),
            gather_s=np.append(self.gather_s, gather_byte_s @ weights),
            update_s=np.append(self.update_s, gather_byte_s @ work.trained_bytes),
            scatter_s=np.append(self.scatter_s, gather_byte_s @ work.sync_bytes),
            between_s=np.append(self.between_s, between_byte_s @ work.sync_bytes),
            reduce_byte_s=np.concatenate((self.reduce_byte_s, reduce_byte_s)),
            gather_byte_s=np.concatenate((self.gather_byte_s, gather_byte_s)),
            between_byte_s=np.concatenate((self.between_byte_s, between_byte_s)),
            sizes=np.concatenate((self.sizes, self.sizes)),
        )

    def gathered(self, zero_stage: int) -> Floats:
        """How many layers' weights a device gathers at most, [D]."""
        replicas = self.sizes[:, 0]
        return 2 * (1 - 1 / replicas) if zero_stage == 3 else np.zeros(len(replicas))

    def shards(self, zero_stage: int) -> Floats:
        """Into how many parts each kind of state is cut, [D, 2, 3]."""
        parts = np.ones((len(self.sizes), 2, len(StaticKind)))
        for first_stage, kind in enumerate(_BY_ZERO, 1):
            if zero_stage >= first_stage:
                parts[:, :, kind] = self.sizes
        return parts


_BY_ZERO: Final = (StaticKind.OPTIMIZER, StaticKind.GRADIENT, StaticKind.WEIGHT)


@dataclass(slots=True)
class CoarseBounds:
    """Bounds of a point's pairs; groups of replicas are looked up once."""

    cluster: Cluster
    _groups: dict[tuple[int, ...], Replicas] = field(default_factory=dict)
    _last: tuple[PointWork, int, Ints, _Shared] | None = None

    def bounds_s(
        self,
        work: PointWork,
        point: Point,
        layouts: Layouts,
        *,
        chain: ChainWork,
        zero_stage: int,
        schedule: Schedule,
    ) -> Floats:
        """The bound of every pair, shape [N]."""
        device = self.cluster.accelerator
        base = int(layouts.copies.max(initial=1)) + 1
        groups, index = np.unique(layouts.data * base + layouts.copies, return_inverse=True)
        shared = self._kept(work, point, groups, base)
        if layouts.inside.any():
            shared = shared.nearer_and_farther(work, self.cluster.levels)
            index = index + len(groups) * layouts.inside
        shards, family = shared.shards(zero_stage), schedule.family
        p, m = layouts.pipeline, layouts.num_microbatches
        gathered = shared.gathered(zero_stage)[index]
        held_bytes = (work.static_bytes / shards).sum(axis=(1, 2))[index]
        held_bytes = held_bytes + _beside_bytes(work, p, gathered, family)
        room_bytes = p * device.usable_bytes - held_bytes
        if family in WARM_UP:
            room_bytes = _room_in_warm_up(p, m, held_bytes, device.usable_bytes, family)
        work_s = work.trade.least_s(room_bytes)
        if schedule.family == "interleaved":
            chunks = layouts.virtual_stages
            looped_s = loop_work_s(chain, pipeline=p, virtual_stages=chunks, room_bytes=room_bytes)
            work_s = np.maximum(work_s, looped_s)
        backward_s = np.where(np.isfinite(work_s), work_s, 0.0) - work.forward_s
        added_s, sync_s = _exchanged(shared, index, zero_stage, work.forward_s, backward_s)
        total_s = work_s + added_s
        bounds_s = (m * total_s + sync_s) / p
        layer_held = np.tensordot(1 / shards, work.layer_static_bytes, axes=([1, 2], [1, 2]))
        ramp = Ramp.of(family, work.shares)
        for like, held in zip(work.classes, layer_held[index].T, strict=True):
            busiest_s = like.busiest_s(
                Rooms(device.usable_bytes, held, gathered),
                _tail(like, shared, index, zero_stage),
                pipeline=p,
                num_microbatches=m,
                in_flight=WARM_UP.get(family),
                ramp=ramp,
            )
            bounds_s = np.maximum(bounds_s, busiest_s)
        for ramp_s in (
            family_step_bound_s(chain, family=family, pipeline=p, num_microbatches=m),
            split_backward_s(work.shares, work_s, family=family, pipeline=p, num_microbatches=m),
        ):
            bounds_s = np.maximum(bounds_s, ramp_s)
        way_s: float | Floats = work.way_s
        if family == ONE_F_ONE_B:
            bounds_s = np.maximum(bounds_s, total_s / (1 - (1 - 1 / m) ** p))
            way_s = work.forward_s + backward_s
        bounds_s = np.maximum(bounds_s, way_s + 2 * self._transfers_s(work, point, layouts))
        written = work.static_bytes @ TOUCHED + work.trained_bytes
        touched = written / shards[:, :, StaticKind.OPTIMIZER]
        update_s = np.array(
            [memory_time_s(b, device) if b else 0.0 for b in touched.sum(axis=1).tolist()]
        )
        found: Floats = bounds_s + update_s[index] / p + device.step_overhead_s
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

    def _kept(self, work: PointWork, point: Point, groups: Ints, base: int) -> _Shared:
        """That of the point that was asked for last is kept for its other schedules.

        A group is its data degree times `base`, and the copies of its state.
        """
        last = self._last
        if last is None or last[:2] != (work, base) or not np.array_equal(last[2], groups):
            last = self._last = (work, base, groups, self._shared(work, point, groups, base))
        return last[3]

    def _shared(self, work: PointWork, point: Point, keys: Ints, base: int) -> _Shared:
        weights = work.static_bytes[:, StaticKind.WEIGHT].tolist()
        trained = work.trained_bytes.tolist()
        sync = work.sync_bytes.tolist()
        groups = [self._replicas(point, *divmod(key, base)) for key in keys.tolist()]
        return _Shared(
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


def _exchanged(
    shared: _Shared, index: Ints, zero_stage: int, forward_s: float, backward_s: Floats
) -> tuple[Floats, Floats]:
    """Of all ranks: what data parallelism adds per microbatch, and after the last one, [N]."""
    under_s = DEFAULT_OVERLAP.gradients * backward_s
    gather_s = (shared.gather_s if zero_stage == 3 else shared.update_s)[index]
    scatter_s, between_s = shared.scatter_s[index], shared.between_s[index]
    gathered_s = np.maximum(0.0, gather_s - DEFAULT_OVERLAP.parameters * forward_s)
    scattered_s = np.maximum(0.0, scatter_s - under_s)
    none_s = np.zeros_like(under_s)
    # After scattering of every microbatch, which may leave all of what hides to it.
    reduced_s = np.maximum(0.0, between_s - under_s)
    match zero_stage:
        case 0:
            return none_s, np.maximum(0.0, shared.reduce_s[index] - under_s)
        case 1:
            return none_s, np.maximum(0.0, scatter_s + between_s - under_s) + gathered_s
        case 2:
            return scattered_s, gathered_s + reduced_s
        case _:
            return gathered_s + np.maximum(0.0, gather_s + scatter_s - under_s), reduced_s


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


def _beside_bytes(work: PointWork, p: Ints, gathered: Floats, family: str) -> Floats:
    """Transients and gathered weights of all ranks at the first backward of each, [N].

    A rank of several chunks keeps all of them when the last begins, whose transients those are.
    """
    transients = work.transients.with_largest if family in CHAIN else work.transients.anywhere
    beside: Floats = transients[p] + np.minimum(1.0, gathered) * work.weights.with_largest[p]
    return beside


def _tail(like: LikeLayers, shared: _Shared, index: Ints, zero_stage: int) -> Tail:
    """What a rank with some of these layers exchanges after the last microbatch, at least."""
    sync, gather = np.array(like.sync_bytes), np.array(like.gather_bytes)
    under_backward_s = DEFAULT_OVERLAP.gradients * like.longest.backward_s
    between_s = (shared.between_byte_s @ sync)[index]
    scattered = ((shared.gather_byte_s @ sync)[index] + between_s, under_backward_s)
    gathered = (
        (shared.gather_byte_s @ gather)[index],
        DEFAULT_OVERLAP.parameters * like.longest.forward_s,
    )
    match zero_stage:
        case 0:
            return Tail((((shared.reduce_byte_s @ sync)[index], under_backward_s),))
        case 1:
            return Tail((scattered, gathered))
        case 2:
            return Tail((gathered, (between_s, under_backward_s)))
        case _:
            return Tail(((between_s, under_backward_s),))


def _byte_s(ways: tuple[tuple[float, float], ...]) -> float:
    return min((byte_s for _, byte_s in ways), default=0.0)


def _both_s(lines: tuple[tuple[tuple[float, float], ...], ...], sizes: list[float]) -> float:
    return sum(fastest_s(ways, size) for ways, size in zip(lines, sizes, strict=True) if size > 0)
