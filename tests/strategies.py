"""Random small instances of profiled partitioning, and random plans for them.

One generator draws from any `random.Random`: a seeded one gives a fixed corpus, Hypothesis's own
gives examples that shrink. Figures are small integers, so that sums are exact, equal times are
common and memory is often met to the byte.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from random import Random

from hypothesis import strategies as st

OPTION_IDS = ("vanilla", "activation recomp", "offload", "x/y ü")
DEGREES = (1, 2, 3, 4)
BLOCK_NAME = "ParallelTransformerLayer"


def piper_objects(**limits) -> st.SearchStrategy[dict]:
    """Piper JSON objects with at most `max_layers` layers."""
    return st.randoms(use_true_random=False).map(lambda rng: random_piper(rng, **limits))


def pipers_with_stages() -> st.SearchStrategy[tuple[dict, list[dict]]]:
    """A Piper object and stages for it, often with a rule broken here or there."""

    def draw(rng: Random) -> tuple[dict, list[dict]]:
        piper = random_piper(rng, max_devices=30)
        return piper, random_stages(rng, piper)

    return st.randoms(use_true_random=False).map(draw)


def random_piper(rng: Random, *, max_layers: int = 6, max_devices: int = 8) -> dict:
    num_layers = max(rng.randint(1, max_layers) for _ in range(2))
    ids = rng.sample(range(-20, 100), num_layers)
    edges = _random_edges(rng, ids)
    heavy = rng.choice((0, 1, 9, 60))
    degrees = sorted(rng.sample(DEGREES, rng.choice((1, 2, 3))))
    nodes = [_random_node(rng, id_, edges, degrees, heavy) for id_ in ids]
    if rng.random() < 0.25:
        _make_alike(nodes, edges)
    rng.shuffle(nodes)
    return {
        "maxMemoryPerDevice": rng.choice((rng.randint(4, 30), 6 * num_layers + 1, 1000)),
        "maxDevices": max(rng.randint(1, max_devices) for _ in range(2)),
        "bandwidth": rng.choice((0.5, 7, 100)),
        "mbsInBatch": rng.choice((1, 2, 3, 4, 5, 6, 8, 8, 12, 12)),
        "nodes": nodes,
        "edges": [
            {"sourceId": u, "destId": v, "communicationCost": rng.randint(0, heavy)}
            for u, v in edges
        ],
    }


def _random_edges(rng: Random, ids: list[int]) -> list[tuple[int, int]]:
    """Pairs that follow the order of `ids`; a pair may come twice."""
    kind = rng.choice(("none", "chain", "sparse", "dense", "components"))
    if kind == "chain":
        return list(pairwise(ids))
    pairs = list(combinations(ids, 2))
    if kind == "components":
        half = set(ids[::2])
        pairs = [(u, v) for u, v in pairs if (u in half) == (v in half)]
    share = {"none": 0.0, "dense": 0.8}.get(kind, 0.4)
    edges = [pair for pair in pairs if rng.random() < share]
    edges += [pair for pair in edges if rng.random() < 0.15]
    rng.shuffle(edges)
    return edges


def _random_node(rng: Random, id_: int, edges, degrees: list[int], heavy: int) -> dict:
    offered = [t for t in degrees if rng.random() < 0.85] or [rng.choice(degrees)]
    table = {str(t): _random_configs(rng, id_, edges, heavy) for t in offered}
    if rng.random() < 0.1:
        table[str(rng.choice(DEGREES) + 4)] = []
    return {"id": id_, "name": rng.choice((BLOCK_NAME, BLOCK_NAME, "embedding")), "TMPCs": table}


def _random_configs(rng: Random, id_: int, edges, heavy: int) -> list[dict]:
    names = rng.sample(OPTION_IDS, rng.choice((1, 2, 2, 3, 4)))
    predecessors = sorted({u for u, v in edges if v == id_})
    successors = sorted({v for u, v in edges if u == id_})
    return [
        {
            "id": name,
            "timePerSample": rng.randint(0, 20),
            "parameterSize": rng.randint(0, 8),
            "memoryUsageA": rng.randint(0, 6),
            "memoryUsageB": rng.randint(0, 6),
            "syncTimeFw": {str(u): rng.randint(0, heavy) for u in predecessors},
            "syncTimeBw": {str(v): rng.randint(0, heavy) for v in successors},
        }
        for name in names
    ]


def _make_alike(nodes: list[dict], edges) -> None:
    """Give every layer the figures of the first; sync bytes differ by neighbour only in number."""
    figures = ("id", "timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB")
    for node in nodes:
        predecessors = {str(u) for u, v in edges if v == node["id"]}
        successors = {str(v) for u, v in edges if u == node["id"]}
        node["TMPCs"] = {
            t: [
                {key: config[key] for key in figures}
                | {"syncTimeFw": dict.fromkeys(sorted(predecessors), 1)}
                | {"syncTimeBw": dict.fromkeys(sorted(successors), 2)}
                for config in configs
            ]
            for t, configs in nodes[0]["TMPCs"].items()
        }


def random_stages(rng: Random, piper: dict) -> list[dict]:
    """Stages that place the layers; `slip` is how often each rule is disregarded."""
    slip = rng.choice((0.0, 0.1))
    order = _random_order(rng, piper)
    if rng.random() < slip:
        rng.shuffle(order)
    if len(order) > 1 and rng.random() < slip:
        order.pop()
    cuts = [0, *(i for i in range(1, len(order)) if rng.random() < 0.4), len(order)]
    nodes = {node["id"]: node for node in piper["nodes"]}
    divisors = [d for d in range(1, piper["mbsInBatch"] + 1) if piper["mbsInBatch"] % d == 0]
    modest = [d for d in divisors if d * (len(cuts) - 1) <= piper["mbsInBatch"]] or divisors
    return [
        _random_stage(rng, [nodes[v] for v in order[start:end]], modest, slip)
        for start, end in pairwise(cuts)
    ]


def _random_order(rng: Random, piper: dict) -> list[int]:
    pairs = [(edge["sourceId"], edge["destId"]) for edge in piper["edges"]]
    left, order = [node["id"] for node in piper["nodes"]], []
    while left:
        ready = [v for v in left if not any(y == v and x in left for x, y in pairs)]
        order.append(rng.choice(ready))
        left.remove(order[-1])
    return order


def _random_stage(rng: Random, group: list[dict], divisors: list[int], slip: float) -> dict:
    """A stage with legal degrees and configs, where the layers share a degree and nothing slips."""
    shared = set.intersection(*({t for t, c in v["TMPCs"].items() if c} for v in group))
    careful = shared and rng.random() >= slip
    t = rng.choice(sorted(shared)) if careful else str(rng.choice(DEGREES))
    config = {}
    for node in group:
        names = [config["id"] for config in node["TMPCs"].get(t, [])]
        careful = names and rng.random() >= slip
        config[str(node["id"])] = rng.choice(names if careful else OPTION_IDS)
    d = rng.randint(1, 8) if rng.random() < slip else rng.choice(divisors)
    return {"nodes": [v["id"] for v in group], "d": d, "t": int(t), "config": config}
