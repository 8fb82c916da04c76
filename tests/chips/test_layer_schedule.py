"""Schedules of a layer's operators: against brute force, laws, and the budget of time."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from strategies_layer import dense_layer, find_layer_faults, moe_layer, oracle_s, problems
from trainwright.chips.layer_schedule import (
    CoreOperator,
    LayerProblem,
    Unit,
    list_schedule,
    lower_bound_s,
    schedule_layer,
)
from trainwright.errors import InvalidInput
from trainwright.plans.status import Status


@pytest.mark.slow
@cases(150)
@given(problems())
def test_small_layers_take_what_brute_force_takes(problem):
    found = schedule_layer(problem)
    assert found.makespan_s == pytest.approx(oracle_s(problem), abs=1e-12)
    assert found.status is Status.OPTIMAL
    assert not find_layer_faults(problem, found.runs)


@pytest.mark.slow
@cases(25)
@given(problems(most=7))
def test_layers_of_seven_operators_take_what_brute_force_takes(problem):
    test_small_layers_take_what_brute_force_takes.hypothesis.inner_test(problem)


@cases(100)
@given(problems(most=12))
def test_every_schedule_keeps_the_rules_and_no_schedule_beats_its_bound(problem):
    found = schedule_layer(problem)
    assert not find_layer_faults(problem, found.runs)
    assert found.lower_bound_s <= found.makespan_s
    assert found.makespan_s <= sum(o.single_s for o in problem.operators) * (1 + 1e-12)


@cases(100)
@given(problems())
def test_the_bound_is_admissible(problem):
    assert lower_bound_s(problem) <= oracle_s(problem) * (1 + 1e-12)


@cases(60)
@given(problems(most=7), st.sampled_from((1e-12, 1e-3, 1e12)))
def test_scaling_all_times_scales_the_schedule(problem, factor):
    scaled = replace(
        problem,
        operators=tuple(
            replace(
                o,
                single_s=o.single_s * factor,
                spread_s=None if o.spread_s is None else o.spread_s * factor,
            )
            for o in problem.operators
        ),
    )
    plain_s = schedule_layer(problem).makespan_s
    assert schedule_layer(scaled).makespan_s == pytest.approx(plain_s * factor, rel=1e-9)


def test_a_dense_layer_takes_the_sum_of_its_shorter_times_in_microseconds():
    problem = dense_layer()
    found = schedule_layer(problem)
    assert found.method == "chain"
    assert found.makespan_s == sum(o.least_s for o in problem.operators)
    assert found.status is Status.OPTIMAL
    assert not find_layer_faults(problem, found.runs)


def test_an_operator_without_time_still_orders_what_it_joins():
    long = CoreOperator(unit=Unit.TENSOR, single_s=5.0)
    joint = CoreOperator(unit=Unit.NONE, single_s=0.0)
    problem = LayerProblem(
        operators=(long, joint, long, long),
        edges=((0, 1), (1, 2)),
        num_tensor_cores=4,
        num_vector_cores=0,
    )
    found = schedule_layer(problem)
    assert found.makespan_s == 10.0
    assert found.runs[2].start_s == 5.0


def test_spreading_alone_or_side_by_side_is_chosen_by_what_ends_first():
    alone = CoreOperator(unit=Unit.TENSOR, single_s=8.0, spread_s=3.0)
    two = LayerProblem(operators=(alone, alone), edges=(), num_tensor_cores=2, num_vector_cores=1)
    assert schedule_layer(two).makespan_s == 6.0
    slow = replace(alone, spread_s=5.0)
    assert schedule_layer(replace(two, operators=(slow, slow))).makespan_s == 8.0


def test_links_overlap_compute_unless_they_occupy_a_vector_core():
    link = CoreOperator(unit=Unit.LINK, single_s=5.0)
    vector = CoreOperator(unit=Unit.VECTOR, single_s=5.0)
    problem = LayerProblem(
        operators=(link, vector), edges=(), num_tensor_cores=1, num_vector_cores=1
    )
    assert schedule_layer(problem).makespan_s == 5.0
    assert schedule_layer(replace(problem, links_on_vector_cores=True)).makespan_s == 10.0


def test_the_check_names_what_a_broken_schedule_breaks():
    problem = moe_layer(2)
    runs = list(schedule_layer(problem).runs)
    last = runs[-1]
    runs[-1] = replace(last, start_s=0.0, end_s=last.end_s - last.start_s)
    assert any("end of operator" in f.problem for f in find_layer_faults(problem, runs))
    runs = list(schedule_layer(problem).runs)
    runs[0] = replace(runs[0], end_s=runs[0].end_s + 1)
    assert find_layer_faults(problem, runs)[0].path == "runs[0]"
    assert find_layer_faults(problem, runs[:-1])[0].path == "runs"


def test_problems_that_cannot_be_are_refused():
    vector = CoreOperator(unit=Unit.VECTOR, single_s=1.0)
    with pytest.raises(InvalidInput, match="must have its cores"):
        LayerProblem(operators=(vector,), edges=(), num_tensor_cores=1, num_vector_cores=0)
    with pytest.raises(InvalidInput, match="must be acyclic"):
        LayerProblem(
            operators=(vector, vector),
            edges=((0, 1), (1, 0)),
            num_tensor_cores=1,
            num_vector_cores=1,
        )
    with pytest.raises(InvalidInput, match="must be finite"):
        LayerProblem(
            operators=(replace(vector, single_s=-1.0),),
            edges=(),
            num_tensor_cores=1,
            num_vector_cores=1,
        )


def test_more_moves_never_make_a_schedule_longer():
    for seed in range(5):
        problem = moe_layer(5, seed=seed)
        spans = [list_schedule(problem, moves=moves).makespan_s for moves in (0, 10, 40)]
        assert spans == sorted(spans, reverse=True)


def test_sixty_operators_take_milliseconds():
    problem = moe_layer(9, chain=12)
    assert 55 <= len(problem.operators) <= 65
    times = []
    for _ in range(3):
        started = process_time()
        found = schedule_layer(problem)
        times.append(process_time() - started)
    assert min(times) <= 0.1  # CPU seconds; 20 ms on a quiet machine
    assert found.gap <= 0.35
