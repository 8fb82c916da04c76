"""All candidates of a question by their coarse bounds, made only when their turn comes.

The space is a tree: microbatch size and degrees of the dense parts; how experts are dealt out; ZeRO
stage and schedule; depth and data degree. A node's bound holds for all below it, and a node is
opened when it is the least of all, so most of the space is counted and never looked at.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trainwright.costing.estimate import Estimator
from trainwright.planning.coarse_bound import CoarseBounds
from trainwright.planning.layouts import Layouts, layouts_of
from trainwright.planning.model_question import estimate_profile
from trainwright.planning.model_space import Candidate, Point, dense_points, expert_points
from trainwright.planning.point_work import (
    PointWork,
    expert_exchange_s,
    floor_without_experts_s,
)
from trainwright.planning.schedules import Schedule, legal_layouts, replicated, schedules_of
from trainwright.planning.stage_kinds import StageKinds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from trainwright.execution import Budget
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.profile import Profile

    Floats = NDArray[np.float64]


@dataclass(slots=True)
class Shelf:
    """Profiles by point, made when first asked for."""

    question: ModelQuestion
    estimator: Estimator
    made: dict[Point, Profile] = field(default_factory=dict)
    cut: dict[Point, StageKinds] = field(default_factory=dict)

    @classmethod
    def of(cls, question: ModelQuestion) -> Shelf:
        """An empty one."""
        return cls(question, Estimator(model=question.model, cluster=question.cluster))

    def profile(self, point: Point) -> Profile:
        """What layers cost at a point."""
        if point not in self.made:
            self.made[point] = estimate_profile(self.estimator, self.question, point)
        return self.made[point]

    def kinds(self, point: Point) -> StageKinds:
        """The kinds of stages of a point's profile."""
        if point not in self.cut:
            self.cut[point] = StageKinds.of(self.profile(point))
        return self.cut[point]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dense:
    """All ways to deal the experts out at the degrees of a point."""

    point: Point
    count: int
    floor_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Priced:
    """A point whose layers have to be priced."""

    point: Point
    count: int


@dataclass(slots=True, kw_only=True)
class _Pairs:
    """Depths and data degrees at one point, ZeRO stage and schedule; least bound first."""

    point: Point
    zero_stage: int
    schedule: Schedule
    layouts: Layouts
    bounds_s: Floats
    done: int = 0

    @property
    def count(self) -> int:
        """Pairs that are left."""
        return len(self.bounds_s) - self.done


@dataclass(slots=True)
class Frontier:
    """The candidates that were not taken yet; `considered` counts all there are."""

    question: ModelQuestion
    shelf: Shelf
    considered: int = 0
    _coarse: CoarseBounds = field(init=False)
    _schedules: tuple[Schedule, ...] = field(init=False)
    _heap: list[tuple[float, int, _Dense | _Priced | _Pairs]] = field(default_factory=list)
    _serial: int = 0
    _layouts: dict[tuple[int, int, int], Layouts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._coarse = CoarseBounds(self.question.cluster)
        self._schedules = schedules_of(self.question.allowed, self.question.model.num_layers)

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
            dealt = [
                _Priced(point=each, count=count)
                for each in expert_points(asked.model, point, asked.allowed)
                if (count := self._count(each))
            ]
            if not dealt:
                continue
            self.considered += sum(node.count for node in dealt)
            if asked.model.experts is None:
                self._open_point(dealt[0])
                continue
            floor_s = floor_without_experts_s(asked, point)
            count = sum(node.count for node in dealt)
            self._push(
                self._step_s(point, floor_s), _Dense(point=point, count=count, floor_s=floor_s)
            )
        return True

    @property
    def least_s(self) -> float:
        """No candidate that is left has a lower bound; infinite where none is left."""
        return self._heap[0][0] if self._heap else math.inf

    def count_below(self, limit_s: float) -> int:
        """Candidates left that may be below the limit; those of an unopened node all count."""
        total = 0
        for bound_s, _, node in self._heap:
            if isinstance(node, _Pairs):
                total += int((node.bounds_s[node.done :] < limit_s).sum())
            elif bound_s < limit_s:
                total += node.count
        return total

    def take(self) -> tuple[float, Candidate] | None:
        """Open the node of least bound; a candidate and its bound where one was reached."""
        bound_s, _, node = heapq.heappop(self._heap)
        match node:
            case _Dense():
                for point in expert_points(self.question.model, node.point, self.question.allowed):
                    count = self._count(point)
                    if count:
                        work_s = node.floor_s + expert_exchange_s(self.question, point)
                        least_s = max(bound_s, self._step_s(point, work_s))
                        self._push(least_s, _Priced(point=point, count=count))
            case _Priced():
                self._open_point(node)
            case _Pairs():
                return bound_s, self._next_of(node)
        return None

    def _open_point(self, node: _Priced) -> None:
        """Price the layers and bound every pair under every ZeRO stage and schedule."""
        point = node.point
        work = PointWork.of(self.shelf.profile(point))
        for schedule, zero_stage, layouts in self._spaces(point):
            bounds_s = self._coarse.bounds_s(
                work, point, layouts, zero_stage=zero_stage, schedule=schedule
            )
            order = np.argsort(bounds_s, kind="stable")
            order = order[: int(np.isfinite(bounds_s).sum())]
            if len(order):
                pairs = _Pairs(
                    point=point,
                    zero_stage=zero_stage,
                    schedule=schedule,
                    layouts=layouts.at(order),
                    bounds_s=bounds_s[order],
                )
                self._push(float(pairs.bounds_s[0]), pairs)

    def _spaces(self, point: Point) -> Iterator[tuple[Schedule, int, Layouts]]:
        """The legal pairs under every schedule and ZeRO stage; stages that are alike once."""
        layouts, blocks = self._pairs(point), self.question.model.num_layers
        first, *others = self.question.allowed.zero_stages
        for schedule in self._schedules:
            legal = legal_layouts(schedule, layouts, blocks)
            yield schedule, first, legal
            for zero_stage in others:
                yield schedule, zero_stage, replicated(point, legal)

    def _next_of(self, pairs: _Pairs) -> Candidate:
        index, point = pairs.done, pairs.point
        pairs.done += 1
        if pairs.count:
            self._push(float(pairs.bounds_s[pairs.done]), pairs)
        return Candidate(
            microbatch_size=point.microbatch_size,
            tensor=point.tensor,
            context=point.context,
            expert=point.expert,
            expert_tensor=point.expert_tensor,
            pipeline=int(pairs.layouts.pipeline[index]),
            data=int(pairs.layouts.data[index]),
            zero_stage=pairs.zero_stage,
            schedule=pairs.schedule.family,
            virtual_stages=pairs.schedule.virtual_stages,
        )

    def _push(self, bound_s: float, node: _Dense | _Priced | _Pairs) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (bound_s, self._serial, node))

    def _step_s(self, point: Point, work_s: float) -> float:
        """A step in which all devices work all the time."""
        asked = self.question
        microbatches = asked.workload.global_batch // point.microbatch_size
        busy_s = microbatches * work_s * point.devices / asked.num_devices
        return busy_s + asked.cluster.accelerator.step_overhead_s

    def _pairs(self, point: Point) -> Layouts:
        key = (point.microbatch_size, point.devices, point.expert_devices)
        if key not in self._layouts:
            asked = self.question
            self._layouts[key] = layouts_of(
                point,
                asked.allowed,
                num_devices=asked.num_devices,
                num_blocks=asked.model.num_layers,
                num_microbatches=asked.workload.global_batch // point.microbatch_size,
            )
        return self._layouts[key]

    def _count(self, point: Point) -> int:
        """Candidates at a point."""
        return sum(layouts.size for _, _, layouts in self._spaces(point))
