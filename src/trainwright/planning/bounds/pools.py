"""Bounds on the step of plans on several pools, from sums over all layers.

Pool g runs any layer at most s_g times as fast as a pool of reference, by the rows of both cost
tables; W is the least work of a microbatch there, m the microbatches of a replica, x what replicas
exchange inside a microbatch and y after the last one, each at the cheapest of the pools' networks.

Across, with p_g ranks in pool g and s the least of all s_g:

    T ≥ (m·(W + s·x) + s·y) / Σ p_g·s_g                  devices × rate
    T ≥ (W + s·x) / a_0                                  ranks start one after another
    a_r = a_(r+1) + max(0, s_r − φ·a_(r+1)) / m

for rank r has T − φ·Σ_(i<r) P_i for its m microbatches; φ is 1 where the backward is fused, else
the least share of a layer's time that is forward. Beside, with d_g replicas of p ranks in pool
g that take at least w_g per microbatch (W_g / p, or ⌈n / p⌉ of n like layers):

    Σ d_g·m_g ≥ M,   m_g ≤ (T − y/p) / w_g               so T ≥ (M + Σ d_g·y/(p·w_g)) / Σ d_g/w_g

where replicas run alike, every m_g is M / Σ d_g; and of n like layers across no fewer than
Σ p_g·⌊u / t_g⌋ fit in u seconds. Nor is T less than one microbatch there and back. The slowest
update and what every step takes follow. Memory makes layers recompute as in
`step.recomputed_work_s`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainwright.cluster import Cluster
from trainwright.costing.communication import point_to_point_time_s
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.planning.bounds.layers import PointWork, Trade
from trainwright.planning.bounds.stages import StageKinds
from trainwright.planning.question import layouts
from trainwright.planning.question.layouts import Schedule
from trainwright.planning.question.question import (
    Allowed,
    Candidate,
    ModelQuestion,
    Point,
    dense_points,
    estimate_profile,
    expert_points,
    room_of_candidate,
    room_of_devices,
)
from trainwright.plans import Plan, Stage
from trainwright.plans.configuration import Overlap
from trainwright.plans.plan import DATA_INSIDE, DEFAULT_SCHEDULE, Parallelism
from trainwright.profile import Profile
from trainwright.profile.profile import divisors
from trainwright.scheduling.families import ALIASES, family_named
from trainwright.step import zero
from trainwright.step.figures import num_groups
from trainwright.step.pipeline import slices_of
from trainwright.step.pools import (
    AT_THEIR_PACE,
    at_any_depth,
    at_one_pace,
    cheapest,
    mixed_replicas,
    processes_per_node,
)
from trainwright.step.stages import (
    StageWork,
    head_passes_s,
    head_times_s,
    head_work_s,
    in_slices,
    stage_works,
    waiting_for_host,
    without_head,
)
from trainwright.step.zero import Replicas, data_parallel_times

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints

    Source = Callable[[int, Point], Profile]
    Counts = Mapping[int, int]  # by pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How pools are used: "alone", "across" by the pipeline, or "beside" each other."""

    name: str
    pools: tuple[int, ...]


# Uniform degrees over several pools of devices: the candidates of a mixed cluster
# --------------------------------------------------------------------------------
# Two shapes use several pools. *Across*: all replicas alike, the pipeline runs from pool to pool.
# *Beside*: whole pipelines in each pool, all cut alike, with as many microbatches as their pool is
# fast. Plans on one pool are those of `search.search`.

# Those that are searched where none is named: all that plans on one pool are bounded by.
FAMILIES: Final = (*layouts.SEARCHED_UNLESS_NAMED, *layouts.ONLY_BOUNDED)
# Those that may be named; pairs of braided ones hide what no bound on several pools counts.
OFFERED: Final = tuple(family for family in layouts.BOUNDED if family not in layouts.BRAIDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnPools:
    """A point, a ZeRO stage and a family on some pools."""

    point: Point
    zero_stage: int
    schedule: str
    pools: tuple[int, ...]
    virtual_stages: int = 1

    @property
    def pace(self) -> tuple[int, ...]:
        """The pools whose replicas wait for each other with every microbatch."""
        return ()

    def _degrees(self, *, pipeline: int, data: int) -> Parallelism:
        found = uniform_degrees(self.point, self.zero_stage, pipeline=pipeline, data=data)
        return replace(found, virtual_stages=self.virtual_stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Across(_OnPools):
    """`depths` ranks in each of `pools`, in the order of the pipeline, and `data` replicas."""

    depths: tuple[int, ...]
    data: int

    @property
    def pool_of_rank(self) -> tuple[int, ...]:
        """The pool of each rank."""
        return tuple(g for g, n in zip(self.pools, self.depths, strict=True) for _ in range(n))

    @property
    def degrees(self) -> Parallelism:
        """The degrees in full."""
        return self._degrees(pipeline=sum(self.depths), data=self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside(_OnPools):
    """Pipelines of `depth` ranks, `replicas` of them in each of `pools`."""

    replicas: tuple[int, ...]
    depth: int

    @property
    def degrees(self) -> Parallelism:
        """The degrees in full; `data` counts the replicas of all pools."""
        return self._degrees(pipeline=self.depth, data=sum(self.replicas))

    @property
    def pace(self) -> tuple[int, ...]:
        """See `_OnPools`."""
        return self.pools if self.zero_stage > AT_THEIR_PACE else ()


MixedCandidate: TypeAlias = Across | Beside


class Part(NamedTuple):
    """What passes a chain as its microbatch: one of so many slices, the head cut over all ranks."""

    slices: int = 1
    cuts_head: bool = False

    @classmethod
    def of(cls, candidate: MixedCandidate) -> Part:
        """Under the schedule of a candidate."""
        family = candidate.schedule
        slices = slices_of(family, candidate.degrees.pipeline)
        return cls(slices=slices, cuts_head=family in layouts.CUTS_HEAD)


WHOLE: Final = Part()


def uniform_degrees(point: Point, zero_stage: int, *, pipeline: int, data: int) -> Parallelism:
    """The same degrees of a point in all pools; `data` counts the replicas of all."""
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
    parts: dict[tuple[object, ...], Profile] = field(default_factory=dict)
    cut: dict[tuple[object, ...], StageKinds] = field(default_factory=dict)
    summed: dict[tuple[int, Point, Part], PointWork] = field(default_factory=dict)
    waiting: dict[tuple[object, ...], StageKinds] = field(default_factory=dict)
    rooms: dict[tuple[object, ...], Cluster] = field(default_factory=dict)
    groups: dict[tuple[object, ...], Replicas] = field(default_factory=dict)
    first: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Of pools that are alike the `first` stands for all: ranks there are alike, too."""
        pools = self.cluster.pools
        self.first = tuple(map(pools.index, pools))

    @classmethod
    def of(cls, question: ModelQuestion) -> MixedShelf:
        """An empty one, of estimates in the number format that all pools have."""
        precision = common_precision(question.cluster, question.workload.precision)
        asked = replace(question, workload=replace(question.workload, precision=precision))
        estimators = [
            question.estimator(question.cluster.alone(pool))
            for pool in range(len(question.cluster.pools))
        ]
        return cls(asked, lambda pool, point: estimate_profile(estimators[pool], asked, point))

    def are_alike(self, pools: tuple[int, ...]) -> bool:
        """Whether all of these are."""
        return len({self.first[pool] for pool in pools}) == 1

    def are_first(self, pools: tuple[int, ...]) -> bool:
        """Whether of pools that are alike these are the first, in their order."""
        alike = Counter[int]()
        for pool in pools:
            number = self.first[:pool].count(self.first[pool])
            if number != alike[self.first[pool]]:
                return False
            alike[self.first[pool]] += 1
        return True

    @property
    def cluster(self) -> Cluster:
        """All pools."""
        return self.question.cluster

    def alone(self, pool: int) -> ModelQuestion:
        """The question on one pool."""
        cluster, account = self.cluster.alone(pool), self.question.account
        if account is not None:  # tensors are counted of equal ranks alone
            account = account.of_all_tensors
        return replace(
            self.question, cluster=cluster, num_devices=cluster.num_devices, account=account
        )

    def usable_bytes(self, pool: int) -> float:
        """What plans may fill of a device of a pool, buffers included."""
        return room_of_devices(self.alone(pool)).accelerator.most_usable_bytes

    def room(self, pool: int, candidate: MixedCandidate) -> Cluster:
        """The devices of a pool, with no more usable than a rank of the candidate may fill."""
        degrees = candidate.degrees
        groups = num_groups(degrees)
        chunks = candidate.virtual_stages
        key = (pool, candidate.point, candidate.schedule, degrees.pipeline, chunks, groups)
        if key not in self.rooms:
            alike = Candidate(
                microbatch_size=candidate.point.microbatch_size,
                tensor=candidate.point.tensor,
                pipeline=degrees.pipeline,
                data=1,
                schedule=candidate.schedule,
                virtual_stages=chunks,
            )
            profile = self.profile(pool, candidate.point)
            self.rooms[key] = room_of_candidate(self.alone(pool), alike, profile, groups=groups)
        return self.rooms[key]

    def replicas(self, at: MixedCandidate, members: Counts, ranks: Counts) -> Replicas:
        """The groups of `ranks` of the candidate with so many replicas each, by pool."""
        key = (at.point, at.zero_stage, *members.items(), *ranks.items())
        if key not in self.groups:
            places = {pool: (0, depth) for pool, depth in ranks.items()}
            self.groups[key] = mixed_replicas(self.cluster, at.degrees, members, places)
        return self.groups[key]

    def profile(self, pool: int, point: Point) -> Profile:
        """What layers cost at a point in a pool."""
        pool = self.first[pool]
        if (pool, point) not in self.made:
            self.made[pool, point] = self.source(pool, point)
        return self.made[pool, point]

    def profiles_of(self, plan: Plan) -> dict[int, Profile]:
        """What layers cost where a plan runs them, by the pools it uses."""
        if plan.parallelism is None:
            raise InvalidInput.of("parallelism", "required field is missing")
        point = Point.of(plan.parallelism, plan.microbatch_size)
        pools = sorted({group.pool for stage in plan.stages for group in stage.replicas})
        return {pool: self.profile(pool, point) for pool in pools}

    def paced(self, pool: int, point: Point, pace: tuple[int, ...]) -> Profile:
        """What layers cost there beside pools that keep a `pace`, in which each waits for all."""
        if not pace or self.are_alike(pace):
            return self.profile(pool, point)
        pool, pools = self.first[pool], sorted({self.first[own] for own in pace})
        key = (pool, point, *pools)
        if key not in self.parts:
            made = at_one_pace({own: self.profile(own, point) for own in pools})
            self.parts.update({(own, point, *pools): each for own, each in made.items()})
        return self.parts[key]

    def part(self, pool: int, point: Point, part: Part, pace: tuple[int, ...] = ()) -> Profile:
        """What layers of a chain cost there for what passes it; see `paced`."""
        key = (self.first[pool], point, part, pace)
        if key not in self.parts:
            whole = in_slices(self.paced(pool, point, pace), part.slices)
            self.parts[key] = without_head(whole) if part.cuts_head else whole
        return self.parts[key]

    def kinds(
        self, pool: int, point: Point, part: Part = WHOLE, pace: tuple[int, ...] = ()
    ) -> StageKinds:
        """The kinds of stages there; see `paced`."""
        pace = () if not pace or self.are_alike(pace) else pace
        key = (self.first[pool], point, part, pace)
        if key not in self.cut:
            self.cut[key] = self._cut_up(self.part(pool, point, part, pace))
        return self.cut[key]

    def _cut_up(self, profile: Profile) -> StageKinds:
        kinds = layouts.together(self.question.allowed)
        return StageKinds.of(profile, self.question.settings.overlap, together=kinds)

    def hosted(self, pool: int, point: Point, pace: tuple[int, ...] = ()) -> StageKinds:
        """The kinds of stages whose layers wait for copies that no pass hides."""
        key = (self.first[pool], point, pace)
        if key not in self.waiting:
            host = self.cluster.pools[pool].accelerator.host
            assert host is not None, "a schedule that copies names devices with hosts"
            profile = waiting_for_host(self.paced(pool, point, pace), host.link_bytes_per_s)
            self.waiting[key] = self._cut_up(profile)
        return self.waiting[key]

    def work(self, pool: int, point: Point, part: Part = WHOLE) -> PointWork:
        """The least that all layers take there."""
        key = (self.first[pool], point, part)
        if key not in self.summed:
            self.summed[key] = PointWork.of(self.part(pool, point, part))
        return self.summed[key]


def common_precision(cluster: Cluster, stated: str | None) -> str:
    """The number format that is stated, or the 16-bit format that all pools multiply in.

    Raises `UnsupportedFeature` where they have none in common.
    """
    if stated is not None:
        return stated
    devices = [pool.accelerator for pool in cluster.pools]
    for found in dict.fromkeys(device.default_precision for device in devices):
        if all(found in device.dtypes for device in devices):
            return found
    offered = "; ".join(f"{device.name} has {', '.join(device.dtypes)}" for device in devices)
    raise UnsupportedFeature(
        f"precision: the pools of {cluster.name} share no 16-bit format",
        alternative=offered,
    )


def is_mixable(allowed: Allowed) -> bool:
    """Whether replicas may follow on each other and share one copy of sharded state.

    That is how a stage of several pools has them.
    """
    return DATA_INSIDE in allowed.mappings and 1 in allowed.state_copies


def mixed_schedules(question: ModelQuestion) -> tuple[Schedule, ...]:
    """The families that several pools are used under, of those that are allowed."""
    allowed = question.allowed
    if not is_mixable(allowed):
        return ()
    named = [ALIASES.get(family, family) for family in allowed.schedules or FAMILIES]
    offered = tuple(family for family in named if family in OFFERED)
    chunks = allowed.virtual_stages
    if not allowed.schedules and chunks.most is None:
        chunks = replace(chunks, most=max(layouts.MOST_CHUNKS, chunks.least))
    try:
        found = layouts.schedules_of(
            replace(allowed, schedules=offered or ("none",), virtual_stages=chunks),
            cuts_head=question.cuts_head,
        )
    except (InvalidInput, UnsupportedFeature):  # none of them is searched, or has such chunks
        return ()
    return tuple(sorted(found, key=lambda each: each.family != DEFAULT_SCHEDULE))


def runs_alike(allowed: Allowed, zero_stage: int = 0) -> bool:
    """Whether replicas beside each other run alike: no framework launches others.

    They have as many microbatches each, recompute the same, and fill nodes that hold one number of
    processes each. ZeRO 2 and 3 keep replicas at one pace, so these run alike, too.
    """
    return allowed.framework is not None or zero_stage > AT_THEIR_PACE


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
            question.settings,
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

    def layouts(
        self, question: ModelQuestion, point: Point, shape: Shape, *, family: str
    ) -> layouts.Layouts:
        """What decides with how many chunks each layout is legal, [N].

        Beside each other replicas of unlike pools have microbatches of their own, all of which
        whole groups of p make up where the family asks for them.
        """
        count, p = question.workload.microbatches(point.microbatch_size), self.depths(shape)
        across = shape.name == "across"
        data = self.shared if across else self.counts.sum(axis=1)
        each = count // data
        if not (across or runs_alike(question.allowed)):
            is_enough = data * (p if family in layouts.WHOLE_GROUPS else 1) <= count
            each = np.where(is_enough, count, 1)
        return layouts.Layouts(
            pipeline=p,
            data=data,
            num_microbatches=each,
            virtual_stages=np.ones_like(p),
            inside=np.zeros(self.size, np.bool_),
            copies=np.ones_like(p),
            like=p,
        )

    def depths(self, shape: Shape) -> Ints:
        """Ranks of the pipelines, [N]."""
        found: Ints = self.counts.sum(axis=1) if shape.name == "across" else self.shared
        return found

    def of(self, kept: NDArray[np.bool_]) -> Grid:
        """Some of the layouts."""
        return self if kept.all() else Grid(counts=self.counts[kept], shared=self.shared[kept])


def across_grid(question: ModelQuestion, point: Point, pools: tuple[int, ...]) -> Grid:
    """Depths in each pool, and replicas; at least a rank in each and a block for every rank."""
    allowed, room = question.allowed, _rooms(question, point, pools)
    microbatches = question.workload.microbatches(point.microbatch_size)
    parts = []
    for data in divisors(microbatches):
        if data in allowed.data and point.devices * data % point.expert_devices == 0:
            most = [min(devices // data, question.model.num_layers) for devices in room]
            parts.append(_with_shared(_counts(most), data))
    grid = _joined(parts, len(pools))
    depth = grid.counts.sum(axis=1)
    kept: NDArray[np.bool_] = (depth <= question.model.num_layers) & _inside(
        depth, allowed.pipeline
    )
    if runs_alike(allowed):
        spans = grid.counts * grid.shared[:, np.newaxis] * point.devices
        whole = _in_nodes(question.cluster, pools, spans, times=np.ones(grid.size, np.int64))
        kept = kept & whole
    return grid.of(kept)


def beside_grid(question: ModelQuestion, point: Point, pools: tuple[int, ...]) -> Grid:
    """Replicas in each pool, at most as many as microbatches, and the depth of their pipelines."""
    allowed, room = question.allowed, _rooms(question, point, pools)
    microbatches = question.workload.microbatches(point.microbatch_size)
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
    if runs_alike(allowed):
        whole = _in_nodes(question.cluster, pools, grid.counts * point.devices, times=grid.shared)
        kept &= whole & (microbatches % data == 0)
    return grid.of(kept)


def _in_nodes(
    cluster: Cluster, pools: tuple[int, ...], spans: Ints, *, times: Ints
) -> NDArray[np.bool_]:
    """Whether spans of devices in each pool [N, G], so many `times` [N], are whole nodes there."""
    own = [cluster.pools[pool] for pool in pools]
    most = min(pool.devices_per_node for pool in own)
    shared, index = np.unique(np.gcd.reduce(spans, axis=1), return_inverse=True)
    each = np.array([processes_per_node([n], most) for n in shared.tolist()], np.int64)
    nodes = spans * times[:, np.newaxis] // each[index.reshape(-1)][:, np.newaxis]
    kept: NDArray[np.bool_] = np.all(nodes <= [pool.num_nodes for pool in own], axis=1)
    return kept


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


_FEW: Final = 8  # replicas of a pool, all numbers of which are tried; 4 and 16 found the same plans


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


# Bounds on the step of plans on several pools, from sums over all layers
# -----------------------------------------------------------------------

_HAIR: Final = 1 + 1e-9
_HALVINGS: Final = 50  # of an interval of seconds, to its rounding


def _group_sizes(point: Point, replicas: Ints) -> Ints:
    """Devices that share the state of dense layers, and of experts, by replicas in all, [N, 2]."""
    sizes = (replicas * point.context, replicas * point.devices // point.expert_devices)
    return np.maximum(1, np.stack(sizes, axis=-1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixedWork:
    """All layers at one point in each of G pools, in their order.

    `speeds` [G, G] is how many times faster than pool i pool j may run a layer; `class_s` [G, C]
    the least seconds of a layer of each class, of which there are `counts` [C], and `way_s` those
    of a microbatch that passes all layers and comes back, each in the pool that is fastest at it;
    `trades` [G] are those of the works for stages that may lie in any pool;
    `forward_share` is that of the layer and way with the least. `exchanged` has all layers as one
    stage, with the longest windows of any pool to hide exchanges in, of which `overlap` has the
    shares; `usable_bytes` [G] is of a device, `heads_s` [G] what `head_times_s` says where a head
    is cut over all ranks, without which all else is.
    """

    cluster: Cluster
    pools: tuple[int, ...]
    works: tuple[PointWork, ...]
    trades: tuple[Trade, ...]
    speeds: Floats
    class_s: Floats
    counts: tuple[int, ...]
    way_s: float
    forward_share: float
    exchanged: StageWork
    overlap: Overlap
    usable_bytes: tuple[float, ...]
    heads_s: tuple[tuple[float, float, float], ...] = ()
    _exchanged_s: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, shelf: MixedShelf, point: Point, pools: tuple[int, ...], part: Part = WHOLE
    ) -> MixedWork:
        """The sums of the pools' profiles at a point, of what passes a chain."""
        profiles = [shelf.part(pool, point, part) for pool in pools]
        cut = pools if part.cuts_head else ()
        durations = [profile.costs.duration_s for profile in profiles]
        starts = profiles[0].costs.class_offsets[:-1]
        works = tuple(shelf.work(pool, point, part) for pool in pools)
        return cls(
            cluster=shelf.cluster,
            pools=pools,
            works=works,
            trades=_trades(profiles, works),
            speeds=np.array([[_speed(own, other) for other in durations] for own in durations]),
            class_s=np.array([np.minimum.reduceat(each, starts) for each in durations]),
            counts=tuple(like.num_layers for like in works[0].classes),
            way_s=_way_s(profiles),
            forward_share=min(map(_forward_share, profiles)),
            exchanged=_exchanged(profiles),
            overlap=shelf.question.settings.overlap,
            usable_bytes=tuple(shelf.usable_bytes(pool) for pool in pools),
            heads_s=tuple(head_times_s(shelf.profile(pool, point))[:3] for pool in cut),
        )

    def beside_s(self, schedule: str, m: Ints, p: Ints) -> Floats:
        """What ranks run of a cut head before their last backward, of m microbatches, [G, N]."""
        if not self.heads_s:
            return np.zeros((len(self.pools), 1))
        barriers = family_named(schedule).head_barriers
        passes_s = [head_passes_s(*own, barriers=barriers) for own in self.heads_s]
        each = [head_work_s(*own, m, barriers=barriers) / p for own in passes_s]
        found: Floats = np.stack(each)
        return found

    def exchange_s(
        self, degrees: Parallelism, members: dict[int, int], *, group: int = 1
    ) -> tuple[float, float]:
        """What no network of these replicas does faster: per microbatch, and after the last.

        Layers may lie in any of the pools, each of which has so many replicas. Of a rank's chunks
        up to `group` microbatches pass each before any passes the next.
        """
        key = degrees, *members.items(), group
        if key not in self._exchanged_s:
            alone = ({pool: count} for pool, count in members.items())
            groups = [each for own in alone for each in at_any_depth(self.cluster, degrees, own)]
            self._exchanged_s[key] = self._least_s(cheapest(groups), group)
        return self._exchanged_s[key]

    def shared_exchange_s(
        self, degrees: Parallelism, members: dict[int, int], *, group: int = 1
    ) -> tuple[float, float]:
        """The same for replicas of every layer in all the pools together."""
        key = degrees, *members.items(), group, "shared"
        if key not in self._exchanged_s:
            groups = at_any_depth(self.cluster, degrees, members)
            self._exchanged_s[key] = self._least_s(cheapest(groups), group)
        return self._exchanged_s[key]

    def _least_s(self, replicas: Replicas, group: int) -> tuple[float, float]:
        hiding, own = float(zero.group_hiding(replicas.zero_stage, group)), self.exchanged
        under = replace(
            own, forward_s=own.forward_s * hiding, input_grad_s=own.input_grad_s * hiding
        )
        (times,) = data_parallel_times((under,), replicas, self.overlap, num_microbatches=1)
        return times.added_forward_s + times.added_backward_s, times.exposed_sync_s

    def held_bytes(self, point: Point, replicas: Ints, zero_stage: int) -> Floats:
        """State of all layers for so many replicas in all."""
        static, groups = self.works[0].static_bytes, _group_sizes(point, replicas)
        held: Floats = zero.state_bytes(np.array(zero_stage), groups, static).sum(axis=-1)
        return held

    def crossed_s(self) -> float:
        """From one pool to the next of all, and back: seconds of one microbatch."""
        joint, count = self.cluster.joint, len(self.pools) - 1
        if joint is None or not count:
            return 0.0
        return 2 * count * point_to_point_time_s(min(w.edge_bytes for w in self.works), joint)

    def after_s(self, point: Point, replicas: Ints, zero_stage: int, p: Ints) -> Floats:
        """What follows the last exchange, [N]: the slowest update, and what every step takes.

        The rank with most to update has no less than the mean, and no faster device than any.
        """
        devices = [self.cluster.pools[pool].accelerator for pool in self.pools]
        static, trained = self.works[0].static_bytes, self.works[0].trained_bytes
        groups = _group_sizes(point, replicas)
        touched = zero.touched_bytes(np.array(zero_stage), groups, static, trained) / p
        distinct, index = np.unique(touched, return_inverse=True)
        found = np.array(
            [min(zero.update_time_s(b, device) for device in devices) for b in distinct.tolist()]
        )
        overhead_s = max(device.step_overhead_s for device in devices)
        after_s: Floats = found[index.reshape(-1)] + overhead_s
        return after_s


def across_bounds_s(
    work: MixedWork,
    point: Point,
    grid: Grid,
    *,
    microbatches: int,
    zero_stage: int,
    schedule: str,
    degrees: Parallelism,
    in_turn: bool = True,
) -> Floats:
    """Of every layout of a grid of depths by replicas, [N]; infinite where nothing fits.

    Of a `schedule` that is no family what holds of any order is told. `degrees` are those of the
    point and ZeRO stage, for any number of replicas. Ranks of one stage each start `in_turn`; of
    several, their first chunks alone do.
    """
    depths, m = grid.counts, microbatches // grid.shared
    room_bytes = _room_bytes(work, depths, m, schedule)
    held = work.held_bytes(point, grid.shared, zero_stage)
    p = depths.sum(axis=1)
    in_flight = np.minimum(_in_flight(schedule, p), m)
    room_bytes = room_bytes - held / in_flight
    total_room = (depths * np.array(work.usable_bytes)).sum(axis=1) - held
    kept_room = _unless_on_host(schedule, np.minimum(room_bytes, total_room), total_room)
    added_s, after_s = _by_replicas(work, degrees, grid.shared, _group(schedule, p))
    share = 1.0 if schedule in layouts.FUSED else work.forward_share
    beside_s = work.beside_s(schedule, m, p)  # every rank is later by that, as without its waits
    bounds_s, rates_s = np.zeros(grid.size), np.zeros(grid.size)
    for own, speeds in enumerate(work.speeds):
        least = float(speeds.min())
        work_s = work.trades[own].least_s(kept_room)
        work_s = work_s + least * added_s
        rate = depths @ speeds
        heads_s = ((depths * speeds) * beside_s.T).sum(axis=1)
        rates_s = np.maximum(rates_s, (m * work_s + least * after_s + heads_s) / rate)
        if in_turn:
            bounds_s = np.maximum(bounds_s, work_s / _reached(depths, speeds, m, share))
    for count, class_s in zip(work.counts, work.class_s.T, strict=True):
        if count > 1 and class_s.min() > 0:  # no way to run what fits nowhere has a time
            least_s = _undivided_s(depths, class_s, count)
            bounds_s = np.maximum(bounds_s, m * least_s)
    bounds_s = np.maximum(bounds_s, work.way_s + work.crossed_s()) + beside_s.min(axis=0)
    found: Floats = np.maximum(bounds_s, rates_s)
    return found + work.after_s(point, grid.shared, zero_stage, p)


def beside_bounds_s(
    work: MixedWork,
    point: Point,
    grid: Grid,
    *,
    microbatches: int,
    zero_stage: int,
    schedule: str,
    degrees: Parallelism,
    alike: bool = False,
    in_turn: bool = True,
) -> Floats:
    """Of every layout of a grid of replicas by depth, [N]; infinite where nothing fits.

    Where replicas run `alike`, all have as many microbatches; see `across_bounds_s`.
    """
    replicas, p = grid.counts, grid.shared
    held = work.held_bytes(point, replicas.sum(axis=1), zero_stage)
    added_s, start_s = _shared_s(work, degrees, replicas, _group(schedule, p))
    start_s = start_s / p
    whole, most = [], []
    for own, usable in enumerate(work.usable_bytes):
        room_bytes = p * usable - held
        whole.append(
            work.works[own].trade.least_s(_unless_on_host(schedule, room_bytes, room_bytes))
        )
        longest_s = np.zeros(grid.size)
        for layer_class, count in enumerate(work.counts):
            longest_s = np.maximum(longest_s, -(-count // p) * work.class_s[own, layer_class])
        most.append(longest_s)
    whole_s, most_s = np.stack(whole, axis=1), np.stack(most, axis=1)
    fits = np.isfinite(whole_s.max(axis=1))
    whole_s = np.where(fits[:, np.newaxis], whole_s, 1.0)
    share = 1.0 if schedule in layouts.FUSED else work.forward_share
    # Of a cut head a rank runs so much with each microbatch, but for a part of the first.
    none_s, one_s = (work.beside_s(schedule, np.array(n), p).T for n in (0, 1))
    head_s = one_s - none_s
    way_s = max(each.way_s for each in work.works)
    after_s = work.after_s(point, replicas.sum(axis=1), zero_stage, p)
    if alike:
        m, ranks = (microbatches / replicas.sum(axis=1))[:, np.newaxis], p[:, np.newaxis]
        each_s = whole_s + added_s[:, np.newaxis]
        ends_s = start_s[:, np.newaxis] + m * (each_s / ranks + head_s)
        ends_s = none_s + np.maximum(ends_s, m * (most_s + head_s))
        if in_turn:  # T ≥ φ·W / (1 − (1 − φ/m)^p)
            left = 1 - share / np.maximum(m, 1.0)
            ends_s = np.maximum(ends_s, share * each_s / (1 - left**ranks))
        return np.where(fits, np.maximum(ends_s.max(axis=1), way_s) + after_s, np.inf)

    def reached(limit_s: Floats) -> Floats:
        """Microbatches that all pools have done by then."""
        left_s = limit_s[:, np.newaxis] - none_s
        each = (left_s - start_s[:, np.newaxis]) / (whole_s / p[:, np.newaxis] + head_s)
        each = np.minimum(each, left_s / (most_s + head_s))
        if in_turn:  # T ≥ φ·W / (1 − (1 − φ/m)^p)
            left = np.clip(1 - share * whole_s / limit_s[:, np.newaxis], 0.0, None)
            each = np.minimum(each, share / (1 - left ** (1 / p[:, np.newaxis])))
        each = np.maximum(0.0, each)
        count: Floats = (replicas * each).sum(axis=1)
        return count

    rate = (replicas * p[:, np.newaxis] / whole_s).sum(axis=1)
    low = microbatches / rate + start_s
    low = np.maximum(np.maximum(low, start_s + whole_s.max(axis=1) / p), way_s)
    high = 2 * low + 4 * whole_s.sum(axis=1) + 2 * microbatches * head_s.max(axis=1)
    with np.errstate(divide="ignore"):
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            enough = reached(middle) >= microbatches
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(fits, low + after_s, np.inf)


def _group(schedule: str, p: Ints) -> int:
    """The most microbatches that pass a chunk before its rank's next, on any of so many ranks."""
    return int(p.max(initial=1)) if schedule in layouts.IN_GROUPS else 1


def _shared_s(
    work: MixedWork, degrees: Parallelism, replicas: Ints, group: int
) -> tuple[Floats, Floats]:
    """What the replicas of all pools exchange with a microbatch and after the last, [N] each."""
    distinct, index = np.unique(replicas, axis=0, return_inverse=True)
    members = (dict(zip(work.pools, row, strict=True)) for row in distinct.tolist())
    exchanged_s = [work.shared_exchange_s(degrees, own, group=group) for own in members]
    found = np.array(exchanged_s).reshape(-1, 2)[index.reshape(-1)]
    return found[:, 0], found[:, 1]


def _speed(own_s: Floats, other_s: Floats) -> float:
    """How many times faster the other device may run a layer; rows that take no time do not say."""
    told = (own_s > 0) & (other_s > 0)
    return float((own_s[told] / other_s[told]).max(initial=1e-9)) if told.any() else 1.0


def _way_s(profiles: list[Profile]) -> float:
    """Forward, and the gradient of the input back, each layer where and as that is fastest."""
    found = []
    for profile in profiles:
        phases, starts = profile.costs.by_phase, profile.costs.class_offsets[:-1]
        found.append(np.minimum.reduceat(phases.total_s - phases.weight_grad_s, starts))
    classes = [layer.layer_class for layer in profiles[0].structure.layers]
    return math.fsum(np.minimum.reduce(found)[classes].tolist())


def _forward_share(profile: Profile) -> float:
    phases = profile.costs.by_phase
    works = phases.total_s > 0
    return float((phases.forward_s[works] / phases.total_s[works]).min(initial=1.0))


def _exchanged(profiles: list[Profile]) -> StageWork:
    """All layers as one stage, each in the longest windows that any pool and way offer."""
    structure, costs = profiles[0].structure, profiles[0].costs
    starts = costs.class_offsets[:-1]
    classes = [layer.layer_class for layer in structure.layers]
    stage = Stage.uniform(
        structure.ids,
        tuple(costs.option_ids[starts[number]] for number in classes),
        data_parallel=1,
        tensor_parallel=int(costs.tensor_parallel[0]),
    )
    (work,) = stage_works(Plan(stages=(stage,), num_microbatches=1), profiles[0], {})
    windows = []
    for profile in profiles:
        phases = profile.costs.by_phase
        own = phases.forward_s, phases.total_s - phases.forward_s
        windows.append([np.maximum.reduceat(each, starts) for each in own])
    forward_s, backward_s = np.max(windows, axis=0)[:, classes].sum(axis=1).tolist()
    return replace(work, forward_s=forward_s, input_grad_s=backward_s, weight_grad_s=0.0)


def _trades(profiles: list[Profile], works: tuple[PointWork, ...]) -> tuple[Trade, ...]:
    """By pool the seconds of all layers where each way keeps what it keeps in any pool at least.

    What hides a copy to the host is a pool's own, and so is what a layer leaves on the device.
    """
    names = ("saved_until_input_grad_bytes", "saved_until_weight_grad_bytes")
    tables = [profile.costs for profile in profiles]
    least = {name: np.min([getattr(each, name) for each in tables], axis=0) for name in names}
    return tuple(
        work.trade
        if all(np.array_equal(getattr(costs, name), own) for name, own in least.items())
        else PointWork.of(replace(profile, costs=replace(costs, **least))).trade
        for work, profile, costs in zip(works, profiles, tables, strict=True)
    )


def _by_replicas(
    work: MixedWork, degrees: Parallelism, data: Ints, group: int
) -> tuple[Floats, Floats]:
    """What replicas exchange, by layout, [N] each."""
    distinct, index = np.unique(data, return_inverse=True)
    found = np.array(
        [
            work.exchange_s(degrees, dict.fromkeys(work.pools, count), group=group)
            for count in distinct.tolist()
        ]
    ).reshape(-1, 2)
    return found[index, 0], found[index, 1]


def _room_bytes(work: MixedWork, depths: Ints, m: Ints, schedule: str) -> Floats:
    """Σ U_r / w_r over the ranks of every layout: what one microbatch may keep, state aside."""
    ends = np.cumsum(depths[:, ::-1], axis=1)[:, ::-1]  # ranks from the first of a pool on
    most = int(ends.max(initial=0))
    counts, index = np.unique(m, return_inverse=True)
    shares = 1 / np.minimum(_in_flight(schedule, np.arange(1, most + 1)), counts[:, np.newaxis])
    sums = np.pad(np.cumsum(shares, axis=1), ((0, 0), (1, 0)))
    room: Floats = np.zeros(len(m))
    for own, usable in enumerate(work.usable_bytes):
        behind = ends[:, own] - depths[:, own]
        room = room + usable * (sums[index, ends[:, own]] - sums[index, behind])
    return room


def _in_flight(schedule: str, ranks: Ints) -> Ints:
    """Microbatches of all its chunks that a rank holds at one instant, so many ranks from it on.

    In V that grows with the ranks up to it, and one is told of.
    """
    warm_up = layouts.WARM_UP.get(schedule)
    if schedule in layouts.LOOPED:
        warm_up = layouts.HELD_AT_ONCE.get(schedule)
    return np.ones_like(ranks) if warm_up is None else warm_up(ranks)


def _unless_on_host(schedule: str, kept_room: Floats, room_bytes: Floats) -> Floats:
    """The room for what one microbatch keeps, [N]: no limit where it need not lie there at once."""
    return (
        np.where(room_bytes < 0, room_bytes, np.inf) if schedule in layouts.ON_HOST else kept_room
    )


def _reached(depths: Ints, speeds: Floats, m: Ints, share: float) -> Floats:
    """a_0: the work of a microbatch that gets done per second of the step, [N]."""
    left = 1 - share / m
    found = np.zeros(len(m))
    for own in reversed(range(depths.shape[1])):
        speed = speeds[own] / share
        grown = speed - (speed - found) * left ** depths[:, own]
        found = np.where(speed > found, grown, found)
    return found


def _undivided_s(depths: Ints, class_s: Floats, count: int) -> Floats:
    """The least u with Σ p_g·⌊u / t_g⌋ ≥ count, [N]."""
    distinct, index = np.unique(depths, axis=0, return_inverse=True)
    times_s = np.unique(np.outer(np.arange(1, count + 1), class_s))
    held = np.floor(times_s[:, np.newaxis] / class_s * _HAIR).astype(np.int64)  # [U, G]
    enough = distinct @ held.T >= count  # [N, U]
    found: Floats = times_s[enough.argmax(axis=1)][index.reshape(-1)]
    return found
