"""Planning a model on several pools of devices: each pool alone, and all ways to use several.

Best-first as in `model_search`. A point is bounded by devices × rate; when it is the least of all,
its layouts are bounded together (`mixed_bound`); the least of these gets a sharp bound from its
best split (`mixed_split`), and when that is the least the plan is priced. Pools alone are planned
first by `model_planner`, with all that it knows, so that what several pools must beat is known.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from trainwright.execution import Progress
from trainwright.planning.framework import plan_runnable
from trainwright.planning.mixed_bound import MixedWork, across_bounds_s, beside_bounds_s
from trainwright.planning.mixed_priced import (
    MixedPriced,
    Shape,
    best_of_shapes,
    fits,
    priced_mixed,
)
from trainwright.planning.mixed_space import (
    Across,
    Beside,
    Grid,
    MixedShelf,
    across_grid,
    beside_grid,
    mixed_families,
    mixed_points,
    pools_across,
    pools_beside,
)
from trainwright.planning.mixed_split import best_mixed_split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from trainwright.execution import Budget
    from trainwright.execution.executor import Crew
    from trainwright.planning.mixed_space import MixedCandidate
    from trainwright.planning.mixed_split import MixedSplit
    from trainwright.planning.model_planner import ModelOutcome
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.model_space import Point
    from trainwright.planning.split_plan import Priced

    Floats = NDArray[np.float64]

_TIE: Final = 1 + 1e-12
_EXACT: Final = 400  # splits searched before the search may leave a gap, up to
_GAP: Final = 0.005  # of the best step after twice as many
_TRIES: Final = 8  # splits looked at for a plan of a shape that the search did not get to
_WORTH_TRYING: Final = 0.98
_BESIDE_ZERO: Final = (0, 1)  # ZeRO 2 and 3 exchange inside microbatches


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedOutcome:
    """Best plan first; the bound holds for every plan of the searched space.

    Beside the best there is one plan for each other shape, where one was found; that is the best of
    its shape where the pool is alone, else a good one.
    """

    priced: tuple[MixedPriced, ...]
    lower_bound_s: float
    considered: int
    pruned: int
    not_reached: int
    exhausted: bool
    interrupted: bool


def plan_mixed(
    question: ModelQuestion,
    budget: Budget,
    *,
    shelf: MixedShelf | None = None,
    crew: Crew | None = None,
) -> MixedOutcome:
    """The fastest plan on one pool or several, and a bound on every other.

    A `crew` helps with each pool alone. Raises `UnsupportedFeature` where the pools share no number
    format, and like `model_planner`.
    """
    shelf = shelf or MixedShelf.of(question)
    alone = {pool: _alone(shelf, pool, budget, crew) for pool in range(len(shelf.cluster.pools))}
    search = _Search(shelf, budget)
    for pool, outcome in alone.items():
        search.priced += [_one_pool(shelf, pool, found) for found in outcome.priced[:1]]
    search.best_s = min((found.step.step_time_s for found in search.priced), default=math.inf)
    is_complete = search.open()
    search.run()
    search.fill_shapes()
    open_parts = [each for each in alone.values() if each.priced or not each.exhausted]
    bound_s = min([search.bound_s, *(each.lower_bound_s for each in open_parts)])
    left = search.count_left()
    reached = search.searched
    considered = search.considered + sum(each.considered for each in alone.values())
    return MixedOutcome(
        priced=best_of_shapes(search.priced),
        lower_bound_s=bound_s if is_complete and math.isfinite(bound_s) else 0.0,
        considered=considered,
        pruned=max(0, search.considered - reached - left)
        + sum(each.pruned for each in alone.values()),
        not_reached=left + sum(each.not_reached for each in alone.values()),
        exhausted=all(each.exhausted for each in alone.values())
        and not (budget.stopped or search.undecided),
        interrupted=budget.interrupted,
    )


def _alone(shelf: MixedShelf, pool: int, budget: Budget, crew: Crew | None) -> ModelOutcome:
    return plan_runnable(shelf.alone(pool), budget, num_alternatives=0, crew=crew)


def _one_pool(shelf: MixedShelf, pool: int, found: Priced) -> MixedPriced:
    """A plan of `model_planner` as one of the whole cluster."""
    kind = shelf.cluster.pools[pool].accelerator.name
    stages = tuple(
        replace(
            stage,
            replicas=tuple(replace(g, pool=pool, device_kind=kind) for g in stage.replicas),
        )
        for stage in found.plan.stages
    )
    plan = replace(found.plan, stages=stages)
    shape = Shape(name="alone", pools=(pool,))
    return priced_mixed(shelf, shape, plan, {pool: found.profile})


@dataclass(frozen=True, slots=True, kw_only=True)
class _AtPoint:
    """All layouts of all shapes at a point."""

    point: Point
    count: int


@dataclass(slots=True, kw_only=True)
class _Layouts:
    """Those of one shape, ZeRO stage and family, least bound first."""

    shape: Shape
    point: Point
    zero_stage: int
    schedule: str
    grid: Grid
    bounds_s: Floats
    done: int = 0

    def candidate(self) -> MixedCandidate:
        """The next one."""
        counts = tuple(self.grid.counts[self.done].tolist())
        shared = int(self.grid.shared[self.done])
        if self.shape.name == "across":
            return Across(
                point=self.point,
                zero_stage=self.zero_stage,
                schedule=self.schedule,
                pools=self.shape.pools,
                depths=counts,
                data=shared,
            )
        return Beside(
            point=self.point,
            zero_stage=self.zero_stage,
            schedule=self.schedule,
            pools=self.shape.pools,
            replicas=counts,
            depth=shared,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A candidate with its best split."""

    shape: Shape
    candidate: MixedCandidate
    split: MixedSplit


_Node: TypeAlias = _AtPoint | _Layouts | _Split


@dataclass(slots=True)
class _Search:
    shelf: MixedShelf
    budget: Budget
    heap: list[tuple[float, int, _Node]] = field(default_factory=list)
    priced: list[MixedPriced] = field(default_factory=list)
    best_s: float = math.inf
    least_priced_s: float = math.inf
    serial: int = 0
    searched: int = 0
    undecided: int = 0
    considered: int = 0
    grids: dict[tuple[object, ...], Grid] = field(default_factory=dict)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """All ways to use several pools."""
        count = len(self.shelf.cluster.pools)
        across = (Shape(name="across", pools=pools) for pools in pools_across(count))
        beside = (Shape(name="beside", pools=pools) for pools in pools_beside(count))
        return (*across, *beside)

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
        families = mixed_families(self.shelf.question)
        for point in mixed_points(self.shelf.question):
            if self.budget.poll(self._progress):
                return False
            count = sum(
                self._grid(shape, point).size * len(self._zero_stages(shape)) * len(families)
                for shape in self.shapes
            )
            self.considered += count
            if count:
                self._push(self._point_bound_s(point), _AtPoint(point=point, count=count))
        return True

    def run(self) -> None:
        """Until nothing left can be better than the best plan, or the budget ends."""
        while self.least_s < self.best_s * self._enough:
            if self.budget.poll(self._progress):
                return
            self._step(limit_s=self.best_s * _TIE)

    def fill_shapes(self) -> None:
        """Price a few plans of every shape that has none, in the order of their bounds."""
        for shape in self.shapes:
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
                    case _Layouts():
                        below = int(np.searchsorted(node.bounds_s, self.best_s))
                        left += max(0, below - node.done)
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
                self._expand(node.point)
            case _Layouts():
                self._sharpen(bound_s, node, limit_s=limit_s, hurry=hurry)
            case _Split():
                self._price(bound_s, node)

    def _zero_stages(self, shape: Shape) -> tuple[int, ...]:
        allowed = self.shelf.question.allowed.zero_stages
        if shape.name == "across":
            return allowed
        return tuple(stage for stage in allowed if stage in _BESIDE_ZERO)

    def _grid(self, shape: Shape, point: Point) -> Grid:
        key = (shape, point.microbatch_size, point.devices, point.expert_devices)
        if key not in self.grids:
            made = across_grid if shape.name == "across" else beside_grid
            self.grids[key] = made(self.shelf.question, point, shape.pools)
        return self.grids[key]

    def _point_bound_s(self, point: Point) -> float:
        question, pools = self.shelf.question, tuple(range(len(self.shelf.cluster.pools)))
        work = MixedWork.of(self.shelf, point, pools)
        ranks = [pool.num_devices // point.devices for pool in self.shelf.cluster.pools]
        microbatches = question.workload.global_batch // point.microbatch_size
        rates = work.speeds @ np.array(ranks, dtype=np.float64)
        least_s = np.array([float(each.trade.time_s[-1]) for each in work.works])
        return float((microbatches * least_s / rates).max())

    def _expand(self, point: Point) -> None:
        for shape in self.shapes:
            grid = self._grid(shape, point)
            if not grid.size:
                continue
            work = MixedWork.of(self.shelf, point, shape.pools)
            for zero_stage in self._zero_stages(shape):
                for schedule in mixed_families(self.shelf.question):
                    self._push_layouts(work, shape, point, grid, zero_stage, schedule)

    def _push_layouts(
        self,
        work: MixedWork,
        shape: Shape,
        point: Point,
        grid: Grid,
        zero_stage: int,
        schedule: str,
    ) -> None:
        grid = _worth_asking(grid, shape, point, zero_stage, schedule, self._zero_stages(shape))
        if not grid.size:
            return
        bounded = across_bounds_s if shape.name == "across" else beside_bounds_s
        degrees = Across(
            point=point, zero_stage=zero_stage, schedule=schedule, pools=(0,), depths=(1,), data=1
        ).degrees
        bounds_s = bounded(
            work,
            point,
            grid,
            microbatches=self.shelf.question.workload.global_batch // point.microbatch_size,
            zero_stage=zero_stage,
            schedule=schedule,
            degrees=degrees,
        )
        order = np.argsort(bounds_s, kind="stable")
        order = order[: int(np.isfinite(bounds_s).sum())]
        if len(order):
            node = _Layouts(
                shape=shape,
                point=point,
                zero_stage=zero_stage,
                schedule=schedule,
                grid=Grid(counts=grid.counts[order], shared=grid.shared[order]),
                bounds_s=bounds_s[order],
            )
            self._push(float(node.bounds_s[0]), node)

    def _sharpen(self, bound_s: float, node: _Layouts, *, limit_s: float, hurry: float) -> None:
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


def _worth_asking(
    grid: Grid,
    shape: Shape,
    point: Point,
    zero_stage: int,
    schedule: str,
    zero_stages: tuple[int, ...],
) -> Grid:
    """Without replicas all ZeRO stages are one, and on one rank all families are."""
    kept = np.ones(grid.size, dtype=bool)
    if zero_stage != min(zero_stages):
        data = grid.shared if shape.name == "across" else grid.counts.sum(axis=1)
        kept &= data * point.context > 1
    if schedule != "1f1b" and shape.name == "beside":
        kept &= grid.shared > 1
    return Grid(counts=grid.counts[kept], shared=grid.shared[kept])
