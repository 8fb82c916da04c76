"""Counts inside 90% intervals: what a binomial test accepts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.lab.validate import acceptance_region, coverage_check


@pytest.mark.parametrize(
    ("n", "region"),
    # Of few runs all may lie inside; from 36 on, 0.9**n is below 2.5%.
    [(1, (0, 1)), (4, (2, 4)), (16, (12, 16)), (35, (28, 35)), (36, (29, 35)), (100, (84, 95))],
)
def test_regions_are_those_of_the_binomial_distribution(n: int, region: tuple[int, int]) -> None:
    assert acceptance_region(n) == region


@given(n=st.integers(1, 400))
def test_nine_of_ten_are_accepted_and_none_never(n: int) -> None:
    least, most = acceptance_region(n)
    assert least <= round(0.9 * n) <= most
    assert least > 0 or n == 1
    assert most < n or n <= 35


def test_honest_intervals_are_accepted_nineteen_times_in_twenty() -> None:
    draws = random.Random(0)
    accepted = 0
    for _ in range(1000):
        check = coverage_check([draws.random() < 0.9 for _ in range(60)])
        assert check is not None
        accepted += check.accepted
    assert 930 <= accepted <= 990


def test_intervals_that_are_too_narrow_or_too_wide_are_not() -> None:
    narrow = coverage_check([True] * 30 + [False] * 20)
    wide = coverage_check([True] * 80)
    assert narrow is not None and not narrow.accepted
    assert wide is not None and not wide.accepted
    assert coverage_check([]) is None
