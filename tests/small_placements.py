"""A small placement input: an embedding, four equal blocks and a head, at two tensor widths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def layer(number: int, *, forward: float, parameters: float, split: bool) -> dict[str, Any]:
    return {
        "id": number,
        "parameterSize": parameters,
        "activationSize": 4e6,
        "optimalLatencyFw": forward,
        "optimalLatencyBw": 2 * forward,
        "isTensorParallelized": split,
    }


def chain(**changes: Any) -> dict[str, Any]:
    """Six layers on eight devices of 1 GB; `changes` replace fields of the input."""
    nodes, edges = {}, {}
    for width in (1, 2):
        blocks = [
            layer(v, forward=0.01 / width, parameters=50e6 / width, split=width > 1)
            for v in range(1, 5)
        ]
        ends = [layer(v, forward=0.002, parameters=30e6, split=False) for v in (0, 5)]
        nodes[str(width)] = [ends[0], *blocks, ends[1]]
        edges[str(width)] = [
            {"sourceId": v, "destId": v + 1, "communicationCost": 1e6} for v in range(5)
        ]
    made = {
        "maxMemoryPerDevice": 1e9,
        "maxDevices": 8,
        "bandwidth": 1e10,
        "mbsInBatch": 16,
        "nodes": nodes,
        "edges": edges,
        "activationRecomputation": False,
        "optimizerAlgorithm": "Adam",
        "fixedPP": 2,
        "fixedTMPC": 1,
        "fixedDP": 2,
        "numTransformerLayers": 4,
    }
    return made | changes


def chain_file(folder: Path, **changes: Any) -> Path:
    """The input as a file."""
    path = folder / "chain.json"
    path.write_text(json.dumps(chain(**changes)), encoding="utf-8")
    return path
