"""Which of some plans in V steps fastest: their orders follow from times, so each is simulated.

An order is most of what a price costs. What a plan spends on communication takes another, without
transfers, so only the plan that is kept is priced in full.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trainwright.pricing.assemble import simulated_step
from trainwright.pricing.step import work_of_plan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainwright.plan import Plan
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.profile import Profile


def fastest_plan(
    question: ModelQuestion, profile: Profile, plans: Iterable[Plan], *, limit_s: float
) -> Plan | None:
    """The first of those that fit and step fastest; none whose pipeline alone exceeds the limit."""
    cluster = question.cluster
    best, best_s = None, math.inf
    for plan in plans:
        work, layout = work_of_plan(
            plan,
            profile,
            cluster,
            overlap=question.settings.overlap,
            overheads=question.overheads,
        )
        step = simulated_step(work, layout)
        if step.pipeline_s + cluster.accelerator.step_overhead_s > limit_s:
            continue
        if step.step_time_s < best_s and question.holds(step.peak_memory_bytes):
            best, best_s = plan, step.step_time_s
    return best
