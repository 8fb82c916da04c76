"""Ways to run a kind of stage where what is kept for weight gradients lives longer than the rest.

With the backward split a stage holds some microbatches until their input gradient and more of them
until their weight gradient. A way is worth keeping if no other is as fast and keeps as little of
both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.planning.stage_kinds import dealings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.planning.stage_kinds import StageKinds

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_PAIRWISE = 250  # more ways than these are kept without comparing all


class Ways(NamedTuple):
    """N ways, slowest first: what each takes per microbatch [N, 3], and its layers by row [N, R].

    Takes are bytes kept until the input gradient, bytes until the weight gradient, and seconds.
    """

    takes: Floats
    chosen: Ints

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


def ways_of(kinds: StageKinds, kind: int, level: int) -> Ways:
    """All that is worth choosing for the layers of a kind with options up to a level."""
    key = (kind, level)
    if key not in kinds.ways:
        rows = kinds.profile.costs.num_rows
        found = Ways(np.zeros((1, 3)), np.zeros((1, rows), dtype=np.int64))
        for layer_class, count in enumerate(kinds.counts[kind].tolist()):
            if count:
                found = _both(found, _class_ways(kinds, layer_class, count, level))
        kinds.ways[key] = found
    return kinds.ways[key]


def packed_ways(kinds: StageKinds, used: Ints) -> PackedWays:
    """Those of some kinds at all their levels, kept for the kinds that were asked for."""
    key = used.tobytes()
    if key not in kinds.packed_ways:
        levels = [(kind, level) for kind in used.tolist() for level in kinds.levels_of[kind]]
        ways = [ways_of(kinds, kind, level).takes for kind, level in levels]
        counts = [len(kinds.levels_of[kind]) for kind in used.tolist()]
        kinds.packed_ways[key] = PackedWays(
            level_offset=np.cumsum([0, *counts]),
            level_bytes=np.array([kinds.level_bytes[level] for _, level in levels]),
            way_offset=np.cumsum([0, *map(len, ways)]),
            takes=np.concatenate(ways),
        )
    return kinds.packed_ways[key]


def _class_ways(kinds: StageKinds, layer_class: int, count: int, level: int) -> Ways:
    """Of layers of one class; rows that another one beats in everything are left out."""
    costs = kinds.profile.costs
    assert costs.phases is not None, "an estimate has phases"
    rows = [
        row
        for row in costs.rows_of(layer_class)
        if costs.transient_bytes[row] <= kinds.level_bytes[level]
    ]
    columns = np.stack(
        (
            costs.saved_until_input_grad_bytes[rows],
            costs.saved_until_weight_grad_bytes[rows],
            costs.phases.total_s[rows],
        ),
        axis=1,
    )
    rows, columns = _unbeaten(rows, columns)
    key = (count, tuple(rows))
    if key not in kinds.class_ways:
        dealt = dealings(count, len(rows))
        chosen = np.zeros((len(dealt), costs.num_rows), dtype=np.int64)
        chosen[:, rows] = dealt
        takes = dealt @ columns
        order = np.argsort(-takes[:, 2], kind="stable")
        kinds.class_ways[key] = Ways(takes[order], chosen[order])
    return kinds.class_ways[key]


def _unbeaten(rows: list[int], columns: Floats) -> tuple[list[int], Floats]:
    no_less = (columns[:, np.newaxis] >= columns[np.newaxis]).all(axis=2)
    no_less &= ~(no_less.T & (np.arange(len(rows))[:, np.newaxis] <= np.arange(len(rows))))
    kept = np.flatnonzero(~no_less.any(axis=1))  # of equals the first stays
    return [rows[i] for i in kept], columns[kept]


def _both(a: Ways, b: Ways) -> Ways:
    first, second = np.divmod(np.arange(len(a.takes) * len(b.takes)), len(b.takes))
    both = Ways(a.takes[first] + b.takes[second], a.chosen[first] + b.chosen[second])
    return both if 1 in (len(a.takes), len(b.takes)) else _worth_keeping(both)


def _worth_keeping(ways: Ways) -> Ways:
    order = np.lexsort((ways.takes[:, 1], ways.takes[:, 0], ways.takes[:, 2]))
    takes, chosen = ways.takes[order], ways.chosen[order]
    if len(order) <= _PAIRWISE:
        no_less = (takes[:, np.newaxis] >= takes[np.newaxis]).all(axis=2)
        keep = ~np.tril(no_less, k=-1).any(axis=1)  # of equals the first stays
        takes, chosen = takes[keep], chosen[keep]
    return Ways(takes[::-1], chosen[::-1])
