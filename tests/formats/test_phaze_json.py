"""PHAZE's placement input: read in any order, every fault named."""

from __future__ import annotations

import copy
import json
import random

import pytest

from reference import needs_reference, reference
from small_placements import chain
from trainwright.errors import InvalidInput
from trainwright.formats.phaze_json import placement_part, read_phaze
from trainwright.profile.profile import Optimizer


def faults(value):
    with pytest.raises(InvalidInput) as caught:
        read_phaze(value, source="case.json")
    assert caught.value.source == "case.json"
    return [str(fault) for fault in caught.value.faults]


def test_a_case_holds_what_the_file_says():
    case = read_phaze(chain())
    assert [table.tensor_parallel for table in case.widths] == [1, 2]
    assert case.widths[1].forward_s.tolist() == [0.002, 0.005, 0.005, 0.005, 0.005, 0.002]
    assert case.widths[1].is_split.tolist() == [False, True, True, True, True, False]
    assert case.widths[0].edges[2].bytes == 1e6
    assert (case.setting.num_devices, case.setting.num_microbatches) == (8, 16)
    assert case.optimizer is Optimizer.ADAM
    assert case.fixed is not None
    assert (case.fixed.num_stages, case.fixed.num_layers) == (2, 4)
    assert not any(table.branches for table in case.widths)


def test_the_order_of_layers_and_edges_in_the_file_means_nothing():
    value, shuffled = chain(), copy.deepcopy(chain())
    for width in ("1", "2"):
        random.Random(3).shuffle(shuffled["nodes"][width])
        random.Random(4).shuffle(shuffled["edges"][width])
    plain, other = read_phaze(value), read_phaze(shuffled)
    for one, two in zip(plain.widths, other.widths, strict=True):
        assert one.layer_ids == two.layer_ids
        assert one.parameter_bytes.tolist() == two.parameter_bytes.tolist()
        assert sorted(one.edges, key=str) == sorted(two.edges, key=str)


def test_it_may_lie_in_the_input_of_a_larger_object():
    wrapped = {"format": 1, "input": chain(), "expected": {}}
    assert placement_part(wrapped) == chain()
    assert read_phaze(wrapped).setting.num_devices == 8


def test_a_fraction_of_a_microbatch_is_cut_off():
    assert read_phaze(chain(mbsInBatch=7.9)).setting.num_microbatches == 7


def test_a_caller_replaces_what_the_file_says_of_the_machine():
    value = chain()
    del value["bandwidth"]
    given = {"bandwidth_bytes_per_s": 5.0, "num_devices": 3}
    setting = read_phaze(value, given=given).setting
    assert (setting.bandwidth_bytes_per_s, setting.num_devices) == (5.0, 3)


def test_without_a_strategy_there_is_none():
    value = {key: kept for key, kept in chain().items() if not key.startswith(("fixed", "num"))}
    assert read_phaze(value).fixed is None


def test_every_fault_is_named_with_its_place():
    value = chain(bandwidth=0, optimizerAlgorithm="Lion", activationRecomputation="no", fixedPP=0)
    value["nodes"]["1"][2]["optimalLatencyFw"] = -1
    value["nodes"]["2"][3]["id"] = 2
    value["edges"]["1"][0]["destId"] = 77
    found = faults(value)
    for wanted in (
        "bandwidth: must be > 0, got 0",
        'optimizerAlgorithm: must be one of "SGD", "Adam", got "Lion"',
        'activationRecomputation: must be true or false, got "no"',
        "fixedPP: must be >= 1, got 0",
        'nodes["1"][2].optimalLatencyFw: must be >= 0, got -1',
        'nodes["2"][3].id: must be unique, got 2 (also 2)',
        'edges["1"][0].destId: must be the id of a node, got 77',
    ):
        assert wanted in found


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"nodes": {}}, "nodes: must have at least 1 tensor width, got 0"),
        ({"nodes": []}, "nodes: must be an object, got [] (array)"),
        ({"edges": {"1": []}}, 'edges["2"]: required field is missing'),
        ({"mbsInBatch": 0.5}, "mbsInBatch: must be >= 1, got 0.5"),
        ({"mbsInBatch": 1e40}, "mbsInBatch: must be <= 1000000000000, got 1e+40"),
        ({"maxDevices": 2.5}, "maxDevices: must be an integer, got 2.5"),
    ],
)
def test_broken_fields_are_refused(change, wanted):
    assert wanted in faults(chain(**change))


def test_cycles_strange_widths_and_missing_layers_are_refused():
    value = chain()
    value["edges"]["1"].append({"sourceId": 3, "destId": 1, "communicationCost": 0})
    assert 'edges["1"]: must be acyclic, got the cycle 1 -> 2 -> 3 -> 1' in faults(value)
    value = chain()
    for name in ("nodes", "edges"):
        value[name]["two"] = value[name].pop("2")
    assert 'nodes["two"]: must be a tensor width, a whole number >= 1' in faults(value)
    value = chain()
    value["nodes"]["2"].pop()
    value["edges"]["2"].pop()
    assert 'nodes["2"]: must list the layers of width "1"' in faults(value)


@needs_reference
def test_every_published_case_is_read():
    for path in sorted((reference() / "codesign" / "placement").glob("*.json")):
        case = read_phaze(json.loads(path.read_text()), source=path.name)
        value = json.loads(path.read_text())["input"]
        assert len(case.widths) == len(value["nodes"])
        assert case.setting.memory_bytes == value["maxMemoryPerDevice"]
