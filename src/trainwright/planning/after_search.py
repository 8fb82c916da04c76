"""What is done with a search that is over, before its outcome is told.

In the order in which it pays: further splits of candidates that were priced (`finish`); splits in V
that are outside the bounded space, so that they may only improve on it (`v_uneven`); where there is
no plan at all, every split in V of small spaces (`v_space`); and a second, slower bound on splits
in V (`v_bound`) where it may raise the least. All of it ends early with the budget, and leaves a
search whose plans and bounds hold.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.planning.ahead import asked_of
from trainwright.planning.family_split import CHAIN, IN_V, LOOPED
from trainwright.planning.finish import finish_candidate
from trainwright.planning.finish_effort import HAIR, Effort
from trainwright.planning.plan_ranking import best_first
from trainwright.planning.split_plan import split_tries
from trainwright.planning.v_bound import bound_v_lifetimes
from trainwright.planning.v_rooms import best_of_space
from trainwright.planning.v_split import best_uneven_v_split
from trainwright.planning.v_uneven import worth_uneven

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.planning.finish_effort import Finished
    from trainwright.planning.model_search import ModelSearch
    from trainwright.planning.model_space import Candidate
    from trainwright.planning.split_bound import Split

_UNEVEN_ACTIONS: Final = 6000  # of orders of uneven splits that are simulated, but always one
_IN_ROOMS: Final = 4  # candidates in V whose splits are looked for with many rooms


def finish(search: ModelSearch) -> None:
    """Look through further splits of what was priced and may still be better.

    Of one stage per rank first, where less effort proves more.
    """
    effort, sharper = Effort(), dict[int, float]()
    for families in (CHAIN, LOOPED):
        for key, serial, candidate in sorted(search.bounds, key=lambda entry: entry[:2]):
            if key >= search.best_s * HAIR or effort.is_spent:
                break
            if search.poll():
                break
            if candidate.schedule in families:
                sharper[serial] = max(key, _finished(search, candidate, effort))
    search.bounds = [(sharper.get(entry[1], entry[0]), *entry[1:]) for entry in search.bounds]
    heapq.heapify(search.bounds)


def _finished(search: ModelSearch, candidate: Candidate, effort: Effort) -> float:
    """The bound of a candidate whose further splits were looked through."""
    limit_s = search.step_to_beat_s(candidate)
    found = finish_candidate(search.shelf, candidate, effort, limit_s=limit_s)
    if found is None:
        return -math.inf
    _replace_by(search, candidate, found)
    return search.key(found.bound_s, candidate)


def _replace_by(search: ModelSearch, candidate: Candidate, finished: Finished) -> None:
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
    the best plan before all others.
    """
    first = _best_in_v(search)
    found = sorted(_uneven_splits(search, first), key=lambda one: (one[1] != first, one[0]))
    tried = {each.candidate for each in search.priced}  # with the even split of any lengths
    actions, roomy = 0, _IN_ROOMS
    for key, candidate, split in found:
        if key >= search.best_s or search.poll():
            continue
        if actions > _UNEVEN_ACTIONS:
            break
        own = replace(split, others=()) if candidate in tried else split
        if candidate != first:
            count = candidate.num_microbatches(search.shelf.question.workload)
            actions += 6 * candidate.pipeline * count
        fresh = bool(search.priced) or candidate not in search.undecided
        limit_s = min(search.step_to_beat_s(candidate), search.longest_worth_pricing_s(candidate))
        roomy -= 1
        search.price_within(limit_s, candidate, own, may_tighten=fresh, in_rooms=roomy >= 0)


def _best_in_v(search: ModelSearch) -> Candidate | None:
    """Whose plan in V is the best, where it leads: more devices let others look as good."""
    ranked = best_first(search.priced, search.aim)
    best = ranked[0].candidate if ranked else None
    return best if best in search.in_v else None


def _uneven_splits(
    search: ModelSearch, first: Candidate | None
) -> Iterator[tuple[float, Candidate, Split]]:
    """Splits that could be faster than the best plan, with their bounds."""
    num_layers = search.shelf.question.model.num_layers
    for bound, candidate in worth_uneven(search.in_v, num_layers, first=first):
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
        if search.priced or candidate.schedule not in IN_V or search.poll():
            continue
        tries = split_tries(shelf.question, candidate, shelf.profile(candidate.point))
        split = best_of_space(asked_of(shelf, candidate), tries)
        if split is None:
            continue
        if not split.cuts or search.price_within(math.inf, candidate, split, may_tighten=False):
            search.undecided.remove(candidate)


def sharpen_priced(search: ModelSearch) -> None:
    """Bound V splits of the least bounds in another way, while that may raise the least."""
    done: set[Candidate] = set()
    while search.bounds and search.bounds[0][0] < search.best_s:
        if search.poll():
            return
        key, _, candidate = search.bounds[0]
        if candidate.schedule not in IN_V or candidate in done:
            return
        done.add(candidate)
        heapq.heappop(search.bounds)
        limit_s = search.step_to_beat_s(candidate)
        found = search.answers.find(bound_v_lifetimes, candidate, limit_s=limit_s)
        search.keep_bound(max(key, search.key(found.bound_s, candidate)), candidate)
