"""The document of `plan` on several numbers of devices: one row each, and the plan to prefer."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.plan.parallelism import Parallelism
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.results.request import FORMAT_VERSION, PlanRequest
from trainwright.plan.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecord:
    """What the totals rest on; see `planning.objectives.Training`."""

    tokens: float | None = None
    price_per_hour: float | None = None
    power_watts: float | None = None
    deadline_s: float | None = None
    device_mtbf_s: float
    checkpoint_bytes_per_s: float
    checkpoint_bytes: float
    restart_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """The best plan on at most `devices`; without one, `reason` says what cannot fit.

    `goodput` is the share of time that is useful work, with a checkpoint every
    `checkpoint_interval_s`; `train_s`, `cost` and `energy_j` are of the whole training, failures
    and checkpoints included.
    """

    devices: int
    status: Status
    devices_used: int | None = None
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    lower_bound_s: float | None = None
    gap: float | None = None
    lower_bound_all_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_device: float | None = None
    mfu: float | None = None
    parallelism: Parallelism | None = None
    schedule: str | None = None
    micro_batch: int | None = None
    peak_memory_bytes: float | None = None
    goodput: float | None = None
    checkpoint_interval_s: float | None = None
    train_s: float | None = None
    cost: float | None = None
    energy_j: float | None = None
    reason: str | None = None
    search_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedObjective:
    """What a search on all numbers of devices proved: no plan has less of the objective.

    `bound` is in the unit of `planning.objectives.score`, for devices with a share of one more;
    absent where no plan meets the deadline, or none fits.
    """

    objective: str
    bound: float | None = None
    search_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSweepResult:
    """Rows by number of devices; `best` and `pareto` are indices of rows.

    `objective` is what `best` makes least (tokens per second and device: largest) and
    `objective_value` its figure (seconds, tokens per second and device, money, joules, devices). No
    plan on `devices_from` devices to the number of the largest row has a better one than
    `objective_bound`, which is within `gap` of it. `pareto` holds the rows that no other beats in
    both of `pareto_objectives`; for every plan one of them is at most the share `pareto_within`
    worse in both.
    `best_plan` is the row's plan in full. `request` is that of a single plan, for `num_devices` of
    the largest row.
    """

    kind: str = "model-sweep"
    format_version: int = FORMAT_VERSION
    status: Status
    objective: str
    rows: tuple[SweepRow, ...]
    best: int | None = None
    objective_value: float | None = None
    objective_bound: float | None = None
    gap: float | None = None
    devices_from: int | None = None
    searched: tuple[SearchedObjective, ...] = ()
    pareto_objectives: tuple[str, ...] = ()
    pareto: tuple[int, ...] = ()
    pareto_within: float | None = None
    training: TrainingRecord
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    search_s: float | None = None
    best_plan: ModelPlanResult | None = None
    request: PlanRequest
