"""A plan as a journal holds it, to its last bit."""

from __future__ import annotations

from typing import Any

from trainwright.codesign.uniform import UniformPlan
from trainwright.profile import Recompute


def plan_to_json(plan: UniformPlan) -> list[Any]:
    """Step, degrees, what stages recompute, where they begin, and the schedule."""
    modes = [str(mode) for mode in plan.recompute]
    degrees = [plan.tensor_degree, plan.data_degree]
    return [plan.step_s, *degrees, modes, list(plan.starts), plan.schedule]


def plan_from_json(value: list[Any]) -> UniformPlan:
    """The plan that was written."""
    step_s, tensor, data, modes, starts, schedule = value
    return UniformPlan(
        step_s=step_s,
        tensor_degree=tensor,
        data_degree=data,
        recompute=tuple(map(Recompute, modes)),
        starts=tuple(starts),
        schedule=schedule,
    )
