"""From a document to its table, by type. Only the table that is printed is loaded."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

# By name of the document's type: the module here and its function.
REPORTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "PlanResult": ("plan_table", "plan_report"),
        "PlacementResult": ("placement_table", "placement_report"),
        "EstimateResult": ("plan_table", "estimate_report"),
        "Difference": ("difference_table", "difference_report"),
        "ModelPlanResult": ("model_plan_table", "model_plan_report"),
        "MixedPlanResult": ("mixed_plan_table", "mixed_plan_report"),
        "ModelSweepResult": ("model_sweep_table", "model_sweep_report"),
        "WhatIfResult": ("what_if_table", "what_if_report"),
        "ModelExplanation": ("model_explanation_table", "model_explanation_report"),
        "ModelEstimateResult": ("model_estimate_table", "model_estimate_report"),
        "ScheduleResult": ("schedule_table", "schedule_report"),
        "CodesignResult": ("codesign_table", "codesign_report"),
        "StageResult": ("codesign_table", "stage_report"),
        "CatalogResult": ("catalog_table", "catalog_report"),
        "ValidationResult": ("validation_table", "validation_report"),
        "CalibrationResult": ("calibration_table", "calibration_report"),
        "ImprovementResult": ("improvement_table", "improvement_report"),
        "ExportResult": ("export_table", "export_report"),
        "VerificationResult": ("verification_table", "verification_report"),
        "ConstantsResult": ("constants_table", "constants_report"),
        "ReportResult": ("report_table", "report_table"),
        "LayerProfileResult": ("layer_profile_table", "layer_profile_report"),
    }
)


def render(document: object) -> RenderableType:
    """The table of a result document."""
    name = type(document).__name__
    if name not in REPORTS:
        raise TypeError(f"no table is known for {name}")
    module, function = REPORTS[name]
    found: RenderableType = getattr(import_module(f"trainwright.reporting.{module}"), function)(
        document
    )
    return found
