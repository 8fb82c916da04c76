"""What is wrong with the published placement program is not wrong here, by our own cost model."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles_placement import best_time
from random_cases import cases
from small_placements import chain
from strategies_placement import placement_inputs
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.execution import Budget
from trainwright.formats.phaze_json import read_phaze
from trainwright.partitioning.downset_dp import Restrictions
from trainwright.partitioning.placement import (
    NATIVE_RULES,
    PlacedPlan,
    fits,
    place_case,
    placement_rules,
    price_placement,
)
from trainwright.partitioning.placement_planner import plan_placement, stage_positions
from trainwright.plans import Status


def answer(value, rules=NATIVE_RULES):
    return plan_placement(
        read_phaze(value), rules=rules, restrictions=Restrictions(), budget=Budget()
    )


def placed(value, budget=None):
    return place_case(read_phaze(value), rules=NATIVE_RULES, budget=budget or Budget())


def sizes(value, rules):
    """Layers per stage of the fixed strategy."""
    case = read_phaze(value)
    table = case.at_width(case.fixed.tensor_parallel)
    positions = stage_positions(case.fixed, table, rules)
    return [positions.count(stage) for stage in range(case.fixed.num_stages)]


class TestAStrategyThatDoesNotFit:
    """D8: the published program ends there, and the optimum is lost."""

    def test_is_reported_beside_the_optimum(self):
        found = answer(chain(fixedPP=1, fixedDP=1, maxMemoryPerDevice=1e9))
        assert found.outcome.status is Status.OPTIMAL
        assert found.fixed.reason == "out of memory"
        assert found.fixed.cost.peak_memory_bytes > 1e9

    def test_may_lack_devices_or_a_tensor_width(self):
        assert answer(chain(fixedPP=4, fixedDP=4)).fixed.reason == "needs 16 devices of 8"
        assert "tensor width 4" in answer(chain(fixedTMPC=4)).fixed.reason


class TestAnEmbeddingInFront:
    """D9: positions of the whole chain shift every group of the strategy by one."""

    def test_leaves_the_groups_of_blocks_as_stated(self):
        value = chain(fixedPP=2, numTransformerLayers=4)
        assert sizes(value, NATIVE_RULES) == [3, 3]  # embedding + 2, 2 + head
        assert sizes(value, placement_rules("phaze-compat")) == [2, 4]

    def test_alone_is_told_from_the_blocks_by_what_it_costs(self):
        value = chain(fixedPP=4, numTransformerLayers=4)
        for width in ("1", "2"):
            value["nodes"][width].pop()
            value["edges"][width].pop()
        assert sizes(value, NATIVE_RULES) == [2, 1, 1, 1]

    def test_uneven_groups_are_dealt_from_the_front(self):
        assert sizes(chain(fixedPP=3, numTransformerLayers=4), NATIVE_RULES) == [3, 2, 1]


class TestGradients:
    """D10: only those of the first stage counted, twice as dear as a ring."""

    def test_of_a_large_last_layer_change_the_result(self):
        small = chain(maxMemoryPerDevice=1e12)
        large = copy.deepcopy(small)
        for nodes in large["nodes"].values():
            nodes[-1]["parameterSize"] *= 50
        compat = placement_rules("phaze-compat")
        plan = PlacedPlan(
            tensor_parallel=1,
            data_parallel=4,
            stages=((0, 1, 2), (3, 4, 5)),
            recomputes=(False, False),
            depth=2,
            positions=(0, 1),
        )
        small_s, large_s = (
            [price_placement(plan, read_phaze(v), rules).time_s for v in (small, large)]
            for rules in (compat, NATIVE_RULES)
        )
        assert small_s[0] == small_s[1]
        assert large_s[0] < large_s[1]

    @given(st.integers(2, 8))
    def test_take_the_time_of_a_ring(self, replicas):
        value = chain(maxMemoryPerDevice=1e12)
        plan = PlacedPlan(
            tensor_parallel=1,
            data_parallel=replicas,
            stages=((0, 1, 2, 3, 4, 5),),
            recomputes=(False,),
            depth=1,
            positions=(0,),
        )
        cost = price_placement(plan, read_phaze(value), NATIVE_RULES)
        ring_s = 2 * (replicas - 1) / replicas * 260e6 / 1e10
        assert cost.gradient_sync_s == pytest.approx(ring_s)


def test_adam_keeps_sixteen_bytes_of_each_parameter():
    """D11: two bytes of each of weight and gradient, and four of three states."""
    value = chain()
    for node in (node for nodes in value["nodes"].values() for node in nodes):
        node["activationSize"] = 0.0
    found = placed(value | {"maxMemoryPerDevice": 1e12, "maxDevices": 1})
    num_parameters = 260e6 / 2
    assert found.cost.peak_memory_bytes == pytest.approx(16 * num_parameters)
    plain = placed(
        value | {"maxMemoryPerDevice": 1e12, "maxDevices": 1, "optimizerAlgorithm": "SGD"}
    )
    assert plain.cost.peak_memory_bytes == pytest.approx(4 * num_parameters)


class TestScale:
    """D17: absolute tolerances; memory not checked again."""

    @cases(60)
    @given(placement_inputs(most_layers=5), st.sampled_from((1e-12, 1e12)))
    def test_of_all_times_changes_no_plan(self, value, factor):
        scaled = copy.deepcopy(value)
        scaled["bandwidth"] /= factor
        for node in (node for nodes in scaled["nodes"].values() for node in nodes):
            node["optimalLatencyFw"] *= factor
            node["optimalLatencyBw"] *= factor
        plain, found = placed(value), placed(scaled)
        assert found.status is plain.status
        if plain.plan is not None:
            assert found.cost.time_s == pytest.approx(plain.cost.time_s * factor, rel=1e-9)
            assert found.plan == plain.plan

    @cases(60)
    @given(placement_inputs(most_layers=5))
    def test_every_plan_that_is_returned_fits_by_an_independent_count(self, value):
        found = placed(value)
        if found.cost is not None:
            assert fits(found.cost, read_phaze(value))

    def test_a_plan_that_does_not_fit_is_found_out(self):
        case = read_phaze(chain(maxMemoryPerDevice=1e8))
        plan = PlacedPlan(
            tensor_parallel=1,
            data_parallel=1,
            stages=((0, 1, 2, 3, 4, 5),),
            recomputes=(False,),
            depth=1,
            positions=(0,),
        )
        assert not fits(price_placement(plan, case, NATIVE_RULES), case)


class TestFailures:
    """D18: raised strings, silenced exceptions, a time limit that is an error."""

    def test_have_types(self):
        with pytest.raises(InvalidInput):
            read_phaze(chain(maxDevices=0))
        with pytest.raises(UnsupportedFeature):
            branching = chain()
            del branching["edges"]["1"][2]
            answer(branching, placement_rules("phaze-compat"))

    def test_a_time_limit_returns_the_best_so_far_with_a_gap(self):
        layer = chain()["nodes"]["1"][1]
        value = chain(
            nodes={"1": [layer | {"id": v, "parameterSize": 1e6 * (v % 7)} for v in range(400)]},
            edges={
                "1": [
                    {"sourceId": v, "destId": v + 1, "communicationCost": 1e6} for v in range(399)
                ]
            },
            maxDevices=1000,
            maxMemoryPerDevice=1e12,
            mbsInBatch=4096,
        )
        found = placed(value, Budget(time_limit_s=1e-9))
        assert found.status is Status.GAP
        assert 0 < found.lower_bound_s < found.cost.time_s
        assert fits(found.cost, read_phaze(value))

    def test_no_rule_of_a_plan_is_silently_broken(self):
        case = read_phaze(chain())
        plan = PlacedPlan(
            tensor_parallel=1,
            data_parallel=1,
            stages=((1, 0, 2), (3, 4)),
            recomputes=(True, False),
            depth=2,
            positions=(0, 1),
        )
        with pytest.raises(InvalidInput, match="must hold every layer exactly once"):
            price_placement(plan, case, NATIVE_RULES)


@cases(40)
@given(placement_inputs(chain=False, most_layers=4))
def test_graphs_that_branch_are_planned(value):
    """D19."""
    found = placed(value)
    best_s = best_time(value, native=True)
    assert (found.cost.time_s if found.cost else float("inf")) == pytest.approx(best_s, rel=1e-12)


@cases(40)
@given(placement_inputs(most_layers=5), st.sampled_from(("maxDevices", "maxMemoryPerDevice")))
def test_more_of_anything_never_makes_a_batch_slower(value, name):
    more = value | {name: value[name] * 2}
    plain, found = placed(value), placed(more)
    if plain.cost is not None:
        assert found.cost.time_s <= plain.cost.time_s * (1 + 1e-12)
    assert found.status is Status.OPTIMAL or plain.status is Status.INFEASIBLE
