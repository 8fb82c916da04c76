"""Floors of the tables: against brute force, and as the report on floors states them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from accuracy_bounds import perfect_regrets, repeats_width, single_figure_errors, smooth_floor
from accuracy_floors import PARTS
from accuracy_runs import Tables
from hypothesis import given
from hypothesis import strategies as st

from reference import needs_reference, reference

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "benchmarks" / "reports" / "accuracy_floors_2026-11-23.md"


@given(st.lists(st.floats(1, 100), min_size=1, max_size=5), st.floats(0.5, 120))
def test_no_figure_predicts_several_better_than_the_best_one(values, other):
    assert sum(single_figure_errors(values)) <= sum(abs(other / x - 1) for x in values) + 1e-9


def test_one_figure_for_two_loses_what_the_larger_exceeds_it_by():
    assert sorted(single_figure_errors([26.6, 34.7])) == pytest.approx([0, 1 - 26.6 / 34.7])


def test_times_of_that_form_have_no_floor():
    sizes = [1, 2, 4, 8, 16]
    assert smooth_floor(sizes, [3 + 0.5 * x + 2 / x for x in sizes]) == pytest.approx(0, abs=1e-9)


def test_no_trial_of_three_constants_is_below_the_floor():
    draws = random.Random(3)
    sizes, times = [2, 3, 4, 6, 12], [16.1, 17.6, 17.4, 16.1, 20.6]
    floor, best = smooth_floor(sizes, times), 1.0
    for _ in range(30_000):
        a, b, c = draws.uniform(0, 20), draws.uniform(0, 2), draws.uniform(0, 20)
        missed = [abs((a + b * x + c / x) / y - 1) for x, y in zip(sizes, times, strict=True)]
        best = min(best, sum(missed) / len(missed))
    assert floor <= best <= 1.3 * floor


def test_repeats_of_normal_scatter_fill_the_range_of_nine_in_ten():
    draws = random.Random(5)
    repeats = [[np.exp(draws.gauss(0, 0.1)) for _ in range(3)] for _ in range(3000)]
    assert repeats_width(repeats) == pytest.approx(2 * np.sinh(0.16449), rel=0.03)
    assert repeats_width([[1.0], [2.0]]) == 0


def test_who_knows_true_times_loses_by_scatter_alone():
    plans = [(1.0, [0.0]), (2.0, [0.0])]
    assert perfect_regrets([plans], draws=10, seed=0).max() == 0
    # The first takes 1 or 1.5, the second always 1.2: half of the draws lose a quarter.
    plans = [(1.0, [0.0, np.log(1.5)]), (1.2, [0.0])]
    regrets = perfect_regrets([plans, [(1.0, [0.0])]], draws=4000, seed=0)
    assert set(np.round(regrets, 6)) == {0.0, 0.125}
    assert regrets.mean() == pytest.approx(0.0625, abs=0.005)


@needs_reference
@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "name", "stated", "sentence"),
    [
        ("GH200, memory", "floor of the pairs, %", 2.0, "mean error of\n2.0 %"),
        ("GH200, memory", "of it the largest pair, %", 1.5, "1.5 points of the mean"),
        ("GH200, memory", "layouts left out, mean, %", 3.7, "and 3.7 with layouts left out"),
        ("vTrain, regret", "regret of the middle of the range, mean, %", 1.7, "regret of\n1.7 %"),
        ("vTrain, regret", "perfect predictor, all errors, mean regret, %", 11.1, "of 11 %"),
        ("vTrain, regret", "perfect predictor, all errors, at most 3 %, % of draws", 22.7, "23 of"),
        ("vTrain, regret", "picked layout, least error of a + bx + c/x, %", 4.0, "by 4.0 %"),
        ("Memory of Megatron tests", "static, folds of layouts above 1 %", 3, "three\nof five"),
        ("Widths of ranges", "nemo_releases, filled by repeats alone, %", 36.7, "37 % in NeMo's"),
        ("Widths of ranges", "megatron_ci, filled by repeats alone, %", 63.5, "63 % in Megatron's"),
        ("Regret over all tables", "regret, neither fixed, mean, %", 4.0, "with 4.0 %"),
    ],
)
def test_the_report_states_what_the_tables_allow(part, name, stated, sentence, figures):
    assert figures(part)[name] == pytest.approx(stated, abs=0.051)
    assert sentence in REPORT.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def figures():
    tables, found = Tables(reference() / "measured"), {}

    def of(part: str):
        if part not in found:
            found[part] = PARTS[part](tables)
        return found[part]

    return of
