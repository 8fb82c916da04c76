"""A small transformer by hand, as Piper's JSON: round figures that a reader can check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MIB, GB = 2**20, 1e9


def transformer(
    num_blocks: int = 6, *, devices: int = 8, memory_bytes: float = 16 * GB
) -> dict[str, Any]:
    """Embedding, blocks and head in a chain; blocks split over 1, 2 or 4 devices, or recompute."""
    last = num_blocks + 1
    names = ["Embedding", *["ParallelTransformerLayer"] * num_blocks, "Head"]
    return {
        "maxMemoryPerDevice": memory_bytes,
        "maxDevices": devices,
        "bandwidth": 25 * GB,
        "mbsInBatch": 48,
        "nodes": [
            {"id": v, "name": name, "TMPCs": _configs(v, last)} for v, name in enumerate(names)
        ],
        "edges": [
            {"sourceId": v, "destId": v + 1, "communicationCost": 8 * MIB} for v in range(last)
        ],
    }


def _configs(v: int, last: int) -> dict[str, list[dict[str, Any]]]:
    near = {
        "syncTimeFw": {str(v - 1): 0} if v > 0 else {},
        "syncTimeBw": {str(v + 1): 0} if v < last else {},
    }
    time_s, weights, kept = (0.012, 0.4 * GB, 1 * GB) if 0 < v < last else (0.004, 0.8 * GB, 0.5e9)
    configs: dict[str, list[dict[str, Any]]] = {}
    for degree, slower in ((1, 1.0), (2, 1.1), (4, 1.3)):
        plain = {
            "id": "vanilla",
            "timePerSample": time_s * slower / degree,
            "parameterSize": weights / degree,
            "memoryUsageA": kept / degree,
            "memoryUsageB": 4 * weights / degree,
            **near,
        }
        recomputing = {
            **plain,
            "id": "activation recomp",
            "timePerSample": 4 / 3 * time_s * slower / degree,
            "memoryUsageA": 0.1 * kept / degree,
        }
        configs[str(degree)] = [plain, recomputing]
    return configs


def write_json(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path
