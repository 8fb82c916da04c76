"""The answer of `plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.api.printed import Report
from trainwright.plan.results.mixed_plan import MixedPlanResult
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.results.placement import PlacementResult
from trainwright.plan.results.plan import PlanResult

if TYPE_CHECKING:
    from trainwright.plan.results.mixed_plan import MixedStageRecord
    from trainwright.plan.results.model_plan import ModelStageRecord
    from trainwright.plan.results.placement import PlacedStageRecord
    from trainwright.plan.results.plan import StageRecord
    from trainwright.plan.status import Status


class Result(Report[PlanResult | ModelPlanResult | MixedPlanResult | PlacementResult]):
    """The answer of `plan`: status, stages, times, and the proof's bound."""

    __slots__ = ()

    @property
    def status(self) -> Status:
        """How much is proved."""
        return self.document.status

    @property
    def stages(
        self,
    ) -> (
        tuple[StageRecord, ...]
        | tuple[ModelStageRecord, ...]
        | tuple[MixedStageRecord, ...]
        | tuple[PlacedStageRecord, ...]
    ):
        """Stages in pipeline order; empty without a plan."""
        return self.document.stages

    @property
    def time_per_sample_s(self) -> float | None:
        """Seconds per microbatch at steady state; `None` for a placement or without a plan."""
        document = self.document
        if isinstance(document, (PlacementResult, MixedPlanResult)):
            return None
        return document.time_per_sample_s

    @property
    def time_per_batch_s(self) -> float | None:
        """Seconds of a batch; `None` without a placement."""
        document = self.document
        return document.time_per_batch_s if isinstance(document, PlacementResult) else None

    @property
    def step_time_s(self) -> float | None:
        """Predicted seconds of a training step; `None` for a profile or without a plan."""
        document = self.document
        if isinstance(document, (ModelPlanResult, MixedPlanResult)):
            return document.step_time_s
        return None

    @property
    def lower_bound_s(self) -> float | None:
        """No plan of the searched space is faster than this."""
        return self.document.lower_bound_s

    @property
    def gap(self) -> float | None:
        """How far, relatively, the plan can be from the optimum at most."""
        return self.document.gap
