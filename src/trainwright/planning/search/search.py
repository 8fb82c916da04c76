"""The search for the best plan of a model: candidates best-first, each with its best split.

Candidates come in the order of a coarse bound (`frontier`). The best split of a candidate's layers
gives a sharp one; when that comes to be the least of all, the split is priced by `step`. So the
search ends as soon as the next bound is no better than the best step. What takes many splits until
then is cut short by the count of splits, not by the clock: first a growing gap is enough, then
splits of several chunks per rank are set aside, at last any gap is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from trainwright.execution import Budget, Progress
from trainwright.execution.best_first import BestFirst
from trainwright.planning.question import layouts
from trainwright.planning.question.question import Aim, Candidate, ModelQuestion, StepAim
from trainwright.planning.search.frontier import Frontier, Opened, Shelf, Shelves, opened
from trainwright.planning.search.plans import (
    PlanAsk,
    PlanKind,
    asked_of,
    best_first,
    is_known_kind,
    is_more_than_all_devices_hold,
    key_of,
    least_step_s,
    of_kinds,
    plan_kind,
    price_without_pauses,
    priced_in_full,
    split_tries,
    told_of,
)
from trainwright.planning.search.prefetch import (
    Foresight,
    SplitAnswers,
    finish_candidate,
    has_further_splits,
)
from trainwright.planning.splits.chain import Split
from trainwright.planning.splits.loop import (
    bound_dealt_loops,
    bound_few_whole_loops,
    bound_near_whole_loops,
    bound_whole_loops,
    is_near,
)
from trainwright.planning.splits.types import (
    HAIR,
    THOROUGH,
    Effort,
    Finished,
    Patience,
    Priced,
    best_family_split,
    bound_every_split,
    bound_family_splits,
)
from trainwright.planning.splits.vee import (
    best_uneven_v_split,
    bound_v_lifetimes,
    least_pipeline_of_v_s,
)
from trainwright.planning.splits.vee_cuts import best_of_space, is_small, worth_uneven
from trainwright.plans.status import OPTIMAL_TOLERANCE

if TYPE_CHECKING:
    from trainwright.execution.executor import Crew
    from trainwright.planning.search.prefetch import Ask, SplitSearch


# After the search: the further splits of candidates that may still be better than its best plan
# ----------------------------------------------------------------------------------------------
# A candidate is priced with the split of its least bound, but the bound leaves out how bottlenecks
# delay each other and what lies after the pipeline in other ranks, so another split may be shorter.
# Where bounds leave that open, all splits below the best step are enumerated, simulated in the
# order of their bounds, and priced in the order of what was simulated. In a small space this ends
# with the best plan of all and a proof; in a large one it ends by effort, and the gap says what is
# left.
#
# The effort is counted, not timed, so that the same question has the same answer everywhere.


# The search for the best plan of a model: candidates best-first, each with its best split
# ----------------------------------------------------------------------------------------

WORTH_KEEPING: Final = 1.05  # splits whose bounds exceed the best step by more are forgotten
_TIE: Final = 1 + 1e-12  # what may be as fast is looked at, too: it may be simpler
# Splits of several chunks per rank that are searched beside others. When it was set, that took the
# gap of plans with one stage per rank from 3.65 to 1%: 2T parameters with experts, 100,000 devices.
_MOST_IN_CHUNKS: Final = 6000
_PRICING: Final = 60  # splits that are searched in the time of ordering several chunks per rank
FAR: Final = 1.5  # times the best step: what is slower is no alternative
_TRIES: Final = 6  # nodes opened for each runner-up, and splits that have no plan
_PASSES: Final = 200  # candidates of a kind that is known, passed over for each runner-up
_BLIND: Final = 16  # splits searched without a plan before one is searched to its end
_NEAR: Final = 1.2  # times the coarse bound: how far splits are searched the first time
_SOON_PRICED: Final = 2  # splits whose plans are made ahead of the search
_WORTH_TRYING: Final = 0.98  # a split whose bound is so far below the best step is priced at once


@dataclass(slots=True)
class ModelSearch:
    """Best-first: a candidate is bounded coarsely, then by its best split, then priced.

    `splits` holds candidates, each with its best split, `bounds` those that were priced;
    `undecided` are candidates whose best split fits by the bound, but
    no plan did; `in_v` are those in V whose splits were looked for, with their coarse bounds.
    `looked_through` holds bounds of candidates all of whose splits were looked at, or as many as
    the effort sufficed for where they are `cut_short`; of those in `uneven` the splits of their
    bounds were priced.
    Bounds, `best_s` among them, are on what the aim makes least: seconds of a step, unless it is
    another. `best_s` is at first what a plan of another search has, `is_led` where there is one.
    With more than `num_told` plans, only those near the best are kept.
    """

    frontier: Frontier
    budget: Budget
    aim: Aim
    foresight: Foresight
    num_told: int
    patience: Patience = THOROUGH
    splits: BestFirst[tuple[Candidate, Split]] = field(default_factory=BestFirst)
    priced: list[Priced] = field(default_factory=list)
    best_s: float = math.inf
    answers: SplitAnswers = field(init=False)
    is_led: bool = field(init=False)
    bounds: BestFirst[Candidate] = field(default_factory=BestFirst)
    undecided: set[Candidate] = field(default_factory=set)
    in_v: dict[Candidate, float] = field(default_factory=dict)
    looked_through: dict[Candidate, float] = field(default_factory=dict)
    cut_short: set[Candidate] = field(default_factory=set)
    uneven: set[Candidate] = field(default_factory=set)
    _searched: int = 0
    _in_chunks: int = 0
    _too_large: dict[Candidate, int] = field(default_factory=dict)
    _seen: set[Candidate] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.answers = SplitAnswers(self.foresight)
        self.is_led = math.isfinite(self.best_s)

    @property
    def has_plan(self) -> bool:
        """Whether there is one, here or in the search whose plan leads this one."""
        return self.is_led or bool(self.priced)

    @property
    def shelf(self) -> Shelf:
        """What is known of the question's points."""
        return self.foresight.shelf

    @property
    def is_on(self) -> bool:
        """Whether a candidate is left that can be better than the best plan."""
        return min(self.frontier.least_s, self.splits.least) < self.best_s * self._enough

    @property
    def bound_s(self) -> float:
        """None of the plans that are likely to be good is better."""
        waiting_s = min(self.frontier.least_s, self.frontier.aside_s, self.splits.least)
        return min(self.best_s, self.bounds.least, waiting_s)

    @property
    def chain_bound_s(self) -> float:
        """No plan with one stage per rank is better than this, or than the best plan."""
        waiting_s = [bound_s for bound_s, (one, _) in self.splits if one.schedule in layouts.CHAIN]
        left_s = self.frontier.least_among_s(layouts.CHAIN)
        priced_s = [bound_s for bound_s, one in self.bounds if one.schedule in layouts.CHAIN]
        return min(self.best_s, left_s, *priced_s, *waiting_s)

    def held_at(self, bound_s: float) -> Candidate | None:
        """A priced one of one stage per rank with this bound, if no effort raises it further."""
        held = (one for key, one in self.bounds if key == bound_s)
        held = (one for one in held if one.schedule in layouts.CHAIN and self.is_settled(one))
        return min(held, key=str, default=None)

    def is_settled(self, candidate: Candidate) -> bool:
        """Whether no effort raises its bound; programs of loops are limited by effort, too."""
        if candidate.schedule in layouts.LOOPED:
            return False
        if has_further_splits(self.shelf.question, candidate):
            return candidate in self.looked_through and candidate not in self.cut_short
        return True

    def in_turn(self, *, below: float = -math.inf, splits: float = math.inf) -> Iterator[PlanAsk]:
        """What to price here, until no candidate left can be better than the best plan.

        Each is to be settled before the next is asked for; what workers price is settled already.
        The budget ends it, too, as do a plan whose figure is `below` one that is given, and so many
        `splits`.
        """
        while self.is_on:
            if self.best_s < below or self._searched >= splits or self.poll():
                return
            self.foresight.look(self._coming)
            if self._may_leave_chunks:
                self._set_chunks_aside()
                continue
            if self.splits.least <= self.frontier.least_s:
                _, found = self.splits.take()
                yield from self._worth_pricing(*found)
                continue
            taken = self.frontier.take()
            if taken is not None:
                yield from self._sharpen(*taken, limit=WORTH_KEEPING * self.best_s)

    def settle(self, ask: PlanAsk, found: Priced | None) -> None:
        """Keep the plan of what was asked; a candidate without one stays undecided."""
        if not self._keep_within(ask, found):
            self.undecided.add(ask.candidate)

    def runners_up(
        self, count: int, *, in_kind: bool = False, told: Sequence[Priced] = ()
    ) -> Iterator[PlanAsk]:
        """What to price next, until there are enough alternatives, or it takes too long.

        Where these are to differ `in_kind`, candidates of a kind that is known wait aside, and none
        is looked for that is far from the best. The fewer, the more are `told` of other spaces.
        """
        tries = misses = _TRIES * max(1, count + 1 - len(told))
        others = [key_of(each, self.aim) for each in told]
        passes = _PASSES * count if in_kind else 0
        waiting: list[tuple[float, Candidate]] = []
        cut: list[tuple[float, tuple[Candidate, Split]]] = []
        ranked, kinds = self._told(in_kind=in_kind)  # anew only when another plan is priced
        known = len(self.priced)

        def is_alike(candidate: Candidate) -> bool:
            return passes > 0 and is_known_kind(
                plan_kind(candidate.degrees, candidate.schedule), kinds
            )

        while ranked <= count and misses:
            limit = min((FAR * min((self.best_s, *others)), *others[count:]))
            limit = limit if in_kind else math.inf
            if self.poll() or min(self.frontier.least_s, self.splits.least) >= limit:
                break
            if self.splits and (not tries or self.splits.least <= self.frontier.least_s):
                key, (candidate, split) = self.splits.take()
                if is_alike(candidate):
                    passes -= 1
                    cut.append((key, (candidate, split)))
                    continue
                yield from self._worth_pricing(candidate, split)
                misses -= len(self.priced) == known
            elif tries and math.isfinite(self.frontier.least_s):
                taken = self.frontier.take()
                if taken is not None and is_alike(taken[1]):
                    passes -= 1
                    waiting.append(taken)
                    continue
                tries -= 1
                if taken is not None:
                    yield from self._sharpen(*taken, limit=limit)
            else:
                break
            if len(self.priced) > known:
                ranked, kinds = self._told(in_kind=in_kind)
                known = len(self.priced)
        for one in waiting:
            self.frontier.put_back(*one)
        for each in cut:
            self.splits.add(*each)

    def _told(self, *, in_kind: bool) -> tuple[int, set[PlanKind]]:
        """How many plans would be told, and the kinds of all."""
        ranked = best_first(self.priced, self.aim)
        kinds = {plan_kind(each.candidate.degrees, each.candidate.schedule) for each in self.priced}
        return len(of_kinds(ranked, len(ranked)) if in_kind else ranked), kinds

    def key(self, step_s: float, candidate: Candidate) -> float:
        """The aim's figure of a step of the candidate."""
        return self.aim.key(step_s, candidate.num_devices)

    def step_to_beat_s(self, candidate: Candidate) -> float:
        """A step of the candidate that is no longer is as good as the best plan's."""
        return self.aim.longest_s(self.best_s, candidate.num_devices)

    def poll(self) -> bool:
        """Whether the budget is at its end; whoever waits is told how far the search is."""
        return self.budget.poll(
            Progress(
                stage="planning",
                elapsed_s=self.budget.elapsed_s,
                best=self.best_s,
                lower_bound=self.bound_s,
            )
        )

    def keep(self, plan: Priced) -> None:
        """One more plan, which may be the best."""
        self.priced.append(plan)
        self.best_s = min(self.best_s, self.key(plan.step.step_time_s, plan.candidate))

    def told(self, count: int, *, in_kind: bool) -> tuple[Priced, ...]:
        """The best of its plans, or the best of each kind, priced in full."""
        told = told_of(self.priced, self.aim, count, in_kind=in_kind)
        full = {id(each): priced_in_full(self.shelf.question, each) for each in told}
        self.priced = [full.get(id(each), each) for each in self.priced]
        return tuple(full[id(each)] for each in told)

    def keep_bound(self, key: float, candidate: Candidate) -> None:
        """No plan of the candidate has a lower figure."""
        self.bounds.add(key, candidate)

    @property
    def _enough(self) -> float:
        """At which share of the best step the least bound ends the search: the gap it may leave."""
        if self._searched >= self.patience.most and self.has_plan:
            return 0.0
        return _TIE - self.patience.gap(self._searched)

    @property
    def _may_leave_chunks(self) -> bool:
        most = _MOST_IN_CHUNKS * self.shelf.question.effort
        is_spent = self._in_chunks > most and not self.frontier.aside
        return is_spent and bool(self.frontier.families & set(layouts.CHAIN))

    def _set_chunks_aside(self) -> None:
        """Only plans with one stage per rank from now on, of which more can be proved."""
        self.frontier.set_aside(self.frontier.families - set(layouts.CHAIN))
        for key, (candidate, _) in self.splits:
            if candidate.schedule not in layouts.CHAIN:
                self.keep_bound(key, candidate)
                self.undecided.add(candidate)
        self.splits.revise(lambda key, split: key if split[0].schedule in layouts.CHAIN else None)

    def _sharpen(self, bound: float, candidate: Candidate, *, limit: float) -> Iterator[PlanAsk]:
        """Find the best split; one far above the coarse bound is left for later the first time.

        Short stages are quickly looked through, and by then a better plan may be known. A split
        that promises much is priced at once.
        """
        if candidate.schedule in layouts.IN_V:
            self.in_v.setdefault(candidate, bound)
        group = replace(candidate, data=1)  # of one depth, fewer replicas are never leaner
        if candidate.data <= self._too_large.get(group, 0):
            return
        self._spend(1, candidate)
        devices = candidate.num_devices
        bound_s = self.aim.longest_s(bound, devices)
        to_the_end = candidate in self._seen or (not self.has_plan and self._searched % _BLIND == 0)
        near_s, limit_s = self._near_s(bound, candidate, limit, to_the_end=to_the_end)
        split = self.answers.find(bound_family_splits, candidate, limit_s=near_s)
        if math.isinf(split.bound_s):
            self._too_large[group] = candidate.data
        elif split.bound_s == near_s < limit_s:
            self._seen.add(candidate)
            self.frontier.put_back(self.aim.key(near_s, devices), candidate)
        elif split.bound_s < limit_s:
            sharper = replace(split, bound_s=max(bound_s, split.bound_s))
            key = self.aim.key(sharper.bound_s, devices)
            if split.cuts and key < _WORTH_TRYING * self.best_s:
                yield from self._worth_pricing(candidate, sharper)
            else:
                self.splits.add(key, (candidate, sharper))

    def _spend(self, splits: int, candidate: Candidate) -> None:
        self._searched += splits
        if candidate.schedule not in layouts.CHAIN:
            self._in_chunks += splits

    def _near_s(
        self, bound: float, candidate: Candidate, limit: float, *, to_the_end: bool
    ) -> tuple[float, float]:
        """The longest step that is searched for now, and later."""
        devices = candidate.num_devices
        limit_s = self.aim.longest_s(limit, devices)
        if to_the_end:
            return limit_s, limit_s
        return min(limit_s, _NEAR * self.aim.longest_s(bound, devices)), limit_s

    def _coming(self, count: int) -> Iterator[Ask]:
        """What the search asks next, unless it finds a better plan or opens a node before."""
        few = [one for one in self.frontier.coming(count) if one[0] < self.best_s]
        horizon_s = few[-1][0] if few else self.best_s
        for key, (candidate, split) in self.splits.soonest(_SOON_PRICED):
            if not key < horizon_s:
                break
            if split.cuts or candidate.virtual_stages == 1:
                yield PlanAsk(candidate, split, may_tighten=not self.has_plan)
            else:
                limit_s = min(_NEAR * split.bound_s, self.longest_worth_pricing_s(candidate))
                if ask := self.answers.unanswered(best_family_split, candidate, limit_s=limit_s):
                    yield ask
        for bound, candidate in few:
            limit, seen = WORTH_KEEPING * self.best_s, candidate in self._seen
            near_s, _ = self._near_s(bound, candidate, limit, to_the_end=seen)
            if ask := self.answers.unanswered(bound_family_splits, candidate, limit_s=near_s):
                yield ask

    def _worth_pricing(self, candidate: Candidate, split: Split) -> Iterator[PlanAsk]:
        """The split, unless no plan of it is short enough; several chunks are ordered first."""
        self.keep_bound(self.key(split.bound_s, candidate), candidate)
        longest_s = self.longest_worth_pricing_s(candidate)
        if split.bound_s >= longest_s:
            self.undecided.add(candidate)
            return
        if not split.cuts and candidate.virtual_stages > 1:
            self._spend(_PRICING if math.isinf(longest_s) else _PRICING // 2, candidate)
            limit_s = min(_NEAR * split.bound_s, longest_s)
            split = self.answers.find(best_family_split, candidate, limit_s=limit_s)
        ask = PlanAsk(candidate, split, longest_s, may_tighten=not self.has_plan)
        if self.foresight.is_out(ask):
            self.settle(ask, self.foresight.answer(ask))
        else:
            self.foresight.made += 1
            yield ask

    def price_within(
        self,
        longest_s: float,
        candidate: Candidate,
        split: Split,
        *,
        may_tighten: bool,
        in_rooms: bool = False,
    ) -> bool:
        """Whether the split has a plan whose pipeline is no longer; it is kept.

        To look for others with less room, where one in V misses the memory, takes as long as many.
        So it may while there is no plan at all, and for what may still be better in the end.
        """
        ask = PlanAsk(candidate, split, longest_s, may_tighten, in_rooms)
        return self._keep_within(ask, self.foresight.answer(ask))

    def _keep_within(self, ask: PlanAsk, found: Priced | None) -> bool:
        """Whether what was found is no longer than the limit of what was asked; it is kept."""
        device = self.shelf.question.cluster.accelerator
        if found is None or least_step_s(found.step, device) > ask.limit_s:
            return False
        self.keep(found)
        return True

    def longest_worth_pricing_s(self, candidate: Candidate) -> float:
        """No plan with a longer pipeline is kept, once there are enough to tell of."""
        if len(self.priced) <= self.num_told and not self.is_led:
            return math.inf
        return self.aim.longest_s(WORTH_KEEPING * self.best_s, candidate.num_devices)


# What is done with a search that is over, before its outcome is told
# -------------------------------------------------------------------
# In the order in which it pays: further splits of candidates that were priced (`finish`); splits in
# V that are outside the bounded space, so that they may only improve on it (`try_uneven`); where
# there is no plan at all, every nearly even split in V of small spaces (`try_small_spaces`); and
# what holds for every split, where it may raise the least bound. All of it ends early with the
# budget, and leaves a search whose plans and bounds hold.

_LONG: Final = 1000  # splits after which plans of other families in V are made beside the search
_UNEVEN_ACTIONS: Final = 6000  # of orders of uneven splits that are simulated, but always one
_IN_ROOMS: Final = 4  # candidates in V whose splits are looked for with many rooms


def finish(search: ModelSearch) -> None:
    """Look through further splits of what was priced and may still be better.

    Of one stage per rank first, where less effort proves more.
    """
    effort = Effort.usual(search.shelf.question.effort)
    for families in (layouts.CHAIN, layouts.LOOPED):
        for key, candidate in search.bounds.soonest(len(search.bounds)):
            if key >= search.best_s * HAIR or effort.is_spent:
                break
            if search.poll():
                break
            if candidate.schedule in families:
                search.looked_through[candidate] = _finished(search, candidate, effort)
    search.bounds.revise(lambda key, one: max(key, search.looked_through.get(one, -math.inf)))


def _finished(search: ModelSearch, candidate: Candidate, effort: Effort) -> float:
    """The bound of a candidate whose further splits were looked through."""
    limit_s = search.step_to_beat_s(candidate)
    found = finish_candidate(search.shelf, candidate, effort, limit_s=limit_s)
    _note_effort(search, candidate, effort)
    if found is None:
        return -math.inf
    _replace_by(search, candidate, found)
    return search.key(found.bound_s, candidate)


def _note_effort(search: ModelSearch, candidate: Candidate, effort: Effort) -> None:
    """Whether more of it would have looked further at the candidate."""
    if effort.was_short or effort.is_spent:
        search.cut_short.add(candidate)
    effort.was_short = False


def _replace_by(search: ModelSearch, candidate: Candidate, finished: Finished[Priced]) -> None:
    """A better plan in place of the candidate's; without one below the best it is decided."""
    plan, key = finished.found, search.key(finished.bound_s, candidate)
    if plan is not None:
        search.priced = [one for one in search.priced if one.candidate != candidate]
        search.keep(plan)
    if plan is not None or key >= search.best_s * HAIR:
        search.undecided.discard(candidate)


def try_uneven(search: ModelSearch) -> None:
    """Price splits in V that are not nearly even: outside the space, they may improve on it.

    Of the candidates that the search met, those that could be faster than its best plan, that of
    the best plan before all others. Few are tried with many rooms; of the others a floor under all
    orders of their splits says which come first, and what it excludes takes no effort: where
    transfers are slow a bound may promise half of that.
    """
    first = _best_in_v(search)
    tried = {each.candidate for each in search.priced}  # with the even split of any lengths
    found = [
        (key, candidate, replace(split, others=()) if candidate in tried else split)
        for key, candidate, split in _uneven_splits(search, first)
    ]
    found.sort(key=lambda one: (one[1] != first, one[0]))
    others = [(_floor(search, *one[1:]), *one[1:]) for one in found[_IN_ROOMS:]]
    found[_IN_ROOMS:] = sorted(others, key=lambda one: one[0])
    actions = 0
    for number, (key, candidate, split) in enumerate(found):
        if key >= search.best_s or search.poll():
            continue
        if actions > _UNEVEN_ACTIONS:
            break
        if candidate != first:
            count = candidate.num_microbatches(search.shelf.question.workload)
            actions += 6 * candidate.pipeline * count
        fresh = search.has_plan or candidate not in search.undecided
        limit_s = min(search.step_to_beat_s(candidate), search.longest_worth_pricing_s(candidate))
        in_rooms = number < _IN_ROOMS
        search.price_within(limit_s, candidate, split, may_tighten=fresh, in_rooms=in_rooms)


def _floor(search: ModelSearch, candidate: Candidate, split: Split) -> float:
    """The figure of a step no longer than the pipeline of any order of the splits."""
    shelf, every = search.shelf, ((split.cuts, split.chosen), *split.others)
    tries = split_tries(shelf.question, candidate, shelf.profile(candidate.point))
    pipeline_s = min(least_pipeline_of_v_s(*tries.work_of(one)) for one in every)
    overhead_s = shelf.question.cluster.accelerator.step_overhead_s
    return search.key(pipeline_s + overhead_s, candidate)


def lead_in_v(search: ModelSearch) -> None:
    """Price the split of the least bound under a family that keeps to the room of its devices.

    Where no rank of the plan pauses, little is left between it and the bound, and a search that is
    long is over sooner.
    """
    waiting: BestFirst[tuple[Candidate, bool]] = BestFirst()
    for one, key in _keeping_to_room(search):
        waiting.add(key, (one, False))
    while waiting.least < search.best_s and not search.poll():
        key, (candidate, is_sharp) = waiting.take()
        if is_sharp:
            _priced_uneven(search, candidate)
            return
        limit_s = search.step_to_beat_s(candidate)
        found = search.answers.find(bound_every_split, candidate, limit_s=limit_s)
        waiting.add(max(key, search.key(found.bound_s, candidate)), (candidate, True))


def _keeping_to_room(search: ModelSearch) -> Iterator[tuple[Candidate, float]]:
    """What the search met in V under families that others cover, as candidates of these."""
    families = layouts.KEEPS_TO_ROOM.intersection(each.family for each in search.shelf.bounded)
    for family, (one, key) in product(sorted(families), search.in_v.items()):
        if one.schedule in layouts.COVERS[family]:
            yield replace(one, schedule=family), key


def _best_in_v(search: ModelSearch) -> Candidate | None:
    """Whose plan in V is the best, where it leads: more devices let others look as good."""
    ranked = best_first(search.priced, search.aim)
    best = ranked[0].candidate if ranked else None
    return best if best in search.in_v else None


def _uneven_splits(
    search: ModelSearch, first: Candidate | None
) -> Iterator[tuple[float, Candidate, Split]]:
    """Splits that could be faster than the best plan, with their bounds."""
    num_layers, in_v = search.shelf.question.model.num_layers, dict(search.in_v)
    for candidate, bound in _keeping_to_room(search):
        if is_small(asked_of(search.shelf, candidate)):
            in_v.setdefault(candidate, bound)
    for bound, candidate in worth_uneven(in_v, num_layers, first=first):
        if search.poll():
            break
        if bound >= search.best_s:
            continue
        limit_s = search.step_to_beat_s(candidate)
        split = search.answers.find(best_uneven_v_split, candidate, limit_s=limit_s)
        if split.cuts:
            yield search.key(split.bound_s, candidate), candidate, split


def try_small_spaces(search: ModelSearch) -> None:
    """Where no plan was found at all, try every split in V of small spaces."""
    shelf = search.shelf
    for candidate in sorted(search.undecided, key=repr):
        if search.has_plan or candidate.schedule not in layouts.IN_V or search.poll():
            continue
        tries = split_tries(shelf.question, candidate, shelf.profile(candidate.point))
        split = best_of_space(asked_of(shelf, candidate), tries)
        if split is None:
            continue
        if split.cuts and search.price_within(math.inf, candidate, split, may_tighten=False):
            search.undecided.remove(candidate)


# What is proved of every plan
# ----------------------------
# With one stage per rank the search bounds every split. Of all others the candidates of the least
# bounds are taken from a frontier of their own and bounded by slower and slower ways, until the
# least of all has none left that may raise it: then no other candidate matters.

Proofs: TypeAlias = "tuple[SplitSearch, ...]"

# Of loops, with the nodes in whose time each is done: the split that reaches such a bound may be a
# better plan.
_OF_ALL_RANKS: Final[Mapping[SplitSearch, int]] = {
    bound_near_whole_loops: 10,
    bound_few_whole_loops: 40,
    bound_dealt_loops: 40,
    bound_whole_loops: 40,
}
# Each takes longer than the one before. Ways to deal whole blocks that are looked through nearly to
# the limit take a little longer to the limit, where programs of parts may take ten times as long.
_AT_LENGTH: Final = (bound_dealt_loops, bound_whole_loops)
_PROOFS: Final[Mapping[str, Proofs]] = {
    **dict.fromkeys(layouts.IN_V, (bound_every_split, bound_v_lifetimes)),
    **dict.fromkeys(layouts.LOOPED, (bound_every_split, bound_near_whole_loops, *_AT_LENGTH)),
}
_OF_FEW_WAYS: Final = (bound_few_whole_loops, bound_dealt_loops)
# Nodes opened and candidates bounded, a millisecond or two each; when it was set, 12,000 left 8.50%
# of the same model's step open, these 8.12%.
_MOST_PROOFS: Final = 16_000
_LOOKING: Final = 40  # of these in the time of looking at one candidate's splits
# Of these, and the share of the best step that may then be left as a gap; in between it grows.
_PROOF_EFFORTS: Final = (2000, 4000, 8000)
_PROOF_GAPS: Final = (0.0, 0.005, 0.01)
_FEW_IN_V: Final = 8  # candidates that are bounded before all others


class Proof(NamedTuple):
    """No plan is better than `bound_s`. `loosest` is the candidate whose bound this is, where more
    work does not raise it.
    """

    bound_s: float
    loosest: Candidate | None = None


def prove(search: ModelSearch, *, least_s: float, below: float) -> Proof:
    """No more is tried than to come to the bound `below` of other candidates.

    Plans that a proof comes upon are kept. `least_s` is known of all candidates, and is all that is
    known where the budget is at its end.
    """
    shelf, budget = search.shelf, search.budget
    effort, loosest = shelf.question.effort, None
    further = Effort.usual(effort)
    frontier = Frontier(shelf.question, shelf, search.aim, shelf.bounded)
    if budget.stopped or not frontier.open(budget):
        return Proof(min(least_s, below))
    waiting: BestFirst[tuple[Candidate, Proofs]] = BestFirst()  # and how each may be bounded
    limited: set[Candidate] = set()  # loops whose bounds go no further than to what is held in V
    number, held = 0, _held_in_v(search)
    while number < int(_MOST_PROOFS * effort):
        number += 1
        enough = 1 - float(np.interp(number / effort, _PROOF_EFFORTS, _PROOF_GAPS))
        below = min(below, search.best_s)
        if min(waiting.least, frontier.least_s) >= enough * below or search.poll():
            break
        if frontier.least_s <= waiting.least:
            taken = frontier.take()
            if taken is not None:
                proofs = _PROOFS.get(taken[1].schedule, (bound_every_split,))
                waiting.add(taken[0], (taken[1], proofs))
            continue
        key, (candidate, proofs) = waiting.take()
        if not proofs and candidate in limited:  # more is known of that in V by now
            held, proofs = math.inf, _PROOFS[candidate.schedule]
            limited.remove(candidate)
        if not proofs:
            number += _LOOKING
            sharper = _looked_through(search, candidate, further)
            waiting.add(max(key, sharper), (candidate, proofs))
            if not sharper > key and _priced_uneven(search, candidate):
                continue  # a better plan, of which less is left to prove
            if not sharper > key:
                loosest = candidate if search.is_settled(candidate) else None
                break
            continue
        limit_s = search.step_to_beat_s(candidate)
        if candidate.schedule in layouts.LOOPED:
            longest_s = search.aim.longest_s(held / HAIR, candidate.num_devices)
            if longest_s < limit_s:
                limit_s = longest_s
                limited.add(candidate)
        proof, *left = proofs
        number += _OF_ALL_RANKS.get(proof, 0)
        found = search.answers.find(proof, candidate, limit_s=limit_s)
        sharper = max(key, search.key(found.bound_s, candidate))
        is_offered = candidate.schedule in search.frontier.families and proof in _OF_ALL_RANKS
        if found.cuts and is_offered and sharper < search.best_s:
            search.price_within(limit_s, candidate, found, may_tighten=False)
        if proof is bound_every_split:
            sharper = max(sharper, search.looked_through.get(candidate, -math.inf))
        if proof is bound_near_whole_loops and is_near(found, limit_s):
            left = list(_OF_FEW_WAYS)
        waiting.add(sharper, (candidate, tuple(left)))
    below = min(below, search.best_s)
    return Proof(max(min(least_s, below), min(below, frontier.least_s, waiting.least)), loosest)


def _held_in_v(search: ModelSearch) -> float:
    """The bound of a candidate in V that was priced, where more work does not raise it.

    No loop matters that is beyond it: of their bounds, which take longer the more they prove, no
    more is asked. Of several the least bound; infinite where all leave no more than proofs may.
    """
    waiting: BestFirst[tuple[Candidate, Proofs]] = BestFirst()
    for candidate in _soonest_in_v(search):
        waiting.add(search.in_v.get(candidate, 0.0), (candidate, _PROOFS[candidate.schedule]))
    most = search.best_s * (1 - _PROOF_GAPS[-1])
    while waiting.least < most and not search.poll():
        key, (candidate, proofs) = waiting.take()
        if not proofs:
            return key
        limit_s = search.step_to_beat_s(candidate)
        found = search.answers.find(proofs[0], candidate, limit_s=limit_s)
        waiting.add(max(key, search.key(found.bound_s, candidate)), (candidate, proofs[1:]))
    return math.inf


def _soonest_in_v(search: ModelSearch) -> list[Candidate]:
    """Some that were priced, those of the least bounds on nearly even splits."""
    priced = [
        one for _, one in search.bounds.soonest(len(search.bounds)) if one.schedule in layouts.IN_V
    ]
    return priced[:_FEW_IN_V]


def _priced_uneven(search: ModelSearch, candidate: Candidate) -> bool:
    """Whether a candidate in V has a better plan than the best: with the splits of its bounds.

    So have families that its own covers. Of one that keeps to the room of its devices, such splits
    are recomputed until no rank needs to pause.
    """
    if candidate.schedule not in layouts.IN_V or candidate in search.uneven:
        return False
    search.uneven.add(candidate)
    best_s, splits = search.best_s, []
    for family in (candidate.schedule, *layouts.COVERS.get(candidate.schedule, ())):
        one = replace(candidate, schedule=family)
        limit_s = search.step_to_beat_s(one)
        split = search.answers.find(best_uneven_v_split, one, limit_s=limit_s)
        if not split.cuts:
            continue
        splits += [(split.cuts, split.chosen), *split.others]
        if family in search.frontier.families:
            search.price_within(limit_s, one, split, may_tighten=False)
    if candidate.schedule in layouts.KEEPS_TO_ROOM:
        shelf, limit_s = search.shelf, search.step_to_beat_s(candidate)
        profile = shelf.profile(candidate.point)
        found = price_without_pauses(shelf.question, candidate, profile, splits, limit_s=limit_s)
        if found is not None:
            search.keep(found)
    return search.best_s < best_s


def _looked_through(search: ModelSearch, candidate: Candidate, effort: Effort) -> float:
    """The bound of a candidate all of whose splits are looked through, where they are few."""
    if candidate in search.looked_through:
        return -math.inf
    limit_s = search.step_to_beat_s(candidate)
    found = finish_candidate(search.shelf, candidate, effort, limit_s=limit_s, even_at_least=False)
    _note_effort(search, candidate, effort)
    bound = -math.inf
    if found is not None:
        plan = found.found
        bound = search.key(found.bound_s, candidate)
        if plan is not None and candidate.schedule in search.frontier.families:
            _replace_by(search, candidate, found)
    search.looked_through[candidate] = bound
    return bound


# Planning a model without a measured profile: the search, what follows it, and the outcome
# -----------------------------------------------------------------------------------------

NUM_ALTERNATIVES: Final = 5

Found = TypeVar("Found")  # a priced plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[Found]):
    """Best plan first among `priced`; `lower_bound_s` holds for every plan that may be used.

    On several pools one plan of each other way to use them follows; of a pool alone it is the best.

    Where no schedule was named `lower_bound_one_stage_s` is on plans with one stage per rank: none
    of them is faster than that, or than the best plan. With an aim in place of the step both are in
    the aim's unit. `exhausted` says that every candidate was priced, excluded by its bound,
    or proved not to fit; `not_reached` counts those that were neither priced nor excluded when the
    search was stopped. `lower_bound_one_order_s` is on plans cut from the order in which layers
    that branch were put, where they have others. `loosest` is the candidate that holds the bound
    down where more work would not raise it.
    """

    priced: tuple[Found, ...]
    lower_bound_s: float
    considered: int
    pruned: int
    not_reached: int
    exhausted: bool
    interrupted: bool
    lower_bound_one_stage_s: float | None = None
    lower_bound_one_order_s: float | None = None
    loosest: Candidate | None = None

    @property
    def is_open(self) -> bool:
        """Whether it may hold a plan: one was found, or a bound was, above which plans may lie."""
        return bool(self.priced) or not self.exhausted or self.lower_bound_s > 0


ModelOutcome: TypeAlias = Outcome[Priced]


def plan_model(
    question: ModelQuestion,
    budget: Budget,
    *,
    num_alternatives: int = NUM_ALTERNATIVES,
    in_kind: bool = False,
    aim: Aim | None = None,
    crew: Crew | None = None,
) -> ModelOutcome:
    """The fastest uniform plan, up to `num_alternatives` runners-up, and a bound on every other.

    The runners-up may be asked to differ `in_kind` (see `of_kinds`). With an `aim` in place of the
    step, the plan of its least figure, and a bound on that. The outcome of a search that runs to
    its end does not depend on the `crew` that helps.
    """
    searched = begin_search(
        question, budget, num_alternatives=num_alternatives, in_kind=in_kind, aim=aim, crew=crew
    )
    for ask in searched.in_turn():
        searched.search.settle(ask, ask.answer(searched.search.shelf, budget))
    return searched.proved(budget)


@dataclass(slots=True, kw_only=True)
class PartSearch:
    """The search of a part of a space: what to price in turn, its plans, and what is proved of all.

    `least_s` is known of all candidates. Where no layout can hold the model it `is_hopeless`.
    """

    search: ModelSearch
    least_s: float
    is_complete: bool
    is_hopeless: bool
    num_alternatives: int
    in_kind: bool
    _was_stopped: bool = False

    def in_turn(self, *, told: Sequence[Priced] = ()) -> Iterator[PlanAsk]:
        """What to price here, one after the other: for the best plan, then for its runners-up.

        These join those that are `told` of other spaces.
        """
        if self.is_hopeless:
            return
        search = self.search
        yield from search.in_turn(splits=_LONG)
        if search.is_on:
            lead_in_v(search)
            yield from search.in_turn()
        finish(search)
        yield from search.runners_up(self.num_alternatives, in_kind=self.in_kind, told=told)
        try_uneven(search)
        try_small_spaces(search)
        self._was_stopped = search.budget.stopped

    def unproved(self) -> ModelOutcome:
        """What was found, with the bound 0."""
        return self._outcome(Proof(0.0))

    def proved(
        self, budget: Budget, *, best_s: float = math.inf, enough_s: float = math.inf
    ) -> ModelOutcome:
        """With a bound on all plans, and with what the proof came upon.

        A plan of the figure `best_s` is known in another part of the space, and no more is tried
        than to come to the bound `enough_s`. Both are in the unit of the aim.
        """
        search = self.search
        if self.is_hopeless or not self.is_complete:
            return self.unproved()
        search.budget = search.foresight.budget = budget
        search.best_s = min(search.best_s, best_s)
        chain_s = search.chain_bound_s
        proof = prove(search, least_s=self.least_s, below=min(chain_s, enough_s))
        if proof.loosest is None:
            proof = proof._replace(loosest=search.held_at(proof.bound_s))
        free = not search.shelf.question.allowed.schedules
        one_stage = free and bool(search.frontier.families.intersection(layouts.CHAIN))
        one_stage_s = chain_s if one_stage else None
        return self._outcome(proof, one_stage_s=one_stage_s, others_s=best_s)

    def _outcome(
        self, proof: Proof, *, one_stage_s: float | None = None, others_s: float = math.inf
    ) -> ModelOutcome:
        search, frontier, budget = self.search, self.search.frontier, self.search.budget
        considered = frontier.considered
        if self.is_hopeless:
            return _without_a_plan(considered, budget, is_complete=self.is_complete)
        best_s, told = search.best_s, 1 + self.num_alternatives
        reached = len({each.candidate for each in search.priced} | search.undecided)
        not_reached = frontier.count_below(best_s)
        not_reached += sum(bound < best_s for bound, _ in search.splits)
        not_reached += frontier.num_aside if frontier.aside_s < best_s else 0
        if proof.bound_s >= best_s * (1 - OPTIMAL_TOLERANCE):  # it excludes them by sharper bounds
            not_reached = 0
        is_decided = not (search.undecided or frontier.num_aside)
        is_proved = math.isfinite(proof.bound_s)
        return Outcome(
            priced=search.told(told, in_kind=self.in_kind),
            lower_bound_s=proof.bound_s if is_proved else 0.0,
            lower_bound_one_stage_s=one_stage_s if is_proved else None,
            loosest=proof.loosest,
            considered=considered,
            pruned=considered - reached - not_reached,
            not_reached=not_reached,
            exhausted=self.is_complete
            and not (self._was_stopped or budget.stopped)
            and is_decided
            and (bool(search.priced) or math.isfinite(others_s) or not is_proved),
            interrupted=budget.interrupted,
        )


def begin_search(
    question: ModelQuestion,
    budget: Budget,
    *,
    num_alternatives: int = NUM_ALTERNATIVES,
    in_kind: bool = False,
    aim: Aim | None = None,
    crew: Crew | None = None,
    to_beat: float = math.inf,
    begun: Opened | None = None,
) -> PartSearch:
    """The search for what `plan_model` finds, to be gone through.

    Runners-up may be asked to differ `in_kind` (see `of_kinds`). With the figure `to_beat` of a
    plan from elsewhere, plans and bounds above it are not looked for. What has `begun` is gone on
    with.
    """
    aim = aim or StepAim()
    frontier, is_complete = begun or opened(question, budget, aim, Shelves())
    search = ModelSearch(
        *(frontier, budget, aim, Foresight(frontier.shelf, budget, crew)),
        num_told=NUM_ALTERNATIVES,
        patience=THOROUGH.times(question.effort),
        best_s=to_beat,
    )
    return PartSearch(
        search=search,
        least_s=frontier.least_s,
        is_complete=is_complete,
        is_hopeless=is_more_than_all_devices_hold(question),
        num_alternatives=num_alternatives,
        in_kind=in_kind,
    )


def _without_a_plan(considered: int, budget: Budget, *, is_complete: bool) -> ModelOutcome:
    """What is said where no layout can hold the model: all are excluded, none was looked at."""
    return Outcome(
        priced=(),
        lower_bound_s=0.0,
        considered=considered,
        pruned=considered,
        not_reached=0,
        exhausted=is_complete and not budget.stopped,
        interrupted=budget.interrupted,
    )
