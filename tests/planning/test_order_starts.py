"""Which plans' orders are searched: the best first, and every placement that is allowed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from exhaustive import LLAMA, asked, holds, least_steps_s, on_four_ranks
from random_cases import marked
from random_spaces import CHAINS, random_question
from trainwright.execution import Budget
from trainwright.planning.question.layouts import CHAIN, IN_V, LOOPED
from trainwright.planning.question.question import Span
from trainwright.planning.search.framework import plan_runnable
from trainwright.planning.search.frontier import least_of_any_order_s
from trainwright.planning.search.orders import order_starts


def starts_of(schedules, **options):
    question = on_four_ranks(8, 60, schedules)
    priced = plan_runnable(question, Budget(), **options).priced
    return question, priced, list(order_starts(question, priced, Budget()))


@pytest.mark.slow
def test_the_best_plan_comes_first_and_every_placement_once_at_least():
    question, priced, starts = starts_of(None, num_alternatives=0)
    assert starts[0] == priced[0]
    families = [each.candidate.schedule for each in starts]
    for placement in (CHAIN, LOOPED, IN_V):
        assert set(families) & set(placement)
    best = priced[0].candidate
    for each in starts:
        at = each.candidate
        assert (at.tensor, at.pipeline, at.data) == (best.tensor, best.pipeline, best.data)
        assert holds(question, each.step.peak_memory_bytes)


@pytest.mark.parametrize("schedules", [("1f1b",), ("zb-v",), ("interleaved", "zb-h1")])
def test_only_families_that_are_allowed_are_starts(schedules):
    _, _, starts = starts_of(schedules)
    assert {each.candidate.schedule for each in starts} <= set(schedules)


def test_plans_far_from_the_best_are_one_of_each_placement():
    _, priced, starts = starts_of(("1f1b", "zb-v"))
    near_s = 1.05 * priced[0].step.step_time_s
    near = {each.candidate.schedule for each in starts if each.step.step_time_s <= near_s}
    far = [each.candidate.schedule for each in starts if each.step.step_time_s > near_s]
    assert len(set(far)) == len(far)
    assert not near & set(far)
    assert near | set(far) == {"1f1b", "zb-v"}


def test_without_a_pipeline_there_is_nothing_to_begin_with():
    question = asked(
        replace(LLAMA, num_layers=2), memory_gib=80, batch=4, sequence=256, pipeline=Span.only(1)
    )
    priced = plan_runnable(question, Budget()).priced
    assert list(order_starts(question, priced, Budget())) == []


@pytest.mark.parametrize("seed", marked(range(12), slow=range(4, 12)))
def test_no_order_of_any_family_does_its_work_sooner(seed):
    """With one stage per rank, whichever family is asked about: every plan is priced."""
    question = random_question(Random(seed), CHAINS, most_plans=2000)

    def under(*families):
        return replace(question, allowed=replace(question.allowed, schedules=families))

    least_s = min(least_steps_s(under(*CHAINS)).values(), default=float("inf"))
    for family in ("1f1b", "zb-h1"):
        assert 0 < least_of_any_order_s(under(family), Budget()) <= least_s * (1 + 1e-9)
