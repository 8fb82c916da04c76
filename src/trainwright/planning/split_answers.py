"""What searches for splits answer, each kept for all candidates that they cannot tell apart.

Many candidates differ in name alone: in what a search for splits does not look at. The first of
them is searched, and its answer stands for all. A search that ended below its limit has its answer
for any limit; one whose bound was cut down to the limit says as much of every lower one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from trainwright.planning.ahead import SplitAsk
from trainwright.planning.device_room import room_of_candidate
from trainwright.pricing.placement import RankSpacing, group_replicas

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from trainwright.planning.ahead import Foresight
    from trainwright.planning.model_space import Candidate
    from trainwright.planning.split_bound import Split

    SplitSearch: TypeAlias = Callable[..., Split]


@dataclass(slots=True)
class SplitAnswers:
    """Asks the foresight, never twice the same."""

    foresight: Foresight
    _known: dict[Hashable, tuple[float, Split]] = field(default_factory=dict)  # limit and answer
    _alike: dict[Hashable, Hashable] = field(default_factory=dict)  # of a search and a candidate
    _first_of: dict[Hashable, Candidate] = field(default_factory=dict)

    def find(self, search: SplitSearch, candidate: Candidate, *, limit_s: float) -> Split:
        """What the search finds of steps below a limit in seconds."""
        ask = self.unanswered(search, candidate, limit_s=limit_s)
        alike = self._alike_to(search, candidate)
        if ask is not None:
            self._known[alike] = limit_s, self.foresight.split(ask)
            return self._known[alike][1]
        known_s, known = self._known[alike]
        if known_s <= known.bound_s < math.inf:  # cut down to a limit that is no lower
            known = replace(known, bound_s=limit_s)
        return known

    def unanswered(
        self, search: SplitSearch, candidate: Candidate, *, limit_s: float
    ) -> SplitAsk | None:
        """What `find` would have to ask; None where the answer is known."""
        alike = self._alike_to(search, candidate)
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
        room = room_of_candidate(shelf.question, candidate, shelf.profile(candidate.point))
        count = candidate.num_microbatches(shelf.question.workload)
        found = (
            search,
            id(shelf.kinds(candidate.point)),
            candidate.schedule,
            (degrees.pipeline, degrees.virtual_stages, RankSpacing.of(degrees), count),
            group_replicas(room.pool_of(), degrees),
            room.accelerator.usable_bytes,
        )
        self._alike[search, candidate] = found
        return found
