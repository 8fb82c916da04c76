"""What one microbatch costs all stages together at a point, at the very least.

Recomputation trades bytes for seconds. Where only so many bytes may be kept, the least seconds of
many layers are no less than those of the convex hull of each layer's options, taken steepest first:
the linear relaxation of a knapsack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from trainwright.cluster import Accelerator, Hop
from trainwright.costing.communication import beyond_s, exchange_time_s, operator_time_s
from trainwright.costing.estimate import axis_hops
from trainwright.costing.layer import RECOMPUTABLE, RecomputeRule
from trainwright.model import Phase, layer_graph
from trainwright.model.feed_forward import FeedForward, expert_exchanges
from trainwright.planning.bounds.exchanges import ChainEnds
from trainwright.planning.question.layouts import WEIGHT_GRAD_LAG, WHOLE_BACKWARD
from trainwright.planning.question.question import ModelQuestion, Point, run_of
from trainwright.plans.configuration import Overlap
from trainwright.profile import CostTable, Profile, StaticKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats, Ints
    from trainwright.model import LayerClass, Operator, RunShape


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """The class that most layers have: how many, and what its options cost per microbatch.

    Options are those on the lower hull of bytes and seconds, fewest bytes last: `time_s` [N]
    ascends, `kept_bytes` [N] descends. `forward_s` and `transient_bytes` are the least of all.
    """

    count: int
    forward_s: float
    time_s: Floats
    kept_bytes: Floats
    static_bytes: float
    transient_bytes: float = 0.0

    @classmethod
    def of(
        cls,
        *,
        count: int,
        forward_s: float,
        time_s: Floats,
        kept_bytes: Floats,
        static: float,
        transient: float = 0.0,
    ) -> Blocks:
        """From all options of the class."""
        hull = lower_hull(kept_bytes, time_s)[::-1]
        return cls(
            count=count,
            forward_s=forward_s,
            time_s=time_s[hull],
            kept_bytes=kept_bytes[hull],
            static_bytes=static,
            transient_bytes=transient,
        )


def lower_hull(kept_bytes: Floats, time_s: Floats) -> list[int]:
    """Options on the lower hull of bytes and seconds, from the leanest to the fastest.

    Of equals, and of those on a line, the fewest.
    """
    kept, times_s = kept_bytes.tolist(), time_s.tolist()
    hull: list[int] = []
    for c in np.lexsort((time_s, kept_bytes)).tolist():
        if hull and times_s[c] >= times_s[hull[-1]]:
            continue
        while len(hull) > 1:
            a, b = hull[-2:]
            below = (times_s[c] - times_s[a]) * (kept[b] - kept[a])
            if (times_s[b] - times_s[a]) * (kept[c] - kept[a]) < below:
                break
            hull.pop()
        hull.append(c)
    return hull


# How long the rank with most of n like layers works at least, in the memory of one device
# ----------------------------------------------------------------------------------------
# Some rank holds k = ⌈n / p⌉ of them and none more, or one holds k + 1. A layer's options come in
# levels by their transient bytes, of which a device keeps the largest free.


class LongestPhases(NamedTuple):
    """The most that phases of one layer and microbatch take, with any option."""

    forward_s: float
    backward_s: float
    weight_grad_s: float


class Rooms(NamedTuple):
    """Bytes of a device and of one layer's state [N]; whose weights are gathered, in layers [N]."""

    usable_bytes: float
    state_bytes: Floats
    gathered: Floats


class Tail(NamedTuple):
    """Exchanges after the last microbatch: seconds of one layer [N], and what they hide under.

    Each line is of one collective: its own seconds, and those of a microbatch that it hides under;
    so many of them hide it as `hiding` says [N]. Another layer on the rank hides no more than it
    takes for these, so there is no need to know which there are.
    """

    lines: tuple[tuple[Floats, float], ...]
    hiding: Floats

    def after(self, held: Ints | int) -> Floats:
        """Exposed seconds of a rank that holds so many layers of the class, [N]."""
        total_s = np.zeros(1)
        for own_s, under_s in self.lines:
            total_s = total_s + held * beyond_s(own_s, under_s * self.hiding)
        return total_s

    def passed_s(self, beside_s: float) -> Floats:
        """The least of one that gets back the last microbatch; others took `beside_s` longer.

        Nothing is known of one whose chunks hide under several microbatches.
        """
        return np.where(self.hiding > 1, 0.0, np.maximum(0.0, self.after(1) - beside_s))


class LikeLayers(NamedTuple):
    """`num_layers` layers of one class: each level's bytes, and what one layer can do there.

    `longest` are the most that one layer's forward, backward and weight gradient take, `beside_s`
    how much longer the layers of other classes are than their way there and back. `sync_bytes` and
    `gather_bytes` are of dense parameters and of experts.
    """

    num_layers: int
    weight_bytes: float
    levels: tuple[tuple[float, Trade], ...]
    longest: LongestPhases
    beside_s: float
    sync_bytes: tuple[float, ...]
    gather_bytes: tuple[float, ...]

    @property
    def fastest_s(self) -> float:
        """One layer and microbatch where memory is plenty."""
        return float(self.levels[-1][1].time_s[-1])

    def busiest_s(
        self,
        rooms: Rooms,
        tail: Tail,
        *,
        pipeline: Ints,
        num_microbatches: Ints,
        held_at_once: Callable[[Ints], Ints],
        in_flight: Callable[[Ints], Ints],
        ramp: Ramp,
        to_loss_s: float,
    ) -> Floats:
        """Least step of each of N pairs; infinite where no rank can hold its layers.

        `held_at_once` gives the microbatches whose activations a rank has of all its layers at one
        instant, `in_flight` those of its warm-up, by the ranks from it on (in V up to it). Where no
        rank holds more than k, f = n - p·(k - 1) or more hold k: the first of them warms up with
        f - 1 ranks behind it, the last has f - 1 before it. What ranks before it pass back ends at
        one that holds a layer, which still synchronises it; other layers of that one
        lengthen the way by no less than what they hide but for `beside_s`. No rank goes back before
        the first loss, `to_loss_s` after the start.
        """
        n, p, m = self.num_layers, pipeline, num_microbatches
        if n == 1:
            return m * self._least_s(np.ones_like(p), 1, rooms) + tail.after(1)
        most = -(-n // p)
        full = n - p * (most - 1)
        own_s = self._least_s(most, 1, rooms)
        first_s = self._least_s(most, np.minimum(held_at_once(full), m), rooms)
        passed_s = tail.passed_s(self.beside_s)
        last_s = self._last_s(most, full, own_s, p, m, ramp)
        tail_s = tail.after(most)
        even_s = np.maximum(m * most * first_s + tail_s, last_s + passed_s)
        back_s = np.maximum(0.0, first_s - self.longest.forward_s)
        even_s = np.maximum(even_s, to_loss_s + m * most * back_s + tail_s)
        around_s = self._around_s(most, full, first_s, p, m, ramp, in_flight)
        even_s = np.maximum(even_s, around_s + passed_s)
        more_s = m * (most + 1) * self._least_s(most + 1, 1, rooms) + tail.after(most + 1)
        least_s: Floats = np.where(most < n, np.minimum(more_s, even_s), even_s)
        return least_s

    def _last_s(
        self, most: Ints, full: Ints, own_s: Floats, p: Ints, m: Ints, ramp: Ramp
    ) -> Floats:
        """By the last rank that holds most; convex in it, with a kink where it leaves all W."""
        kink = np.clip((m - 1) / ramp.step, full - 1, p - 1)
        steps_s = []
        for rank in (full - 1, kink, p - 1):
            before = self.num_layers - most - (p - 1 - rank) * (most - 1)
            left = ramp.left * np.minimum(m, 1 + ramp.step * rank)
            steps_s.append(ramp.before * before * self.fastest_s + (m - left) * most * own_s)
        least_s: Floats = np.min(steps_s, axis=0)
        return least_s

    def _around_s(
        self,
        most: Ints,
        full: Ints,
        first_s: Floats,
        p: Ints,
        m: Ints,
        ramp: Ramp,
        in_flight: Callable[[Ints], Ints],
    ) -> Floats:
        """By the first rank that holds most: all other layers run before it starts or it waits.

        Σ_{i≠r} (F_i + I_i) + m·P_r - k_r·W_r - (w_r - 1)·F_r: of k_r and w_r microbatches it runs
        weight gradients and forwards while it waits.
        """
        spent_s = np.zeros(len(most))
        for rank in (0 * p, p - full):
            left = np.where(np.asarray(ramp.left) > 0, 1 + ramp.step * rank, 0)
            before = in_flight(p - rank) - 1
            own_s = left * self.longest.weight_grad_s + before * self.longest.forward_s
            spent_s = np.maximum(spent_s, own_s)
        others_s = ramp.before * self.fastest_s * (self.num_layers - most)
        around_s: Floats = others_s + most * (m * first_s - spent_s)
        return around_s

    def _least_s(self, held: Ints, in_flight: Ints | int, rooms: Rooms) -> Floats:
        """Seconds of one layer and microbatch on a rank that holds so many, [N]."""
        beside_bytes = held * rooms.state_bytes + self.weight_bytes * np.minimum(
            held, rooms.gathered
        )
        best = np.full(len(beside_bytes), np.inf)
        for level_bytes, trade in self.levels:
            room = (rooms.usable_bytes - level_bytes - beside_bytes) / (held * in_flight)
            best = np.minimum(best, trade.least_s(room))
        return best


# How much work p ranks can do in one step of a zero-bubble order: what the ramps leave of it
# -------------------------------------------------------------------------------------------
# With F, I and W the forward, input gradient and weight gradient of a microbatch on a rank,
# together P, a rank starts after the forwards of the ranks before it, their input gradients follow
# its last one, and it may leave weight gradients of k_r microbatches until then:
#
#     T ≥ Σ_{i<r} F_i + m·P_r
#     T ≥ Σ_{i<r} (F_i + I_i) + m·P_r - k_r·W_r
#
# So in one second rank r does no more work than both leave it, where F, F + I and W are at least φ,
# σ and at most 1 - σ of all work: a recurrence over the ranks (Qi et al., ICLR 2024, for k_r).

_ALIKE: Final = 0.9  # a class with a smaller share of σ counts as no work


class Shares(NamedTuple):
    """Of the layers that do most of the work: the least φ and σ of any option.

    `others_s` is the most that the other layers take.
    """

    forward: float
    handed_on: float
    others_s: float

    @classmethod
    def of(cls, costs: CostTable, num_layers: tuple[int, ...]) -> Shares:
        """From the phases of every option; `num_layers` is by class."""
        phases, starts = costs.by_phase, costs.class_offsets[:-1]
        total_s = phases.total_s
        works = np.where(total_s > 0, total_s, 1.0)
        forward = np.minimum.reduceat(phases.forward_s / works, starts)
        handed_on = np.minimum.reduceat(1 - phases.weight_grad_s / works, starts)
        counts = np.array(num_layers)
        main = int((np.minimum.reduceat(total_s, starts) * counts).argmax())
        alike = (handed_on >= _ALIKE * handed_on[main]) & (forward >= _ALIKE * forward[main])
        slowest_s = np.maximum.reduceat(total_s, starts) * counts
        return cls(
            forward=float(forward[alike].min()),
            handed_on=float(handed_on[alike].min()),
            others_s=float(slowest_s[~alike].sum()),
        )


class Ramp(NamedTuple):
    """T ≥ `before` · Σ_{i<r} P_i + (m - `left` · k_r) · P_r with k_r = min(m, 1 + `step` · r).

    One of each, or arrays of them, [N].
    """

    before: float | Floats
    left: float | Floats
    step: float | Floats

    @classmethod
    def of(cls, family: str, shares: Shares) -> Ramp:
        """What a family makes of the work before a rank."""
        if family in WEIGHT_GRAD_LAG:
            return cls(shares.handed_on, 1 - shares.handed_on, WEIGHT_GRAD_LAG[family])
        return cls(1.0 if family in WHOLE_BACKWARD else 0.0, 0.0, 1)


def split_backward_s(
    shares: Shares, work_s: Floats, *, family: str, pipeline: Ints, num_microbatches: Ints
) -> Floats:
    """No step of a zero-bubble family is shorter; [N] of pairs whose microbatch works so long.

    A family that is none has no bound here, so 0.
    """
    if family not in WEIGHT_GRAD_LAG:
        return np.zeros(len(work_s))
    counts, index = np.unique(num_microbatches, return_inverse=True)
    done = _work_per_second(
        family, shares.forward, shares.handed_on, tuple(counts.tolist()), int(pipeline.max())
    )
    bounds_s: Floats = (work_s - shares.others_s) / done[pipeline, index]
    return bounds_s


@lru_cache(maxsize=16)
def _work_per_second(
    family: str, forward: float, handed_on: float, counts: tuple[int, ...], most_ranks: int
) -> Floats:
    """Work of a microbatch that the first p ranks can do in a step of one second, [p + 1, M]."""
    m, ranks = np.array(counts, dtype=np.float64), np.arange(most_ranks)[:, np.newaxis]
    done = np.zeros((most_ranks + 1, len(m)))
    left = m - (1 - handed_on) * np.minimum(m, 1 + WEIGHT_GRAD_LAG[family] * ranks)
    for before, own, after in zip(done, left, done[1:], strict=False):
        least = np.minimum((1 - forward * before) / m, (1 - handed_on * before) / own)
        np.add(before, np.maximum(least, 0.0), out=after)
    return done


# What one microbatch costs all stages together at a point, at the very least
# ---------------------------------------------------------------------------


class Trade(NamedTuple):
    """Corners of a convex curve: bytes kept ascending, seconds descending."""

    kept_bytes: Floats
    time_s: Floats

    def least_s(self, room_bytes: Floats) -> Floats:
        """Least seconds with so much room; infinite where that is too little for any option."""
        found: Floats = np.interp(room_bytes, self.kept_bytes, self.time_s)
        return np.where(room_bytes < self.kept_bytes[0] * (1 - 1e-9), np.inf, found)


class Spread(NamedTuple):
    """What p ranks with a layer or more need at least where each needs its largest, [L + 1] by p.

    `anywhere` counts some layer of each rank; `with_largest` the largest of all and one of each
    other rank.
    """

    anywhere: Floats
    with_largest: Floats

    @classmethod
    def of(cls, layer_bytes: Floats) -> Spread:
        """Of the needs of L layers."""
        ascending = np.sort(layer_bytes)
        anywhere = np.concatenate(([0.0], np.cumsum(ascending)))
        others = np.concatenate(([0.0], anywhere[:-1]))
        return cls(anywhere, np.where(np.arange(len(others)) > 0, ascending[-1] + others, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PointWork:
    """Least seconds and bytes of all layers, per microbatch and device of a point.

    `forward_s` and `way_s` are those of a microbatch forward, and there and back. `trade` is that
    of all layers, `classes` [C] are those of one class with `layer_static_bytes` [C, 2, 3].
    `static_bytes` [2, 3], `sync_bytes` and `trained_bytes` [2] are as in the cost table, tied
    parameters once; `edge_bytes` is the least that any two neighbours exchange. `transients` and
    `weights` say what the ranks keep free beside; `ends` what begins and ends a way.
    """

    forward_s: float
    way_s: float
    trade: Trade
    classes: tuple[LikeLayers, ...]
    shares: Shares
    transients: Spread
    weights: Spread
    layer_static_bytes: Floats
    static_bytes: Floats
    sync_bytes: Floats
    trained_bytes: Floats
    edge_bytes: float
    ends: ChainEnds

    @property
    def longest_forward_s(self) -> float:
        """The most that a microbatch takes forward, whatever the options."""
        return math.fsum(like.num_layers * like.longest.forward_s for like in self.classes)

    @property
    def main_class(self) -> int:
        """The class of layers that do most of the work."""
        times_s = [like.num_layers * like.fastest_s for like in self.classes]
        return times_s.index(max(times_s))

    @property
    def largest_layer_bytes(self) -> float:
        """What the layer that needs most keeps and needs beside for one microbatch, at least."""
        return max(
            min(beside + float(trade.kept_bytes[0]) for beside, trade in like.levels)
            for like in self.classes
            if like.num_layers
        )

    @classmethod
    def of(cls, profile: Profile) -> PointWork:
        """The sums of a priced profile."""
        costs, layers = profile.costs, profile.structure.layers
        classes = [layer.layer_class for layer in layers]
        starts = costs.class_offsets[:-1]
        phases = costs.by_phase
        forward_s = np.minimum.reduceat(phases.forward_s, starts)
        way_s = np.minimum.reduceat(phases.total_s - phases.weight_grad_s, starts)
        counts = tuple(np.bincount(classes, minlength=len(starts)).tolist())
        like = _like_layers(costs, counts)
        weights = np.array([each.weight_bytes for each in like])
        static = costs.static_bytes[starts][classes].sum(axis=0)
        sync = costs.gradient_sync_bytes[starts][classes].sum(axis=0)
        trained = costs.updated_weight_bytes[starts][classes].sum(axis=0)
        for group in profile.structure.shared_parameters:
            holder = starts[classes[group.layers[0]]]
            twice = len(group.layers) - 1
            static[0] -= twice * costs.static_bytes[holder, 0]
            sync[0] -= twice * costs.gradient_sync_bytes[holder, 0]
            trained[0] -= twice * costs.updated_weight_bytes[holder, 0]
        return cls(
            forward_s=math.fsum(forward_s[classes].tolist()),
            way_s=math.fsum(way_s[classes].tolist()),
            trade=_added([each.levels[-1][1] for each in like], counts),
            classes=like,
            shares=Shares.of(costs, counts),
            transients=Spread.of(np.minimum.reduceat(costs.transient_bytes, starts)[classes]),
            weights=Spread.of(weights[classes]),
            layer_static_bytes=costs.static_bytes[starts],
            static_bytes=np.maximum(static, 0.0),
            sync_bytes=np.maximum(sync, 0.0),
            trained_bytes=np.maximum(trained, 0.0),
            edge_bytes=min((edge.bytes for edge in profile.structure.edges), default=0.0),
            ends=ChainEnds.of(profile),
        )


def _like_layers(costs: CostTable, counts: tuple[int, ...]) -> tuple[LikeLayers, ...]:
    """What is known of each class."""
    starts, phases = costs.class_offsets[:-1], costs.by_phase
    weights = costs.static_bytes[starts, :, StaticKind.WEIGHT]
    longest = np.stack(
        [
            np.maximum.reduceat(phase_s, starts)
            for phase_s in (
                phases.forward_s,
                phases.total_s - phases.forward_s,
                phases.weight_grad_s,
            )
        ],
        axis=1,
    )
    way_s = np.minimum.reduceat(phases.total_s - phases.weight_grad_s, starts)
    excess_s = np.array(counts) * np.maximum(0.0, longest[:, :2].sum(axis=1) - way_s)
    return tuple(
        LikeLayers(
            num_layers=count,
            weight_bytes=float(weights[number].sum()),
            levels=_levels(costs, number),
            longest=LongestPhases(*longest[number].tolist()),
            beside_s=float(excess_s.sum() - excess_s[number]),
            sync_bytes=tuple(costs.gradient_sync_bytes[starts[number]].tolist()),
            gather_bytes=tuple(costs.updated_weight_bytes[starts[number]].tolist()),
        )
        for number, count in enumerate(counts)
    )


def _levels(costs: CostTable, layer_class: int) -> tuple[tuple[float, Trade], ...]:
    """Transient bytes ascending, each with the options of a class that need no more."""
    rows = np.array(costs.rows_of(layer_class))
    needed = costs.transient_bytes[rows]
    return tuple(
        (level, _trade(costs, rows[needed <= level])) for level in np.unique(needed).tolist()
    )


def _trade(costs: CostTable, rows: NDArray[np.int64]) -> Trade:
    """What some options of a class trade, from the leanest to the fastest."""
    hull = rows[lower_hull(costs.saved_bytes[rows], costs.duration_s[rows])]
    return Trade(costs.saved_bytes[hull], costs.duration_s[hull])


def _added(trades: Sequence[Trade], counts: tuple[int, ...]) -> Trade:
    """The hull of so many layers of each class: all at their leanest, then the best segments."""
    kept = math.fsum(n * t.kept_bytes[0] for t, n in zip(trades, counts, strict=True))
    time_s = math.fsum(n * t.time_s[0] for t, n in zip(trades, counts, strict=True))
    segments = [
        (n * (after[0] - before[0]), n * (after[1] - before[1]))
        for trade, n in zip(trades, counts, strict=True)
        for before, after in pairwise(zip(*trade, strict=True))
        if n
    ]
    segments.sort(key=lambda segment: segment[1] / segment[0])
    kept_bytes = kept + np.cumsum([0.0, *(size for size, _ in segments)])
    times_s = time_s + np.cumsum([0.0, *(saved for _, saved in segments)])
    return Trade(kept_bytes, times_s)


# How long the busiest rank works at least, because layers cannot be divided
# --------------------------------------------------------------------------
# With n blocks of one class, b seconds each, and other layers beside them that take as long as x_i
# blocks, p ranks that each have time for c = f + φ blocks, f whole, hold no more than p·f blocks
# less what lies on a rank beyond φ, rounded up: it costs that rank blocks. The j longest of the
# others lie on min(j, p) ranks or fewer, so for each j they cost at least
#
#     Σ_{i≤j} x_i - φ·min(j, p)
#
# The least c that leaves room for n is a bound, for any way to deal layers to ranks.

_ROUNDING = 1e-9


def undivided_work_s(class_s: Floats, counts: Ints, num_ranks: Ints) -> Floats:
    """Seconds of the busiest of p ranks, for each p in `num_ranks`.

    `counts` [C] layers of each class take at least `class_s` [C]. The class that takes most in all
    counts as blocks.
    """
    whole_s = class_s * counts
    main = int(whole_s.argmax())
    block_s = float(class_s[main])
    if block_s <= 0:
        return np.zeros(len(num_ranks))
    is_other = np.arange(len(counts)) != main
    others = np.sort(np.repeat(class_s[is_other], counts[is_other]))[::-1] / block_s
    beside = np.cumsum(others)[:, np.newaxis]
    n, p = int(counts[main]), num_ranks.astype(np.float64)
    on_ranks = np.minimum(np.arange(1, len(others) + 1)[:, np.newaxis], p)
    each, best = np.ceil(n / p), np.full(len(num_ranks), np.inf)
    while np.isinf(best).any():
        rest = ((beside - (p * each - n)) / on_ranks).max(axis=0, initial=0.0)
        best = np.where(np.isinf(best) & (rest < 1), each + rest, best)
        each = each + 1
    times_s: Floats = np.maximum(best * block_s * (1 - _ROUNDING), whole_s.sum() / p)
    return times_s


# A floor of what a microbatch costs, however large it is and however experts are dealt out
# --------------------------------------------------------------------------------
# A model with experts has dozens of ways to deal them out for each microbatch size and degrees of
# the rest. For all of them holds: what is no expert costs what it costs, experts compute at the
# best efficiency of the device, and tokens that go to other devices travel.

_PHASES = (Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)


class LeastLayers(NamedTuple):
    """Like layers: the least seconds of one for a microbatch, how many, whether they exchange."""

    time_s: float
    num_layers: int
    has_experts: bool


def least_layers(question: ModelQuestion, point: Point) -> tuple[LeastLayers, ...]:
    """Every class of layers, however the experts of `point` are dealt out.

    A smaller microbatch takes no less per sequence: operators and transfers take a fixed time and
    one for each sequence (`cluster.Saturating`), or no less than their FLOPs.
    """
    experts = question.config.experts
    pool = question.cluster.pool_of()
    if experts is not None:
        point = replace(point, expert=experts.num_experts, expert_tensor=1)
    run = _run_at(question, point)
    graph = layer_graph(question.settings.recipe.applied(question.config), run)
    hops = axis_hops(pool, tensor=point.tensor, context=point.context, expert=1, expert_tensor=1)
    overlap = question.settings.overlap
    spare = (
        1.0 if experts is None else least_share(run, experts.experts_per_token, experts.num_experts)
    )
    rules = question.recompute_rules
    return tuple(
        LeastLayers(
            time_s=_floor_s(
                layer,
                hops,
                pool.accelerator,
                run.precision.base_dtype,
                spare,
                overlap,
                rules if layer.kind in RECOMPUTABLE and layer.has_backward else (),
            ),
            num_layers=graph.layers.count(number),
            has_experts=any(map(_of_experts, layer.operators)),
        )
        for number, layer in enumerate(graph.classes)
    )


def least_share(run: RunShape, experts_per_token: int, num_experts: int) -> float:
    """Of the rows that whole experts see, what each of those who share one computes at least.

    Rows are rounded up, so with x devices to an expert ⌈a·x⌉ / x may be as few as a, of ⌈a⌉. Groups
    of several experts are more even than each alone, at best all alike.
    """
    even = replace(run, expert_loads=())
    copies = even.expert_copies(experts_per_token, num_experts)
    return copies / run.expert_rows(experts_per_token, num_experts)


def with_exchanges(
    question: ModelQuestion, point: Point, least: tuple[LeastLayers, ...]
) -> tuple[LeastLayers, ...]:
    """The layers with what their tokens travel where experts are dealt out as the point says."""
    added_s = _exchange_s(question, point)
    return tuple(
        each._replace(time_s=each.time_s + added_s) if each.has_experts else each for each in least
    )


def _floor_s(
    layer: LayerClass,
    hops: dict[str, tuple[Hop, ...]],
    device: Accelerator,
    dtype: str,
    spare: float,
    overlap: Overlap,
    rules: Sequence[RecomputeRule],
) -> float:
    """All phases of one layer; `spare` allows for tokens that other ways of dealing round up.

    Of the forward pass counts again what the least of `rules` repeats. Exchanges of a tensor group
    that may hide are left out. So is what shared experts gather again: where tokens stay in their
    group one gather serves all, and hides under the others, which take longer.
    """
    hides_tensor = overlap.tensor > 0 and "tensor" not in device.held_overlap
    total_s = 0.0
    for phase in _PHASES:
        operator_s = {
            op.name: spare * _expert_floor_s(op, phase, device, op.dtype or dtype)
            if _of_experts(op)
            else _operator_floor_s(op, phase, device, op.dtype or dtype)
            for op in layer.operators
        }
        total_s += math.fsum(operator_s.values())
        if phase is Phase.FORWARD:
            total_s += min(
                (
                    math.fsum(operator_s[op.name] for op in layer.operators if rule.repeats(op))
                    for rule in rules
                ),
                default=0.0,
            )
        for exchange in layer.exchanges:
            if exchange.phase is not phase or exchange.axis.startswith("expert"):
                continue
            if exchange.hides_under is None and exchange.axis == "tensor" and hides_tensor:
                continue
            if exchange.hides_under == FeedForward.SHARED_EXPERT.first:
                continue
            time_s = exchange_time_s(exchange, hops[exchange.axis])
            if exchange.hides_under is not None:
                time_s -= exchange.hidden_share * operator_s[exchange.hides_under]
            total_s += max(0.0, time_s)
    return total_s


def _of_experts(operator: Operator) -> bool:
    return operator.name.startswith(f"{FeedForward.EXPERT}_") or any(
        p.expert for p in operator.parameters
    )


def _operator_floor_s(operator: Operator, phase: Phase, device: Accelerator, dtype: str) -> float:
    """What the device takes, or what no tiling on its cores beats."""
    if device.cores is None:
        return operator_time_s(operator, phase, accelerator=device, dtype=dtype)
    return operator.work(phase).flops / device.peak(dtype)


def _expert_floor_s(operator: Operator, phase: Phase, device: Accelerator, dtype: str) -> float:
    if operator.matrix is None:
        return _operator_floor_s(operator, phase, device, dtype)
    return operator.work(phase).flops / (device.peak(dtype) * device.efficiency.gemm.max)


def _run_at(question: ModelQuestion, point: Point) -> RunShape:
    run = run_of(point, question.workload.sequence_length)
    return question.settings.shape(run, precision=question.precision)


def _exchange_s(question: ModelQuestion, point: Point) -> float:
    """Seconds of one layer that tokens travel to other devices; 0 where that may hide."""
    model, pool = question.config, question.cluster.pool_of()
    assert model.experts is not None
    run = _run_at(question, point)
    if not run.shares_tokens_to_experts or question.settings.overlap.experts > 0:
        return 0.0
    hops = axis_hops(
        pool,
        tensor=point.tensor,
        context=point.context,
        expert=point.expert,
        expert_tensor=run.expert_shards,
    )
    return math.fsum(
        exchange_time_s(each, hops[each.axis])
        for each in expert_exchanges(model, run, model.experts)
    )
