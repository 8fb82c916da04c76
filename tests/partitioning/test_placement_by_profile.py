"""PHAZE's placement from the restricted profile partitioner: the same optimum as its own solver."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given

from oracles_placement import best_time
from random_cases import cases
from reference import needs_reference, reference
from small_placements import chain
from strategies_placement import placement_inputs
from trainwright.errors import UnsupportedFeature
from trainwright.execution import Budget
from trainwright.formats.phaze_json import read_phaze
from trainwright.partitioning.placement import fits, place_case, placement_rules
from trainwright.partitioning.placement_planner import place_by_profile
from trainwright.plans import Status

RULES = placement_rules("phaze-compat")


def plain_chain(value):
    """The same input without what the partitioner cannot express."""
    ids = [node["id"] for node in next(iter(value["nodes"].values()))]
    joined = set(pairwise(ids))
    for width, nodes in value["nodes"].items():
        for node in nodes:
            node["isTensorParallelized"] = width != "1"
        value["edges"][width] = [
            edge for edge in value["edges"][width] if (edge["sourceId"], edge["destId"]) in joined
        ]
    return value


@cases(60)
@given(placement_inputs(recompute=False, most_layers=4).map(plain_chain))
def test_both_planners_and_brute_force_find_the_same_optimum(value):
    case = read_phaze(value)
    own = place_case(case, rules=RULES, budget=Budget())
    found = place_by_profile(case, rules=RULES, budget=Budget())
    assert found.status is own.status
    if found.cost is None:
        assert own.status is Status.INFEASIBLE
        return
    assert found.cost.time_s == pytest.approx(own.cost.time_s, rel=1e-12)
    assert found.cost.time_s == pytest.approx(best_time(value, native=False), rel=1e-12)
    assert fits(found.cost, case)


@needs_reference
@pytest.mark.parametrize("name", ["01", "02", "03", "04", "07", "11", "12"])
def test_published_chains_take_the_published_time(name):
    (path,) = (reference() / "codesign" / "placement").glob(f"{name}_*.json")
    given = json.loads(path.read_text())
    found = place_by_profile(read_phaze(given), rules=RULES, budget=Budget())
    expected_s = given["expected"]["time_per_batch"]
    if expected_s is None:
        assert found.status is Status.INFEASIBLE
    else:
        assert found.cost.time_s == pytest.approx(expected_s, rel=1e-9)


def refused(**changes):
    value = plain_chain(chain()) | changes
    with pytest.raises(UnsupportedFeature) as caught:
        place_by_profile(read_phaze(value), rules=RULES, budget=Budget())
    assert "planner exact" in str(caught.value)
    return str(caught.value)


def test_what_its_costs_cannot_say_is_refused():
    assert "recomputation" in refused(activationRecomputation=True)
    mixed = chain()
    assert "fewer devices than t" in refused(nodes=mixed["nodes"])
    mixed["edges"]["1"].append({"sourceId": 0, "destId": 3, "communicationCost": 1})
    assert "skip layers" in refused(edges=mixed["edges"])
