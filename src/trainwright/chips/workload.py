"""What is trained: a model at one tensor degree, as numbers that no chip design changes.

A search prices the same chains on thousands of designs, so everything that depends on the model
alone (kernels, bytes, collectives, layers) is worked out once, here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.cluster import Hop, NetworkLevel, Surroundings, group_hops
from trainwright.cluster.template import UPDATE_BYTES_PER_LANE_CYCLE
from trainwright.costing.communication import exchange_time_s, point_to_point_time_s
from trainwright.costing.layer import (
    KEEP_ALL,
    RECOMPUTABLE,
    RecomputeRule,
    activation_bytes,
    static_bytes,
    trained_per_device,
)
from trainwright.costing.tiled import ChipKernel, element_bytes, layer_kernels
from trainwright.errors import Fault, InvalidInput
from trainwright.model import LayerGraph, Phase, Precision, RunShape, layer_graph, precision_named
from trainwright.plans.plan import DEFAULT_SCHEDULE
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from trainwright.model import LayerClass, TransformerConfig

RECOMPUTE: Final = (Recompute.NONE, Recompute.FULL)
RULES: Final = {Recompute.NONE: KEEP_ALL, Recompute.FULL: RecomputeRule(whole_layer=True)}
SCHEDULES: Final = (DEFAULT_SCHEDULE, "zb-h1", "v-half", "v-min")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """One model with its batch: what every design has to train.

    `weight` is its share in an objective over several models.
    """

    name: str
    model: TransformerConfig
    sequence_length: int
    global_batch: int = 4096
    microbatch_size: int = 1
    precision: str = "bf16"
    tensor_degrees: tuple[int, ...] = (1, 2, 4, 8)
    recompute: tuple[Recompute, ...] = RECOMPUTE
    schedules: tuple[str, ...] = SCHEDULES
    weight: float = 1.0

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for name in ("sequence_length", "global_batch", "microbatch_size"):
            if (value := getattr(self, name)) < 1:
                yield Fault(name, f"must be >= 1, got {value}")
                return
        if self.global_batch % self.microbatch_size:
            wanted = f"must be a multiple of microbatch_size ({self.microbatch_size})"
            yield Fault("global_batch", f"{wanted}, got {self.global_batch}")
        if not self.tensor_degrees:
            yield Fault("tensor_degrees", "must have at least 1 entry, got 0")
        if not self.recompute or set(self.recompute) - set(RECOMPUTE):
            yield Fault("recompute", "must be of none, full")
        if DEFAULT_SCHEDULE not in self.schedules or set(self.schedules) - set(SCHEDULES):
            yield Fault(
                "schedule", f"must be of {', '.join(SCHEDULES)}, with {DEFAULT_SCHEDULE} among them"
            )
        if not self.weight > 0:
            yield Fault("weight", f"must be > 0, got {self.weight!r}")

    @property
    def num_microbatches(self) -> int:
        """Microbatches of a step, over all replicas."""
        return self.global_batch // self.microbatch_size

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.sequence_length

    @property
    def data_degrees(self) -> NDArray[np.int64]:
        """Every degree that deals the microbatches out evenly, largest first."""
        count = self.num_microbatches
        return np.array([d for d in range(count, 0, -1) if count % d == 0], dtype=np.int64)

    def chain(self, tensor_degree: int, *, precision: Precision | None = None) -> Chain:
        """The layers at one tensor degree, in the job's own precision unless another is given.

        Raises `InvalidInput` where the model cannot be cut.
        """
        run = RunShape(
            microbatch_size=self.microbatch_size,
            sequence_length=self.sequence_length,
            tensor_parallel=tensor_degree,
            sequence_parallel=tensor_degree > 1,
            precision=precision or precision_named(self.precision),
        )
        return chain_of(layer_graph(self.model, run), self.recompute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Layers and their classes on one device of a tensor group; arrays over classes.

    `saved_bytes`, `transient_bytes` and `restored_bytes` are [options, classes]. `repeats` marks
    classes that a full recomputation runs again. From an input gradient to its weight gradient
    `pending_bytes` are kept, of which a recomputation brings back `restored_bytes`.
    """

    graph: LayerGraph
    recompute: tuple[Recompute, ...]
    kernels: tuple[tuple[ChipKernel, ...], ...]
    repeats: NDArray[np.bool_]
    saved_bytes: NDArray[np.float64]
    transient_bytes: NDArray[np.float64]
    pending_bytes: NDArray[np.float64]
    restored_bytes: NDArray[np.float64]
    static_bytes: NDArray[np.float64]
    sharded_bytes: NDArray[np.float64]
    sync_bytes: NDArray[np.float64]
    update_bytes: NDArray[np.float64]
    update_lane_cycles: NDArray[np.float64]

    @property
    def tensor_degree(self) -> int:
        """Devices that share a layer."""
        return self.graph.run.tensor_parallel

    @property
    def element_bytes(self) -> float:
        """Bytes of a number on the tensor cores; twice that for wide products."""
        return element_bytes(self.graph.run.precision)

    @property
    def layer_class(self) -> NDArray[np.int32]:
        """The class of each layer."""
        return np.array(self.graph.layers, dtype=np.int32)

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """How many layers each class has."""
        return np.bincount(self.layer_class, minlength=len(self.kernels)).astype(np.int64)

    def collective_s(self, surroundings: Surroundings) -> dict[Phase, NDArray[np.float64]]:
        """Seconds of the tensor group's collectives by phase, over classes; nothing overlaps."""
        hops = tensor_hops(surroundings, self.tensor_degree)
        found = {phase: np.zeros(len(self.kernels)) for phase in Phase}
        for index, layer in enumerate(self.graph.classes):
            for exchange in layer.exchanges:
                time_s = exchange_time_s(exchange, hops)
                found[exchange.phase][index] += time_s
        return found

    def link_bytes(self) -> dict[Phase, NDArray[np.float64]]:
        """Bytes that one device sends for these collectives, by phase, over classes."""
        found = {phase: np.zeros(len(self.kernels)) for phase in Phase}
        t = self.tensor_degree
        for index, layer in enumerate(self.graph.classes):
            for exchange in layer.exchanges:
                passes = 2.0 if exchange.kind == "all_reduce" else 1.0
                found[exchange.phase][index] += passes * (t - 1) / t * exchange.bytes
        return found

    def transfer_s(self, surroundings: Surroundings) -> NDArray[np.float64]:
        """Seconds of the transfer after each layer but the last; stages lie in different nodes."""
        level = link_level(surroundings)
        times = np.zeros(len(self.graph.layers) - 1)
        for edge in self.graph.edges:
            if edge.target == edge.source + 1:
                times[edge.source] = point_to_point_time_s(edge.bytes, level)
        return times


def tensor_hops(surroundings: Surroundings, degree: int) -> tuple[Hop, ...]:
    """How a tensor group lies in the network: in nodes as far as they reach, then across."""
    nodes = max(1, -(-degree // surroundings.node_devices))
    node = NetworkLevel(
        name="node",
        size=surroundings.node_devices,
        bandwidth_bytes_per_s=surroundings.node_bandwidth_bytes_per_s,
        latency_s=surroundings.link_latency_s,
    )
    levels = (node, replace(link_level(surroundings), size=nodes))
    return group_hops(levels, ranks=degree, stride=1)


def link_level(surroundings: Surroundings) -> NetworkLevel:
    """The network level between nodes."""
    return NetworkLevel(
        name="links",
        size=1,
        bandwidth_bytes_per_s=surroundings.link_bandwidth_bytes_per_s,
        latency_s=surroundings.link_latency_s,
    )


def chain_of(graph: LayerGraph, recompute: tuple[Recompute, ...]) -> Chain:
    """Everything about a layer graph that a chip's design leaves alone."""
    precision = graph.run.precision
    repeats = np.array([layer.kind in RECOMPUTABLE for layer in graph.classes])
    kept = np.array([_activations(graph, mode) for mode in recompute])
    pending = np.array([_until_weight_grad(graph, layer) for layer in graph.classes])
    again = np.array([[mode is Recompute.FULL] for mode in recompute]) & repeats
    states = np.array([static_bytes(layer, precision) for layer in graph.classes]).sum(axis=1)
    trained = np.array([sum(trained_per_device(layer)) for layer in graph.classes])
    moved = precision.weight_bytes + precision.gradient_bytes + 2 * precision.optimizer_bytes
    return Chain(
        graph=graph,
        recompute=recompute,
        kernels=tuple(layer_kernels(layer, graph) for layer in graph.classes),
        repeats=repeats,
        saved_bytes=kept[:, :, 0],
        transient_bytes=kept[:, :, 1],
        pending_bytes=pending,
        restored_bytes=np.where(again, pending, 0.0),
        static_bytes=states[:, 0] + states[:, 1],
        sharded_bytes=states[:, 2],
        sync_bytes=trained * precision.gradient_bytes,
        update_bytes=trained * moved,
        update_lane_cycles=trained * moved / UPDATE_BYTES_PER_LANE_CYCLE,
    )


def _activations(graph: LayerGraph, mode: Recompute) -> list[tuple[float, float]]:
    """Bytes kept per microbatch and needed for a moment, class by class."""
    return [_kept(graph, layer, mode) for layer in graph.classes]


def _until_weight_grad(graph: LayerGraph, layer: LayerClass) -> float:
    return activation_bytes(layer, graph.run, KEEP_ALL).until_weight_grad


def _kept(graph: LayerGraph, layer: LayerClass, mode: Recompute) -> tuple[float, float]:
    rule = RULES[mode] if layer.kind in RECOMPUTABLE else KEEP_ALL
    found = activation_bytes(layer, graph.run, rule)
    return found.until_input_grad + found.until_weight_grad, found.transient
