"""Bounds on the step of plans on several pools, from sums over all layers.

Pool g runs any layer at most s_g times as fast as a pool of reference, by the rows of both cost
tables; W is the least work of a microbatch there, m the microbatches of a replica, x what replicas
exchange inside a microbatch and y after the last one, each at the cheapest of the pools' networks.

Across, with p_g ranks in pool g and s the least of all s_g:

    T ≥ (m·(W + s·x) + s·y) / Σ p_g·s_g                  devices × rate
    T ≥ (W + s·x) / a_0                                  ranks start one after another
    a_r = a_(r+1) + max(0, s_r − φ·a_(r+1)) / m

for rank r has T − φ·Σ_(i<r) P_i for its m microbatches; φ is 1 where the backward is fused, else
the least share of a layer's time that is forward. Beside, with d_g replicas of p ranks in pool
g that take at least w_g per microbatch (W_g / p, or ⌈n / p⌉ of n like layers):

    Σ d_g·m_g ≥ M,   m_g ≤ (T − y/p) / w_g               so T ≥ (M + Σ d_g·y/(p·w_g)) / Σ d_g/w_g

and of n like layers across no fewer than Σ p_g·⌊u / t_g⌋ fit in u seconds. Memory makes layers
recompute as in `recompute_bound`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.plan import Plan, Stage
from trainwright.plan.overlap import DEFAULT_OVERLAP
from trainwright.planning.schedules import ONE_F_ONE_B
from trainwright.planning.warm_up import WARM_UP
from trainwright.pricing.mixed_placement import mixed_replicas
from trainwright.pricing.sharding import Replicas, data_parallel_times
from trainwright.pricing.stage_work import stage_works

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.cluster import Cluster
    from trainwright.plan.parallelism import Parallelism
    from trainwright.planning.mixed_space import Grid, MixedShelf
    from trainwright.planning.model_space import Point
    from trainwright.planning.point_work import PointWork
    from trainwright.pricing.stage_work import StageWork
    from trainwright.profile import Profile

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_HAIR: Final = 1 + 1e-9
_HALVINGS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixedWork:
    """All layers at one point in each of G pools, in their order.

    `speeds` [G, G] is how many times faster than pool i pool j may run a layer; `class_s` [G, C]
    the least seconds of a layer of each class, of which there are `counts` [C]; `forward_share` is
    that of the layer and way with the least. `exchanged` has all layers as one stage, with the
    longest windows of any pool to hide exchanges in; `usable_bytes` [G] is of a device.
    """

    cluster: Cluster
    pools: tuple[int, ...]
    works: tuple[PointWork, ...]
    speeds: Floats
    class_s: Floats
    counts: tuple[int, ...]
    forward_share: float
    exchanged: StageWork
    usable_bytes: tuple[float, ...]

    @classmethod
    def of(cls, shelf: MixedShelf, point: Point, pools: tuple[int, ...]) -> MixedWork:
        """The sums of the pools' profiles at a point."""
        profiles = [shelf.profile(pool, point) for pool in pools]
        durations = [profile.costs.duration_s for profile in profiles]
        starts = profiles[0].costs.class_offsets[:-1]
        works = tuple(shelf.work(pool, point) for pool in pools)
        return cls(
            cluster=shelf.cluster,
            pools=pools,
            works=works,
            speeds=np.array([[_speed(own, other) for other in durations] for own in durations]),
            class_s=np.array([np.minimum.reduceat(each, starts) for each in durations]),
            counts=tuple(like.num_layers for like in works[0].classes),
            forward_share=min(map(_forward_share, profiles)),
            exchanged=_exchanged(profiles),
            usable_bytes=tuple(shelf.usable_bytes(pool) for pool in pools),
        )

    def exchange_s(self, degrees: Parallelism, members: dict[int, int]) -> tuple[float, float]:
        """What no network of these replicas does faster: per microbatch, and after the last.

        Layers may lie in any of the pools, each of which has so many replicas.
        """
        groups = [mixed_replicas(self.cluster, degrees, {g: n}) for g, n in members.items()]
        return self._least_s(_cheapest(groups))

    def shared_exchange_s(
        self, degrees: Parallelism, members: dict[int, int]
    ) -> tuple[float, float]:
        """The same for replicas of every layer in all the pools together."""
        return self._least_s(mixed_replicas(self.cluster, degrees, members))

    def _least_s(self, replicas: Replicas) -> tuple[float, float]:
        (times,) = data_parallel_times(
            (self.exchanged,), replicas, DEFAULT_OVERLAP, num_microbatches=1
        )
        return times.added_forward_s + times.added_backward_s, times.exposed_sync_s

    def held_bytes(self, point: Point, replicas: Ints, zero_stage: int) -> Floats:
        """State of all layers for so many replicas in all."""
        sizes = (replicas * point.context, replicas * point.devices // point.expert_devices)
        held: Floats = np.zeros(len(replicas))
        for static, size in zip(self.works[0].static_bytes.tolist(), sizes, strict=True):
            parts = np.maximum(1, size)
            weight, gradient, optimizer = static
            held = held + weight / (parts if zero_stage >= 3 else 1)
            held = held + gradient / (parts if zero_stage >= 2 else 1)
            held = held + optimizer / (parts if zero_stage >= 1 else 1)
        return held


def across_bounds_s(
    work: MixedWork,
    point: Point,
    grid: Grid,
    *,
    microbatches: int,
    zero_stage: int,
    schedule: str,
    degrees: Parallelism,
) -> Floats:
    """Of every layout of a grid of depths by replicas, [N]; infinite where nothing fits.

    `degrees` are those of the point and ZeRO stage, for any number of replicas.
    """
    depths, m = grid.counts, microbatches // grid.shared
    room_bytes = _room_bytes(work, depths, m, schedule)
    held = work.held_bytes(point, grid.shared, zero_stage)
    p = depths.sum(axis=1)
    in_flight = np.minimum(WARM_UP[schedule](p), m)
    room_bytes = room_bytes - held / in_flight
    total_room = (depths * np.array(work.usable_bytes)).sum(axis=1) - held
    added_s, after_s = _by_replicas(work, degrees, grid.shared)
    share = 1.0 if schedule == ONE_F_ONE_B else work.forward_share
    bounds_s = np.zeros(grid.size)
    for own, speeds in enumerate(work.speeds):
        least = float(speeds.min())
        work_s = work.works[own].trade.least_s(np.minimum(room_bytes, total_room))
        work_s = work_s + least * added_s
        rate = depths @ speeds
        bounds_s = np.maximum(bounds_s, (m * work_s + least * after_s) / rate)
        bounds_s = np.maximum(bounds_s, work_s / _reached(depths, speeds, m, share))
    for layer_class, count in enumerate(work.counts):
        if count > 1:
            least_s = _undivided_s(depths, work.class_s[:, layer_class], count)
            bounds_s = np.maximum(bounds_s, m * least_s)
    return bounds_s


def beside_bounds_s(
    work: MixedWork,
    point: Point,
    grid: Grid,
    *,
    microbatches: int,
    zero_stage: int,
    schedule: str,
    degrees: Parallelism,
) -> Floats:
    """Of every layout of a grid of replicas by depth, [N]; infinite where nothing fits."""
    replicas, p = grid.counts, grid.shared
    held = work.held_bytes(point, replicas.sum(axis=1), zero_stage)
    start_s = _after_beside_s(work, degrees, replicas) / p
    whole, most = [], []
    for own, usable in enumerate(work.usable_bytes):
        whole.append(work.works[own].trade.least_s(p * usable - held))
        longest_s = np.zeros(grid.size)
        for layer_class, count in enumerate(work.counts):
            longest_s = np.maximum(longest_s, -(-count // p) * work.class_s[own, layer_class])
        most.append(longest_s)
    whole_s, most_s = np.stack(whole, axis=1), np.stack(most, axis=1)
    fits = np.isfinite(whole_s.max(axis=1))
    whole_s = np.where(fits[:, np.newaxis], whole_s, 1.0)
    share = 1.0 if schedule == ONE_F_ONE_B else work.forward_share

    def reached(limit_s: Floats) -> Floats:
        """Microbatches that all pools have done by then."""
        each = (limit_s - start_s)[:, np.newaxis] * p[:, np.newaxis] / whole_s
        each = np.minimum(each, limit_s[:, np.newaxis] / most_s)
        # T ≥ φ·W / (1 − (1 − φ/m)^p)
        left = np.clip(1 - share * whole_s / limit_s[:, np.newaxis], 0.0, None)
        each = np.minimum(each, share / (1 - left ** (1 / p[:, np.newaxis])))
        count: Floats = (replicas * np.maximum(0.0, each)).sum(axis=1)
        return count

    rate = (replicas * p[:, np.newaxis] / whole_s).sum(axis=1)
    low = microbatches / rate + start_s
    low = np.maximum(low, start_s + whole_s.max(axis=1) / p)
    high = 2 * low + 4 * whole_s.sum(axis=1)
    with np.errstate(divide="ignore"):
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            enough = reached(middle) >= microbatches
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(fits, low, np.inf)


def _after_beside_s(work: MixedWork, degrees: Parallelism, replicas: Ints) -> Floats:
    """What the replicas of all pools exchange after the last microbatch, [N]."""
    distinct, index = np.unique(replicas, axis=0, return_inverse=True)
    members = (dict(zip(work.pools, row, strict=True)) for row in distinct.tolist())
    found = np.array([work.shared_exchange_s(degrees, each)[1] for each in members])
    after_s: Floats = found[index.reshape(-1)]
    return after_s


def _speed(own_s: Floats, other_s: Floats) -> float:
    """How many times faster the other device may run a layer; rows that take no time do not say."""
    told = (own_s > 0) & (other_s > 0)
    return float((own_s[told] / other_s[told]).max(initial=1e-9)) if told.any() else 1.0


def _forward_share(profile: Profile) -> float:
    phases = profile.costs.phases
    assert phases is not None, "an estimate has phases"
    works = phases.total_s > 0
    return float((phases.forward_s[works] / phases.total_s[works]).min(initial=1.0))


def _exchanged(profiles: list[Profile]) -> StageWork:
    """All layers as one stage, in the longest windows that any pool and way offer."""
    found: list[StageWork] = []
    for profile in profiles:
        structure, costs = profile.structure, profile.costs
        for slowest in (True, False):
            options = tuple(
                costs.option_ids[_row(profile, layer.layer_class, slowest)]
                for layer in structure.layers
            )
            stage = Stage.uniform(
                structure.ids,
                options,
                data_parallel=1,
                tensor_parallel=int(costs.tensor_parallel[0]),
            )
            plan = Plan(stages=(stage,), num_microbatches=1)
            found.extend(stage_works(plan, profile, {}))
    return replace(
        found[0],
        forward_s=max(work.forward_s for work in found),
        input_grad_s=max(work.backward_s for work in found),
        weight_grad_s=0.0,
    )


def _row(profile: Profile, layer_class: int, slowest: bool) -> int:
    rows = list(profile.costs.rows_of(layer_class))
    durations = profile.costs.duration_s[rows]
    return rows[int(durations.argmax() if slowest else durations.argmin())]


def _cheapest(groups: list[Replicas]) -> Replicas:
    """Replicas that may use any way of any of the groups: parts cost no less than their sum."""
    first, *others = groups
    for group in others:
        first = replace(
            first,
            reduce=(first.reduce[0] + group.reduce[0], first.reduce[1] + group.reduce[1]),
            gather=(first.gather[0] + group.gather[0], first.gather[1] + group.gather[1]),
        )
    return first


def _by_replicas(work: MixedWork, degrees: Parallelism, data: Ints) -> tuple[Floats, Floats]:
    """What replicas exchange, by layout, [N] each."""
    distinct, index = np.unique(data, return_inverse=True)
    found = np.array(
        [work.exchange_s(degrees, dict.fromkeys(work.pools, count)) for count in distinct.tolist()]
    ).reshape(-1, 2)
    return found[index, 0], found[index, 1]


def _room_bytes(work: MixedWork, depths: Ints, m: Ints, schedule: str) -> Floats:
    """Σ U_r / w_r over the ranks of every layout: what one microbatch may keep, state aside."""
    ends = np.cumsum(depths[:, ::-1], axis=1)[:, ::-1]  # ranks from the first of a pool on
    most = int(ends.max(initial=0))
    counts, index = np.unique(m, return_inverse=True)
    shares = 1 / np.minimum(WARM_UP[schedule](np.arange(1, most + 1)), counts[:, np.newaxis])
    sums = np.pad(np.cumsum(shares, axis=1), ((0, 0), (1, 0)))
    room: Floats = np.zeros(len(m))
    for own, usable in enumerate(work.usable_bytes):
        behind = ends[:, own] - depths[:, own]
        room = room + usable * (sums[index, ends[:, own]] - sums[index, behind])
    return room


def _reached(depths: Ints, speeds: Floats, m: Ints, share: float) -> Floats:
    """a_0: the work of a microbatch that gets done per second of the step, [N]."""
    left = 1 - share / m
    found = np.zeros(len(m))
    for own in reversed(range(depths.shape[1])):
        speed = speeds[own] / share
        grown = speed - (speed - found) * left ** depths[:, own]
        found = np.where(speed > found, grown, found)
    return found


def _undivided_s(depths: Ints, class_s: Floats, count: int) -> Floats:
    """The least u with Σ p_g·⌊u / t_g⌋ ≥ count, [N]."""
    distinct, index = np.unique(depths, axis=0, return_inverse=True)
    times_s = np.unique(np.outer(np.arange(1, count + 1), class_s))
    held = np.floor(times_s[:, np.newaxis] / class_s * _HAIR).astype(np.int64)  # [U, G]
    enough = distinct @ held.T >= count  # [N, U]
    found: Floats = times_s[enough.argmax(axis=1)][index.reshape(-1)]
    return found
