"""What is trained: a model at one tensor degree, as numbers that no chip design changes.

A search prices the same chains on thousands of designs, so everything that depends on the model
alone (kernels, bytes, collectives, layers) is worked out once, here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright._native._core import Sharing
from trainwright.chips.space import FIELDS
from trainwright.cluster import Hop, NetworkLevel, Surroundings, group_hops, levels_of
from trainwright.cluster.accelerator import UPDATE_BYTES_PER_LANE_CYCLE
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
from trainwright.errors import Fault, refuse
from trainwright.formats import codesign_document
from trainwright.model import LayerGraph, Phase, Precision, RunShape, layer_graph, precision_named
from trainwright.plans.plan import DEFAULT_SCHEDULE
from trainwright.profile import Recompute, StaticKind
from trainwright.scheduling.families import FAMILIES
from trainwright.step import zero
from trainwright.step.zero import Replicas, Traffic
from trainwright.units import MIB

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from trainwright.arrays import Floats
    from trainwright.model import LayerClass, TransformerConfig


# Axes whose best value lies at an end of what it might be: there the range decides
# ---------------------------------------------------------------------------------


# Where an axis ends by nature: a chip has a core, a domain a chip.
_NATURAL: Final = {
    "num_tc": 1,
    "num_vc": 1,
    "stacks": 1,
    "node_devices": 1,
    "oversubscription": 1.0,
    "devices": 1,
}


def at_end(
    axis: str, value: float, values: tuple[float, ...], widen: str
) -> Iterator[codesign_document.EndRecord]:
    """That a value is the least or the most of an axis that may have others."""
    if len(set(values)) < 2 or value == _NATURAL.get(axis):
        return
    for end, limit in (("least", min(values)), ("most", max(values))):
        if value == limit:
            yield codesign_document.EndRecord(axis=axis, value=f"{value:g}", end=end, widen=widen)


def ends_of_chip(
    rules: codesign_document.RulesRecord,
    design: codesign_document.ArchitectureRecord,
    others: tuple[codesign_document.SurroundingsRecord, ...],
) -> Iterator[codesign_document.EndRecord]:
    """Ends at which a design lies: of its template's ranges, and of what surrounds it."""
    values = {
        **{name: getattr(design, name) for name in FIELDS[:4]},
        "glb_mib": design.glb_bytes // MIB,
        "buffer_bytes_per_mac": design.buffer_bytes_per_mac,
    }
    for name in FIELDS:
        yield from at_end(name, values[name], getattr(rules, name), f"--set ranges.{name}=[...]")
    for name, option in _LISTED.items():
        listed = tuple(float(getattr(each, name)) for each in others)
        if name == "memory_bytes":  # what a process can use of it is less
            continue
        yield from at_end(name, float(getattr(design.surroundings, name)), listed, option)


_LISTED: Final = {
    "clock_hz": "--clock",
    "memory_bandwidth_bytes_per_s": "--memory-bandwidth or --stacks",
    "link_bandwidth_bytes_per_s": "--link-bandwidth",
    "node_devices": "--node-devices",
    "glb_bytes_per_cycle": "--buffer-port",
}


def end_words(found: codesign_document.EndRecord) -> str:
    """An end in a sentence."""
    axis = AXIS_WORDS.get(found.axis, found.axis.replace("_", " "))
    return (
        f"the best lies at the end of the range of {axis}, {found.value}, the {found.end}: "
        f"widen it with {found.widen}"
    )


AXIS_WORDS: Final = {
    "num_tc": "tensor cores",
    "num_vc": "vector cores",
    "glb_mib": "MiB of the global buffer",
    "clock_hz": "clocks",
    "memory_bandwidth_bytes_per_s": "memory bandwidth",
    "link_bandwidth_bytes_per_s": "link bandwidth",
    "glb_bytes_per_cycle": "bytes a cycle of the global buffer",
    "stacks": "memory stacks",
    "stack_gib": "GiB of a stack",
    "node_devices": "chips of a domain",
    "node_gbytes_per_s": "GB/s in a domain",
    "cards": "network cards",
}


def ends_of_system(
    room: codesign_document.RoomRecord,
    rules: codesign_document.RulesRecord,
    best: codesign_document.SystemRecord,
) -> Iterator[codesign_document.EndRecord]:
    """Ends at which a system lies, its chip's among them."""
    for axis in _OF_ROOM:
        if axis == "node_gbytes_per_s" and best.node_devices == 1:
            continue  # a domain of one chip has no links
        more = axis == "devices" and best.devices == max(room.devices)
        widen = "--devices" if more else f"--set room.{axis}=[...]"
        yield from at_end(axis, float(getattr(best, axis)), getattr(room, axis), widen)
    yield from ends_of_chip(rules, best.architecture, ())


_OF_ROOM: Final = (
    *("devices", "stacks", "stack_gib", "node_devices", "node_gbytes_per_s"),
    *("cards", "oversubscription"),
)


RECOMPUTE: Final = (Recompute.NONE, Recompute.FULL)
RULES: Final = {Recompute.NONE: KEEP_ALL, Recompute.FULL: RecomputeRule(whole_layer=True)}
SCHEDULES: Final = tuple(family.name for family in FAMILIES.values() if family.on_chips)


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
        refuse(self._faults())

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
        run = tensor_run(
            tensor_degree,
            microbatch_size=self.microbatch_size,
            sequence_length=self.sequence_length,
            precision=precision or precision_named(self.precision),
        )
        return chain_of(layer_graph(self.model, run), self.recompute)


def tensor_run(degree: int, **sizes: Any) -> RunShape:
    """A microbatch cut by a tensor degree alone, along the sequence between layers."""
    return RunShape(tensor_parallel=degree, sequence_parallel=degree > 1, **sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Layers and their classes on one device of a tensor group; arrays over classes.

    `saved_bytes`, `transient_bytes` and `restored_bytes` are [options, classes], `static_bytes`
    [classes, 2, 3] by group of replicas and `StaticKind`, before sharding. `repeats` marks
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
        level = links_between(surroundings)
        times = np.zeros(len(self.graph.layers) - 1)
        for edge in self.graph.edges:
            if edge.target == edge.source + 1:
                times[edge.source] = point_to_point_time_s(edge.bytes, level)
        return times


def tensor_hops(surroundings: Surroundings, degree: int) -> tuple[Hop, ...]:
    """How a tensor group lies in the network: in nodes as far as they reach, then across."""
    nodes = max(1, -(-degree // surroundings.node_devices))
    return group_hops(levels_of(surroundings, num_nodes=nodes), ranks=degree, stride=1)


def links_between(surroundings: Surroundings, nodes: int = 1) -> NetworkLevel:
    """The network level between nodes."""
    return levels_of(surroundings, num_nodes=nodes)[1]


# What the replicas of a stage hold and exchange: the rules of `step.zero`, at one ZeRO stage
# -----------------------------------------------------------------------------------------
# Optimizer states are sharded, gradients are scattered once a step and updated weights gathered,
# both over a ring of the links between nodes. Weights travel as wide as gradients, and both hide
# under the same share, of the last backward and of the first forward.

ZERO_STAGE: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """d replicas of a chain: what a stage of some layers holds, exchanges and updates.

    `overlap` is the share of a stage's compute that its exchanges hide under.
    """

    replicas: Replicas
    overlap: float

    @classmethod
    def over(cls, data_degree: int, surroundings: Surroundings) -> Replication:
        """Of `data_degree` replicas, which meet on the links between nodes."""
        hops = group_hops((links_between(surroundings, data_degree),), ranks=data_degree, stride=1)
        replicas = Replicas.over((data_degree, 1), (hops, ()), zero_stage=ZERO_STAGE)
        return cls(replicas=replicas, overlap=surroundings.gradient_overlap)

    @property
    def update_parts(self) -> int:
        """Into how many parts the update of a stage is cut."""
        return self.replicas.shards(0, StaticKind.OPTIMIZER)

    @property
    def beside_bytes(self) -> float:
        """What a stage holds beside what its layers add."""
        return float(zero.beside_layers_bytes(ZERO_STAGE, self.replicas.sizes))

    def layer_bytes(self, static_bytes: Floats) -> Floats:
        """What layers add to the state of their stage on a device, [...], from [..., 2, 3]."""
        held = zero.state_bytes(ZERO_STAGE, self.replicas.sizes, static_bytes).sum(axis=-1)
        layers: Floats = held - self.beside_bytes
        return layers

    def traffic(self, sync_bytes: ArrayLike) -> Traffic:
        """The collectives of stages with so many bytes of gradients, [...]."""
        sync = np.asarray(sync_bytes, dtype=np.float64)
        sizes = np.stack((sync, np.zeros_like(sync)), axis=-1)
        return Traffic.of(self.replicas, sizes, sizes, sizes)

    def exposed_s(self, sync_bytes: ArrayLike, forward_s: Floats, backward_s: Floats) -> Floats:
        """What stages expose after their last microbatch, [...]; seconds are of a microbatch."""
        under = zero.Windows(self.overlap * forward_s, self.overlap * backward_s)
        return zero.exposed(ZERO_STAGE, self.traffic(sync_bytes), under).last_s

    def least_exposed_s(
        self, sync_bytes: ArrayLike, forward_s: Floats, backward_s: Floats
    ) -> Floats:
        """No less is exposed by all stages together whose bytes and seconds add up to these."""
        under = zero.Windows(self.overlap * forward_s, self.overlap * backward_s)
        _, last_s = zero.least_exposed(ZERO_STAGE, self.traffic(sync_bytes), under)
        return last_s


def sharing_of(
    data_degrees: Sequence[int], static_bytes: Floats, surroundings: Surroundings
) -> Sharing:
    """The same for a native kernel, of every degree: lines of seconds over bytes."""
    each = [Replication.over(degree, surroundings) for degree in data_degrees]
    lines = np.array([one.replicas.gather[0] or ((0.0, 0.0),) for one in each])[:, 0]
    nothing = np.zeros(len(each))
    # What is exchanged is linear in its traffic, so starts and slopes are asked for one by one.
    starts, slopes = (
        zero.last_microbatch(ZERO_STAGE, Traffic(nothing, pass_s, pass_s, nothing))
        for pass_s in lines.T
    )
    idle = zero.exposed(ZERO_STAGE, Traffic(*[nothing] * 4), zero.Windows(nothing, nothing))
    assert not np.any(idle.every_s), "a kernel of plans knows no exchange of every microbatch"
    return Sharing(
        layer_bytes=np.array([one.layer_bytes(static_bytes) for one in each]),
        beside_bytes=np.array([one.beside_bytes for one in each]),
        gradients_start_s=starts.backward_s,
        gradients_byte_s=slopes.backward_s,
        parameters_start_s=starts.forward_s,
        parameters_byte_s=slopes.forward_s,
        beside_s=idle.last_s,
        update_parts=np.array([float(one.update_parts) for one in each]),
        gradients_under=surroundings.gradient_overlap,
        parameters_under=surroundings.gradient_overlap,
    )


def chain_of(graph: LayerGraph, recompute: tuple[Recompute, ...]) -> Chain:
    """Everything about a layer graph that a chip's design leaves alone."""
    precision = graph.run.precision
    repeats = np.array([layer.kind in RECOMPUTABLE for layer in graph.classes])
    kept = np.array([[_kept(graph, layer, mode) for layer in graph.classes] for mode in recompute])
    pending = np.array([_until_weight_grad(graph, layer) for layer in graph.classes])
    again = np.array([[mode is Recompute.FULL] for mode in recompute]) & repeats
    states = np.array([static_bytes(layer, precision) for layer in graph.classes])
    states[:, 0] += states[:, 1]  # experts have as many replicas as all other layers
    states[:, 1] = 0.0
    trained = np.array([sum(trained_per_device(layer)) for layer in graph.classes])
    moved = zero.touched_per_parameter(precision)
    return Chain(
        graph=graph,
        recompute=recompute,
        kernels=tuple(layer_kernels(layer, graph) for layer in graph.classes),
        repeats=repeats,
        saved_bytes=kept[:, :, 0],
        transient_bytes=kept[:, :, 1],
        pending_bytes=pending,
        restored_bytes=np.where(again, pending, 0.0),
        static_bytes=states,
        sync_bytes=trained * precision.gradient_bytes,
        update_bytes=trained * moved,
        update_lane_cycles=trained * moved / UPDATE_BYTES_PER_LANE_CYCLE,
    )


def _until_weight_grad(graph: LayerGraph, layer: LayerClass) -> float:
    return activation_bytes(layer, graph.run, KEEP_ALL).until_weight_grad


def _kept(graph: LayerGraph, layer: LayerClass, mode: Recompute) -> tuple[float, float]:
    rule = RULES[mode] if layer.kind in RECOMPUTABLE else KEEP_ALL
    found = activation_bytes(layer, graph.run, rule)
    return found.until_input_grad + found.until_weight_grad, found.transient
