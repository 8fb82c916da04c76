"""The document of `plan` on a placement problem."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.plan.results.plan import Binding, Relaxation, check_stage
from trainwright.plan.results.request import FORMAT_VERSION, PlanRequest
from trainwright.plan.status import BoundKind, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStageRecord:
    """One stage: its layers in the order they run, and what each replica spends per microbatch.

    `tensor_parallel` counts devices of one replica, 1 for a stage without split layers. Recomputing
    stages recompute all their layers.
    """

    layers: tuple[int, ...]
    data_parallel: int
    tensor_parallel: int
    num_recomputed: int
    forward_s: float
    backward_s: float
    memory_bytes: float
    microbatches_in_flight: int

    def __post_init__(self) -> None:
        check_stage(self.layers, self.data_parallel, self.tensor_parallel)

    @property
    def load_s(self) -> float:
        """Seconds of a replica for each of its microbatches."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedStrategyRecord:
    """The strategy that the file states; `reason` says why it cannot run ("out of memory", …)."""

    feasible: bool
    time_per_batch_s: float | None = None
    reason: str | None = None
    slowdown: float | None = None
    num_stages: int
    data_parallel: int
    tensor_parallel: int
    peak_memory_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementResult:
    """Placement, proof and price of a batch. Keys without a value are left out.

    The batch takes `rounds` times the slowest stage's load, then `gradient_sync_s`;
    `lower_bound_s` and `gap` refer to `objective`. `simulated_time_s` is what the event simulator
    makes of the same plan under 1F1B.
    """

    kind: str = "placement"
    format_version: int = FORMAT_VERSION
    status: Status
    objective: str = "time_per_batch_s"
    time_per_batch_s: float | None = None
    lower_bound_s: float | None = None
    bound_kind: BoundKind | None = None
    gap: float | None = None
    data_parallel: int | None = None
    tensor_parallel: int | None = None
    devices_used: int | None = None
    num_stages: int | None = None
    rounds: int | None = None
    simulated_time_s: float | None = None
    gradient_sync_s: float | None = None
    peak_memory_bytes: float | None = None
    stages: tuple[PlacedStageRecord, ...] = ()
    fixed_strategy: FixedStrategyRecord | None = None
    binding: Binding | None = None
    relaxations: tuple[Relaxation, ...] = ()
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    solver_s: float | None = None
    search_s: float | None = None
    request: PlanRequest
