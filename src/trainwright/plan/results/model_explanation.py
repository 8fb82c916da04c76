"""The document of `explain` on a model's plan: what binds, what choices buy, what would help."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.plan.parallelism import Parallelism
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.results.request import FORMAT_VERSION
from trainwright.plan.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutRecord:
    """The best plan without something that the plan uses; `slowdown` relative to the plan.

    `status` infeasible: nothing fits without it. `gap`, or unknown: time ran out or a gap is left.
    """

    name: str
    status: Status
    step_time_s: float | None = None
    slowdown: float | None = None
    parallelism: Parallelism | None = None
    micro_batch: int | None = None
    schedule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GainRecord:
    """More of a resource: the step then, and what share of the step is saved.

    `replanned` says that the best plan was looked for again, not the same plan priced again.
    """

    resource: str
    change: str
    step_time_s: float
    saved: float
    replanned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExplanation:
    """Ranks are indices from 0. `memory_by_class_bytes` is of the fullest rank, whose device has
    `free_bytes` left beside what every device keeps (`plan.overlap.MemoryOverheads`);
    `busiest_rank` works longest. `binding` names the resource whose increase of 1 % saves most.
    """

    kind: str = "model-explanation"
    format_version: int = FORMAT_VERSION
    busiest_rank: int
    fullest_rank: int
    free_bytes: float
    binding: str | None
    time_by_part_s: dict[str, float]
    memory_by_class_bytes: dict[str, float]
    without: tuple[WithoutRecord, ...] = ()
    gains: tuple[GainRecord, ...] = ()
    not_asked: tuple[str, ...] = ()
    search_s: float = 0.0
    plan: ModelPlanResult
