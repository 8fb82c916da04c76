"""The document of `plan` on a model and a cluster of several kinds of devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.parallelism import Parallelism
from trainwright.plan.prediction import StagePrediction
from trainwright.plan.results.request import FORMAT_VERSION, PlanRequest
from trainwright.plan.status import BoundKind, Status

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedReplicaRecord:
    """`count` replicas of a stage in one pool, each of `num_microbatches` per step.

    `options` maps layer (as text) to option.
    """

    pool: int
    device_kind: str
    count: int
    tensor_parallel: int
    num_microbatches: int
    options: dict[str, str]
    num_recomputed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStageRecord:
    """One (virtual) stage; layers are indices of the model's layer graph."""

    layers: tuple[int, ...]
    rank: int
    replicas: tuple[MixedReplicaRecord, ...]

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        if not self.layers:
            yield Fault("layers", "must have at least 1 entry, got 0")
        if not self.replicas:
            yield Fault("replicas", "must have at least 1 entry, got 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRankRecord:
    """What a pipeline rank does in the replicas of one chain, each on devices of one kind.

    `busy` is the share of the step that it works on microbatches; it keeps `margin_bytes` free.
    """

    chain: int
    rank: int
    pool: int
    device_kind: str
    count: int
    num_microbatches: int
    prediction: StagePrediction
    busy: float
    memory_bytes: float
    memory_limit_bytes: float
    margin_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedGroupRecord:
    """A pool, and what the plan makes of it.

    `layer_share` is the share of all passes of microbatches through layers that it runs, `busy`
    that of the step in which its devices in use work on microbatches.
    """

    pool: int
    device_kind: str
    num_devices: int
    devices_used: int
    layer_share: float
    busy: float
    peak_memory_bytes: float
    memory_limit_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedBinding:
    """What ends the step: the busiest rank, its pool and its kind."""

    pool: int
    device_kind: str
    chain: int
    rank: int
    resource: str  # "compute" or "memory"
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedAlternative:
    """The plan found for another way to use the pools, and by how much it is slower.

    `layout` is "alone", "across" or "beside", `pools` those it uses, in the order of the pipeline.
    """

    layout: str
    pools: tuple[int, ...]
    device_kinds: tuple[str, ...]
    parallelism: Parallelism
    micro_batch: int
    schedule: str
    devices_used: int
    step_time_s: float
    slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlanResult:
    """Plan, bound and predicted step of a model on several pools. Seconds and bytes.

    `layout` says how the pools are used: "across", stages on several; "beside", replicas on several
    with their own number of microbatches; or one pool "alone". `parallelism.data` counts the
    replicas of all pools. `ranks` has an entry for each rank of each chain of like replicas.
    """

    kind: str = "mixed-plan"
    format_version: int = FORMAT_VERSION
    status: Status
    objective: str = "step_time_s"
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    lower_bound_s: float | None = None
    bound_kind: BoundKind | None = None
    gap: float | None = None
    fits: bool = False
    tokens_per_s: float | None = None
    tokens_per_s_per_device: float | None = None
    mfu: float | None = None
    pipeline_s: float | None = None
    exposed_gradient_sync_s: float | None = None
    optimizer_s: float | None = None
    layout: str | None = None
    parallelism: Parallelism | None = None
    schedule: str | None = None
    micro_batch: int | None = None
    devices_used: int | None = None
    groups: tuple[MixedGroupRecord, ...] = ()
    stages: tuple[MixedStageRecord, ...] = ()
    ranks: tuple[MixedRankRecord, ...] = ()
    binding: MixedBinding | None = None
    alternatives: tuple[MixedAlternative, ...] = ()
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    assumptions: dict[str, str] = field(default_factory=dict)
    considered: int = 0
    pruned: int = 0
    not_reached: int = 0
    search_s: float | None = None
    request: PlanRequest
