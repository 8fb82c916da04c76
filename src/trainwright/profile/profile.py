"""What each layer class costs under each option: arrays, one row per (class, option).

A row is one way to run one layer: a tensor-parallel degree, a recompute mode, a kernel choice. Rows
of one class are contiguous, `class_offsets[c]` to `class_offsets[c + 1]`. A chip search swaps the
table and keeps the structure.

Traps. Memory is split by *when it is freed*, because schedules with split backward free some
activations at the input gradient and the rest at the weight gradient. Imported figures that do not
say what they hold go to `opaque_static_bytes` and to `saved_until_input_grad_bytes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, Protocol, Self

import numpy as np

from trainwright.errors import (
    Fault,
    InvalidInput,
    not_positive,
    refuse,
    too_low,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from numpy.typing import NDArray

    from trainwright.arrays import Floats, Ints
    from trainwright.model import Routing
    from trainwright.provenance import Provenance


# The layer graph of a profile: what precedes what, and how many bytes flow between
# ---------------------------------------------------------------------------------
# Layers that cost the same share a *class*, a row group of the cost table, so a 96-layer
# transformer prices three classes, not 98 layers.


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
        refuse(self._faults())

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
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        for name in ("num_devices", "num_microbatches"):
            if (count := getattr(self, name)) < 1:
                yield Fault(name, f"must be >= 1, got {count}")
            elif count > LARGEST_COUNT:
                yield Fault(name, f"must be <= {LARGEST_COUNT}, got {count}")
        yield from not_positive(self, "memory_bytes", "bandwidth_bytes_per_s")

    @property
    def data_parallel_degrees(self) -> tuple[int, ...]:
        """The divisors of the number of microbatches that fit on the devices, ascending."""
        limit = min(self.num_devices, self.num_microbatches)
        return tuple(d for d in divisors(self.num_microbatches) if d <= limit)


def divisors(n: int) -> list[int]:
    """All divisors of n, ascending; O(√n)."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


class Recompute(StrEnum):
    """What becomes of a layer's activations until backward.

    All stay on the device (`NONE`), as many as hide on the way lie on the host (`OFFLOAD`), or
    some, or all but the input, are recomputed (`SELECTIVE`, `FULL`).
    """

    NONE = "none"
    OFFLOAD = "offload"
    SELECTIVE = "selective"
    FULL = "full"

    @property
    def repeats(self) -> bool:
        """Whether backward runs any of the forward pass again."""
        return self in (Recompute.SELECTIVE, Recompute.FULL)


# What layers may use where nothing is named: few frameworks leave single layers to the host.
USUAL_MODES: Final[tuple[Recompute, ...]] = (
    *(Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL),
)


class StaticKind(IntEnum):
    """Last axis of `static_bytes`: what a parameter keeps from step to step.

    ZeRO cuts it over the replicas from its stage `first_cut` on. An update moves each of its bytes
    `touches` times, beside the weights that it writes.
    """

    first_cut: int
    touches: float

    WEIGHT = 0, 3, 0.0
    GRADIENT = 1, 2, 1.0
    OPTIMIZER = 2, 1, 2.0

    def __new__(cls, index: int, first_cut: int, touches: float) -> Self:
        """A kind by its place on the axis."""
        made = int.__new__(cls, index)
        made._value_ = index
        made.first_cut, made.touches = first_cut, touches
        return made

    @property
    def key(self) -> str:
        """Its class of a device's memory (`plans.prediction.StageMemory`)."""
        return f"{self.name.lower()}_bytes"


class TimeKind(IntEnum):
    """Second axis of `time_by_kind_s`: what the exposed time is spent on."""

    COMPUTE = 0
    TENSOR_PARALLEL = 1
    CONTEXT_PARALLEL = 2
    EXPERT_PARALLEL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective inside a layer: its axis, payload, phase, and what it may hide under.

    `routing` is that of tokens of which one copy serves all experts of a unit of devices; `nearest`
    and `apart` say which part of the axis' group exchanges (`model.operator.Exchange`).
    """

    axis: str  # "tensor", "context", "expert"
    kind: str  # "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"
    bytes: float
    phase: str  # "forward", "input_grad", "weight_grad", "recompute"
    hides_under: str | None = None
    routing: Routing | None = None
    nearest: int | None = None
    apart: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseTimes:
    """Seconds of one microbatch by phase, each of shape [rows]; `recompute_s` precedes backward."""

    forward_s: Floats
    input_grad_s: Floats
    weight_grad_s: Floats
    recompute_s: Floats

    def __post_init__(self) -> None:
        freeze_arrays(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PhaseTimes) and _equal_arrays(self, other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def total_s(self) -> Floats:
        """Fused duration of each row."""
        return self.forward_s + self.input_grad_s + self.weight_grad_s + self.recompute_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostTable:
    """Costs per (class, option) row; R rows, C classes. Times are seconds per microbatch.

    `static_bytes` has shape [R, 2, 3]: dense and expert parameters × `StaticKind`. Gradients are
    synchronised per group, so `gradient_sync_bytes` has shape [R, 2] likewise, and so have
    `trained_weight_bytes`, the weights that the optimizer changes: all where absent.
    `boundary_bytes` holds, from `boundary_offsets[r]`, what cutting an edge of the layer adds to
    that edge's bytes: first one value per incoming edge, then one per outgoing edge, both in edge
    order; a row may have none, which means zeros.
    """

    class_offsets: Ints
    option_ids: tuple[str, ...]
    tensor_parallel: Ints
    recompute: tuple[Recompute, ...]
    duration_s: Floats
    saved_until_input_grad_bytes: Floats
    saved_until_weight_grad_bytes: Floats
    transient_bytes: Floats
    static_bytes: Floats
    opaque_static_bytes: Floats
    gradient_sync_bytes: Floats
    boundary_offsets: Ints
    boundary_bytes: Floats
    provenance: Provenance
    phases: PhaseTimes | None = None
    time_by_kind_s: Floats | None = None
    energy_j: Floats | None = None
    collectives: tuple[tuple[Collective, ...], ...] | None = None
    trained_weight_bytes: Floats | None = None

    @property
    def by_phase(self) -> PhaseTimes:
        """The times by phase, which every estimate has."""
        assert self.phases is not None, "an estimate has phases"
        return self.phases

    def __post_init__(self) -> None:
        freeze_arrays(self)
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        rows = self.num_rows
        shapes = {
            "tensor_parallel": (rows,),
            "static_bytes": (rows, 2, len(StaticKind)),
            "gradient_sync_bytes": (rows, 2),
            "trained_weight_bytes": (rows, 2),
            "boundary_offsets": (rows + 1,),
            "time_by_kind_s": (rows, len(TimeKind)),
        }
        shapes |= dict.fromkeys(_ROW_FLOATS, (rows,))
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value is not None and value.shape != shape:
                yield Fault(name, f"must have shape {shape}, got {value.shape}")
            elif value is not None and not is_finite_and_not_negative(value):
                yield Fault(name, "must be finite and >= 0")
        if int(self.class_offsets[0]) != 0 or int(self.class_offsets[-1]) != rows:
            yield Fault("class_offsets", f"must run from 0 to {rows}")
        if (np.diff(self.class_offsets) < 1).any():
            yield Fault("class_offsets", "must give each class at least one option")
        if (self.tensor_parallel < 1).any():
            yield Fault("tensor_parallel", "must be >= 1")
        if len(self.recompute) != rows:
            yield Fault("recompute", f"must have {rows} entries, got {len(self.recompute)}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostTable) and _equal_arrays(self, other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def num_rows(self) -> int:
        """R: options over all classes."""
        return len(self.option_ids)

    @property
    def num_classes(self) -> int:
        """C: layer classes."""
        return len(self.class_offsets) - 1

    def rows_of(self, layer_class: int) -> range:
        """The rows of one class."""
        return range(int(self.class_offsets[layer_class]), int(self.class_offsets[layer_class + 1]))

    def share_of_tied(self, tied: SharedParameters, row: int) -> float:
        """What part of the dense state of a row is the tied tensor: it may hold more than that."""
        weight = float(self.static_bytes[row, 0, StaticKind.WEIGHT])
        own = tied.bytes / int(self.tensor_parallel[row])
        return min(1.0, own / weight) if weight > 0 else 0.0

    def tied_gradient_bytes(self, tied: SharedParameters, row: int) -> float:
        """Gradients of the tied tensor on a device with that row, as replicas exchange them."""
        return self.share_of_tied(tied, row) * float(self.gradient_sync_bytes[row, 0])

    def boundary_of(self, row: int) -> Floats:
        """Boundary bytes of a row: incoming edges, then outgoing; empty means zeros."""
        return self.boundary_bytes[self.boundary_offsets[row] : self.boundary_offsets[row + 1]]

    @property
    def updated_weight_bytes(self) -> Floats:
        """Weights that the optimizer changes: dense and expert, shape [R, 2]."""
        if self.trained_weight_bytes is not None:
            return self.trained_weight_bytes
        weights: Floats = self.static_bytes[:, :, StaticKind.WEIGHT]
        return weights

    @property
    def total_static_bytes(self) -> Floats:
        """All bytes of a row that stay for the whole step, shape [R]."""
        total: Floats = self.opaque_static_bytes + self.static_bytes.sum(axis=(1, 2))
        return total

    @property
    def saved_bytes(self) -> Floats:
        """Activation bytes of one microbatch in flight, shape [R]."""
        return self.saved_until_input_grad_bytes + self.saved_until_weight_grad_bytes


_ROW_FLOATS = (
    "duration_s",
    "saved_until_input_grad_bytes",
    "saved_until_weight_grad_bytes",
    "transient_bytes",
    "opaque_static_bytes",
    "energy_j",
)


def freeze_arrays(value: DataclassInstance) -> None:
    """Make every array of a frozen dataclass read-only."""
    for field in fields(value):
        array = getattr(value, field.name)
        if isinstance(array, np.ndarray):
            array.flags.writeable = False


def is_finite_and_not_negative(array: Floats) -> bool:
    """Whether every entry is finite and >= 0."""
    return bool((np.isfinite(array) & (array >= 0)).all())


def _equal_arrays(left: CostTable | PhaseTimes, right: CostTable | PhaseTimes) -> bool:
    for field in fields(left):
        a, b = getattr(left, field.name), getattr(right, field.name)
        same = np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
        if not same:
            return False
    return True


# A profile at one point, and where profiles come from
# ----------------------------------------------------
# The estimator answers any point; a measured file answers what it holds. Piper's file is a source
# with a single point whose options span several tensor-parallel degrees.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """The circumstances under which a profile holds. Unknown circumstances are `None`.

    `tensor_parallel` lists the degrees the options span; experts are cut as many ways where
    `expert_tensor_parallel` is absent. `network_levels` says, per axis, the network levels its
    groups cross, as (axis, level names).
    """

    microbatch_size: int | None = None
    sequence_length: int | None = None
    tensor_parallel: tuple[int, ...] = (1,)
    context_parallel: int = 1
    expert_parallel: int = 1
    expert_tensor_parallel: int | None = None
    sequence_parallel: bool = False
    precision: str | None = None
    recompute: tuple[str, ...] = ()
    network_levels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    device_kind: str | None = None
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A layer graph and what its layers cost at one point."""

    structure: Structure
    costs: CostTable
    point: ProfilePoint

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if self.structure.num_classes > self.costs.num_classes:
            yield Fault("costs", "must have a class for every layer")
            return
        ins, outs = self.structure.in_edges(), self.structure.out_edges()
        for index, layer in enumerate(self.structure.layers):
            degree = len(ins[index]) + len(outs[index])
            for row in self.costs.rows_of(layer.layer_class):
                found = int(self.costs.boundary_offsets[row + 1] - self.costs.boundary_offsets[row])
                if found not in (0, degree):
                    yield Fault(
                        f"layers[{index}]",
                        f"needs {degree} boundary values per option, got {found}",
                    )


class ProfileSource(Protocol):
    """Anything that can say what the layers cost."""

    def profile(self, point: ProfilePoint) -> Profile:
        """The profile at `point`; raises `UnsupportedFeature` where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """Profiles read from a file, with the setting the file states, if it states one."""

    profiles: tuple[Profile, ...]
    setting: Setting | None = None

    def __post_init__(self) -> None:
        if not self.profiles:
            raise InvalidInput.of("points", "must have at least 1 entry, got 0")


# A placement problem: layers with times and sizes per tensor width, and identical devices
# ----------------------------------------------------------------------------------------
# The input of PHAZE's placement program (Wang et al., "PHAZE: Hardware Architecture and Device
# Placement Search", ICML 2024): for each tensor width t one table of the same layers, each with one
# time and one size; there are no options to choose from. A stage takes t devices if one of its
# layers is split over tensor ranks, else one.


class Optimizer(StrEnum):
    """What keeps state beside parameters and gradients."""

    SGD = "SGD"
    ADAM = "Adam"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WidthTable:
    """All layers at one tensor width, in topological order; arrays have shape [layers].

    Sizes are bytes of one device, times seconds of one microbatch. `is_split` marks the layers that
    need all tensor ranks. `edges` join indices, `bytes` per microbatch; a pair may have several.
    """

    tensor_parallel: int
    layer_ids: tuple[int, ...]
    forward_s: Floats
    backward_s: Floats
    parameter_bytes: Floats
    activation_bytes: Floats
    is_split: NDArray[np.bool_]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        refuse(self._faults())
        for field in fields(self):
            if isinstance(array := getattr(self, field.name), np.ndarray):
                array.flags.writeable = False

    def _faults(self) -> Iterator[Fault]:
        count = len(self.layer_ids)
        yield from too_low(self, 1, "tensor_parallel")
        if count == 0:
            yield Fault("layer_ids", "must have at least 1 entry, got 0")
        for name in ("forward_s", "backward_s", "parameter_bytes", "activation_bytes", "is_split"):
            array = getattr(self, name)
            if array.shape != (count,):
                yield Fault(name, f"must have shape ({count},), got {array.shape}")
            elif not is_finite_and_not_negative(array):
                yield Fault(name, "must be finite and >= 0")
        if any(not 0 <= edge.source < edge.target < count for edge in self.edges):
            yield Fault("edges", "must lead from earlier to later layers")

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layer_ids)

    @property
    def branches(self) -> bool:
        """Whether some layer is not joined to the next, so that several orders are possible."""
        joined = {edge.source for edge in self.edges if edge.target == edge.source + 1}
        return len(joined) < self.num_layers - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedStrategy:
    """A strategy stated beside the problem, to be priced: p stages, t and d everywhere.

    `num_layers` is the number of layers that it deals out evenly over the stages.
    """

    num_stages: int
    tensor_parallel: int
    data_parallel: int
    num_layers: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacementCase:
    """Tables by ascending width, the machine and the batch, and what may be kept in memory.

    `recompute` says that activations may be computed again, `optimizer` what state is kept.
    """

    widths: tuple[WidthTable, ...]
    setting: Setting
    recompute: bool = False
    optimizer: Optimizer = Optimizer.SGD
    fixed: FixedStrategy | None = None

    def __post_init__(self) -> None:
        degrees = [table.tensor_parallel for table in self.widths]
        if not degrees:
            raise InvalidInput.of("widths", "must have at least 1 entry, got 0")
        if degrees != sorted(set(degrees)):
            raise InvalidInput.of("widths", "must have distinct tensor widths, ascending")
        if len({frozenset(table.layer_ids) for table in self.widths}) > 1:
            raise InvalidInput.of("widths", "must list the same layers at every width")

    def at_width(self, tensor_parallel: int) -> WidthTable | None:
        """The table of a width, if there is one."""
        tables = (table for table in self.widths if table.tensor_parallel == tensor_parallel)
        return next(tables, None)


def topological_order(count: int, pairs: list[tuple[int, int]]) -> list[int]:
    """Indices so that every pair of an acyclic graph leads forward, the lowest first if free."""
    waiting, following = [0] * count, [list[int]() for _ in range(count)]
    for u, v in pairs:
        waiting[v] += 1
        following[u].append(v)
    ready = [v for v in range(count) if waiting[v] == 0]
    heapify(ready)
    order = []
    while ready:
        order.append(u := heappop(ready))
        for v in following[u]:
            waiting[v] -= 1
            if waiting[v] == 0:
                heappush(ready, v)
    assert len(order) == count, "the graph must be acyclic"
    return order
