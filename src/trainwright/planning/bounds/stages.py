"""Every stage a chain of layers can be cut into, told apart by its number of layers of each class.

Blocks of a model are alike, so the L²/2 intervals of its layers are a few hundred *kinds*. What a
kind costs is worked out once, and so is its *front*: of all ways to recompute its layers, those
that keep fewer bytes than any as fast. Options come in levels by their transient bytes, of which a
stage needs the largest: a level offers all options up to its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import combinations_with_replacement, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainwright._native import _core
from trainwright.cluster import Cluster, NetworkLevel
from trainwright.costing.communication import beyond_s, point_to_point_time_s
from trainwright.model import LayerKind
from trainwright.model.config import block_indices
from trainwright.planning.bounds.layers import undivided_work_s
from trainwright.plans.configuration import DEFAULT_OVERLAP, Overlap
from trainwright.plans.plan import Parallelism
from trainwright.profile import CostTable, Profile, Recompute, StaticKind
from trainwright.step import zero
from trainwright.step.stages import RankSpacing
from trainwright.step.zero import Exposed, Replicas, Traffic

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints

Rows: TypeAlias = tuple[int, ...]


# What ways to run a stage choose for its layers, worked out when it is asked for
# -------------------------------------------------------------------------------
# A stage has hundreds of ways, made of those of its parts, and a search compares what they take.
# What the layers of one do is asked of the few stages of a plan.

Counts: TypeAlias = NDArray[np.int16]  # of layers; there are thousands of such arrays


class Pairs(NamedTuple):
    """N ways of two parts: `numbers` [N] into all pairs of a way of each.

    The second part has `size` ways, which change fastest.
    """

    first: MadeOf
    second: MadeOf
    size: int
    numbers: Ints


MadeOf: TypeAlias = Counts | Pairs


def counted(made_of: MadeOf) -> Counts:
    """Of each way, the layers that run as each row of a cost table, [N, R]."""
    if not isinstance(made_of, Pairs):
        return made_of
    own, other = np.divmod(made_of.numbers, made_of.size)
    found: Counts = counted(made_of.first)[own] + counted(made_of.second)[other]
    return found


# What every kind of stage costs under given degrees: seconds and bytes that need no schedule
# -------------------------------------------------------------------------------------------
# Times are lower bounds that hold however a stage recomputes, except those of the front. Of the
# state, optimizer and synchronisation each chunk of a rank has its part, so that a rank's are sums.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerTimes:
    """Least seconds of phases, by class [C] and of all layers before one, [L + 1].

    `input_grad_s` are without recomputation.
    """

    forward_s: Floats
    input_grad_s: Floats
    weight_grad_s: Floats
    total_s: Floats
    forward_before_s: Floats
    input_grad_before_s: Floats
    total_before_s: Floats

    @classmethod
    def of(cls, kinds: StageKinds) -> LayerTimes:
        """From the rows of each class."""
        if kinds.times is None:
            kinds.times = cls._made_of(kinds)
        return kinds.times

    @classmethod
    def _made_of(cls, kinds: StageKinds) -> LayerTimes:
        costs = kinds.profile.costs
        classes = [layer.layer_class for layer in kinds.profile.structure.layers]
        least = partial(_least_of_classes, costs)

        def before(values: Floats) -> Floats:
            found: Floats = np.concatenate(([0.0], np.cumsum(values[classes])))
            return found

        forward_s = least(costs.by_phase.forward_s)
        input_grad_s = least(costs.by_phase.input_grad_s)
        total_s = least(costs.by_phase.total_s)
        return cls(
            forward_s=forward_s,
            input_grad_s=input_grad_s,
            weight_grad_s=least(costs.by_phase.weight_grad_s),
            total_s=total_s,
            forward_before_s=before(forward_s),
            input_grad_before_s=before(input_grad_s),
            total_before_s=before(total_s),
        )

    @classmethod
    def fastest(cls, kinds: Sequence[StageKinds]) -> LayerTimes:
        """Of each layer in whichever place it runs fastest."""
        every = [cls.of(own) for own in kinds]
        classes = [layer.layer_class for layer in kinds[0].profile.structure.layers]

        def before(values: Floats) -> Floats:
            found: Floats = np.concatenate(([0.0], np.cumsum(values[classes])))
            return found

        names = ("forward_s", "input_grad_s", "weight_grad_s", "total_s")
        least = {name: np.min([getattr(own, name) for own in every], axis=0) for name in names}
        return cls(
            **least,
            forward_before_s=before(least["forward_s"]),
            input_grad_before_s=before(least["input_grad_s"]),
            total_before_s=before(least["total_s"]),
        )


def least_work_s(kinds_of_rank: Sequence[StageKinds]) -> float:
    """Of a microbatch, on the one of unlike ranks that works longest: all of them at their rate.

    A rank runs any layer at most so many times as fast as one of them does.
    """
    every = list({id(own): own for own in kinds_of_rank}.values())
    number = {id(own): at for at, own in enumerate(every)}
    ranks = np.bincount([number[id(own)] for own in kinds_of_rank])
    most_s = 0.0
    for own in every:
        times = LayerTimes.of(own)
        no_limit = np.where(times.total_s > 0, np.inf, 0.0)
        speeds = [
            np.divide(times.total_s, o.total_s, out=no_limit.copy(), where=o.total_s > 0).max()
            for o in map(LayerTimes.of, every)
        ]
        most_s = max(most_s, float(times.total_before_s[-1] / (ranks @ np.array(speeds))))
    return most_s


def busiest_work_s(kinds: StageKinds) -> Floats:
    """Of a microbatch, on the one of p ranks that works longest; by p up to L, [L + 1]."""
    if kinds.busiest_s is None:
        class_s = LayerTimes.of(kinds).total_s
        classes = [layer.layer_class for layer in kinds.profile.structure.layers]
        counts = np.bincount(classes, minlength=len(class_s))
        depths = np.arange(1, kinds.num_layers + 1)
        kinds.busiest_s = np.append(0.0, undivided_work_s(class_s, counts, depths))
    return kinds.busiest_s


def held_static_bytes(kinds: StageKinds, replicas: Replicas, used: Ints | None = None) -> Floats:
    """State of one device by kind, of those `used` or of all, gathered weights left out, [K]."""
    static, opaque = kinds.static_bytes, kinds.opaque_bytes
    if used is not None:
        static, opaque = static[used], opaque[used]
    held: Floats = replicas.state_bytes(static).sum(axis=-1)
    return held + opaque


def optimizer_s(
    static: Floats, trained: Floats, replicas: Replicas, cluster: Cluster, *, chunks_per_rank: int
) -> Floats:
    """Each chunk's part of the update of its rank, from state [K, 2, 3], trained weights [K, 2]."""
    touched = zero.touched_bytes(replicas.zero_stage, replicas.sizes, static, trained)
    device = cluster.accelerator
    memory = device.efficiency.memory
    # At the efficiency max · b / (b + half) moving b bytes takes (b + half) / (bandwidth · max).
    once = np.where(touched > 0, memory.half / chunks_per_rank, 0.0)
    pace = device.memory_bandwidth_bytes_per_s * memory.max
    if device.cores is not None:
        pace = min(pace, device.cores.update_bytes_per_s)
    times_s: Floats = (touched + once) / pace
    return times_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sharing:
    """What replicas exchange by kind [K], and the shares of a microbatch that hide it."""

    zero_stage: int
    overlap: Overlap
    traffic: Traffic

    @classmethod
    def of(cls, kinds: StageKinds, replicas: Replicas, used: Ints | None = None) -> Sharing:
        """Of whole stages: of the kinds `used`, or of all, which is kept."""
        if used is None:
            if replicas not in kinds.shared:
                every = np.arange(len(kinds.counts))
                kinds.shared[replicas] = cls.of(kinds, replicas, every)
            return kinds.shared[replicas]
        weights = kinds.static_bytes[used, :, StaticKind.WEIGHT]
        sync, trained = kinds.sync_bytes[used], kinds.trained_bytes[used]
        return cls(
            zero_stage=replicas.zero_stage,
            overlap=kinds.overlap,
            traffic=Traffic.of(replicas, sync, weights, trained),
        )

    @property
    def adds_nothing(self) -> bool:
        """Whether no microbatch waits for what replicas exchange."""
        every = zero.every_microbatch(self.zero_stage, self.traffic)
        return not (np.any(every.forward_s) or np.any(every.backward_s))

    def added_s(self, forward_s: Floats, kind: Ints, time_s: Floats) -> Floats:
        """To every microbatch of stages of these kinds that take so long, with forwards by kind."""
        if self.adds_nothing:
            return np.zeros_like(time_s)
        every = zero.every_microbatch(self.zero_stage, self.traffic)
        gathered_s = beyond_s(every.forward_s, self.overlap.parameters * forward_s)
        hidden_s = self.overlap.gradients * np.maximum(0.0, time_s - forward_s[kind])
        found: Floats = gathered_s[kind] + beyond_s(every.backward_s[kind], hidden_s)
        return found

    def at(self, kind: Ints) -> Sharing:
        """That of a kind for each entry of `kind`."""
        return replace(self, traffic=Traffic(*(each[kind] for each in self.traffic)))

    def exposed(self, forward_s: Floats, time_s: Floats) -> Exposed:
        """What does not hide, by kind on the last axis, of microbatches that take so long.

        No kind takes less than its forward; where the whole is unknown, or infinite, nothing hides
        under its backward.
        """
        with np.errstate(invalid="ignore"):
            backward_s = np.where(np.isfinite(time_s), np.maximum(0.0, time_s - forward_s), 0.0)
        shares = self.overlap
        under = zero.Windows(shares.parameters * forward_s, shares.gradients * backward_s)
        return zero.exposed(self.zero_stage, self.traffic, under)


def slowest_s(kinds: StageKinds) -> Floats:
    """Seconds of a microbatch by kind, with all the recomputation that is left, [K]."""
    costs = kinds.profile.costs
    longest_s: Floats = np.maximum.reduceat(costs.by_phase.total_s, costs.class_offsets[:-1])
    found_s: Floats = kinds.counts.astype(np.float64) @ longest_s
    return found_s


def least_transfers_s(
    kinds: StageKinds, degrees: Parallelism, cluster: Cluster, ranks: tuple[int, ...]
) -> Floats:
    """Least seconds between the ranks of neighbours, wherever the chain is cut, [S - 1]."""
    levels, spacing = cluster.pool_of().levels, RankSpacing.of(degrees)
    between = [spacing.level_between(levels, a, b) for a, b in pairwise(ranks)]
    return least_transfers_over(kinds, between)


def least_transfers_over(kinds: StageKinds, levels: Sequence[NetworkLevel | None]) -> Floats:
    """The same over what lies between neighbours."""
    edges = kinds.profile.structure.edges
    crossing = [edge.bytes for edge in edges if edge.target == edge.source + 1]
    least_bytes = min(crossing, default=0.0)
    times_s = [point_to_point_time_s(least_bytes, level) for level in levels]
    return np.array(times_s, dtype=np.float64)


# Every stage a chain of layers can be cut into, told apart by its number of layers of each class
# -----------------------------------------------------------------------------------------------


class Front(NamedTuple):
    """N ways to run a stage, by kept bytes ascending, each faster than those before it.

    `kept_bytes` [N] and `time_s` [N] are of one microbatch, forward and backward; `made_of` says
    what is chosen in them, which is asked of few.
    """

    kept_bytes: Floats
    time_s: Floats
    made_of: MadeOf

    @property
    def chosen(self) -> Counts:
        """Of each way, the layers that run as each row of the cost table, [N, R]."""
        return counted(self.made_of)


def _least_of_classes(costs: CostTable, rows: Floats) -> Floats:
    """The least row of each class of layers, [C]."""
    found: Floats = np.minimum.reduceat(rows, costs.class_offsets[:-1])
    return found


def _most_of_classes(costs: CostTable, rows: Floats) -> Floats:
    """The largest row of each class of layers, [C]."""
    found: Floats = np.maximum.reduceat(rows, costs.class_offsets[:-1])
    return found


class FirstBlock(NamedTuple):
    """What it takes that a stage recomputes one of its blocks: `rows` do, of the `classes` of all.

    A block of each class, [N], takes `longer_s` more then, at the least.
    """

    classes: tuple[int, ...]
    rows: Rows
    longer_s: Floats

    @classmethod
    def of(cls, profile: Profile) -> FirstBlock | None:
        """None where blocks of a class have no such way to run, or no other."""
        costs, layers = profile.costs, profile.structure.layers
        times_s, again, longer_s = costs.by_phase.total_s, list[int](), list[float]()
        classes = sorted({each.layer_class for each in layers if each.name == LayerKind.BLOCK})
        for own in map(costs.rows_of, classes):
            full = [row for row in own if costs.option_ids[row] == Recompute.FULL]
            if not full:
                return None
            again += full
            longer_s.append(float(times_s[full].min() - times_s[list(own)].min()))
        return cls(tuple(classes), tuple(again), np.array(longer_s)) if again else None

    def least_s(self, counts: Ints) -> Floats:
        """How much longer stages take at the least, by their layers of each class, [K, C]."""
        present = counts[:, list(self.classes)] > 0
        least_s: Floats = np.where(present, self.longer_s, np.inf).min(axis=1)
        return np.where(present.any(axis=1), least_s, 0.0)

    def only_class_of(self, counts: Ints) -> int | None:
        """The class of a stage's blocks, from counts [C]; None where it has none or several."""
        present = [c for c in self.classes if counts[c]]
        return present[0] if len(present) == 1 else None


class Part(NamedTuple):
    """So many layers of a class, with these rows to choose from; one or more runs as in `again`."""

    num_layers: int
    rows: Rows
    again: Rows = ()

    def dealt(self) -> Ints:
        """Every way to deal the layers out to the rows, shape [ways, rows]."""
        ways = dealings(self.num_layers, len(self.rows))
        has = [row in self.again for row in self.rows]
        return ways[ways[:, has].any(axis=1)] if self.again else ways


@dataclass(slots=True, eq=False)
class StageKinds:
    """The K kinds of stages of a profile's chain of L layers in C classes.

    `counts` [K, C], `kind_of` [L, L + 1] by first layer and the layer after the last, -1 where
    empty, `forward_s` [K] of one microbatch, `static_bytes` [K, 2, 3], `sync_bytes` [K, 2] and
    `trained_bytes` [K, 2] as in the cost table with tied parameters once, `weight_bytes` [K] of the
    heaviest layer. At a level a stage needs `level_bytes` [levels] for transients; `levels_of` [K]
    are those that may be best. `overlap` says what exchanges of replicas hide under. Where stages
    recompute their `first` blocks, each with a block runs one as the longer of two ways, or more.
    Chains are not cut behind layer `whole_from`, if that is told.
    """

    profile: Profile
    counts: Ints
    kind_of: Ints
    forward_s: Floats
    least_time_s: Floats
    static_bytes: Floats
    opaque_bytes: Floats
    sync_bytes: Floats
    trained_bytes: Floats
    weight_bytes: Floats
    freed_bytes: Floats
    level_bytes: Floats
    levels_of: tuple[tuple[int, ...], ...]
    overlap: Overlap = DEFAULT_OVERLAP
    first: FirstBlock | None = None
    whole_from: int | None = None
    times: LayerTimes | None = None
    busiest_s: Floats | None = None
    pairs: StagePairs | None = None
    shared: dict[Replicas, Sharing] = field(default_factory=dict)
    of_ranks_in_v: dict[Replicas, _core.PeelKinds] = field(default_factory=dict)
    of_ranks_in_loops: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    packed: dict[int, PackedFronts] = field(default_factory=dict)
    tails: dict[Replicas, tuple[PackedFronts, Floats]] = field(default_factory=dict)
    ways: dict[tuple[Part, ...], Ways] = field(default_factory=dict)
    rows_worth: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    packed_ways: dict[tuple[bytes, bool], PackedWays] = field(default_factory=dict)
    _fronts: dict[tuple[int, int], Front] = field(default_factory=dict)
    _of_parts: dict[tuple[Part, ...], Front] = field(default_factory=dict)
    _rows: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        profile: Profile,
        overlap: Overlap = DEFAULT_OVERLAP,
        *,
        repeats_first: bool = False,
        together: Collection[str] = (),
    ) -> StageKinds:
        """The kinds of `profile`, whose layers form a chain.

        If it `repeats_first`, every stage recomputes one block, where it has any, or more. The last
        layers that are `together` are in one stage.
        """
        costs = profile.costs
        counts, kind_of = _kinds(tuple(layer.layer_class for layer in profile.structure.layers))
        again = FirstBlock.of(profile) if repeats_first else None
        level_bytes, levels_of = _levels(profile, counts, again)
        least = partial(_least_of_classes, costs)

        def summed(values: Floats) -> Floats:
            total: Floats = np.where(counts > 0, counts * values, 0.0).sum(axis=1)
            return total

        first = costs.class_offsets[:-1]
        weights = costs.static_bytes[first][:, :, StaticKind.WEIGHT].sum(axis=1)
        static = np.tensordot(counts.astype(np.float64), costs.static_bytes[first], axes=1)
        sync = counts @ costs.gradient_sync_bytes[first]
        trained = counts @ costs.updated_weight_bytes[first]
        _count_tied_once(profile, counts, static, sync, trained)
        least_time_s = summed(least(costs.by_phase.total_s))
        if again is not None:
            least_time_s += again.least_s(counts)
        return cls(
            profile=profile,
            counts=counts,
            kind_of=kind_of,
            forward_s=summed(least(costs.by_phase.forward_s)),
            least_time_s=least_time_s,
            static_bytes=static,
            opaque_bytes=counts @ costs.opaque_static_bytes[first],
            sync_bytes=sync,
            trained_bytes=trained,
            weight_bytes=np.where(counts > 0, weights, 0.0).max(axis=1),
            freed_bytes=counts @ _most_of_classes(costs, costs.saved_until_input_grad_bytes),
            level_bytes=level_bytes,
            levels_of=levels_of,
            overlap=overlap,
            first=again,
            whole_from=_begin_of(profile, together) if together else None,
        )

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.kind_of)

    def front(self, kind: int, level: int) -> Front:
        """All that is worth choosing for the layers of a kind, with options up to `level`."""
        key = (kind, level)
        if key not in self._fronts:
            self._fronts[key] = self._joined(self.parts(kind, level, self._rows_within))
        return self._fronts[key]

    def parts(self, kind: int, level: int, rows_of: Callable[[int, int], Rows]) -> tuple[Part, ...]:
        """The layers of a kind by their class, with the rows that are left of a class."""
        own, again = self.counts[kind], self.first
        only = None if again is None else again.only_class_of(own)
        return tuple(
            Part(count, rows_of(c, level), again.rows if again and c == only else ())
            for c, count in enumerate(own.tolist())
            if count
        )

    def _joined(self, parts: tuple[Part, ...]) -> Front:
        """Of so many layers of each class with these rows; kinds that begin alike share that."""
        known = len(parts)
        while known and parts[:known] not in self._of_parts:
            known -= 1
        for size in range(known + 1, len(parts) + 1):
            own = self._class_front(parts[size - 1])
            whole = own if size == 1 else _both(self._of_parts[parts[: size - 1]], own)
            self._of_parts[parts[:size]] = whole
        return self._of_parts[parts]

    def _class_front(self, part: Part) -> Front:
        if (part,) not in self._of_parts:
            self._of_parts[(part,)] = self._made_class_front(part)
        return self._of_parts[(part,)]

    def _rows_within(self, layer_class: int, level: int) -> tuple[int, ...]:
        """The options of a class that need no more transients than the level has."""
        if (layer_class, level) not in self._rows:
            costs = self.profile.costs
            rows = np.array(costs.rows_of(layer_class))
            within = rows[costs.transient_bytes[rows] <= self.level_bytes[level]]
            self._rows[layer_class, level] = tuple(within.tolist())
        return self._rows[layer_class, level]

    def _made_class_front(self, part: Part) -> Front:
        costs, own = self.profile.costs, list(part.rows)
        assert costs.phases is not None
        ways = part.dealt()
        chosen = np.zeros((len(ways), costs.num_rows), dtype=np.int16)
        chosen[:, own] = ways
        kept_bytes = ways @ costs.saved_bytes[own]
        time_s = ways @ costs.phases.total_s[own]
        best = _pareto(kept_bytes, time_s)
        return Front(kept_bytes[best], time_s[best], chosen[best])


class StagePairs(NamedTuple):
    """N pairs of kinds that stages of one rank may have, but for the first and the last layer.

    Seconds of a microbatch at their least, of both stages and of the longer one; the shortest pair
    first. Stages that take longer than `limit_s` are left out.
    """

    limit_s: float
    time_s: Floats
    forward_s: Floats
    longer_s: Floats

    @classmethod
    def within(cls, kinds: StageKinds, limit_s: float) -> StagePairs:
        """Of stages within the limit; others may be kept for a limit that is asked for later."""
        if kinds.pairs is None or kinds.pairs.limit_s < limit_s:
            kinds.pairs = cls._made_of(kinds, _GENEROUS * limit_s)
        known = kinds.pairs
        own = known.longer_s <= limit_s
        return cls(limit_s, known.time_s[own], known.forward_s[own], known.longer_s[own])

    @classmethod
    def _made_of(cls, kinds: StageKinds, limit_s: float) -> StagePairs:
        inner = np.unique(kinds.kind_of[1:, :-1])
        inner = inner[inner >= 0]
        inner = inner[kinds.least_time_s[inner] <= limit_s]
        near, far = (inner[each] for each in np.triu_indices(len(inner)))
        classes = [layer.layer_class for layer in kinds.profile.structure.layers]
        there_are = np.bincount(classes, minlength=kinds.counts.shape[1])
        exists = (kinds.counts[near] + kinds.counts[far] <= there_are).all(axis=1)
        near, far = near[exists], far[exists]
        time_s = kinds.least_time_s[near] + kinds.least_time_s[far]
        order = np.argsort(time_s, kind="stable")
        forward_s = kinds.forward_s[near] + kinds.forward_s[far]
        longer_s = np.maximum(kinds.least_time_s[near], kinds.least_time_s[far])
        return cls(limit_s, time_s[order], forward_s[order], longer_s[order])


_GENEROUS: Final = 1.25  # times the limit of what is asked for


def _begin_of(profile: Profile, together: Collection[str]) -> int:
    """The first of the last layers that are of these."""
    layers = profile.structure.layers
    return max((at + 1 for at, own in enumerate(layers) if own.name not in together), default=0)


@lru_cache(maxsize=64)
def _kinds(classes: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Counts of every kind and the kind of every interval; the same for all points of a model."""
    size = len(classes)
    before = np.zeros((size + 1, max(classes) + 1), dtype=np.int64)
    before[np.arange(1, size + 1), classes] = 1
    before = np.cumsum(before, axis=0)
    first, last = np.triu_indices(size + 1, k=1)
    counts, inverse = np.unique(before[last] - before[first], axis=0, return_inverse=True)
    kind_of = np.full((size, size + 1), -1, dtype=np.int64)
    kind_of[first, last] = inverse.reshape(-1)
    counts.flags.writeable = kind_of.flags.writeable = False
    return counts, kind_of


def _count_tied_once(
    profile: Profile, counts: Ints, static: Floats, sync: Floats, trained: Floats
) -> None:
    """A stage that holds several layers of a group of tied parameters holds these once."""
    costs, layers = profile.costs, profile.structure.layers
    for group in profile.structure.shared_parameters:
        classes = [layers[layer].layer_class for layer in group.layers]
        first = int(costs.class_offsets[classes[0]])
        share = costs.share_of_tied(group, first)
        twice = np.maximum(0, (counts[:, classes] > 0).sum(axis=1) - 1)
        static[:, 0] -= twice[:, np.newaxis] * (costs.static_bytes[first, 0] * share)
        sync[:, 0] -= twice * costs.tied_gradient_bytes(group, first)
        trained[:, 0] -= twice * (costs.updated_weight_bytes[first, 0] * share)


def _levels(
    profile: Profile, counts: Ints, first: FirstBlock | None
) -> tuple[Floats, tuple[tuple[int, ...], ...]]:
    """Transient bytes of each level, and for each kind the levels at which all its layers can run.

    That is with a block recomputed where stages do so with their `first`. A level that none of a
    kind's own options has needs more than the one below and offers no more.
    """
    costs = profile.costs
    level_bytes = np.unique(costs.transient_bytes)
    level_of = np.searchsorted(level_bytes, costs.transient_bytes)
    own = [
        sorted({int(level_of[row]) for row in costs.rows_of(c)}) for c in range(costs.num_classes)
    ]
    made: dict[bytes, tuple[int, ...]] = {}
    levels_of = []
    masks = np.packbits(counts > 0, axis=1)  # a row as bytes each
    for kind, key in enumerate(masks.view((np.void, masks.shape[1])).ravel().tolist()):
        if key not in made:
            present = [own[c] for c in np.flatnonzero(counts[kind])]
            lowest = max(levels[0] for levels in present)
            if first is not None and (c := first.only_class_of(counts[kind])) is not None:
                again = {*costs.rows_of(c)} & {*first.rows}
                lowest = max(lowest, min(int(level_of[row]) for row in again))
            offered = {level for levels in present for level in levels if level >= lowest}
            made[key] = tuple(sorted(offered))
        levels_of.append(made[key])
    return level_bytes, tuple(levels_of)


@lru_cache(maxsize=4096)
def dealings(count: int, options: int) -> Ints:
    """Every way to deal `count` layers out to options, shape [ways, options]."""
    cuts = list(combinations_with_replacement(range(count + 1), max(0, options - 1)))
    inner = np.array(cuts, dtype=np.int64).reshape(len(cuts), max(0, options - 1))
    dealt: Ints = np.diff(inner, axis=1, prepend=0, append=count)
    return dealt


def _both(a: Front, b: Front) -> Front:
    if 1 in (len(a.time_s), len(b.time_s)):  # pairs are as many as the others, and as they lie
        kept_bytes, time_s = a.kept_bytes + b.kept_bytes, a.time_s + b.time_s
        if _is_front(kept_bytes, time_s):
            numbers = _numbers(len(time_s))
            return Front(kept_bytes, time_s, Pairs(a.made_of, b.made_of, len(b.time_s), numbers))
    else:
        kept_bytes = np.add.outer(a.kept_bytes, b.kept_bytes).reshape(-1)
        time_s = np.add.outer(a.time_s, b.time_s).reshape(-1)
    best = _pareto(kept_bytes, time_s)
    return Front(kept_bytes[best], time_s[best], Pairs(a.made_of, b.made_of, len(b.time_s), best))


def _pareto(kept_bytes: Floats, time_s: Floats) -> Ints:
    """Which points keep fewer bytes than any as fast, by kept bytes ascending."""
    if _is_front(kept_bytes, time_s):
        return _numbers(len(time_s))
    order = np.argsort(kept_bytes, kind="stable")  # one key: sums of sorted parts are runs of it
    time_s = time_s[order]
    best_before = np.minimum.accumulate(np.concatenate(([np.inf], time_s[:-1])))
    order = order[time_s < best_before]
    kept_bytes = kept_bytes[order]
    found: Ints = order[np.append(kept_bytes[1:] > kept_bytes[:-1], True)[: len(order)]]
    return found


def _is_front(kept_bytes: Floats, time_s: Floats) -> bool:
    """Whether all of them are worth it, and lie in their order."""
    ascends = (kept_bytes[1:] > kept_bytes[:-1]).all()
    return bool(ascends and (time_s[1:] < time_s[:-1]).all())


@lru_cache(maxsize=1024)
def _numbers(count: int) -> Ints:
    found = np.arange(count)
    found.flags.writeable = False
    return found


# Ways to run a kind of stage where what is kept for weight gradients lives longer than the rest
# ----------------------------------------------------------------------------------------------
# With the backward split a stage holds some microbatches until their input gradient and more of
# them until their weight gradient. A way is worth keeping if no other is as fast and keeps as
# little of both.


class Ways(NamedTuple):
    """N ways, slowest first: what each takes per microbatch [N, 3], and what it is made of.

    Takes are bytes kept until the input gradient, bytes until the weight gradient, and seconds.
    """

    takes: Floats
    made_of: MadeOf

    @property
    def chosen(self) -> Counts:
        """Of each way, the layers that run as each row of the cost table, [N, R]."""
        return counted(self.made_of)

    @property
    def time_s(self) -> Floats:
        """Forward and backward of a microbatch, [N]."""
        return self.takes[:, 2]

    def kept_bytes(self, rows: Floats) -> Floats:
        """At instants that hold so many microbatches of either kind, [..., 2]: shape [..., N]."""
        kept: Floats = rows @ self.takes[:, :2].T
        return kept


class PackedWays(NamedTuple):
    """Ways of K kinds in flat arrays, as a native search takes them.

    Levels of kind k lie from `level_offset[k]` to `level_offset[k + 1]`, ways of a level from
    `way_offset[level]` on: `takes` [.., 3] as in `Ways`.
    """

    level_offset: Ints
    level_bytes: Floats
    way_offset: Ints
    takes: Floats


def ways_of(kinds: StageKinds, kind: int, level: int, *, apart: bool = True) -> Ways:
    """All that is worth choosing for the layers of a kind with options up to a level.

    Where as many microbatches wait for either gradient, what is kept for them need not be told
    `apart`: a front of two columns, which is far shorter, says as much.
    """
    if not apart:
        front = kinds.front(kind, level)
        columns = (front.kept_bytes, np.zeros_like(front.kept_bytes), front.time_s)
        return Ways(np.stack(columns, axis=1), front.made_of)
    return _joined(kinds, kinds.parts(kind, level, partial(_rows, kinds)))


def _joined(kinds: StageKinds, parts: tuple[Part, ...]) -> Ways:
    """Of so many layers with each of these rows; kinds that begin alike share what they can."""
    if parts not in kinds.ways:
        last = kinds.ways.get(parts[-1:]) or _class_ways(kinds, parts[-1])
        kinds.ways[parts[-1:]] = last
        if len(parts) > 1:
            kinds.ways[parts] = _both_ways(_joined(kinds, parts[:-1]), last)
    return kinds.ways[parts]


def packed_ways(kinds: StageKinds, used: Ints, *, apart: bool) -> PackedWays:
    """Those of some kinds at all their levels, kept for the kinds that were asked for."""
    key = used.tobytes(), apart
    if key not in kinds.packed_ways:
        levels = [(kind, level) for kind in used.tolist() for level in kinds.levels_of[kind]]
        ways = [ways_of(kinds, kind, level, apart=apart).takes for kind, level in levels]
        counts = [len(kinds.levels_of[kind]) for kind in used.tolist()]
        kinds.packed_ways[key] = PackedWays(
            level_offset=np.cumsum([0, *counts]),
            level_bytes=np.array([kinds.level_bytes[level] for _, level in levels]),
            way_offset=np.cumsum([0, *map(len, ways)]),
            takes=np.concatenate(ways),
        )
    return kinds.packed_ways[key]


def _rows(kinds: StageKinds, layer_class: int, level: int) -> Rows:
    """Options of a class up to a level; those that another one beats in everything are left out."""
    key = (layer_class, level)
    if key not in kinds.rows_worth:
        costs = kinds.profile.costs
        rows = [
            row
            for row in costs.rows_of(layer_class)
            if costs.transient_bytes[row] <= kinds.level_bytes[level]
        ]
        again = () if kinds.first is None else kinds.first.rows
        worth = _unbeaten(rows, _takes(kinds, rows))
        kinds.rows_worth[key] = tuple(row for row in rows if row in worth or row in again)
    return kinds.rows_worth[key]


def _takes(kinds: StageKinds, rows: Sequence[int]) -> Floats:
    costs, own = kinds.profile.costs, list(rows)
    return np.stack(
        (
            costs.saved_until_input_grad_bytes[own],
            costs.saved_until_weight_grad_bytes[own],
            costs.by_phase.total_s[own],
        ),
        axis=1,
    )


def _class_ways(kinds: StageKinds, part: Part) -> Ways:
    """Of the layers of one class."""
    dealt = part.dealt()
    chosen = np.zeros((len(dealt), kinds.profile.costs.num_rows), dtype=np.int16)
    chosen[:, list(part.rows)] = dealt
    takes = dealt @ _takes(kinds, part.rows)
    order = np.argsort(-takes[:, 2], kind="stable")
    return Ways(takes[order], chosen[order])


def _unbeaten(rows: list[int], columns: Floats) -> Rows:
    no_less = (columns[:, np.newaxis] >= columns[np.newaxis]).all(axis=2)
    no_less &= ~(no_less.T & (np.arange(len(rows))[:, np.newaxis] <= np.arange(len(rows))))
    kept = np.flatnonzero(~no_less.any(axis=1))  # of equals the first stays
    return tuple(rows[i] for i in kept)


def _both_ways(a: Ways, b: Ways) -> Ways:
    numbers = np.arange(len(a.takes) * len(b.takes))
    takes = (a.takes[:, np.newaxis] + b.takes).reshape(-1, 3)
    if 1 not in (len(a.takes), len(b.takes)):
        numbers = numbers[_core.unbeaten_ways(takes)]
        takes = takes[numbers]
    return Ways(takes, Pairs(a.made_of, b.made_of, len(b.takes), numbers))


# The fronts of many kinds of stages in flat arrays, as a native search takes them
# --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedFronts:
    """`kept_bytes` and `time_s` at level l lie from `offset[l]` to `offset[l + 1]`.

    Levels of kind k are `levels[k]` to `levels[k + 1]`, those of fewest transients first: at each
    all ways to run the kind that need `level_bytes` or less. A kind that cannot be run, or is
    longer than asked for, has none.
    """

    levels: Ints
    offset: Ints
    kept_bytes: Floats
    time_s: Floats
    level_bytes: Floats

    @classmethod
    def of(cls, kinds: StageKinds, longest: int) -> PackedFronts:
        """Of all kinds of up to `longest` layers, whichever transients their ways need."""
        levels, lengths, kept, times, level_bytes = [0], [0], [], [], []
        sizes = kinds.counts.sum(axis=1).tolist()
        for kind, (size, own) in enumerate(zip(sizes, kinds.levels_of, strict=True)):
            for level in own if size <= longest else ():
                front = kinds.front(kind, level)
                lengths.append(len(front.time_s))
                kept.append(front.kept_bytes)
                times.append(front.time_s)
                level_bytes.append(kinds.level_bytes[level])
            levels.append(len(level_bytes))
        return cls(
            levels=np.array(levels),
            offset=np.cumsum(lengths),
            kept_bytes=np.concatenate([*kept, np.zeros(0)]),
            time_s=np.concatenate([*times, np.zeros(0)]),
            level_bytes=np.array(level_bytes, dtype=np.float64),
        )

    @classmethod
    def fastest(cls, kinds: StageKinds, longest: int) -> PackedFronts:
        """One way for each kind of up to `longest` layers: its fastest, as if it kept nothing."""
        runs = kinds.counts.sum(axis=1) <= longest
        nothing = np.zeros(int(runs.sum()))
        return cls(
            levels=np.concatenate(([0], np.cumsum(runs))),
            offset=np.arange(len(nothing) + 1),
            kept_bytes=nothing,
            time_s=kinds.least_time_s[runs],
            level_bytes=nothing,
        )

    @classmethod
    def joined(cls, fronts: Sequence[PackedFronts]) -> PackedFronts:
        """One behind the other, each with one kind more, which cannot be run."""
        levels, offset = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)]
        for own in fronts:
            levels.append(levels[-1][-1] + np.append(own.levels[1:], own.levels[-1]))
            offset.append(offset[-1][-1] + own.offset[1:])
        return cls(
            levels=np.concatenate(levels),
            offset=np.concatenate(offset),
            kept_bytes=np.concatenate([own.kept_bytes for own in fronts]),
            time_s=np.concatenate([own.time_s for own in fronts]),
            level_bytes=np.concatenate([own.level_bytes for own in fronts]),
        )

    @property
    def kind_of_points(self) -> Ints:
        """Of every point."""
        of_level = np.repeat(np.arange(len(self.levels) - 1), np.diff(self.levels))
        found: Ints = np.repeat(of_level, np.diff(self.offset))
        return found

    def place(self, kind: int, point: int) -> tuple[int, int]:
        """Which of the levels of its kind a point is of, and where in that front."""
        level = int(np.searchsorted(self.offset, point, side="right")) - 1
        return level - int(self.levels[kind]), point - int(self.offset[level])


def packed_fronts(kinds: StageKinds, longest: int) -> PackedFronts:
    """`PackedFronts.of`, kept for the longest that was asked for; asked again, for a few more."""
    for most, packed in kinds.packed.items():
        if most >= longest:
            return packed
    generous = min(kinds.num_layers, longest + longest // 4 if kinds.packed else longest)
    kinds.packed.clear()
    kinds.packed[generous] = PackedFronts.of(kinds, generous)
    return kinds.packed[generous]


# How many blocks each of several chunks per rank may hold: any number, or nearly the same
# ---------------------------------------------------------------------------------------
# Bounds are on splits of any lengths. Orders of these families repeat one pattern of chunks, and a
# chunk that takes longer than the others mostly holds up every rank in turn, so good splits are
# looked for first where all chunks are about as long.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageLengths:
    """Blocks are layers `first` up to `after`; stages hold from `least` to `most` [S] of them."""

    first: int
    after: int
    least: Ints
    most: Ints

    @property
    def num_blocks(self) -> int:
        """Of all stages together."""
        return self.after - self.first

    def stages(self, num_layers: int) -> NDArray[np.bool_]:
        """Whether layers [i, j) may be a stage where layers that are no blocks may be in any.

        Such a stage has any number of blocks up to that of the others, [L, L + 1].
        """
        i, j = np.arange(num_layers)[:, np.newaxis], np.arange(num_layers + 1)
        blocks = np.clip(j, self.first, self.after) - np.clip(i, self.first, self.after)
        has_others = (i < self.first) | (j > self.after)
        enough = has_others | (blocks >= self.least.max())
        found: NDArray[np.bool_] = (i < j) & (blocks <= self.most.max()) & enough
        return found


def any_lengths(profile: Profile, num_stages: int) -> StageLengths | None:
    """Every split with a block or more in each stage; None if there are too few blocks.

    Layers before the blocks are in the first stage, those after them in the last; these two may do
    without a block.
    """
    names = [layer.name for layer in profile.structure.layers]
    blocks = block_indices(names)
    first, after = blocks[0], blocks[-1] + 1
    least = np.ones(num_stages, dtype=np.int64)
    if first > 0:
        least[0] = 0
    if after < len(names):
        least[-1] = 0
    spare = after - first - int(least.sum())
    if spare < 0:
        return None
    return StageLengths(first=first, after=after, least=least, most=least + spare)


def nearly_even(profile: Profile, num_stages: int) -> StageLengths | None:
    """Of these, ⌊n / S⌋ or one more of n blocks in every stage; None if there are none.

    The first and the last stage may have any number of blocks up to that of the others, where they
    have other layers.
    """
    every = any_lengths(profile, num_stages)
    if every is None:
        return None
    each = every.num_blocks // num_stages
    least = np.where(every.least > 0, max(each, 1), 0)
    most = np.full(num_stages, each + 1, dtype=np.int64)
    if not least.sum() <= every.num_blocks <= most.sum():
        return None
    return replace(every, least=least, most=most)
