"""The own profile format, declared: its reader, writer and JSON Schema are made from these types.

Layers and edges name layers by id; rows of the cost table are nested as class → option. Fields
that a table has for all options or for none (`phases`, `time_by_kind_s`, `energy_j`,
`collectives`) stand in each option.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from trainwright.formats.record_types import Above, AtLeast, AtMost, Closed, NonEmpty
from trainwright.model import Routing
from trainwright.profile import Origin, Recompute
from trainwright.profile.setting import LARGEST_COUNT

FORMAT_VERSION = 1

Amount: TypeAlias = Annotated[float, AtLeast(0)]
Count: TypeAlias = Annotated[int, AtLeast(1), AtMost(LARGEST_COUNT)]
Index: TypeAlias = Annotated[int, AtLeast(0)]
Name: TypeAlias = Annotated[str, NonEmpty()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRecord(Closed):
    """The cluster and batch the profile is meant for; options of the command line override it."""

    num_devices: Count
    memory_bytes: Annotated[float, Above(0), "memory of one device"]
    bandwidth_bytes_per_s: Annotated[float, Above(0), "from each device to the outside"]
    num_microbatches: Annotated[Count, "microbatches in a batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLevelsRecord(Closed):
    """The levels of the network that the groups of one axis cross."""

    axis: Name
    levels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CircumstancesRecord(Closed):
    """When the costs hold; what is left out is not known."""

    microbatch_size: Count | None = None
    sequence_length: Count | None = None
    tensor_parallel: Annotated[tuple[Count, ...], "degrees that the options span"] = (1,)
    context_parallel: Count = 1
    expert_parallel: Count = 1
    expert_tensor_parallel: Count | None = None
    sequence_parallel: bool = False
    precision: str | None = None
    recompute: Annotated[tuple[str, ...], "recompute modes that the options span"] = ()
    network_levels: tuple[NetworkLevelsRecord, ...] = ()
    device_kind: str | None = None
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenanceRecord(Closed):
    """Where the figures come from."""

    origin: Origin
    source: Annotated[str, "a file, a datasheet, a report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord(Closed):
    """A layer; `layer_class` is an index into `classes`."""

    id: Annotated[int, "unique; any value"]
    name: str = ""
    layer_class: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRecord(Closed):
    """A tensor between two layers (ids); at most one edge joins a pair."""

    source: int
    target: int
    bytes: Annotated[Amount, "of one microbatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParametersRecord(Closed):
    """Parameters that several layers (ids) use, such as tied embeddings."""

    layers: tuple[int, ...]
    bytes: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytesRecord(Closed):
    """What stays in memory for parameters of one group."""

    weight: Amount = 0.0
    gradient: Amount = 0.0
    optimizer: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBytesRecord(Closed):
    """Static memory by parameter group."""

    dense: StateBytesRecord = StateBytesRecord()
    expert: StateBytesRecord = StateBytesRecord()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedWeightRecord(Closed):
    """Bytes of weights that the optimizer changes, by parameter group."""

    dense: Amount = 0.0
    expert: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSyncRecord(Closed):
    """Bytes that data parallelism synchronises, by parameter group."""

    dense: Amount = 0.0
    expert: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasesRecord(Closed):
    """The duration by phase, in seconds; recomputation precedes backward."""

    forward_s: Amount
    input_grad_s: Amount
    weight_grad_s: Amount
    recompute_s: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeByKindRecord(Closed):
    """The exposed time by what it is spent on, in seconds."""

    compute: Amount = 0.0
    tensor_parallel: Amount = 0.0
    context_parallel: Amount = 0.0
    expert_parallel: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord(Closed):
    """A collective inside the layer, and what it may hide under."""

    axis: Name
    kind: Name
    bytes: Amount
    phase: Name
    hides_under: str | None = None
    routing: Routing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionRecord(Closed):
    """One way to run a layer of the class; times and bytes are those of one microbatch."""

    id: Annotated[Name, "unique within the class and degree"]
    tensor_parallel: Count = 1
    recompute: Recompute = Recompute.NONE
    duration_s: Annotated[Amount, "forward and backward"]
    saved_until_input_grad_bytes: Annotated[Amount, "freed by the input gradient"] = 0.0
    saved_until_weight_grad_bytes: Annotated[Amount, "freed by the weight gradient"] = 0.0
    transient_bytes: Annotated[Amount, "needed while the layer runs"] = 0.0
    static_bytes: StaticBytesRecord = StaticBytesRecord()
    opaque_static_bytes: Annotated[Amount, "static memory of unknown kind"] = 0.0
    gradient_sync_bytes: GradientSyncRecord = GradientSyncRecord()
    boundary_bytes: Annotated[
        tuple[Amount, ...],
        "added to an edge that is cut: one value per incoming edge, then one per outgoing edge, "
        "both in the order of `edges`; none means zeros",
    ] = ()
    phases: PhasesRecord | None = None
    time_by_kind_s: TimeByKindRecord | None = None
    energy_j: Annotated[Amount | None, "joules"] = None
    collectives: tuple[CollectiveRecord, ...] | None = None
    trained_weight_bytes: Annotated[
        TrainedWeightRecord | None, "where parameters are frozen; all weights where absent"
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRecord(Closed):
    """Layers of one class cost the same."""

    options: Annotated[tuple[OptionRecord, ...], NonEmpty()]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRecord(Closed):
    """A layer graph and what its layers cost at one point."""

    point: CircumstancesRecord = CircumstancesRecord()
    provenance: ProvenanceRecord
    layers: Annotated[tuple[LayerRecord, ...], NonEmpty()]
    edges: tuple[EdgeRecord, ...] = ()
    shared_parameters: tuple[SharedParametersRecord, ...] = ()
    classes: Annotated[tuple[ClassRecord, ...], NonEmpty()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecord(Closed):
    """Costs of the layers of a model, at one or more points; SI base units."""

    kind: Literal["profile"]
    format_version: Annotated[int, AtLeast(1), AtMost(FORMAT_VERSION)]
    setting: SettingRecord | None = None
    points: Annotated[tuple[PointRecord, ...], NonEmpty()]
