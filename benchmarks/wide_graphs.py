"""Generated graphs of Inception's kind: blocks in sequence, parallel branches in every block.

All costs are drawn at random, so no two layers have the same ratio of memory to time, and the
memory limit makes about half of the layers recompute: the case that defeats a branch and bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainwright.profile import (
    CostTable,
    Edge,
    Layer,
    Origin,
    Profile,
    ProfilePoint,
    Provenance,
    Recompute,
    Setting,
    Structure,
)

GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class WideSpec:
    """What varies: `varied` draws parameters and boundary bytes per option, not per layer."""

    seed: int
    degrees: tuple[int, ...] = (1,)
    options_per_degree: int = 2
    varied: bool = False


def wide_structure(rng: np.random.Generator) -> Structure:
    """Between 200 and 330 layers in 8 to 12 blocks of 3 or 4 branches of 2 to 8 layers."""
    while True:
        edges: list[tuple[int, int]] = []
        last, count = 0, 1
        for _ in range(int(rng.integers(8, 13))):
            ends = []
            for _ in range(int(rng.integers(3, 5))):
                above = last
                for _ in range(int(rng.integers(2, 9))):
                    edges.append((above, count))
                    above, count = count, count + 1
                ends.append(above)
            edges.extend((end, count) for end in ends)
            last, count = count, count + 1
        if 200 <= count <= 330:
            return _structure(rng, count, edges)


def _structure(rng: np.random.Generator, count: int, edges: list[tuple[int, int]]) -> Structure:
    layers = tuple(Layer(id=v, name="layer", layer_class=v) for v in range(count))
    sizes = rng.uniform(1e5, 3e6, len(edges))
    return Structure(
        layers=layers,
        edges=tuple(
            Edge(source=u, target=v, bytes=float(size))
            for (u, v), size in zip(edges, sizes, strict=True)
        ),
    )


def star_structure(rng: np.random.Generator, width: int) -> Structure:
    """One layer, `width` layers side by side, one layer: 2^width + 2 downsets."""
    edges = [(0, 1 + i) for i in range(width)] + [(1 + i, width + 1) for i in range(width)]
    return _structure(rng, width + 2, edges)


def wide_profile(spec: WideSpec) -> Profile:
    """Blocks of branches, drawn by `spec`."""
    rng = np.random.default_rng(spec.seed)
    return drawn_profile(wide_structure(rng), rng, spec)


def star_profile(spec: WideSpec, *, width: int) -> Profile:
    """The graph without any articulation layer but its ends, drawn by `spec`."""
    rng = np.random.default_rng(spec.seed)
    return drawn_profile(star_structure(rng, width), rng, spec)


def operator_structure(rng: np.random.Generator, count: int) -> Structure:
    """Every operator reads one to three of the twelve before it: millions of downsets and more."""
    edges = [
        (int(above), node)
        for node in range(1, count)
        for above in rng.choice(
            np.arange(max(0, node - 12), node),
            size=min(node, int(rng.integers(1, 4))),
            replace=False,
        )
    ]
    return _structure(rng, count, edges)


def operator_profile(spec: WideSpec, *, count: int) -> Profile:
    """A graph of operators, drawn by `spec`."""
    rng = np.random.default_rng(spec.seed)
    return drawn_profile(operator_structure(rng, count), rng, spec)


def drawn_profile(structure: Structure, rng: np.random.Generator, spec: WideSpec) -> Profile:
    """Times of 1 to 10 ms, and recomputation 20 to 45% slower and far smaller."""
    degree_of = np.zeros(len(structure.layers), dtype=np.int64)
    for edge in structure.edges:
        degree_of[edge.source] += 1
        degree_of[edge.target] += 1
    time, saved, static, synced, ids, tensor, boundary, modes = [], [], [], [], [], [], [], []
    offsets = [0]
    for layer in range(len(structure.layers)):
        base = rng.uniform(1e-3, 1e-2), rng.uniform(2e7, 2e8), rng.uniform(1e6, 2e7)
        for t in spec.degrees:
            for option in range(spec.options_per_degree):
                shrink = rng.uniform(0.05, 0.6) ** option
                slower = 1 + option * rng.uniform(0.2, 0.45)
                time.append(base[0] * slower / t * (1 + 0.1 * np.log2(t)))
                saved.append(base[1] * shrink / t)
                static.append(base[2] * 4 / t)
                synced.append(base[2] / t * (rng.uniform(0.8, 1.2) if spec.varied else 1.0))
                ids.append("kept" if option == 0 else f"recompute {option}")
                modes.append(Recompute.NONE if option == 0 else Recompute.FULL)
                tensor.append(t)
                extra = rng.uniform(0, 1e6, degree_of[layer]) if spec.varied else None
                boundary.append(np.zeros(degree_of[layer]) if extra is None else extra)
        offsets.append(len(ids))
    rows = len(ids)
    nothing = np.zeros(rows)
    costs = CostTable(
        class_offsets=np.array(offsets, dtype=np.int64),
        option_ids=tuple(ids),
        tensor_parallel=np.array(tensor, dtype=np.int64),
        recompute=tuple(modes),
        duration_s=np.array(time),
        saved_until_input_grad_bytes=np.array(saved),
        saved_until_weight_grad_bytes=nothing.copy(),
        transient_bytes=nothing.copy(),
        static_bytes=np.zeros((rows, 2, 3)),
        opaque_static_bytes=np.array(static),
        gradient_sync_bytes=np.stack([np.array(synced), nothing], axis=1),
        boundary_offsets=np.concatenate(([0], np.cumsum([len(b) for b in boundary]))),
        boundary_bytes=np.concatenate(boundary),
        provenance=Provenance(origin=Origin.ASSUMED, source="generated"),
    )
    return Profile(structure=structure, costs=costs, point=ProfilePoint())


def wide_setting(profile: Profile, *, num_devices: int, tightness: float) -> Setting:
    """Memory at `tightness` between all layers at their leanest (0) and at their fastest (1)."""
    costs = profile.costs
    rows = [costs.rows_of(c) for c in range(costs.num_classes)]
    fast = sum(costs.saved_bytes[r.start] for r in rows)
    lean = sum(min(costs.saved_bytes[r.start : r.stop]) for r in rows)
    static = sum(costs.opaque_static_bytes[r.start] for r in rows)
    stages = min(num_devices, 8)
    per_stage = (static + (stages / 2 + 0.5) * (lean + tightness * (fast - lean))) / stages
    return Setting(
        num_devices=num_devices,
        memory_bytes=float(per_stage),
        bandwidth_bytes_per_s=25 * GIB,
        num_microbatches=480,
    )
