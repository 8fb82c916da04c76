"""Goodput, totals and Pareto fronts: laws, a published run, and brute force."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import InvalidInput
from trainwright.planning.reasons.objectives import (
    Objective,
    Training,
    best_interval_s,
    goodput,
    outcome,
    pareto,
    score,
)

times = st.floats(1.0, 1e6)


def useful(interval_s: float, *, write_s: float, mtbf_s: float, restart_s: float) -> float:
    """Daly's share of useful work at any interval."""
    lost = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + write_s) / mtbf_s)
    return interval_s / lost


@given(write_s=st.floats(0.1, 1e3), ratio=st.floats(10, 1e5))
def test_no_other_interval_gives_much_more_goodput(write_s, ratio):
    mtbf_s = write_s * ratio
    best = best_interval_s(write_s, mtbf_s)
    ours = useful(best, write_s=write_s, mtbf_s=mtbf_s, restart_s=0.0)
    others = (
        useful(best * 1.1**k, write_s=write_s, mtbf_s=mtbf_s, restart_s=0.0) for k in range(-30, 31)
    )
    assert ours >= max(others) * (1 - 5e-3)


def test_the_first_order_of_the_interval_is_youngs():
    assert best_interval_s(1.0, 1e8) == pytest.approx(math.sqrt(2e8), rel=1e-3)
    assert best_interval_s(10.0, 4.0) == 4.0


@given(devices=st.integers(1, 10**6), more=st.integers(2, 10), size=st.floats(1e6, 1e13))
def test_goodput_is_a_share_and_falls_with_devices(devices, more, size):
    training = Training(tokens=1e12)
    few, many = (
        goodput(training, devices=n, checkpoint_bytes=size).share for n in (devices, devices * more)
    )
    assert 0 <= many <= few * (1 + 1e-6)
    assert few <= 1


def test_a_run_on_16384_devices_spends_more_than_nine_tenths_on_useful_work():
    """Published: above 90% effective training time (The Llama 3 Herd of Models, 3.3.4)."""
    found = goodput(Training(), devices=16_384, checkpoint_bytes=405e9 * 14)
    assert Training().device_mtbf_s / 16_384 / 3600 == pytest.approx(54 * 24 / 419)
    assert 0.90 < found.share < 0.96


@given(price=times, watts=times, tokens=st.floats(1e9, 1e14), step_s=times)
def test_cost_and_energy_are_those_of_all_devices_for_the_whole_time(price, watts, tokens, step_s):
    training = Training(tokens=tokens, price_per_hour=price, power_watts=watts)
    found = outcome(training, devices=8, step_time_s=step_s, tokens_per_s=1e5, checkpoint_bytes=1e9)
    assert found.train_s * found.goodput.share == pytest.approx(tokens / 1e5)
    assert found.cost == pytest.approx(8 * found.train_s / 3600 * price)
    assert found.energy_j == pytest.approx(8 * found.train_s * watts)


def test_what_is_not_known_scores_worst_and_so_does_a_missed_deadline():
    known = Training(tokens=1e12, price_per_hour=2.0)
    found = outcome(known, devices=8, step_time_s=1.0, tokens_per_s=1e5, checkpoint_bytes=1e9)
    assert score(Objective.ENERGY, found) == math.inf
    assert score(Objective.COST, found) == found.cost
    assert score(Objective.DEVICES, found, deadline_s=found.train_s) == 8
    assert score(Objective.DEVICES, found, deadline_s=found.train_s / 2) == math.inf
    assert score(Objective.TOKENS_PER_DEVICE, found) == 8 / 1e5


points = st.lists(st.tuples(st.integers(0, 6).map(float), st.integers(0, 6).map(float)), max_size=8)


@given(points)
def test_the_front_is_what_brute_force_keeps(given_points):
    def beaten(i, j):
        (a, b), (c, d) = given_points[i], given_points[j]
        better = c <= a and d <= b and (c < a or d < b)
        return better or ((a, b) == (c, d) and j < i)

    indices = range(len(given_points))
    expected = {i for i in indices if not any(beaten(i, j) for j in indices if j != i)}
    assert set(pareto(given_points)) == expected


def test_figures_that_cannot_be_are_refused():
    with pytest.raises(InvalidInput) as refused:
        Training(tokens=0, price_per_hour=-1, restart_s=-1)
    assert [f.path for f in refused.value.faults] == ["tokens", "price_per_hour", "restart_s"]
    assert Training(restart_s=0).restart_s == 0
