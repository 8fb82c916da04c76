"""All candidates of a question by their coarse bounds, made only when their turn comes.

The space is a tree: microbatch size and degrees of the dense parts; how experts are dealt out; ZeRO
stage and schedule; depth and data degree. A node's bound holds for all below it, and a node is
opened when it is the least of all, so most of the space is counted and never looked at.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from trainwright.costing.estimate import Estimator
from trainwright.plan.axis_order import DATA_INSIDE, PIPELINE_INSIDE
from trainwright.planning.coarse_bound import CoarseBounds
from trainwright.planning.copies import with_copies
from trainwright.planning.device_room import room_of_devices
from trainwright.planning.expert_floor import LeastLayers, least_layers, with_exchanges
from trainwright.planning.family_bounds import ChainWork
from trainwright.planning.layouts import Layouts, layouts_of
from trainwright.planning.mappings import with_mappings
from trainwright.planning.model_question import estimate_profile
from trainwright.planning.model_space import Candidate, Point, dense_points, expert_points
from trainwright.planning.pair_batch import Batch, Space
from trainwright.planning.point_work import PointWork
from trainwright.planning.schedules import Schedule, schedules_of
from trainwright.planning.stage_kinds import StageKinds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from trainwright.execution import Budget
    from trainwright.planning.aims import Aim
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.profile import Profile

    Floats = NDArray[np.float64]

_NEAR: Final = 1.2  # times the least of a point: pairs with less work are bounded first


@dataclass(slots=True)
class Shelf:
    """Profiles by point, made when first asked for."""

    question: ModelQuestion
    estimator: Estimator
    made: dict[Point, Profile] = field(default_factory=dict)
    cut: dict[Point, StageKinds] = field(default_factory=dict)
    alike: dict[bytes, StageKinds] = field(default_factory=dict)

    @classmethod
    def of(cls, question: ModelQuestion) -> Shelf:
        """An empty one."""
        return cls(question, question.estimator())

    def profile(self, point: Point) -> Profile:
        """What layers cost at a point."""
        if point not in self.made:
            self.made[point] = estimate_profile(self.estimator, self.question, point)
        return self.made[point]

    def kinds(self, point: Point) -> StageKinds:
        """The kinds of stages of a point's profile, the same where layers cost the same.

        That is so where context parallelism is free: twice of it cuts twice the microbatch.
        """
        if point not in self.cut:
            profile = self.profile(point)
            costs = _fingerprint(profile)
            if costs not in self.alike:
                self.alike[costs] = StageKinds.of(profile, self.question.settings.overlap)
            self.cut[point] = self.alike[costs]
        return self.cut[point]


def _fingerprint(profile: Profile) -> bytes:
    """All numbers that tell two profiles of one model apart."""
    costs, edges = profile.costs, profile.structure.edges
    assert costs.phases is not None, "an estimate has phases"
    tables = [
        costs.phases.forward_s,
        costs.phases.input_grad_s,
        costs.phases.weight_grad_s,
        costs.phases.recompute_s,
        costs.saved_until_input_grad_bytes,
        costs.saved_until_weight_grad_bytes,
        costs.transient_bytes,
        costs.static_bytes,
        costs.opaque_static_bytes,
        costs.gradient_sync_bytes,
        np.array([edge.bytes for edge in edges]),
    ]
    return b"".join(np.ascontiguousarray(table).tobytes() for table in tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dense:
    """All ways to deal the experts out at the degrees of a point."""

    point: Point
    count: int
    least: tuple[LeastLayers, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Priced:
    """A point whose layers have to be priced."""

    point: Point
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """A point whose layers are priced, and its pairs that are not bounded yet."""

    point: Point
    work: PointWork
    layouts: Layouts


@dataclass(slots=True, kw_only=True)
class _Pairs:
    """Depths, data degrees and chunks at a point, ZeRO stage and schedule; least bound first.

    Those of `layouts` from `first` on, with `bounds_s` [N].
    """

    point: Point
    zero_stage: int
    schedule: Schedule
    layouts: Layouts
    first: int
    bounds_s: Floats
    done: int = 0

    def count_below(self, limit_s: float) -> int:
        """Candidates left that may be below a limit."""
        return max(0, int(np.searchsorted(self.bounds_s, limit_s)) - self.done)

    def candidate(self, index: int) -> Candidate:
        """One of them."""
        point, index = self.point, self.first + index
        return Candidate(
            microbatch_size=point.microbatch_size,
            tensor=point.tensor,
            context=point.context,
            expert=point.expert,
            expert_tensor=point.expert_tensor,
            pipeline=int(self.layouts.pipeline[index]),
            data=int(self.layouts.data[index]),
            zero_stage=self.zero_stage,
            schedule=self.schedule.family,
            virtual_stages=int(self.layouts.virtual_stages[index]),
            axis_order=PIPELINE_INSIDE if self.layouts.inside[index] else DATA_INSIDE,
            state_copies=int(self.layouts.copies[index]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _One:
    """A candidate."""

    candidate: Candidate


_Node: TypeAlias = _Dense | _Priced | _Open | _Pairs | _One


@dataclass(slots=True)
class Frontier:
    """The candidates that were not taken yet; `considered` counts all there are.

    Bounds are on the figure that the aim makes least: seconds of a step, or what follows from them.
    Families set `aside` are looked at no more: none of their `num_aside` candidates at points that
    were opened, and none at others, has a bound below `aside_s`.
    """

    question: ModelQuestion
    shelf: Shelf
    aim: Aim
    considered: int = 0
    aside: frozenset[str] = frozenset()
    aside_s: float = math.inf
    num_aside: int = 0
    _coarse: CoarseBounds = field(init=False)
    _space: Space = field(init=False)
    _heap: list[tuple[float, int, _Node]] = field(default_factory=list)
    _serial: int = 0
    _layouts: dict[tuple[int, int, int], Layouts] = field(default_factory=dict)
    _counts: dict[tuple[int, int, int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._coarse = CoarseBounds(room_of_devices(self.question), self.question.settings.overlap)
        asked = self.question
        self._space = Space(schedules_of(asked.allowed), asked.model.num_layers, asked.allowed)

    @property
    def families(self) -> frozenset[str]:
        """The schedule families of the space."""
        return frozenset(schedule.family for schedule in self._space.schedules)

    def open(self, budget: Budget) -> bool:
        """Bound the roots; false where the budget ran out before all of them were."""
        asked = self.question
        for point in dense_points(
            asked.model,
            asked.cluster,
            asked.workload,
            asked.allowed,
            num_devices=asked.num_devices,
        ):
            if budget.stopped:
                return False
            if not asked.settings.cuts_heads(
                asked.model, tensor=point.tensor, context=point.context
            ):
                continue
            dealt = [
                _Priced(point=each, count=count)
                for each in expert_points(asked.model, point, asked.allowed)
                if (count := self._count(each))
            ]
            if not dealt:
                continue
            self.considered += sum(node.count for node in dealt)
            if asked.model.experts is None:
                self._price(dealt[0])
                continue
            least = least_layers(asked, point)
            count = sum(node.count for node in dealt)
            # Not of the pairs of the point itself: with its experts elsewhere it may have fewer.
            pairs = {id(each): each for each in (self._pairs(node.point) for node in dealt)}
            key = min(self._least_keys(point, least, each).min() for each in pairs.values())
            self._push(float(key), _Dense(point=point, count=count, least=least))
        return True

    @property
    def least_s(self) -> float:
        """No candidate that is left has a lower bound; infinite where none is left."""
        return self._heap[0][0] if self._heap else math.inf

    def least_among_s(self, families: Collection[str]) -> float:
        """No candidate that is left under one of these families has a lower bound."""
        found_s = math.inf
        for bound_s, _, node in self._heap:
            match node:
                case _Pairs():
                    is_asked = node.schedule.family in families
                case _One():
                    is_asked = node.candidate.schedule in families
                case _:
                    is_asked = True
            if is_asked:
                found_s = min(found_s, bound_s)
        return found_s

    def set_aside(self, families: Collection[str]) -> None:
        """Look at no more candidates of these families."""
        self.aside, self.aside_s = frozenset(families), self.least_s
        left = []
        for entry in self._heap:
            match entry[2]:
                case _Pairs() as node if node.schedule.family in self.aside:
                    self.num_aside += len(node.bounds_s) - node.done
                case _One() as node if node.candidate.schedule in self.aside:
                    self.num_aside += 1
                case _:
                    left.append(entry)
        heapq.heapify(left)
        self._heap = left

    def count_below(self, limit_s: float) -> int:
        """Candidates left that may be below the limit; those of an unopened node all count."""
        return sum(
            self._count_in(node, limit_s) for bound_s, _, node in self._heap if bound_s < limit_s
        )

    def _count_in(self, node: _Node, limit_s: float) -> int:
        match node:
            case _Pairs():
                return node.count_below(limit_s)
            case _Open():
                return self._space.num_candidates(node.point, node.layouts)
            case _One():
                return 1
            case _:
                return node.count

    def take(self) -> tuple[float, Candidate] | None:
        """Open the node of least bound; a candidate and its bound where one was reached."""
        bound_s, _, node = heapq.heappop(self._heap)
        match node:
            case _Dense():
                for point in expert_points(self.question.model, node.point, self.question.allowed):
                    count = self._count(point)
                    if count:
                        least = with_exchanges(self.question, point, node.least)
                        least_s = max(bound_s, self._least_key(point, least))
                        self._push(least_s, _Priced(point=point, count=count))
            case _Priced():
                self._price(node)
            case _Open():
                self._open_point(bound_s, node)
            case _Pairs():
                return bound_s, self._next_of(node)
            case _One():
                return bound_s, node.candidate
        return None

    def coming(self, count: int) -> Iterator[tuple[float, Candidate]]:
        """The next candidates and their bounds, as far as nodes are open; none is taken."""
        nodes = (entry for entry in self._heap if isinstance(entry[2], (_Pairs, _One)))
        ahead = [(*entry, 0) for entry in heapq.nsmallest(count, nodes)]
        for _ in range(count):
            if not ahead:
                return
            bound_s, serial, node, skipped = heapq.heappop(ahead)
            if isinstance(node, _One):
                yield bound_s, node.candidate
            elif isinstance(node, _Pairs):
                yield bound_s, node.candidate(node.done + skipped)
                after = node.done + skipped + 1
                if after < len(node.bounds_s):
                    rest = (float(node.bounds_s[after]), serial, node, skipped + 1)
                    heapq.heappush(ahead, rest)

    def put_back(self, bound_s: float, candidate: Candidate) -> None:
        """A candidate that was taken, with what is known of it by now."""
        self._push(bound_s, _One(candidate=candidate))

    def _price(self, node: _Priced) -> None:
        """Price the layers, for a bound on the whole point."""
        point = node.point
        work, layouts = PointWork.of(self.shelf.profile(point)), self._pairs(point)
        bound_s = float(self._least_keys(point, _least_of(work), layouts).min())
        self._push(bound_s, _Open(point=point, work=work, layouts=layouts))

    def _open_point(self, bound_s: float, node: _Open) -> None:
        """Bound the pairs of least work under every ZeRO stage and schedule; others wait."""
        point, work = node.point, node.work
        keys = self._least_keys(point, _least_of(work), node.layouts)
        least_s = max(bound_s, float(keys.min()))
        is_near = keys <= max(least_s, _NEAR * least_s)
        is_far = ~is_near & np.isfinite(keys)
        if is_far.any():
            far = node.layouts.at(is_far)
            self._push(float(keys[is_far].min()), _Open(point=point, work=work, layouts=far))
        chain = ChainWork.of(self.shelf.kinds(point))
        near = node.layouts.at(is_near)
        if self.aside:
            self.num_aside += self._space.of(self.aside).num_candidates(point, near)
        batch = Batch.of(self._space.without(self.aside), point, near)
        if not batch.parts:  # no schedule has an order there
            return
        bounds_s = self._coarse.bounds_s(work, point, batch, chain=chain)
        devices = point.devices * batch.layouts.pipeline * batch.layouts.data
        self._push_pairs(point, batch, self.aim.keys(bounds_s, devices))

    def _push_pairs(self, point: Point, batch: Batch, keys: Floats) -> None:
        """Those of each schedule and ZeRO stage that have a finite bound."""
        number = np.repeat(np.arange(len(batch.parts)), [part.size for part in batch.parts])
        order = np.lexsort((keys, number))
        layouts, keys = batch.layouts.at(order), keys[order]
        for part in batch.parts:
            bounds_s = keys[part.own]
            bounds_s = bounds_s[: int(np.isfinite(bounds_s).sum())]
            if len(bounds_s):
                pairs = _Pairs(
                    point=point,
                    zero_stage=part.zero_stage,
                    schedule=part.schedule,
                    layouts=layouts,
                    first=part.own.start,
                    bounds_s=bounds_s,
                )
                self._push(float(bounds_s[0]), pairs)

    def _next_of(self, pairs: _Pairs) -> Candidate:
        """The next pair; those after it wait with their own bounds."""
        found = pairs.candidate(pairs.done)
        pairs.done += 1
        if pairs.done < len(pairs.bounds_s):
            self._push(float(pairs.bounds_s[pairs.done]), pairs)
        return found

    def _push(self, bound_s: float, node: _Node) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (bound_s, self._serial, node))

    def _least_key(self, point: Point, least: tuple[LeastLayers, ...]) -> float:
        """The least of all pairs."""
        return float(self._least_keys(point, least, self._pairs(point)).min())

    def _least_keys(self, point: Point, least: tuple[LeastLayers, ...], layouts: Layouts) -> Floats:
        """Of every pair if ranks worked all the time and had all memory."""
        p, m = layouts.pipeline, layouts.num_microbatches
        steps_s = m / p * sum(each.time_s * each.num_layers for each in least)
        for each in least:
            steps_s = np.maximum(steps_s, m * each.time_s * -(-each.num_layers // p))
        steps_s = steps_s + self.question.cluster.accelerator.step_overhead_s
        return self.aim.keys(steps_s, point.devices * p * layouts.data)

    def _pairs(self, point: Point) -> Layouts:
        key = (point.microbatch_size, point.devices, point.expert_devices)
        if key not in self._layouts:
            asked = self.question
            found = layouts_of(
                point,
                asked.allowed,
                num_devices=asked.num_devices,
                num_blocks=asked.model.num_layers,
                num_microbatches=asked.workload.global_batch // point.microbatch_size,
            )
            levels = asked.cluster.levels
            found = with_mappings(found, asked.allowed.mappings, point, levels)
            self._layouts[key] = with_copies(found, asked.allowed.state_copies, point, levels)
        return self._layouts[key]

    def _count(self, point: Point) -> int:
        """Candidates at a point."""
        key = (point.microbatch_size, point.devices, point.context, point.expert_devices)
        if key not in self._counts:
            self._counts[key] = self._space.num_candidates(point, self._pairs(point))
        return self._counts[key]


def _least_of(work: PointWork) -> tuple[LeastLayers, ...]:
    """The layers of a priced point where memory is plenty."""
    return tuple(
        LeastLayers(like.fastest_s, like.num_layers, has_experts=False) for like in work.classes
    )
