"""A small Piper profile, its parts, and an independent judge of the rules."""

from __future__ import annotations

import math
from pathlib import Path

from reference import reference


def reference_profile(name: str) -> Path:
    return reference() / "profiles" / f"{name}.json"


def config(option_id, predecessors, successors, *, scale=1.0):
    """A config with figures that are all different; sync bytes tell incoming from outgoing."""
    return {
        "id": option_id,
        "timePerSample": 0.5 * scale,
        "parameterSize": 100.0 * scale,
        "memoryUsageA": 10.0 * scale,
        "memoryUsageB": 20.0 * scale,
        "syncTimeFw": {str(u): 1.0 * scale + u for u in predecessors},
        "syncTimeBw": {str(v): 2.0 * scale + v for v in successors},
    }


def node(node_id, predecessors, successors):
    near = (predecessors, successors)
    return {
        "id": node_id,
        "name": f"layer {node_id}",
        "TMPCs": {
            "1": [config("vanilla", *near), config("activation recomp", *near, scale=2.0)],
            "2": [config("vanilla", *near, scale=3.0)],
        },
    }


def diamond():
    """0 -> {1, 2} -> 3."""
    return {
        "maxMemoryPerDevice": 1000.0,
        "maxDevices": 4,
        "bandwidth": 50.0,
        "mbsInBatch": 8,
        "nodes": [node(0, [], [1, 2]), node(1, [0], [3]), node(2, [0], [3]), node(3, [1, 2], [])],
        "edges": [
            {"sourceId": 0, "destId": 1, "communicationCost": 7.0},
            {"sourceId": 0, "destId": 2, "communicationCost": 8.0},
            {"sourceId": 1, "destId": 3, "communicationCost": 9.0},
            {"sourceId": 2, "destId": 3, "communicationCost": 6.0},
        ],
    }


def is_legal(value) -> bool:
    """Whether a JSON value obeys every rule of the format; the rules one by one, no messages."""
    try:
        _check(value)
    except (AssertionError, KeyError, TypeError, AttributeError, ValueError, OverflowError):
        return False
    return True


def _check(value):
    assert isinstance(value, dict)
    assert _number(value["maxMemoryPerDevice"]) > 0
    assert 1 <= _integer(value["maxDevices"]) <= 10**12
    assert _number(value["bandwidth"]) > 0
    batches = {_integer(value[k]) for k in ("mbsInBatch", "maxBatchSize") if k in value}
    assert len(batches) == 1
    assert 1 <= min(batches) <= 10**12
    nodes, edges = value["nodes"], value["edges"]
    assert isinstance(nodes, list)
    assert isinstance(edges, list)
    assert nodes
    ids = [_integer(node["id"]) for node in nodes]
    assert len(set(ids)) == len(ids)
    pairs = set()
    for edge in edges:
        pair = _integer(edge["sourceId"]), _integer(edge["destId"])
        assert set(pair) <= set(ids)
        assert _number(edge["communicationCost"]) >= 0
        pairs.add(pair)
    assert _can_be_ordered(ids, pairs)
    for node, node_id in zip(nodes, ids, strict=True):
        assert isinstance(node.get("name", ""), str)
        assert isinstance(node["TMPCs"], dict)
        assert any(node["TMPCs"].values())
        for degree, configs in node["TMPCs"].items():
            assert degree.isascii()
            assert degree.isdecimal()
            assert degree[0] != "0"
            assert isinstance(configs, list)
            names = [config["id"] for config in configs]
            assert all(isinstance(name, str) and name for name in names)
            assert len(set(names)) == len(names)
            for config in configs:
                for field in ("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB"):
                    assert _number(config[field]) >= 0
                before = {str(u) for u, v in pairs if v == node_id}
                after = {str(v) for u, v in pairs if u == node_id}
                for field, near in (("syncTimeFw", before), ("syncTimeBw", after)):
                    assert isinstance(config[field], dict)
                    assert set(config[field]) == near
                    assert all(_number(entry) >= 0 for entry in config[field].values())


def _number(value):
    assert type(value) in (int, float)
    assert math.isfinite(value)  # an integer beyond all floats raises OverflowError
    return value


def _integer(value):
    assert type(value) is int or (type(value) is float and value == int(value))
    return int(value)


def _can_be_ordered(ids, pairs) -> bool:
    left = set(ids)
    while left:
        free = {v for v in left if not any(y == v and x in left for x, y in pairs)}
        if not free:
            return False
        left -= free
    return True
