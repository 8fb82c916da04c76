"""The native placement equals brute force, in value and in the legality of what it returns."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

from oracles_placement import best_time, best_time_at
from random_cases import cases
from strategies_placement import placement_inputs
from trainwright.execution import Budget
from trainwright.formats.phaze_json import read_phaze
from trainwright.partitioning.placement import fits, place_case, placement_rules
from trainwright.plans import Status


def check(value, cost_model, expected_s, **options):
    case = read_phaze(value)
    found = place_case(case, rules=placement_rules(cost_model), budget=Budget(), **options)
    if math.isinf(expected_s):
        assert found.status is Status.INFEASIBLE
        return
    assert found.status is Status.OPTIMAL
    assert found.cost is not None
    assert found.cost.time_s == pytest.approx(expected_s, rel=1e-12)
    assert found.lower_bound_s <= found.cost.time_s
    assert fits(found.cost, case)


@cases(150)
@given(placement_inputs())
def test_a_chain_is_placed_as_brute_force_does_by_the_published_rules(value):
    check(value, "phaze-compat", best_time(value, native=False))


@cases(150)
@given(placement_inputs())
def test_a_chain_is_placed_as_brute_force_does_by_our_rules(value):
    check(value, "native", best_time(value, native=True))


@cases(100)
@given(placement_inputs(chain=False, most_layers=4))
def test_any_graph_is_placed_as_brute_force_does(value):
    check(value, "phaze-general-dag", best_time(value, native=False))
    check(value, "native", best_time(value, native=True))


@cases(60)
@given(placement_inputs(chain=False, most_layers=5))
def test_a_graph_with_too_many_cuts_keeps_an_admissible_bound(value):
    case = read_phaze(value)
    rules = placement_rules("phaze-general-dag")
    found = place_case(case, rules=rules, budget=Budget(), max_stage_sets=0)
    expected_s = best_time(value, native=False)
    if found.cost is None:
        assert found.status in (Status.UNKNOWN, Status.INFEASIBLE)
        return
    assert found.lower_bound_s <= expected_s * (1 + 1e-12)
    assert found.cost.time_s >= expected_s * (1 - 1e-12)


@cases(60)
@given(placement_inputs(most_layers=4))
def test_each_width_alone_is_placed_as_brute_force_does(value):
    for width in value["nodes"]:
        one = value | {name: {width: value[name][width]} for name in ("nodes", "edges")}
        check(one, "phaze-compat", best_time_at(value, width, native=False))


@pytest.mark.parametrize("cost_model", ["phaze-general-dag", "native"])
def test_one_order_serves_both_directions_even_where_each_would_like_its_own(cost_model):
    """Layer 2 waits long in both directions, so forward wants it last and backward first."""
    value = {
        "maxMemoryPerDevice": 9.5,
        "maxDevices": 3,
        "bandwidth": 1.0,
        "mbsInBatch": 30,
        "nodes": {
            "1": [
                {
                    "id": v,
                    "parameterSize": 0.0,
                    "activationSize": size,
                    "optimalLatencyFw": 4.0,
                    "optimalLatencyBw": 4.0,
                    "isTensorParallelized": False,
                }
                for v, size in enumerate((3.0, 2.0, 2.0, 9.0))
            ]
        },
        "edges": {
            "1": [
                {"sourceId": u, "destId": v, "communicationCost": size}
                for u, v, size in ((0, 1, 0.0), (0, 2, 4.0), (1, 3, 0.0), (2, 3, 4.0))
            ]
        },
        "activationRecomputation": False,
        "optimizerAlgorithm": "SGD",
    }
    expected_s = best_time(value, native=cost_model == "native")
    check(value, cost_model, expected_s)
    assert expected_s == 20.0 * 32  # either order ends one direction after 8 and the other after 12
