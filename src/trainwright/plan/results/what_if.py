"""The document of `whatif`: a plan, and the best one where something is different."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.plan.results.difference import Change
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.results.request import FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfResult:
    """`before` is the plan as it was, `after` the best under the `changes`.

    `time_ratio` is the step time of the second over that of the first.
    """

    kind: str = "whatif"
    format_version: int = FORMAT_VERSION
    changes: tuple[Change, ...]
    time_ratio: float | None = None
    before: ModelPlanResult
    after: ModelPlanResult
