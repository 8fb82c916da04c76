"""Every split in V of a small space, with a bound on each: nearly even, fitting as published.

The space is that of `VProblem.published`. Each cut is bounded by a peel of this cut alone
(`native/peel.hpp`), which recomputes as little as memory allows; other ways to recompute lengthen
ranks by what they take longer. Ways are those of the fronts (`stage_kinds`): none that keeps fewer
bytes is as fast. Cuts are a few hundred where stages are as many as half of the blocks, ways two or
three to a stage: what is left of the product once a plan is known and memory is short can be tried
one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from trainwright._native import _core
from trainwright.planning.v_split import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from trainwright.planning.split_bound import CutsAndRows
    from trainwright.planning.v_problem import VProblem

    Bools = NDArray[np.bool_]
    Cuts = tuple[int, ...]

_MOST_CUTS: Final = 1000


class _Way(NamedTuple):
    """How both stages of a rank run: seconds of a microbatch, points of all fronts."""

    time_s: float
    near: int
    far: int


def every_split(v: VProblem, *, most: int) -> list[tuple[float, CutsAndRows]] | None:
    """All splits of the space within the limit of the problem, those of least bounds first.

    Bounds are on the step. None where there are more than `most`, or too many cuts to look at.
    """
    if v.even is None:
        return []
    is_stage = v.even.stages(v.kinds.num_layers)
    if _paths(is_stage, 2 * v.num_ranks) > _MOST_CUTS:
        return None
    space, found = v.any_published(), []
    ways = _Ways(v, space)
    for cuts in _every_cut(is_stage, 2 * v.num_ranks):
        for bound_s, points in _ways_of(v, space, ways, cuts):
            found.append((bound_s + v.overhead_s, (cuts, rows_of(v, cuts, points))))
            if len(found) > most:
                return None
    return sorted(found)


def num_splits(v: VProblem) -> float:
    """How many splits the space had with all memory one could need."""
    if v.even is None:
        return 0.0
    fronts, kind_of = v.fronts, v.kinds.kind_of
    last = fronts.levels[1:] - 1
    ways = np.where(np.diff(fronts.levels) > 0, np.diff(fronts.offset)[last], 0)
    each = np.where(v.even.stages(v.kinds.num_layers), ways[kind_of], 0)
    return _paths(each, 2 * v.num_ranks)


def _paths(each: NDArray[Any], num_stages: int) -> float:
    """Through so many stages, each [L, L + 1] times, from the first layer to the last."""
    ends = np.zeros(each.shape[1])
    ends[0] = 1.0
    for _ in range(num_stages):
        ends = ends[:-1] @ each
    return float(ends[-1])


def _every_cut(is_stage: Bools, num_stages: int) -> Iterator[Cuts]:
    """In lexical order."""
    size = len(is_stage)
    reaches = np.zeros((num_stages + 1, size + 1), dtype=bool)
    reaches[0, size] = True
    for left in range(num_stages):
        reaches[left + 1, :-1] = (is_stage & reaches[left]).any(axis=1)

    def onward(cuts: Cuts) -> Iterator[Cuts]:
        left = num_stages + 1 - len(cuts)
        if left == 0:
            yield cuts
            return
        for after in np.flatnonzero(is_stage[cuts[-1]] & reaches[left - 1]).tolist():
            yield from onward((*cuts, after))

    if reaches[num_stages, 0]:
        yield from onward((0,))


def _ways_of(
    v: VProblem, space: dict[str, Any], ways: _Ways, cuts: Cuts
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """The bound on the pipeline and the point of each stage, for all ways within the limit."""
    stages = list(pairwise(cuts))
    only = np.full_like(v.kinds.kind_of, len(space["level_offset"]) - 1)
    for first, after in stages:
        only[first, after] = v.kinds.kind_of[first, after]
    levels = np.append(space["level_offset"], space["level_offset"][-1])
    least_s, *_, rank_s, _ = _core.peel(**(space | {"kind_of": only, "level_offset": levels}))
    if math.isinf(least_s):
        return
    p, m = v.num_ranks, v.num_microbatches
    each = []
    for rank in range(p):
        near, far = (int(v.kinds.kind_of[cut]) for cut in (stages[rank], stages[-1 - rank]))
        own = ways.of(rank, near, far)
        fastest_s = own[0].time_s
        own_s = [(float(rank_s[rank]) + m * (way.time_s - fastest_s), way) for way in own]
        each.append([one for one in own_s if one[0] <= v.limit_s])
    for chosen in product(*each):
        near_points = [way.near for _, way in chosen]
        far_points = [way.far for _, way in chosen]
        yield max(own_s for own_s, _ in chosen), (*near_points, *reversed(far_points))


@dataclass(slots=True, eq=False)
class _Ways:
    """The ways of two stages of a rank that fit into memory together, fastest first."""

    v: VProblem
    space: dict[str, Any]
    known: dict[tuple[int, int, int], list[_Way]] = field(default_factory=dict)

    def of(self, rank: int, near: int, far: int) -> list[_Way]:
        """Of two kinds; points that run layers as others do are left out."""
        key = rank, near, far
        if key not in self.known:
            self.known[key] = self._made(rank, near, far)
        return self.known[key]

    def _made(self, rank: int, near: int, far: int) -> list[_Way]:
        found: dict[tuple[float, float, float], _Way] = {}
        kept, time_s = self.space["front_bytes"], self.space["front_time_s"]
        for level, other_level in product(self._levels(near), self._levels(far)):
            for i, j in product(self._points(level), self._points(other_level)):
                if self._fits(rank, (near, far), (level, other_level), (i, j)):
                    same = float(time_s[i]), float(time_s[j]), float(kept[i])
                    found.setdefault(same, _Way(same[0] + same[1], i, j))
        return sorted(found.values())

    def _levels(self, kind: int) -> range:
        return range(*self.space["level_offset"][kind : kind + 2].tolist())

    def _points(self, level: int) -> range:
        return range(*self.space["front_offset"][level : level + 2].tolist())

    def _fits(
        self,
        rank: int,
        kinds: tuple[int, int],
        levels: tuple[int, int],
        points: tuple[int, int],
    ) -> bool:
        """As the peel has it: at every instant, and with the first two microbatches."""
        x, p = self.space, self.v.num_ranks
        near, far = kinds
        whole = x["weight_bytes"][near] + x["weight_bytes"][far]
        heaviest = max(x["largest_weight_bytes"][near], x["largest_weight_bytes"][far])
        state = x["static_bytes"][near] + x["static_bytes"][far]
        room = x["usable_bytes"] - state - min(x["gathered_share"] * heaviest, whole)
        own, other = (x["front_bytes"][point] for point in points)
        beside = [x["transient_bytes"][level] for level in levels]
        least_beside = max(min(beside), *(x["beside_bytes"][level] for level in levels))
        if own + beside[0] > room or own + other + beside[1] > room:
            return False
        held = x["near_in_flight"][rank::p, 0] * own + x["far_in_flight"][rank::p, 0] * other
        return bool(held.max() <= room - least_beside)
