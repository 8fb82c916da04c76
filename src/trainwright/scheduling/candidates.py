"""What a search for schedules is asked, the pipelines that it leaves open, and families in them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature, one_of, refuse, too_low
from trainwright.plans.lowered import Timeline
from trainwright.plans.schedule import (
    Action,
    ActionKind,
    Placement,
    Schedule,
    broadcast,
)
from trainwright.plans.status import Bound, Objective, Status, relative_gap, status_at
from trainwright.scheduling.families import FAMILIES, Family, FamilyRequest
from trainwright.scheduling.orders import cut_stages, one_at_a_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats
    from trainwright.plans.schedule import PerStage, Schedule, ScheduleCosts

# What a schedule search is asked, and what it answers
# ----------------------------------------------------


class Backward(StrEnum):
    """Whether a stage's backward runs as one action or as two; `ANY` leaves it to the search."""

    SPLIT = "split"
    FUSED = "fused"
    ANY = "any"


DEFAULT_SEED: Final = 0
ROUNDING: Final = 1e-12  # relative: what sums in another order differ by

PlacementName = Literal["v", "loop", "wave", "any"]
PLACEMENT_NAMES: tuple[PlacementName, ...] = ("v", "loop", "wave", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuestion:
    """A pipeline to schedule, and within which limits.

    `costs` describe the S stages of `placement`. A named placement has S / `num_ranks` chunks per
    rank; `any` also tries every named one and cuts each stage into equal parts, up to
    `max_virtual_stages` chunks per rank. Limits are those of `costs.memory` in bytes and, beside
    them, `max_activations` live chunk activations per rank (F adds one, W or B releases one; a
    stage cut in f parts counts f). `recompute_saved_bytes` per stage allows the search to drop
    that much of each forward's memory and to run R, of `costs`' duration, before the backward.
    `offload` allows it to copy activations to the host and back (O, D, L) in the times of `costs`.

    One evaluation is the simulation of the whole schedule once; `None` is a default for the size.
    """

    placement: Placement | PlacementName
    num_ranks: int
    num_microbatches: int
    costs: ScheduleCosts
    max_activations: int | None = None
    objective: Objective = Objective.MAKESPAN
    backward: Backward = Backward.ANY
    recompute_saved_bytes: PerStage | None = None
    offload: bool = False
    max_virtual_stages: int = 4
    evaluations: int | None = None
    seed: int = DEFAULT_SEED

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        counts = ("num_ranks", "num_microbatches", "max_activations", "evaluations")
        for name in (*counts, "max_virtual_stages"):
            count = getattr(self, name)
            if count is not None and count < 1:
                yield Fault(name, f"must be >= 1, got {count}")
        yield from too_low(self, 0, "seed")
        stages, ranks = self.costs.num_stages, self.num_ranks
        if ranks != self.costs.memory.num_ranks:
            yield Fault("costs", f"must be of {ranks} ranks, got {self.costs.memory.num_ranks}")
        if isinstance(self.placement, Placement):
            wanted = (self.placement.num_ranks, self.placement.num_stages)
            if wanted != (ranks, stages):
                yield Fault(
                    "placement",
                    f"must have {ranks} ranks and {stages} stages, as the costs, got {wanted}",
                )
            return
        if self.placement not in PLACEMENT_NAMES:
            yield Fault("placement", one_of(PLACEMENT_NAMES, self.placement))
        elif ranks > 0 and stages % ranks:
            yield Fault("costs", f"must be of a multiple of {ranks} stages, got {stages}")
        elif self.placement == "v" and stages != 2 * ranks:
            yield Fault("costs", f"must be of {2 * ranks} stages for V, got {stages}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """The best schedule found, re-simulated with the question's costs.

    `winner` is the family it is, or the phase of the search that found it; `evaluations` counts
    whole simulations. `bound` holds for every pipeline (placement, chunks, modes) that the question
    leaves open, of which `tried` were searched; `pipeline_bound` for that of the schedule alone,
    which is not all if `is_open`.
    """

    timeline: Timeline
    objective: Objective
    bound: Bound
    pipeline_bound: Bound
    winner: str
    evaluations: int
    seed: int
    tried: int = 1
    is_open: bool = False
    interrupted: bool = False

    @property
    def schedule(self) -> Schedule:
        """Orders without times."""
        return self.timeline.schedule

    @property
    def value_s(self) -> float:
        """The objective of the schedule."""
        return self.objective.of(self.timeline)

    @property
    def lower_bound_s(self) -> float:
        """No schedule that the question allows is shorter."""
        return self.bound.value_s

    @property
    def gap(self) -> float:
        """(value - bound) / value."""
        return relative_gap(self.value_s, self.lower_bound_s)

    @property
    def status(self) -> Status:
        """`optimal` where the bound on all that the question allows is met."""
        return status_at(self.gap)


def activation_steps(num_stages: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Chunk activations each action adds or releases, shape [10, S]."""
    steps = np.zeros((len(ActionKind), num_stages))
    steps[[ActionKind.F, ActionKind.L]] = 1.0
    steps[[ActionKind.W, ActionKind.B, ActionKind.D]] = -1.0
    return steps


# The pipelines a question leaves open: placement, chunks per rank, fused stages, recomputed ones
# -----------------------------------------------------------------------------------------------
# A candidate is one of them, with its own costs. Where a fused backward is no shorter than I + W,
# splitting can only help and fused candidates are left out; in between all and none of the stages
# there are those whose fusion gains most, half of them.

_F, _I, _W, _B, _R, _O, _D, _L, *_ = ActionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One pipeline: which rank runs which stage, which stages fuse or recompute, at what cost.

    `fused` and `recomputed` have shape [S]; `activation_limit` counts chunks of this candidate.
    """

    placement: Placement
    costs: ScheduleCosts
    fused: NDArray[np.bool_]
    recomputed: NDArray[np.bool_]
    activation_limit: int | None

    @property
    def resources(self) -> tuple[Floats, Floats, Floats]:
        """What is limited: delta and transient [R * 10, S], room [R, p]; activations first."""
        memory = self.costs.memory
        delta, transient, room = [], [], []
        if self.activation_limit is not None:
            delta.append(activation_steps(memory.num_stages))
            transient.append(np.zeros_like(delta[0]))
            room.append(np.full(memory.num_ranks, float(self.activation_limit)))
        if np.isfinite(memory.limit_bytes).any():
            delta.append(memory.delta_bytes)
            transient.append(memory.transient_bytes)
            room.append(memory.limit_bytes - memory.static_bytes)
        if not delta:
            return (
                np.zeros((0, memory.num_stages)),
                np.zeros((0, memory.num_stages)),
                np.zeros((0, memory.num_ranks)),
            )
        return np.vstack(delta), np.vstack(transient), np.vstack(room)

    @property
    def resources_by_kind(self) -> tuple[Floats, Floats, Floats]:
        """The same with delta and transient of shape [R, 10, S]."""
        delta, transient, room = self.resources
        tables = (len(room), len(ActionKind), self.placement.num_stages)
        return delta.reshape(tables), transient.reshape(tables), room

    def one_at_a_time(self, num_microbatches: int) -> Schedule:
        """One microbatch after the other, which fits where anything in these modes does."""
        return one_at_a_time(
            self.placement,
            num_microbatches,
            self.costs.memory,
            fused=self.fused,
            recomputed=self.recomputed,
        )

    @property
    def leaner(self) -> Candidate:
        """With those backwards fused whose halves do not fit, though the whole may."""
        memory, recomputed = self.costs.memory, self.recomputed
        least = one_at_a_time(self.placement, 1, memory, recomputed=recomputed)
        kind, stage, _ = least.actions.T
        fused = np.isin(np.arange(len(self.fused)), stage[kind == _B])
        return replace(self, fused=fused)

    def fits(self, timeline: Timeline) -> bool:
        """Whether a schedule of the candidate keeps to its limits, in bytes and in activations."""
        limit = self.activation_limit
        return timeline.fits and (limit is None or max(timeline.schedule.peak_activations) <= limit)


def fusing_saves_memory(costs: ScheduleCosts) -> bool:
    """Whether a whole backward may hold less than its halves where bytes are limited."""
    memory = costs.memory
    delta, peak = memory.delta_bytes, np.maximum(memory.delta_bytes, 0) + memory.transient_bytes
    halves = np.maximum(peak[_I], delta[_I] + peak[_W])
    less = (delta[_I] > 0) | (peak[_B] < halves)
    return bool(np.isfinite(memory.limit_bytes).any() and less.any())


def candidates(question: SearchQuestion) -> tuple[Candidate, ...]:
    """Every pipeline the question allows, the plainest first."""
    return tuple(
        candidate
        for placement, parts in _placements(question)
        for candidate in _modes(question, placement, parts)
    )


def _placements(question: SearchQuestion) -> Iterator[tuple[Placement, int]]:
    """Placements, and into how many parts each stage of the question is cut for them."""
    if isinstance(question.placement, Placement):
        yield question.placement, 1
        return
    ranks = question.num_ranks
    chunks = question.costs.num_stages // ranks
    if question.placement == "loop":
        yield Placement.loop(ranks, virtual_stages=chunks), 1
    elif question.placement in ("v", "wave"):
        yield Placement.wave(ranks, virtual_stages=chunks), 1
    else:
        for parts in range(1, max(1, question.max_virtual_stages // chunks) + 1):
            loop = Placement.loop(ranks, virtual_stages=chunks * parts)
            wave = Placement.wave(ranks, virtual_stages=chunks * parts)
            yield from ((placement, parts) for placement in dict.fromkeys((loop, wave)))


def _modes(question: SearchQuestion, placement: Placement, parts: int) -> Iterator[Candidate]:
    costs = cut_stages(question.costs, parts)
    for recomputed in _recompute_choices(question, costs, parts):
        own = costs
        if recomputed.any():
            own = with_recompute(costs, _saved_bytes(question, parts), recomputed=recomputed)
        for fused in _fusion_choices(question.backward, own):
            yield Candidate(
                placement=placement,
                costs=own,
                fused=fused,
                recomputed=recomputed,
                activation_limit=activation_limit(question, placement),
            )


def activation_limit(question: SearchQuestion, placement: Placement) -> int | None:
    """The limit in chunks of a placement; the question counts its own stages."""
    limit, stages = question.max_activations, question.costs.num_stages
    return None if limit is None else limit * (placement.num_stages // stages)


def recomputed_everywhere(question: SearchQuestion, *, parts: int) -> ScheduleCosts:
    """Costs, each stage cut in `parts`, of a pipeline that recomputes all it may."""
    costs = cut_stages(question.costs, parts)
    every = np.ones(costs.num_stages, np.bool_)
    return with_recompute(costs, _saved_bytes(question, parts), recomputed=every)


def _fusion_choices(backward: Backward, costs: ScheduleCosts) -> Iterator[NDArray[np.bool_]]:
    duration_s = costs.duration_s
    saved_s = duration_s[_I] + duration_s[_W] - duration_s[_B]
    stages = costs.num_stages
    if backward is not Backward.FUSED:
        yield np.zeros(stages, np.bool_)
    if backward is Backward.FUSED:
        yield np.ones(stages, np.bool_)
    elif backward is Backward.ANY and (saved_s > 1e-12 * duration_s.max()).any():
        yield from _some_and_all(saved_s)


def _recompute_choices(
    question: SearchQuestion, costs: ScheduleCosts, parts: int
) -> Iterator[NDArray[np.bool_]]:
    yield np.zeros(costs.num_stages, np.bool_)
    if question.recompute_saved_bytes is not None:
        saved = _saved_bytes(question, parts)
        yield from _some_and_all(saved)


def _some_and_all(gain: Floats) -> Iterator[NDArray[np.bool_]]:
    """All stages that gain, and the better half of them where they are not alike."""
    gains = gain > 0
    if not gains.any():
        return
    yield gains
    better = gain > np.median(gain[gains])
    if better.any():
        yield better


def _saved_bytes(question: SearchQuestion, parts: int) -> Floats:
    stages = question.costs.num_stages
    assert question.recompute_saved_bytes is not None, "asked only where recompute is allowed"
    saved = broadcast(question.recompute_saved_bytes, stages, name="recompute_saved_bytes")
    return np.repeat(saved / parts, parts)


def with_recompute(
    costs: ScheduleCosts, saved_bytes: Floats, *, recomputed: NDArray[np.bool_]
) -> ScheduleCosts:
    """Forwards of recomputed stages keep less by `saved_bytes` [S], and their R brings it back."""
    saved = np.where(recomputed, saved_bytes, 0.0)
    delta = costs.memory.delta_bytes.copy()
    delta[_F] -= saved
    delta[_R] += saved
    return replace(costs, memory=replace(costs.memory, delta_bytes=delta))


# Every named family that fits a placement, in the modes a search asks for
# ------------------------------------------------------------------------


def named_schedules(
    placement: Placement,
    num_microbatches: int,
    *,
    costs: ScheduleCosts,
    limits: Collection[int | None],
    in_slots: bool = False,
) -> Iterator[tuple[str, Schedule]]:
    """Orders of all families with this placement, by name; some may exceed the limits.

    Families that obey limits are built for each of `limits` (activations of a rank, None for no
    limit beside those of `costs`), unless what they gave for more fits. `in_slots` keeps those in V
    to what was published.
    """
    chunks, rest = divmod(placement.num_stages, placement.num_ranks)
    if rest:
        return
    request = FamilyRequest(
        num_ranks=placement.num_ranks,
        num_microbatches=num_microbatches,
        virtual_stages=chunks,
        costs=costs,
        in_slots=in_slots,
    )
    for family in _distinct_families(placement):
        if not family.obeys_limits:
            schedules = [_generated(family, request, placement)]
        else:
            schedules = list(_within(family, request, placement, limits))
        yield from ((family.name, schedule) for schedule in schedules if schedule is not None)


def _distinct_families(placement: Placement) -> tuple[Family, ...]:
    """Of families that are one generator under two names, the more general."""
    plain = (f for f in FAMILIES.values() if f.is_plain and f.starts_searches(placement))
    return tuple({family.order: family for family in plain}.values())


def _within(
    family: Family, request: FamilyRequest, placement: Placement, limits: Collection[int | None]
) -> Iterator[Schedule | None]:
    peak = math.inf
    for limit in sorted(limits, key=lambda limit: -math.inf if limit is None else -limit):
        if limit is not None and peak <= limit:
            continue
        schedule = _generated(family, replace(request, max_activations=limit), placement)
        if schedule is not None:
            peak = max(schedule.peak_activations)
        yield schedule


def _generated(family: Family, request: FamilyRequest, placement: Placement) -> Schedule | None:
    """Nothing where the family has another placement or breaks a rule of its own."""
    try:
        if family.place(request) != placement:
            return None
        return family.generate(request)
    except (InvalidInput, UnsupportedFeature):
        return None


def in_modes(
    schedule: Schedule, *, fused: NDArray[np.bool_], recomputed: NDArray[np.bool_]
) -> Schedule:
    """The same orders with backwards fused, split and preceded by R as told per stage, shape [S].

    A half that becomes a whole stays where its I was; a whole that is split has its W right after.
    Pairs are dropped where rows change.
    """
    kind, stage, _ = schedule.actions.T
    is_back = (kind == ActionKind.I) | (kind == ActionKind.B)
    kept = (kind == ActionKind.F) | is_back | ((kind == ActionKind.W) & ~fused[stage])
    num_rows = kept.astype(np.int64)
    num_rows += is_back & recomputed[stage]
    num_rows += (kind == ActionKind.B) & ~fused[stage]
    origin = np.repeat(np.arange(len(kind)), num_rows)
    rows = schedule.actions[origin]
    step = np.arange(len(origin)) - np.repeat(np.cumsum(num_rows) - num_rows, num_rows)
    step -= recomputed[rows[:, 1]]  # -1 at R, 0 at the backward, 1 at the W of what was whole
    backs = is_back[origin]
    rows[backs, 0] = np.where(fused[rows[backs, 1]], ActionKind.B, ActionKind.I)
    rows[backs & (step == 1), 0] = ActionKind.W
    rows[backs & (step == -1), 0] = ActionKind.R
    if np.array_equal(rows, schedule.actions):
        return schedule
    ends = np.concatenate([[0], np.cumsum(num_rows)])
    return Schedule(
        placement=schedule.placement,
        num_microbatches=schedule.num_microbatches,
        actions=rows,
        rank_offsets=ends[schedule.rank_offsets],
    )


# The link to the host: activations that do not fit wait there
# -------------------------------------------------------------
# What a rank holds is a property of its order, so what has to leave can be told without times, as
# pages that leave a memory (Belady, 1966): when an action finds no room, the activation that is
# needed last of all goes, if its copy (O), issued right after its forward, has had time. It comes
# back (L) some backwards ahead of its own. What waits for its weight gradient alone cannot leave:
# that gradient runs earlier where nothing else makes room.


def with_copies(
    schedule: Schedule, candidate: Candidate, *, ahead: int, settled: int = 0, early: bool = False
) -> Schedule:
    """The same order, with what exceeds the candidate's limits on the host while it waits.

    `ahead` is how many backwards before its own an activation is fetched; of what may leave, that
    goes first which was made at least `settled` actions ago. Where that makes no room, weight
    gradients run earlier if `early`; where not even these do, the result still holds too much.
    """
    delta, transient, room = candidate.resources_by_kind
    orders = [
        _paged(
            schedule.order(rank),
            delta,
            transient,
            room[:, rank],
            ahead=ahead,
            settled=settled,
            early=early,
        )
        for rank in range(schedule.num_ranks)
    ]
    return Schedule.of_ranks(
        [np.array(order, np.int32).reshape(-1, 3) for order in orders],
        placement=schedule.placement,
        num_microbatches=schedule.num_microbatches,
    )


def _paged(
    order: tuple[Action, ...],
    delta: Floats,
    transient: Floats,
    room: Floats,
    *,
    ahead: int,
    settled: int,
    early: bool,
) -> list[Action]:
    """One rank's order; `delta` and `transient` have shape [R, 10, S], `room` [R]."""
    users = (ActionKind.R, ActionKind.I, ActionKind.B)
    used_at: dict[tuple[int, int], int] = {}  # the first action that computes with an activation
    for at, (kind, stage, microbatch) in enumerate(order):
        if kind in users:
            used_at.setdefault((stage, microbatch), at)
    in_turn = list(used_at)
    fetched_at = {key: used_at[in_turn[max(0, i - ahead)]] for i, key in enumerate(in_turn)}
    made_at: dict[tuple[int, int], int] = {}
    waiting: list[tuple[int, int, int]] = []  # on the device: (-used at, stage, microbatch)
    weight_grad_at = {
        (stage, microbatch): at for at, (kind, stage, microbatch) in enumerate(order) if kind is _W
    }
    due: list[tuple[int, int, int]] = []  # weight gradients that may run: (at, stage, microbatch)
    gone: set[int] = set()  # where those stood that run earlier
    before: dict[int, list[Action]] = {}  # what is issued before an action
    level = np.zeros(len(room))

    def make_room(at: int, needed: Floats) -> None:
        nonlocal level
        fresh: list[tuple[int, int, int]] = []
        while (waiting or fresh) and (level + needed > room * (1 + ROUNDING)).any():
            last = heapq.heappop(waiting) if waiting else fresh.pop(0)
            _, stage, microbatch = last
            key = stage, microbatch
            if fetched_at[key] <= at or not delta[:, _L, stage].any():
                continue  # it is needed before it could come back, or never leaves
            if made_at[key] > at - settled and waiting:
                fresh.append(last)
                continue
            before.setdefault(made_at[key] + 1, []).insert(0, Action(_O, *key))
            before.setdefault(at, []).append(Action(_D, *key))
            before.setdefault(fetched_at[key], []).append(Action(_L, *key))
            level = level + delta[:, _D, stage]
        for left in fresh:
            heapq.heappush(waiting, left)
        while due and (level + needed > room * (1 + ROUNDING)).any():
            place, stage, microbatch = heapq.heappop(due)
            if place <= at:
                continue  # it has run
            gone.add(place)
            before.setdefault(at, []).append(Action(_W, stage, microbatch))
            level = level + delta[:, _W, stage]

    for at, action in enumerate(order):
        for copy in tuple(before.get(at, ())):
            if copy.kind is _L:
                make_room(at, delta[:, _L, copy.stage])
                level = level + delta[:, _L, copy.stage]
        if at in gone:
            continue
        kind, stage, microbatch = action
        own = delta[:, kind, stage]
        make_room(at, np.maximum(own, 0.0) + transient[:, kind, stage])
        level = level + own
        if kind is _F:
            made_at[stage, microbatch] = at
            heapq.heappush(waiting, (-used_at[stage, microbatch], stage, microbatch))
        elif early and kind is _I:
            heapq.heappush(due, (weight_grad_at[stage, microbatch], stage, microbatch))
    rows: list[Action] = []
    for at, action in enumerate(order):
        # What leaves makes room for what comes; a copy to the host is issued before its drop.
        rows += sorted(before.get(at, []), key=lambda other: other.kind is _L)
        if at not in gone:
            rows.append(action)
    return rows
