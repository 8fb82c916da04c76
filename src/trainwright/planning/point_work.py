"""What one microbatch costs all stages together at a point, at the very least.

Recomputation trades bytes for seconds. Where only so many bytes may be kept, the least seconds of
many layers are no less than those of the convex hull of each layer's options, taken steepest first:
the linear relaxation of a knapsack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.planning.chain_ends import ChainEnds
from trainwright.planning.like_layers import LikeLayers, LongestPhases
from trainwright.planning.ramps import Shares
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.profile import CostTable, Profile

    Floats = NDArray[np.float64]


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

    @classmethod
    def of(cls, profile: Profile) -> PointWork:
        """The sums of a priced profile."""
        costs, layers = profile.costs, profile.structure.layers
        assert costs.phases is not None, "an estimate has phases"
        classes = [layer.layer_class for layer in layers]
        starts = costs.class_offsets[:-1]
        phases = costs.phases
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
            own = costs.static_bytes[holder, 0]
            twice = len(group.layers) - 1
            static[0] -= twice * own
            sync[0] -= twice * own[StaticKind.GRADIENT]
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
    starts, phases = costs.class_offsets[:-1], costs.phases
    assert phases is not None, "an estimate has phases"
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
    """The lower hull of some options of a class, from the leanest to the fastest."""
    options = sorted(
        zip(costs.saved_bytes[rows].tolist(), costs.duration_s[rows].tolist(), strict=True)
    )
    hull: list[tuple[float, float]] = []
    for kept, time_s in options:
        if hull and time_s >= hull[-1][1]:
            continue
        while len(hull) > 1 and _is_above(hull[-2], hull[-1], (kept, time_s)):
            hull.pop()
        if hull and kept <= hull[-1][0]:
            hull.pop()
        hull.append((kept, time_s))
    return Trade(*np.array(hull).T)


def _is_above(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether b lies on or above the line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])


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
