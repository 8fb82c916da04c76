"""Ways to run a kind of stage where what is kept for weight gradients lives longer than the rest.

With the backward split a stage holds some microbatches until their input gradient and more of them
until their weight gradient. A way is worth keeping if no other is as fast and keeps as little of
both.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.planning.made_of import Pairs, counted
from trainwright.planning.stage_kinds import dealings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.planning.made_of import Counts, MadeOf
    from trainwright.planning.stage_kinds import StageKinds

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Rows = tuple[int, ...]


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


def ways_of(kinds: StageKinds, kind: int, level: int) -> Ways:
    """All that is worth choosing for the layers of a kind with options up to a level."""
    present = [(c, count) for c, count in enumerate(kinds.counts[kind].tolist()) if count]
    return _joined(kinds, tuple((count, _rows(kinds, c, level)) for c, count in present))


def _joined(kinds: StageKinds, parts: tuple[tuple[int, Rows], ...]) -> Ways:
    """Of so many layers with each of these rows; kinds that begin alike share what they can."""
    if parts not in kinds.ways:
        last = kinds.ways.get(parts[-1:]) or _class_ways(kinds, *parts[-1])
        kinds.ways[parts[-1:]] = last
        if len(parts) > 1:
            kinds.ways[parts] = _both(_joined(kinds, parts[:-1]), last)
    return kinds.ways[parts]


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
        kinds.rows_worth[key] = _unbeaten(rows, _takes(kinds, rows))
    return kinds.rows_worth[key]


def _takes(kinds: StageKinds, rows: Sequence[int]) -> Floats:
    costs, own = kinds.profile.costs, list(rows)
    assert costs.phases is not None, "an estimate has phases"
    return np.stack(
        (
            costs.saved_until_input_grad_bytes[own],
            costs.saved_until_weight_grad_bytes[own],
            costs.phases.total_s[own],
        ),
        axis=1,
    )


def _class_ways(kinds: StageKinds, count: int, rows: Rows) -> Ways:
    """Of so many layers of one class."""
    dealt = dealings(count, len(rows))
    chosen = np.zeros((len(dealt), kinds.profile.costs.num_rows), dtype=np.int16)
    chosen[:, list(rows)] = dealt
    takes = dealt @ _takes(kinds, rows)
    order = np.argsort(-takes[:, 2], kind="stable")
    return Ways(takes[order], chosen[order])


def _unbeaten(rows: list[int], columns: Floats) -> Rows:
    no_less = (columns[:, np.newaxis] >= columns[np.newaxis]).all(axis=2)
    no_less &= ~(no_less.T & (np.arange(len(rows))[:, np.newaxis] <= np.arange(len(rows))))
    kept = np.flatnonzero(~no_less.any(axis=1))  # of equals the first stays
    return tuple(rows[i] for i in kept)


def _both(a: Ways, b: Ways) -> Ways:
    numbers = np.arange(len(a.takes) * len(b.takes))
    takes = (a.takes[:, np.newaxis] + b.takes).reshape(-1, 3)
    if 1 not in (len(a.takes), len(b.takes)):
        numbers = numbers[_worth_keeping(takes)]
        takes = takes[numbers]
    return Ways(takes, Pairs(a.made_of, b.made_of, len(b.takes), numbers))


def _worth_keeping(takes: Floats) -> Ints:
    """Which ways no other beats in everything, slowest first; of equals the first stays.

    In the order of their times a way is beaten where one before it keeps as little of both. Of
    those before it the ones that matter form a staircase: the more of the first, the less of the
    second.
    """
    order = np.lexsort((takes[:, 1], takes[:, 0], takes[:, 2]))
    firsts: list[float] = []
    seconds: list[float] = []
    keep = []
    for number, first, second in zip(order.tolist(), *takes[order, :2].T.tolist(), strict=True):
        at = bisect_right(firsts, first)
        if at and seconds[at - 1] <= second:
            continue
        after = at
        while after < len(seconds) and seconds[after] >= second:
            after += 1
        firsts[at:after], seconds[at:after] = [first], [second]
        keep.append(number)
    return np.array(keep[::-1])
