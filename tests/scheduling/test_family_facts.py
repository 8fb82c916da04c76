"""What families say of their orders, against the orders: planners take their word for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainwright.planning.question.layouts import HELD_AT_ONCE
from trainwright.plans.schedule import ActionKind, Placing, ScheduleCosts
from trainwright.plans.status import Objective
from trainwright.scheduling.families import FAMILIES, FamilyRequest
from trainwright.scheduling.simulate import simulate, validate

RANKS = 4
ROUNDS = 6

named = {name: FAMILIES[name] for name in FAMILIES}


def request(name, *, costs=None, num_microbatches=ROUNDS * RANKS, num_ranks=RANKS):
    return FamilyRequest(num_ranks=num_ranks, num_microbatches=num_microbatches, costs=costs)


def rows_of(schedule, rank):
    return schedule.actions[schedule.rows_of(rank)]


def uneven_costs(family):
    placement = family.place(request(family.name))
    rng = np.random.default_rng(7)
    times = {
        name: rng.uniform(0.5, 2.0, placement.num_stages)
        for name in ("forward_s", "input_grad_s", "weight_grad_s")
    }
    if family.head_barriers:  # of uneven ones the order without costs may be as good
        return ScheduleCosts.of(placement, head_s=1.0)
    return ScheduleCosts.of(placement, transfer_s=0.3, **times)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_only_families_that_read_costs_order_by_them(family):
    alike, uneven = (
        family.generate(request(family.name, costs=costs)) for costs in (None, uneven_costs(family))
    )
    same = np.array_equal(alike.actions, uneven.actions)
    assert same is not family.reads_costs


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_number_of_chunks_is_that_of_the_placement(family):
    asked = FamilyRequest(num_ranks=RANKS, num_microbatches=ROUNDS * RANKS, virtual_stages=5)
    chunks = family.place(asked).num_stages // RANKS
    assert chunks == (family.num_chunks or 5)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_group_changes_the_order_of_families_that_read_one(family):
    without, grouped = (
        family.generate(
            FamilyRequest(num_ranks=RANKS, num_microbatches=ROUNDS * RANKS, group=group)
        )
        for group in (None, RANKS - 1 if family.splits_backward else RANKS + 1)
    )
    same = np.array_equal(without.actions, grouped.actions)
    assert same is not family.reads_group


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_whole_groups_are_demanded_by_families_that_have_them(family):
    asked = request(family.name, num_microbatches=ROUNDS * RANKS + 2)  # even, for two ways
    assert bool(list(family.rules(asked))) is family.whole_groups


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_families_that_are_alike_in_whole_groups_have_one_order_there(num_ranks):
    for family in FAMILIES.values():
        if family.like is not None:
            for rounds in (1, 2, 5):
                asked = request(
                    family.name, num_ranks=num_ranks, num_microbatches=rounds * num_ranks
                )
                own, other = (each.generate(asked) for each in (family, FAMILIES[family.like]))
                assert np.array_equal(own.actions, other.actions)


KNOWN = [family for family in FAMILIES.values() if family.warm_up is not None]


@pytest.mark.parametrize("family", KNOWN, ids=lambda family: family.name)
@pytest.mark.parametrize("num_ranks", [2, 3, 5, 8])
def test_as_many_microbatches_are_in_flight_before_the_first_backward_as_said(family, num_ranks):
    asked = request(family.name, num_ranks=num_ranks, num_microbatches=4 * num_ranks)
    schedule = family.generate(asked)
    for rank in range(num_ranks):
        rows = rows_of(schedule, rank)
        first = int(np.argmax(np.isin(rows[:, 0], (ActionKind.I, ActionKind.B))))
        left = num_ranks - rank
        least = int(family.warm_up(np.array([left]))[0])
        forwards = rows[:first][rows[:first, 0] == ActionKind.F]
        if family.placing is Placing.ONE:
            assert len(forwards) == least
        else:
            assert max(np.bincount(forwards[:, 1])) >= least


PLANNED = [family for family in FAMILIES.values() if family.planned]
AT_ONCE = [family for family in PLANNED if family.name in HELD_AT_ONCE]


def in_flight(schedule, rank):
    """Of each stage of a rank, [actions, stages], after each of its actions."""
    rows = rows_of(schedule, rank)
    mine = rows[:, 1, np.newaxis] == np.array(schedule.placement.stages_of_rank[rank])
    forwards, handed = (
        rows[:, :1] == ActionKind.F,
        np.isin(rows[:, :1], (ActionKind.I, ActionKind.B)),
    )
    return np.cumsum(mine & forwards, axis=0) - np.cumsum(mine & handed, axis=0)


@pytest.mark.parametrize("family", AT_ONCE, ids=lambda family: family.name)
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("num_ranks", [1, 3, 6])
def test_planned_families_hold_at_one_instant_what_they_say(family, num_ranks, rounds):
    asked = request(family.name, num_ranks=num_ranks, num_microbatches=rounds * num_ranks)
    rng, stages = np.random.default_rng(num_ranks + rounds), family.place(asked).num_stages
    times = {name: rng.uniform(0.3, 2, stages) for name in ("forward_s", "input_grad_s")}
    costs = ScheduleCosts.of(family.place(asked), weight_grad_s=0.7, transfer_s=0.02, **times)
    objective = Objective.MAKESPAN
    costs = None if family.is_timeless else costs
    schedule = family.generate(replace(asked, costs=costs, objective=objective))
    each = [in_flight(schedule, rank) for rank in range(num_ranks)]
    least = HELD_AT_ONCE[family.name](np.arange(1, num_ranks + 1))
    of_all = np.sort([own.min(axis=1).max() for own in each])
    assert (of_all >= np.sort(np.minimum(least, asked.num_microbatches))).all()
    if family.least_in_flight is not None:
        for near, far in zip(
            *family.least_in_flight(num_ranks, asked.num_microbatches), strict=True
        ):
            for rank, own in enumerate(each):
                assert (own >= (near[rank], far[rank])).all(axis=1).any()


def test_an_order_that_is_short_as_a_whole_may_not_be_so_on_its_busiest_rank():
    asked = request("zb-v", num_ranks=8, num_microbatches=16)
    place = FAMILIES["zb-v"].place(asked)
    costs = ScheduleCosts.of(place, forward_s=1.0, input_grad_s=1.2, weight_grad_s=0.8)
    found = {}
    for objective in Objective:
        schedule = FAMILIES["zb-v"].generate(replace(asked, costs=costs, objective=objective))
        found[objective] = simulate(schedule, costs)
    whole, own = found[Objective.MAKESPAN], found[Objective.SPAN]
    assert whole.makespan_s < own.makespan_s
    assert whole.span_s > own.span_s


LAGGING = [family for family in FAMILIES.values() if family.weight_grad_lag is not None]


@pytest.mark.parametrize("family", LAGGING, ids=lambda family: family.name)
@pytest.mark.parametrize("num_microbatches", [3, 24])
def test_as_many_weight_gradients_are_left_after_the_last_input_gradient_as_said(
    family, num_microbatches
):
    schedule = family.generate(request(family.name, num_microbatches=num_microbatches))
    for rank in range(RANKS):
        kinds = rows_of(schedule, rank)[:, 0].tolist()
        last = len(kinds) - 1 - kinds[::-1].index(ActionKind.I)
        assert kinds[last + 1 :].count(ActionKind.W) == min(
            num_microbatches, 1 + family.weight_grad_lag * rank
        )


def test_families_that_are_planned_tell_planners_what_they_need():
    planned = [family for family in FAMILIES.values() if family.planned]
    assert {family.placing for family in planned} == {Placing.ONE, Placing.LOOP, Placing.V}
    for family in planned:
        in_v = family.placing is Placing.V
        assert (family.most_activations is not None) is in_v
        assert (family.published_in_flight is not None) is in_v
        # The recurrence over the ranks of a chain is for orders that are known before their times.
        assert in_v or family.is_timeless


@pytest.mark.parametrize("name", ["vocab-1", "vocab-2"])
@pytest.mark.parametrize("num_ranks", [2, 3, 8])
@pytest.mark.parametrize("num_microbatches", [1, 2, 24])
def test_with_one_barrier_one_pass_of_a_cut_head_may_follow_the_last_backward(
    name, num_ranks, num_microbatches
):
    family = FAMILIES[name]
    schedule = family.generate(
        request(name, num_ranks=num_ranks, num_microbatches=num_microbatches)
    )
    validate(schedule)
    for rank in range(num_ranks):
        kinds = rows_of(schedule, rank)[:, 0].tolist()
        last = len(kinds) - 1 - kinds[::-1].index(ActionKind.B)
        assert len(kinds) - 1 - last <= 2 - family.head_barriers
    held = schedule.peak_activations
    assert max(held) <= min(num_microbatches, num_ranks + family.head_barriers)
