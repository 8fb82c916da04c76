"""The document of `plan` and `estimate` on a profile."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.prediction import TimeBreakdown
from trainwright.plan.results.request import FORMAT_VERSION, PlanRequest
from trainwright.plan.status import BoundKind, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """One stage; `options` maps layer id (as text) to option id, `num_recomputed` counts layers."""

    layers: tuple[int, ...]
    data_parallel: int
    tensor_parallel: int
    options: dict[str, str]
    num_recomputed: int
    time_per_sample_s: float
    breakdown: TimeBreakdown
    memory_bytes: float
    microbatches_in_flight: int

    def __post_init__(self) -> None:
        check_stage(self.layers, self.data_parallel, self.tensor_parallel)


def check_stage(layers: tuple[int, ...], data_parallel: int, tensor_parallel: int) -> None:
    """Refuse a stage without layers or devices: no document of ours holds one."""
    faults = [] if layers else [Fault("layers", "must have at least 1 entry, got 0")]
    degrees = {"data_parallel": data_parallel, "tensor_parallel": tensor_parallel}
    faults += [Fault(n, f"must be >= 1, got {d}") for n, d in degrees.items() if d < 1]
    if faults:
        raise InvalidInput(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """One change that, alone, makes a plan fit; `value` is in the unit of what is changed.

    `step_time_s` and `devices_used` are those of the best plan found under it, for a model.
    """

    change: str  # "devices", "memory", or the option that allows or sets it, such as "recompute"
    description: str
    value: float | None = None
    time_per_sample_s: float | None = None
    step_time_s: float | None = None
    devices_used: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What cannot fit: a layer or a stage (layer ids), and the bytes it misses."""

    kind: str  # "layer", "stage", "devices", "schedule"
    layers: tuple[int, ...]
    missing_bytes: float
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Another planner or a restricted mode on the same problem; `slowdown` is relative to ours."""

    name: str
    status: Status
    time_per_sample_s: float | None = None
    slowdown: float | None = None
    num_stages: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """Plan, proof and price of a profiled model.

    `time_per_sample_s` is seconds per microbatch at steady state; `lower_bound_s` and `gap` refer
    to `objective`. Keys without a value are left out.
    """

    kind: str = "plan"
    format_version: int = FORMAT_VERSION
    status: Status
    objective: str = "time_per_sample_s"
    time_per_sample_s: float | None = None
    lower_bound_s: float | None = None
    bound_kind: BoundKind | None = None
    gap: float | None = None
    devices_used: int | None = None
    num_stages: int | None = None
    stages: tuple[StageRecord, ...] = ()
    binding: Binding | None = None
    relaxations: tuple[Relaxation, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    solver_s: float | None = None
    search_s: float | None = None
    counters: dict[str, int] = field(default_factory=dict)
    request: PlanRequest
