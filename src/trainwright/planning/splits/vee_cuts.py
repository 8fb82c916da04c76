"""Every split in V of a small space, with a bound on each: nearly even, fitting as published.

The space is that of `VProblem.published`. Each cut is bounded by a peel of this cut alone
(`native/chain/peel.hpp`), which recomputes as little as memory allows; other ways to recompute
lengthen ranks by what they take longer. Ways are those of the fronts (`bounds.stages.StageKinds`):
none that keeps fewer bytes is as fast. Cuts are a few hundred where stages are as many as half of
the blocks, ways two or three to a stage: what is left of the product once a plan is known and
memory is short can be tried one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, permutations, product
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trainwright._native import _core
from trainwright.execution.best_first import BestFirst
from trainwright.planning.question.layouts import MOST_ACTIVATIONS
from trainwright.planning.question.question import (
    Candidate,
    ModelQuestion,
    missing_of_plan,
)
from trainwright.planning.splits.chain import CutsAndRows, Split
from trainwright.planning.splits.vee import (
    VProblem,
    attaining_splits,
    best_uneven_v_split,
    least_pipeline_of_v_s,
    least_step_of_v_s,
    only_stages,
    rows_of,
)
from trainwright.plans import Plan
from trainwright.plans.schedule import ActionKind, Schedule, ScheduleCosts
from trainwright.profile import CostTable, Profile
from trainwright.scheduling.block import TimedBlock, whole_order
from trainwright.scheduling.families.v_shape import block_without_pauses, busiest_s
from trainwright.scheduling.orders import justify
from trainwright.scheduling.simulate import simulate
from trainwright.step import zero
from trainwright.step.pipeline import placement_of
from trainwright.step.predict import (
    Layout,
    StepWork,
    pipeline_times,
    sharing_times,
    simulated_step,
    work_of_plan,
)

if TYPE_CHECKING:
    from trainwright.planning.splits.types import SplitQuestion

    Bools = NDArray[np.bool_]
    Cuts = tuple[int, ...]

_MOST_CUTS: Final = 1000  # ways to cut that are all looked through


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
    v: VProblem, space: _core.PeelProblem, ways: _Ways, cuts: Cuts
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """The bound on the pipeline and the point of each stage, for all ways within the limit."""
    stages = list(pairwise(cuts))
    is_stage = np.zeros(v.kinds.kind_of.shape, dtype=bool)
    for stage in stages:
        is_stage[stage] = True
    found = _core.peel(only_stages(space, is_stage))
    if math.isinf(found.cost):
        return
    p, m = v.num_ranks, v.num_microbatches
    each = []
    for rank in range(p):
        near, far = (int(v.kinds.kind_of[cut]) for cut in (stages[rank], stages[-1 - rank]))
        points = found.near_point[rank], found.far_point[rank]
        idle_s = float(found.rank_s[rank]) - m * float(space.fronts.time_s[list(points)].sum())
        own_s = [(idle_s + m * way.time_s, way) for way in ways.of(rank, near, far)]
        each.append([one for one in own_s if one[0] <= v.limit_s])
    for chosen in product(*each):
        near_points = [way.near for _, way in chosen]
        far_points = [way.far for _, way in chosen]
        yield max(own_s for own_s, _ in chosen), (*near_points, *reversed(far_points))


@dataclass(slots=True, eq=False)
class _Ways:
    """The ways of two stages of a rank that fit into memory together, fastest first."""

    v: VProblem
    space: _core.PeelProblem
    known: dict[tuple[int, int, int], list[_Way]] = field(default_factory=dict)

    def of(self, rank: int, near: int, far: int) -> list[_Way]:
        """Of two kinds; points that run layers as others do are left out."""
        key = rank, near, far
        if key not in self.known:
            self.known[key] = self._made(rank, near, far)
        return self.known[key]

    def _made(self, rank: int, near: int, far: int) -> list[_Way]:
        found: dict[tuple[float, float, float], _Way] = {}
        kept, time_s = self.space.fronts.kept_bytes, self.space.fronts.time_s
        for level, other_level in product(self._levels(near), self._levels(far)):
            for i, j in product(self._points(level), self._points(other_level)):
                if self._fits(rank, (near, far), (level, other_level), (i, j)):
                    same = float(time_s[i]), float(time_s[j]), float(kept[i])
                    found.setdefault(same, _Way(same[0] + same[1], i, j))
        return sorted(found.values())

    def _levels(self, kind: int) -> range:
        return range(*self.space.fronts.level_offset[kind : kind + 2].tolist())

    def _points(self, level: int) -> range:
        return range(*self.space.fronts.point_offset[level : level + 2].tolist())

    def _fits(
        self,
        rank: int,
        kinds: tuple[int, int],
        levels: tuple[int, int],
        points: tuple[int, int],
    ) -> bool:
        """As the peel has it: at every instant, and with the first two microbatches."""
        x, p = self.space, self.v.num_ranks
        fronts, of_kind = x.fronts, x.kinds
        near, far = kinds
        whole = of_kind.weight_bytes[near] + of_kind.weight_bytes[far]
        heaviest = max(of_kind.largest_weight_bytes[near], of_kind.largest_weight_bytes[far])
        state = of_kind.static_bytes[near] + of_kind.static_bytes[far]
        gathered = zero.gathered_bytes(x.gathered_share, heaviest, whole)
        room = x.usable_bytes - state - gathered
        own, other = (fronts.kept_bytes[point] for point in points)
        beside = [fronts.transient_bytes[level] for level in levels]
        least_beside = max(min(beside), *(fronts.beside_bytes[level] for level in levels))
        if own + beside[0] > room or own + other + beside[1] > room:
            return False
        held = x.near_in_flight[rank::p, 0] * own + x.far_in_flight[rank::p, 0] * other
        return bool(held.max() <= room - least_beside)


# Which of some plans in V steps fastest: their orders follow from times, so each is simulated
# --------------------------------------------------------------------------------------------
# An order is most of what a price costs. What a plan spends on communication takes another, without
# transfers, so only the plan that is kept is priced in full.
#
# What an order holds is known only then, too, and it may be more than the split has room for. So
# where a faster plan than all that fit misses the memory, splits are looked for again with so much
# less room as was missing, a few times; where that is too little room, halfway back, and once where
# it was enough at first.

_TRIES: Final = 7  # rooms, each less than the one before
_LEAST_CUT: Final = 0.005  # of the room: by how much it is cut at least, each time twice as much
_WORTH_LESS_ROOM: Final = 0.998  # of the best step: where a plan that misses the memory ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The fastest plan that fits, if any; by how much faster ones miss the memory, at least.

    `missing_bytes` is 0 where none does.
    """

    plan: Plan | None = None
    step_s: float = math.inf
    missing_bytes: float = 0.0

    def or_faster(self, other: Tried) -> Tried:
        """The faster of both; the first where they tie."""
        return other if other.step_s < self.step_s else self


def fastest_plan(
    question: ModelQuestion, profile: Profile, plans: Iterable[Plan], *, limit_s: float
) -> Tried:
    """The first of those that fit and step fastest; none whose pipeline alone exceeds the limit.

    What no order brings below the limit, or below the best step so far, is not ordered.
    """
    cluster, overheads = question.cluster, question.overheads
    overhead_s = cluster.accelerator.step_overhead_s

    def timed(plan: Plan, longest_s: float) -> TimedPlan | None:
        work, layout = work_of_plan(
            plan,
            profile,
            cluster,
            overlap=question.settings.overlap,
            overheads=overheads,
        )
        longest_s -= overhead_s
        if math.isfinite(longest_s) and least_pipeline_of_v_s(work, layout) > longest_s:
            return None
        step = simulated_step(work, layout)
        missing_bytes = missing_of_plan(question, plan, profile, step)
        return TimedPlan(step.pipeline_s + overhead_s, step.step_time_s, missing_bytes)

    return fastest_of(plans, timed, limit_s=limit_s)


class TimedPlan(NamedTuple):
    """A step's pipeline with what every step takes once, the whole of it, and what a device lacks.

    That is at most 0 where the plan fits.
    """

    least_s: float
    step_s: float
    missing_bytes: float


def fastest_of(
    plans: Iterable[Plan],
    timed: Callable[[Plan, float], TimedPlan | None],
    *,
    limit_s: float,
) -> Tried:
    """`fastest_plan` of plans that `timed` simulates, or finds to be longer than it is told."""
    best, over = Tried(), []
    for plan in plans:
        found = timed(plan, min(limit_s, best.step_s))
        if found is None or found.least_s > limit_s:
            continue
        if found.missing_bytes > 0:
            over.append((found.step_s, found.missing_bytes))
        elif found.step_s < best.step_s:
            best = Tried(plan=plan, step_s=found.step_s)
    faster = [missing for step_s, missing in over if step_s < _WORTH_LESS_ROOM * best.step_s]
    return replace(best, missing_bytes=min(faster, default=0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTries:
    """Plans of a candidate's splits, simulated; `plan_of` makes one of a split."""

    question: ModelQuestion
    profile: Profile
    plan_of: Callable[[CutsAndRows], Plan]

    def fastest(self, splits: list[CutsAndRows], limit_s: float) -> Tried:
        """The fastest that fits, of those whose pipelines are within the limit."""
        plans = map(self.plan_of, splits)
        return fastest_plan(self.question, self.profile, plans, limit_s=limit_s)

    def floor_s(self, split: CutsAndRows) -> float:
        """No order of the split steps faster."""
        return least_step_of_v_s(*self.work_of(split))

    def work_of(self, split: CutsAndRows) -> tuple[StepWork, Layout]:
        """What the split's stages do, and where."""
        asked = self.question
        return work_of_plan(
            self.plan_of(split),
            self.profile,
            asked.cluster,
            overlap=asked.settings.overlap,
            overheads=asked.overheads,
        )


def fastest_with_less_room(
    asked: SplitQuestion,
    missing_bytes: float,
    try_splits: Callable[[list[CutsAndRows], float], Tried],
    *,
    limit_s: float,
) -> Tried:
    """The fastest plan that is found for a candidate whose splits missed the memory.

    The bytes are by how much; where they are 0, the room is left as it is the first time.
    `try_splits` gets splits and the limit, and says which of their plans is best.
    """
    enough, too_little = asked.usable_bytes, 0.0
    best, cut, least = Tried(), missing_bytes, _LEAST_CUT * enough
    if missing_bytes:
        cut = max(cut, least)
    for _ in range(_TRIES):
        room = enough - cut if enough - cut > too_little else (enough + too_little) / 2
        split = best_uneven_v_split(asked.with_usable(room), limit_s=min(limit_s, best.step_s))
        if not split.cuts:
            too_little = room
            if enough - too_little <= least:
                break
            cut = (enough - too_little) / 2
            continue
        tried = try_splits([(split.cuts, split.chosen), *split.others], limit_s)
        best = best.or_faster(tried)
        if tried.plan is not None and not tried.missing_bytes:
            if too_little or enough - room <= least:
                break
            too_little = room  # it was enough, and perhaps more than that: once more, halfway back
            cut = (enough - room) / 2
            continue
        enough, least = room, 2 * least
        cut = max(tried.missing_bytes, least)
    return best


# Splits in V for a fixed ladder of rooms, so that more memory tries all that less memory tries
# ---------------------------------------------------------------------------------------------
# The split of least bound need not step fastest: bounds know little of how an order waits, and a
# split that was cut for less room may run in a better one. So splits are asked for with every room
# of a ladder that does not depend on how much memory there is, up to a little more than that, for
# an order may hold less than was published. What less memory tries is then a part of what more
# memory tries, and more memory is never slower but for two things: the splits that are asked for
# with all memory there is, which is no rung, and an effort that ends first.
#
# Neighbouring rungs mostly give the same split. Asking takes about a millisecond for 32 layers,
# ordering one split on 4 ranks 5 to 10: that is what the effort counts.

_RUNG: Final = 1.005  # from one room to the next
_BEYOND: Final = 1.1  # of the memory there is: the largest room
_SHORT: Final = 32  # layers of a chain for which every rung is asked, and how many are left out
_STRIDE: Final = 4
_SMALL: Final = 600  # actions of an order that is worth several
_EFFORT: Final = 8000  # actions of all orders of a candidate that are made for other rooms
_ALL: Final = 50_000  # actions of one order of each split of a space that is searched to its end
_PROOF: Final = 120_000  # the same of those splits that should fit, where nothing is known to


def is_small(asked: SplitQuestion) -> bool:
    """Whether orders of the candidate are made so quickly that many of its splits can be tried."""
    return _num_actions(asked) <= _SMALL and asked.kinds.num_layers <= 2 * _SHORT


class Tries(Protocol):
    """Plans of a candidate's splits."""

    def fastest(self, splits: list[CutsAndRows], limit_s: float) -> Tried:
        """The fastest that fits, of those whose pipelines are within the limit."""

    def floor_s(self, split: CutsAndRows) -> float:
        """No order of the split steps faster."""


def fastest_in_rooms(
    asked: SplitQuestion,
    tries: Tries,
    known: Tried,
    *,
    limit_s: float,
    but: frozenset[CutsAndRows] = frozenset(),
) -> Tried:
    """The fastest plan of all rooms, or the known one where none is faster.

    After them every split of a space that is small is tried, as long as its floor is below the best
    step: the plan is then the best of the space. `but` are left out that are known already.
    """
    actions = _num_actions(asked)
    seen = set(but)
    best, _ = _fastest(
        _splits_by_bound(asked, limit_s=min(limit_s, known.step_s)),
        tries,
        known,
        limit_s=limit_s,
        seen=seen,
        most=_EFFORT // actions,
    )
    problem = VProblem.of(asked, limit_s=min(limit_s, best.step_s))
    most = _ALL // actions
    if num_splits(VProblem.of(asked, limit_s=math.inf)) > most:
        return best
    every = every_split(problem, most=most) or ()
    return _fastest(every, tries, best, limit_s=limit_s, seen=seen, most=most)[0]


def best_of_space(asked: SplitQuestion, tries: Tries) -> Split | None:
    """The split of a space that steps fastest, all that should fit tried, where they are few.

    Without cuts and with an infinite bound where no order of any of them fits; None where they are
    too many.
    """
    if not is_small(asked):
        return None
    most = _PROOF // _num_actions(asked)
    every = every_split(VProblem.of(asked, limit_s=math.inf), most=most)
    if every is None:
        return None
    order: list[CutsAndRows] = []
    best, _ = _fastest(
        every, tries, Tried(), limit_s=math.inf, seen=set(), most=most, improved=order
    )
    if best.plan is None:
        return Split(bound_s=math.inf)
    cuts, chosen = order[-1]
    return Split(bound_s=every[0][0], cuts=cuts, chosen=chosen)


def _fastest(
    splits: Iterable[tuple[float, CutsAndRows]],
    tries: Tries,
    best: Tried,
    *,
    limit_s: float,
    seen: set[CutsAndRows],
    most: int,
    improved: list[CutsAndRows] | None = None,
) -> tuple[Tried, bool]:
    """The fastest plan of these splits, and whether none was left out that may be faster.

    They come with bounds. The least is replaced by the floor of its times before it is tried, and
    no more than `most` are; what was tried is `seen`, what was faster than all before `improved`.
    """
    waiting: BestFirst[tuple[bool, CutsAndRows]] = BestFirst()
    for bound_s, split in splits:
        if split not in seen:
            waiting.add(bound_s, (False, split), tie=(False, split))
    for bound_s, (is_floor, split) in waiting.opened():
        if bound_s >= min(best.step_s, limit_s):
            break
        if not is_floor:
            floor = (True, split)
            waiting.add(max(bound_s, tries.floor_s(split)), floor, tie=floor)
        elif most > 0:
            most -= 1
            seen.add(split)
            tried = tries.fastest([split], min(limit_s, best.step_s))
            if improved is not None and tried.step_s < best.step_s:
                improved.append(split)
            best = best.or_faster(tried)
        else:
            return best, False
    return best, True


def _num_actions(asked: SplitQuestion) -> int:
    return 6 * asked.degrees.pipeline * asked.num_microbatches


def _splits_by_bound(asked: SplitQuestion, *, limit_s: float) -> list[tuple[float, CutsAndRows]]:
    """Each split once, with its bound, that is below the limit."""
    found: dict[CutsAndRows, float] = {}
    generous = VProblem.of(asked, limit_s=limit_s)
    stride = 1 if asked.kinds.num_layers <= _SHORT else _STRIDE
    for room in _rungs(_BEYOND * asked.usable_bytes, stride):
        own = attaining_splits(replace(generous, usable_bytes=room))
        if not own:
            break
        for bound_s, split in own:
            found.setdefault(split, bound_s)
    each = ((bound_s, split) for split, bound_s in found.items() if bound_s < limit_s)
    return sorted(each)


def _rungs(most: float, stride: int) -> Iterator[float]:
    """From the highest that is not above `most` down."""
    step = stride * math.log(_RUNG)
    number = math.floor(math.log(most) / step)
    while number > 0:
        yield math.exp(number * step)
        number -= 1


# Splits whose ranks need not pause, recomputed until they fit
# ------------------------------------------------------------
# Under a family that keeps to the room of its devices little is lost where a path for microbatches
# exists that every rank repeats without a pause (`block_without_pauses`). One takes milliseconds to
# find. Whether there is one hangs on how layers are shared between the chunks of ranks: where all
# ranks share alike and transfers take time, what fits between the actions of one rank is a little
# too long for the next, so that it helps where some rank now and then shares in another way. And it
# hangs on memory: a path that needs more than there is tells which rank lacks most, and that one
# recomputes more, until a path fits.

_LACKING: Final = (0.0, 0.003, 0.01, 0.03, 0.1)  # of a device: what it might have more
_AT_ONCE: Final = 0.75  # of what a rank lacks: what it frees before paths are looked for again
_MENDED: Final = 2  # times the ranks: how often some rank recomputes more
_PERIODS: Final = (2, 4)  # ranks from one that shares in another way to the next, at first
_FIRST: Final = (1 / 7, 1 / 3)  # of the ranks: where these begin, at first
_WAYS: Final = 24  # of sharing that are tried of a split
_ORDERED: Final = 1  # splits of which an order is made
_LONG: Final = 3  # microbatches per rank that show how an order ends


def fastest_without_pauses(
    tries: SplitTries, splits: Iterable[CutsAndRows], *, limit_s: float
) -> Tried:
    """The fastest plan of these cuts and of such as share otherwise, recomputed anew."""
    classes = [layer.layer_class for layer in tries.profile.structure.layers]
    found: dict[Cuts, tuple[float, CutsAndRows] | None] = {}
    for cuts, _ in splits:
        _share_otherwise(tries, cuts, classes, found, limit_s=limit_s)
    best = sorted(each for each in found.values() if each is not None)[:_ORDERED]
    return tries.fastest([split for _, split in best], limit_s)


class _Shares(NamedTuple):
    """Odd layers near or far, but for every so many ranks from one on."""

    more_near: bool
    period: int
    first: int


def _share_otherwise(
    tries: SplitTries,
    cuts: Cuts,
    classes: Sequence[int],
    found: dict[Cuts, tuple[float, CutsAndRows] | None],
    *,
    limit_s: float,
) -> None:
    """Try some ways to share, then the neighbours of the best, as long as one is better."""
    p = len(cuts) // 2
    known: dict[_Shares, float] = {}

    def step_s(shares: _Shares | None) -> float:
        own = cuts if shares is None else _shared(cuts, classes, shares)
        if own is None or len(known) >= _WAYS:
            return math.inf
        if own not in found:
            least_s = min((each[0] for each in found.values() if each is not None), default=limit_s)
            found[own] = _mended(tries, own, limit_s=min(limit_s, least_s))
        mended = found[own]
        return math.inf if mended is None else mended[0]

    step_s(None)
    for more_near, period, share in product((False, True), _PERIODS, _FIRST):
        shares = _Shares(more_near, period, math.ceil(share * p))
        known[shares] = step_s(shares)
    while math.isfinite(least_s := min(known.values())) and len(known) < _WAYS:
        near, period, first = min(known, key=known.__getitem__)
        ways = ((period, first + 1), (period, first - 1), (period + 1, first), (period - 1, first))
        for way in (_Shares(near, *each) for each in ways):
            if way not in known and way.period > 1 and way.first > 0:
                known[way] = step_s(way)
        if min(known.values()) >= least_s:
            break


def _shared(cuts: Cuts, classes: Sequence[int], shares: _Shares) -> Cuts | None:
    """Ranks with layers of the commonest class alone share them so; None where that cannot be."""
    sizes, p = np.diff(cuts), len(cuts) // 2
    common = max(set(classes), key=classes.count)
    own = [{*classes[first:after]} for first, after in pairwise(cuts)]
    ranks, both = np.arange(p), sizes[:p] + sizes[: p - 1 : -1]
    movable = np.array([own[r] | own[2 * p - 1 - r] == {common} for r in range(p)])
    other = (ranks >= shares.first) & ((ranks - shares.first) % shares.period == 0)
    near = np.where(movable, (both + (other != shares.more_near)) // 2, sizes[:p])
    far = both - near
    if min(near.min(), far.min()) < 1:
        return None
    return (0, *np.cumsum(np.concatenate((near, far[::-1]))).tolist())


def _mended(tries: SplitTries, cuts: Cuts, *, limit_s: float) -> tuple[float, CutsAndRows] | None:
    """How long a step takes about, and how layers run; None where it is too long or not found."""
    costs = tries.profile.costs
    classes = [layer.layer_class for layer in tries.profile.structure.layers]
    rows = np.zeros((len(cuts) - 1, costs.num_rows), dtype=np.int64)
    fastest = [min(costs.rows_of(one), key=costs.duration_s.__getitem__) for one in classes]
    for stage, (first, after) in enumerate(pairwise(cuts)):
        np.add.at(rows[stage], fastest[first:after], 1)
    level = len(_LACKING) - 1
    for _ in range(_MENDED * (len(cuts) // 2) + 1):
        split = cuts, tuple(map(tuple, rows.tolist()))
        work, layout = tries.work_of(split)
        times = pipeline_times(work, sharing_times(work, layout), layout)
        assert times.room is not None and times.after_s is not None, "the family keeps to the room"
        whole = times.schedule_costs(placement_of(layout.shape), memory=times.room)
        m, p = layout.shape.num_microbatches, layout.shape.num_ranks
        period_s, few = busiest_s(whole), min(m, _LONG * p)
        if m * period_s + float(times.after_s.min()) >= limit_s or m < p:
            return None
        found = _roomiest_needed(whole, first=level)
        if found is None:
            return None
        level, block = found
        if level == 0:
            short = justify(whole_order(block, few), whole, after_s=times.after_s)
            ends_s = simulate(short, whole).end_s[short.rank_offsets[1:] - 1] + times.after_s
            return float(ends_s.max()) + (m - few) * period_s, split
        if not _recompute_more(rows, costs, *_lacking(whole_order(block, few), whole)):
            return None
    return None


def _roomiest_needed(costs: ScheduleCosts, *, first: int) -> tuple[int, TimedBlock] | None:
    """A path and the least of `_LACKING` with which there is one, looked for from `first` on."""

    def path(level: int) -> TimedBlock | None:
        limit_bytes = costs.memory.limit_bytes * (1 + _LACKING[level])
        roomier = replace(costs.memory, limit_bytes=limit_bytes)
        return block_without_pauses(replace(costs, memory=roomier))

    level, found = first, path(first)
    while found is None and level + 1 < len(_LACKING):
        level += 1
        found = path(level)
    while found is not None and 0 < level <= first:
        less = path(level - 1)
        if less is None:
            break
        level, found = level - 1, less
    return None if found is None else (level, found)


class _Lacking(NamedTuple):
    """A rank that lacks bytes, and what both of its stages hold when it is fullest, [2, 2].

    Microbatches before their input gradient and before their weight gradient.
    """

    rank: int
    bytes: float
    alive: NDArray[np.int64]


def _lacking(order: Schedule, costs: ScheduleCosts) -> _Lacking:
    """The rank that lacks most under an order that only fits with more."""
    memory = costs.memory
    over = simulate(order, costs).peak_bytes - memory.limit_bytes
    rank = int(over.argmax())
    rows = order.actions[order.rows_of(rank)]
    kinds, stages = rows[:, 0], rows[:, 1]
    deltas = memory.delta_bytes[kinds, stages]
    held = np.cumsum(deltas) - np.minimum(deltas, 0.0) + memory.transient_bytes[kinds, stages]
    until = slice(0, int(held.argmax()) + 1)

    def alive(stage: int) -> list[int]:
        own = kinds[until][stages[until] == stage]
        begun = int((own == ActionKind.F).sum())
        return [begun - int((own == kind).sum()) for kind in (ActionKind.I, ActionKind.W)]

    near, far = rank, order.placement.num_stages - 1 - rank
    return _Lacking(rank, float(over[rank]), np.array([alive(near), alive(far)]))


def _recompute_more(
    rows: NDArray[np.int64], costs: CostTable, rank: int, lacking: float, alive: NDArray[np.int64]
) -> bool:
    """Let layers of the rank keep less, the shortest by what it frees of what lacks first.

    Each changes the path, so not all that lacks is freed at once. Whether anything is.
    """
    kept = np.stack((costs.saved_until_input_grad_bytes, costs.saved_until_weight_grad_bytes))
    left, enough = lacking, (1 - _AT_ONCE) * lacking
    while left > enough:
        ways = []
        for stage, held in zip((rank, len(rows) - 1 - rank), alive, strict=True):
            for number in range(costs.num_classes):
                for now, then in permutations(costs.rows_of(number), 2):
                    freed = float(held @ (kept[:, now] - kept[:, then]))
                    longer_s = float(costs.duration_s[then] - costs.duration_s[now])
                    if rows[stage, now] and freed > 0 and longer_s >= 0:
                        ways.append((longer_s / min(freed, left), stage, now, then, freed))
        if not ways:
            break
        _, stage, now, then, freed = min(ways)
        rows[stage, now] -= 1
        rows[stage, then] += 1
        left -= freed
    return left < lacking


# Whose uneven splits in V are worth a look, once the search of the certified space is over
# -----------------------------------------------------------------------------------------
# Such splits lie outside that space (`nearly_even`); where
# blocks are one short of a multiple of the stages, by a tenth of a step. Looking for one takes two
# peels, O(L²) states each, so among long chains only the most promising candidates get there.

_LAYERS: Final = 100_000  # L² of all candidates that are looked at, but always
_SOME: Final = 8  # candidates that are looked at however long the chain


def worth_uneven(
    bounds: Mapping[Candidate, float], num_layers: int, *, first: Candidate | None = None
) -> list[tuple[float, Candidate]]:
    """`first`, then those of the least coarse bounds; of equal ones those that may hold more."""

    def promise(one: tuple[Candidate, float]) -> tuple[bool, float, int]:
        candidate, bound = one
        holds = MOST_ACTIVATIONS[candidate.schedule](candidate.pipeline)
        return candidate != first, bound, -holds

    order = sorted(bounds.items(), key=promise)
    most = max(_SOME, _LAYERS // num_layers**2)
    return [(bound, candidate) for candidate, bound in order[:most]]
