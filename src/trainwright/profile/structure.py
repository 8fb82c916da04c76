"""The layer graph of a profile: what precedes what, and how many bytes flow between.

Layers that cost the same share a *class*, a row group of the cost table, so a 96-layer transformer
prices three classes, not 98 layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from trainwright.errors import Fault, InvalidInput

# What Megatron-LM calls its transformer layers, and so do the profiles of Piper.
BLOCK_LAYER: Final = "ParallelTransformerLayer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer. `id` is the name the input gave it, `layer_class` its rows of the cost table."""

    id: int
    name: str
    layer_class: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A tensor from layer index `source` to layer index `target`, `bytes` per microbatch."""

    source: int
    target: int
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParameters:
    """Parameters that several layers (indices) use, such as tied embeddings; `bytes` in all.

    Layers of one group that end up in different stages need an extra gradient all-reduce.
    """

    layers: tuple[int, ...]
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """A validated directed acyclic graph of layers; at most one edge joins a pair."""

    layers: tuple[Layer, ...]
    edges: tuple[Edge, ...] = ()
    shared_parameters: tuple[SharedParameters, ...] = ()

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        count = len(self.layers)
        if count == 0:
            yield Fault("layers", "must have at least 1 entry, got 0")
        if len({layer.id for layer in self.layers}) < count:
            yield Fault("layers", "ids must be unique")
        if any(not (0 <= e.source < count and 0 <= e.target < count) for e in self.edges):
            yield Fault("edges", "must join existing layers")
            return
        pairs = [(edge.source, edge.target) for edge in self.edges]
        if len(set(pairs)) < len(pairs):
            yield Fault("edges", "must join each pair of layers at most once")
        for cycle in find_cycles(count, pairs):
            names = " -> ".join(str(self.layers[v].id) for v in (*cycle, cycle[0]))
            yield Fault("edges", f"must be acyclic, got the cycle {names}")

    @property
    def num_classes(self) -> int:
        """How many row groups the cost table must have."""
        return 1 + max(layer.layer_class for layer in self.layers)

    @property
    def ids(self) -> tuple[int, ...]:
        """The input's ids in index order."""
        return tuple(layer.id for layer in self.layers)

    def in_edges(self) -> tuple[tuple[int, ...], ...]:
        """For each layer the indices of its incoming edges, ascending."""
        return self._edges_by("target")

    def out_edges(self) -> tuple[tuple[int, ...], ...]:
        """For each layer the indices of its outgoing edges, ascending."""
        return self._edges_by("source")

    def _edges_by(self, end: str) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.layers]
        for index, edge in enumerate(self.edges):
            found[getattr(edge, end)].append(index)
        return tuple(map(tuple, found))


def find_cycles(num_nodes: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """One cycle per strongly connected component that has any, as node lists in edge order.

    Kahn's algorithm first peels off everything that precedes a cycle, then, on the reversed graph,
    everything that follows one; each remaining node lies on or between cycles. O(nodes + edges),
    no recursion.
    """
    core = _core_nodes(num_nodes, edges)
    if not core:
        return []
    inner = [(u, v) for u, v in edges if u in core and v in core]
    successors: dict[int, list[int]] = {v: [] for v in sorted(core)}
    for u, v in inner:
        successors[u].append(v)
    cycles = []
    for component in _strong_components(successors):
        members = set(component)
        if len(members) > 1 or component[0] in successors[component[0]]:
            cycles.append(_shortest_cycle(min(members), members, successors))
    return sorted(cycles)


def _core_nodes(num_nodes: int, edges: Sequence[tuple[int, int]]) -> set[int]:
    alive = set(range(num_nodes))
    for forward in (True, False):
        arcs = [(u, v) if forward else (v, u) for u, v in edges if u in alive and v in alive]
        waiting = dict.fromkeys(alive, 0)
        following: dict[int, list[int]] = {}
        for u, v in arcs:
            waiting[v] += 1
            following.setdefault(u, []).append(v)
        ready = [v for v, count in waiting.items() if count == 0]
        while ready:
            u = ready.pop()
            alive.discard(u)
            for v in following.get(u, ()):
                waiting[v] -= 1
                if waiting[v] == 0:
                    ready.append(v)
    return alive


def _strong_components(successors: dict[int, list[int]]) -> list[list[int]]:
    """Kosaraju's two passes, with explicit stacks."""
    order: list[int] = []
    seen: set[int] = set()
    for root in successors:
        stack = [] if root in seen else [(root, iter(successors[root]))]
        seen.add(root)
        while stack:
            node, rest = stack[-1]
            fresh = next((v for v in rest if v not in seen), None)
            if fresh is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(fresh)
                stack.append((fresh, iter(successors[fresh])))
    predecessors: dict[int, list[int]] = {v: [] for v in successors}
    for u, following in successors.items():
        for v in following:
            predecessors[v].append(u)
    components, placed = [], set[int]()
    for root in reversed(order):
        component, pending = [], [] if root in placed else [root]
        placed.add(root)
        while pending:
            node = pending.pop()
            component.append(node)
            fresh_nodes = [u for u in predecessors[node] if u not in placed]
            placed.update(fresh_nodes)
            pending.extend(fresh_nodes)
        if component:
            components.append(component)
    return components


def _shortest_cycle(start: int, members: set[int], successors: dict[int, list[int]]) -> list[int]:
    parent: dict[int, int] = {}
    frontier = [start]
    while start not in parent:
        following = []
        for u in frontier:
            for v in successors[u]:
                if v in members and v not in parent:
                    parent[v] = u
                    following.append(v)
        frontier = following
    path = [start]
    while (step := parent[path[-1]]) != start:
        path.append(step)
    return [start, *reversed(path[1:])]


# The flat setting of the profiled partitioning problem: identical devices, one bandwidth
# ---------------------------------------------------------------------------------------
# Piper's files carry these four numbers beside the layers (`maxDevices`, `maxMemoryPerDevice`,
# `bandwidth`, `mbsInBatch`); a cluster and a workload reduce to them.

LARGEST_COUNT: Final = 10**12  # far beyond any machine, and its divisors are found in a moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How many devices, how large, how connected, and how many microbatches a batch has."""

    num_devices: int
    memory_bytes: float
    bandwidth_bytes_per_s: float
    num_microbatches: int

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for name in ("num_devices", "num_microbatches"):
            if (count := getattr(self, name)) < 1:
                yield Fault(name, f"must be >= 1, got {count}")
            elif count > LARGEST_COUNT:
                yield Fault(name, f"must be <= {LARGEST_COUNT}, got {count}")
        for name in ("memory_bytes", "bandwidth_bytes_per_s"):
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                yield Fault(name, f"must be finite and > 0, got {value!r}")

    @property
    def data_parallel_degrees(self) -> tuple[int, ...]:
        """The divisors of the number of microbatches that fit on the devices, ascending."""
        limit = min(self.num_devices, self.num_microbatches)
        return tuple(d for d in divisors(self.num_microbatches) if d <= limit)


def divisors(n: int) -> list[int]:
    """All divisors of n, ascending; O(√n)."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]
