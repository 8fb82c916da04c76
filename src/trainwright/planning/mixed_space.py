"""Uniform degrees over several pools of devices: the candidates of a mixed cluster.

Two shapes use several pools. *Across*: all replicas alike, the pipeline runs from pool to pool.
*Beside*: whole pipelines in each pool, all cut alike, with as many microbatches as their pool is
fast. Plans on one pool are those of `model_planner`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from trainwright.errors import UnsupportedFeature
from trainwright.plan.axis_order import DATA_INSIDE
from trainwright.plan.parallelism import Parallelism
from trainwright.planning.device_room import room_of_candidate, room_of_devices
from trainwright.planning.family_split import CHAIN
from trainwright.planning.model_question import estimate_profile
from trainwright.planning.model_space import Candidate, dense_points, expert_points
from trainwright.planning.point_work import PointWork
from trainwright.planning.stage_kinds import StageKinds
from trainwright.planning.warm_up import WARM_UP
from trainwright.profile.setting import divisors

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from trainwright.cluster import Cluster
    from trainwright.planning.allowed import Allowed
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.model_space import Point
    from trainwright.profile import Profile

    Ints = NDArray[np.int64]
    Source = Callable[[int, Point], Profile]

# Orders of one stage per rank that do not look at times; see `chain_split`.
FAMILIES: Final = tuple(family for family in WARM_UP if family in CHAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Across:
    """`depths` ranks in each of `pools`, in the order of the pipeline, and `data` replicas."""

    point: Point
    zero_stage: int
    schedule: str
    pools: tuple[int, ...]
    depths: tuple[int, ...]
    data: int

    @property
    def pool_of_rank(self) -> tuple[int, ...]:
        """The pool of each rank."""
        return tuple(g for g, n in zip(self.pools, self.depths, strict=True) for _ in range(n))

    @property
    def degrees(self) -> Parallelism:
        """The degrees in full."""
        return _degrees(self.point, self.zero_stage, pipeline=sum(self.depths), data=self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Pipelines of `depth` ranks, `replicas` of them in each of `pools`."""

    point: Point
    zero_stage: int
    schedule: str
    pools: tuple[int, ...]
    replicas: tuple[int, ...]
    depth: int

    @property
    def degrees(self) -> Parallelism:
        """The degrees in full; `data` counts the replicas of all pools."""
        return _degrees(self.point, self.zero_stage, pipeline=self.depth, data=sum(self.replicas))


MixedCandidate: TypeAlias = Across | Beside


def _degrees(point: Point, zero_stage: int, *, pipeline: int, data: int) -> Parallelism:
    return Parallelism(
        tensor=point.tensor,
        pipeline=pipeline,
        data=data,
        context=point.context,
        expert=point.expert,
        expert_tensor=point.expert_tensor,
        sequence_parallel=point.tensor > 1,
        zero_stage=zero_stage,
    )


@dataclass(slots=True)
class MixedShelf:
    """Profiles by pool and point, made when first asked for."""

    question: ModelQuestion
    source: Source
    made: dict[tuple[int, Point], Profile] = field(default_factory=dict)
    cut: dict[tuple[int, Point], StageKinds] = field(default_factory=dict)
    summed: dict[tuple[int, Point], PointWork] = field(default_factory=dict)
    rooms: dict[tuple[object, ...], Cluster] = field(default_factory=dict)

    @classmethod
    def of(cls, question: ModelQuestion) -> MixedShelf:
        """An empty one, of estimates in the number format that all pools have."""
        asked = replace(
            question, workload=replace(question.workload, precision=common_precision(question))
        )
        estimators = [
            question.estimator(question.cluster.alone(pool))
            for pool in range(len(question.cluster.pools))
        ]
        return cls(asked, lambda pool, point: estimate_profile(estimators[pool], asked, point))

    @property
    def cluster(self) -> Cluster:
        """All pools."""
        return self.question.cluster

    def alone(self, pool: int) -> ModelQuestion:
        """The question on one pool."""
        cluster = self.cluster.alone(pool)
        return replace(self.question, cluster=cluster, num_devices=cluster.num_devices)

    def usable_bytes(self, pool: int) -> float:
        """What plans may fill of a device of a pool, buffers included."""
        return room_of_devices(self.alone(pool)).accelerator.usable_bytes

    def room(self, pool: int, candidate: MixedCandidate) -> Cluster:
        """The devices of a pool, with no more usable than a rank of the candidate may fill."""
        key = (pool, candidate.point, candidate.schedule, candidate.degrees.pipeline)
        if key not in self.rooms:
            alike = Candidate(
                microbatch_size=candidate.point.microbatch_size,
                tensor=candidate.point.tensor,
                pipeline=candidate.degrees.pipeline,
                data=1,
                schedule=candidate.schedule,
            )
            profile = self.profile(pool, candidate.point)
            self.rooms[key] = room_of_candidate(self.alone(pool), alike, profile)
        return self.rooms[key]

    def profile(self, pool: int, point: Point) -> Profile:
        """What layers cost at a point in a pool."""
        if (pool, point) not in self.made:
            self.made[pool, point] = self.source(pool, point)
        return self.made[pool, point]

    def kinds(self, pool: int, point: Point) -> StageKinds:
        """The kinds of stages there."""
        if (pool, point) not in self.cut:
            self.cut[pool, point] = StageKinds.of(self.profile(pool, point))
        return self.cut[pool, point]

    def work(self, pool: int, point: Point) -> PointWork:
        """The least that all layers take there."""
        if (pool, point) not in self.summed:
            self.summed[pool, point] = PointWork.of(self.profile(pool, point))
        return self.summed[pool, point]


def common_precision(question: ModelQuestion) -> str:
    """The number format of the workload, or the 16-bit format that all pools multiply in.

    Raises `UnsupportedFeature` where they have none in common.
    """
    stated = question.workload.precision
    if stated is not None:
        return stated
    devices = [pool.accelerator for pool in question.cluster.pools]
    for found in dict.fromkeys(device.default_precision for device in devices):
        if all(found in device.dtypes for device in devices):
            return found
    offered = "; ".join(f"{device.name} has {', '.join(device.dtypes)}" for device in devices)
    raise UnsupportedFeature(
        f"precision: the pools of {question.cluster.name} share no 16-bit format",
        alternative=offered,
    )


def is_mixable(allowed: Allowed) -> bool:
    """Whether replicas may follow on each other and share one copy of sharded state.

    That is how a stage of several pools has them.
    """
    return DATA_INSIDE in allowed.mappings and 1 in allowed.state_copies


def mixed_families(question: ModelQuestion) -> tuple[str, ...]:
    """The families that stages on several pools are searched under, of those that are allowed."""
    if not is_mixable(question.allowed):
        return ()
    named = question.allowed.schedules or FAMILIES
    spans = question.allowed.virtual_stages
    return tuple(family for family in dict.fromkeys(named) if family in FAMILIES and 1 in spans)


def mixed_points(question: ModelQuestion) -> Iterator[Point]:
    """The points that every pool can run a stage at."""
    found: list[list[Point]] = []
    for pool in range(len(question.cluster.pools)):
        alone = question.cluster.alone(pool)
        points = dense_points(
            question.model,
            alone,
            question.workload,
            question.allowed,
            num_devices=alone.num_devices,
        )
        found.append(list(points))
    common = set.intersection(*map(set, found))
    for dense in filter(common.__contains__, found[0]):
        yield from expert_points(question.model, dense, question.allowed)


def pools_across(count: int) -> Iterator[tuple[int, ...]]:
    """Two pools or more in the order of a pipeline."""
    for size in range(2, count + 1):
        yield from permutations(range(count), size)


def pools_beside(count: int) -> Iterator[tuple[int, ...]]:
    """Two pools or more."""
    for size in range(2, count + 1):
        yield from combinations(range(count), size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """N layouts: a count for each of G pools [N, G], and one number that they share [N]."""

    counts: Ints
    shared: Ints

    @property
    def size(self) -> int:
        """N."""
        return len(self.shared)


def across_grid(question: ModelQuestion, point: Point, pools: tuple[int, ...]) -> Grid:
    """Depths in each pool, and replicas; at least a rank in each and a block for every rank."""
    allowed, room = question.allowed, _rooms(question, point, pools)
    microbatches = question.workload.global_batch // point.microbatch_size
    parts = []
    for data in divisors(microbatches):
        if data in allowed.data and point.devices * data % point.expert_devices == 0:
            most = [min(devices // data, question.model.num_layers) for devices in room]
            parts.append(_with_shared(_counts(most), data))
    grid = _joined(parts, len(pools))
    depth = grid.counts.sum(axis=1)
    kept = (depth <= question.model.num_layers) & _inside(depth, allowed.pipeline)
    return Grid(counts=grid.counts[kept], shared=grid.shared[kept])


def beside_grid(question: ModelQuestion, point: Point, pools: tuple[int, ...]) -> Grid:
    """Replicas in each pool, at most as many as microbatches, and the depth of their pipelines."""
    allowed, room = question.allowed, _rooms(question, point, pools)
    microbatches = question.workload.global_batch // point.microbatch_size
    if point.devices % point.expert_devices:
        return _joined([], len(pools))
    parts = []
    for depth in range(1, min(question.model.num_layers, *room) + 1):
        if depth in allowed.pipeline:
            most = [min(devices // depth, microbatches) for devices in room]
            parts.append(_with_shared(_worth(most), depth))
    grid = _joined(parts, len(pools))
    data = grid.counts.sum(axis=1)
    kept = (data <= microbatches) & _inside(data, allowed.data)
    return Grid(counts=grid.counts[kept], shared=grid.shared[kept])


def _rooms(question: ModelQuestion, point: Point, pools: tuple[int, ...]) -> list[int]:
    """How many microbatches each pool can hold side by side in one stage."""
    return [question.cluster.pools[pool].num_devices // point.devices for pool in pools]


def _counts(most: list[int]) -> Ints:
    """Every choice of 1 to `most` in each pool, [N, G]."""
    if min(most) < 1:
        return np.zeros((0, len(most)), np.int64)
    grids = np.meshgrid(*(np.arange(1, m + 1) for m in most), indexing="ij")
    found: Ints = np.stack([grid.reshape(-1) for grid in grids], axis=1)
    return found


_FEW: Final = 8


def _worth(most: list[int]) -> Ints:
    """Every choice where there are few, else powers of two and what fills the pool."""
    if min(most) < 1:
        return np.zeros((0, len(most)), np.int64)
    chosen = [
        np.array(sorted({*range(1, min(m, _FEW) + 1), *_powers(m), m}), np.int64) for m in most
    ]
    grids = np.meshgrid(*chosen, indexing="ij")
    found: Ints = np.stack([grid.reshape(-1) for grid in grids], axis=1)
    return found


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def _with_shared(counts: Ints, value: int) -> Grid:
    return Grid(counts=counts, shared=np.full(len(counts), value, np.int64))


def _joined(parts: list[Grid], pools: int) -> Grid:
    empty = Grid(counts=np.zeros((0, pools), np.int64), shared=np.zeros(0, np.int64))
    return Grid(
        counts=np.concatenate([part.counts for part in (empty, *parts)]),
        shared=np.concatenate([part.shared for part in (empty, *parts)]),
    )


def _inside(values: Ints, span: object) -> NDArray[np.bool_]:
    least, most = getattr(span, "least", 1), getattr(span, "most", None)
    kept: NDArray[np.bool_] = values >= least
    return kept if most is None else kept & (values <= most)
