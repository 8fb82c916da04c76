"""What every call returns: a document that prints and saves itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.results.placement import PlacementResult
from trainwright.plan.results.plan import PlanResult

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from trainwright.plan.results.model_plan import ModelStageRecord
    from trainwright.plan.results.placement import PlacedStageRecord
    from trainwright.plan.results.plan import StageRecord
    from trainwright.plan.status import Status

Document = TypeVar("Document")


@dataclass(frozen=True, slots=True)
class Report(Generic[Document]):
    """A document and its table."""

    document: Document

    def renderable(self) -> RenderableType:
        """The table, for a rich console."""
        from trainwright.reporting.render import render

        return render(self.document)

    def explain(self) -> str:
        """The table as plain text."""
        from trainwright.reporting.text import to_text

        return to_text(self.renderable())

    def to_dict(self) -> dict[str, Any]:
        """The document as JSON values."""
        from trainwright.formats.document_json import encode

        return encode(self.document)

    def to_json(self) -> str:
        """The document as JSON text, one line."""
        import json

        return json.dumps(self.to_dict(), allow_nan=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the document; nothing is left behind where that fails."""
        from trainwright.formats.atomic_file import write_text

        write_text(path, self.to_json())

    def __str__(self) -> str:
        return self.explain()


class Result(Report[PlanResult | ModelPlanResult | PlacementResult]):
    """The answer of `plan`: status, stages, times, and the proof's bound."""

    __slots__ = ()

    @property
    def status(self) -> Status:
        """How much is proved."""
        return self.document.status

    @property
    def stages(
        self,
    ) -> tuple[StageRecord, ...] | tuple[ModelStageRecord, ...] | tuple[PlacedStageRecord, ...]:
        """Stages in pipeline order; empty without a plan."""
        return self.document.stages

    @property
    def time_per_sample_s(self) -> float | None:
        """Seconds per microbatch at steady state; `None` for a placement or without a plan."""
        document = self.document
        return None if isinstance(document, PlacementResult) else document.time_per_sample_s

    @property
    def time_per_batch_s(self) -> float | None:
        """Seconds of a batch; `None` without a placement."""
        document = self.document
        return document.time_per_batch_s if isinstance(document, PlacementResult) else None

    @property
    def step_time_s(self) -> float | None:
        """Predicted seconds of a training step; `None` for a profile or without a plan."""
        document = self.document
        return document.step_time_s if isinstance(document, ModelPlanResult) else None

    @property
    def lower_bound_s(self) -> float | None:
        """No plan of the searched space is faster than this."""
        return self.document.lower_bound_s

    @property
    def gap(self) -> float | None:
        """How far, relatively, the plan can be from the optimum at most."""
        return self.document.gap
