"""Other processes work out what a search will ask next; the search itself stays in this one.

Most of a search's time goes into questions whose answers depend on nothing but what is planned: the
best split of a candidate below a limit, the plan of a split. Workers are handed those that are next
in order of their bounds, with the limit that the best plan so far sets. The search takes an answer
where exactly its question was handed out, and works it out itself where not, as after a better plan
has lowered the limit. So it visits the same candidates in the same order and ends with the same
plan, bound and counts, whoever works beside it and however fast.

A search that asks little is over before workers have started, so the first few are answered here.
A worker that dies costs time, not the answer: what it was handed is then worked out here, too.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from warnings import warn

from trainwright.execution import Budget
from trainwright.planning.question import layouts
from trainwright.planning.question.question import (
    Candidate,
    ModelQuestion,
)
from trainwright.planning.search.frontier import Shelf
from trainwright.planning.search.plans import (
    PlanAsk,
    asked_of,
    price_cuts,
    splits_itself,
)
from trainwright.planning.splits.chain import CutsAndRows, Split
from trainwright.planning.splits.cuts import finish_chain, finish_loop
from trainwright.planning.splits.types import (
    Effort,
    Finished,
    Priced,
    best_family_split,
)
from trainwright.scheduling.families import family_named
from trainwright.step.stages import (
    RankSpacing,
    group_replicas,
)

if TYPE_CHECKING:
    from trainwright.execution.executor import Crew, Parcel

    SplitSearch: TypeAlias = Callable[..., Split]


# Other processes work out what a search will ask next; the search itself stays in this one
# -----------------------------------------------------------------------------------------

_ALONE: Final = 32  # answers that are worked out here before anyone is asked for help
UNDER_WAY: Final = 2  # parcels per worker that are handed out at once
_IN_PARCEL: Final = 8  # splits; some 5 to 20 ms each
_REST: Final = 8  # steps of the search before it looks ahead again in vain


@dataclass(frozen=True, slots=True)
class SplitAsk:
    """What one of the searches of `splits.types` finds for a candidate below a limit."""

    search: Callable[..., Split]
    candidate: Candidate
    limit_s: float

    def answer(self, shelf: Shelf, budget: Budget) -> Split:
        """Search, as if pairs ran one after the other; what braids may hide is taken off after."""
        asked = asked_of(shelf, self.candidate)
        if self.candidate.schedule not in layouts.BRAIDED:
            return self.search(asked, limit_s=self.limit_s)
        hidden = shelf.hidden(self.candidate.point)
        limit_s = hidden.limit_s(self.limit_s, asked.num_microbatches)
        found = self.search(asked, limit_s=limit_s)
        if math.isinf(found.bound_s):
            return found
        bound_s = min(self.limit_s, float(hidden.bound_s(found.bound_s, asked.num_microbatches)))
        return replace(found, bound_s=self.limit_s if found.bound_s >= limit_s else bound_s)


def has_further_splits(question: ModelQuestion, candidate: Candidate) -> bool:
    """Whether some can be looked through beside those of the family's own search."""
    others = {*layouts.IN_V, *layouts.CUTS_HEAD, *layouts.ON_HOST}
    return candidate.schedule not in others and not splits_itself(question.allowed)


def finish_candidate(
    shelf: Shelf,
    candidate: Candidate,
    effort: Effort,
    *,
    limit_s: float,
    even_at_least: bool = True,
) -> Finished[Priced] | None:
    """The best further plan below the limit, and a bound on all; None where none is looked for.

    Of loops with too many splits the nearly even ones are looked through if that will do.
    """
    question = shelf.question
    if not has_further_splits(question, candidate):
        return None
    profile = shelf.profile(candidate.point)

    def price(split: CutsAndRows) -> Priced | None:
        return price_cuts(question, candidate, profile, split)

    asked = asked_of(shelf, candidate)
    if candidate.schedule in layouts.CHAIN:
        return finish_chain(asked, price, effort, limit_s=limit_s)
    return finish_loop(asked, price, effort, limit_s=limit_s, even_at_least=even_at_least)


Ask: TypeAlias = SplitAsk | PlanAsk


@dataclass(slots=True)
class Foresight:
    """Answers for a search: what workers have found of them, else found here."""

    shelf: Shelf
    budget: Budget
    crew: Crew | None
    taken: int = 0  # answers that came from workers, and
    made: int = 0  # those that were worked out here
    _sent: bytes = b""
    _handed: dict[Ask, Parcel] = field(default_factory=dict)
    _found: dict[Ask, Any] = field(default_factory=dict)
    _under_way: list[Parcel] = field(default_factory=list)
    _rest: int = 0

    def look(self, coming: Callable[[int], Iterator[Ask]]) -> None:
        """Hand out what comes next, where workers are about to have nothing to do.

        `coming` is asked for as many candidates as can be under way.
        """
        self._rest -= 1
        if self.crew is None or self._rest > 0 or self.made < _ALONE:
            return
        self._under_way = [parcel for parcel in self._under_way if not parcel.done()]
        free = UNDER_WAY * self.crew.size - len(self._under_way)
        if free <= 0:
            return
        fresh = [
            ask
            for ask in dict.fromkeys(coming(UNDER_WAY * _IN_PARCEL * self.crew.size))
            if not self.is_out(ask)
        ]
        self._rest = 0 if fresh else _REST
        for parcel in _parcels(fresh)[:free]:
            self._hand(parcel)

    def is_out(self, ask: Ask) -> bool:
        """Whether workers have found it, or are to."""
        return ask in self._handed or ask in self._found

    def _hand(self, asks: tuple[Ask, ...]) -> None:
        if self.crew is None:
            return
        self._sent = self._sent or pickle.dumps(self.shelf.question)
        try:
            parcel = self.crew.hand(work_out, (self._sent, asks))
        except BrokenExecutor:
            self._go_on_alone()
            return
        self._under_way.append(parcel)
        self._handed.update(dict.fromkeys(asks, parcel))

    def answer(self, ask: Ask) -> Any:
        """What `ask.answer` gives, the same from here and there."""
        parcel = self._handed.get(ask)
        if parcel is not None:
            self._take(parcel)
        if ask in self._found:
            self.taken += 1
            return self._found.pop(ask)
        self.made += 1
        return ask.answer(self.shelf, self.budget)

    def _take(self, parcel: Parcel) -> None:
        """Take all of a parcel's answers in, and forget that it was handed out."""
        try:
            self._found.update(parcel.result())
        except Exception:  # whatever ended a worker; an error of the answer itself comes here, too
            self._go_on_alone()
        for ask in [ask for ask, own in self._handed.items() if own is parcel]:
            del self._handed[ask]

    def _go_on_alone(self) -> None:
        if self.crew is not None:
            warn("a worker ended early; the search goes on in this process", stacklevel=2)
        self.crew = None
        self._handed.clear()


def _parcels(asks: Iterable[Ask]) -> list[tuple[Ask, ...]]:
    """A plan takes as long as many splits."""
    alone: list[tuple[Ask, ...]] = []
    bounds: list[Ask] = []
    for ask in asks:
        if isinstance(ask, SplitAsk) and ask.search is not best_family_split:
            bounds.append(ask)
        else:
            alone.append((ask,))
    several = range(0, len(bounds), _IN_PARCEL)
    return alone + [tuple(bounds[first : first + _IN_PARCEL]) for first in several]


def work_out(parcel: tuple[bytes, tuple[Ask, ...]]) -> dict[Ask, Any]:
    """The answers to some asks of a question, and to those that follow from them."""
    question, asks = parcel
    found: dict[Ask, Any] = {}
    with _ONE_AT_A_TIME:  # of the threads that a cluster's worker may have
        shelf = _shelf_of(question)
        for ask in asks:
            found[ask] = ask.answer(shelf, Budget())
            if isinstance(ask, SplitAsk) and ask.search is best_family_split:
                after = PlanAsk(ask.candidate, found[ask])
                found[after] = after.answer(shelf, Budget())
    return found


_ONE_AT_A_TIME: Final = Lock()


@lru_cache(maxsize=1)
def _shelf_of(question: bytes) -> Shelf:
    """Of the question that this process works on, from its 2 KB in every parcel."""
    asked: ModelQuestion = pickle.loads(question)
    return Shelf.of(asked)


# What searches for splits answer, each kept for all candidates that they cannot tell apart
# -----------------------------------------------------------------------------------------
# Many candidates differ in name alone: in what a search for splits does not look at. The first of
# them is searched, and its answer stands for all. A search that ended below its limit has its
# answer for any limit; one whose bound was cut down to the limit says as much of every lower one.


@dataclass(slots=True)
class SplitAnswers:
    """Asks the foresight, never twice the same."""

    foresight: Foresight
    _known: dict[Hashable, tuple[float, Split]] = field(default_factory=dict)  # limit and answer
    _alike: dict[Hashable, Hashable] = field(default_factory=dict)  # of a search and a candidate
    _first_of: dict[Hashable, Candidate] = field(default_factory=dict)

    def find(self, search: SplitSearch, candidate: Candidate, *, limit_s: float) -> Split:
        """What the search finds of steps below a limit in seconds."""
        alike = self._alike_to(search, candidate)
        ask = self._unanswered(alike, search, candidate, limit_s)
        if ask is not None:
            self._known[alike] = limit_s, self.foresight.answer(ask)
            return self._known[alike][1]
        known_s, known = self._known[alike]
        if known_s <= known.bound_s < math.inf:  # cut down to a limit that is no lower
            known = replace(known, bound_s=limit_s)
        return known

    def unanswered(
        self, search: SplitSearch, candidate: Candidate, *, limit_s: float
    ) -> SplitAsk | None:
        """What `find` would have to ask; None where the answer is known."""
        return self._unanswered(self._alike_to(search, candidate), search, candidate, limit_s)

    def _unanswered(
        self, alike: Hashable, search: SplitSearch, candidate: Candidate, limit_s: float
    ) -> SplitAsk | None:
        known_s, known = self._known.get(alike, (0.0, None))
        if known is not None and not (known_s <= known.bound_s and known_s < limit_s):
            return None
        return SplitAsk(search, self._first_of.setdefault(alike, candidate), limit_s)

    def _alike_to(self, search: SplitSearch, candidate: Candidate) -> Hashable:
        """All that a search looks at."""
        found = self._alike.get((search, candidate))
        if found is not None:
            return found
        shelf, degrees = self.foresight.shelf, candidate.degrees
        room = shelf.room_of(candidate)
        count = candidate.num_microbatches(shelf.question.workload)
        whole = count % degrees.pipeline == 0
        found = (
            search,
            id(shelf.kinds_of(candidate)),
            (whole and family_named(candidate.schedule).like) or candidate.schedule,
            (degrees.pipeline, degrees.virtual_stages, RankSpacing.of(degrees), count),
            group_replicas(room.pool_of(), degrees),
            room.accelerator.usable_bytes,
        )
        self._alike[search, candidate] = found
        return found
