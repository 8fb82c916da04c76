"""Device placement, read aloud: slow, plain, and sharing no code with the package.

Works on the JSON object of a placement input. Tries every tensor width, every assignment of layers
to ordered stages along which no edge goes backwards, every order of the layers of a stage, every
number of replicas, and recomputing or not. Five layers on six devices are its limit.
"""

from __future__ import annotations

import math
from itertools import permutations, product

COMPAT_COPIES = {"SGD": 2, "Adam": 3}
NATIVE_COPIES = {"SGD": 2, "Adam": 8}


def best_time(case, *, native: bool) -> float:
    """Seconds of the fastest batch; infinite where nothing fits."""
    return min(best_time_at(case, width, native=native) for width in case["nodes"])


def best_time_at(case, width: str, *, native: bool) -> float:
    layers = {node["id"]: node for node in case["nodes"][width]}
    edges = [(e["sourceId"], e["destId"], e["communicationCost"]) for e in case["edges"][width]]
    best = math.inf
    for depth in range(1, min(len(layers), case["maxDevices"]) + 1):
        for assigned in product(range(depth), repeat=len(layers)):
            stage_of = dict(zip(layers, assigned, strict=True))
            if len(set(assigned)) < depth or any(stage_of[u] > stage_of[v] for u, v, _ in edges):
                continue
            stages = [[v for v in layers if stage_of[v] == k] for k in range(depth)]
            best = min(best, _best_of(case, int(width), layers, edges, stages, native=native))
    return best


def _best_of(case, width, layers, edges, stages, *, native) -> float:
    devices, num_microbatches = case["maxDevices"], int(case["mbsInBatch"])
    split = [any(layers[v]["isTensorParallelized"] for v in stage) for stage in stages]
    per_replica = sum(width if wide else 1 for wide in split)
    sync = [sum(layers[v]["parameterSize"] for v in stage) for stage in stages]
    synced, factor = (max(sync), 2) if native else (sync[0], 4)
    best = math.inf
    for d in range(1, min(devices // per_replica, num_microbatches) + 1):
        share = math.ceil(num_microbatches / d)
        slowest = 0.0
        for k, stage in enumerate(stages):
            held = len(stages) - k
            if native:
                held = min(held, share)
            slowest = max(slowest, _load(case, layers, edges, stage, held, native=native))
        sync_s = factor * (d - 1) * synced / (d * case["bandwidth"])
        best = min(best, slowest * (share + len(stages) - 1) + sync_s)
    return best


def _load(case, layers, edges, stage, held, *, native) -> float:
    """The least load of a stage that fits, over orders and what may be recomputed."""
    recompute = case["activationRecomputation"]
    choices = [False, True] if native and recompute else [recompute]
    fitting = [
        choice
        for choice in choices
        if _memory(case, layers, edges, stage, held, choice, native=native)
        <= case["maxMemoryPerDevice"] * (1 + 1e-12)
    ]
    orders = [o for o in permutations(stage) if _is_linear(o, edges)]
    loads = [
        _ends(case, layers, edges, o, choice and held > 1) for o in orders for choice in fitting
    ]
    return min(map(sum, loads), default=math.inf)


def _is_linear(order, edges) -> bool:
    place = {v: i for i, v in enumerate(order)}
    return all(place[u] < place[v] for u, v, _ in edges if u in place and v in place)


def _ends(case, layers, edges, order, recomputes) -> tuple[float, float]:
    inside, now = set(order), 0.0
    for v in order:
        waits = [b / case["bandwidth"] for u, w, b in edges if w == v and u not in inside]
        now = max([now, *waits]) + layers[v]["optimalLatencyFw"]
    forward, now = now, 0.0
    if recomputes:
        now = sum(layers[v]["optimalLatencyFw"] for v in order)
    for v in reversed(order):
        waits = [b / case["bandwidth"] for u, w, b in edges if u == v and w not in inside]
        now = max([now, *waits]) + layers[v]["optimalLatencyBw"]
    return forward, now


def _memory(case, layers, edges, stage, held, recomputes, *, native) -> float:
    copies = (NATIVE_COPIES if native else COMPAT_COPIES)[case["optimizerAlgorithm"]]
    parameters = sum(layers[v]["parameterSize"] for v in stage)
    activations = sum(layers[v]["activationSize"] for v in stage)
    kept = activations
    if recomputes:
        kept = sum(b for u, v, b in edges if v in stage and u not in stage)
    return copies * parameters + activations + (held - 1) * kept
