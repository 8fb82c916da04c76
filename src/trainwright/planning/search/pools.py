"""The search over plans on several pools: nodes by their bounds, made when their turn comes.

Best-first as in `search`. A point is bounded by devices × rate; when it is the least of all, its
layouts are bounded together (`MixedLayouts`); the least of these gets a sharp bound from its best
split (`splits.pools`), and when that is the least the plan is priced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from trainwright.execution import Budget, Progress
from trainwright.execution.best_first import BestFirst
from trainwright.planning.bounds.pools import (
    Across,
    Beside,
    Grid,
    MixedCandidate,
    MixedShelf,
    MixedWork,
    Part,
    Shape,
    across_bounds_s,
    across_grid,
    beside_bounds_s,
    beside_grid,
    mixed_points,
    mixed_schedules,
    pools_across,
    pools_beside,
    runs_alike,
    uniform_degrees,
)
from trainwright.planning.question.layouts import (
    CHAIN,
    CUTS_HEAD,
    IN_V,
    KEEPS_TO_ROOM,
    LOOPED,
    ON_HOST,
    WHOLE_GROUPS,
    Schedule,
    slices_at,
)
from trainwright.planning.question.question import (
    ZERO_STAGES,
    Candidate,
    ModelQuestion,
    Point,
    Span,
    left_bytes,
)
from trainwright.planning.search.framework import plan_runnable, runnable_spaces, sketch_runnable
from trainwright.planning.search.frontier import Shelves, least_of_any_order_s
from trainwright.planning.search.plans import both_copy, host_bytes_of, splits_itself
from trainwright.planning.search.search import ModelOutcome, Outcome
from trainwright.planning.splits.chain import CutsAndRows
from trainwright.planning.splits.cuts import finish_chain, finish_loop
from trainwright.planning.splits.pools import (
    MixedSplit,
    asked_across,
    asked_beside,
    best_mixed_split,
    bound_in_chunks_s,
    plan_across,
)
from trainwright.planning.splits.types import HAIR, Effort, Priced, SplitQuestion
from trainwright.planning.splits.vee import least_step_of_v_s
from trainwright.planning.splits.vee_cuts import (
    TimedPlan,
    Tried,
    fastest_in_rooms,
    fastest_of,
    fastest_with_less_room,
    is_small,
)
from trainwright.plans import Plan
from trainwright.plans.capability import capability_of
from trainwright.plans.capability_table import Feature
from trainwright.plans.plan import SEARCHED
from trainwright.plans.prediction import MixedPrediction, StagePrediction
from trainwright.profile import Profile
from trainwright.step.pools import AT_THEIR_PACE, mixed_works, predict_mixed_step

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints
    from trainwright.execution.executor import Crew


# Priced plans on several pools: what they cost, whether they fit, which of them is best
# --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPriced:
    """A plan, the profiles of its pools, and its predicted step."""

    shape: Shape
    plan: Plan
    profiles: dict[int, Profile]
    step: MixedPrediction


def priced_mixed(
    shelf: MixedShelf, shape: Shape, plan: Plan, profiles: dict[int, Profile]
) -> MixedPriced:
    """The plan with its price."""
    question = shelf.question
    step = predict_mixed_step(plan, profiles, shelf.cluster, **question.step_terms)
    return MixedPriced(shape=shape, plan=plan, profiles=profiles, step=step)


def fits(shelf: MixedShelf, found: MixedPriced) -> bool:
    """Whether every rank has room in the devices of its own pool, and on their hosts."""
    return missing_bytes(shelf, found) <= 0 and hosts_hold(shelf, found)


def missing_bytes(shelf: MixedShelf, found: MixedPriced) -> float:
    """What the device that lacks most lacks; at most 0 where all have room."""
    alone = {pool: shelf.alone(pool) for pool in found.shape.pools}
    return -min(
        left_bytes(alone[pool], found.plan, stage.memory.total_bytes)
        for pool, stage in _ranks(found.step)
    )


def hosts_hold(shelf: MixedShelf, found: MixedPriced) -> bool:
    """Whether the hosts of every pool have room for what its ranks keep there, and one user."""
    if any(both_copy(found.plan, profile) for profile in found.profiles.values()):
        return False
    held = host_bytes_by_rank(shelf, found)
    hosts = [shelf.cluster.pools[pool].accelerator.host for pool, _ in _ranks(found.step)]
    return all(
        host is not None and own <= host.memory_bytes
        for own, host in zip(held, hosts, strict=False)
    )


def host_bytes_by_rank(shelf: MixedShelf, found: MixedPriced) -> tuple[float, ...]:
    """What a device of each rank of each chain keeps on its host; empty where none does."""

    def price(
        question: ModelQuestion, plan: Plan, profiles: Mapping[int, Profile]
    ) -> list[StagePrediction]:
        asked = MixedShelf.of(question)
        step = priced_mixed(asked, found.shape, plan, dict(profiles)).step
        return [stage for _, stage in _ranks(step)]

    stages = [stage for _, stage in _ranks(found.step)]
    return host_bytes_of(shelf.question, found.plan, found.profiles, stages, price)


def _ranks(step: MixedPrediction) -> list[tuple[int, StagePrediction]]:
    """The ranks of all chains, each with its pool."""
    return [
        rank for chain in step.chains for rank in zip(chain.pools, chain.step.stages, strict=True)
    ]


def tightest(shelf: MixedShelf, found: MixedPriced) -> tuple[float, float]:
    """Peak and usable bytes of the rank that leaves the least of its device free, in proportion."""
    ranks = [(stage.memory.total_bytes, shelf.alone(pool)) for pool, stage in _ranks(found.step)]

    def left(rank: tuple[float, ModelQuestion]) -> float:
        usable_bytes = rank[1].cluster.accelerator.usable_bytes
        return left_bytes(rank[1], found.plan, rank[0]) / usable_bytes

    peak_bytes, question = min(ranks, key=left)
    return peak_bytes, question.cluster.accelerator.usable_bytes


def best_of_shapes(priced: Iterable[MixedPriced]) -> tuple[MixedPriced, ...]:
    """The fastest plan of each shape, fastest first; of equally fast ones that on fewest pools."""
    ordered = sorted(
        priced,
        key=lambda found: (
            float(f"{found.step.step_time_s:.11e}"),
            len(found.shape.pools),
            found.plan.devices_used,
            *_plainness(found.plan),
            found.shape.pools,
        ),
    )
    best: dict[Shape, MixedPriced] = {}
    for found in ordered:
        best.setdefault(found.shape, found)
    return tuple(best.values())


def _plainness(plan: Plan) -> tuple[int, ...]:
    """Fewer axes and less sharding come first."""
    degrees = plan.parallelism
    assert degrees is not None, "all stages share their degrees"
    return (
        degrees.context,
        degrees.expert,
        degrees.zero_stage,
        degrees.tensor,
        degrees.pipeline,
        plan.microbatch_size or 1,
    )


# All ways to lay a point's chains over several pools, bounded together
# ---------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class BoundedLayouts:
    """Those of one shape, ZeRO stage and family, least bound first."""

    shape: Shape
    point: Point
    zero_stage: int
    schedule: str
    grid: Grid
    bounds_s: Floats
    virtual_stages: int = 1
    done: int = 0

    def count_below(self, limit_s: float) -> int:
        """Those left that may be below a limit."""
        return max(0, int(np.searchsorted(self.bounds_s, limit_s)) - self.done)

    def candidate(self) -> MixedCandidate:
        """The next one."""
        counts = tuple(self.grid.counts[self.done].tolist())
        shared = int(self.grid.shared[self.done])
        common: dict[str, Any] = {
            "point": self.point,
            "zero_stage": self.zero_stage,
            "schedule": self.schedule,
            "pools": self.shape.pools,
            "virtual_stages": self.virtual_stages,
        }
        if self.shape.name == "across":
            return Across(**common, depths=counts, data=shared)
        return Beside(**common, replicas=counts, depth=shared)


@dataclass(slots=True)
class MixedLayouts:
    """Those of all shapes that use several pools; grids of counts are made once."""

    shelf: MixedShelf
    schedules: tuple[Schedule, ...] = field(init=False)
    _grids: dict[tuple[object, ...], Grid] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.schedules = mixed_schedules(self.shelf.question)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """All ways to use several pools; of pools that are alike the first ones, in their order."""
        count, is_first = len(self.shelf.cluster.pools), self.shelf.are_first
        across = (Shape(name="across", pools=own) for own in filter(is_first, pools_across(count)))
        beside = (Shape(name="beside", pools=own) for own in filter(is_first, pools_beside(count)))
        return (*across, *beside)

    def count(self, point: Point) -> int:
        """Candidates at a point."""
        found = 0
        for shape in self.shapes:
            grid, zero_stages = self._grid(shape, point), len(self._zero_stages(shape))
            for schedule in self.schedules if grid.size else ():
                found += zero_stages * int(self._chunks(schedule, shape, point, grid).sum())
        return found

    def _chunks(self, schedule: Schedule, shape: Shape, point: Point, grid: Grid) -> Ints:
        """With how many numbers of chunks each layout is legal under a family, [N]."""
        question = self.shelf.question
        own = grid.layouts(question, point, shape, family=schedule.family)
        blocks, length = question.model.num_layers, question.workload.sequence_length
        return schedule.chunks_at(own, blocks, length)

    def least_s(self, point: Point) -> float:
        """No plan of a point steps faster: all devices at the rates of its layers."""
        question, pools = self.shelf.question, tuple(range(len(self.shelf.cluster.pools)))
        work = MixedWork.of(self.shelf, point, pools)
        ranks = [pool.num_devices // point.devices for pool in self.shelf.cluster.pools]
        microbatches = question.workload.microbatches(point.microbatch_size)
        rates = work.speeds @ np.array(ranks, dtype=np.float64)
        least_s = np.array([float(each.trade.time_s[-1]) for each in work.works])
        return float((microbatches * least_s / rates).max())

    def least_of_any_order_s(self, point: Point) -> float:
        """No plan of a point steps faster, in whatever order its actions run."""
        found = [math.inf]
        for shape in self.shapes:
            grid, work = self._grid(shape, point), None
            for zero_stage in self._zero_stages(shape) if grid.size else ():
                work = work or MixedWork.of(self.shelf, point, shape.pools)
                own = self._bounded(work, shape, point, grid, zero_stage, SEARCHED, 1)
                found += own.bounds_s[:1].tolist()
        return min(found)

    def bounded(self, point: Point, *, limit_s: float = math.inf) -> Iterator[BoundedLayouts]:
        """Those of each shape, ZeRO stage and family that have a finite bound.

        Replicas that wait for each other are left out where that is known to exceed the limit.
        """
        for shape in self.shapes:
            yield from self.bounded_as(shape, point, limit_s=limit_s)

    def bounded_as(
        self, shape: Shape, point: Point, *, limit_s: float = math.inf
    ) -> Iterator[BoundedLayouts]:
        """Those of one shape."""
        grid = self._grid(shape, point)
        if not grid.size:
            return
        parts = list(self._in_parts(grid, shape, point))
        works = {
            part: MixedWork.of(self.shelf, point, shape.pools, part)
            for part in dict.fromkeys(part for _, _, part, _ in parts)
        }
        stages, waits = self._zero_stages(shape), shape.name == "beside"
        waits = waits and not self.shelf.are_alike(shape.pools)
        least_s = {
            part: self._least_at_one_pace_s(work, grid, point) for part, work in works.items()
        }
        for zero_stage in stages:
            at_one_pace, is_one_of_several = zero_stage > AT_THEIR_PACE, zero_stage > min(stages)
            for family, chunks, part, own in parts:
                if waits and at_one_pace:
                    if family in KEEPS_TO_ROOM:  # orders of pools would differ
                        continue
                    if is_one_of_several and least_s[part] * part.slices >= limit_s:
                        continue
                work = works[part]
                found = self._bounded(work, shape, point, own, zero_stage, family, part.slices)
                if found.grid.size:
                    found.virtual_stages = chunks
                    yield found

    def _least_at_one_pace_s(self, work: MixedWork, grid: Grid, point: Point) -> float:
        """No layout of a grid of replicas by depth steps faster, each slice with all others."""
        data = grid.counts.sum(axis=1)
        total = self.shelf.question.workload.microbatches(point.microbatch_size)
        slowest_s = max(float(each.trade.time_s[-1]) for each in work.works)
        each_s = np.where(total % data == 0, total // data * slowest_s / grid.shared, np.inf)
        return float(each_s.min(initial=np.inf))

    def _in_parts(
        self, grid: Grid, shape: Shape, point: Point
    ) -> Iterator[tuple[str, int, Part, Grid]]:
        """By family and chunks, the layouts under which it cuts sequences into so many slices."""
        for schedule in self.schedules:
            counts, family = self._chunks(schedule, shape, point, grid), schedule.family
            slices = slices_at(family, grid.depths(shape))
            for more in range(int(counts.max(initial=0))):
                for count in np.unique(slices[counts > more]).tolist():
                    part = Part(slices=count, cuts_head=family in CUTS_HEAD)
                    kept = (slices == count) & (counts > more)
                    yield family, schedule.virtual_stages.least + more, part, grid.of(kept)

    def _bounded(
        self,
        work: MixedWork,
        shape: Shape,
        point: Point,
        grid: Grid,
        zero_stage: int,
        schedule: str,
        slices: int,
    ) -> BoundedLayouts:
        stages, is_beside = self._zero_stages(shape), shape.name == "beside"
        grid = _worth_asking(grid, shape, point, zero_stage == min(stages, default=0))
        alike = runs_alike(self.shelf.question.allowed, zero_stage)
        total = self.shelf.question.workload.microbatches(point.microbatch_size)
        if is_beside and alike:
            whole = total % grid.counts.sum(axis=1) == 0
            if schedule in WHOLE_GROUPS:
                each = total // grid.counts.sum(axis=1)
                whole &= each % grid.shared == 0
            grid = grid.of(whole)
        bounds_s = np.zeros(0)
        if grid.size:
            bounded: Callable[..., Floats] = across_bounds_s
            if is_beside:
                bounded = partial(beside_bounds_s, alike=alike)
            named = [own.family for own in self.schedules]
            of_any = named if schedule == SEARCHED else [schedule]
            bounds_s = bounded(
                work,
                point,
                grid,
                microbatches=slices * total,
                zero_stage=zero_stage,
                schedule=schedule,
                degrees=uniform_degrees(point, zero_stage, pipeline=1, data=1),
                in_turn=all(family in CHAIN for family in of_any),
            )
        order = np.argsort(bounds_s, kind="stable")
        order = order[: int(np.isfinite(bounds_s).sum())]
        return BoundedLayouts(
            shape=shape,
            point=point,
            zero_stage=zero_stage,
            schedule=schedule,
            grid=Grid(counts=grid.counts[order], shared=grid.shared[order]),
            bounds_s=bounds_s[order],
        )

    def _zero_stages(self, shape: Shape) -> tuple[int, ...]:
        question = self.shelf.question
        possible = ZERO_STAGES if question.shards_state else (0,)
        return tuple(stage for stage in question.allowed.zero_stages if stage in possible)

    def _grid(self, shape: Shape, point: Point) -> Grid:
        key = (shape, point.microbatch_size, point.devices, point.expert_devices)
        if key not in self._grids:
            made = across_grid if shape.name == "across" else beside_grid
            self._grids[key] = made(self.shelf.question, point, shape.pools)
        return self._grids[key]


def _worth_asking(grid: Grid, shape: Shape, point: Point, is_least_stage: bool) -> Grid:
    """Without replicas all ZeRO stages are one."""
    if is_least_stage:
        return grid
    data = grid.shared if shape.name == "across" else grid.counts.sum(axis=1)
    return grid.of(data * point.context > 1)


# The search over plans on several pools: nodes by their bounds, made when their turn comes
# -----------------------------------------------------------------------------------------

_TIE: Final = 1 + 1e-12
# Of four models on A100 and H100 (16 to 32 devices) none of these four made another plan, gap or
# time at a quarter of it or at four times as much, or from 0.9 to 1.
_EXACT: Final = 400  # splits searched before the search may leave a gap, up to
_GAP: Final = 0.005  # of the best step after twice as many
_TRIES: Final = 8  # splits looked at for a plan of a shape that the search did not get to
_WORTH_TRYING: Final = 0.98  # of the best step: a split whose bound is below is priced at once
_IN_ROOMS: Final = 4  # candidates in V of a shape whose splits are looked for with many rooms
_BRIEF: Final = 40  # splits on several pools that a brief search looks at


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounded:
    """A candidate of several chunks per rank, bounded before a split of it is looked for.

    Or one that was priced, with its `plans`.
    """

    shape: Shape
    candidate: MixedCandidate
    plans: tuple[Plan, ...] = ()


_PlansOf: TypeAlias = Callable[[CutsAndRows], Iterable[Plan]]
_Node: TypeAlias = _AtPoint | BoundedLayouts | _Bounded | _Split


@dataclass(slots=True)
class MixedSearch:
    """What several pools can do, best bound first, against the best plan so far.

    `bounds` are of what was priced, whose least the search itself does not raise.
    """

    shelf: MixedShelf
    budget: Budget
    layouts: MixedLayouts = field(init=False)
    waiting: BestFirst[_Node] = field(default_factory=BestFirst)
    priced: list[MixedPriced] = field(default_factory=list)
    best_s: float = math.inf
    bounds: BestFirst[_Bounded] = field(default_factory=BestFirst)
    searched: int = 0
    undecided: int = 0
    considered: int = 0

    def __post_init__(self) -> None:
        self.layouts = MixedLayouts(self.shelf)

    @property
    def bound_s(self) -> float:
        """No plan on several pools is faster."""
        return min(self.best_s, self.bounds.least, self.waiting.least)

    @property
    def held_by(self) -> Candidate | None:
        """What holds the bound down where more splits do not raise it."""
        if not self.bounds or self.bounds.least > self.bound_s:
            return None
        loosest = self.bounds.first.candidate
        return Candidate(
            microbatch_size=loosest.point.microbatch_size,
            tensor=loosest.point.tensor,
            pipeline=loosest.degrees.pipeline,
            data=loosest.degrees.data,
            schedule=loosest.schedule,
            virtual_stages=loosest.virtual_stages,
        )

    def open(self) -> bool:
        """Bound all points by devices × rate; false where the budget ended before."""
        for point in mixed_points(self.shelf.question):
            if self.budget.poll(self._progress):
                return False
            count = self.layouts.count(point)
            self.considered += count
            if count:
                self.waiting.add(self.layouts.least_s(point), _AtPoint(point=point, count=count))
        return True

    def run(self, most: float = math.inf) -> None:
        """Until nothing left can be better than the best plan, `most` splits, or the budget end."""
        for bound_s, node in self.waiting.opened(
            below=lambda: self.best_s * self._enough,
            stopped=lambda: self.budget.poll(self._progress) or self.searched >= most,
        ):
            self._open(bound_s, node, limit_s=self.best_s * _TIE)

    def finish(self) -> None:
        """Look through further splits that may be better.

        Of one stage per rank first, then of loops, as on one pool; in V few are tried with many
        rooms.
        """
        effort = Effort.usual(self.shelf.question.effort)
        for families in ({*CHAIN} - {*CUTS_HEAD, *ON_HOST}, LOOPED):
            self._among(families, lambda one: self._looked_through(one, effort))
        rooms = {name: iter(range(_IN_ROOMS)) for name in ("across", "beside")}
        self._among(IN_V, lambda one: self._in_rooms(one, rooms))

    def _among(self, families: Collection[str], opened: Callable[[_Bounded], float]) -> None:
        """Raise the bounds of what was priced across, least first, to what `opened` says of it."""
        raised: dict[int, float] = {}
        for bound_s, node in self.bounds.soonest(len(self.bounds)):
            if bound_s >= self.best_s * HAIR or self.budget.poll(self._progress):
                break
            if node.candidate.schedule in families:
                raised[id(node)] = opened(node)
        self.bounds.revise(lambda bound_s, node: max(bound_s, raised.get(id(node), bound_s)))

    def _looked_through(self, node: _Bounded, effort: Effort) -> float:
        """The bound of a candidate all of whose splits that may be better are simulated."""
        shelf, candidate = self.shelf, node.candidate
        if effort.is_spent:
            return 0.0
        asked, plans, others_s = self._asked(candidate)

        def price(split: CutsAndRows) -> MixedPriced | None:
            every = (self._priced(node, plan) for plan in plans(split))
            fitting = (found for found in every if fits(shelf, found))
            return min(fitting, key=lambda found: found.step.step_time_s, default=None)

        if candidate.schedule in CHAIN:
            found = finish_chain(asked, price, effort, limit_s=self.best_s)
        else:
            found = finish_loop(asked, price, effort, limit_s=self.best_s)
        if found is None:
            return 0.0
        if found.found is not None:
            self._keep(found.found)
        if self.shelf.question.allowed.recomputes_first:  # cuts may have a plan that is faster
            return 0.0
        return min(found.bound_s, others_s)

    def _in_rooms(self, node: _Bounded, rooms: Mapping[str, Iterator[int]]) -> float:
        """Try splits in V that are good for less room; no bound follows."""
        if next(rooms[node.shape.name], None) is None:
            return 0.0
        asked, plans, _ = self._asked(node.candidate)
        tries, limit_s = _Tries(self, node, plans), self.best_s
        tried = fastest_of(node.plans, tries.timed, limit_s=limit_s)
        if tried.missing_bytes:
            roomy = fastest_with_less_room(
                asked, tried.missing_bytes, tries.fastest, limit_s=min(limit_s, tried.step_s)
            )
            tried = tried.or_faster(roomy)
        if is_small(asked):
            tried = fastest_in_rooms(asked, tries, tried, limit_s=limit_s)
        if tried.step_s < self.best_s:
            assert tried.plan is not None, "a step that was tried is of a plan"
            self._keep(tries.priced(tried.plan))
        return 0.0

    def _asked(self, candidate: MixedCandidate) -> tuple[SplitQuestion, _PlansOf, float]:
        """What asks for further splits, the plans of each, and a bound on plans of no such split.

        The bound is 0 where a split may have plans that are faster than those told.
        """
        if isinstance(candidate, Across):
            return asked_across(self.shelf, candidate), partial(self._across, candidate), math.inf
        beside = asked_beside(self.shelf, candidate, limit_s=self.best_s * _TIE)
        return beside.question, beside.plans, beside.others_s if beside.of_all else 0.0

    def _across(self, candidate: Across, split: CutsAndRows) -> tuple[Plan, ...]:
        return (plan_across(self.shelf, candidate, *split),)

    def _priced(self, node: _Bounded, plan: Plan) -> MixedPriced:
        point = node.candidate.point
        profiles = {pool: self.shelf.profile(pool, point) for pool in node.shape.pools}
        return priced_mixed(self.shelf, node.shape, plan, profiles)

    def _keep(self, found: MixedPriced) -> None:
        self.priced.append(found)
        self.best_s = min(self.best_s, found.step.step_time_s)

    def fill_shapes(self, known: Iterable[MixedPriced] = ()) -> None:
        """Price a few plans of every shape that has none, in the order of their bounds."""
        told = {found.shape for found in (*known, *self.priced)}
        for shape in self.layouts.shapes:
            if shape not in told:
                self._fill(shape)

    def _fill(self, shape: Shape) -> None:
        tries, others = _TRIES, list[tuple[float, _Node]]()
        for bound_s, node in self.waiting.opened(stopped=lambda: self.budget.poll(self._progress)):
            if isinstance(node, _AtPoint):
                self._open(bound_s, node, limit_s=math.inf)
            elif node.shape != shape:
                others.append((bound_s, node))
            else:
                tries -= 1
                self._open(bound_s, node, limit_s=math.inf, hurry=math.inf)
                if not tries:
                    break
        for bound_s, node in others:
            self.waiting.add(bound_s, node)

    @property
    def _enough(self) -> float:
        exact = _EXACT * self.shelf.question.effort
        return _TIE - _GAP * min(1.0, max(0.0, self.searched / exact - 1))

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
        for bound_s, node in self.waiting:
            if bound_s < self.best_s:
                match node:
                    case _AtPoint():
                        left += node.count
                    case BoundedLayouts():
                        left += node.count_below(self.best_s)
                    case _Bounded() | _Split():
                        left += 1
        return left

    def _open(
        self, bound_s: float, node: _Node, *, limit_s: float, hurry: float = _WORTH_TRYING
    ) -> None:
        """Take a node one step on; a split below `hurry` best steps is priced at once."""
        match node:
            case _AtPoint():
                for found in self.layouts.bounded(node.point, limit_s=limit_s):
                    self.waiting.add(float(found.bounds_s[0]), found)
            case BoundedLayouts():
                self._sharpen(bound_s, node, limit_s=limit_s, hurry=hurry)
            case _Bounded():
                self._find(bound_s, node.shape, node.candidate, limit_s=limit_s, hurry=hurry)
            case _Split():
                self._price(bound_s, node)

    def _sharpen(
        self, bound_s: float, node: BoundedLayouts, *, limit_s: float, hurry: float
    ) -> None:
        candidate = node.candidate()
        node.done += 1
        if node.done < node.grid.size:
            self.waiting.add(float(node.bounds_s[node.done]), node)
        self.searched += 1
        if candidate.schedule in CHAIN:
            self._find(bound_s, node.shape, candidate, limit_s=limit_s, hurry=hurry)
            return
        own_s = bound_in_chunks_s(self.shelf, candidate, limit_s=limit_s)
        if own_s < limit_s:
            bounded = _Bounded(shape=node.shape, candidate=candidate)
            self.waiting.add(max(bound_s, own_s), bounded)

    def _find(
        self,
        bound_s: float,
        shape: Shape,
        candidate: MixedCandidate,
        *,
        limit_s: float,
        hurry: float,
    ) -> None:
        """The best split of a candidate, or a good one."""
        split = best_mixed_split(self.shelf, candidate, limit_s=limit_s)
        if not split.bound_s < limit_s:
            return
        sharper = replace(split, bound_s=max(bound_s, split.bound_s))
        found = _Split(shape=shape, candidate=candidate, split=sharper)
        if sharper.bound_s < hurry * self.best_s:
            self._price(sharper.bound_s, found)
        else:
            self.waiting.add(sharper.bound_s, found)

    def _price(self, bound_s: float, node: _Split) -> None:
        priced = _Bounded(shape=node.shape, candidate=node.candidate, plans=node.split.plans)
        self.bounds.add(bound_s, priced)
        every = [self._priced(priced, plan) for plan in node.split.plans]
        fitting = [found for found in every if fits(self.shelf, found)]
        if every and not fitting:
            fitting = self._with_less_room(priced, every)
        if not fitting:
            self.undecided += 1
            return
        self._keep(min(fitting, key=lambda found: found.step.step_time_s))

    def _with_less_room(self, node: _Bounded, missed: list[MixedPriced]) -> list[MixedPriced]:
        """A plan in V that fits, where orders hold more than their splits have room for."""
        if node.candidate.schedule not in IN_V:
            return []
        least = min(missing_bytes(self.shelf, found) for found in missed)
        asked, plans, _ = self._asked(node.candidate)
        tries = _Tries(self, node, plans)
        tried = fastest_with_less_room(asked, max(least, 0.0), tries.fastest, limit_s=self.best_s)
        return [] if tried.plan is None else [tries.priced(tried.plan)]


@dataclass(frozen=True, slots=True)
class _Tries:
    """Plans in V of splits of a candidate, priced in full."""

    search: MixedSearch
    node: _Bounded
    plans: _PlansOf

    def fastest(self, splits: list[CutsAndRows], limit_s: float) -> Tried:
        """The fastest that fits, of those whose pipelines are within the limit."""
        return fastest_of(chain.from_iterable(map(self.plans, splits)), self.timed, limit_s=limit_s)

    def floor_s(self, split: CutsAndRows) -> float:
        """No order of the split steps faster."""
        return min(map(self._floor_s, self.plans(split)), default=math.inf)

    def priced(self, plan: Plan) -> MixedPriced:
        """One of the plans."""
        return self.search._priced(self.node, plan)

    def _floor_s(self, plan: Plan) -> float:
        shelf = self.search.shelf
        profiles = {g: shelf.profile(g, self.node.candidate.point) for g in self.node.shape.pools}
        works = mixed_works(plan, profiles, shelf.cluster, **shelf.question.step_settings)
        return max(least_step_of_v_s(work, layout) for _, work, layout in works)

    def timed(self, plan: Plan, longest_s: float) -> TimedPlan | None:
        """What a step takes and lacks; None where it is longer, or too much for hosts."""
        if self._floor_s(plan) > longest_s:
            return None
        found, shelf = self.priced(plan), self.search.shelf
        missing = missing_bytes(shelf, found)
        if missing <= 0 and not hosts_hold(shelf, found):
            return None
        return TimedPlan(found.step.pipeline_s, found.step.step_time_s, missing)


# Planning a model on several pools of devices: each pool alone, and all ways to use several
# ------------------------------------------------------------------------------------------
# Pools alone are planned first by `search.search`, with all that it knows, so that what several
# pools must beat is known; `MixedSearch` looks for plans that do.


def plan_on_pools(question: ModelQuestion, budget: Budget) -> ModelOutcome | Outcome[MixedPriced]:
    """The best plan on the cluster, of one pool or several, and a bound on every other."""
    if len(question.cluster.pools) > 1:
        return plan_mixed(question, budget)
    return plan_runnable(question, budget, num_alternatives=0)


def sketch_on_pools(
    question: ModelQuestion,
    budget: Budget,
    *,
    to_beat_s: float = math.inf,
    shelves: Shelves | None = None,
) -> Priced | MixedPriced | None:
    """A good plan on the cluster, of one pool or several, soon, and no bound; None without one."""
    if len(question.cluster.pools) > 1:
        return sketch_mixed(question, budget)
    return sketch_runnable(question, budget, to_beat_s=to_beat_s, shelves=shelves)


def plan_mixed(
    question: ModelQuestion, budget: Budget, *, crew: Crew | None = None
) -> Outcome[MixedPriced]:
    """The fastest plan on one pool or several, and a bound on every other.

    A `crew` helps with each pool alone. Raises `UnsupportedFeature` where the pools share no number
    format, and like `search.search`.
    """
    shelf = MixedShelf.of(question)
    alone = {pool: _alone(shelf, pool, budget, crew) for pool in sorted(set(shelf.first))}
    priced = [
        _one_pool(shelf, pool, found)
        for pool, outcome in alone.items()
        for found in outcome.priced[:1]
    ]
    searches, is_complete = [], True
    for part in parts_on_pools(question):
        search = MixedSearch(MixedShelf.of(part), budget, best_s=_least_s(priced))
        is_complete = search.open() and is_complete
        search.run()
        search.finish()
        search.fill_shapes(priced)
        searches.append(search)
        priced += search.priced
    best_s = _least_s(priced)
    for search in searches:
        search.best_s = best_s
    open_parts = [each for each in alone.values() if each.is_open]
    known = [(each.lower_bound_s, each.loosest) for each in open_parts]
    known += [(search.bound_s, search.held_by) for search in searches]
    held_s, loosest = min(
        known, key=lambda part: (part[0], part[1] is None), default=(best_s, None)
    )
    bound_s = min(best_s, held_s)
    left = sum(search.count_left() for search in searches)
    considered = sum(search.considered for search in searches)
    reached = sum(search.searched for search in searches)
    return Outcome(
        priced=best_of_shapes(priced),
        lower_bound_s=bound_s if is_complete and math.isfinite(bound_s) else 0.0,
        considered=considered + sum(each.considered for each in alone.values()),
        pruned=max(0, considered - reached - left) + sum(each.pruned for each in alone.values()),
        not_reached=left + sum(each.not_reached for each in alone.values()),
        exhausted=all(each.exhausted for each in alone.values())
        and not (budget.stopped or any(search.undecided for search in searches)),
        interrupted=budget.interrupted,
        loosest=loosest,
    )


def least_of_any_order_on_pools_s(question: ModelQuestion, budget: Budget) -> float:
    """No plan steps faster, in whatever order its actions run; 0 where the budget ends before."""
    shelf = MixedShelf.of(question)
    found = [least_of_any_order_s(shelf.alone(pool), budget) for pool in sorted(set(shelf.first))]
    for part in parts_on_pools(question):
        own = MixedShelf.of(part)
        layouts = MixedLayouts(own)
        for point in mixed_points(part):
            if budget.stopped:
                return 0.0
            found.append(layouts.least_of_any_order_s(point))
    return min(found)


def parts_on_pools(question: ModelQuestion) -> Iterator[ModelQuestion]:
    """The parts of the space whose plans use several pools and can be launched there.

    Whose framework cuts a pipeline by itself cuts it alike for all devices: it has replicas alone.
    """
    allowed = question.allowed
    if allowed.framework and not capability_of(allowed.framework).can(Feature.SEVERAL_KINDS):
        return
    for space in runnable_spaces(allowed, question.repeated_modules):
        if not splits_itself(allowed):
            yield replace(question, allowed=space)
        elif 1 in space.pipeline:
            yield replace(question, allowed=replace(space, pipeline=Span.only(1)))


def _least_s(priced: Iterable[MixedPriced]) -> float:
    return min((found.step.step_time_s for found in priced), default=math.inf)


def sketch_mixed(question: ModelQuestion, budget: Budget) -> MixedPriced | None:
    """A good plan on one pool or several, soon, and no bound; None where none is found."""
    shelf, priced = MixedShelf.of(question), list[MixedPriced]()
    for pool in sorted(set(shelf.first)):
        found = sketch_runnable(shelf.alone(pool), budget)
        if found is not None:
            priced.append(_one_pool(shelf, pool, found))
    for part in parts_on_pools(question):
        search = MixedSearch(MixedShelf.of(part), budget, best_s=_least_s(priced))
        if search.open():
            search.run(_BRIEF)
        priced += search.priced
    return next(iter(best_of_shapes(priced)), None)


def _alone(shelf: MixedShelf, pool: int, budget: Budget, crew: Crew | None) -> ModelOutcome:
    return plan_runnable(shelf.alone(pool), budget, num_alternatives=0, crew=crew)


def _one_pool(shelf: MixedShelf, pool: int, found: Priced) -> MixedPriced:
    """A plan of `search.search` as one of the whole cluster."""
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
