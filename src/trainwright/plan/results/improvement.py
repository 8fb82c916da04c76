"""The document of `improve`: how far a run is from the best plan, and what closes the distance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from trainwright.plan.parallelism import Parallelism
from trainwright.plan.results.export import PricedLayout
from trainwright.plan.results.model_estimate import ModelEstimateRequest
from trainwright.plan.results.request import FORMAT_VERSION

MOST_OF_IT: Final = 0.8  # of the gain: what a smaller change must reach to be preferred


@dataclass(frozen=True, slots=True, kw_only=True)
class ImprovementRecord:
    """A change of one or two decisions that fits; `options` are those of `estimate` to add.

    `gain_share` is of the way from the run to the best that is known, absent where the run does not
    fit and there is no gain to share.
    """

    dimensions: tuple[str, ...]
    options: str
    step_time_s: float
    peak_memory_bytes: float
    speedup: float
    gain_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """One virtual stage of a plan: its layers by index, and how each of them recomputes."""

    layers: tuple[int, ...]
    options: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPlanRecord:
    """The planner's plan for the same model, devices, batch and settings of the run.

    `options` are kernels that it takes in place of the run's, where those listed changes are
    faster for; empty where it keeps them.
    """

    parallelism: Parallelism
    schedule: str
    micro_batch: int
    options: str = ""
    stages: tuple[PlannedStage, ...]
    num_recomputed: int
    step_time_s: float
    peak_memory_bytes: float
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ImprovementResult:
    """A stated run beside better ones. `recommended` is the smallest change with most of the gain.

    Where the run does not fit, changes are those that make it fit and `recommended` is the smallest
    of those that are nearly as fast as the fastest. `changes` come fastest first. `best_plan` is
    absent where no plan was found that is as fast as all that is listed; `best_known_s` is the
    least step of anything that fits, absent where nothing does. No plan of those searched takes
    less than `lower_bound_s`, which is absent where a plan cannot run as the run does, or is
    restricted more than the changes. Peaks are of the model; what a device must have for one adds
    the overheads of the request. Times in seconds; `speedup` is the run's step over the other's.
    """

    kind: str = "improvement"
    format_version: int = FORMAT_VERSION
    framework: str | None = None
    run: PricedLayout
    run_fits: bool
    memory_limit_bytes: float
    best_known_s: float | None = None
    lower_bound_s: float | None = None
    best_plan: BestPlanRecord | None = None
    recommended: ImprovementRecord | None = None
    changes: tuple[ImprovementRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    assumptions: dict[str, str] = field(default_factory=dict)
    request: ModelEstimateRequest
