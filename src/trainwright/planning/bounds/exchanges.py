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

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from trainwright.cluster import Hop, NetworkLevel
from trainwright.costing.communication import Lines, all_reduce_time_s, fastest_s
from trainwright.planning.question.layouts import CHAIN, IN_V, WHOLE_BACKWARD
from trainwright.plans.configuration import Overlap
from trainwright.profile import Profile, StaticKind
from trainwright.step import zero
from trainwright.step.zero import Replicas, Traffic

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints
    from trainwright.planning.bounds.layers import PointWork

    Ways = tuple[tuple[float, float], ...]  # seconds to start, and for a byte


# What replicas exchange of all layers of a point, for every kind of replicas at once
# -----------------------------------------------------------------------------------

_STAGES: Final = np.arange(zero.NUM_STAGES)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedTimes:
    """What replicas of D kinds exchange of all layers, nothing hidden, [D]; their sizes [D, 2].

    `gather_s` is of all weights, `update_s` of those that the optimizer changes, `between_s` over
    copies of sharded state. `reduce_byte_s`, `gather_byte_s` and `between_byte_s` [D, 2] are the
    least seconds that a byte takes.
    """

    groups: Sequence[Replicas]
    reduce_s: Floats
    gather_s: Floats
    update_s: Floats
    scatter_s: Floats
    between_s: Floats
    reduce_byte_s: Floats
    gather_byte_s: Floats
    between_byte_s: Floats
    sizes: Ints

    @classmethod
    def of(cls, work: PointWork, groups: Sequence[Replicas]) -> SharedTimes:
        """Of the layers of a point, for each of these groups."""
        weights = work.static_bytes[:, StaticKind.WEIGHT].tolist()
        trained = work.trained_bytes.tolist()
        sync = work.sync_bytes.tolist()
        return cls(
            groups=groups,
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

    @property
    def most_s(self) -> float:
        """No stage exchanges longer after a microbatch, whatever the ZeRO stage."""
        whole = Traffic(self.reduce_s, self.scatter_s, self.gather_s, self.between_s)
        exchanged = zero.last_microbatch(_STAGES[:, np.newaxis], whole)
        return float((exchanged.forward_s + exchanged.backward_s).max())

    def traffic(self, zero_stage: Ints, group: Ints) -> Traffic:
        """Of pairs of a ZeRO stage and a kind of replicas."""
        return Traffic(
            reduce_s=self.reduce_s[group],
            scatter_s=self.scatter_s[group],
            gather_s=zero.gathered(zero_stage, self.gather_s[group], self.update_s[group]),
            between_s=self.between_s[group],
        )

    def gathered(self) -> Floats:
        """How many layers' weights a device gathers at most, by ZeRO stage, [4, D]."""
        held = self._held_weights
        return zero.gathered_layers(_STAGES[:, np.newaxis], self.sizes[:, 0], held=held)

    def state_bytes(self, static_bytes: Floats) -> Floats:
        """Of stages on one device by ZeRO stage, [4, D, ...], from [..., 2, 3] before sharding."""
        stages, sizes = self._broadcast(static_bytes.ndim - 2)
        held = self._held_weights
        found: Floats = zero.state_bytes(stages, sizes, static_bytes, held=held).sum(axis=-1)
        return found

    def layer_bytes(self, static_bytes: Floats) -> Floats:
        """What layers add to the state of a stage by ZeRO stage, [4, D, C], from [C, 2, 3]."""
        stages, sizes = self._broadcast(1)
        return self.state_bytes(static_bytes) - zero.beside_layers_bytes(stages, sizes)

    def touched_bytes(self, static_bytes: Floats, trained: Floats) -> Floats:
        """What the update of stages moves on one device by ZeRO stage, [4, D, ...]."""
        stages, sizes = self._broadcast(static_bytes.ndim - 2)
        return zero.touched_bytes(stages, sizes, static_bytes, trained)

    @property
    def _held_weights(self) -> float:
        """The share of its shards of weights that a device has, of all groups alike."""
        return max((group.held_weights for group in self.groups), default=1.0)

    def _broadcast(self, axes: int) -> tuple[Ints, Ints]:
        """ZeRO stages [4, 1, ...] and sizes [D, ..., 2], with so many axes for what is asked of."""
        stages = _STAGES.reshape(-1, 1, *([1] * axes))
        return stages, self.sizes.reshape(-1, *([1] * axes), 2)


def _both_s(lines: tuple[Ways, ...], sizes: list[float]) -> float:
    """Of dense layers and of experts, each at the fastest of its ways."""
    return sum(fastest_s(ways, size) for ways, size in zip(lines, sizes, strict=True) if size > 0)


def _byte_s(ways: Ways) -> float:
    return min((byte_s for _, byte_s in ways), default=0.0)


# What the ends of a chain still exchange when a gradient is back at its first layer
# ----------------------------------------------------------------------------------

_CHOICES: Final = np.array([[0, 1, 0, 1], [0, 0, 1, 1]])  # gradients, parameters


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
        """Of these kinds of replicas, with their slopes."""
        sync, weights, trained = self.sync_bytes.T, self.weight_bytes.T, self.trained_bytes.T
        stages = _STAGES[:, np.newaxis, np.newaxis]
        gathers = slopes.gather_s @ weights, slopes.gather_s @ trained
        traffic = Traffic(
            reduce_s=slopes.reduce_s @ sync,
            scatter_s=slopes.gather_s @ sync,
            gather_s=zero.gathered(stages, *gathers),
            between_s=slopes.between_s @ sync,
        )
        parameters_s, gradients_s = zero.last_microbatch(stages, traffic)
        held = [float(each[0, self.anchor]) for each in (sync, weights, trained)]
        added_s = np.stack((gradients_s, parameters_s))[:, :, :, self.anchor]
        starts = np.maximum(0.0, np.stack(_both_ends_s(groups, *held)) - added_s)
        return ExchangeTimes(starts[0], starts[1], gradients_s, parameters_s)

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
        x, y = _CHOICES.reshape(2, -1, 1)
        hidden_s = x * overlap.gradients * self.backward_s
        hidden_s = hidden_s + y * overlap.parameters * self.forward_s
        layer_s = np.minimum.reduceat(self.spent_s - hidden_s, self.starts, axis=1) - passed_s
        x, y = _CHOICES.reshape(2, -1, 1, 1, 1)
        layer_s = layer_s[:, np.newaxis, np.newaxis] + x * exchanges.gradients_s
        layer_s = layer_s + y * exchanges.parameters_s
        start_s = x[..., 0] * exchanges.start_gradients_s + y[..., 0] * exchanges.start_parameters_s
        after_s = start_s + self._least_s(layer_s, least, most)
        found: Floats = after_s.max(axis=0, initial=0.0)
        return found

    def _least_s(self, layer_s: Floats, least: int, most: int | None) -> Floats:
        """Over all ends that stop after a run, [..., 4, D]; between these the sums are linear."""
        sums_s, layers = np.zeros(layer_s.shape[:-1]), 0
        found = np.full_like(sums_s, np.inf)
        for number, count in self.runs:
            if most is not None and layers >= most:
                break
            sums_s = sums_s + count * layer_s[..., number]
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
        costs, phases = profile.costs, profile.costs.by_phase
        classes = [layer.layer_class for layer in profile.structure.layers]
        size, starts, total_s = len(classes), costs.class_offsets[:-1], phases.total_s
        tied_bytes, last_holder = 0.0, 0
        after_first: list[int] = []  # layers whose dense bytes are those of one before, in the end
        before_last: list[int] = []
        for group in profile.structure.shared_parameters:
            after_first += group.layers[1:]
            before_last += group.layers[1:-1] if group.layers[0] == 0 else group.layers[1:]
            if group.layers[0] == 0 and len(group.layers) > 1:
                tied_bytes = costs.tied_gradient_bytes(group, int(starts[classes[0]]))
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


def _both_ends_s(
    groups: Sequence[Replicas], sync: float, held: float, trained: float
) -> tuple[Floats, Floats]:
    """Gradients and parameters of so many dense bytes by ZeRO stage and group, [4, D]."""
    gather, stages = [each.gather for each in groups], _STAGES[:, np.newaxis]
    gathers = _fastest_s(gather, held), _fastest_s(gather, trained)
    traffic = Traffic(
        reduce_s=_fastest_s([each.reduce for each in groups], sync),
        scatter_s=_fastest_s(gather, sync),
        gather_s=zero.gathered(stages, *gathers),
        between_s=_fastest_s([each.between for each in groups], sync),
    )
    parameters_s, gradients_s = zero.last_microbatch(stages, traffic)
    return gradients_s, parameters_s


def _fastest_s(lines: Iterable[tuple[Lines, Lines]], payload_bytes: float) -> Floats:
    """Of the dense part of each group, [D]; nothing to send takes no time."""
    return np.array(
        [fastest_s(dense, payload_bytes) if payload_bytes > 0 else 0.0 for dense, _ in lines]
    )


# What follows the way of a microbatch under a family, for many pairs at once
# ---------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class AfterWay:
    """Exchanges of the first and of the last stages of a chain, by ZeRO stage and replicas.

    Families share what they add to the way, [4, D].
    """

    ends: ChainEnds
    overlap: Overlap
    first: ExchangeTimes
    last: ExchangeTimes
    _firsts: dict[tuple[bool, int, int | None], Floats] = field(default_factory=dict)
    _lasts: dict[int, Floats] = field(default_factory=dict)

    @classmethod
    def of(
        cls, ends: ChainEnds, groups: Sequence[Replicas], slopes: Slopes, overlap: Overlap
    ) -> AfterWay:
        """Of all kinds of replicas; see `ChainEnd.exchange_times`."""
        first, last = (end.exchange_times(groups, slopes) for end in (ends.first, ends.last))
        return cls(ends=ends, overlap=overlap, first=first, last=last)

    def of_family(
        self, family: str, at: tuple[Ints, Ints], pipeline: Ints, tied_s: Floats
    ) -> Floats:
        """Seconds after the way [N], of pairs of ZeRO stage and kind of replicas `at`.

        The way counts weight gradients under 1F1B alone. `tied_s` takes the exchange of a tied
        tensor where two ranks hold it.
        """
        holder, size = self.ends.last_holder, self.ends.num_layers
        if not holder:
            apart_s = self._first_s(family)[at]
            return apart_s + self._last_s(1)[at] if family in IN_V else apart_s
        # Later layers are too few for the stages that follow the first: it has not the tied one.
        stages = 2 * pipeline if family in IN_V else pipeline
        is_apart = stages > size - holder
        apart_s = self._first_s(family, most=holder)[at]
        together_s = self._first_s(family, least=holder + 1)[at]
        if family in IN_V:
            apart_s = apart_s + np.minimum(tied_s, self._last_s(size - holder)[at])
        elif family in CHAIN:
            apart_s = apart_s + tied_s
        else:
            apart_s = apart_s + np.where(is_apart, tied_s, 0.0)
        either_s = np.where(is_apart, apart_s, np.minimum(apart_s, together_s))
        found: Floats = np.where(pipeline > 1, either_s, together_s)
        return found

    def _first_s(self, family: str, *, least: int = 1, most: int | None = None) -> Floats:
        ends, fused = self.ends, family in WHOLE_BACKWARD
        key = (fused, least, most)
        if key not in self._firsts:
            passed_s = ends.whole_s if fused else ends.way_s
            self._firsts[key] = ends.first.after_s(
                self.first, self.overlap, passed_s=passed_s, least=least, most=most
            )
        return self._firsts[key]

    def _last_s(self, least: int) -> Floats:
        ends = self.ends
        if least not in self._lasts:
            self._lasts[least] = ends.last.after_s(
                self.last, self.overlap, passed_s=ends.way_s, least=least
            )
        return self._lasts[least]
