from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from trainwright.execution.budget import Budget
from trainwright.plans.schedule import Placement, ScheduleCosts
from trainwright.plans.status import Objective
from trainwright.scheduling.candidates import SearchQuestion
from trainwright.scheduling.families import FAMILIES, FamilyRequest
from trainwright.scheduling.search import ParetoPoint, named_front, searched_front, some_limits
from trainwright.scheduling.simulate import simulate, validate


def question_of(placement: Placement, **options: object) -> SearchQuestion:
    times = 1.0 + 0.1 * np.arange(placement.num_stages)
    return SearchQuestion(
        placement=placement,
        num_ranks=placement.num_ranks,
        num_microbatches=8,
        costs=ScheduleCosts.of(placement, forward_s=times, weight_grad_s=times / 2),
        **options,
    )


def assert_is_front(points: tuple[ParetoPoint, ...]) -> None:
    assert points
    for less, more in pairwise(points):
        assert less.peak_activations < more.peak_activations
        assert less.value_s > more.value_s
    for point in points:
        validate(point.schedule)
        assert point.value_s >= point.bound.value_s * (1 - 1e-9)
        assert 0 <= point.gap < 1
        assert max(point.schedule.peak_activations) == point.peak_activations


@pytest.mark.parametrize("objective", Objective)
def test_no_family_dominates_a_point_of_the_named_front(objective):
    question = question_of(Placement.loop(4), objective=objective)
    front = named_front(question)
    assert_is_front(front)
    request = FamilyRequest(num_ranks=4, num_microbatches=8, virtual_stages=1)
    for family in FAMILIES.values():
        if family.place(request) != question.placement or list(family.rules(request)):
            continue
        schedule = family.generate(request)
        value_s = objective.of(simulate(schedule, question.costs))
        peak = max(schedule.peak_activations)
        assert any(p.peak_activations <= peak and p.value_s <= value_s for p in front)


@pytest.mark.parametrize("placement", [Placement.v(3), Placement.loop(3)])
def test_a_searched_front_is_nowhere_behind_the_named_one(placement):
    question = question_of(placement, evaluations=2000)
    searched = searched_front(question, budget=Budget())
    assert_is_front(searched)
    if not placement.is_v:
        for named in named_front(question):
            assert any(
                p.peak_activations <= named.peak_activations and p.value_s <= named.value_s
                for p in searched
            )


@pytest.mark.slow
@pytest.mark.parametrize("make", [named_front, partial(searched_front, budget=Budget())])
def test_a_front_begins_where_one_microbatch_alone_fits(make):
    """V-Min needs 2 floor((p + 4) / 3) activations; with less memory orders are only slower."""
    points = make(question_of(Placement.v(6), evaluations=200))
    assert_is_front(points)
    assert points[0].peak_activations == 2
    assert sum(point.peak_activations < 6 for point in points) > 1


@pytest.mark.slow
@pytest.mark.parametrize("make", [named_front, partial(searched_front, budget=Budget())])
def test_a_front_has_what_families_reach_at_every_limit(make):
    question = question_of(Placement.v(8), evaluations=200)
    points = make(question)
    for limit in range(2, 17):
        request = FamilyRequest(
            num_ranks=8,
            num_microbatches=question.num_microbatches,
            costs=question.costs,
            max_activations=limit,
        )
        value_s = simulate(FAMILIES["adaptive-v"].generate(request), question.costs).makespan_s
        assert any(p.peak_activations <= limit and p.value_s <= value_s for p in points), limit


def test_limits_run_from_one_microbatch_to_twice_the_ranks():
    assert some_limits(question_of(Placement.v(16)), count=8) == (2, 6, 11, 15, 19, 23, 28, 32)
    assert some_limits(question_of(Placement.loop(1)), count=8) == (1,)
