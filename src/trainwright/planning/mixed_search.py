"""The search over plans on several pools: nodes by their bounds, made when their turn comes.

Best-first as in `model_search`. A point is bounded by devices × rate; when it is the least of all,
its layouts are bounded together (`mixed_layouts`); the least of these gets a sharp bound from its
best split (`mixed_split`), and when that is the least the plan is priced.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from trainwright.execution import Progress
from trainwright.planning.mixed_layouts import BoundedLayouts, MixedLayouts
from trainwright.planning.mixed_priced import MixedPriced, fits, priced_mixed
from trainwright.planning.mixed_space import MixedShelf, mixed_points
from trainwright.planning.mixed_split import best_mixed_split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.execution import Budget
    from trainwright.planning.mixed_priced import Shape
    from trainwright.planning.mixed_space import MixedCandidate
    from trainwright.planning.mixed_split import MixedSplit
    from trainwright.planning.model_space import Point

_TIE: Final = 1 + 1e-12
_EXACT: Final = 400  # splits searched before the search may leave a gap, up to
_GAP: Final = 0.005  # of the best step after twice as many
_TRIES: Final = 8  # splits looked at for a plan of a shape that the search did not get to
_WORTH_TRYING: Final = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class _AtPoint:
    """All layouts of all shapes at a point."""

    point: Point
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A candidate with its best split."""

    shape: Shape
    candidate: MixedCandidate
    split: MixedSplit


_Node: TypeAlias = _AtPoint | BoundedLayouts | _Split


@dataclass(slots=True)
class MixedSearch:
    """What several pools can do, best bound first, against the best plan so far."""

    shelf: MixedShelf
    budget: Budget
    layouts: MixedLayouts = field(init=False)
    heap: list[tuple[float, int, _Node]] = field(default_factory=list)
    priced: list[MixedPriced] = field(default_factory=list)
    best_s: float = math.inf
    least_priced_s: float = math.inf
    serial: int = 0
    searched: int = 0
    undecided: int = 0
    considered: int = 0

    def __post_init__(self) -> None:
        self.layouts = MixedLayouts(self.shelf)

    @property
    def least_s(self) -> float:
        """The least bound that waits."""
        return self.heap[0][0] if self.heap else math.inf

    @property
    def bound_s(self) -> float:
        """No plan on several pools is faster."""
        return min(self.best_s, self.least_priced_s, self.least_s)

    def open(self) -> bool:
        """Bound all points by devices × rate; false where the budget ended before."""
        if self.shelf.question.allowed.framework is not None:
            return True  # none runs such plans yet
        for point in mixed_points(self.shelf.question):
            if self.budget.poll(self._progress):
                return False
            count = self.layouts.count(point)
            self.considered += count
            if count:
                self._push(self.layouts.least_s(point), _AtPoint(point=point, count=count))
        return True

    def run(self) -> None:
        """Until nothing left can be better than the best plan, or the budget ends."""
        while self.least_s < self.best_s * self._enough:
            if self.budget.poll(self._progress):
                return
            self._step(limit_s=self.best_s * _TIE)

    def fill_shapes(self) -> None:
        """Price a few plans of every shape that has none, in the order of their bounds."""
        for shape in self.layouts.shapes:
            if any(found.shape == shape for found in self.priced):
                continue
            tries, kept = _TRIES, []
            while tries and self.heap:
                if self.budget.poll(self._progress):
                    break
                node = self.heap[0][2]
                if isinstance(node, _AtPoint):
                    self._step(limit_s=math.inf)
                elif node.shape != shape:
                    kept.append(heapq.heappop(self.heap))
                else:
                    tries -= 1
                    self._step(limit_s=math.inf, hurry=math.inf)
            for entry in kept:
                heapq.heappush(self.heap, entry)

    @property
    def _enough(self) -> float:
        effort = (self.searched - _EXACT) / _EXACT
        return _TIE - _GAP * min(1.0, max(0.0, effort))

    @property
    def _progress(self) -> Progress:
        return Progress(
            stage="planning",
            elapsed_s=self.budget.elapsed_s,
            best=self.best_s,
            lower_bound=self.bound_s,
        )

    def count_left(self) -> int:
        """Candidates that wait below the best plan."""
        left = 0
        for bound_s, _, node in self.heap:
            if bound_s < self.best_s:
                match node:
                    case _AtPoint():
                        left += node.count
                    case BoundedLayouts():
                        left += node.count_below(self.best_s)
                    case _Split():
                        left += 1
        return left

    def _push(self, bound_s: float, node: _Node) -> None:
        self.serial += 1
        heapq.heappush(self.heap, (bound_s, self.serial, node))

    def _step(self, *, limit_s: float, hurry: float = _WORTH_TRYING) -> None:
        """Take the least node one step on; a split below `hurry` best steps is priced at once."""
        bound_s, _, node = heapq.heappop(self.heap)
        match node:
            case _AtPoint():
                for found in self.layouts.bounded(node.point):
                    self._push(float(found.bounds_s[0]), found)
            case BoundedLayouts():
                self._sharpen(bound_s, node, limit_s=limit_s, hurry=hurry)
            case _Split():
                self._price(bound_s, node)

    def _sharpen(
        self, bound_s: float, node: BoundedLayouts, *, limit_s: float, hurry: float
    ) -> None:
        candidate = node.candidate()
        node.done += 1
        if node.done < node.grid.size:
            self._push(float(node.bounds_s[node.done]), node)
        self.searched += 1
        split = best_mixed_split(self.shelf, candidate, limit_s=limit_s)
        if not split.bound_s < limit_s:
            return
        sharper = replace(split, bound_s=max(bound_s, split.bound_s))
        found = _Split(shape=node.shape, candidate=candidate, split=sharper)
        if sharper.bound_s < hurry * self.best_s:
            self._price(sharper.bound_s, found)
        else:
            self._push(sharper.bound_s, found)

    def _price(self, bound_s: float, node: _Split) -> None:
        self.least_priced_s = min(self.least_priced_s, bound_s)
        fitting = [found for found in self._plans(node) if fits(self.shelf, found.step)]
        if not fitting:
            self.undecided += 1
            return
        best = min(fitting, key=lambda found: found.step.step_time_s)
        self.priced.append(best)
        self.best_s = min(self.best_s, best.step.step_time_s)

    def _plans(self, node: _Split) -> Iterator[MixedPriced]:
        point = node.candidate.point
        profiles = {pool: self.shelf.profile(pool, point) for pool in node.shape.pools}
        for plan in node.split.plans:
            yield priced_mixed(self.shelf, node.shape, plan, profiles)
