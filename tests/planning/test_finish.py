"""Further splits after a search: what is enumerated, what is dropped, what little effort says."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from itertools import pairwise, product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exhaustive import every_candidate, every_step_s
from random_spaces import CHAINS, LOOPED, random_question
from trainwright.planning.search.frontier import Shelf
from trainwright.planning.search.plans import asked_of, price_cuts
from trainwright.planning.search.search import finish_candidate
from trainwright.planning.splits.cuts import (
    every_lengths,
    finish_chain,
    finish_loop,
    num_lengths,
    unbeaten,
)
from trainwright.planning.splits.types import Effort

ROUNDING = 1e-9
SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=5)


@given(SPANS, st.integers(0, 12))
def test_blocks_are_dealt_in_every_way_and_counted(spans, blocks):
    least, most = [a for a, _ in spans], [a + more for a, more in spans]
    ranges = [range(a, b + 1) for a, b in zip(least, most, strict=True)]
    expected = [each for each in product(*ranges) if sum(each) == blocks]
    assert list(every_lengths(least, most, blocks)) == expected
    assert num_lengths(least, most, blocks) == len(expected)


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=12))
def test_a_choice_is_dropped_only_where_another_is_as_good_in_everything(rows):
    columns = np.array(rows, dtype=np.float64)
    kept = unbeaten(columns)
    assert len({rows[row] for row in kept}) == len(kept)
    for row in rows:
        beating = [
            rows[one] for one in kept if all(a <= b for a, b in zip(rows[one], row, strict=True))
        ]
        assert beating
        assert row not in (rows[one] for one in kept) or beating == [row]


def finished(question, candidate, effort, *, limit_s=1e3):
    shelf = Shelf.of(question)
    shelf.profile(candidate.point)
    return finish_candidate(shelf, candidate, effort, limit_s=limit_s)


@cache
def candidates_with_steps(families, seed, *, most_plans=60):
    return list(_candidates_with_steps(families, seed, most_plans))


def _candidates_with_steps(families, seed, most_plans):
    question = random_question(Random(seed), families, most_plans=most_plans)
    shelf = Shelf.of(question)
    for candidate in every_candidate(question):
        profile = shelf.profile(candidate.point)
        steps_s = list(every_step_s(question, candidate, profile))
        if steps_s:
            yield question, candidate, min(steps_s)


@pytest.mark.parametrize("families", [CHAINS, LOOPED], ids=["chains", "loops"])
@pytest.mark.parametrize("seed", range(4))
def test_every_candidate_ends_with_its_best_plan(families, seed):
    for question, candidate, least_s in candidates_with_steps(families, seed):
        found = finished(question, candidate, Effort())
        assert found.found.step.step_time_s == pytest.approx(least_s, rel=ROUNDING)
        assert found.bound_s == pytest.approx(least_s, rel=ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [13, *(pytest.param(n, marks=pytest.mark.slow) for n in (12, 29))])
def test_so_it_does_where_chunks_of_a_rank_can_recompute_in_several_ways(seed):
    for question, candidate, least_s in candidates_with_steps(LOOPED, seed, most_plans=1000):
        found = finished(question, candidate, Effort())
        assert found.found.step.step_time_s == pytest.approx(least_s, rel=ROUNDING)
        assert found.bound_s == pytest.approx(least_s, rel=ROUNDING)


@pytest.mark.parametrize("families", [CHAINS, LOOPED], ids=["chains", "loops"])
@pytest.mark.parametrize("seed", [2, 5, 7])
def test_wherever_the_effort_ends_the_bound_still_holds(families, seed):
    """While splits are counted, simulated, or priced: what was left out keeps its bound."""
    for question, candidate, least_s in candidates_with_steps(families, seed):
        whole = Effort()
        finished(question, candidate, whole)
        spent = Effort().left - whole.left

        def suffices(effort, question=question, candidate=candidate):
            return finished(question, candidate, Effort(effort)) is not None

        least = bisect_left(range(spent), True, key=suffices)
        for effort in {least, *range(1000, min(spent, 40_000), 4000), spent // 2, spent - 1}:
            found = finished(question, candidate, Effort(effort))
            if found is not None:
                assert found.bound_s <= least_s * (1 + ROUNDING)


@pytest.mark.parametrize("families", [CHAINS, LOOPED], ids=["chains", "loops"])
def test_below_the_best_plan_there_is_none(families):
    for question, candidate, least_s in candidates_with_steps(families, seed=3):
        found = finished(question, candidate, Effort(), limit_s=least_s * (1 - ROUNDING))
        assert found.found is None
        assert found.bound_s >= least_s * (1 - 2 * ROUNDING)


@pytest.mark.parametrize("families", [CHAINS, LOOPED], ids=["chains", "loops"])
@pytest.mark.parametrize("seed", [0, 5, 6, 7, 10, 13, 23, 24])
def test_what_is_simulated_is_the_step_of_the_plan(families, seed):
    """So each plan that is priced is faster than those before, also where layers are tied."""
    for question, candidate, least_s in candidates_with_steps(families, seed):
        shelf = Shelf.of(question)
        priced = []

        def price(split, question=question, candidate=candidate, shelf=shelf, priced=priced):
            profile = shelf.profile(candidate.point)
            found = price_cuts(question, candidate, profile, split)
            priced.append(found.step.step_time_s)
            return found

        search = finish_loop if families == LOOPED else finish_chain
        search(asked_of(shelf, candidate), price, Effort(), limit_s=1e3)
        assert all(later < before for before, later in pairwise(priced))
        assert priced[-1] == pytest.approx(least_s, rel=ROUNDING)
