"""Profiles made up for the corpus, in Piper's format and in our own."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from question_lines import edges_of, rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK: Final = "ParallelTransformerLayer"  # what the equal split deals out by default
RECOMPUTED: Final = "activation recomp"  # Piper's id of an option that recomputes


def piper(
    name: str,
    shape: str,
    count: int,
    *,
    degrees: Sequence[int] = (1,),
    recompute: str = "some",
    names: bool = True,
    scale: float = 1.0,
    uniform: bool = False,
) -> dict[str, Any]:
    """A profile in Piper's format.

    `recompute` says which layers offer it: all, some (every other) or none; `uniform` gives all
    layers the costs of the first.
    """
    rng = Random(name)
    joins = edges_of(shape, count, rng)
    costs = [(0.5 + rng.random(), 0.5 + rng.random(), 0.5 + rng.random()) for _ in range(count)]
    nodes = []
    for i in range(count):
        time, weight, kept = costs[0] if uniform else costs[i]
        before = [u for u, v in joins if v == i]
        behind = [v for u, v in joins if u == i]
        configs = {}
        for t in degrees:
            share = (1 + 0.1 * (t - 1)) / t
            exchanged = 0.0 if t == 1 else rounded(2e6 * (t - 1) / t)
            plain = {
                "id": "vanilla",
                "timePerSample": rounded(scale * 0.01 * time * share),
                "parameterSize": rounded(2e8 * weight / t),
                "memoryUsageA": rounded(3e8 * kept / t),
                "memoryUsageB": rounded(12e8 * weight / t),
                "syncTimeFw": {str(u): exchanged for u in before},
                "syncTimeBw": {str(v): exchanged for v in behind},
            }
            again = plain | {
                "id": RECOMPUTED,
                "timePerSample": rounded(scale * 0.0133 * time * share),
                "memoryUsageA": rounded(4e7 * kept / t),
            }
            offers = recompute == "all" or (recompute == "some" and i % 2 == 1)
            configs[str(t)] = [plain, again] if offers else [plain]
        label = "embedding" if i == 0 else "head" if i == count - 1 else BLOCK
        nodes.append({"id": i, **({"name": label} if names else {}), "TMPCs": configs})
    sent = [
        {"sourceId": u, "destId": v, "communicationCost": rounded(1.6e7 * (0.5 + rng.random()))}
        for u, v in joins
    ]
    setting = {"maxMemoryPerDevice": 16e9, "maxDevices": 8, "bandwidth": 25e9, "mbsInBatch": 32}
    return {**setting, "nodes": nodes, "edges": sent}


def own_profile(
    name: str,
    blocks: int,
    *,
    degrees: Sequence[int] = (1, 2),
    experts: bool = False,
    tied: bool = False,
    phases: bool = False,
    points: int = 1,
    setting: bool = True,
) -> dict[str, Any]:
    """A profile in our own format: an embedding, equal blocks and a head, by class."""
    rng = Random(name)
    layers = [
        {"id": 0, "name": "embedding", "layer_class": 0},
        *({"id": i, "name": BLOCK, "layer_class": 1} for i in range(1, blocks + 1)),
        {"id": blocks + 1, "name": "head", "layer_class": 2},
    ]
    edges = [{"source": i, "target": i + 1, "bytes": 8388608} for i in range(blocks + 1)]

    def option(base_s: float, weight: float, t: int, *, again: bool, ends: int) -> dict[str, Any]:
        forward_s = rounded(base_s * (1 + 0.08 * (t - 1)) / t)
        extra_s = forward_s if again else 0.0
        made: dict[str, Any] = {
            "id": "recompute" if again else "plain",
            "tensor_parallel": t,
            "duration_s": forward_s + extra_s + 2 * forward_s,
            "saved_until_input_grad_bytes": rounded((5e7 if again else 6e8) / t),
            "saved_until_weight_grad_bytes": rounded((0.0 if again else 2e8) / t),
            "static_bytes": {
                "dense": {
                    "weight": rounded(weight / t),
                    "gradient": rounded(2 * weight / t),
                    "optimizer": rounded(6 * weight / t),
                }
            },
            "gradient_sync_bytes": {"dense": rounded(weight / t)},
        }
        if again:
            made["recompute"] = "full"
        if t > 1:
            made["boundary_bytes"] = [4194304.0] * ends
        if experts and ends == 2:
            share = rounded(3 * weight / t)
            state = {"weight": share, "gradient": share, "optimizer": rounded(3 * share)}
            made["static_bytes"]["expert"] = state
            made["gradient_sync_bytes"]["expert"] = share
        if phases:
            made["phases"] = {
                "forward_s": forward_s,
                "input_grad_s": forward_s,
                "weight_grad_s": forward_s,
                "recompute_s": extra_s,
            }
        return made

    made_points = []
    for point in range(points):
        classes = []
        for base_s, weight, ends in ((0.001, 4e8, 1), (0.004, 2e8, 2), (0.002, 4e8, 1)):
            stretch = (1 + point) * (0.75 + 0.5 * rng.random())
            kinds = (False, True) if ends == 2 else (False,)
            classes.append(
                {
                    "options": [
                        option(base_s * stretch, weight, t, again=again, ends=ends)
                        for t in degrees
                        for again in kinds
                    ]
                }
            )
        here: dict[str, Any] = {
            "point": {"microbatch_size": 1 + point, "tensor_parallel": list(degrees)},
            "provenance": {"origin": "measured", "source": "made for a test"},
            "layers": layers,
            "edges": edges,
            "classes": classes,
        }
        if tied:
            here["shared_parameters"] = [{"layers": [0, blocks + 1], "bytes": 4e8}]
        made_points.append(here)
    stated = {
        "num_devices": 4,
        "memory_bytes": 16e9,
        "bandwidth_bytes_per_s": 25e9,
        "num_microbatches": 8,
    }
    made = {"kind": "profile", "format_version": 1, "points": made_points}
    return {**made, "setting": stated} if setting else made
