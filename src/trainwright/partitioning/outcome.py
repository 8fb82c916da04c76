"""What a partitioning search answers: a plan, what it costs, and how much of that is proved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainwright.plan import Plan, StageCost, Status
from trainwright.plan.status import relative_gap


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """The result of one search, priced by the public evaluator.

    `plan` and `time_per_sample_s` are absent exactly where the status is `infeasible` or `unknown`.
    `lower_bound_s` holds for every plan. `solver_s` is the CPU time of the search alone;
    `interrupted` says that the user stopped it. `counters` tell how much work it was.
    """

    status: Status
    plan: Plan | None
    stage_costs: tuple[StageCost, ...]
    time_per_sample_s: float | None
    lower_bound_s: float
    solver_s: float
    interrupted: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = self.status in (Status.OPTIMAL, Status.GAP)
        assert found == (self.plan is not None) == (self.time_per_sample_s is not None)
        assert len(self.stage_costs) == (len(self.plan.stages) if self.plan is not None else 0)

    @property
    def gap(self) -> float | None:
        """(T − L) / T, as a fraction; absent without a plan."""
        if self.time_per_sample_s is None:
            return None
        return relative_gap(self.time_per_sample_s, self.lower_bound_s)
