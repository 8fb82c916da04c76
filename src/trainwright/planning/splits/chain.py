"""The best split of a chain with one stage per rank, and a bound on every other: a DP over ends.

It holds for every family whose orders ignore times. All of them run w forwards, then a backward and
a forward in turn; of a split backward the input gradient I counts as such, and weight gradients W
follow where the order puts them. With P_r = F_r + I_r + W_r the time of stage r per microbatch, x a
transfer, q the way of one microbatch from the end of its forward through all later ranks and back,
and E_r the end of the last I of rank r after the rank's start:

    E_r ≥ F_r + I_r + 2·x_r + E_(r+1)             the next rank lies between F and I
    E_r ≥ m·(F_r + I_r) + (m - k)·W_r + max(0, q - (w - 1)·F_r) + max(0, q - i·I_r - j·W_r)
    E_r ≥ rounds of w microbatches, each no shorter than F_r + I_r + q

k W come after the last I; i I and j W lie between the last forward and it, and a rank ends its k W
later. Before it waits for the first backward the rank runs w forwards, and those i and j actions
while it waits for the last one (second line; for m ≤ w without the last term). Forward n + w
follows backward n, so w microbatches take no less than F + I + q (third line). Under 1F1B w is
min(p - r, m), nothing is split, and i is w - 1. A step ends no earlier than any rank, its exposed
synchronisation and its optimizer. The least of these over all splits follows from the last rank
backwards, each stage at its fastest recomputation that fits at the order's fullest instants. The
recurrence is native (`native/chain/chain_cuts.hpp`), O(p·L·N), N the longest stage; `cuts`
has it on arrays, for cuts that are made from the first rank on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from trainwright._native import _core
from trainwright.cluster import Cluster, Hop, NetworkLevel
from trainwright.costing.communication import all_reduce_time_s, point_to_point_time_s
from trainwright.planning.bounds.stages import (
    Sharing,
    StageKinds,
    busiest_work_s,
    held_static_bytes,
    packed_ways,
    ways_of,
)
from trainwright.plans.plan import Parallelism
from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.profile import Profile, StaticKind
from trainwright.scheduling.families import family_named
from trainwright.step import zero
from trainwright.step.memory import PeakRows, peak_rows
from trainwright.step.pipeline import PipelineShape, has_cut_head, orders_of, peak_shape
from trainwright.step.stages import CutHead, RankSpacing, group_replicas
from trainwright.step.zero import Replicas

if TYPE_CHECKING:
    from trainwright.arrays import Flags, Floats, Ints
    from trainwright.planning.splits.types import SplitQuestion


# What the orders of a family that ignores times say of every rank, as counts
# ---------------------------------------------------------------------------
# Beyond some microbatches more of them change nothing but the steady middle, so a shorter step
# tells.

_F, _I, _W, _B, _R, *_ = ActionKind


class RankOrder(NamedTuple):
    """One rank with one stage: what it runs before, between and after its waits.

    `warm_up` forwards come before the first backward. Between the last forward and the last
    backward that hands on a gradient lie `drained` of these and `drained_weight_grads`; after it
    `left_weight_grads`.
    """

    warm_up: int
    drained: int
    drained_weight_grads: int
    left_weight_grads: int
    splits_backward: bool


_NO_WAIT: Final = 2**40  # forwards before the first backward


def rank_orders(shape: PipelineShape) -> tuple[RankOrder, ...]:
    """Of a family with one stage per rank; the counts hold for the shape's own microbatches.

    Where the head is cut, its passes may fill any wait, so that no rank waits for sure.
    """
    if has_cut_head(shape):
        return (RankOrder(_NO_WAIT, 0, 0, 0, splits_backward=False),) * shape.num_ranks
    return _rank_orders(peak_shape(shape))


def fullest_rows(shape: PipelineShape) -> PeakRows:
    """What ranks can hold at once; see `step.memory`."""
    return _peak_rows(peak_shape(shape))


# Shapes of all numbers of microbatches have few peaks, each told in far less than its orders.
@lru_cache(maxsize=2048)
def _rank_orders(peak: PipelineShape) -> tuple[RankOrder, ...]:
    schedule = orders_of(peak)
    return tuple(_rank_order(schedule, rank) for rank in range(peak.num_ranks))


@lru_cache(maxsize=2048)
def _peak_rows(peak: PipelineShape) -> PeakRows:
    return peak_rows(orders_of(peak))


def _rank_order(schedule: Schedule, rank: int) -> RankOrder:
    kinds = schedule.actions[schedule.rows_of(rank), 0]
    hands_on = (kinds == _I) | (kinds == _B)
    backwards = np.flatnonzero(hands_on)
    first, last = int(backwards[0]), int(backwards[-1])
    last_forward = int(np.flatnonzero(kinds == _F)[-1])
    between = slice(last_forward + 1, last)
    return RankOrder(
        warm_up=int((kinds[:first] == _F).sum()),
        drained=int(hands_on[between].sum()),
        drained_weight_grads=int((kinds[between] == _W).sum()),
        left_weight_grads=int((kinds[last + 1 :] == _W).sum()),
        splits_backward=bool((kinds == _I).any()),
    )


# What stages that hold one tensor exchange after the pipeline, as `step.predict` counts it
# -----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class TiedExchange:
    """Layers that share one tensor, and for each the bytes of its gradient.

    Of several such tensors nothing is counted: the times are then less than those of pricing.
    """

    layers: tuple[int, ...]
    gradient_bytes: tuple[float, ...]
    levels: tuple[NetworkLevel, ...]
    spacing: RankSpacing
    known: dict[tuple[int, ...], Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, question: SplitQuestion) -> TiedExchange:
        """Of a candidate."""
        profile, layers = question.kinds.profile, tuple[int, ...]()
        costs, groups = profile.costs, profile.structure.shared_parameters
        shared_bytes: tuple[float, ...] = ()
        if len(groups) == 1:
            layers = groups[0].layers
            classes = [profile.structure.layers[layer].layer_class for layer in layers]
            rows = [int(costs.class_offsets[number]) for number in classes]
            shared_bytes = tuple(costs.tied_gradient_bytes(groups[0], row) for row in rows)
        return cls(
            layers=layers,
            gradient_bytes=shared_bytes,
            levels=question.cluster.pool_of().levels,
            spacing=RankSpacing.of(question.degrees),
        )

    def times_s(self, cuts: Sequence[int]) -> Floats:
        """Seconds of every rank, [p], whose stages lie between `cuts`, stage s on rank s mod p."""
        stages = np.searchsorted(cuts, self.layers, side="right") - 1
        key = tuple(stages.tolist())
        if key not in self.known:
            self.known[key] = self._times_s(key)
        return self.known[key]

    def _times_s(self, stage_of: tuple[int, ...]) -> Floats:
        ranks = self.spacing.num_ranks
        found = np.zeros(ranks)
        holders = zero.holders_of_tied(stage_of, lambda stage: stage % ranks)
        if len(holders) < 2:
            return found
        ends = [holders[0] % ranks, holders[-1] % ranks]
        level = self.spacing.level_between(self.levels, *ends)
        if level is not None:
            hops = (Hop(level=level, ranks=len(holders)),)
            for stage in holders:
                own = self.gradient_bytes[stage_of.index(stage)]
                found[stage % ranks] += all_reduce_time_s(own, hops)
        return found


# The best split of a candidate, and how each of its stages runs
# ---------------------------------------------------------------

# The cuts, and of each stage how many layers run as each row.
CutsAndRows: TypeAlias = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]

_TIE = 1e-3  # how much a shorter stage counts among splits that the bound does not tell apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """No split of the candidate ends before `bound_s`; `cuts` is one that may reach it.

    `bound_s` is infinite where nothing fits; then, and where the bound exceeds the limit that was
    given, there are no cuts, nor where only rounding would let one fit. `chosen` counts for each
    stage the layers that run as each row. `others` are more cuts of the same candidate that may be
    as good, or fit where there are no `cuts`: only a simulation tells.
    """

    bound_s: float
    cuts: tuple[int, ...] = ()
    chosen: tuple[tuple[int, ...], ...] = ()
    others: tuple[CutsAndRows, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KindTimes:
    """Of kinds by microbatches in flight, [p, K]: seconds per microbatch, and after the last."""

    forward_s: Floats
    time_s: Floats
    tail_s: Floats


def longest_stage(kinds: StageKinds, most: int, limit_s: float) -> int:
    """Layers of the longest stage that a microbatch can pass within the limit."""
    if not math.isfinite(limit_s):
        return most
    first, longest = np.arange(kinds.num_layers), 0
    for length in range(1, most + 1):
        own = kinds.kind_of[first[: kinds.num_layers - length + 1], first[length - 1 :] + 1]
        if float(kinds.least_time_s[own].min()) > limit_s:
            break
        longest = length
    return longest


def held_bytes(kinds: StageKinds, replicas: Replicas, used: Ints) -> Floats:
    """State of one device, with weights that ZeRO-3 gathers, of the kinds `used`, their shape."""
    held = held_static_bytes(kinds, replicas, used)
    layers = replicas.gathered_layers
    whole = kinds.static_bytes[used][..., StaticKind.WEIGHT].sum(axis=-1)
    return held + zero.gathered_bytes(layers, kinds.weight_bytes[used], whole)


def with_replicas(
    kinds: StageKinds,
    used: Ints,
    time_s: Floats,
    forward_s: Floats,
    replicas: Replicas,
    cluster: Cluster,
) -> KindTimes:
    """What data parallelism adds to the kinds in use, per microbatch and at the end, [p, K]."""
    exposed = Sharing.of(kinds, replicas, used).exposed(forward_s, time_s)
    return KindTimes(
        forward_s=forward_s + exposed.forward_s,
        time_s=time_s + exposed.forward_s + exposed.backward_s,
        tail_s=exposed.last_s + updates_s(kinds, used, replicas, cluster),
    )


def updates_s(kinds: StageKinds, used: Ints, replicas: Replicas, cluster: Cluster) -> Floats:
    """Seconds of the update of the kinds in use."""
    touched, device = touched_bytes(kinds, replicas, used), cluster.accelerator
    return np.array([zero.update_time_s(b, device) for b in touched.tolist()])


def touched_bytes(kinds: StageKinds, replicas: Replicas, used: Ints) -> Floats:
    """What the update of the kinds in use reads and writes on one device."""
    return zero.touched_bytes(
        replicas.zero_stage,
        replicas.sizes,
        kinds.static_bytes[used],
        kinds.trained_bytes[used],
    )


def transfers_s(kinds: StageKinds, degrees: Parallelism, cluster: Cluster) -> Floats:
    """Seconds from each rank to the next by the layer that the next begins with, [p, L + 1]."""
    levels, spacing = cluster.pool_of().levels, RankSpacing.of(degrees)
    between = (spacing.level_between(levels, r, r + 1) for r in range(degrees.pipeline - 1))
    return transfers_over(kinds.profile, between)


def transfers_over(profile: Profile, levels: Iterable[NetworkLevel | None]) -> Floats:
    """The same over these `levels` between each rank and the next."""
    size = len(profile.structure.layers)
    crossing = np.zeros(size + 1)
    for edge in profile.structure.edges:
        if edge.target == edge.source + 1:
            crossing[edge.target] = edge.bytes
    at_level: dict[NetworkLevel, Floats] = {}
    times_s = []
    for level in levels:
        assert level is not None, "two ranks share no device"
        if level not in at_level:
            own_s = [point_to_point_time_s(b, level) for b in crossing.tolist()]
            at_level[level] = np.array([0.0, *own_s[1:size], 0.0])
        times_s.append(at_level[level])
    return np.stack([*times_s, np.zeros(size + 1)])


_CHAIN_HAIR = 1e-9  # of the room for activations, left free for rounding
_FIRST_LIMITS = (1.15, 1.4, 2.0)  # times the work of the busiest rank


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """Where a rank runs: prices and memory of its device, a cluster of one pool, and its replicas.

    Sites of one chain have kinds of the same layers. `reserved_bytes` are taken by what a rank
    holds beside its stage, of a head `head_s` before its last backward and `sync_s` after it;
    microbatches run `beside_s` longer. A stage without layers of the class `tied_to` exchanges the
    gradient of a tensor that they hold, too, which takes `tied_s`. Where `only` names classes, no
    others run.
    """

    kinds: StageKinds
    cluster: Cluster
    replicas: Replicas
    reserved_bytes: float = 0.0
    head_s: float = 0.0
    sync_s: float = 0.0
    beside_s: float = 0.0
    tied_s: float = 0.0
    tied_to: int = 0
    only: tuple[int, ...] = ()

    def usable_bytes(self, *, at_most: bool) -> float:
        """What a plan may fill of a device: surely, or `at_most`."""
        device = self.cluster.accelerator
        usable_bytes = device.most_usable_bytes if at_most else device.usable_bytes
        return usable_bytes - self.reserved_bytes


def best_chain_split(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """The split of least bound of a family whose orders read no costs.

    Stages that alone exceed `limit_s` are not looked at; a bound above it is cut down to it.
    """
    kinds, degrees, cluster = question.kinds, question.degrees, question.cluster
    p = degrees.pipeline
    if kinds.num_layers < p:
        return Split(bound_s=math.inf)
    shape = PipelineShape(
        family=question.family, num_ranks=p, num_microbatches=question.num_microbatches
    )
    replicas = group_replicas(cluster.pool_of(), degrees)
    site = Site(kinds=kinds, cluster=cluster, replicas=replicas)
    transfers = transfers_s(kinds, degrees, cluster)
    if question.head is not None:
        heads = (question.head,) * p
        return best_split_beside_head((site,) * p, heads, transfers, shape=shape, limit_s=limit_s)
    if question.hosted is not None:
        waiting = (replace(site, kinds=question.hosted),) * p
        return best_copying_split((site,) * p, waiting, transfers, shape=shape, limit_s=limit_s)
    return best_split_at((site,) * p, transfers, shape=shape, limit_s=limit_s)


def best_split_beside_head(
    sites: Sequence[Site],
    heads: Sequence[CutHead],
    transfers: Floats,
    *,
    shape: PipelineShape,
    limit_s: float = math.inf,
) -> Split:
    """Of stages that each run beside a share of the head.

    From its start to its last backward a rank runs all forwards and backwards and nearly all of its
    share (`CutHead.work_s`), h_r seconds, so that in the recurrence without waits, h the least,

        E_r ≥ m·P_r + h_r                 E_r ≥ P_r + 2·x_r + E_(r+1)

    which ends no earlier than h after that of P_r alone, and than h - Σ f_r after that of P_r + f_r
    with f_r = (h_r - h) / m. For the bound the state of the shares leaves less room; a split is
    wanted that has room for what V keeps, too.
    """
    tight, roomy = (sites_beside_heads(sites, heads, shape, kept=kept) for kept in (False, True))
    m, least_s = shape.num_microbatches, min(site.head_s for site in tight)
    left_s = limit_s - least_s

    def split(own: Sequence[Site], *, longer: bool) -> Split:
        """The bound less what it has of the stages being `longer` by f at most."""
        if not longer:
            return best_split_at(own, transfers, shape=shape, limit_s=left_s)
        alike = {id(site): (site.head_s - least_s) / m for site in own}
        added = {id(site): replace(site, beside_s=alike[id(site)]) for site in own}
        more_s = sum(alike[id(site)] for site in own)
        own = [added[id(site)] for site in own]
        found = best_split_at(own, transfers, shape=shape, limit_s=left_s + more_s)
        return replace(found, bound_s=found.bound_s - more_s)

    unlike = any(site.head_s > least_s for site in tight)
    bounds = [split(tight, longer=each) for each in ((False, True) if unlike else (False,))]
    bound_s = max(bound.bound_s for bound in bounds)
    if not (bound_s < left_s and bound_s + least_s < limit_s):
        return Split(bound_s=limit_s)
    likely = split(roomy, longer=unlike)
    bound = replace(bounds[-1], bound_s=bound_s + least_s)
    return _with_first(((likely.cuts, likely.chosen),), bound)


def sites_beside_heads(
    sites: Sequence[Site], heads: Sequence[CutHead], shape: PipelineShape, *, kept: bool
) -> list[Site]:
    """The sites less the state of their share of the head and, if `kept`, what V keeps until T.

    What it exchanges while microbatches run, and after them, is that of pricing.
    """
    barriers, made = family_named(shape.family).head_barriers, dict[tuple[int, int], Site]()
    for site, head in zip(sites, heads, strict=True):
        if (id(site), id(head)) in made:  # ranks alike are one place
            continue
        state, m = zero.RankState.of((head.share,)), shape.num_microbatches
        held = sum(zero.static_shards(state, site.replicas).kept) + head.share.opaque_bytes
        overlap = site.kinds.overlap
        (own,) = zero.data_parallel_times((head.share,), site.replicas, overlap, num_microbatches=m)
        made[id(site), id(head)] = replace(
            site,
            reserved_bytes=held + (_MOST_HEADS * head.share.saved_bytes if kept else 0.0),
            head_s=head.work_s(m, barriers, *(own.added_forward_s, own.added_backward_s)),
            sync_s=own.exposed_sync_s,
        )
    return [made[id(site), id(head)] for site, head in zip(sites, heads, strict=True)]


def best_copying_split(
    sites: Sequence[Site],
    hosted: Sequence[Site],
    transfers: Floats,
    *,
    shape: PipelineShape,
    limit_s: float = math.inf,
) -> Split:
    """Of stages whose activations are copied to the host, which may take longer than they run.

    The bound takes copies for free. Beside its split stand those of layers that wait for their own
    copies, as the sites `hosted` price them, but for the last stages, whose activations hardly wait
    for their backward.
    """
    p = shape.num_ranks
    bound = best_split_at(sites, transfers, shape=shape, limit_s=limit_s)
    waiting = best_split_at(hosted, transfers, shape=shape)
    free = fastest_ways(sites, waiting.cuts, shape) if waiting.cuts else None
    if free is None:
        return bound
    mixed = ((waiting.cuts, waiting.chosen[:k] + free[k:]) for k in range(p, -1, -1))
    return _with_first(mixed, bound)


def _with_first(first: Iterable[CutsAndRows], bound: Split) -> Split:
    """The bound of a split, with what others propose before its own cuts."""
    cuts = [each for each in (*first, (bound.cuts, bound.chosen)) if each[0]]
    if not bound.cuts or not cuts:
        return bound
    own, *others = dict.fromkeys(cuts)
    return replace(bound, cuts=own[0], chosen=own[1], others=tuple(others))


_MOST_HEADS = 2  # that a rank holds between V and T: the next V begins before


def best_split_at(
    sites: Sequence[Site], transfers: Floats, *, shape: PipelineShape, limit_s: float = math.inf
) -> Split:
    """The same with ranks that run in different places.

    `transfers` [p, L + 1] are the seconds from each rank to the next by the layer that the next
    begins with.
    """
    floor_s = shape.num_microbatches * _busiest_s(sites)
    for times in _FIRST_LIMITS:  # short stages alone, while they suffice
        tried_s = times * floor_s
        if times < shape.num_ranks and tried_s < limit_s:
            found = _best_within(sites, transfers, shape, tried_s)
            if found.bound_s < tried_s:
                return found
    return _best_within(sites, transfers, shape, limit_s)


def _busiest_s(sites: Sequence[Site]) -> float:
    """Work of an average rank; of the busiest, where all of them run in one place."""
    kinds = sites[0].kinds
    if any(site is not sites[0] for site in sites):
        return 1 / sum(1 / _whole_s(site.kinds) for site in sites)
    return float(busiest_work_s(kinds)[len(sites)])


def _whole_s(kinds: StageKinds) -> float:
    return float(kinds.least_time_s[kinds.kind_of[0, kinds.num_layers]])


def _best_within(
    sites: Sequence[Site], transfers: Floats, shape: PipelineShape, limit_s: float
) -> Split:
    tables = chain_tables(sites, transfers, shape, limit_s=limit_s)
    if tables is None:
        return Split(bound_s=limit_s)
    finish_s, lengths = _core.least_chain_cut(
        num_microbatches=shape.num_microbatches,
        tie=_TIE,
        kind_of=tables.kind_of,
        forward_s=tables.forward_s,
        weight_grad_s=tables.weight_grad_s,
        time_s=tables.time_s,
        tail_s=tables.tail_s,
        transfer_s=transfers,
        order=tables.order,
    )
    bound_s = finish_s + max(site.cluster.accelerator.step_overhead_s for site in sites)
    if not bound_s < limit_s:
        return Split(bound_s=limit_s)
    cuts = [0, *np.cumsum(lengths).tolist()]
    chosen = fastest_ways(sites, cuts, shape)
    if chosen is None:
        return Split(bound_s=bound_s)
    return Split(bound_s=bound_s, cuts=tuple(cuts), chosen=chosen)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainTables:
    """Times of the stages of up to N layers that fit, on each of p ranks.

    `kind_of` [L, N] is by first layer and length less one, -1 where no stage can be; `used` [K] are
    the kinds it counts. Seconds of a microbatch [p, K], infinite where a kind does not fit:
    `weight_grad_s` is the most of any option, 0 where backwards are fused, `tail_s` what follows
    the pipeline. `transfer_s` [p, L + 1] is by the layer that the next rank begins with, `order`
    [p, 4] the first counts of `RankOrder`.
    """

    used: Ints
    kind_of: Ints
    forward_s: Floats
    weight_grad_s: Floats
    time_s: Floats
    tail_s: Floats
    transfer_s: Floats
    order: Ints
    num_microbatches: int


def chain_tables(
    sites: Sequence[Site], transfers: Floats, shape: PipelineShape, *, limit_s: float
) -> ChainTables | None:
    """Of stages that m microbatches can pass within the limit; None if these are too short."""
    kinds, m = sites[0].kinds, shape.num_microbatches
    places = list({id(site): site for site in sites}.values())
    can_be = stages_within([site.kinds for site in sites], limit_s / m)
    if can_be is None:
        return None
    used, own = _numbered(kinds, can_be)
    rows, orders = fullest_instants(shape), rank_orders(shape)
    tables = {id(site): _kind_times(site, used, rows) for site in places}
    splits = np.array([[order.splits_backward] for order in orders])

    def of_ranks(of_site: Callable[[Site, KindTimes], Floats]) -> Floats:
        """From the table [p, K] of every place, the rows of the ranks there."""
        made = {id(site): of_site(site, tables[id(site)]) for site in places}
        if len(places) == 1:
            return made[id(places[0])]
        return np.stack([made[id(site)][rank] for rank, site in enumerate(sites)])

    return ChainTables(
        used=used,
        kind_of=own,
        forward_s=of_ranks(lambda _, times: times.forward_s),
        weight_grad_s=of_ranks(lambda site, _: _weight_grad_s(site.kinds)[used] * splits),
        time_s=of_ranks(
            lambda site, times: np.where(
                _is_barred(site, used), np.inf, times.time_s + site.beside_s
            )
        ),
        tail_s=of_ranks(
            lambda site, times: (
                times.tail_s + site.sync_s + site.tied_s * (kinds.counts[used, site.tied_to] == 0)
            )
        ),
        transfer_s=transfers,
        order=_counts_of(orders),
        num_microbatches=m,
    )


@lru_cache(maxsize=1024)
def _counts_of(orders: tuple[RankOrder, ...]) -> Ints:
    found = np.array([order[:4] for order in orders], dtype=np.int64)
    found.flags.writeable = False
    return found


def _is_barred(site: Site, used: Ints) -> Flags:
    """Which kinds hold layers that a rank does not run, [K]."""
    if not site.only:
        return np.zeros(len(used), dtype=bool)
    counts = site.kinds.counts[used]
    barred: Flags = counts.sum(axis=1) > counts[:, list(site.only)].sum(axis=1)
    return barred


def stages_within(kinds: Sequence[StageKinds], limit_s: float) -> Flags | None:
    """Which stages, by first layer and the one after the last, some split within the limit has.

    `kinds` are those of each rank. A rank begins no later than where the ranks before it come if
    each takes all that a microbatch passes within the limit, and no earlier than where those from
    it on come back to. None where the ranks do not reach.
    """
    p, size = len(kinds), kinds[0].num_layers
    limit_s *= 1 + _CHAIN_HAIR
    # Longer stages take no less time: within the limit are those up to a layer, or from one on.
    found = {}
    for number, own in {id(own): own for own in kinds}.items():
        within = _least_times_s(own) <= limit_s
        up_to, since = within.sum(axis=1) - 1, size - within[::-1].argmin(axis=0)
        found[number] = within, up_to.tolist(), np.where(within.all(axis=0), 0, since).tolist()
    spans = [found[id(own)] for own in kinds]
    latest, earliest = [0], [size]
    for rank, (_, up_to, _) in enumerate(spans):
        latest.append(min(up_to[latest[-1]], size - p + rank + 1))
    for rank in range(p - 1, -1, -1):
        earliest.append(max(spans[rank][2][earliest[-1]], rank))
    earliest.reverse()
    if any(late < early for late, early in zip(latest, earliest, strict=True)):
        return None
    can_be = np.zeros((size, size + 1), dtype=np.bool_)
    for rank, (within, _, _) in enumerate(spans):
        first = slice(earliest[rank], latest[rank] + 1)
        after = slice(earliest[rank + 1], latest[rank + 1] + 1)
        can_be[first, after] |= within[first, after]
    if (whole_from := kinds[0].whole_from) is not None:
        inside = slice(whole_from + 1, size)
        can_be[inside] = can_be[:, inside] = False
    can_be &= kinds[0].kind_of >= 0
    return can_be if can_be.any() else None


def _least_times_s(kinds: StageKinds) -> Floats:
    """Of a microbatch, by first layer and the one after the last, [L, L + 1]; 0 where empty."""
    return np.where(kinds.kind_of < 0, 0.0, kinds.least_time_s[kinds.kind_of])


def _numbered(kinds: StageKinds, can_be: Flags) -> tuple[Ints, Ints]:
    """The kinds of some stages, [K], and which each is by first layer and length less one."""
    first, after = np.nonzero(can_be)
    used, own = np.unique(kinds.kind_of[first, after], return_inverse=True)
    lengths = after - first
    table = np.full((kinds.num_layers, int(lengths.max())), -1)
    table[first, lengths - 1] = own.reshape(-1)
    return used, table


def _weight_grad_s(kinds: StageKinds) -> Floats:
    """Seconds of weight gradients by kind, [K]; the longest of any option: the rest is earlier."""
    costs = kinds.profile.costs
    starts = costs.class_offsets[:-1]
    longest_s: Floats = np.maximum.reduceat(costs.by_phase.weight_grad_s, starts)
    times_s: Floats = kinds.counts.astype(np.float64) @ longest_s
    return times_s


@lru_cache(maxsize=1024)
def fullest_instants(shape: PipelineShape) -> Floats:
    """Counts of the instants that can be the fullest, [p, rows, 3], the last repeated."""
    rows = fullest_rows(shape)
    parts = np.split(rows.rows, rows.starts[1:])
    most = max(map(len, parts))
    found = np.stack([part[np.minimum(np.arange(most), len(part) - 1)] for part in parts])
    found.flags.writeable = False
    return found


def _kind_times(site: Site, used: Ints, rows: Floats) -> KindTimes:
    kinds, replicas = site.kinds, site.replicas
    ways = packed_ways(kinds, used, apart=_live_apart(rows))
    found = _core.fitting_times_s(
        num_ranks=len(rows),
        level_offset=ways.level_offset,
        level_bytes=ways.level_bytes,
        way_offset=ways.way_offset,
        ways=ways.takes,
        room_bytes=site.usable_bytes(at_most=True) - held_bytes(kinds, replicas, used),
        rows=rows.reshape(len(rows), -1),
    )
    time_s = found.reshape(len(rows), len(used))
    forward_s = np.broadcast_to(kinds.forward_s[used], time_s.shape)
    return with_replicas(kinds, used, time_s, forward_s, replicas, site.cluster)


def _live_apart(rows: Floats) -> bool:
    """Whether other numbers of microbatches wait for input than for weight gradients."""
    return bool((rows[..., 0] != rows[..., 1]).any())


def fastest_ways(
    sites: Sequence[Site], cuts: Sequence[int], shape: PipelineShape, *, surely: bool = True
) -> tuple[tuple[int, ...], ...] | None:
    """How each stage between `cuts` runs its layers: the fastest way that fits (`fastest_way`).

    Counts of layers by row of the cost table; None where a stage does not fit.
    """
    rows, chosen = fullest_instants(shape), []
    for rank, (site, (start, after)) in enumerate(zip(sites, pairwise(cuts), strict=True)):
        kind = int(site.kinds.kind_of[start, after])
        way = fastest_way(site, kind, rows[rank], surely=surely)
        if way is None:
            return None
        chosen.append(way)
    return tuple(chosen)


def fastest_way(
    site: Site, kind: int, rows: Floats, *, surely: bool = True
) -> tuple[int, ...] | None:
    """Of one stage, where the instants [N, 3] can be the fullest; None where it does not fit.

    It fits `surely`, with some room left, or may miss the device by what sums round.
    """
    kinds = site.kinds
    room = site.usable_bytes(at_most=not surely)
    room -= float(held_bytes(kinds, site.replicas, np.array(kind)))
    room *= 1 - _CHAIN_HAIR if surely else 1.0
    best: tuple[float, Ints] | None = None
    for level in kinds.levels_of[kind]:
        ways = ways_of(kinds, kind, level, apart=_live_apart(rows))
        beside = rows[:, 2:] * float(kinds.level_bytes[level])
        needed = ways.kept_bytes(rows[:, :2]) + beside
        fitting = np.flatnonzero((needed <= room).all(axis=0))
        if len(fitting):
            way = int(fitting[np.argmin(ways.time_s[fitting])])
            if best is None or ways.time_s[way] < best[0]:
                best = (float(ways.time_s[way]), ways.chosen[way])
    return None if best is None else tuple(best[1].tolist())
