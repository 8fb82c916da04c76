"""What a faulty Piper profile is told: every rule, in the words of the format's error table."""

from __future__ import annotations

import json
import math

import pytest

from piper_examples import config, diamond, node
from trainwright.errors import InvalidInput
from trainwright.formats.piper_json import read_piper, read_piper_bytes


def faults_of(value) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        read_piper(value, source="profile.json")
    assert caught.value.source == "profile.json"
    return list(map(str, caught.value.faults))


def faults_of_text(text: str | bytes) -> list[str]:
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(InvalidInput) as caught:
        read_piper_bytes(data)
    return list(map(str, caught.value.faults))


def changed(change) -> list[str]:
    value = diamond()
    change(value)
    return faults_of(value)


def first_config(value, index=1):
    return value["nodes"][index]["TMPCs"]["1"][0]


def put(holder, key, entry):
    holder[key] = entry


ONE_FAULT = {
    "required field missing": (
        lambda v: v["nodes"][3]["TMPCs"]["2"][0].pop("syncTimeFw"),
        'nodes[3].TMPCs["2"][0].syncTimeFw: required field is missing',
    ),
    "no edges field": (lambda v: v.pop("edges"), "edges: required field is missing"),
    "no nodes field": (lambda v: v.pop("nodes"), "nodes: required field is missing"),
    "no memory": (
        lambda v: v.pop("maxMemoryPerDevice"),
        "maxMemoryPerDevice: required field is missing",
    ),
    "no batch size": (
        lambda v: v.pop("mbsInBatch"),
        "mbsInBatch: required field is missing (maxBatchSize is accepted too)",
    ),
    "two batch sizes": (
        lambda v: v.update(mbsInBatch=1920, maxBatchSize=512),
        "maxBatchSize: must equal mbsInBatch (1920), got 512",
    ),
    "text for a number": (
        lambda v: v.update(bandwidth="25e9"),
        'bandwidth: must be a number, got "25e9" (string)',
    ),
    "null for a number": (
        lambda v: first_config(v).update(memoryUsageA=None),
        'nodes[1].TMPCs["1"][0].memoryUsageA: must be a number, got null',
    ),
    "true for an integer": (
        lambda v: v.update(maxDevices=True),
        "maxDevices: must be an integer, got true (boolean)",
    ),
    "text for an integer": (
        lambda v: v.update(maxDevices="8"),
        'maxDevices: must be an integer, got "8" (string)',
    ),
    "fraction for an integer": (
        lambda v: v.update(maxDevices=8.5),
        "maxDevices: must be an integer, got 8.5",
    ),
    "infinite integer": (
        lambda v: v.update(mbsInBatch=math.inf),
        "mbsInBatch: must be finite, got Infinity",
    ),
    "no devices": (lambda v: v.update(maxDevices=0), "maxDevices: must be >= 1, got 0"),
    "too many devices": (
        lambda v: v.update(maxDevices=10**400),
        "maxDevices: must be <= 1000000000000, got 100000000000… (401 digits)",
    ),
    "no bandwidth": (lambda v: v.update(bandwidth=0), "bandwidth: must be > 0, got 0"),
    "huge integer for a number": (
        lambda v: v.update(bandwidth=10**400),
        "bandwidth: must be finite, got 100000000000… (401 digits)",
    ),
    "an object for an array": (
        lambda v: v.update(edges={"0": 1}),
        "edges: must be an array, got {...} (object)",
    ),
    "an array for an object": (
        lambda v: v["nodes"][1].update(TMPCs=[]),
        "nodes[1].TMPCs: must be an object, got [] (array)",
    ),
    "null for a list of configs": (
        lambda v: v["nodes"][1].update(TMPCs={"1": None}),
        'nodes[1].TMPCs["1"]: must be an array, got null',
    ),
    "a number for a config": (
        lambda v: v["nodes"][1]["TMPCs"]["1"].append(7),
        'nodes[1].TMPCs["1"][2]: must be an object, got 7 (number)',
    ),
    "a number for a name": (
        lambda v: v["nodes"][1].update(name=1),
        "nodes[1].name: must be a string, got 1 (number)",
    ),
    "out of range": (
        lambda v: v["nodes"][0]["TMPCs"]["1"][1].update(timePerSample=-0.5),
        'nodes[0].TMPCs["1"][1].timePerSample: must be >= 0, got -0.5',
    ),
    "negative sync value": (
        lambda v: first_config(v)["syncTimeBw"].update({"3": -1}),
        'nodes[1].TMPCs["1"][0].syncTimeBw["3"]: must be >= 0, got -1',
    ),
    "non-finite": (
        lambda v: v["edges"][2].update(communicationCost=math.nan),
        "edges[2].communicationCost: must be finite, got NaN",
    ),
    "negative infinity": (
        lambda v: first_config(v).update(timePerSample=-math.inf),
        'nodes[1].TMPCs["1"][0].timePerSample: must be finite, got -Infinity',
    ),
    "sum of parallel edges": (
        lambda v: (
            v["edges"][0].update(communicationCost=1e308)
            or v["edges"].append(dict(v["edges"][0], communicationCost=1.7e308))
        ),
        "edges[4].communicationCost: must be finite when summed over the edges 0 -> 1, "
        "got Infinity",
    ),
    "bad degree key": (
        lambda v: put(v["nodes"][3]["TMPCs"], "two", []),
        'nodes[3].TMPCs["two"]: key must be a positive integer, got "two"',
    ),
    "leading zero": (
        lambda v: put(v["nodes"][3]["TMPCs"], "01", []),
        'nodes[3].TMPCs["01"]: key must be a positive integer, got "01"',
    ),
    "degree with digits of another script": (
        lambda v: put(v["nodes"][3]["TMPCs"], "٣", []),
        'nodes[3].TMPCs["٣"]: key must be a positive integer, got "٣"',
    ),
    "huge degree": (
        lambda v: put(v["nodes"][3]["TMPCs"], "1" + "0" * 20, []),
        'nodes[3].TMPCs["100000000000000000000"]: key must be <= 1000000000000, '
        'got "100000000000000000000"',
    ),
    "no config at all": (
        lambda v: v["nodes"][2].update(TMPCs={"1": [], "2": []}),
        "nodes[2].TMPCs: must offer at least one config, got none",
    ),
    "duplicate config id": (
        lambda v: v["nodes"][3]["TMPCs"]["1"].append(dict(first_config(v, 3))),
        'nodes[3].TMPCs["1"][2].id: must be unique within the degree, got "vanilla" (also [0])',
    ),
    "empty config id": (
        lambda v: first_config(v).update(id=""),
        'nodes[1].TMPCs["1"][0].id: must be non-empty, got ""',
    ),
    "unknown endpoint": (
        lambda v: v["edges"].append({"sourceId": 0, "destId": 99, "communicationCost": 1}),
        "edges[4].destId: must be the id of a node, got 99",
    ),
    "sync entry missing": (
        lambda v: first_config(v)["syncTimeFw"].clear(),
        'nodes[1].TMPCs["1"][0].syncTimeFw: must have an entry for predecessor 0, got none',
    ),
    "sync entry for a non-neighbour": (
        lambda v: put(first_config(v)["syncTimeBw"], "9", 1),
        'nodes[1].TMPCs["1"][0].syncTimeBw["9"]: key must be a successor of node 1, got "9"',
    ),
    "no nodes": (lambda v: v["nodes"].clear(), "nodes: must have at least 1 entry, got 0"),
    "a node that is no object": (
        lambda v: v["nodes"].append(None),
        "nodes[4]: must be an object, got null",
    ),
    "an edge that is no object": (
        lambda v: v["edges"].append("0 -> 1"),
        'edges[4]: must be an object, got "0 -> 1" (string)',
    ),
}


@pytest.mark.parametrize("case", ONE_FAULT)
def test_one_mistake_is_one_fault_with_path_rule_and_value(case):
    change, message = ONE_FAULT[case]
    assert changed(change) == [message]


def test_a_duplicate_id_names_the_first_holder():
    value = diamond()
    value["nodes"].append(node(2, [], []))
    assert faults_of(value) == ["nodes[4].id: must be unique, got 2 (also nodes[2])"]


def chain_with(*extra_pairs, length=9):
    """0 -> 1 -> ... and more edges, sync tables included."""
    pairs = [*((u, u + 1) for u in range(length - 1)), *extra_pairs]
    near = {
        v: ([a for a, b in pairs if b == v != a], [b for a, b in pairs if a == v != b])
        for v in range(length)
    }
    return diamond() | {
        "nodes": [node(v, *near[v]) for v in range(length)],
        "edges": [{"sourceId": u, "destId": v, "communicationCost": 1} for u, v in pairs],
    }


def test_a_cycle_is_named_by_the_layers_on_it():
    value = chain_with((8, 3), (3, 5), (5, 8))
    assert faults_of(value) == ["edges: must be acyclic, got the cycle 3 -> 5 -> 8 -> 3"]


def test_each_strongly_connected_component_gives_one_cycle():
    value = chain_with((2, 0), (1, 0), (6, 5), (4, 4))
    assert faults_of(value) == [
        "edges: must be acyclic, got the cycle 0 -> 1 -> 0",
        "edges: must be acyclic, got the cycle 4 -> 4",
        "edges: must be acyclic, got the cycle 5 -> 6 -> 5",
    ]


def test_a_cycle_is_found_beside_other_faults():
    value = chain_with((8, 3))
    value["bandwidth"] = -1
    assert faults_of(value) == [
        "bandwidth: must be > 0, got -1",
        "edges: must be acyclic, got the cycle 3 -> 4 -> 5 -> 6 -> 7 -> 8 -> 3",
    ]


def test_five_faults_are_reported_together_in_document_order():
    value = diamond()
    value["bandwidth"] = "fast"
    value["nodes"][0]["TMPCs"]["1"][1]["timePerSample"] = -1
    del value["nodes"][2]["TMPCs"]["2"][0]["parameterSize"]
    put(first_config(value, 3)["syncTimeFw"], "0", 0)
    text = json.dumps(value).replace('"communicationCost": 9.0', '"communicationCost": NaN')
    assert faults_of_text(text) == [
        'bandwidth: must be a number, got "fast" (string)',
        'nodes[0].TMPCs["1"][1].timePerSample: must be >= 0, got -1',
        'nodes[2].TMPCs["2"][0].parameterSize: required field is missing',
        'nodes[3].TMPCs["1"][0].syncTimeFw["0"]: key must be a predecessor of node 3, got "0"',
        "edges[2].communicationCost: must be finite, got NaN",
    ]


def test_document_order_is_that_of_the_file_not_of_the_format():
    value = diamond()
    value = {"edges": value.pop("edges"), **value}
    value["edges"][0]["communicationCost"] = -1
    value["nodes"][0]["TMPCs"]["1"][0]["timePerSample"] = -2
    value["maxDevices"] = 0
    paths = [fault.split(":")[0] for fault in faults_of(value)]
    assert paths == [
        "edges[0].communicationCost",
        "maxDevices",
        'nodes[0].TMPCs["1"][0].timePerSample',
    ]


def test_faults_in_one_node_do_not_hide_those_of_another():
    value = diamond()
    value["nodes"][0] = 5
    value["nodes"][1]["TMPCs"] = None
    first_config(value, 3)["memoryUsageB"] = "x"
    faults = faults_of(value)
    assert "nodes[0]: must be an object, got 5 (number)" in faults
    assert "nodes[1].TMPCs: must be an object, got null" in faults
    assert 'nodes[3].TMPCs["1"][0].memoryUsageB: must be a number, got "x" (string)' in faults


def test_a_config_with_only_faults_lists_all_of_them():
    value = diamond()
    value["nodes"][1]["TMPCs"] = {"1": [{}]}
    assert [fault.split("[0].")[1] for fault in faults_of(value)] == [
        f"{name}: required field is missing"
        for name in (
            "id",
            "syncTimeFw",
            "syncTimeBw",
            "timePerSample",
            "parameterSize",
            "memoryUsageA",
            "memoryUsageB",
        )
    ]


def test_configs_under_a_bad_degree_are_checked_too():
    value = diamond()
    value["nodes"][0]["TMPCs"]["0"] = [config("x", [], [1, 2]) | {"parameterSize": -3}]
    assert faults_of(value) == [
        'nodes[0].TMPCs["0"]: key must be a positive integer, got "0"',
        'nodes[0].TMPCs["0"][0].parameterSize: must be >= 0, got -3',
    ]


def test_an_edge_to_nowhere_does_not_accuse_the_layers_it_should_have_joined():
    value = diamond()
    value["edges"][2]["destId"] = 77
    assert faults_of(value) == ["edges[2].destId: must be the id of a node, got 77"]
    value["edges"][2].update(sourceId=77, destId=3)
    assert faults_of(value) == ["edges[2].sourceId: must be the id of a node, got 77"]


def test_an_edge_to_nowhere_excuses_no_other_sync_entry():
    value = diamond()
    value["edges"][2]["destId"] = 77
    first_config(value, 1)["syncTimeBw"]["0"] = 1
    assert faults_of(value) == [
        'nodes[1].TMPCs["1"][0].syncTimeBw["0"]: key must be a successor of node 1, got "0"',
        "edges[2].destId: must be the id of a node, got 77",
    ]


def test_a_wrong_id_is_reported_with_the_edges_that_miss_it():
    value = diamond()
    value["nodes"][3]["id"] = "3"
    assert faults_of(value) == [
        'nodes[3].id: must be an integer, got "3" (string)',
        "edges[2].destId: must be the id of a node, got 3",
        "edges[3].destId: must be the id of a node, got 3",
    ]


def test_sync_keys_are_ids_exactly_as_text():
    value = diamond()
    table = first_config(value)["syncTimeFw"]
    table["00"] = table.pop("0")
    assert faults_of(value) == [
        'nodes[1].TMPCs["1"][0].syncTimeFw: must have an entry for predecessor 0, got none',
        'nodes[1].TMPCs["1"][0].syncTimeFw["00"]: key must be a predecessor of node 1, got "00"',
    ]


def test_two_unequal_batch_sizes_are_only_compared_when_both_are_sound():
    value = diamond() | {"maxBatchSize": "8"}
    assert faults_of(value) == ['maxBatchSize: must be an integer, got "8" (string)']


def test_a_repeated_key_is_a_fault_wherever_it_is():
    text = json.dumps(diamond()).replace('"id": 2,', '"id": 2, "id": 2,')
    text = text.replace('"bandwidth": 50.0', '"bandwidth": 50.0, "x": {"y z": 1, "y z": 2}')
    assert faults_of_text(text) == [
        'x["y z"]: must appear once in its object, got 2 entries',
        "nodes[2].id: must appear once in its object, got 2 entries",
    ]


def test_a_repeated_top_level_key_does_not_hide_other_faults():
    text = json.dumps(diamond() | {"maxDevices": 0}).replace("{", '{"mbsInBatch": 8, ', 1)
    assert faults_of_text(text) == [
        "mbsInBatch: must appear once in its object, got 2 entries",
        "maxDevices: must be >= 1, got 0",
    ]


def test_nan_counts_in_unknown_fields_too():
    text = json.dumps(diamond() | {"extra": [0, {"": math.nan}]})
    assert faults_of_text(text) == ['extra[1][""]: must be finite, got NaN']


def test_text_that_is_no_object_is_one_fault_with_line_and_column():
    text = json.dumps(diamond(), indent=1)
    cut = text[: text.index('"edges"')]
    line = cut.count("\n") + 1
    assert faults_of_text(cut) == [
        f"profile: must be a JSON object, got text that breaks off at line {line}, column 2"
    ]
    assert faults_of_text("[1]") == ["profile: must be a JSON object, got [...] (array)"]
    assert faults_of_text(" \n ") == ["profile: must be a JSON object, got an empty file"]


@pytest.mark.parametrize("text", ['{"nodes": [}', b"\xff\xfe\x80", "\0\1\2", "[" * 100_000])
def test_nonsense_is_refused_as_no_json_object(text):
    (fault,) = faults_of_text(text)
    assert fault.startswith("profile: must be a JSON object, got ")


def test_a_huge_file_of_faults_lists_them_all():
    value = diamond()
    configs = [config(f"c{i}", [], [1, 2]) | {"timePerSample": -1} for i in range(20_000)]
    value["nodes"][0]["TMPCs"]["1"] = configs
    assert len(faults_of(value)) == 20_000
