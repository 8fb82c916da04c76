"""The fastest tiling of a product by plain enumeration: no candidate is passed over."""

from __future__ import annotations

import math
from collections.abc import Iterator

from trainwright.costing.tiled import Product, TiledMachine


def doubled(first: float, last: float) -> Iterator[float]:
    while first < last:
        yield first
        first *= 2
    yield last


def up(x: float) -> float:
    return float(math.ceil(x))


def folded_cycles(
    a: TiledMachine, dataflow: str, m: float, n: float, k: float, k_t: float
) -> float:
    fill = a.rows + a.columns - 2.0
    if dataflow == "output":
        folds = up(m / a.rows) * up(n / a.columns)
        if a.pipelined_folds:
            return max(folds * k + fill - 1, folds * k)
        slabs = 1.0 if folds == 1 else up(k / k_t)
        return max(folds * (k + slabs * fill) - 1, folds * k)
    streamed, held = (m, n) if dataflow == "weight" else (n, m)
    folds = up(k / a.rows) * up(held / a.columns)
    fill += a.rows
    return folds * streamed + fill if a.pipelined_folds else folds * (streamed + fill)


def core_tiles(a: TiledMachine, p: Product, k: float) -> Iterator[tuple[str, float, float, float]]:
    """Dataflow, then the tile (m, n) and slab k that fit a core's buffer."""
    e, acc, size = a.element_bytes, a.accumulator_bytes, a.core_buffer_bytes
    for m in doubled(min(a.rows, p.m), p.m):
        for n in doubled(min(a.columns, p.n), p.n):
            slab = math.floor((size - m * n * acc) / (2 * (m + n) * e))
            if slab >= 1:
                yield "output", m, n, min(float(slab), k)
    for dataflow, held, streamed in (("weight", p.n, p.m), ("input", p.m, p.n)):
        for slab in doubled(min(a.rows, k), k):
            for h in doubled(min(a.columns, held), held):
                s = float(math.floor((size - 2 * slab * h * e) / (2 * slab * e + h * acc)))
                if s >= 1:
                    s = up(streamed / up(streamed / s))
                    yield (
                        dataflow,
                        (s if dataflow == "weight" else h),
                        (h if dataflow == "weight" else s),
                        slab,
                    )


def memory_bytes(
    a: TiledMachine, p: Product, m_t: float, n_t: float, k_t: float, k: float, split: float
) -> float:
    e, acc, size = a.element_bytes, a.accumulator_bytes, a.glb_bytes
    inputs, weights = p.m * p.k * e, p.k * p.n * e

    def outputs(parts: float) -> float:
        return p.m * p.n * (e + 2 * (parts - 1) * acc)

    found = [math.inf]
    for m in doubled(m_t, p.m):
        n = min(math.floor((size - 2 * m * k_t * e) / (2 * k_t * e + m * acc)), p.n)
        if n >= n_t:
            found.append(inputs * up(p.n / n) + weights * up(p.m / m) + outputs(split))
    for slab in doubled(k_t, k):
        parts = split * up(k / slab)
        n = min(math.floor((size - 2 * m_t * slab * e) / (2 * slab * e + m_t * acc)), p.n)
        if n >= n_t:
            found.append(inputs * up(p.n / n) + weights + outputs(parts))
        m = min(math.floor((size - 2 * n_t * slab * e) / (2 * slab * e + n_t * acc)), p.m)
        if m >= m_t:
            found.append(weights * up(p.m / m) + inputs + outputs(parts))
    return p.batch * min(found)


def fastest_product(a: TiledMachine, p: Product) -> tuple[float, float, float, float]:
    """Seconds, compute seconds, bytes of memory and of the global buffer."""
    e = a.element_bytes
    clock = a.clock_hz * a.compute_efficiency
    pace = a.memory_bandwidth_bytes_per_s * a.memory_efficiency.max
    best = (math.inf, 0.0, 0.0, 0.0)
    split = 1.0
    while split <= min(64, p.k):
        k = up(p.k / split)
        for dataflow, m, n, k_t in core_tiles(a, p, k):
            tiles = up(p.m / m) * up(p.n / n) * p.batch * split
            cycles = folded_cycles(a, dataflow, m, n, k, k_t)
            compute_s = up(tiles / a.num_cores) * cycles / clock
            glb = p.m * p.k * up(p.n / n) * e + p.k * p.n * up(p.m / m) * e
            glb = p.batch * (glb + p.m * p.n * (e + 2 * (split - 1) * a.accumulator_bytes))
            memory = memory_bytes(a, p, m, n, k_t, k, split) if p.streams else 0.0
            memory_s = (memory + a.memory_efficiency.half) / pace if p.streams else 0.0
            fill_s = (m * k_t + k_t * n) * e / pace
            bound_s = max(compute_s, glb / a.glb_bandwidth_bytes_per_s, memory_s)
            seconds = bound_s + fill_s + a.launch_s
            if seconds < best[0]:
                best = (seconds, compute_s, memory, glb)
        split *= 2
    return best
