"""Profiled partitioning, read aloud: slow, plain, and sharing no code with the package.

Everything here works on a Piper JSON object and on stages written as the published results are:
dictionaries with `nodes`, `d`, `t` and `config`. Plans are priced in exact fractions. The search
tries every chain of downsets, every tensor-parallel degree, every divisor of the number of
microbatches and every combination of configs; six layers on eight devices are its limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations

MEMORY_SLACK = Fraction(1, 10**12)


@dataclass(frozen=True)
class Price:
    time: Fraction
    compute: Fraction
    edge_traffic: Fraction
    gradient_sync: Fraction
    memory: Fraction
    in_flight: int


def merged_edges(piper) -> dict[tuple[int, int], Fraction]:
    merged = {}
    for edge in piper["edges"]:
        pair = edge["sourceId"], edge["destId"]
        merged[pair] = merged.get(pair, Fraction(0)) + Fraction(edge["communicationCost"])
    return merged


def configs_by_degree(node) -> dict[int, list[dict]]:
    return {int(t): configs for t, configs in node["TMPCs"].items() if configs}


def price_plan(piper, stages) -> list[Price]:
    """What each stage costs; the plan must name layers, degrees and configs that exist."""
    nodes = {node["id"]: node for node in piper["nodes"]}
    edges = merged_edges(piper)
    num_microbatches, bandwidth = piper["mbsInBatch"], Fraction(piper["bandwidth"])
    prices = []
    for i, stage in enumerate(stages):
        inside, d = set(stage["nodes"]), stage["d"]
        config = {
            v: next(
                config
                for config in configs_by_degree(nodes[v])[stage["t"]]
                if config["id"] == stage["config"][str(v)]
            )
            for v in stage["nodes"]
        }
        cut = Fraction(0)
        for (u, v), size in edges.items():
            if v in inside and u not in inside:
                cut += size + Fraction(config[v]["syncTimeFw"][str(u)])
            if u in inside and v not in inside:
                cut += size + Fraction(config[u]["syncTimeBw"][str(v)])
        in_flight = math.ceil(Fraction(sum(later["d"] for later in stages[i:]), d))
        compute = sum(Fraction(config[v]["timePerSample"]) for v in inside) / d
        parameters = sum(Fraction(config[v]["parameterSize"]) for v in inside)
        traffic = 2 * cut / (d * bandwidth)
        sync = Fraction(4 * (d - 1), d) * parameters / (num_microbatches * bandwidth)
        memory = sum(
            Fraction(config[v]["memoryUsageA"]) * in_flight + Fraction(config[v]["memoryUsageB"])
            for v in inside
        )
        prices.append(Price(compute + traffic + sync, compute, traffic, sync, memory, in_flight))
    return prices


def broken_rules(piper, stages) -> set[str]:
    """The rules a plan breaks, other than memory."""
    nodes = {node["id"]: node for node in piper["nodes"]}
    placed = [v for stage in stages for v in stage["nodes"]]
    stage_of = {v: i for i, stage in enumerate(stages) for v in stage["nodes"]}
    broken = set()
    if not all(stage["nodes"] for stage in stages):
        broken.add("empty stage")
    if len(placed) != len(set(placed)) or set(placed) != set(nodes):
        broken.add("placement")
    if any(stage_of.get(u, 0) > stage_of.get(v, len(stages)) for u, v in merged_edges(piper)):
        broken.add("order")
    for stage in stages:
        if piper["mbsInBatch"] % stage["d"]:
            broken.add("divisor")
        for v in stage["nodes"]:
            offered = configs_by_degree(nodes[v]) if v in nodes else {stage["t"]: []}
            if stage["t"] not in offered:
                broken.add("degree")
            elif v in nodes and stage["config"][str(v)] not in [
                config["id"] for config in offered[stage["t"]]
            ]:
                broken.add("config")
    if sum(stage["d"] * stage["t"] for stage in stages) > piper["maxDevices"]:
        broken.add("devices")
    if sum(stage["d"] for stage in stages) > piper["mbsInBatch"]:
        broken.add("replicas")
    return broken


def fits(piper, prices) -> bool:
    limit = Fraction(piper["maxMemoryPerDevice"]) * (1 + MEMORY_SLACK)
    return all(price.memory <= limit for price in prices)


def time_of_legal_plan(piper, stages) -> float:
    """Price a plan that has to be legal and to fit."""
    assert not broken_rules(piper, stages)
    prices = price_plan(piper, stages)
    assert fits(piper, prices)
    return float(max(price.time for price in prices))


def least_time(piper, *, data_degrees=None) -> float | None:
    """The smallest time per sample over all plans that fit; None where none does."""
    layers = frozenset(node["id"] for node in piper["nodes"])
    num_devices, num_microbatches = piper["maxDevices"], piper["mbsInBatch"]
    divisors = [d for d in range(1, num_microbatches + 1) if num_microbatches % d == 0]
    degrees = [d for d in divisors if data_degrees is None or d in data_degrees]
    downsets = all_downsets(piper)
    stage_time = cache(_stage_timer(piper))
    tensor_degrees = {t for node in piper["nodes"] for t in configs_by_degree(node)}

    @cache
    def rest(placed, devices, replicas) -> float:
        """The least slowest stage of everything before `placed`, the layers of the last stages."""
        if placed == layers:
            return 0.0
        best = math.inf
        for larger in downsets:
            if not placed < larger:
                continue
            inside = larger - placed
            for t in tensor_degrees:
                for d in degrees:
                    if devices + d * t > num_devices or replicas + d > num_microbatches:
                        continue
                    in_flight = math.ceil((replicas + d) / d)
                    slowest = stage_time(inside, t, d, in_flight)
                    if slowest < best:
                        before = rest(larger, devices + d * t, replicas + d)
                        best = min(best, max(slowest, before))
        return best

    best = rest(frozenset(), 0, 0)
    return None if best == math.inf else best


def all_downsets(piper) -> list[frozenset[int]]:
    """All sets of layers that contain the successors of each of their layers, the empty one too."""
    ids = [node["id"] for node in piper["nodes"]]
    pairs = list(merged_edges(piper))
    return [
        frozenset(members)
        for size in range(len(ids) + 1)
        for members in combinations(ids, size)
        if all(v in members for u, v in pairs if u in members)
    ]


def _stage_timer(piper):
    """Time of a stage under its best configs that fit, infinite where none do."""
    nodes = {node["id"]: node for node in piper["nodes"]}
    edges = {pair: float(size) for pair, size in merged_edges(piper).items()}
    num_microbatches, bandwidth = piper["mbsInBatch"], piper["bandwidth"]
    limit = piper["maxMemoryPerDevice"] * (1 + 1e-12)

    def share(v, config, inside):
        """What one layer adds to the sums P, X, W, a and b of its stage."""
        cut = 0.0
        for (source, target), size in edges.items():
            if target == v and source not in inside:
                cut += size + config["syncTimeFw"][str(source)]
            if source == v and target not in inside:
                cut += size + config["syncTimeBw"][str(target)]
        p, w = config["timePerSample"], config["parameterSize"]
        return p, cut, w, config["memoryUsageA"], config["memoryUsageB"]

    @cache
    def combined(inside, t):
        """The sums (P, X, W, a, b) of every combination of configs."""
        sums = {(0.0, 0.0, 0.0, 0.0, 0.0)}
        for v in inside:
            shares = {share(v, c, inside) for c in configs_by_degree(nodes[v]).get(t, [])}
            sums = {
                (p + more_p, x + more_x, w + more_w, a + more_a, b + more_b)
                for p, x, w, a, b in sums
                for more_p, more_x, more_w, more_a, more_b in shares
            }
        return sums

    def stage_time(inside, t, d, in_flight):
        sync = 4 * (d - 1) / d / (num_microbatches * bandwidth)
        return min(
            (
                p / d + 2 * x / (d * bandwidth) + sync * w
                for p, x, w, a, b in combined(inside, t)
                if a * in_flight + b <= limit
            ),
            default=math.inf,
        )

    return stage_time


def least_equal_time(piper, *, block_name=None, tensor_degrees=None) -> float | None:
    """The smallest time over all equal splits; `block_name` None makes every layer a block."""
    order = stack_order(piper)
    nodes = {node["id"]: node for node in piper["nodes"]}
    blocks = [v for v in order if block_name in (None, nodes[v]["name"])]
    ancestors = _ancestors(piper, blocks)
    initial = [v for v in order if v not in blocks and v in ancestors]
    final = [v for v in order if v not in blocks and v not in ancestors]
    keys = {
        (t, config["id"])
        for node in piper["nodes"]
        for t, configs in configs_by_degree(node).items()
        for config in configs
        if tensor_degrees is None or t in tensor_degrees
    }
    times = []
    for num_stages in range(1, len(blocks) + 1):
        dealt = _deal(blocks, num_stages)
        joined = [list(stage) for stage in dealt]
        joined[0] = initial + joined[0]
        joined[-1] = joined[-1] + final
        for groups in (joined, [initial, *dealt, final]):
            for t, config in keys:
                for d in range(1, piper["mbsInBatch"] + 1):
                    stages = [
                        {"nodes": group, "d": d, "t": t, "config": {str(v): config for v in group}}
                        for group in groups
                    ]
                    if not broken_rules(piper, stages):
                        prices = price_plan(piper, stages)
                        if fits(piper, prices):
                            times.append(max(price.time for price in prices))
    return float(min(times)) if times else None


def stack_order(piper) -> list[int]:
    """Topological order: pop the layer pushed last, push its successors as they become ready."""
    edges = list(merged_edges(piper))
    waiting = {node["id"]: 0 for node in piper["nodes"]}
    for _, v in edges:
        waiting[v] += 1
    stack, order = [v for v, count in waiting.items() if count == 0], []
    while stack:
        order.append(stack.pop())
        for u, v in edges:
            if u == order[-1]:
                waiting[v] -= 1
                if waiting[v] == 0:
                    stack.append(v)
    return order


def _ancestors(piper, layers) -> set[int]:
    found, frontier = set(), set(layers)
    while frontier:
        frontier = {u for u, v in merged_edges(piper) if v in frontier} - found
        found |= frontier
    return found


def _deal(blocks, num_stages) -> list[list[int]]:
    """Equal shares in order; the last ones get what is left over."""
    q, left_over = divmod(len(blocks), num_stages)
    dealt, start = [], 0
    for i in range(num_stages):
        size = q + (i >= num_stages - left_over)
        dealt.append(blocks[start : start + size])
        start += size
    return dealt
