"""The ceiling that scatter sets on rankings, held against drawing the scatter many times."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.documents.validation import RegretRecord
from trainwright.lab.validate import Pair, kendall_tau, log_scatter, pooled_regret, tau_ceiling


def truths(*times_s: float, repeats: int = 1) -> list[Pair]:
    return [Pair(predicted=t, measured=t, repeats=repeats) for t in times_s]


def test_scatter_is_the_pooled_deviation_of_logarithms():
    assert log_scatter([[1.0, math.e**2]]) == pytest.approx(math.sqrt(2))
    assert log_scatter([[1.0, math.e**2], [5.0, 5.0], [7.0]]) == pytest.approx(1.0)
    assert log_scatter([[3.0], [4.0]]) is None
    assert log_scatter([]) is None


def test_without_repeats_or_pairs_there_is_no_ceiling():
    assert tau_ceiling([truths(1, 2, 3)], None) is None
    assert tau_ceiling([truths(1, 1.001, 1.002)], 0.1) is None


def test_without_scatter_the_order_can_be_known():
    assert tau_ceiling([truths(1, 2, 3)], 0.0) == 1.0


@given(low=st.floats(0.001, 0.5), factor=st.floats(1, 5), repeats=st.integers(1, 9))
def test_more_scatter_lowers_the_ceiling_and_repeats_raise_it(low, factor, repeats):
    group = [truths(1.0, 1.1, 1.3)]
    ceiling = tau_ceiling(group, low)
    assert 0 <= tau_ceiling(group, low * factor) <= ceiling <= 1
    assert ceiling <= tau_ceiling([truths(1.0, 1.1, 1.3, repeats=repeats)], low)


def test_the_ceiling_is_what_true_times_reach_on_average():
    times_s, scatter, draws = (1.0, 1.08, 1.2, 1.25), 0.1, random.Random(1)
    reached = []
    for _ in range(4000):
        group = [(t, t * math.exp(draws.gauss(0, scatter))) for t in times_s]
        signs = [
            math.copysign(1, (a[0] - b[0]) * (a[1] - b[1]))
            for i, a in enumerate(group)
            for b in group[:i]
        ]
        reached.append(sum(signs) / len(signs))
    mean = sum(reached) / len(reached)
    assert tau_ceiling([truths(*times_s)], scatter) == pytest.approx(mean, abs=0.02)
    assert kendall_tau([truths(*times_s)]) == 1.0


def test_regret_of_several_files_counts_every_job_once():
    found = pooled_regret(
        [(3, RegretRecord(mean=0.01, max=0.03)), (1, RegretRecord(mean=0.05, max=0.05)), (0, None)]
    )
    assert found == RegretRecord(mean=0.02, max=0.05)
    assert pooled_regret([(0, None)]) is None
