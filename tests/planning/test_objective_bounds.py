"""Bounds on cost, energy and the like hold for every plan of a small space, one by one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exhaustive import LLAMA, asked, least_steps_s
from random_cases import cases
from trainwright.execution import Budget
from trainwright.planning.question.question import WeightedAim
from trainwright.planning.reasons.objectives import (
    Objective,
    Training,
    aim_of,
    goodput,
    goodput_shares,
    least_scores,
    outcome,
    pareto_excess,
    score,
)
from trainwright.planning.reasons.objectives import least_steps_s as bounds_s
from trainwright.planning.search.search import plan_model

BATCH, SEQUENCE, DEVICES = 4, 2048, 4
QUESTION = asked(replace(LLAMA, num_layers=2), memory_gib=24, zero_stages=(1,))
TOKENS_PER_STEP = float(BATCH * SEQUENCE)
CHECKPOINT_BYTES = 1e10

trainings = st.builds(
    Training,
    tokens=st.floats(1e9, 1e13),
    price_per_hour=st.floats(0.1, 10),
    power_watts=st.floats(10, 1e4),
    deadline_s=st.none() | st.floats(1e4, 1e9),
    device_mtbf_s=st.floats(1e5, 1e9),
)
objectives = st.sampled_from(list(Objective))


def has_what_it_needs(objective: Objective, training: Training) -> bool:
    return objective is not Objective.DEVICES or training.deadline_s is not None


def aim_for(objective: Objective, training: Training, fewest: int = 1) -> WeightedAim:
    return aim_of(
        objective,
        training,
        fewest=fewest,
        most=DEVICES,
        tokens_per_step=TOKENS_PER_STEP,
        checkpoint_bytes=CHECKPOINT_BYTES,
    )


def score_of(objective: Objective, training: Training, devices: int, step_s: float) -> float:
    found = outcome(
        training,
        devices=devices,
        step_time_s=step_s,
        tokens_per_s=TOKENS_PER_STEP / step_s,
        checkpoint_bytes=CHECKPOINT_BYTES,
    )
    return score(objective, found, deadline_s=training.deadline_s)


@given(
    training=trainings,
    devices=st.lists(st.integers(1, 10**6), min_size=1, max_size=5),
    size=st.floats(1e6, 1e13),
)
def test_goodput_of_many_numbers_is_that_of_each(training, devices, size):
    shares = goodput_shares(training, np.array(devices, float), checkpoint_bytes=size)
    for share, count in zip(shares, devices, strict=True):
        alone = goodput(training, devices=count, checkpoint_bytes=size).share
        assert share == pytest.approx(alone, rel=1e-12)


@given(
    objective=objectives,
    training=trainings,
    devices=st.integers(1, DEVICES),
    step_s=st.floats(1e-3, 1e3),
)
def test_an_aim_orders_plans_as_the_score_does(objective, training, devices, step_s):
    if not has_what_it_needs(objective, training):
        return
    aim = aim_for(objective, training)
    key = aim.key(step_s, devices)
    expected = score_of(objective, training, devices, step_s)
    limit_s = float(aim.limit_s[devices])
    if math.isclose(step_s, limit_s, rel_tol=1e-9):
        return  # on the edge of the deadline both round as they like
    shown = math.floor(key) if objective is Objective.DEVICES and key < math.inf else key
    assert shown == pytest.approx(expected, rel=1e-9)
    if key < math.inf:
        assert aim.longest_s(key, devices) == pytest.approx(step_s, rel=1e-6)


@cases(7)
@given(objective=objectives, training=trainings)
def test_the_search_finds_the_least_of_all_plans_and_bounds_it(objective, training):
    if not has_what_it_needs(objective, training):
        return
    aim = aim_for(objective, training)
    outcome_ = plan_model(QUESTION, Budget(), num_alternatives=0, aim=aim)
    least = min(aim.key(step_s, n) for n, step_s in least_steps_s(QUESTION).items())
    assert outcome_.lower_bound_s <= least * (1 + 1e-9)
    if least == math.inf:
        assert outcome_.exhausted
        assert all(aim.key(p.step.step_time_s, p.plan.devices_used) == least for p in
                   outcome_.priced)  # fmt: skip
        return
    (best,) = outcome_.priced
    assert aim.key(best.step.step_time_s, best.plan.devices_used) == pytest.approx(least)
    # Other cuts than the best one by the bound may be faster by the simulation: a stated gap.
    assert outcome_.lower_bound_s == pytest.approx(least, rel=1e-3)


@cases(7)
@given(
    pair=st.lists(objectives, min_size=2, max_size=2, unique=True),
    training=trainings,
    data=st.data(),
)
def test_no_plan_beats_a_front_by_more_than_it_says(pair, training, data):
    if not all(has_what_it_needs(each, training) for each in pair):
        return
    plans = least_steps_s(QUESTION)
    aim = aim_for(Objective.TOKENS_PER_DEVICE, replace(training, deadline_s=None))
    found = plan_model(QUESTION, Budget(), num_alternatives=0, aim=aim)
    sizes = [
        (size, min((t for n, t in plans.items() if n <= size), default=math.inf))
        for size in data.draw(st.sets(st.integers(1, DEVICES - 1))) | {DEVICES}
    ]
    steps_s = bounds_s(DEVICES, sizes, [(aim, found.lower_bound_s)])
    for n, step_s in plans.items():
        assert steps_s[n] <= step_s * (1 + 1e-9)
    one, other = (
        least_scores(each, aim_for(each, training), steps_s * (1 - 1e-9)) for each in pair
    )
    everything = [
        tuple(score_of(each, training, n, step_s) for each in pair) for n, step_s in plans.items()
    ]
    finite = [each for each in everything if max(each) < math.inf]
    shown = [each for each in finite if data.draw(st.booleans())]
    excess = pareto_excess(shown, one[1:], other[1:])
    for plan in finite:
        assert excess == math.inf or any(
            mine[0] <= plan[0] * (1 + excess) * (1 + 1e-6)
            and mine[1] <= plan[1] * (1 + excess) * (1 + 1e-6)
            for mine in shown
        )
    for objective, least in zip(pair, (one, other), strict=True):
        best = min((score_of(objective, training, n, t) for n, t in plans.items()))
        assert least[1:].min() <= best * (1 + 1e-9)


def test_where_every_number_is_shown_nothing_is_left_to_find():
    points = [(4.0, 1.0), (2.0, 2.0), (1.0, 4.0)]
    one, other = (np.array([p[k] for p in points]) for k in (0, 1))
    assert pareto_excess(points, one, other) == 0
    assert pareto_excess(points[::2], one, other) == pytest.approx(1.0)
    assert pareto_excess([], one, other) == math.inf


def test_fewer_devices_than_asked_for_are_left_out():
    training = Training(tokens=1e12)
    aim = aim_for(Objective.TOKENS_PER_DEVICE, training, fewest=3)
    found = plan_model(QUESTION, Budget(), num_alternatives=0, aim=aim)
    assert found.priced[0].plan.devices_used >= 3
