"""Laws of every family: legal orders for any ranks and microbatches it accepts, the same each time.

Times are compared in the tests of each family and against reference data.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
