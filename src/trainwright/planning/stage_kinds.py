"""Every stage a chain of layers can be cut into, told apart by its number of layers of each class.

Blocks of a model are alike, so the L²/2 intervals of its layers are a few hundred *kinds*. What a
kind costs is worked out once, and so is its *front*: of all ways to recompute its layers, those
that keep fewer bytes than any as fast. Options come in levels by their transient bytes, of which a
stage needs the largest: a level offers all options up to its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.plan.overlap import DEFAULT_OVERLAP
from trainwright.planning.made_of import Pairs, counted
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.overlap import Overlap
    from trainwright.planning.kind_ways import PackedWays, Ways
    from trainwright.planning.made_of import Counts, MadeOf
    from trainwright.planning.packed_fronts import PackedFronts
    from trainwright.profile import Profile

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


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


@dataclass(slots=True, eq=False)
class StageKinds:
    """The K kinds of stages of a profile's chain of L layers in C classes.

    `counts` [K, C], `kind_of` [L, L + 1] by first layer and the layer after the last, -1 where
    empty, `forward_s` [K] of one microbatch, `static_bytes` [K, 2, 3], `sync_bytes` [K, 2] and
    `trained_bytes` [K, 2] as in the cost table with tied parameters once, `weight_bytes` [K] of the
    heaviest layer. At a level a stage needs `level_bytes` [levels] for transients; `levels_of` [K]
    are those that may be best. `overlap` says what exchanges of replicas hide under.
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
    level_bytes: Floats
    levels_of: tuple[tuple[int, ...], ...]
    overlap: Overlap = DEFAULT_OVERLAP
    packed: dict[int, PackedFronts] = field(default_factory=dict)
    ways: dict[tuple[tuple[int, tuple[int, ...]], ...], Ways] = field(default_factory=dict)
    rows_worth: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    packed_ways: dict[bytes, PackedWays] = field(default_factory=dict)
    _fronts: dict[tuple[int, int], Front] = field(default_factory=dict)
    _of_class: dict[tuple[int, tuple[int, ...]], Front] = field(default_factory=dict)
    _rows: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, profile: Profile, overlap: Overlap = DEFAULT_OVERLAP) -> StageKinds:
        """The kinds of `profile`, whose layers form a chain."""
        costs = profile.costs
        assert costs.phases is not None, "an estimate has phases"
        counts, kind_of = _kinds(tuple(layer.layer_class for layer in profile.structure.layers))
        level_bytes, levels_of = _levels(profile, counts)

        def least(rows: Floats) -> Floats:
            found: Floats = np.minimum.reduceat(rows, costs.class_offsets[:-1])
            return found

        def summed(values: Floats) -> Floats:
            total: Floats = np.where(counts > 0, counts * values, 0.0).sum(axis=1)
            return total

        first = costs.class_offsets[:-1]
        weights = costs.static_bytes[first][:, :, StaticKind.WEIGHT].sum(axis=1)
        static = np.tensordot(counts.astype(np.float64), costs.static_bytes[first], axes=1)
        sync = counts @ costs.gradient_sync_bytes[first]
        trained = counts @ costs.updated_weight_bytes[first]
        _count_tied_once(profile, counts, static, sync, trained)
        return cls(
            profile=profile,
            counts=counts,
            kind_of=kind_of,
            forward_s=summed(least(costs.phases.forward_s)),
            least_time_s=summed(least(costs.phases.total_s)),
            static_bytes=static,
            opaque_bytes=counts @ costs.opaque_static_bytes[first],
            sync_bytes=sync,
            trained_bytes=trained,
            weight_bytes=np.where(counts > 0, weights, 0.0).max(axis=1),
            level_bytes=level_bytes,
            levels_of=levels_of,
            overlap=overlap,
        )

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.kind_of)

    def front(self, kind: int, level: int) -> Front:
        """All that is worth choosing for the layers of a kind, with options up to `level`."""
        key = (kind, level)
        if key not in self._fronts:
            counts = enumerate(self.counts[kind].tolist())
            self._fronts[key] = reduce(
                _both, (self._class_front(*of, level) for of in counts if of[1])
            )
        return self._fronts[key]

    def _class_front(self, layer_class: int, count: int, level: int) -> Front:
        rows = self._rows_within(layer_class, level)
        if (count, rows) not in self._of_class:
            self._of_class[count, rows] = self._made_class_front(count, rows)
        return self._of_class[count, rows]

    def _rows_within(self, layer_class: int, level: int) -> tuple[int, ...]:
        """The options of a class that need no more transients than the level has."""
        if (layer_class, level) not in self._rows:
            costs = self.profile.costs
            rows = np.array(costs.rows_of(layer_class))
            within = rows[costs.transient_bytes[rows] <= self.level_bytes[level]]
            self._rows[layer_class, level] = tuple(within.tolist())
        return self._rows[layer_class, level]

    def _made_class_front(self, count: int, rows: tuple[int, ...]) -> Front:
        costs, own = self.profile.costs, list(rows)
        assert costs.phases is not None
        ways = dealings(count, len(rows))
        chosen = np.zeros((len(ways), costs.num_rows), dtype=np.int16)
        chosen[:, own] = ways
        kept_bytes = ways @ costs.saved_bytes[own]
        time_s = ways @ costs.phases.total_s[own]
        best = _pareto(kept_bytes, time_s)
        return Front(kept_bytes[best], time_s[best], chosen[best])


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
        own = costs.static_bytes[first, 0]
        weight = float(own[StaticKind.WEIGHT])
        tied = group.bytes / int(costs.tensor_parallel[first])
        shared = own * (min(1.0, tied / weight) if weight > 0 else 0.0)
        twice = np.maximum(0, (counts[:, classes] > 0).sum(axis=1) - 1)
        static[:, 0] -= twice[:, np.newaxis] * shared
        sync[:, 0] -= twice * shared[StaticKind.GRADIENT]
        if costs.updated_weight_bytes[first, 0] > 0:
            trained[:, 0] -= twice * shared[StaticKind.WEIGHT]


def _levels(profile: Profile, counts: Ints) -> tuple[Floats, tuple[tuple[int, ...], ...]]:
    """Transient bytes of each level, and for each kind the levels at which all its layers can run.

    A level that none of a kind's own options has needs more than the one below and offers no more.
    """
    costs = profile.costs
    level_bytes = np.unique(costs.transient_bytes)
    level_of = np.searchsorted(level_bytes, costs.transient_bytes)
    own = [
        sorted({int(level_of[row]) for row in costs.rows_of(c)}) for c in range(costs.num_classes)
    ]
    made: dict[bytes, tuple[int, ...]] = {}
    levels_of = []
    for mask in counts > 0:
        key = mask.tobytes()
        if key not in made:
            present = [own[c] for c in np.flatnonzero(mask)]
            lowest = max(levels[0] for levels in present)
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
    kept_bytes = np.add.outer(a.kept_bytes, b.kept_bytes).reshape(-1)
    time_s = np.add.outer(a.time_s, b.time_s).reshape(-1)
    best = _pareto(kept_bytes, time_s)
    return Front(kept_bytes[best], time_s[best], Pairs(a.made_of, b.made_of, len(b.time_s), best))


def _pareto(kept_bytes: Floats, time_s: Floats) -> Ints:
    """Which points keep fewer bytes than any as fast, by kept bytes ascending."""
    if (kept_bytes[1:] > kept_bytes[:-1]).all() and (time_s[1:] < time_s[:-1]).all():
        return np.arange(len(time_s))
    order = np.lexsort((time_s, kept_bytes))
    time_s = time_s[order]
    best_before = np.minimum.accumulate(np.concatenate(([np.inf], time_s[:-1])))
    found: Ints = order[time_s < best_before]
    return found
