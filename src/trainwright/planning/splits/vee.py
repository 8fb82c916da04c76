"""What one candidate asks of the peel (`native/chain/peel.hpp`): V placement, cut from both ends.

Rank r owns stages r and 2p-1-r. A family orders a V by the times of its stages, and what its order
holds is known only then. So bounds assume no more than any order does: a rank holds at one instant
what the family promises, and each activation as long as its microbatch takes from there to the loss
and back.
Splits are looked for with room for what the published order of the family holds
(`question.families`), nearly even ones first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright._native import _core
from trainwright.cluster import Cluster
from trainwright.planning.bounds.stages import (
    LayerTimes,
    PackedFronts,
    Sharing,
    StageKinds,
    StageLengths,
    StagePairs,
    busiest_work_s,
    held_static_bytes,
    least_work_s,
    nearly_even,
    optimizer_s,
    packed_fronts,
    slowest_s,
)
from trainwright.planning.question import layouts
from trainwright.planning.splits.chain import CutsAndRows, Site, Split, longest_stage
from trainwright.plans.status import Objective
from trainwright.profile import StaticKind
from trainwright.scheduling.bounds import LeastCosts, best_bound
from trainwright.step.pipeline import placement_of
from trainwright.step.predict import Layout, StepWork, pipeline_times, sharing_times
from trainwright.step.zero import RankState, Replicas, optimizer_time_s

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints
    from trainwright.planning.splits.types import SplitQuestion


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VProblem:
    """One candidate, prepared for the peel. `limit_s` is on the pipeline, without `overhead_s`.

    `floor_s` is the work of the busiest rank, whatever it waits for and however much memory it has.
    """

    kinds: StageKinds
    kinds_of_rank: tuple[StageKinds, ...]
    kind_offset: Ints
    fronts: PackedFronts
    tail_s: Floats
    times: LayerTimes
    around: _Around
    num_ranks: int
    family: str
    num_microbatches: int
    usable_bytes: float
    gathered_share: float
    by_kind: _core.PeelKinds
    transfer_s: Floats
    ranks: _Ranks
    even: StageLengths | None
    overhead_s: float
    floor_s: float
    limit_s: float

    @classmethod
    def of(
        cls,
        question: SplitQuestion,
        *,
        limit_s: float,
        exchanging: bool = True,
        is_even: bool = False,
        in_room: bool = True,
    ) -> VProblem:
        """Of steps within the limit, with what replicas add to every microbatch or without it.

        Where only nearly even splits are asked for, longer stages than theirs are left out. If not
        in the room of devices, no rank holds activations.
        """
        sites = question.ranks
        return cls.at(
            sites,
            question.least_transfers_s(range(len(sites))),
            family=question.family,
            num_microbatches=question.num_microbatches,
            limit_s=limit_s,
            exchanging=exchanging,
            is_even=is_even,
            in_room=in_room,
        )

    @classmethod
    def at(
        cls,
        sites: Sequence[Site],
        transfer_s: Floats,
        *,
        family: str,
        num_microbatches: int,
        limit_s: float,
        exchanging: bool = True,
        is_even: bool = False,
        in_room: bool = True,
    ) -> VProblem:
        """The same of ranks at sites, `transfer_s` [p - 1] between neighbours.

        Unlike sites have kinds of their own, one behind the other: those of a site follow
        `kind_offset` [p] of its ranks. No split of theirs is called nearly even.
        """
        p, m, kinds = len(sites), num_microbatches, sites[0].kinds
        overhead_s = max(site.cluster.accelerator.step_overhead_s for site in sites)
        limit_s -= overhead_s
        places = list({id(site): site for site in sites}.values())
        even = nearly_even(kinds.profile, 2 * p) if len(places) == 1 else None
        most = kinds.num_layers - 2 * p + 1
        if is_even and even is not None:
            most = min(most, int(even.most.max()) + kinds.num_layers - even.num_blocks)
        most_bytes = max(site.usable_bytes(at_most=True) for site in sites)
        made = [
            _Place.of(
                site,
                most_bytes,
                longest_stage(site.kinds, most, limit_s / m),
                exchanging=exchanging,
                in_room=in_room,
            )
            for site in places
        ]
        offset, numbers = np.zeros(0, np.int64), [id(site) for site in places]
        if len(places) == 1:
            (place,), times = made, LayerTimes.of(kinds)
            ranks, floor_s = _Ranks.of(kinds, limit_s / m), m * float(busiest_work_s(kinds)[p])
            around = _Around(*[np.zeros((0, 0))] * 4)
        else:
            place, times = _Place.joined(made), LayerTimes.fastest([s.kinds for s in places])
            ranks = _Ranks(np.zeros(0), np.zeros(0))  # how long far chunks wait is left out
            around = _Around.of([site.kinds for site in sites])
            floor_s = m * least_work_s([site.kinds for site in sites])
            size = len(kinds.counts) + 1
            offset = np.array([size * numbers.index(id(site)) for site in sites])
        return cls(
            kinds=kinds,
            kinds_of_rank=tuple(site.kinds for site in sites),
            kind_offset=offset,
            fronts=place.fronts,
            tail_s=place.tail_s,
            times=times,
            around=around,
            num_ranks=p,
            family=family,
            num_microbatches=m,
            usable_bytes=most_bytes,
            gathered_share=sites[0].replicas.gathered_layers,
            by_kind=place.by_kind,
            transfer_s=transfer_s,
            ranks=ranks,
            even=even,
            overhead_s=overhead_s,
            floor_s=floor_s,
            limit_s=limit_s,
        )

    def kind_of_stage(self, stage: int, first: int, after: int) -> int:
        """The kind of stage number `stage` of these layers, counted from the first of all sites."""
        rank = min(stage, 2 * self.num_ranks - 1 - stage)
        offset = int(self.kind_offset[rank]) if len(self.kind_offset) else 0
        return offset + int(self.kinds.kind_of[first, after])

    @property
    def are_unlike(self) -> bool:
        """Whether ranks are of several kinds of devices."""
        return len(self.kind_offset) > 0

    @property
    def chunk_s(self) -> float:
        """A microbatch of a chunk where all take as long."""
        if self.are_unlike:
            return self.floor_s / (2 * self.num_microbatches)
        return float(self.times.total_before_s[-1]) / (2 * self.num_ranks)

    @property
    def max_activations(self) -> int:
        """No rank ever holds more."""
        return layouts.MOST_ACTIVATIONS[self.family](self.num_ranks)

    def in_any_order(self) -> _core.PeelProblem:
        """All splits that fit in some order of the family."""
        held = layouts.least_in_flight(self.family, self.num_ranks, self.num_microbatches)
        return self.with_room_for(*held)

    def published(self) -> _core.PeelProblem | None:
        """Nearly even splits with room for what the published order holds; None without any."""
        return None if self.even is None else self._nearly_even(self.any_published(), self.even)

    def any_published(self) -> _core.PeelProblem:
        """All splits with that room, whether nearly even or not."""
        held = layouts.published_in_flight(self.family, self.num_ranks, self.num_microbatches)
        return self.with_room_for(*held)

    def _nearly_even(self, problem: _core.PeelProblem, even: StageLengths) -> _core.PeelProblem:
        """The problem with all other stages of a kind that cannot be run."""
        return only_stages(problem, even.stages(self.kinds.num_layers))

    def with_room_for(self, near: Floats, far: Floats) -> _core.PeelProblem:
        """All splits whose ranks have room for these counts [N, p] of their near and far stage."""
        fronts = self.fronts
        return _core.PeelProblem(
            num_ranks=self.num_ranks,
            num_microbatches=self.num_microbatches,
            max_activations=self.max_activations,
            usable_bytes=self.usable_bytes,
            gathered_share=self.gathered_share,
            floor_s=self.floor_s,
            limit_s=self.limit_s,
            weighs_ends=False,
            kind_of=self.kinds.kind_of,
            kind_offset=self.kind_offset,
            forward_before_s=self.times.forward_before_s,
            input_grad_before_s=self.times.input_grad_before_s,
            outer_forward_s=self.around.outer_forward_s,
            outer_input_grad_s=self.around.outer_input_grad_s,
            inner_forward_s=self.around.inner_forward_s,
            inner_input_grad_s=self.around.inner_input_grad_s,
            transfer_s=self.transfer_s,
            rank_time_s=self.ranks.time_s,
            rank_forward_s=self.ranks.forward_s,
            near_in_flight=self._by_first_layer(near),
            far_in_flight=self._by_first_layer(far),
            kinds=self.by_kind,
            fronts=_core.PeelFronts(
                level_offset=fronts.levels,
                transient_bytes=fronts.level_bytes,
                beside_bytes=np.zeros_like(fronts.level_bytes),  # but for one of both chunks
                point_offset=fronts.offset,
                kept_bytes=fronts.kept_bytes,
                time_s=fronts.time_s,
                tail_s=self.tail_s,
            ),
        )

    def _by_first_layer(self, held: Floats) -> Floats:
        """Counts of ranks, whatever layer their stages begin with."""
        return np.repeat(held.reshape(-1, 1), self.kinds.num_layers + 1, axis=1)


class _Place(NamedTuple):
    """All kinds of stages at one site, or at several in turn."""

    fronts: PackedFronts
    tail_s: Floats
    by_kind: _core.PeelKinds

    @classmethod
    def of(
        cls, site: Site, most_bytes: float, longest: int, *, exchanging: bool, in_room: bool
    ) -> _Place:
        """Of stages of up to `longest` layers; a smaller device than the largest holds more."""
        kinds, replicas = site.kinds, site.replicas
        sharing = Sharing.of(kinds, replicas)
        fronts = packed_fronts(kinds, longest) if in_room else PackedFronts.fastest(kinds, longest)
        by_kind = _peel_kinds(kinds, replicas, sharing, site.cluster)
        if missing := most_bytes - site.usable_bytes(at_most=True):
            by_kind = by_kind.replace(static_bytes=by_kind.static_bytes + missing / 2)
        own = _with_added(fronts, kinds, sharing) if exchanging else fronts
        return cls(own, _tail_s(fronts, kinds, replicas), by_kind)

    @classmethod
    def joined(cls, places: Sequence[_Place]) -> _Place:
        """Behind the kinds of each site there is one that cannot be run."""
        names = (
            *("forward_s", "input_grad_s", "weight_grad_s", "tail_s", "optimizer_s"),
            *("static_bytes", "weight_bytes", "largest_weight_bytes", "freed_bytes"),
        )
        by_kind = {
            name: np.concatenate([np.append(getattr(own.by_kind, name), 0.0) for own in places])
            for name in names
        }
        fronts = PackedFronts.joined([own.fronts for own in places])
        tail_s = np.concatenate([own.tail_s for own in places])
        return cls(fronts, tail_s, _core.PeelKinds(**by_kind))


class _Around(NamedTuple):
    """Seconds of all layers before one, [p, L + 1]: on the ranks outside each, and inside it."""

    outer_forward_s: Floats
    outer_input_grad_s: Floats
    inner_forward_s: Floats
    inner_input_grad_s: Floats

    @classmethod
    def of(cls, kinds_of_rank: Sequence[StageKinds]) -> _Around:
        """Of unlike ranks; where there are none outside or inside, no layer lies there."""
        p = len(kinds_of_rank)
        parts = [
            (kinds_of_rank[: r or 1], kinds_of_rank[r + 1 :] or kinds_of_rank) for r in range(p)
        ]
        outer, inner = (list(map(LayerTimes.fastest, side)) for side in zip(*parts, strict=True))
        return cls(
            *(
                np.stack([getattr(times, f"{way}_before_s") for times in side])
                for side in (outer, inner)
                for way in ("forward", "input_grad")
            )
        )


class _Ranks(NamedTuple):
    """What any rank but the first may take for a microbatch, and the most of it forwards: [N] each.

    Both ascend. The first rank has the first and the last layer.
    """

    time_s: Floats
    forward_s: Floats

    @classmethod
    def of(cls, kinds: StageKinds, limit_s: float) -> _Ranks:
        """Of two stages that together take no longer and have no more layers than there are."""
        pairs = StagePairs.within(kinds, limit_s)
        return cls(pairs.time_s, np.maximum.accumulate(pairs.forward_s))


def only_stages(problem: _core.PeelProblem, is_stage: NDArray[np.bool_]) -> _core.PeelProblem:
    """The problem with all other stages, [L, L + 1], of a kind that cannot be run."""
    assert not len(problem.kind_offset), "unlike ranks have as many such kinds"
    levels = problem.fronts.level_offset
    return problem.replace(
        kind_of=np.where(is_stage, problem.kind_of, len(levels) - 1),
        fronts=problem.fronts.replace(level_offset=np.append(levels, levels[-1])),
    )


def _peel_kinds(
    kinds: StageKinds, replicas: Replicas, sharing: Sharing, cluster: Cluster
) -> _core.PeelKinds:
    """Of stages of these replicas; kept, for families and limits ask again."""
    known = kinds.of_ranks_in_v
    if replicas not in known:
        times, static = LayerTimes.of(kinds), kinds.static_bytes
        known[replicas] = _core.PeelKinds(
            forward_s=kinds.counts @ times.forward_s,
            input_grad_s=kinds.counts @ times.input_grad_s,
            weight_grad_s=kinds.counts @ times.weight_grad_s,
            tail_s=sharing.exposed(kinds.forward_s, slowest_s(kinds)).last_s,
            optimizer_s=optimizer_s(
                static, kinds.trained_bytes, replicas, cluster, chunks_per_rank=2
            ),
            static_bytes=held_static_bytes(kinds, replicas),
            weight_bytes=static[:, :, StaticKind.WEIGHT].sum(axis=1),
            largest_weight_bytes=kinds.weight_bytes,
            freed_bytes=kinds.freed_bytes,
        )
    return known[replicas]


def _with_added(fronts: PackedFronts, kinds: StageKinds, sharing: Sharing) -> PackedFronts:
    """With what replicas add to every microbatch."""
    if sharing.adds_nothing:
        return fronts
    added_s = sharing.added_s(kinds.forward_s, fronts.kind_of_points, fronts.time_s)
    return replace(fronts, time_s=fronts.time_s + added_s)


def _tail_s(fronts: PackedFronts, kinds: StageKinds, replicas: Replicas) -> Floats:
    """What replicas exchange after the last microbatch, by point; a slower one hides more.

    Kept for the fronts that were asked for last.
    """
    known = kinds.tails.get(replicas)
    if known is None or known[0] is not fronts:
        kind = fronts.kind_of_points
        sharing = Sharing.of(kinds, replicas).at(kind)
        known = fronts, sharing.exposed(kinds.forward_s[kind], fronts.time_s).last_s
        kinds.tails[replicas] = known
    return known[1]


# The value of a game between rows and columns: how to mix columns so that the least row is most
# ----------------------------------------------------------------------------------------------
# With `values` [N, M] above 0 the mean of columns by weights w has a least row v; the largest v is
# the least mean of rows by weights y that no column exceeds (von Neumann). With y = v·x the x of
# largest sum with values' · x <= 1 are a linear program, solved by the simplex method from x = 0;
# its prices are w / v. A hundred rows and columns take milliseconds.

_GAME_HAIR: Final = 1e-9
_MOST_PIVOTS: Final = 20  # times the size of the game


class Mix(NamedTuple):
    """Weights of the columns [M], and the least row of their mean."""

    weights: Floats
    value: float


def solved(values: Floats) -> Mix:
    """The best weights; where rounding ends the method early, weights that are nearly so."""
    rows, columns = values.shape
    table = np.zeros((columns + 1, rows + columns + 1))
    table[:-1, :rows] = values.T / values.max()
    table[:-1, rows:-1] = np.eye(columns)
    table[:-1, -1] = 1.0
    table[-1, :rows] = -1.0
    for _ in range(_MOST_PIVOTS * (rows + columns)):
        enters = int(table[-1, :-1].argmin())
        if table[-1, enters] >= -_GAME_HAIR:
            break
        column = table[:-1, enters]
        grows = column > _GAME_HAIR
        if not grows.any():
            break
        ratios = np.divide(table[:-1, -1], column, out=np.full(columns, np.inf), where=grows)
        leaves = int(ratios.argmin())
        table[leaves] /= table[leaves, enters]
        others = np.arange(columns + 1) != leaves
        table[others] -= np.outer(table[others, enters], table[leaves])
    prices = np.maximum(table[-1, rows:-1], 0.0)
    weights = prices / prices.sum() if prices.sum() > 0 else np.full(columns, 1 / columns)
    return Mix(weights, float((values @ weights).min()))


# A bound on splits in V from how long activations live, whatever the order
# -------------------------------------------------------------------------
# A rank that holds no more than k chunk activations cannot run m microbatches faster than these
# leave it again (Little's law). That of stage s lives from its forward to the end of its weight
# gradient: all forwards from s to the loss and all input gradients back, with what they recompute.
# With n_r both chunks of rank r,
#
#     T >= ahead_r + (m / k)·sum over s in n_r of (W_s + sum over u >= s of (F_u + I_u)) + ends_r
#
# where the k places fill one forward after the other and are left one weight gradient after the
# other (`PeelWeights`). What other ranks recompute counts here, which no bound of a rank by itself
# sees: of V-Min with little memory it is most of the step.
#
# These are sums of times of stages, and so is what ranks take by themselves. The least
# over all splits of the largest of them is no less than the least of any mean of them, which the
# peel finds (`native/chain/peel.hpp`, `peel_weighted`). The best mean is that of a game between
# splits and sums (`solved`), solved for the splits that were met; its mean asks for the next
# one.
#
# Reference: J. Little. *A Proof for the Queuing Formula L = λW.* Operations Research 9(3), 1961.

_ROUNDS: Final = 30  # splits that a game meets at most
_NEAR: Final = 1e-4  # of the value of a game, between its bounds
_LIFETIME_HAIR: Final = 1e-9


class Sums(NamedTuple):
    """N sums of times: how often each counts, and seconds beside; see `PeelWeights`.

    `forwards`, `input_grads` and `weight_grads` [N, 2p] are by stage, `ranks` and `ends` [N, p].
    """

    forwards: Floats
    input_grads: Floats
    weight_grads: Floats
    ranks: Floats
    ends: Floats
    beside_s: Floats

    def mean(self, weights: Floats) -> Sums:
        """One sum, by weights of these."""
        return Sums(*(weights[np.newaxis] @ part for part in self))

    def of(self, times: Times) -> Floats:
        """Of one split, [N]."""
        parts = (part @ own for part, own in zip(self, times, strict=False))
        total: Floats = sum(parts, start=self.beside_s)
        return total


class Times(NamedTuple):
    """What `Sums` count, of one split."""

    forward_s: Floats
    input_grad_s: Floats
    weight_grad_s: Floats
    rank_s: Floats
    ends_s: Floats


def lifetime_bound_s(problem: _core.PeelProblem, transfer_s: Floats, *, limit_s: float) -> float:
    """No split of the peel's problem has a shorter step in seconds; cut down to the limit.

    `transfer_s` [2p - 1] is between neighbours of the chain, 0 where they share a rank.
    """
    problem = problem.replace(limit_s=limit_s, floor_s=0.0)
    p = problem.num_ranks
    sums = _sums(problem, transfer_s)
    mean, best_s, values = sums.mean(np.repeat((1 / p, 0.0), p)), 0.0, []
    for _ in range(_ROUNDS):
        least_s, times = _least_split(problem, mean)
        best_s = max(best_s, least_s * (1 - _LIFETIME_HAIR))
        if times is None or best_s >= limit_s:
            return limit_s
        values.append(sums.of(times))
        mix = solved(np.array(values))
        if mix.value <= best_s * (1 + _NEAR):
            break
        mean = sums.mean(mix.weights)
    return best_s


def _sums(problem: _core.PeelProblem, transfer_s: Floats) -> Sums:
    """What ranks take by themselves, then what their activations need."""
    p, m = problem.num_ranks, problem.num_microbatches
    places = min(problem.max_activations, 2 * m)
    ranks, stages = np.arange(p)[:, np.newaxis], np.arange(2 * p)
    far = 2 * p - 1 - ranks
    lives = (stages >= ranks).astype(np.float64) + (stages >= far)
    owned = (stages == ranks) | (stages == far)
    ahead = (stages < ranks).astype(np.float64)
    none, each = np.zeros((p, 2 * p)), np.eye(p)
    across_s = (2 * m / places * lives + ahead)[:, :-1] @ transfer_s
    return Sums(
        forwards=np.concatenate((none, m / places * lives + ahead)),
        input_grads=np.concatenate((none, m / places * lives)),
        weight_grads=np.concatenate((none, m / places * owned)),
        ranks=np.concatenate((each, np.zeros((p, p)))),
        ends=np.concatenate((np.zeros((p, p)), each)),
        beside_s=np.concatenate((np.zeros(p), across_s)),
    )


def _least_split(problem: _core.PeelProblem, mean: Sums) -> tuple[float, Times | None]:
    """The split of the least sum; none where none is within the limit."""
    forwards, input_grads, weight_grads, ranks, ends, beside_s = (part[0] for part in mean)
    weights = _core.PeelWeights(
        forwards=forwards,
        input_grads=input_grads,
        weight_grads=weight_grads,
        ranks=ranks,
        ends=ends,
    )
    found = _core.peel_weighted(problem, weights)
    if math.isinf(found.cost):
        return found.cost, None
    cuts = np.concatenate(([0], np.cumsum(np.concatenate((found.near, found.far[::-1])))))
    kinds = problem.kind_of[cuts[:-1], cuts[1:]]
    points = np.concatenate((found.near_point, found.far_point[::-1]))
    forward_s, weight_grad_s = problem.kinds.forward_s[kinds], problem.kinds.weight_grad_s[kinds]
    input_grad_s = problem.fronts.time_s[points] - forward_s - weight_grad_s
    times = Times(forward_s, input_grad_s, weight_grad_s, found.rank_s, found.ends_s)
    return found.cost + float(beside_s), times


# Bounds on the step of every split in V, whatever order of so many activations is found
# --------------------------------------------------------------------------------------

_FIRST_LIMIT: Final = 1.1  # times the work of the busiest rank
_NEXT_LIMIT: Final = 1.2  # times the last, while nothing is found below it
_LAST_LIMIT: Final = 4.0  # from there on in one go


def bound_v_splits(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """The bound of `best_v_split` alone, in half of the time: of nearly even splits."""
    problem = VProblem.of(question, limit_s=limit_s, is_even=True)
    space = problem.published()
    if space is None:
        return Split(bound_s=math.inf)
    return Split(bound_s=min(shortest_split(problem, space).cost + problem.overhead_s, limit_s))


def bound_every_v_split(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """A bound on all splits in any order of the family.

    It also weighs what ranks still exchange once the last input gradients have passed them. Splits
    that are looked for are not chosen by that: what is good for it waits more in the middle.
    """
    if is_beyond(question, limit_s):
        return Split(bound_s=limit_s)
    problem = VProblem.of(question, limit_s=limit_s)
    shortest = shortest_split(problem, problem.in_any_order().replace(weighs_ends=True))
    return Split(bound_s=min(shortest.cost + problem.overhead_s, limit_s))


def is_beyond(question: SplitQuestion, limit_s: float) -> bool:
    """Whether no split is within a limit even with plenty of memory, which is sooner known."""
    if math.isinf(limit_s):
        return False
    roomy = VProblem.of(question, limit_s=limit_s, in_room=False)
    space = roomy.in_any_order().replace(weighs_ends=True)
    return not _core.peel_reaches(space)


def bound_v_lifetimes(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """Another bound on the same splits, of all ranks together: up to a hundred times the work.

    What replicas exchange with every microbatch is left out: it need not lie on the way of one.
    """
    problem = VProblem.of(question, limit_s=limit_s, exchanging=False)
    across_s = np.concatenate((problem.transfer_s, [0.0], problem.transfer_s[::-1]))
    bound_s = lifetime_bound_s(problem.in_any_order(), across_s, limit_s=problem.limit_s)
    return Split(bound_s=bound_s + problem.overhead_s)


def shortest_split(v: VProblem, space: _core.PeelProblem) -> _core.PeelResult:
    """The bound on some splits of the problem, by ranks alone, and a split that reaches it.

    It is infinite where none of them is within the limit.
    """
    floor_s = v.floor_s
    tried_s = _FIRST_LIMIT * floor_s
    while tried_s < min(v.limit_s, _LAST_LIMIT * floor_s):
        found = _core.peel(space.replace(limit_s=tried_s))
        if math.isfinite(found.cost):
            return found
        tried_s *= _NEXT_LIMIT
    return _core.peel(space)


# The best split for V placement: rank r owns stages r and 2p-1-r, cut from both ends of the chain
# ------------------------------------------------------------------------------------------------
# Two splits are found. One is even and has room for as many activations as its family allows at
# most, so that it fits whatever order is found. The other attains the bound, with room
# for what the published order of its family holds. Which of them steps faster the simulation tells.

_LIKELY_LIMITS: Final = (1.02, 1.06)  # times a bound: the first, and from one to the next
_LAST_SPLIT_LIMIT: Final = 4.0  # times a bound
_EVEN_WITHIN: Final = 1.012  # of the shortest step, for more even chunks
_UNLIMITED: Final = 2**40


def best_v_split(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """Like `best_chain_split`, over the 2p stages of a V; the bound is on nearly even splits.

    On unlike ranks it is that of `best_uneven_v_split`.
    """
    problem = VProblem.of(question, limit_s=limit_s)
    if problem.are_unlike:
        return best_uneven_v_split(question, limit_s=limit_s)
    space = problem.published()
    if space is None:
        return Split(bound_s=math.inf)
    shortest = shortest_split(problem, space)
    bound_s = shortest.cost + problem.overhead_s
    if not bound_s < limit_s:
        return Split(bound_s=limit_s)
    _, (cuts, chosen) = _likely_split(problem, shortest.cost)
    others = (_decoded(problem, shortest),)
    return Split(bound_s=bound_s, cuts=cuts, chosen=chosen, others=others)


def best_uneven_v_split(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """Up to three splits of any lengths, most of them outside the space of `best_v_split`.

    `cuts` attains the least bound with room for what the published order holds, the next the bound
    of each rank by itself, the last of `others` is even as there. `bound_s` holds for these alone;
    at the limit there are none.
    """
    problem = VProblem.of(question, limit_s=limit_s)
    space = problem.any_published()
    shortest = shortest_split(problem, space)
    least_s = shortest.cost if math.isfinite(shortest.cost) else problem.floor_s
    likely_s, likely = _likely_split(problem, least_s)
    bound_s = min(shortest.cost, likely_s) + problem.overhead_s
    if not bound_s < limit_s:
        return Split(bound_s=limit_s)
    found = []
    if math.isfinite(shortest.cost):
        nothing = np.zeros(0)  # is known of other ranks: another split, which may step faster
        alone = shortest_split(problem, space.replace(rank_time_s=nothing, rank_forward_s=nothing))
        found = [_decoded(problem, each) for each in (shortest, alone)]
    (cuts, chosen), *others = dict.fromkeys([*found, *([likely] if likely[0] else [])])
    return Split(bound_s=bound_s, cuts=cuts, chosen=chosen, others=tuple(others))


def ways_in_v(question: SplitQuestion, cuts: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """How stages between `cuts` run with room for what the published order holds, if they fit."""
    v = VProblem.of(question, limit_s=math.inf)
    size = v.kinds.num_layers
    is_stage = np.zeros((size, size + 1), dtype=bool)
    is_stage[cuts[:-1], cuts[1:]] = True
    found = _core.peel(only_stages(v.any_published(), is_stage))
    return _decoded(v, found)[1] if math.isfinite(found.cost) else None


def attaining_splits(v: VProblem) -> list[tuple[float, CutsAndRows]]:
    """The nearly even split of least bound, that of any lengths, and the even one, with bounds.

    Those that there are within the limit, a split twice where two are the same.
    """
    found = []
    least_s = v.floor_s
    for space in (v.published(), v.any_published()):
        shortest = None if space is None else shortest_split(v, space)
        if shortest is not None and math.isfinite(shortest.cost):
            least_s = shortest.cost
            found.append((least_s + v.overhead_s, _decoded(v, shortest)))
    likely_s, likely = _likely_split(v, least_s)
    if likely[0]:
        found.append((likely_s + v.overhead_s, likely))
    return found


def _likely_split(v: VProblem, bound_s: float) -> tuple[float, CutsAndRows]:
    """An even split that fits, all transients counted, and the bound on all that would.

    None where rounding alone lets one fit.
    """
    chunk_s = v.chunk_s
    most = min(v.max_activations, 2 * v.num_microbatches)
    problem = v.with_room_for(*layouts.most_in_flight(v.num_ranks, most))
    problem = problem.replace(
        max_activations=_UNLIMITED,  # else chunks that hide waits look best
        fronts=problem.fronts.replace(beside_bytes=v.fronts.level_bytes),
    )
    first, following = _LIKELY_LIMITS
    tried_s = first * bound_s
    while tried_s < min(following * v.limit_s, _LAST_SPLIT_LIMIT * bound_s):
        least_s = _core.peel(problem.replace(limit_s=min(tried_s, v.limit_s))).cost
        if math.isfinite(least_s):
            within = problem.replace(limit_s=_EVEN_WITHIN * least_s)
            return least_s, _decoded(v, _core.peel_evenly(within, chunk_s=chunk_s))
        tried_s *= following
    return math.inf, ((), ())


def _decoded(v: VProblem, found: _core.PeelResult) -> CutsAndRows:
    sizes = [*found.near.tolist(), *reversed(found.far.tolist())]
    points = [*found.near_point.tolist(), *reversed(found.far_point.tolist())]
    cuts = (0, *accumulate(sizes))
    return cuts, rows_of(v, cuts, points)


def rows_of(
    v: VProblem, cuts: tuple[int, ...], points: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """How many layers of each stage run as each row, at points of all fronts."""
    chosen = []
    for stage, (first, after, point) in enumerate(zip(cuts, cuts[1:], points, strict=False)):
        level, place = v.fronts.place(v.kind_of_stage(stage, first, after), point)
        kinds = v.kinds_of_rank[min(stage, 2 * v.num_ranks - 1 - stage)]
        kind = int(kinds.kind_of[first, after])
        front = kinds.front(kind, kinds.levels_of[kind][level])
        chosen.append(tuple(front.chosen[place].tolist()))
    return tuple(chosen)


# A bound on the step of one split in V, whatever order of so many activations is found
# -------------------------------------------------------------------------------------
# The times of all stages are known here, so a path through forwards and input gradients bounds what
# no rank by itself does (`scheduling.bounds`). It takes a millisecond, an order ten to a hundred.

_ROUNDED_TIMES: Final = 1e-8  # orders are made for times that are rounded


def least_step_of_v_s(work: StepWork, layout: Layout) -> float:
    """No step of the layout's family in V is shorter, in seconds."""
    optimizer_s = max(
        optimizer_time_s(
            RankState.of([work.parts[part] for part in work.parts_of(rank)]),
            place.replicas,
            place.accelerator,
        )
        for rank, place in enumerate(layout.places)
    )
    return least_pipeline_of_v_s(work, layout) + optimizer_s + layout.step_overhead_s


def least_pipeline_of_v_s(work: StepWork, layout: Layout) -> float:
    """Nor is its pipeline, without the optimizer and what every step takes once."""
    shape = layout.shape
    placement = placement_of(shape)
    times = pipeline_times(work, sharing_times(work, layout), layout)
    costs = times.schedule_costs(placement)
    never = np.zeros(len(work.stages), dtype=bool)
    most = layouts.MOST_ACTIVATIONS[shape.family](shape.num_ranks)
    least = LeastCosts.of(placement, costs, max_activations=most, fused=never, recomputed=never)
    bound = best_bound(least, shape.num_microbatches, objective=Objective.MAKESPAN)
    pipeline_s = bound.value_s * (1 - _ROUNDED_TIMES)
    is_braided = shape.family in layouts.BRAIDED  # a pair takes half of the sum
    return pipeline_s / 2 if is_braided else pipeline_s
