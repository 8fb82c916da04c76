"""The published placement cases: optimum, fixed strategy, and the independent references."""

from __future__ import annotations

import math

import pytest

from published_partitions import placed, placements
from reference import needs_reference
from trainwright.errors import UnsupportedFeature
from trainwright.execution import Budget
from trainwright.formats.phaze_json import read_phaze
from trainwright.partitioning.placement import fits, place_case, placement_rules
from trainwright.plans import Status


@needs_reference
def test_every_chain_takes_the_published_time():
    checked = 0
    for given in placements():
        if given["expected"]["status"] != "optimal":
            continue
        found = placed(read_phaze(given), "phaze-compat")
        assert found.outcome.status is Status.OPTIMAL, given["case"]
        assert found.outcome.cost.time_s == pytest.approx(
            given["expected"]["time_per_batch"], rel=1e-9
        ), given["case"]
        assert fits(found.outcome.cost, read_phaze(given))
        checked += 1
    assert checked >= 15


@needs_reference
def test_every_tensor_width_alone_takes_the_reference_time():
    for given in placements():
        if given["mode"] != "phaze-compat" or given["expected"]["status"].startswith("unsupported"):
            continue
        value = given["input"]
        for width, expected_s in given["independent_reference"]["per_tensor_width"].items():
            one = value | {name: {width: value[name][width]} for name in ("nodes", "edges")}
            found = place_case(
                read_phaze(one), rules=placement_rules("phaze-compat"), budget=Budget()
            )
            time_s = found.cost.time_s if found.cost else math.inf
            assert time_s == pytest.approx(expected_s or math.inf, rel=1e-9), given["case"]


@needs_reference
def test_every_fixed_strategy_takes_the_published_time_or_does_not_fit():
    for given in placements():
        stated = given["expected_fixed_strategy"]
        if stated is None or stated["status"] == "unsupported":
            continue
        fixed = placed(read_phaze(given), "phaze-compat").fixed
        if stated["status"] == "ok":
            assert fixed.reason is None, given["case"]
            assert fixed.cost.time_s == pytest.approx(stated["time_per_batch"], rel=1e-9)
        else:
            assert fixed.reason == stated["status"], given["case"]


@needs_reference
def test_a_graph_that_branches_is_refused_by_the_published_rules_and_solved_by_the_general():
    checked = 0
    for given in placements():
        if not given["expected"]["status"].startswith("unsupported"):
            continue
        case = read_phaze(given)
        with pytest.raises(UnsupportedFeature, match="branching"):
            placed(case, "phaze-compat")
        found = placed(case, "phaze-general-dag").outcome
        assert found.status is Status.OPTIMAL
        assert found.cost.time_s == pytest.approx(
            given["expected"]["time_per_batch_general_dag"], rel=1e-12
        )
        checked += 1
    assert checked >= 2


@needs_reference
def test_where_nothing_fits_the_missing_bytes_are_named():
    (given,) = (c for c in placements() if c["expected"]["status"] == "infeasible")
    found = placed(read_phaze(given), "phaze-compat")
    assert found.outcome.status is Status.INFEASIBLE
    assert found.binding.kind == "layer"
    assert found.binding.missing_bytes == 4.0
    assert found.relaxations[0].value == pytest.approx(36.0)


@needs_reference
def test_ninety_eight_layers_on_a_thousand_devices_take_a_few_milliseconds():
    (given,) = (c for c in placements() if c["case"].startswith("24"))
    case, budget = read_phaze(given), Budget()
    found = min(
        place_case(case, rules=placement_rules("phaze-compat"), budget=budget).solver_s
        for _ in range(3)
    )
    assert found <= 0.1  # CPU seconds; the published program takes 5.9
