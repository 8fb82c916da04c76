"""The search for the best plan of a model: candidates best-first, each with its best split.

Candidates come in the order of a coarse bound (`frontier`). The best split of a candidate's layers
gives a sharp one; when that comes to be the least of all, the split is priced by `pricing`. So the
search ends as soon as the next bound is no better than the best step. What takes many splits until
then is cut short by the count of splits, not by the clock: first a growing gap is enough, then
splits of several chunks per rank are set aside, at last any gap is.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.execution import Progress
from trainwright.planning.ahead import PlanAsk
from trainwright.planning.family_split import (
    CHAIN,
    IN_V,
    best_family_split,
    bound_family_splits,
)
from trainwright.planning.plan_ranking import best_first
from trainwright.planning.split_plan import least_step_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.execution import Budget
    from trainwright.planning.ahead import Ask, Foresight
    from trainwright.planning.aims import Aim
    from trainwright.planning.frontier import Frontier
    from trainwright.planning.model_space import Candidate
    from trainwright.planning.shelf import Shelf
    from trainwright.planning.split_answers import SplitAnswers
    from trainwright.planning.split_bound import Split
    from trainwright.planning.split_plan import Priced

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
_WORTH_TRYING: Final = 0.98  # a split whose bound is so far below the best step is priced at once


@dataclass(slots=True)
class ModelSearch:
    """Best-first: a candidate is bounded coarsely, then by its best split, then priced.

    `splits` holds (bound, serial, candidate, its best split), `bounds` (bound, serial, candidate)
    of those that were priced; `undecided` are candidates whose best split fits by the bound, but
    no plan did; `in_v` are those in V whose splits were looked for, with their coarse bounds.
    Bounds, `best_s` among them, are on what the aim makes least: seconds of a step, unless it is
    another. With more than `num_told` plans, only those near the best are kept.
    """

    frontier: Frontier
    budget: Budget
    aim: Aim
    foresight: Foresight
    answers: SplitAnswers
    num_told: int
    splits: list[tuple[float, int, Candidate, Split]] = field(default_factory=list)
    priced: list[Priced] = field(default_factory=list)
    best_s: float = math.inf
    bounds: list[tuple[float, int, Candidate]] = field(default_factory=list)
    undecided: set[Candidate] = field(default_factory=set)
    in_v: dict[Candidate, float] = field(default_factory=dict)
    _serial: int = 0
    _searched: int = 0
    _in_chunks: int = 0
    _too_large: dict[Candidate, int] = field(default_factory=dict)
    _seen: set[Candidate] = field(default_factory=set)

    @property
    def shelf(self) -> Shelf:
        """What is known of the question's points."""
        return self.foresight.shelf

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
            if self.poll():
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

    def add_runners_up(self, count: int) -> None:
        """Price the next best splits until there are enough alternatives, or it takes too long."""
        tries = _TRIES * count
        while len(best_first(self.priced, self.aim)) <= count:
            if self.poll():
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

    def keep_bound(self, key: float, candidate: Candidate) -> None:
        """No plan of the candidate has a lower figure."""
        self._serial += 1
        heapq.heappush(self.bounds, (key, self._serial, candidate))

    @property
    def _least_split_s(self) -> float:
        return self.splits[0][0] if self.splits else math.inf

    @property
    def _enough(self) -> float:
        """At which share of the best step the least bound ends the search: the gap it may leave."""
        if self._searched >= _MOST and self.priced:
            return 0.0
        return _TIE - float(np.interp(self._searched, _EFFORTS, _GAPS))

    @property
    def _may_leave_chunks(self) -> bool:
        is_spent = self._in_chunks > _MOST_IN_CHUNKS and not self.frontier.aside
        return is_spent and bool(self.frontier.families & set(CHAIN))

    def _set_chunks_aside(self) -> None:
        """Only plans with one stage per rank from now on, of which more can be proved."""
        self.frontier.set_aside(self.frontier.families - set(CHAIN))
        left = []
        for entry in self.splits:
            if entry[2].schedule in CHAIN:
                left.append(entry)
            else:
                self.keep_bound(entry[0], entry[2])
                self.undecided.add(entry[2])
        heapq.heapify(left)
        self.splits = left

    def _sharpen(self, bound: float, candidate: Candidate, *, limit: float) -> None:
        """Find the best split; one far above the coarse bound is left for later the first time.

        Short stages are quickly looked through, and by then a better plan may be known.
        """
        if candidate.schedule in IN_V:
            self.in_v.setdefault(candidate, bound)
        group = replace(candidate, data=1)  # of one depth, fewer replicas are never leaner
        if candidate.data <= self._too_large.get(group, 0):
            return
        self._spend(1, candidate)
        devices = candidate.num_devices
        bound_s = self.aim.longest_s(bound, devices)
        to_the_end = candidate in self._seen or (not self.priced and self._searched % _BLIND == 0)
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
                self._price(candidate, sharper)
            else:
                self._serial += 1
                heapq.heappush(self.splits, (key, self._serial, candidate, sharper))

    def _spend(self, splits: int, candidate: Candidate) -> None:
        self._searched += splits
        if candidate.schedule not in CHAIN:
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
        for key, _, candidate, split in heapq.nsmallest(_SOON_PRICED, self.splits):
            if not key < horizon_s:
                break
            if split.cuts or candidate.virtual_stages == 1:
                yield PlanAsk(candidate, split, may_tighten=not self.priced)
            elif ask := self.answers.unanswered(
                best_family_split, candidate, limit_s=_NEAR * split.bound_s
            ):
                yield ask
        for bound, candidate in few:
            limit, seen = _WORTH_KEEPING * self.best_s, candidate in self._seen
            near_s, _ = self._near_s(bound, candidate, limit, to_the_end=seen)
            if ask := self.answers.unanswered(bound_family_splits, candidate, limit_s=near_s):
                yield ask

    def _price(self, candidate: Candidate, split: Split) -> None:
        self.keep_bound(self.key(split.bound_s, candidate), candidate)
        longest_s = self.longest_worth_pricing_s(candidate)
        if not split.cuts and candidate.virtual_stages > 1:
            self._spend(_PRICING if math.isinf(longest_s) else _PRICING // 2, candidate)
            limit_s = _NEAR * split.bound_s
            split = self.answers.find(best_family_split, candidate, limit_s=limit_s)
        if not self.price_within(longest_s, candidate, split, may_tighten=not self.priced):
            self.undecided.add(candidate)

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
        found = self.foresight.plan(PlanAsk(candidate, split, longest_s, may_tighten, in_rooms))
        device = self.shelf.question.cluster.accelerator
        if found is None or least_step_s(found.step, device) > longest_s:
            return False
        self.keep(found)
        return True

    def longest_worth_pricing_s(self, candidate: Candidate) -> float:
        """No plan with a longer pipeline is kept, once there are enough to tell of."""
        if len(self.priced) <= self.num_told:
            return math.inf
        return self.aim.longest_s(_WORTH_KEEPING * self.best_s, candidate.num_devices)
