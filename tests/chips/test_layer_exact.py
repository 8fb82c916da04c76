"""The solver's schedules of a layer: what brute force finds, and never worse than a list."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given

from random_cases import cases
from strategies_layer import dense_layer, moe_layer, oracle_s, problems
from trainwright.chips.layer_exact import shorten_layer
from trainwright.chips.layer_problem import (
    CoreOperator,
    LayerProblem,
    Unit,
    find_layer_faults,
    lower_bound_s,
)
from trainwright.chips.layer_schedule import list_schedule, made, schedule_layer
from trainwright.errors import Contradiction, MissingExtra
from trainwright.execution import Budget
from trainwright.plans.status import Status


def layer(operators, edges, tensor, vector, **options):
    return LayerProblem(
        operators=tuple(
            CoreOperator(unit=Unit[name], single_s=one, spread_s=every)
            for name, one, every in operators
        ),
        edges=edges,
        num_tensor_cores=tensor,
        num_vector_cores=vector,
        **options,
    )


THREE_TENSOR_CORES = layer(
    [
        ("TENSOR", 5.0, None),
        ("VECTOR", 2.08333057945026, 0.6106099935922021),
        ("TENSOR", 4.0, 9.0),
        ("FUSED", 4.0, None),
        ("TENSOR", 8.0, None),
        ("FUSED", 5.9092767680816305, 5.675420709909169),
    ],
    ((1, 3), (1, 5)),
    3,
    1,
    exclusive=False,
)
PAIRS = layer(
    [
        ("VECTOR", 0.5489644800830747, 8.393498003398566),
        ("FUSED", 6.414962724564041, 9.0),
        ("VECTOR", 4.0, 6.0),
        ("TENSOR", 8.0, None),
        ("VECTOR", 4.0, 3.9710715573590356),
        ("VECTOR", 3.0, 9.0),
    ],
    ((0, 3), (0, 5), (1, 5), (2, 5)),
    2,
    1,
    paired=True,
)


@pytest.mark.exact
@cases(40)
@given(problems())
def test_the_solver_takes_what_brute_force_takes(problem):
    start = made(list_schedule(problem, moves=0), lower_bound_s(problem), "list")
    found = shorten_layer(problem, start, budget=Budget())
    assert found.makespan_s == pytest.approx(oracle_s(problem), abs=1e-9)
    assert found.status is Status.OPTIMAL
    assert not find_layer_faults(problem, found.runs)


@pytest.mark.exact
def test_the_solver_is_never_worse_than_the_list_and_may_be_stopped():
    for seed in range(3):
        problem = moe_layer(3, seed=seed, chain=3)
        start = schedule_layer(problem)
        found = shorten_layer(problem, start, budget=Budget(), effort=0.5)
        assert found.makespan_s <= start.makespan_s
        assert found.lower_bound_s >= start.lower_bound_s
        assert not find_layer_faults(problem, found.runs)
        hurried = shorten_layer(problem, start, budget=Budget(time_limit_s=0.01))
        assert hurried.makespan_s <= start.makespan_s


@pytest.mark.exact
@pytest.mark.parametrize(
    "problem", [THREE_TENSOR_CORES, PAIRS], ids=["shared vector core", "pairs"]
)
def test_a_layer_that_runs_is_never_called_infeasible(problem):
    """With two optional intervals of one start and one end per operator, the solver did so."""
    start = made(list_schedule(problem, moves=0), lower_bound_s(problem), "list")
    found = shorten_layer(problem, start, budget=Budget(), effort=5.0)
    assert found.makespan_s == pytest.approx(oracle_s(problem), rel=1e-9)
    assert found.status is Status.OPTIMAL


@pytest.mark.exact
def test_a_proof_that_excludes_what_runs_is_an_error():
    """Here the schedule is what is wrong: it claims half of the time that it takes."""
    problem = moe_layer(2, chain=1)
    start = schedule_layer(problem)
    wrong = replace(start, makespan_s=start.makespan_s / 2, lower_bound_s=0.0)
    with pytest.raises(Contradiction, match="the solver calls a layer INFEASIBLE that runs"):
        shorten_layer(problem, wrong, budget=Budget())


@pytest.mark.exact
def test_what_is_proved_is_left_alone():
    problem = dense_layer()
    found = schedule_layer(problem)
    assert found.method == "chain"
    assert shorten_layer(problem, found, budget=Budget()) is found


def test_without_the_solver_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools", None)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    problem = moe_layer(2)
    found = schedule_layer(problem)
    assert found.status is Status.GAP
    with pytest.raises(MissingExtra, match=r"trainwright\[exact\]"):
        shorten_layer(problem, found, budget=Budget())


def test_the_solver_is_not_loaded_before_it_is_needed():
    script = (
        "import sys\nfrom trainwright.chips import layer_exact\n"
        "assert 'ortools' not in sys.modules and 'highspy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
