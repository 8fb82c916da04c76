"""From a document to its table, by type."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

from trainwright.plan.results.calibration import CalibrationResult
from trainwright.plan.results.catalog import CatalogResult
from trainwright.plan.results.difference import Difference
from trainwright.plan.results.estimate import EstimateResult
from trainwright.plan.results.layer_profile import LayerProfileResult
from trainwright.plan.results.model_estimate import ModelEstimateResult
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.results.plan import PlanResult
from trainwright.plan.results.schedule import ScheduleResult
from trainwright.plan.results.validation import ValidationResult
from trainwright.reporting.calibration_table import calibration_report
from trainwright.reporting.catalog_table import catalog_report
from trainwright.reporting.difference_table import difference_report
from trainwright.reporting.layer_profile_table import layer_profile_report
from trainwright.reporting.model_estimate_table import model_estimate_report
from trainwright.reporting.model_plan_table import model_plan_report
from trainwright.reporting.plan_table import estimate_report, plan_report
from trainwright.reporting.schedule_table import schedule_report
from trainwright.reporting.validation_table import validation_report

if TYPE_CHECKING:
    from rich.console import RenderableType


@singledispatch
def render(document: object) -> RenderableType:
    """The table of a result document."""
    raise TypeError(f"no table is known for {type(document).__name__}")


render.register(PlanResult, plan_report)
render.register(EstimateResult, estimate_report)
render.register(Difference, difference_report)
render.register(ModelPlanResult, model_plan_report)
render.register(ModelEstimateResult, model_estimate_report)
render.register(ScheduleResult, schedule_report)
render.register(CatalogResult, catalog_report)
render.register(ValidationResult, validation_report)
render.register(CalibrationResult, calibration_report)
render.register(LayerProfileResult, layer_profile_report)
