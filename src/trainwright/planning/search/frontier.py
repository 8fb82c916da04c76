"""All candidates of a question by their coarse bounds, made only when their turn comes.

The space is a tree: degrees of the dense parts; how experts are dealt out; microbatch sizes, the
smallest first; ZeRO stage and schedule; depth and data degree. A node's bound holds for all below
it, and a node is opened when it is the least of all, so most of the space is counted and never
looked at.

Larger microbatches take no longer per sequence, so what layers take at least at the largest size
bounds all others. Where a layer of one microbatch is too large for a device, larger ones are, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np

from trainwright.cluster import Cluster
from trainwright.execution import Budget
from trainwright.execution.best_first import BestFirst
from trainwright.model import LayerKind
from trainwright.planning.bounds.layers import (
    LeastLayers,
    PointWork,
    least_layers,
    with_exchanges,
)
from trainwright.planning.bounds.stages import StageKinds
from trainwright.planning.bounds.step import (
    Batch,
    ChainWork,
    CoarseBounds,
    Hidden,
    PointPairs,
    RoughBounds,
    head_bounds_s,
)
from trainwright.planning.question.layouts import (
    BRAIDED,
    CUTS_HEAD,
    IN_V,
    ON_HOST,
    SLICED,
    Layouts,
    Schedule,
    schedules_of,
    schedules_to_bound,
    slices_at,
    together,
)
from trainwright.planning.question.question import (
    Aim,
    Allowed,
    Candidate,
    ModelQuestion,
    Point,
    StepAim,
    dense_points,
    estimate_profile,
    expert_points,
    room_of_candidate,
    room_of_devices,
)
from trainwright.plans.plan import DATA_INSIDE, PIPELINE_INSIDE
from trainwright.profile import Profile, ProfileSource, Recompute
from trainwright.profile.measured_model import MeasuredModel, in_modes
from trainwright.step.pipeline import slices_of
from trainwright.step.stages import CutHead, cut_head, in_slices, waiting_for_host, without_head
from trainwright.units import GIB

if TYPE_CHECKING:
    from trainwright.arrays import Floats


# Profiles of points and the kinds of stages that they have, each made when first asked for
# -----------------------------------------------------------------------------------------


class Sliced(NamedTuple):
    """Sums over layers of slices, a chain of these, and kinds of stages."""

    work: PointWork
    chain: ChainWork
    kinds: StageKinds


@dataclass(slots=True)
class Shelf:
    """Profiles by point and what follows from them, each made when first asked for.

    A `wider` one is of the same layers, which may recompute in more ways.
    """

    question: ModelQuestion
    estimator: ProfileSource
    wider: Shelf | None = None
    made: dict[Point, Profile] = field(default_factory=dict)
    summed: dict[Point, PointWork] = field(default_factory=dict)
    least: dict[Point, tuple[LeastLayers, ...]] = field(default_factory=dict)
    chains: dict[tuple[Point, bool], ChainWork] = field(default_factory=dict)
    bodies: dict[Point, Profile] = field(default_factory=dict)
    body_summed: dict[Point, PointWork] = field(default_factory=dict)
    hosted: dict[Point, StageKinds] = field(default_factory=dict)
    cut: dict[tuple[Point, bool], StageKinds] = field(default_factory=dict)
    braided: dict[Point, Hidden] = field(default_factory=dict)
    in_parts: dict[tuple[Point, int], Sliced] = field(default_factory=dict)
    alike: dict[bytes, StageKinds] = field(default_factory=dict)
    rooms: dict[Candidate, Cluster] = field(init=False, default_factory=dict)  # its own question's

    @classmethod
    def of(cls, question: ModelQuestion) -> Shelf:
        """An empty one."""
        return cls(question, question.estimator())

    def uncut(self, question: ModelQuestion) -> Shelf:
        """The same layers for a question that cuts them in another way."""
        return replace(self, question=question, chains={}, hosted={}, cut={}, in_parts={}, alike={})

    @property
    def bounded(self) -> tuple[Schedule, ...]:
        """Schedules beside those of one chunk per rank on which something has to be proved."""
        question = self.question
        return schedules_to_bound(question.allowed, cuts_head=question.cuts_head)

    def profile(self, point: Point) -> Profile:
        """What layers cost at a point."""
        if point not in self.made:
            known = None if self.wider is None else self.wider.made.get(point)
            if known is None:
                self.made[point] = estimate_profile(self.estimator, self.question, point)
            else:
                modes = self.question.allowed.recompute
                place = replace(known.point, recompute=tuple(map(str, modes)))
                self.made[point] = replace(in_modes(known, modes), point=place)
        return self.made[point]

    def work(self, point: Point) -> PointWork:
        """What all layers at a point take together."""
        if point not in self.summed:
            self.summed[point] = PointWork.of(self.profile(point))
        return self.summed[point]

    def least_layers(self, point: Point) -> tuple[LeastLayers, ...]:
        """What layers take at least, however the experts of a point are dealt out."""
        if point not in self.least:
            self.least[point] = least_layers(self.question, point)
        return self.least[point]

    def body(self, point: Point) -> Profile:
        """The same without a head that is cut over all ranks."""
        if point not in self.bodies:
            self.bodies[point] = without_head(self.profile(point))
        return self.bodies[point]

    def body_work(self, point: Point) -> PointWork:
        """What its layers take together."""
        if point not in self.body_summed:
            self.body_summed[point] = PointWork.of(self.body(point))
        return self.body_summed[point]

    def kinds(self, point: Point, *, without: bool = False) -> StageKinds:
        """The kinds of stages of a point's profile, the same where layers cost the same.

        That is so where context parallelism is free: twice of it cuts twice the microbatch. They
        may be those `without` the head.
        """
        if (point, without) not in self.cut:
            profile = self.body(point) if without else self.profile(point)
            costs = _fingerprint(profile)
            if costs not in self.alike:
                self.alike[costs] = self._cut_up(profile)
            self.cut[point, without] = self.alike[costs]
        return self.cut[point, without]

    def _cut_up(self, profile: Profile) -> StageKinds:
        first, joined = _how_cut(self.question)
        overlap = self.question.settings.overlap
        return StageKinds.of(profile, overlap, repeats_first=first, together=joined)

    def chain(self, point: Point, *, without: bool) -> ChainWork:
        """What a chain of these kinds of stages takes."""
        if (point, without) not in self.chains:
            self.chains[point, without] = ChainWork.of(self.kinds(point, without=without))
        return self.chains[point, without]

    def sliced(self, point: Point, slices: int) -> Sliced:
        """What a slice of a microbatch costs at a point, and what a chain of such takes."""
        if (point, slices) not in self.in_parts:
            profile = in_slices(self.profile(point), slices)
            kinds = self._cut_up(profile)
            self.in_parts[point, slices] = Sliced(PointWork.of(profile), ChainWork.of(kinds), kinds)
        return self.in_parts[point, slices]

    def kinds_of(self, candidate: Candidate) -> StageKinds:
        """Those that a candidate's splits are made of."""
        if candidate.schedule in SLICED:
            slices = slices_of(candidate.schedule, candidate.pipeline)
            return self.sliced(candidate.point, slices).kinds
        return self.kinds(candidate.point, without=candidate.schedule in CUTS_HEAD)

    def hosted_of(self, candidate: Candidate) -> StageKinds | None:
        """The kinds as they wait for the host, where the candidate's schedule uses that."""
        host = self.question.cluster.accelerator.host
        if candidate.schedule not in ON_HOST or host is None:
            return None
        if candidate.point not in self.hosted:
            waiting = waiting_for_host(self.profile(candidate.point), host.link_bytes_per_s)
            self.hosted[candidate.point] = self._cut_up(waiting)
        return self.hosted[candidate.point]

    def hidden(self, point: Point) -> Hidden:
        """What braided orders hide at most."""
        if point not in self.braided:
            self.braided[point] = Hidden.of(self.profile(point))
        return self.braided[point]

    def room_of(self, candidate: Candidate) -> Cluster:
        """The cluster with what a plan of the candidate may fill of it."""
        if candidate not in self.rooms:
            profile = self.profile(candidate.point)
            self.rooms[candidate] = room_of_candidate(self.question, candidate, profile)
        return self.rooms[candidate]

    def head_of(self, candidate: Candidate) -> CutHead | None:
        """What each rank has of a head that the candidate's schedule cuts, exchanges for free."""
        if candidate.schedule not in CUTS_HEAD:
            return None
        return cut_head(self.profile(candidate.point), candidate.pipeline, (), {})


@dataclass(slots=True)
class Shelves:
    """Shelves of questions that differ in what a plan may use: layers cost the same in all.

    Stages that are made of them need not: these are shared where layers are cut alike.
    """

    _known: list[Shelf] = field(default_factory=list)

    def of(self, question: ModelQuestion) -> Shelf:
        """The question's own, with all that others have made."""
        layers, modes = _layers_of(question), question.allowed.recompute
        wider: Shelf | None = None
        alike: Shelf | None = None
        for known in self._known:
            if _layers_of(known.question) != layers:
                continue
            others = known.question.allowed.recompute
            if others == modes:
                if _how_cut(known.question) == _how_cut(question):
                    return replace(known, question=question)
                alike = alike or known
            if {*others} > {*modes} and not isinstance(question.model, MeasuredModel):
                wider = wider or known
        own = Shelf.of(question) if alike is None else alike.uncut(question)
        self._known.append(replace(own, wider=wider))
        return self._known[-1]


def _how_cut(question: ModelQuestion) -> tuple[bool, frozenset[LayerKind]]:
    """What of a question decides the kinds of stages beside their layers (`StageKinds.of`)."""
    return question.allowed.recomputes_first, together(question.allowed)


def _layers_of(question: ModelQuestion) -> ModelQuestion:
    """What of a question decides the costs of layers but for the ways in which they recompute.

    The plans that are allowed do not, nor does room.
    """
    alike = Allowed(recompute=(Recompute.NONE,))  # which every other setting goes with
    return replace(question, allowed=alike, cluster=question.cluster.with_memory(GIB))


def _fingerprint(profile: Profile) -> bytes:
    """All numbers that tell two profiles of one model apart."""
    costs, edges = profile.costs, profile.structure.edges
    tables = [
        costs.by_phase.forward_s,
        costs.by_phase.input_grad_s,
        costs.by_phase.weight_grad_s,
        costs.by_phase.recompute_s,
        costs.saved_until_input_grad_bytes,
        costs.saved_until_weight_grad_bytes,
        costs.transient_bytes,
        costs.static_bytes,
        costs.opaque_static_bytes,
        costs.gradient_sync_bytes,
        np.array([edge.bytes for edge in edges]),
    ]
    return b"".join(np.ascontiguousarray(table).tobytes() for table in tables)


# Nodes of the tree that a search opens (`frontier`), from degrees down to one candidate
# --------------------------------------------------------------------------------------
# `family` is the schedule family of all that lies below a node, None where it may be any.


@dataclass(frozen=True, slots=True, kw_only=True)
class Undealt:
    """All ways to deal the experts out, at the degrees of a point and any of some sizes.

    `least` is what layers take for a sequence.
    """

    family: ClassVar[None] = None
    point: Point
    sizes: tuple[int, ...]
    least: tuple[LeastLayers, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpriced:
    """A point whose layers have to be priced at microbatches of some sizes, least first."""

    family: ClassVar[None] = None
    point: Point
    sizes: tuple[int, ...]
    least: tuple[LeastLayers, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbounded:
    """A point whose layers are priced, and its pairs that are not bounded yet."""

    family: ClassVar[None] = None
    point: Point
    work: PointWork
    layouts: Layouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rough:
    """Pairs of a point whose bounds are not sharp yet: their keys are `keys_of` their seconds.

    They are made sharp when they come to be the least of all, and those of each schedule and ZeRO
    stage then wait in the places from `tie` on, as if they had been sharp before.
    """

    family: ClassVar[None] = None
    bounds: RoughBounds
    keys_of: Callable[[Floats], Floats]
    tie: int


@dataclass(slots=True, kw_only=True)
class BoundedPairs:
    """Depths, data degrees and chunks at a point, ZeRO stage and schedule; least bound first.

    Those of `layouts` from `first` on, with `bounds_s` [N]; `done` of them were taken.
    """

    point: Point
    zero_stage: int
    schedule: Schedule
    layouts: Layouts
    first: int
    bounds_s: Floats
    done: int = 0

    @property
    def family(self) -> str:
        """That of the schedule."""
        return self.schedule.family

    @property
    def num_left(self) -> int:
        """Candidates that were not taken."""
        return len(self.bounds_s) - self.done

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
class Single:
    """A candidate that was put back."""

    num_left: ClassVar[int] = 1
    candidate: Candidate

    @property
    def family(self) -> str:
        """That of its schedule."""
        return self.candidate.schedule


Node: TypeAlias = Undealt | Unpriced | Unbounded | Rough | BoundedPairs | Single


def _is_open(node: Node) -> bool:
    """Whether candidates can be taken from it, without pricing layers before."""
    return isinstance(node, BoundedPairs | Single)


def least_of_any_order_s(question: ModelQuestion, budget: Budget) -> float:
    """No plan steps faster, in whatever order its actions run; 0 where the budget ends before."""
    schedules = schedules_of(question.allowed, cuts_head=question.cuts_head)
    frontier = Frontier(question, Shelf.of(question), StepAim(), schedules)
    return frontier.least_by_work_s(budget) if frontier.open(budget) else 0.0


# All candidates of a question by their coarse bounds, made only when their turn comes
# ------------------------------------------------------------------------------------

_NEAR: Final = 1.2  # times the least of a point: pairs with less work are bounded first


@dataclass(slots=True)
class Frontier:
    """The candidates that were not taken yet.

    Bounds are on the figure that the aim makes least: seconds of a step, or what follows from them.
    They hold for all splits and orders, or for those that are `likely` (`CoarseBounds`).
    Families set `aside` are looked at no more: none of their `num_aside` candidates at points that
    were opened, and none at others, has a bound below `aside_s`.
    """

    question: ModelQuestion
    shelf: Shelf
    aim: Aim
    schedules: tuple[Schedule, ...]
    likely: bool = False
    aside: frozenset[str] = frozenset()
    aside_s: float = math.inf
    num_aside: int = 0
    _coarse: CoarseBounds = field(init=False)
    _pairs: PointPairs = field(init=False)
    _opened: list[tuple[Point, tuple[int, ...]]] = field(default_factory=list)
    _considered: int | None = None
    _waiting: BestFirst[Node] = field(default_factory=BestFirst)
    _ties: int = 0

    def __post_init__(self) -> None:
        self._coarse = CoarseBounds(
            room_of_devices(self.question), self.question.settings.overlap, self.likely
        )
        self._pairs = PointPairs(self.question, self.aim, self.schedules)

    @property
    def families(self) -> frozenset[str]:
        """The schedule families of the space."""
        return frozenset(schedule.family for schedule in self._pairs.space.schedules)

    def open(self, budget: Budget) -> bool:
        """Bound the roots; false where the budget ran out before all of them were."""
        for point, sizes in self._roots():
            if budget.stopped:
                return False
            dealt = [each for each in self._dealt(point) if self._has_any(each, sizes)]
            if not dealt:
                continue
            self._opened.append((point, sizes))
            if isinstance(self.question.model, MeasuredModel):
                for each in dealt:
                    self._price_all(each, sizes)
                continue
            largest = replace(point, microbatch_size=sizes[-1])
            least = tuple(
                each._replace(time_s=each.time_s / sizes[-1])
                for each in self.shelf.least_layers(largest)
            )
            # Not of the pairs of the point itself: with its experts elsewhere it may have fewer.
            key = min(self._least_key(each, sizes, least) for each in dealt)
            self._add(key, Undealt(point=point, sizes=sizes, least=least))
        return True

    @property
    def considered(self) -> int:
        """All candidates there are below the roots that were opened; brief searches never ask."""
        if self._considered is None:
            self._considered = sum(self._count_dealt(*root) for root in self._opened)
        return self._considered

    def _roots(self) -> Iterator[tuple[Point, tuple[int, ...]]]:
        """Degrees of all that is no expert, and the sizes of microbatches at each."""
        asked = self.question
        sizes: dict[Point, list[int]] = {}
        for point in dense_points(
            asked.model,
            asked.cluster,
            asked.workload,
            asked.allowed,
            asked.settings,
            num_devices=asked.num_devices,
        ):
            alike = replace(point, microbatch_size=1)
            sizes.setdefault(alike, []).append(point.microbatch_size)
        for point, own in sizes.items():
            yield point, tuple(sorted(own))

    def _dealt(self, point: Point) -> list[Point]:
        return list(expert_points(self.question.model, point, self.question.allowed))

    def _count_dealt(self, point: Point, sizes: tuple[int, ...]) -> int:
        """Candidates with any of these microbatches and the experts dealt out in every way."""
        return sum(self._pairs.num_candidates(each, sizes) for each in self._dealt(point))

    def _has_any(self, point: Point, sizes: tuple[int, ...]) -> bool:
        """Whether a point has candidates with any of these microbatches."""
        return any(self._pairs.has_candidates(point, size) for size in sizes)

    def _least_key(
        self, point: Point, sizes: tuple[int, ...], least: tuple[LeastLayers, ...]
    ) -> float:
        """The least of all pairs with any of these microbatches; infinite where there are none.

        `least` is for a sequence. Pairs of different sizes differ in the replicas they may have:
        those of a size are among those of each that divides it.
        """
        keys: dict[int, float] = {}
        for size in sizes:
            if any(size % other == 0 for other in keys):
                continue
            if self._pairs.has_candidates(point, size):
                own = replace(point, microbatch_size=size)
                each = tuple(layers._replace(time_s=layers.time_s * size) for layers in least)
                keys[size] = float(self._pairs.least_keys(own, each).min())
        return min(keys.values(), default=math.inf)

    @property
    def least_s(self) -> float:
        """No candidate that is left has a lower bound; infinite where none is left."""
        self._sharpen_first()
        return self._waiting.least

    def least_by_work_s(self, budget: Budget) -> float:
        """No candidate that is left does its work sooner, in whatever order its actions run.

        Layers are priced until those of the least bound are, or the budget ends.
        """
        while self._waiting and isinstance(self._waiting.first, Undealt | Unpriced):
            if budget.stopped:
                break
            self.take()
        return self._waiting.least

    def least_among_s(self, families: Collection[str]) -> float:
        """No candidate that is left under one of these families has a lower bound."""
        least_s = self._least_sharp_s(families)
        self._sharpen_below(least_s)
        return self._least_sharp_s(families)

    def _least_sharp_s(self, families: Collection[str]) -> float:
        return min(
            (
                bound_s
                for bound_s, node in self._waiting
                if not isinstance(node, Rough) and (node.family is None or node.family in families)
            ),
            default=math.inf,
        )

    def set_aside(self, families: Collection[str]) -> None:
        """Look at no more candidates of these families."""
        self.aside, self.aside_s = frozenset(families), self.least_s
        self._waiting.revise(self._unless_aside)

    def _unless_aside(self, bound_s: float, node: Node) -> float | None:
        if isinstance(node, Rough):
            keys = node.keys_of(self._coarse.at_least_s(node.bounds))
            for part in node.bounds.batch.parts:
                if part.schedule.family in self.aside:
                    self.num_aside += int(np.isfinite(keys[part.own]).sum())
                    keys[part.own] = math.inf
            least = float(keys.min())
            return least if math.isfinite(least) else None
        if isinstance(node, BoundedPairs | Single) and node.family in self.aside:
            self.num_aside += node.num_left
            return None
        return bound_s

    def count_below(self, limit_s: float) -> int:
        """Candidates left that may be below the limit; those of an unopened node all count."""
        self._sharpen_below(limit_s)
        return sum(
            self._count_in(node, limit_s)
            for bound_s, node in self._waiting
            if bound_s < limit_s and not isinstance(node, Rough)
        )

    def _count_in(
        self, node: Undealt | Unpriced | Unbounded | BoundedPairs | Single, limit_s: float
    ) -> int:
        match node:
            case BoundedPairs():
                return node.count_below(limit_s)
            case Unbounded():
                return self._pairs.space.num_candidates(node.point, node.layouts)
            case Single():
                return node.num_left
            case Unpriced():
                return self._pairs.num_candidates(node.point, node.sizes)
            case Undealt():
                return self._count_dealt(node.point, node.sizes)

    def take(self) -> tuple[float, Candidate] | None:
        """Open the node of least bound; a candidate and its bound where one was reached."""
        self._sharpen_first()
        bound_s, node = self._waiting.take()
        match node:
            case Undealt():
                self._deal(bound_s, node)
            case Unpriced():
                self._price_next(bound_s, node)
            case Unbounded():
                self._bound(bound_s, node)
            case BoundedPairs():
                return bound_s, self._next_of(node)
            case Single():
                return bound_s, node.candidate
        return None

    def coming(self, count: int) -> Iterator[tuple[float, Candidate]]:
        """The next candidates and their bounds, as far as nodes are open; none is taken."""
        ahead: BestFirst[tuple[BoundedPairs | Single, int, int]] = BestFirst()
        for place, (bound_s, node) in enumerate(self._waiting.soonest(count, _is_open)):
            assert isinstance(node, BoundedPairs | Single)
            ahead.add(bound_s, (node, 0, place), tie=place)
        for bound_s, (node, skipped, place) in islice(ahead.opened(), count):
            if isinstance(node, Single):
                yield bound_s, node.candidate
                continue
            yield bound_s, node.candidate(node.done + skipped)
            after = node.done + skipped + 1
            if after < len(node.bounds_s):
                ahead.add(float(node.bounds_s[after]), (node, skipped + 1, place), tie=place)

    def put_back(self, bound_s: float, candidate: Candidate) -> None:
        """A candidate that was taken, with what is known of it by now."""
        self._add(bound_s, Single(candidate=candidate))

    def _add(self, bound_s: float, node: Node) -> None:
        self._ties += 1
        self._waiting.add(bound_s, node, tie=self._ties)

    def _sharpen_first(self) -> None:
        """Sharpen until the least bound is sharp."""
        while self._waiting and isinstance(self._waiting.first, Rough):
            _, node = self._waiting.take()
            assert isinstance(node, Rough)
            self._push_pairs(node)

    def _sharpen_below(self, limit_s: float) -> None:
        """Sharpen all bounds that may be below a limit."""
        rough: list[Rough] = []

        def unless_rough(bound_s: float, node: Node) -> float | None:
            if isinstance(node, Rough) and bound_s < limit_s:
                rough.append(node)
                return None
            return bound_s

        self._waiting.revise(unless_rough)
        for node in rough:
            self._push_pairs(node)

    def _deal(self, bound_s: float, node: Undealt) -> None:
        """Deal the experts out in every way."""
        largest = node.sizes[-1]
        for point in self._dealt(node.point):
            if not self._has_any(point, node.sizes):  # more devices than there are
                continue
            own, least = replace(point, microbatch_size=largest), node.least
            if self.question.model.experts is not None:
                times = tuple(each._replace(time_s=each.time_s * largest) for each in least)
                least = tuple(
                    each._replace(time_s=each.time_s / largest)
                    for each in with_exchanges(self.question, own, times)
                )
            self._push_unpriced(bound_s, Unpriced(point=point, sizes=node.sizes, least=least))

    def _push_unpriced(self, bound_s: float, node: Unpriced) -> None:
        key = self._least_key(node.point, node.sizes, node.least)
        if math.isfinite(key):
            self._add(max(bound_s, key), node)

    def _price_next(self, bound_s: float, node: Unpriced) -> None:
        """Price the layers at the smallest microbatch; larger ones wait, if any may fit."""
        size, *larger = node.sizes
        if self._price(replace(node.point, microbatch_size=size)) and larger:
            self._push_unpriced(bound_s, replace(node, sizes=tuple(larger)))

    def _price_all(self, point: Point, sizes: tuple[int, ...]) -> None:
        for size in sizes:
            if self._pairs.has_candidates(point, size):
                self._price(replace(point, microbatch_size=size))

    def _price(self, point: Point) -> bool:
        """Price the layers, for a bound on the whole point; whether each fits by itself."""
        if not self._pairs.has_candidates(point, point.microbatch_size):
            return True
        work, layouts = self.shelf.work(point), self._pairs.of(point)
        usable_bytes = self._coarse.cluster.accelerator.most_usable_bytes
        body = self._body(point)
        if body.largest_layer_bytes > usable_bytes:
            return False
        bound_s = float(self._pairs.least_keys(point, least_of(work), body=body).min())
        self._add(bound_s, Unbounded(point=point, work=work, layouts=layouts))
        return True

    def _body(self, point: Point) -> PointWork:
        """What the layers of a point take, without a head that may be cut over all ranks."""
        return self.shelf.body_work(point) if self._pairs.cuts_head else self.shelf.work(point)

    def _bound(self, bound_s: float, node: Unbounded) -> None:
        """Bound the pairs of least work under every ZeRO stage and schedule; others wait."""
        point, work, space = node.point, node.work, self._pairs.space
        keys = self._pairs.least_keys(point, least_of(work), node.layouts, body=self._body(point))
        least_s = max(bound_s, float(keys.min()))
        is_near = keys <= max(least_s, _NEAR * least_s)
        is_far = ~is_near & np.isfinite(keys)
        if is_far.any():
            far = Unbounded(point=point, work=work, layouts=node.layouts.at(is_far))
            self._add(float(keys[is_far].min()), far)
        near = node.layouts.at(is_near)
        if self.aside:
            self.num_aside += space.of(self.aside).num_candidates(point, near)
        left = space.without(self.aside)
        for cuts_head, part in (
            (False, left.without(CUTS_HEAD | SLICED)),
            (True, left.of(CUTS_HEAD)),
        ):
            if not part.schedules:
                continue
            batch = Batch.of(part, point, near)
            if not batch.parts:  # no schedule has an order there
                continue
            chain = self.shelf.chain(point, without=cuts_head)
            if cuts_head:
                body = self.shelf.body_work(point)
                with_head = partial(np.add, head_bounds_s(self.shelf.profile(point), batch))
                self._push_rough(self._coarse.rough(body, point, batch, chain=chain), with_head)
            else:
                braided = partial(self._without_hidden, point, batch)
                self._push_rough(self._coarse.rough(work, point, batch, chain=chain), braided)

        for family in sorted(SLICED.intersection(each.family for each in left.schedules)):
            slices = slices_at(family, near.pipeline)  # each is bounded as a microbatch
            cut = replace(near, num_microbatches=slices * near.num_microbatches)
            for count in np.unique(slices).tolist():
                batch = Batch.of(left.of({family}), point, cut.at(slices == count))
                if not batch.parts:
                    continue
                own = self.shelf.sliced(point, count)
                self._push_rough(self._coarse.rough(own.work, point, batch, chain=own.chain))

    def _without_hidden(self, point: Point, batch: Batch, bounds_s: Floats) -> Floats:
        """What braided orders may hide, off the bounds of their pairs."""
        least_s, bounds_s = self._coarse.cluster.accelerator.step_overhead_s, bounds_s.copy()
        for family, own in batch.families:
            if family in BRAIDED:
                hidden, m = self.shelf.hidden(point), batch.layouts.num_microbatches[own]
                work_s = m / batch.layouts.pipeline[own] * hidden.work_s
                bounds_s[own] = np.maximum(hidden.bound_s(bounds_s[own], m), work_s + least_s)
        return bounds_s

    def _push_rough(
        self, bounds: RoughBounds, steps_of: Callable[[Floats], Floats] = np.asarray
    ) -> None:
        """Pairs wait with what is known of them; `steps_of` such bounds are those of their steps.

        They have a place for each schedule and ZeRO stage.
        """
        point, batch = bounds.point, bounds.batch
        devices = point.devices * batch.layouts.pipeline * batch.layouts.data

        def keys_of(bounds_s: Floats) -> Floats:
            return self.aim.keys(steps_of(bounds_s), devices)

        key = float(keys_of(self._coarse.at_least_s(bounds)).min())
        if math.isfinite(key):
            tie = self._ties + 1
            self._waiting.add(key, Rough(bounds=bounds, keys_of=keys_of, tie=tie), tie=tie)
            self._ties += len(batch.parts)

    def _push_pairs(self, rough: Rough) -> None:
        """Those of each schedule and ZeRO stage that have a finite bound."""
        batch, keys = rough.bounds.batch, rough.keys_of(self._coarse.sharper_s(rough.bounds))
        number = np.repeat(np.arange(len(batch.parts)), [part.size for part in batch.parts])
        order = np.lexsort((keys, number))
        layouts, keys = batch.layouts.at(order), keys[order]
        for tie, part in enumerate(batch.parts, rough.tie):
            bounds_s = keys[part.own]
            bounds_s = bounds_s[: int(np.isfinite(bounds_s).sum())]
            if len(bounds_s) and part.schedule.family not in self.aside:
                pairs = BoundedPairs(
                    point=rough.bounds.point,
                    zero_stage=part.zero_stage,
                    schedule=part.schedule,
                    layouts=layouts,
                    first=part.own.start,
                    bounds_s=bounds_s,
                )
                self._waiting.add(float(bounds_s[0]), pairs, tie=tie)

    def _next_of(self, pairs: BoundedPairs) -> Candidate:
        """The next pair; those after it wait with their own bounds."""
        found = pairs.candidate(pairs.done)
        pairs.done += 1
        if pairs.num_left:
            self._add(float(pairs.bounds_s[pairs.done]), pairs)
        return found


class Opened(NamedTuple):
    """All candidates of a question, none of them taken; not all are there where time ran out."""

    frontier: Frontier
    is_complete: bool


def opened(
    question: ModelQuestion, budget: Budget, aim: Aim, shelves: Shelves, *, is_quick: bool = False
) -> Opened:
    """Where a search begins; a quick one without families in V, unless only they are asked for."""
    offered = schedules_of(question.allowed, cuts_head=question.cuts_head)
    if is_quick:
        offered = tuple(each for each in offered if each.family not in IN_V) or offered
    frontier = Frontier(question, shelves.of(question), aim, offered, likely=True)
    return Opened(frontier, frontier.open(budget))


def least_of(work: PointWork) -> tuple[LeastLayers, ...]:
    """The layers of a point that is priced, where memory is plenty."""
    return tuple(
        LeastLayers(like.fastest_s, like.num_layers, has_experts=False) for like in work.classes
    )
