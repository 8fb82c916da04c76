"""Scores: their definitions on small examples, and what must hold for any data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.lab.validate import Pair, errors, false_fits, kendall_tau, regret

positive = st.floats(min_value=0.1, max_value=1e3)
pairs = st.lists(st.builds(lambda p, m: Pair(predicted=p, measured=m), positive, positive))


def made(*figures: tuple[float, float]) -> list[Pair]:
    return [Pair(predicted=p, measured=m) for p, m in figures]


def test_errors_are_relative_to_the_measurement() -> None:
    record = errors(made((1.1, 1.0), (0.8, 1.0), (2.0, 2.0)))
    assert record is not None
    assert record.mape == pytest.approx(0.1)
    assert record.median_ape == pytest.approx(0.1)
    assert record.max_ape == pytest.approx(0.2)
    assert record.bias == pytest.approx(-1 / 30)


@given(pairs)
def test_mean_and_median_lie_below_the_largest_error(found: list[Pair]) -> None:
    record = errors(found)
    if record is None:
        assert not found
    else:
        assert record.median_ape <= record.p90_ape <= record.max_ape
        assert abs(record.bias) <= record.mape + 1e-12 <= record.max_ape + 1e-9


def test_tau_leaves_out_pairs_within_the_noise() -> None:
    right = made((1, 1), (2, 2), (3, 3))
    assert kendall_tau([right]) == 1.0
    assert kendall_tau([made((3, 1), (2, 2), (1, 3))]) == -1.0
    assert kendall_tau([made((2, 1.0), (1, 1.01), (3, 2.0))]) == 1.0
    assert kendall_tau([made((2, 1.0), (1, 1.01))]) is None


@given(st.lists(pairs.filter(bool), min_size=1))
def test_regret_is_never_negative_and_zero_for_perfect_predictions(
    groups: list[list[Pair]],
) -> None:
    found = regret(groups)
    assert found is not None and 0 <= found.mean <= found.max
    perfect = [[Pair(predicted=p.measured, measured=p.measured) for p in g] for g in groups]
    best = regret(perfect)
    assert best is not None and best.max == 0


def test_a_false_fit_is_a_peak_beyond_the_margin() -> None:
    assert false_fits(made((100, 104), (100, 106), (100, 90), (100, 100))) == 0.25
    assert false_fits([]) is None
