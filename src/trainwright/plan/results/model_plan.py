"""The document of `plan` on a model: the profile case's keys, and the predicted step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from trainwright.plan.parallelism import Parallelism
from trainwright.plan.prediction import StagePrediction
from trainwright.plan.results.plan import Binding, Relaxation, check_stage
from trainwright.plan.results.request import FORMAT_VERSION, PlanRequest
from trainwright.plan.searched_order import SearchedOrder
from trainwright.plan.status import BoundKind, Status

# Of a plan beside the certified space; in the assumption on its schedule.
UNEVEN_STAGES: Final = "stages not nearly even, outside the space that the bound is on"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStageRecord:
    """One (virtual) stage of a model's plan; layers are indices of the model's layer graph.

    `time_per_sample_s` is its share of its rank's time, `memory_bytes` what the whole rank needs.
    """

    layers: tuple[int, ...]
    data_parallel: int
    tensor_parallel: int
    options: dict[str, str]
    num_recomputed: int
    time_per_sample_s: float
    memory_bytes: float
    rank: int = 0

    def __post_init__(self) -> None:
        check_stage(self.layers, self.data_parallel, self.tensor_parallel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A plan considered and not chosen, and by how much it is slower.

    `lost_s` says by part of the step (as `time_by_part_s`) what it takes more than the best plan,
    less where negative; the parts add up to the difference.
    """

    parallelism: Parallelism
    micro_batch: int
    schedule: str = "1f1b"
    num_recomputed: int | None = None
    devices_used: int | None = None
    step_time_s: float
    slowdown: float
    peak_memory_bytes: float
    lost_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlanResult:
    """Plan, bound and predicted step of a model on a cluster. Times in seconds, sizes in bytes.

    `step_time_low_s` and `step_time_high_s` hold nine of ten measured steps. `stages` are in
    pipeline order, `ranks` says what each pipeline rank does with all of its stages and
    `peak_memory_bytes_per_rank` what one device of it needs. `time_by_part_s` says
    where the step's time goes: compute, recompute, tensor, context, expert, data, transfers,
    bubble, optimizer, overhead add up to it. Where no schedule is named `lower_bound_s` and `gap`
    are about plans with one stage per rank, `lower_bound_all_s` and `gap_all` about all families.
    Under the schedule "searched" `order` is what a search found, and `named_step_time_s` the step
    of the same stages in the order of the family that it began with.
    """

    kind: str = "model-plan"
    format_version: int = FORMAT_VERSION
    status: Status
    objective: str = "step_time_s"
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    lower_bound_s: float | None = None
    bound_kind: BoundKind | None = None
    gap: float | None = None
    lower_bound_all_s: float | None = None
    gap_all: float | None = None
    time_per_sample_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_device: float | None = None
    mfu: float | None = None
    time_by_part_s: dict[str, float] = field(default_factory=dict)
    bubble_of_makespan: float | None = None
    exposed_gradient_sync_s: float | None = None
    optimizer_s: float | None = None
    parallelism: Parallelism | None = None
    schedule: str | None = None
    order: SearchedOrder | None = None
    named_step_time_s: float | None = None
    micro_batch: int | None = None
    devices_used: int | None = None
    num_stages: int | None = None
    stages: tuple[ModelStageRecord, ...] = ()
    ranks: tuple[StagePrediction, ...] = ()
    peak_memory_bytes_per_rank: tuple[float, ...] = ()
    memory_limit_bytes: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    binding: Binding | None = None
    relaxations: tuple[Relaxation, ...] = ()
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    assumptions: dict[str, str] = field(default_factory=dict)
    considered: int = 0
    pruned: int = 0
    not_reached: int = 0
    search_s: float | None = None
    request: PlanRequest
