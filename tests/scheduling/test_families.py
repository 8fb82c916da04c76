"""Laws of every family: legal orders for any ranks and microbatches it accepts, the same each time.

Times are compared in the tests of each family and against reference data.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from strategies_schedule import costs as costs_of
from trainwright.errors import InvalidInput
from trainwright.plans.schedule import ScheduleCosts, ScheduleMemory
from trainwright.scheduling.families import FAMILIES, FamilyRequest, family_named, generate
from trainwright.scheduling.simulate import validate


@st.composite
def requests(draw):
    return FamilyRequest(
        num_ranks=draw(st.integers(1, 7)),
        num_microbatches=draw(st.integers(1, 18)),
        virtual_stages=draw(st.integers(1, 3)),
    )


@pytest.mark.parametrize("name", FAMILIES)
@cases(20)
@given(request=requests())
def test_a_family_gives_legal_orders_or_names_its_rule(name, request):
    family = family_named(name)
    if list(family.rules(request)):
        with pytest.raises(InvalidInput):
            family.generate(request)
        return
    schedule = family.generate(request)
    validate(schedule)
    assert schedule.placement == family.place(request)
    assert schedule == family.generate(request)


@pytest.mark.parametrize("name", FAMILIES)
@cases(20)
@given(request=requests(), data=st.data())
def test_a_family_gives_legal_orders_where_stages_cost_nothing(name, request, data):
    """Without durations many actions start at once, and only their needs keep them in order."""
    family = family_named(name)
    if list(family.rules(request)):
        return
    placement = family.place(request)
    costs = replace(data.draw(costs_of(placement)), memory=ScheduleMemory.of(placement))
    validate(family.generate(replace(request, costs=costs)))


def test_an_unknown_family_is_refused_with_the_names_there_are():
    with pytest.raises(InvalidInput, match=r'must be one of gpipe, 1f1b, .*, got "1b1f"'):
        generate("1b1f", FamilyRequest(num_ranks=2, num_microbatches=2))


def test_zero_bubble_in_v_has_two_names():
    assert family_named("v-zb") is family_named("zb-v")


@pytest.mark.parametrize(
    ("name", "options", "rule"),
    [
        ("interleaved", {"num_microbatches": 6}, "must be a multiple of 4 ranks .* use 4 or 8"),
        ("dualpipe-v", {"num_microbatches": 7}, "must be >= 8, twice the ranks"),
        ("depth-first", {"group": 3}, "group: must be >= 4 ranks, got 3"),
        ("gis", {"group": 5}, "group: must be from 2 to 4 for 4 ranks, got 5"),
        ("1f1b", {"num_microbatches": 0}, "num_microbatches: must be >= 1, got 0"),
    ],
)
def test_a_broken_rule_is_named_with_what_works(name, options, rule):
    with pytest.raises(InvalidInput, match=rule):
        generate(name, FamilyRequest(**{"num_ranks": 4, "num_microbatches": 8, **options}))


@pytest.mark.parametrize("name", FAMILIES)
def test_any_number_of_microbatches_works_or_the_rule_says_which(name):
    for num_microbatches in range(1, 10):
        request = FamilyRequest(num_ranks=4, num_microbatches=num_microbatches)
        faults = list(FAMILIES[name].rules(request))
        odd = num_microbatches % 2 > 0
        expected = {
            "interleaved": num_microbatches % 4 > 0,
            "dualpipe-v": num_microbatches < 8,
            "chimera": odd,
            "dualpipe": odd or num_microbatches < 8,
        }
        assert bool(faults) == expected.get(name, False)
        if not faults:
            validate(generate(name, request))


def test_rounding_does_not_put_a_weight_gradient_before_its_input_gradient():
    """The input gradient of stage 1 takes no time, and (end + 1.3) - 1.3 lies before its end."""
    placement = FAMILIES["wave"].place(
        FamilyRequest(num_ranks=2, num_microbatches=2, virtual_stages=2)
    )
    costs = ScheduleCosts.of(
        placement,
        forward_s=[0.7, 1.1, 1.0, 0.9],
        input_grad_s=[1.0, 0.0, 1.7, 1.0],
        weight_grad_s=[1.0, 0.0, 1.2, 2.9],
        transfer_s=[0.0, 0.0, 1.3],
        backward_transfer_s=[1.3, 0.0, 0.6],
    )
    for num_microbatches in range(1, 9):
        request = FamilyRequest(
            num_ranks=2, num_microbatches=num_microbatches, virtual_stages=2, costs=costs
        )
        validate(generate("wave", request))
