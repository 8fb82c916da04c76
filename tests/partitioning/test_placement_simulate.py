"""What the simulator makes of placements: never longer than their price, and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from strategies_placement import placement_inputs
from trainwright.execution import Budget
from trainwright.formats.phaze_json import read_phaze
from trainwright.partitioning.placement import (
    NATIVE_RULES,
    PlacedPlan,
    place_case,
    placement_rules,
    price_placement,
    simulated_time_s,
)


@cases(100)
@given(
    placement_inputs(chain=False, most_layers=4), st.sampled_from(("native", "phaze-general-dag"))
)
def test_no_batch_takes_longer_than_its_price(value, cost_model):
    case = read_phaze(value)
    found = place_case(case, rules=placement_rules(cost_model), budget=Budget())
    if found.cost is not None:
        simulated_s = simulated_time_s(found.plan, found.cost, case)
        assert simulated_s <= found.cost.time_s * (1 + 1e-12)
        busiest = max(stage.load_s for stage in found.cost.stages)
        share = -(-case.setting.num_microbatches // found.plan.data_parallel)
        assert simulated_s >= busiest * share * (1 - 1e-12)


def two_stages(first, second, **changes):
    """Two stages of one layer each, nothing to transfer."""
    nodes = [
        {
            "id": v,
            "parameterSize": 0.0,
            "activationSize": 1.0,
            "optimalLatencyFw": forward,
            "optimalLatencyBw": backward,
        }
        for v, (forward, backward) in enumerate((first, second))
    ]
    value = {
        "maxMemoryPerDevice": 100.0,
        "maxDevices": 2,
        "bandwidth": 1.0,
        "mbsInBatch": 3,
        "nodes": {"1": nodes},
        "edges": {"1": [{"sourceId": 0, "destId": 1, "communicationCost": 0.0}]},
    }
    case = read_phaze(value | changes)
    plan = PlacedPlan(
        tensor_parallel=1,
        data_parallel=1,
        stages=((0,), (1,)),
        recomputes=(False, False),
        depth=2,
        positions=(0, 1),
    )
    return plan, price_placement(plan, case, NATIVE_RULES), case


def test_equal_stages_take_what_the_price_says():
    plan, cost, case = two_stages((1.0, 2.0), (1.0, 2.0))
    assert cost.time_s == pytest.approx(12.0)
    assert simulated_time_s(plan, cost, case) == pytest.approx(12.0)


def test_a_quick_stage_fills_and_drains_sooner():
    plan, cost, case = two_stages((0.25, 0.5), (1.0, 2.0))
    assert cost.time_s == pytest.approx(12.0)
    assert simulated_time_s(plan, cost, case) == pytest.approx(9.75)  # 0.25 + 3 · 3 + 0.5
