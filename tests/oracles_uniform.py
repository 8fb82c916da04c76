"""The fastest uniform plan by trying every cut, priced by a plain 1F1B simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, kw_only=True)
class SmallChain:
    """Per layer; `backward`, `saved` and `transient` per option."""

    forward: Sequence[float]
    backward: Sequence[Sequence[float]]
    update: Sequence[float]
    saved: Sequence[Sequence[float]]
    transient: Sequence[Sequence[float]]
    static: Sequence[float]
    sharded: Sequence[float]
    sync: Sequence[float]
    transfer: Sequence[float]
    memory: float
    byte_s: float
    latency_s: float
    overlap: float = 0.0
    beside_bytes: float = 0.0
    beside_s: float = 0.0
    tensor: int
    devices: int
    microbatches: int
    degrees: Sequence[int]


def pipeline_ends(
    forward: list[float], backward: list[float], transfer: list[float], m: int
) -> list[float]:
    """End of each stage, actions in 1F1B order, each as early as possible."""
    p = len(forward)
    orders = []
    for i in range(p):
        ahead = min(p - i, m)
        order = [("F", j) for j in range(ahead)]
        for j in range(m):
            order.append(("B", j))
            if ahead + j < m:
                order.append(("F", ahead + j))
        orders.append(order)
    end: dict[tuple[str, int, int], float] = {}
    clock, place = [0.0] * p, [0] * p
    while any(place[i] < len(orders[i]) for i in range(p)):
        for i in range(p):
            while place[i] < len(orders[i]):
                kind, j = orders[i][place[i]]
                source = i - 1 if kind == "F" else i + 1
                ready = 0.0
                if 0 <= source < p:
                    if (kind, source, j) not in end:
                        break
                    ready = end[kind, source, j] + transfer[min(i, source)]
                work = forward[i] if kind == "F" else backward[i]
                clock[i] = max(clock[i], ready) + work
                end[kind, i, j] = clock[i]
                place[i] += 1
    return clock


def fastest(chain: SmallChain) -> float:
    """Seconds of the fastest plan; infinite where nothing fits."""
    best = math.inf
    every = range(len(chain.backward))
    for options in (*([option] for option in every), list(every)):
        for d in chain.degrees:
            m = chain.microbatches // d
            for p in range(1, len(chain.forward) + 1):
                if p * d * chain.tensor <= chain.devices:
                    best = min(best, _fastest_cut(chain, options, d, p, m))
    return best


def _fastest_cut(chain: SmallChain, options: list[int], d: int, p: int, m: int) -> float:
    """Each stage at the quickest of `options` that fits it."""
    layers = len(chain.forward)
    found: tuple[float, list[int]] | None = None
    for stages in range(1, p + 1):
        for inner in combinations(range(1, layers), stages - 1):
            starts = [0, *inner]
            chosen = [
                _quickest(chain, options, stage, d, min(p - i, m))
                for i, stage in enumerate(_stages(starts, layers))
            ]
            longest = max(work for work, _ in chosen)
            if math.isinf(longest):
                continue
            # Of equals, stages that end later and so are fewer.
            later = found is not None and longest == found[0]
            later = later and [*starts, layers] > [*found[1], layers]
            if found is None or longest < found[0] or later:
                found = (longest, starts)
                picked = [option for _, option in chosen]
    if found is None or len(found[1]) < p:
        return math.inf  # a shallower plan is the same
    return _price(chain, picked, found[1], d, m)


def _stages(starts: list[int], layers: int) -> list[range]:
    return [range(a, b) for a, b in zip(starts, [*starts[1:], layers], strict=True)]


def _quickest(
    chain: SmallChain, options: list[int], stage: range, d: int, held: int
) -> tuple[float, int]:
    """Time and option of a stage that holds so many microbatches; infinite where nothing fits."""
    best = (math.inf, -1)
    for option in options:
        size = chain.beside_bytes + sum(
            chain.static[k] + chain.sharded[k] / d + held * chain.saved[option][k] for k in stage
        )
        if size + max(chain.transient[option][k] for k in stage) <= chain.memory:
            work = sum(chain.forward[k] + chain.backward[option][k] for k in stage)
            best = min(best, (work, option))
    return best


def _price(chain: SmallChain, picked: list[int], starts: list[int], d: int, m: int) -> float:
    stages = _stages(starts, len(chain.forward))
    forward = [sum(chain.forward[k] for k in stage) for stage in stages]
    backward = [
        sum(chain.backward[option][k] for k in stage)
        for option, stage in zip(picked, stages, strict=True)
    ]
    ends = pipeline_ends(forward, backward, [chain.transfer[stage[-1]] for stage in stages[:-1]], m)
    return max(
        end + _after(chain, stage, first, last, d)
        for end, stage, first, last in zip(ends, stages, forward, backward, strict=True)
    )


def _after(chain: SmallChain, stage: range, forward: float, backward: float, d: int) -> float:
    """Gradients are scattered under the last backward, weights gathered under the first forward."""
    size = sum(chain.sync[k] for k in stage)
    ring = (d - 1) * (chain.latency_s + size / d * chain.byte_s) if size else 0.0
    exposed = sum(max(0.0, ring - chain.overlap * work) for work in (forward, backward))
    return exposed + chain.beside_s + sum(chain.update[k] for k in stage) / d
