"""Laws of every family: legal orders for any ranks and microbatches it accepts, the same each time.

Times are compared in the tests of each family and against reference data.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.errors import InvalidInput
from trainwright.scheduling.families import FAMILIES, FamilyRequest, family_named, generate
from trainwright.scheduling.validate import validate


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
        expected = {"interleaved": num_microbatches % 4 > 0, "dualpipe-v": num_microbatches < 8}
        assert bool(faults) == expected.get(name, False)
        if not faults:
            validate(generate(name, request))
