"""The value of a game from both sides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.planning.splits.vee import solved


@cases(50)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 12), columns=st.integers(1, 12))
def test_no_row_can_do_better_than_the_columns_expect(seed, rows, columns):
    values = np.random.default_rng(seed).uniform(1.0, 9.0, (rows, columns))
    mix = solved(values)
    assert mix.weights.min() >= 0
    assert mix.weights.sum() == pytest.approx(1.0)
    assert mix.value == pytest.approx(float((values @ mix.weights).min()))
    # Rows play the same game for what columns leave them of ten.
    other = solved((10.0 - values).T)
    assert mix.value == pytest.approx(10.0 - other.value, rel=1e-9)


def test_a_column_that_is_most_in_every_row_is_all_of_the_mix():
    mix = solved(np.array([[1.0, 3.0, 2.0], [2.0, 4.0, 1.0]]))
    assert mix.weights.tolist() == [0.0, 1.0, 0.0]
    assert mix.value == 3.0


def test_odds_and_evens_are_mixed_half_and_half():
    mix = solved(np.array([[2.0, 1.0], [1.0, 2.0]]))
    assert mix.weights == pytest.approx([0.5, 0.5])
    assert mix.value == pytest.approx(1.5)
