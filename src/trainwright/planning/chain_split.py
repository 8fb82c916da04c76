"""The best split under any family with one stage per rank whose orders ignore times.

All of them run w forwards, then a backward and a forward in turn; of a split backward the input
gradient I counts as such, and weight gradients W follow where the order puts them. With x a
transfer, q the way of one microbatch from the end of its forward through all later ranks and back,
and E_r the end of the last I of rank r after the rank's start:

    E_r ≥ F_r + I_r + 2·x_r + E_(r+1)
    E_r ≥ m·(F_r + I_r) + (m - k)·W_r + max(0, q - (w - 1)·F_r) + max(0, q - i·I_r - j·W_r)
    E_r ≥ rounds of w microbatches, each no shorter than F_r + I_r + q; see `split_bound`

k W come after the last I; i I and j W lie between the last forward and it. A rank ends its k W
later. See `split_bound`, which this is for 1F1B, for what follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from trainwright.planning.kind_ways import ways_of
from trainwright.planning.order_facts import fullest_rows, rank_orders
from trainwright.planning.split_bound import (
    KindTimes,
    Split,
    held_bytes,
    longest_stage,
    transfers_s,
    with_replicas,
)
from trainwright.pricing.pipeline_run import PipelineShape
from trainwright.pricing.placement import group_replicas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.cluster import Cluster
    from trainwright.plan.parallelism import Parallelism
    from trainwright.planning.order_facts import RankOrder
    from trainwright.planning.stage_kinds import StageKinds
    from trainwright.pricing.sharding import Replicas

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_HAIR = 1e-9
_FIRST_LIMITS = (1.3, 2.0)  # times the work of an average rank
_TIE = 1e-3  # how much a shorter stage counts among splits that the bound does not tell apart


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """Where a rank runs: prices and memory of its device, a cluster of one pool, and its replicas.

    Sites of one chain have kinds of the same layers.
    """

    kinds: StageKinds
    cluster: Cluster
    replicas: Replicas

    @property
    def usable_bytes(self) -> float:
        """What a plan may fill of a device."""
        return self.cluster.accelerator.usable_bytes


def best_chain_split(
    kinds: StageKinds,
    degrees: Parallelism,
    cluster: Cluster,
    *,
    family: str,
    num_microbatches: int,
    limit_s: float = math.inf,
) -> Split:
    """Like `split_bound.best_split`, for a family of `pricing.pipeline_run.TIMELESS`."""
    p = degrees.pipeline
    if kinds.num_layers < p:
        return Split(bound_s=math.inf)
    shape = PipelineShape(family=family, num_ranks=p, num_microbatches=num_microbatches)
    replicas = group_replicas(cluster.pool_of(), degrees)
    site = Site(kinds=kinds, cluster=cluster, replicas=replicas)
    transfers = transfers_s(kinds, degrees, cluster)
    return best_split_at((site,) * p, transfers, shape=shape, limit_s=limit_s)


def best_split_at(
    sites: Sequence[Site], transfers: Floats, *, shape: PipelineShape, limit_s: float = math.inf
) -> Split:
    """The same with ranks that run in different places.

    `transfers` [p, L + 1] are the seconds from each rank to the next by the layer that the next
    begins with.
    """
    p = shape.num_ranks
    rate = sum(1 / _whole_s(site.kinds) for site in sites)
    whole_s = p * shape.num_microbatches / rate
    for times in _FIRST_LIMITS:  # short stages alone, while they suffice
        tried_s = times * whole_s / p
        if times < p and tried_s < limit_s:
            found = _best_within(sites, transfers, shape, tried_s)
            if found.bound_s < tried_s:
                return found
    return _best_within(sites, transfers, shape, limit_s)


def _whole_s(kinds: StageKinds) -> float:
    return float(kinds.least_time_s[kinds.kind_of[0, kinds.num_layers]])


def _best_within(
    sites: Sequence[Site], transfers: Floats, shape: PipelineShape, limit_s: float
) -> Split:
    kinds, m = sites[0].kinds, shape.num_microbatches
    size, p = kinds.num_layers, shape.num_ranks
    places = list({id(site): site for site in sites}.values())
    longest = max(longest_stage(site.kinds, size - p + 1, limit_s / m) for site in places)
    if p * longest < size:
        return Split(bound_s=limit_s)
    first = np.arange(size)[:, np.newaxis]
    after = first + np.arange(1, longest + 1)
    inside = after <= size
    after = np.minimum(after, size)
    used, own = np.unique(np.where(inside, kinds.kind_of[first, after], 0), return_inverse=True)
    own = own.reshape(after.shape)
    rows = _row_arrays(shape)
    tables = {id(site): _kind_times(site, used, rows) for site in places}
    weight_grads_s = {id(site): _weight_grad_s(site.kinds)[used][own] for site in places}
    later = _Later(*(np.where(np.arange(size + 1) == size, 0.0, np.inf) for _ in range(3)))
    picks = np.zeros((p, size), dtype=np.int64)
    for rank, order in reversed(list(enumerate(rank_orders(shape)))):
        times, weight_grad_s = tables[id(sites[rank])], weight_grads_s[id(sites[rank])]
        own_s = _Own(
            order=order,
            forward_s=times.forward_s[rank][own],
            weight_grad_s=weight_grad_s if order.splits_backward else np.zeros_like(weight_grad_s),
            time_s=np.where(inside, times.time_s[rank][own], np.inf),
            tail_s=times.tail_s[rank][own],
            transfer_s=transfers[rank][after],
        )
        later, picks[rank] = _with_rank(later, own_s, after, num_microbatches=m)
    overhead_s = max(site.cluster.accelerator.step_overhead_s for site in places)
    bound_s = float(later.finish_s[0]) + overhead_s
    if not bound_s < limit_s:
        return Split(bound_s=limit_s)
    cuts = [0]
    for rank in range(p):
        cuts.append(cuts[-1] + 1 + int(picks[rank, cuts[-1]]))
    chosen = fastest_ways(sites, cuts, shape)
    if chosen is None:
        return Split(bound_s=bound_s)
    return Split(bound_s=bound_s, cuts=tuple(cuts), chosen=chosen)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Own:
    """One rank by its first layer and its length, [L, W]; infinite where a stage cannot be."""

    order: RankOrder
    forward_s: Floats
    weight_grad_s: Floats
    time_s: Floats
    tail_s: Floats
    transfer_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Later:
    """The least of all splits of the ranks from one on, by its first layer, [L + 1].

    The way of a microbatch through all and back; from the rank's start the end of its last input
    gradient, and of the step.
    """

    way_s: Floats
    end_s: Floats
    finish_s: Floats


def _with_rank(
    later: _Later, own: _Own, after: Ints, *, num_microbatches: int
) -> tuple[_Later, Ints]:
    feasible = np.isfinite(own.time_s) & np.isfinite(later.way_s[after])
    time_s = np.where(feasible, own.time_s, 0.0)
    handed_on_s = time_s - own.weight_grad_s
    away_s = 2 * own.transfer_s + np.where(feasible, later.way_s[after], 0.0)
    ends_s = _alone(own, time_s, handed_on_s, away_s, num_microbatches)
    ends_s = np.maximum(ends_s, handed_on_s + 2 * own.transfer_s + later.end_s[after])
    ends_s = np.where(feasible, ends_s, np.inf)
    left_s = own.order.left_weight_grads * own.weight_grad_s
    next_s = own.forward_s + own.transfer_s + later.finish_s[after]
    finishes_s = np.maximum(ends_s + left_s + own.tail_s, next_s)
    picks: Ints = (finishes_s + _TIE * num_microbatches * time_s).argmin(axis=1)
    ways_s = np.where(feasible, handed_on_s + away_s, np.inf)
    least = (np.append(each.min(axis=1), np.inf) for each in (ways_s, ends_s, finishes_s))
    return _Later(*least), picks


def _alone(
    own: _Own, time_s: Floats, handed_on_s: Floats, away_s: Floats, num_microbatches: int
) -> Floats:
    """How long a rank runs at least until its last input gradient."""
    order, m = own.order, num_microbatches
    w, input_grad_s = order.warm_up, handed_on_s - own.forward_s
    idle_s = np.maximum(0.0, away_s - (w - 1) * own.forward_s)
    if m > w:
        drained_s = order.drained * input_grad_s + order.drained_weight_grads * own.weight_grad_s
        idle_s = idle_s + np.maximum(0.0, away_s - drained_s)
    ends_s: Floats = m * time_s - order.left_weight_grads * own.weight_grad_s + idle_s
    if m > w:
        late_s = away_s - (w - 1) * handed_on_s
        rounds_s = m * handed_on_s + away_s + late_s + (m - w - 1) // w * late_s
        ends_s = np.where(late_s > 0, np.maximum(ends_s, rounds_s), ends_s)
    return ends_s


def _weight_grad_s(kinds: StageKinds) -> Floats:
    """Seconds of weight gradients by kind, [K]; the longest of any option: the rest is earlier."""
    costs = kinds.profile.costs
    assert costs.phases is not None, "an estimate has phases"
    starts = costs.class_offsets[:-1]
    longest_s: Floats = np.maximum.reduceat(costs.phases.weight_grad_s, starts)
    times_s: Floats = kinds.counts.astype(np.float64) @ longest_s
    return times_s


def _row_arrays(shape: PipelineShape) -> Floats:
    """Counts of the instants that can be the fullest, [p, rows, 3], the last repeated."""
    rows = fullest_rows(shape)
    parts = np.split(rows.rows, rows.starts[1:])
    most = max(map(len, parts))
    return np.stack([part[np.minimum(np.arange(most), len(part) - 1)] for part in parts])


def _kind_times(site: Site, used: Ints, rows: Floats) -> KindTimes:
    kinds, replicas = site.kinds, site.replicas
    held = held_bytes(kinds, replicas)[used].tolist()
    time_s = np.full((len(rows), len(used)), np.inf)
    for column, kind in enumerate(used.tolist()):
        room = site.usable_bytes - held[column]
        for level in kinds.levels_of[kind]:
            ways = ways_of(kinds, kind, level)
            beside = rows[:, :, 2:] * float(kinds.level_bytes[level])
            fits = ways.kept_bytes(rows[:, :, :2]) <= room - beside
            fitting = np.where(fits.all(axis=1), ways.time_s, np.inf).min(axis=1)
            np.minimum(time_s[:, column], fitting, out=time_s[:, column])
    forward_s = np.broadcast_to(kinds.forward_s[used], time_s.shape)
    return with_replicas(kinds, used, time_s, forward_s, replicas, site.cluster)


def fastest_ways(
    sites: Sequence[Site], cuts: Sequence[int], shape: PipelineShape
) -> tuple[tuple[int, ...], ...] | None:
    """How each stage between `cuts` runs its layers: the fastest way that fits with some room left.

    Counts of layers by row of the cost table; None where a stage does not fit.
    """
    rows, chosen = _row_arrays(shape), []
    for rank, (site, (start, after)) in enumerate(zip(sites, pairwise(cuts), strict=True)):
        kinds = site.kinds
        kind = int(kinds.kind_of[start, after])
        room = site.usable_bytes - float(held_bytes(kinds, site.replicas)[kind])
        best: tuple[float, Ints] | None = None
        for level in kinds.levels_of[kind]:
            ways = ways_of(kinds, kind, level)
            own = rows[rank : rank + 1]
            beside = own[:, :, 2:] * float(kinds.level_bytes[level])
            needed = ways.kept_bytes(own[:, :, :2]) + beside
            fitting = np.flatnonzero((needed <= room * (1 - _HAIR)).all(axis=(0, 1)))
            if len(fitting):
                way = int(fitting[np.argmin(ways.time_s[fitting])])
                if best is None or ways.time_s[way] < best[0]:
                    best = (float(ways.time_s[way]), ways.chosen[way])
        if best is None:
            return None
        chosen.append(tuple(best[1].tolist()))
    return tuple(chosen)
