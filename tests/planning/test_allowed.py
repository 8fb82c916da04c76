"""What a search may use: spans and their faults."""

from __future__ import annotations

import pytest

from trainwright.errors import InvalidInput
from trainwright.planning.question.question import EVERYTHING, Allowed, Span


def test_a_span_holds_both_of_its_ends():
    span = Span(least=4, most=8)
    assert [value for value in range(3, 10) if value in span] == [4, 5, 6, 7, 8]


def test_a_span_without_an_upper_end_holds_any_larger_number():
    assert 10**9 in Span(least=2)
    assert 1 not in Span(least=2)


def test_everything_is_allowed_by_default():
    assert EVERYTHING.framework is None
    assert EVERYTHING.schedules is None
    assert 10**6 in EVERYTHING.tensor


def test_every_fault_is_told_at_once():
    with pytest.raises(InvalidInput) as caught:
        Allowed(tensor=Span(least=8, most=4), data=Span(least=0), zero_stages=(4,), schedules=())
    paths = [fault.path for fault in caught.value.faults]
    assert paths == ["tensor", "data", "zero_stages", "schedules"]
