"""What the ends of a chain still exchange when a gradient is back at its first layer.

A microbatch passes all layers forward and back. Its way ends in the first stage, which runs the
weight gradients of its own layers, exchanges them with its replicas, and, where the first layer
and a later one are the same tensor, with the rank that holds that one. With S the layers of the
first stage, γ and π the shares of backward and forward that exchanges hide under:

    T ≥ Σ_{l∉S} way_l + Σ_{l∈S} (F_l + B_l) + exposed(S) + tied
    exposed(S) ≥ x·Σ_S (gradients_l - γ·B_l) + y·Σ_S (parameters_l - π·F_l)     x, y ∈ {0, 1}

for each of the four choices of x and y. S begins the chain, and how far it goes is not known, nor
which options its layers use: the bound is the least of all. Bytes beside those of the first layer
cost no less than the least slope. Where S holds both layers of the tied tensor nothing is tied.

In V the first rank has the last stage, too, whose exchanges follow; its weight gradients may have
run while the gradient was away.

All this matters where a replica has few microbatches: steps are then one way and an exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from trainwright.cluster import Hop
from trainwright.costing.communication import all_reduce_time_s, fastest_s
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from trainwright.cluster import NetworkLevel
    from trainwright.costing.communication import Lines
    from trainwright.plan.overlap import Overlap
    from trainwright.pricing.sharding import Replicas
    from trainwright.profile import CostTable, Profile

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_CHOICES: Final = ((0, 0), (1, 0), (0, 1), (1, 1))


class Slopes(NamedTuple):
    """Least seconds of a byte by kind of replicas, dense and of experts, [D, 2] each."""

    reduce_s: Floats
    gather_s: Floats
    between_s: Floats


class ExchangeTimes(NamedTuple):
    """Gradients and parameters by ZeRO stage and kind of replicas: starts [4, D], slopes [4, D, C].

    Slopes are the least that a layer of each class adds.
    """

    start_gradients_s: Floats
    start_parameters_s: Floats
    gradients_s: Floats
    parameters_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainEnd:
    """Layers from one end of the chain on, as runs of one class: (class, how many).

    `spent_s`, `forward_s` and `backward_s` are of the options of the classes, which begin at
    `starts`: what a layer of the end spends for certain, and what exchanges hide under. Bytes are
    those of a class, [C, 2]. One layer of the class `anchor` is in every end that is asked for.
    """

    runs: tuple[tuple[int, int], ...]
    anchor: int
    starts: Ints
    spent_s: Floats
    forward_s: Floats
    backward_s: Floats
    sync_bytes: Floats
    weight_bytes: Floats
    trained_bytes: Floats

    def exchange_times(self, groups: Sequence[Replicas], slopes: Slopes) -> ExchangeTimes:
        """Of all kinds of replicas; of those after `groups` only the slopes are known."""
        sync, weights, trained = self.sync_bytes.T, self.weight_bytes.T, self.trained_bytes.T
        scatter_s = slopes.gather_s @ sync + slopes.between_s @ sync
        gather_s, update_s = slopes.gather_s @ weights, slopes.gather_s @ trained
        added = (
            np.stack([slopes.reduce_s @ sync, scatter_s, scatter_s, scatter_s + gather_s]),
            np.stack([0 * update_s, update_s, update_s, gather_s]),
        )
        starts = [np.zeros(times_s.shape[:2]) for times_s in added]
        held = [float(each[0, self.anchor]) for each in (sync, weights, trained)]
        for number, group in enumerate(groups):
            for start_s, added_s, found_s in zip(starts, added, _both_s(group, *held), strict=True):
                start_s[:, number] = np.maximum(0.0, found_s - added_s[:, number, self.anchor])
        return ExchangeTimes(starts[0], starts[1], added[0], added[1])

    def after_s(
        self,
        exchanges: ExchangeTimes,
        overlap: Overlap,
        *,
        passed_s: Floats,
        least: int = 1,
        most: int | None = None,
    ) -> Floats:
        """What an end of `least` to `most` layers adds, by ZeRO stage and replicas, [4, D].

        `passed_s` [C] is what the way counts of a layer of each class.
        """
        found = np.zeros_like(exchanges.start_gradients_s)
        for x, y in _CHOICES:
            hidden_s = x * overlap.gradients * self.backward_s
            hidden_s = hidden_s + y * overlap.parameters * self.forward_s
            layer_s = np.minimum.reduceat(self.spent_s - hidden_s, self.starts) - passed_s
            layer_s = layer_s + x * exchanges.gradients_s + y * exchanges.parameters_s
            start_s = x * exchanges.start_gradients_s + y * exchanges.start_parameters_s
            found = np.maximum(found, start_s + self._least_s(layer_s, least, most))
        return found

    def _least_s(self, layer_s: Floats, least: int, most: int | None) -> Floats:
        """Over all ends that stop after a run, [4, D]; between these the sums are linear."""
        sums_s, layers = np.zeros(layer_s.shape[:2]), 0
        found = np.full_like(sums_s, np.inf)
        for number, count in self.runs:
            if most is not None and layers >= most:
                break
            sums_s = sums_s + count * layer_s[:, :, number]
            layers += count
            if layers >= least:
                found = np.minimum(found, sums_s)
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainEnds:
    """Both ends of L layers, and what the way of a microbatch counts of a layer, [C].

    `way_s` leaves the weight gradient out, `whole_s` counts it. The first layer shares
    `tied_bytes` of gradients with layers up to `last_holder`.
    """

    first: ChainEnd
    last: ChainEnd
    way_s: Floats
    whole_s: Floats
    whole_way_s: float
    tied_bytes: float
    last_holder: int
    num_layers: int

    @classmethod
    def of(cls, profile: Profile) -> ChainEnds:
        """Of a priced profile."""
        costs, phases = profile.costs, profile.costs.phases
        assert phases is not None, "an estimate has phases"
        classes = [layer.layer_class for layer in profile.structure.layers]
        size, starts, total_s = len(classes), costs.class_offsets[:-1], phases.total_s
        tied_bytes, last_holder = 0.0, 0
        after_first: list[int] = []  # layers whose dense bytes are those of one before, in the end
        before_last: list[int] = []
        for group in profile.structure.shared_parameters:
            after_first += group.layers[1:]
            before_last += group.layers[1:-1] if group.layers[0] == 0 else group.layers[1:]
            if group.layers[0] == 0 and len(group.layers) > 1:
                tied_bytes = tied_gradient_bytes(costs, group.bytes, int(starts[classes[0]]))
                last_holder = group.layers[-1]
        forward, way_s = list(range(size)), total_s - phases.weight_grad_s
        first, last = (
            ChainEnd(
                runs=_runs(classes, order, {0, last_holder}),
                anchor=classes[anchor],
                starts=starts,
                spent_s=spent_s,
                forward_s=phases.forward_s,
                backward_s=total_s - phases.forward_s,
                sync_bytes=_without(costs.gradient_sync_bytes[starts], classes, repeated),
                weight_bytes=_without(
                    costs.static_bytes[starts, :, StaticKind.WEIGHT], classes, repeated
                ),
                trained_bytes=_without(costs.updated_weight_bytes[starts], classes, repeated),
            )
            for order, anchor, spent_s, repeated in (
                (forward, 0, total_s, after_first),
                (forward[::-1], last_holder or size - 1, way_s, before_last),
            )
        )
        whole_s = np.minimum.reduceat(total_s, starts)
        return cls(
            first=first,
            last=last,
            way_s=np.minimum.reduceat(way_s, starts),
            whole_s=whole_s,
            whole_way_s=float(whole_s[classes].sum()),
            tied_bytes=tied_bytes,
            last_holder=last_holder,
            num_layers=size,
        )

    @property
    def own_weight_grad_s(self) -> float:
        """How much longer the first layer is than its way."""
        own = self.first.runs[0][0]
        return float(self.whole_s[own] - self.way_s[own])

    def tied_s(self, levels: tuple[NetworkLevel, ...], size: Ints, pipeline: Ints) -> Floats:
        """Seconds of the exchange between two ranks that hold the same tensor, [N].

        Ranks have `size` devices each. Those after the second holder need a layer each, so the two
        are far apart where ranks are many.
        """
        if not self.tied_bytes:
            return np.zeros(len(pipeline))
        times_s = [
            all_reduce_time_s(self.tied_bytes, (Hop(level=level, ranks=2),)) for level in levels
        ]
        from_level_s = np.minimum.accumulate(times_s[::-1])[::-1]
        units = np.cumprod([1, *(level.size for level in levels)])[:-1]
        apart = np.maximum(1, self.ranks_to_last_holder(pipeline))
        crossed = np.searchsorted(units, apart * size, side="right") - 1
        found: Floats = np.where(pipeline > 1, from_level_s[crossed], 0.0)
        return found

    def ranks_to_last_holder(self, pipeline: Ints) -> Ints:
        """How far from the first rank that of the tied layer is; 0 or less: it may be it."""
        return pipeline - self.num_layers + self.last_holder


def _runs(
    classes: Sequence[int], order: Sequence[int], alone: Collection[int]
) -> tuple[tuple[int, int], ...]:
    """(class, how many) of layers in an order, some of which are a run of their own."""
    keys = [(classes[layer], layer if layer in alone else -1) for layer in order]
    return tuple((number, len(list(run))) for (number, _), run in groupby(keys))


def _without(layer_bytes: Floats, classes: Sequence[int], layers: Sequence[int]) -> Floats:
    """Bytes of classes [C, 2] without the dense ones of some layers."""
    left = layer_bytes.copy()
    left[[classes[layer] for layer in layers], 0] = 0.0
    return left


def _both_s(group: Replicas, sync: float, held: float, trained: float) -> tuple[Floats, Floats]:
    """Gradients and parameters of so many dense bytes by ZeRO stage, [4]."""
    scatter_s = _fastest_s(group.gather, sync) + _fastest_s(group.between, sync)
    gather_s, update_s = _fastest_s(group.gather, held), _fastest_s(group.gather, trained)
    reduce_s = _fastest_s(group.reduce, sync)
    return (
        np.array([reduce_s, scatter_s, scatter_s, scatter_s + gather_s]),
        np.array([0.0, update_s, update_s, gather_s]),
    )


def _fastest_s(lines: tuple[Lines, Lines], payload_bytes: float) -> float:
    """Of the dense group; nothing to send takes no time."""
    return fastest_s(lines[0], payload_bytes) if payload_bytes > 0 else 0.0


def tied_gradient_bytes(costs: CostTable, tied_bytes: float, row: int) -> float:
    """Of one device; the holder's row may hold more than the tied tensor."""
    own = costs.static_bytes[row, 0]
    weight = float(own[StaticKind.WEIGHT])
    share = min(1.0, tied_bytes / int(costs.tensor_parallel[row]) / weight) if weight > 0 else 0.0
    return share * float(own[StaticKind.GRADIENT])
