"""The document of `improve`: how far a run is from the best plan, and what closes the distance."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainwright.plan.parallelism import Parallelism
from trainwright.plan.results.export import PricedLayout
from trainwright.plan.results.model_estimate import ModelEstimateRequest
from trainwright.plan.results.request import FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ImprovementRecord:
    """A change of one or two decisions. `gain_share` is of the distance to the best plan."""

    dimensions: tuple[str, ...]
    options: str
    step_time_s: float
    peak_memory_bytes: float
    speedup: float
    gain_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPlanRecord:
    """The planner's plan for the same model, devices and batch."""

    parallelism: Parallelism | None
    schedule: str | None
    micro_batch: int | None
    num_recomputed: int
    step_time_s: float
    lower_bound_s: float
    peak_memory_bytes: float
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ImprovementResult:
    """A stated run beside better ones. `recommended` is the smallest change with most of the gain.

    Times in seconds; `speedup` is the run's step time over the other's.
    """

    kind: str = "improvement"
    format_version: int = FORMAT_VERSION
    framework: str | None = None
    run: PricedLayout
    run_fits: bool
    memory_limit_bytes: float
    best_plan: BestPlanRecord | None = None
    recommended: ImprovementRecord | None = None
    changes: tuple[ImprovementRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    assumptions: dict[str, str] = field(default_factory=dict)
    request: ModelEstimateRequest
