from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given

from instances import plan_of, profile_of, setting_of
from oracles import broken_rules, fits, price_plan
from random_cases import cases
from strategies import pipers_with_stages
from trainwright.errors import InvalidInput
from trainwright.partitioning.evaluate import (
    evaluate,
    find_faults,
    find_overflows,
    read_prices,
    time_per_sample_s,
)

RULE_OF_MESSAGE = {
    "must divide": "divisor",
    "must be a degree": "degree",
    "must be one of": "config",
    "must be the id": "placement",
    "must place every": "placement",
    "must keep the order": "order",
    "must use at most": "devices",
    "must have at most": "replicas",
}


def node(id_, *, p=10, w=6, a=3, b=1, before=(), after=(), options=("plain",), degrees=("1",)):
    config = {
        "timePerSample": p,
        "parameterSize": w,
        "memoryUsageA": a,
        "memoryUsageB": b,
        "syncTimeFw": {str(u): 7 for u in before},
        "syncTimeBw": {str(v): 5 for v in after},
    }
    table = {t: [config | {"id": option} for option in options] for t in degrees}
    return {"id": id_, "name": f"layer {id_}", "TMPCs": table}


def chain(**setting):
    """Three layers in a row, 20 bytes on each edge; the middle one offers degrees 1 and 2."""
    return {
        "maxMemoryPerDevice": 100,
        "maxDevices": 8,
        "bandwidth": 2,
        "mbsInBatch": 12,
        "nodes": [
            node(1, after=(2,)),
            node(2, before=(1,), after=(3,), degrees=("1", "2"), options=("plain", "lean")),
            node(3, before=(2,)),
        ],
        "edges": [
            {"sourceId": 1, "destId": 2, "communicationCost": 20},
            {"sourceId": 2, "destId": 3, "communicationCost": 20},
        ],
    } | setting


def stage(nodes, *, d=1, t=1, option="plain"):
    return {"nodes": nodes, "d": d, "t": t, "config": {str(v): option for v in nodes}}


def evaluate_stages(piper, stages):
    plan = plan_of(stages, piper["mbsInBatch"])
    return evaluate(plan, profile_of(piper), setting_of(piper))


def faults_of(piper, stages):
    with pytest.raises(InvalidInput) as caught:
        evaluate_stages(piper, stages)
    return [str(fault) for fault in caught.value.faults]


def test_a_pipeline_is_priced_as_by_hand():
    first, last = evaluate_stages(chain(), [stage([1], d=3), stage([2, 3], d=2)])
    assert first.breakdown.compute_s == pytest.approx(10 / 3)
    assert first.breakdown.edge_traffic_s == pytest.approx(2 * (20 + 5) / (3 * 2))
    assert first.breakdown.gradient_sync_s == pytest.approx(4 * 2 / 3 * 6 / (12 * 2))
    assert first.time_per_sample_s == pytest.approx(10 / 3 + 50 / 6 + 2 / 3)
    assert (first.microbatches_in_flight, first.memory_bytes) == (2, 3 * 2 + 1)
    assert last.breakdown.compute_s == 20 / 2
    assert last.breakdown.edge_traffic_s == 2 * (20 + 7) / (2 * 2)
    assert (last.microbatches_in_flight, last.memory_bytes) == (1, 2 * (3 + 1))
    assert time_per_sample_s((first, last)) == last.time_per_sample_s


@given(pipers_with_stages())
@cases(150)
def test_plans_are_refused_for_the_rules_they_break_and_else_priced_exactly(case):
    piper, stages = case
    plan, setting = plan_of(stages, piper["mbsInBatch"]), setting_of(piper)
    profile = profile_of(piper)
    faults = find_faults(plan, read_prices(profile), setting)
    named = {
        rule for fault in faults for text, rule in RULE_OF_MESSAGE.items() if text in str(fault)
    }
    assert named == broken_rules(piper, stages)
    event("illegal" if named else "legal")
    if named:
        return
    costs, prices = evaluate(plan, profile, setting), price_plan(piper, stages)
    for cost, exact in zip(costs, prices, strict=True):
        assert cost.time_per_sample_s == pytest.approx(float(exact.time), rel=1e-14)
        assert cost.breakdown.compute_s == pytest.approx(float(exact.compute), rel=1e-14)
        assert cost.breakdown.edge_traffic_s == pytest.approx(float(exact.edge_traffic), rel=1e-14)
        assert cost.breakdown.gradient_sync_s == pytest.approx(
            float(exact.gradient_sync), rel=1e-14
        )
        assert cost.memory_bytes == float(exact.memory)
        assert cost.microbatches_in_flight == exact.in_flight
    assert (find_overflows(costs, setting) == ()) == fits(piper, prices)


@pytest.mark.parametrize(
    ("stages", "fault"),
    [
        (
            [stage([1, 2, 3], d=5)],
            "stages[0].data_parallel: must divide the 12 microbatches, got 5",
        ),
        (
            [stage([1, 2, 3], t=2)],
            "stages[0].tensor_parallel: must be a degree that layer 1 offers (1), got 2",
        ),
        (
            [stage([1]), stage([2], t=3), stage([3])],
            "stages[1].tensor_parallel: must be a degree that layer 2 offers (1, 2), got 3",
        ),
        (
            [stage([1]), stage([2], option="full"), stage([3])],
            'stages[1].options["2"]: must be one of "plain", "lean" at tensor-parallel degree 1, '
            'got "full"',
        ),
        (
            [stage([1]), stage([2])],
            "stages: must place every layer, got none with 3",
        ),
        (
            [stage([1, 2]), stage([3, 99])],
            "stages[1].layers[1]: must be the id of a layer, got 99",
        ),
        (
            [stage([3]), stage([1, 2])],
            "stages[0].layers: must keep the order of the edge 2 -> 3, "
            "got 3 here and 2 in stages[1]",
        ),
        (
            [stage([1], d=6), stage([2, 3], d=3)],
            "stages: must use at most 8 devices, got 9",
        ),
        (
            [stage([1], d=4), stage([2], t=2, d=3), stage([3], d=1)],
            "stages: must use at most 8 devices, got 11",
        ),
    ],
)
def test_each_broken_rule_is_named_with_its_place_and_value(stages, fault):
    assert fault in faults_of(chain(), stages)


def test_more_replicas_than_microbatches_are_refused():
    faults = faults_of(chain(mbsInBatch=2), [stage([1, 2], d=2), stage([3], d=1)])
    assert faults == ["stages: must have at most 2 replicas, one per microbatch, got 3"]


def test_all_broken_rules_are_named_together_in_the_order_of_the_plan():
    stages = [stage([3], d=5), stage([2, 7], t=2, option="full"), stage([1], d=7)]
    faults = faults_of(chain(mbsInBatch=8), stages)
    assert [fault.partition(":")[0] for fault in faults] == [
        "stages[0].data_parallel",
        'stages[1].options["2"]',
        "stages[1].layers[1]",
        "stages[2].data_parallel",
        "stages[1].layers",
        "stages[0].layers",
        "stages",
        "stages",
    ]


def test_a_plan_for_another_batch_is_refused():
    plan = plan_of([stage([1, 2, 3])], 6)
    with pytest.raises(InvalidInput, match="num_microbatches: must equal the setting's 12, got 6"):
        evaluate(plan, profile_of(chain()), setting_of(chain()))


def test_a_plan_that_does_not_fit_is_priced_and_its_missing_bytes_are_named():
    piper = chain(maxMemoryPerDevice=7)
    costs = evaluate_stages(piper, [stage([1, 2]), stage([3])])
    overflow, *others = find_overflows(costs, setting_of(piper))
    assert not others
    assert (overflow.stage, overflow.missing_bytes) == (0, 2 * (3 * 2 + 1) - 7)


@pytest.mark.parametrize(("excess", "fitting"), [(0, True), (0.9e-12, True), (1.2e-12, False)])
def test_memory_fits_up_to_a_relative_tolerance_of_1e_12(excess, fitting):
    piper = chain()
    costs = evaluate_stages(piper, [stage([1, 2, 3])])
    setting = replace(setting_of(piper), memory_bytes=12 / (1 + excess))
    assert (find_overflows(costs, setting) == ()) is fitting


def test_sums_are_correctly_rounded():
    piper = chain()
    for layer, p in zip(piper["nodes"], (1e16, 1.0, 1.0), strict=True):
        for config in layer["TMPCs"]["1"]:
            config["timePerSample"] = p
    (cost,) = evaluate_stages(piper, [stage([1, 2, 3])])
    assert 1e16 + 1.0 + 1.0 == 1e16  # what plain addition would give
    assert cost.breakdown.compute_s == 1e16 + 2


def test_an_option_without_boundary_values_adds_none_to_a_cut_edge():
    profile, setting = profile_of(chain()), setting_of(chain())
    bare = replace(
        profile.costs,
        boundary_offsets=np.zeros(profile.costs.num_rows + 1, dtype=np.int64),
        boundary_bytes=np.zeros(0),
    )
    plan = plan_of([stage([1]), stage([2, 3])], 12)
    first, last = evaluate(plan, replace(profile, costs=bare), setting)
    assert first.breakdown.edge_traffic_s == last.breakdown.edge_traffic_s == 2 * 20 / 2


def test_split_memory_static_kinds_and_expert_gradients_all_count():
    profile, setting = profile_of(chain()), setting_of(chain())
    costs = profile.costs
    rows = costs.num_rows
    richer = replace(
        costs,
        saved_until_weight_grad_bytes=np.full(rows, 10.0),
        static_bytes=np.ones((rows, 2, 3)),
        gradient_sync_bytes=np.full((rows, 2), 3.0),
        transient_bytes=np.full(rows, 1e6),
    )
    (cost,) = evaluate(
        plan_of([stage([1, 2, 3], d=2)], 12), replace(profile, costs=richer), setting
    )
    assert cost.memory_bytes == 3 * (3 + 10 + 1 + 6)
    assert cost.breakdown.gradient_sync_s == 4 * 1 / 2 * (3 * 6) / (12 * 2)


def test_the_largest_floats_are_priced_without_a_crash():
    huge = sys.float_info.max
    nodes = [node(v, p=huge, w=huge, a=huge, b=huge) for v in (1, 2, 3)]
    for d, bandwidth in ((1, 0.5), (2, 0.5), (1, huge), (2, huge)):
        piper = chain(nodes=nodes, edges=[], bandwidth=bandwidth)
        (cost,) = evaluate_stages(piper, [stage([1, 2, 3], d=d)])
        assert cost.time_per_sample_s >= huge / 2
        assert not math.isnan(cost.memory_bytes)
        assert len(find_overflows((cost,), setting_of(piper))) == 1


def test_a_free_profile_costs_nothing():
    free = dict.fromkeys(("p", "w", "a", "b"), 0)
    piper = chain(nodes=[node(v, **free) for v in (1, 2, 3)], edges=[])
    assert time_per_sample_s(evaluate_stages(piper, [stage([1, 2]), stage([3])])) == 0
