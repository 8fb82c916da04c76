"""Planning a model without a measured profile: candidates best-first, each with its best split.

Candidates come in the order of a coarse bound (`frontier`). The best split of a candidate's layers
gives a sharp one; when that comes to be the least of all, the split is priced by `pricing`. So the
search ends as soon as the next bound is no better than the best step.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.execution import Progress
from trainwright.planning.ahead import Foresight, PlanAsk, SplitAsk, asked_of
from trainwright.planning.aims import Aim, StepAim
from trainwright.planning.device_room import room_of_candidate
from trainwright.planning.family_split import (
    CHAIN,
    IN_V,
    LOOPED,
    best_family_split,
    bound_family_splits,
)
from trainwright.planning.finish import finish_candidate
from trainwright.planning.finish_effort import HAIR, Effort
from trainwright.planning.frontier import Frontier, Shelf
from trainwright.planning.plan_ranking import best_first
from trainwright.planning.split_plan import least_step_s, split_tries
from trainwright.planning.v_bound import bound_v_lifetimes
from trainwright.planning.v_rooms import best_of_space
from trainwright.planning.v_split import best_uneven_v_split
from trainwright.planning.v_uneven import worth_uneven
from trainwright.pricing.placement import RankSpacing, group_replicas

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from trainwright.execution import Budget
    from trainwright.execution.executor import Crew
    from trainwright.planning.ahead import Ask
    from trainwright.planning.finish_effort import Finished
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.model_space import Candidate
    from trainwright.planning.split_bound import Split
    from trainwright.planning.split_plan import Priced

NUM_ALTERNATIVES: Final = 5
_WORTH_KEEPING: Final = 1.05  # splits whose bounds exceed the best step by more are forgotten
_TIE: Final = 1 + 1e-12  # what may be as fast is looked at, too: it may be simpler
# Splits searched, and the share of the best step that the search may leave as a gap from then on;
# in between it grows evenly.
_EFFORTS: Final = (600, 1200, 4800)
_GAPS: Final = (0.0, 0.005, 0.01)
_MOST_IN_CHUNKS: Final = 6000  # splits of several chunks per rank that are searched beside others
_MOST: Final = 12000  # splits after which whatever gap is left stays
_PRICING: Final = 60  # splits that are searched in the time of ordering several chunks per rank
_TRIES: Final = 6  # nodes opened for each runner-up
_BLIND: Final = 16  # splits searched without a plan before one is searched to its end
_NEAR: Final = 1.2  # times the coarse bound: how far splits are searched the first time
_SOON_PRICED: Final = 2  # splits whose plans are made ahead of the search
_UNEVEN_ACTIONS: Final = 6000  # of orders of uneven splits that are simulated, but always one
_IN_ROOMS: Final = 4  # candidates in V whose splits are looked for with many rooms
_WORTH_TRYING: Final = 0.98  # a split whose bound is so far below the best step is priced at once


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutcome:
    """Best plan first among `priced`; the bound holds for every plan of the searched space.

    Where no schedule was named `lower_bound_s` is on plans with one stage per rank, which has sharp
    bounds, and `lower_bound_all_s` on those of all families; with an aim in place of the step both
    are in the aim's unit. `exhausted` says that every candidate was priced, excluded by its bound,
    or proved not to fit; `not_reached` counts those that were neither priced nor excluded when the
    search was stopped.
    """

    priced: tuple[Priced, ...]
    lower_bound_s: float
    considered: int
    pruned: int
    not_reached: int
    exhausted: bool
    interrupted: bool
    lower_bound_all_s: float | None = None

    @property
    def least_bound_s(self) -> float:
        """On all plans that were searched."""
        return self.lower_bound_s if self.lower_bound_all_s is None else self.lower_bound_all_s


def plan_model(
    question: ModelQuestion,
    budget: Budget,
    *,
    num_alternatives: int = NUM_ALTERNATIVES,
    aim: Aim | None = None,
    crew: Crew | None = None,
) -> ModelOutcome:
    """The fastest uniform plan, up to `num_alternatives` runners-up, and a bound on every other.

    With an `aim` in place of the step, the plan of its least figure, and a bound on that. The
    outcome of a search that runs to its end does not depend on the `crew` that helps.
    """
    aim = aim or StepAim()
    shelf = Shelf.of(question)
    frontier = Frontier(question, shelf, aim)
    is_complete = frontier.open(budget)
    search = _Search(shelf, frontier, budget, aim, Foresight(shelf, budget, crew))
    search.run()
    search.finish()
    search.add_runners_up(num_alternatives)
    search.try_uneven()
    search.try_small_spaces()
    search.sharpen_priced()
    best_s, bound_s = search.best_s, search.bound_s
    proved = is_complete and math.isfinite(bound_s)
    all_s = bound_s if proved else 0.0
    one_bound = bool(question.allowed.schedules) or not frontier.families & set(CHAIN)
    reached = len({each.candidate for each in search.priced} | search.undecided)
    not_reached = frontier.count_below(best_s) + sum(e[0] < best_s for e in search.splits)
    not_reached += frontier.num_aside if frontier.aside_s < best_s else 0
    return ModelOutcome(
        priced=best_first(search.priced, aim)[: 1 + num_alternatives],
        lower_bound_s=all_s if one_bound or not proved else search.chain_bound_s,
        lower_bound_all_s=None if one_bound else all_s,
        considered=frontier.considered,
        pruned=frontier.considered - reached - not_reached,
        not_reached=not_reached,
        exhausted=is_complete
        and not budget.stopped
        and not (search.undecided or frontier.num_aside),
        interrupted=budget.interrupted,
    )


@dataclass(slots=True)
class _Search:
    """Best-first: a candidate is bounded coarsely, then by its best split, then priced.

    `splits` holds (bound, serial, candidate, its best split), `bounds` (bound, serial, candidate)
    of those that were priced; `undecided` are candidates whose best split fits by the bound, but
    no plan did; `in_v` are those in V whose splits were looked for, with their coarse bounds.
    Bounds, `best_s` among them, are on what the aim makes least: seconds of a step, unless it is
    another.
    """

    shelf: Shelf
    frontier: Frontier
    budget: Budget
    aim: Aim
    foresight: Foresight
    splits: list[tuple[float, int, Candidate, Split]] = field(default_factory=list)
    priced: list[Priced] = field(default_factory=list)
    best_s: float = math.inf
    bounds: list[tuple[float, int, Candidate]] = field(default_factory=list)
    undecided: set[Candidate] = field(default_factory=set)
    in_v: dict[Candidate, float] = field(default_factory=dict)
    serial: int = 0
    searched: int = 0
    in_chunks: int = 0
    too_large: dict[Candidate, int] = field(default_factory=dict)
    seen: set[Candidate] = field(default_factory=set)
    known: dict[Hashable, tuple[float, Split]] = field(default_factory=dict)
    alike: dict[Hashable, Hashable] = field(default_factory=dict)
    first_of: dict[Hashable, Candidate] = field(default_factory=dict)

    @property
    def _least_split_s(self) -> float:
        return self.splits[0][0] if self.splits else math.inf

    @property
    def _enough(self) -> float:
        """At which share of the best step the least bound ends the search: the gap it may leave."""
        if self.searched >= _MOST and self.priced:
            return 0.0
        return _TIE - float(np.interp(self.searched, _EFFORTS, _GAPS))

    @property
    def bound_s(self) -> float:
        """No plan of the space is faster."""
        waiting_s = min(self.frontier.least_s, self.frontier.aside_s, self._least_split_s)
        priced_s = self.bounds[0][0] if self.bounds else math.inf
        return min(self.best_s, priced_s, waiting_s)

    @property
    def chain_bound_s(self) -> float:
        """No plan with one stage per rank is faster than this, or than the best plan."""
        waiting_s = [bound_s for bound_s, _, one, _ in self.splits if one.schedule in CHAIN]
        left_s = self.frontier.least_among_s(CHAIN)
        priced_s = [bound_s for bound_s, _, one in self.bounds if one.schedule in CHAIN]
        return min(self.best_s, left_s, *priced_s, *waiting_s)

    def run(self) -> None:
        """Until no candidate left can be better than the best plan, or the budget ends."""
        while min(self.frontier.least_s, self._least_split_s) < self.best_s * self._enough:
            if self.budget.poll(self._progress):
                return
            self.foresight.look(self._coming)
            if self._may_leave_chunks:
                self._set_chunks_aside()
                continue
            if self._least_split_s <= self.frontier.least_s:
                _, _, candidate, split = heapq.heappop(self.splits)
                self._price(candidate, split)
                continue
            taken = self.frontier.take()
            if taken is not None:
                self._sharpen(*taken, limit=_WORTH_KEEPING * self.best_s)

    def finish(self) -> None:
        """Look through further splits of what was priced and may still be better.

        Of one stage per rank first, where less effort proves more.
        """
        effort, sharper = Effort(), dict[int, float]()
        for families in (CHAIN, LOOPED):
            for key, serial, candidate in sorted(self.bounds, key=lambda entry: entry[:2]):
                if key >= self.best_s * HAIR or effort.is_spent:
                    break
                if self.budget.poll(self._progress):
                    break
                if candidate.schedule in families:
                    sharper[serial] = max(key, self._finished(candidate, effort))
        self.bounds = [(sharper.get(entry[1], entry[0]), *entry[1:]) for entry in self.bounds]
        heapq.heapify(self.bounds)

    def _finished(self, candidate: Candidate, effort: Effort) -> float:
        """The bound of a candidate whose further splits were looked through."""
        devices = candidate.num_devices
        limit_s = self.aim.longest_s(self.best_s, devices)
        found = finish_candidate(self.shelf, candidate, effort, limit_s=limit_s)
        if found is None:
            return -math.inf
        self._replace(candidate, found)
        return self.aim.key(found.bound_s, devices)

    def _replace(self, candidate: Candidate, finished: Finished) -> None:
        """A better plan in place of the candidate's; without one below the best it is decided."""
        plan, key = finished.found, self.aim.key(finished.bound_s, candidate.num_devices)
        if plan is not None:
            self.priced = [one for one in self.priced if one.candidate != candidate] + [plan]
            self.best_s = min(
                self.best_s, self.aim.key(plan.step.step_time_s, candidate.num_devices)
            )
        if plan is not None or key >= self.best_s * HAIR:
            self.undecided.discard(candidate)

    @property
    def _may_leave_chunks(self) -> bool:
        is_spent = self.in_chunks > _MOST_IN_CHUNKS and not self.frontier.aside
        return is_spent and bool(self.frontier.families & set(CHAIN))

    def _set_chunks_aside(self) -> None:
        """Only plans with one stage per rank from now on, of which more can be proved."""
        self.frontier.set_aside(self.frontier.families - set(CHAIN))
        left = []
        for entry in self.splits:
            if entry[2].schedule in CHAIN:
                left.append(entry)
            else:
                self._keep_bound(entry[0], entry[2])
                self.undecided.add(entry[2])
        heapq.heapify(left)
        self.splits = left

    @property
    def _progress(self) -> Progress:
        return Progress(
            stage="planning",
            elapsed_s=self.budget.elapsed_s,
            best=self.best_s,
            lower_bound=self.bound_s,
        )

    def add_runners_up(self, count: int) -> None:
        """Price the next best splits until there are enough alternatives, or it takes too long."""
        tries = _TRIES * count
        while len(best_first(self.priced, self.aim)) <= count:
            if self.budget.poll(self._progress):
                return
            if self.splits and (not tries or self._least_split_s <= self.frontier.least_s):
                _, _, candidate, split = heapq.heappop(self.splits)
                self._price(candidate, split)
            elif tries and math.isfinite(self.frontier.least_s):
                tries -= 1
                taken = self.frontier.take()
                if taken is not None:
                    self._sharpen(*taken, limit=math.inf)
            else:
                return

    @property
    def _best_in_v(self) -> Candidate | None:
        """Whose plan in V is the best, where it leads: more devices let others look as good."""
        ranked = best_first(self.priced, self.aim)
        best = ranked[0].candidate if ranked else None
        return best if best in self.in_v else None

    def try_uneven(self) -> None:
        """Price splits in V that are not nearly even: outside the space, they may improve on it.

        Of the candidates that the search met, those that could be faster than its best plan, that
        of the best plan before all others.
        """
        found: list[tuple[float, int, Candidate, Split]] = []
        asked = self.shelf.question
        first = self._best_in_v
        for bound, candidate in worth_uneven(self.in_v, asked.model.num_layers, first=first):
            if self.budget.poll(self._progress):
                break
            if bound >= self.best_s:
                continue
            devices = candidate.num_devices
            limit_s = self.aim.longest_s(self.best_s, devices)
            split = self._split_by(best_uneven_v_split, candidate, limit_s=limit_s)
            if split.cuts:
                found.append((self.aim.key(split.bound_s, devices), len(found), candidate, split))
        tried = {each.candidate for each in self.priced}  # with the even split of any lengths
        actions, roomy = 0, _IN_ROOMS
        for key, _, candidate, split in sorted(
            found, key=lambda one: (one[2] != first, one[0], one[1])
        ):
            if key >= self.best_s or self.budget.poll(self._progress):
                continue
            if actions > _UNEVEN_ACTIONS:
                break
            own = replace(split, others=()) if candidate in tried else split
            if candidate != first:
                actions += 6 * candidate.pipeline * candidate.num_microbatches(asked.workload)
            longest_s = self._longest_worth_pricing_s(candidate.num_devices)
            limit_s = self.aim.longest_s(self.best_s, candidate.num_devices)
            fresh = bool(self.priced) or candidate not in self.undecided
            limit_s, roomy = min(limit_s, longest_s), roomy - 1
            self._priced_within(limit_s, candidate, own, may_tighten=fresh, in_rooms=roomy >= 0)

    def try_small_spaces(self) -> None:
        """Where no plan was found at all, try every split in V of small spaces."""
        question = self.shelf.question
        for candidate in sorted(self.undecided, key=repr):
            if self.priced or candidate.schedule not in IN_V or self.budget.poll(self._progress):
                continue
            tries = split_tries(question, candidate, self.shelf.profile(candidate.point))
            split = best_of_space(asked_of(self.shelf, candidate), tries)
            if split is None:
                continue
            if not split.cuts or self._priced_within(math.inf, candidate, split, may_tighten=False):
                self.undecided.remove(candidate)

    def sharpen_priced(self) -> None:
        """Bound V splits of the least bounds in another way, while that may raise the least."""
        done: set[Candidate] = set()
        while self.bounds and self.bounds[0][0] < self.best_s:
            if self.budget.poll(self._progress):
                return
            key, _, candidate = self.bounds[0]
            if candidate.schedule not in IN_V or candidate in done:
                return
            done.add(candidate)
            heapq.heappop(self.bounds)
            devices = candidate.num_devices
            limit_s = self.aim.longest_s(self.best_s, devices)
            found = self._split_by(bound_v_lifetimes, candidate, limit_s=limit_s)
            self._keep_bound(max(key, self.aim.key(found.bound_s, devices)), candidate)

    def _keep_bound(self, key: float, candidate: Candidate) -> None:
        self.serial += 1
        heapq.heappush(self.bounds, (key, self.serial, candidate))

    def _sharpen(self, bound: float, candidate: Candidate, *, limit: float) -> None:
        """Find the best split; one far above the coarse bound is left for later the first time.

        Short stages are quickly looked through, and by then a better plan may be known.
        """
        if candidate.schedule in IN_V:
            self.in_v.setdefault(candidate, bound)
        group = replace(candidate, data=1)  # of one depth, fewer replicas are never leaner
        if candidate.data <= self.too_large.get(group, 0):
            return
        self._spend(1, candidate)
        devices = candidate.num_devices
        bound_s = self.aim.longest_s(bound, devices)
        to_the_end = candidate in self.seen or (not self.priced and self.searched % _BLIND == 0)
        near_s, limit_s = self._near_s(bound, candidate, limit, to_the_end=to_the_end)
        split = self._split_by(bound_family_splits, candidate, limit_s=near_s)
        if math.isinf(split.bound_s):
            self.too_large[group] = candidate.data
        elif split.bound_s == near_s < limit_s:
            self.seen.add(candidate)
            self.frontier.put_back(self.aim.key(near_s, devices), candidate)
        elif split.bound_s < limit_s:
            sharper = replace(split, bound_s=max(bound_s, split.bound_s))
            key = self.aim.key(sharper.bound_s, devices)
            if split.cuts and key < _WORTH_TRYING * self.best_s:
                self._price(candidate, sharper)
            else:
                self.serial += 1
                heapq.heappush(self.splits, (key, self.serial, candidate, sharper))

    def _spend(self, splits: int, candidate: Candidate) -> None:
        self.searched += splits
        if candidate.schedule not in CHAIN:
            self.in_chunks += splits

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
        for key, _, candidate, split in heapq.nsmallest(_SOON_PRICED, self.splits):
            if not key < horizon_s:
                break
            if split.cuts or candidate.virtual_stages == 1:
                yield PlanAsk(candidate, split, may_tighten=not self.priced)
            elif ask := self._ask(best_family_split, candidate, _NEAR * split.bound_s):
                yield ask
        for bound, candidate in few:
            limit, seen = _WORTH_KEEPING * self.best_s, candidate in self.seen
            near_s, _ = self._near_s(bound, candidate, limit, to_the_end=seen)
            if ask := self._ask(bound_family_splits, candidate, near_s):
                yield ask

    def _ask(
        self, search: Callable[..., Split], candidate: Candidate, limit_s: float
    ) -> SplitAsk | None:
        """The first of the candidates that differ in name alone stands for all of them."""
        alike = self._alike(search, candidate)
        known_s, known = self.known.get(alike, (0.0, None))
        if known is not None and not (known_s <= known.bound_s and known_s < limit_s):
            return None
        return SplitAsk(search, self.first_of.setdefault(alike, candidate), limit_s)

    def _split_by(
        self, search: Callable[..., Split], candidate: Candidate, *, limit_s: float
    ) -> Split:
        """What the search finds; candidates that differ in name alone are searched once."""
        alike, ask = self._alike(search, candidate), self._ask(search, candidate, limit_s)
        if ask is not None:
            self.known[alike] = limit_s, self.foresight.split(ask)
            return self.known[alike][1]
        known_s, known = self.known[alike]
        if known_s <= known.bound_s < math.inf:  # cut down to a limit that is no lower
            known = replace(known, bound_s=limit_s)
        return known

    def _alike(self, search: Callable[..., Split], candidate: Candidate) -> Hashable:
        """All that a search looks at."""
        found = self.alike.get((search, candidate))
        if found is not None:
            return found
        question, degrees = self.shelf.question, candidate.degrees
        room = room_of_candidate(question, candidate, self.shelf.profile(candidate.point))
        count = candidate.num_microbatches(question.workload)
        found = (
            search,
            id(self.shelf.kinds(candidate.point)),
            candidate.schedule,
            (degrees.pipeline, degrees.virtual_stages, RankSpacing.of(degrees), count),
            group_replicas(room.pool_of(), degrees),
            room.accelerator.usable_bytes,
        )
        self.alike[search, candidate] = found
        return found

    def _price(self, candidate: Candidate, split: Split) -> None:
        devices = candidate.num_devices
        key = self.aim.key(split.bound_s, devices)
        self._keep_bound(key, candidate)
        longest_s = self._longest_worth_pricing_s(devices)
        if not split.cuts and candidate.virtual_stages > 1:
            self._spend(_PRICING if math.isinf(longest_s) else _PRICING // 2, candidate)
            limit_s = _NEAR * split.bound_s
            split = self._split_by(best_family_split, candidate, limit_s=limit_s)
        if not self._priced_within(longest_s, candidate, split, may_tighten=not self.priced):
            self.undecided.add(candidate)

    def _priced_within(
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
        found = self.foresight.plan(PlanAsk(candidate, split, longest_s, may_tighten, in_rooms))
        device = self.shelf.question.cluster.accelerator
        if found is None or least_step_s(found.step, device) > longest_s:
            return False
        self.priced.append(found)
        key = self.aim.key(found.step.step_time_s, candidate.num_devices)
        self.best_s = min(self.best_s, key)
        return True

    def _longest_worth_pricing_s(self, devices: int) -> float:
        """No plan with a longer pipeline is kept, once there are enough to tell of."""
        if len(self.priced) <= NUM_ALTERNATIVES:
            return math.inf
        return self.aim.longest_s(_WORTH_KEEPING * self.best_s, devices)
