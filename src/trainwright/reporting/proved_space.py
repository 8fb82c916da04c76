"""Of which plans a proof is: those of the space, where the plan that is shown may lie beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.plan.results.model_plan import UNEVEN_STAGES

if TYPE_CHECKING:
    from trainwright.plan.results.model_plan import ModelPlanResult


def proved_space(document: ModelPlanResult) -> tuple[str, str]:
    """What the bound is on, and what beside it may be faster; nothing where the plan is in it."""
    if document.order is not None:
        return "plan of a named family", "; other orders may be"
    if UNEVEN_STAGES in document.assumptions.get("schedule", ""):
        return "plan of nearly even stages", "; other uneven stages may be"
    return "plan of the space", ""
