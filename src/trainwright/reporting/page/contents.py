"""What the page says about a document, by its type: one module per kind.

A further kind of document is a further module with a function from subject to content.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainwright.reporting.page.subject import Content, Subject

# By name of the document's type: the module here and its function.
CONTENTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "ModelPlanResult": ("model_plan", "model_plan_content"),
        "MixedPlanResult": ("mixed_plan", "mixed_plan_content"),
        "ModelExplanation": ("model_explanation", "model_explanation_content"),
        "ModelEstimateResult": ("model_estimate", "model_estimate_content"),
        "PlanResult": ("profile_plan", "profile_plan_content"),
        "EstimateResult": ("profile_plan", "profile_plan_content"),
        "ModelSweepResult": ("model_sweep", "model_sweep_content"),
        "CodesignResult": ("codesign", "codesign_content"),
        "PlacementResult": ("placement", "placement_content"),
        "ImprovementResult": ("improvement", "improvement_content"),
        "ValidationResult": ("validation", "validation_content"),
        "ScheduleResult": ("schedule", "schedule_content"),
    }
)


def content_of(subject: Subject[Any]) -> Content:
    """Title, figures and sections; raises TypeError for a document without a page."""
    name = type(subject.document).__name__
    if name not in CONTENTS:
        raise TypeError(f"no page is known for {name}")
    module, function = CONTENTS[name]
    found: Content = getattr(import_module(f"trainwright.reporting.page.{module}"), function)(
        subject
    )
    if subject.verification is None:
        return found
    from trainwright.reporting.page.verification import with_verification

    return with_verification(found, subject.verification)
