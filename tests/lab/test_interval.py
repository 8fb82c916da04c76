"""Ranges from residuals: nine of ten rows, and enough of groups that were left out."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from trainwright.formats.calibration_toml import built_in_calibrations
from trainwright.lab.fitting import COVERED, interval

residuals = st.lists(st.floats(min_value=-0.5, max_value=0.5), min_size=20, max_size=60)


@given(residuals)
def test_nine_of_ten_rows_lie_inside(unseen: list[float]) -> None:
    low, high = interval(unseen)
    inside = sum(low * (1 - 1e-9) <= math.exp(-r) <= high * (1 + 1e-9) for r in unseen)
    assert inside >= COVERED * len(unseen)
    assert low < 1 < high


@given(residuals, st.integers(min_value=1, max_value=12))
def test_groups_never_hold_fewer_rows(unseen: list[float], num_groups: int) -> None:
    groups = [index % num_groups for index in range(len(unseen))]
    ends = [interval(unseen), interval(unseen, groups)]
    counts = [sum(low <= math.exp(-r) <= high for r in unseen) for low, high in ends]
    assert counts[1] >= counts[0] - 1  # of equally full ranges the ends may differ by rounding


def test_a_layout_that_others_do_not_foretell_widens_the_range() -> None:
    tight = [0.001 * i for i in range(24)]
    scattered = [0.04 * (i - 8) for i in range(16)]
    unseen = [*tight, *scattered]
    alone = interval(unseen)
    apart = interval(unseen, ["tight"] * 24 + ["scattered"] * 16)
    assert apart[1] / apart[0] > alone[1] / alone[0]
    assert all(apart[0] <= math.exp(-r) * (1 + 1e-9) for r in unseen)


def test_fewer_than_five_runs_promise_no_narrow_range() -> None:
    for unseen in ([0.0], [0.01, -0.01], [0.0, 0.02, -0.01, 0.01]):
        low, high = interval(unseen)
        assert low <= math.exp(-0.2) and high >= math.exp(0.2)
    few = [line for line in built_in_calibrations() if line.rows < 5]
    assert few and all(line.low_ratio < 0.82 and line.high_ratio > 1.22 for line in few)
