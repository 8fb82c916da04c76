"""What each change that makes a model fit would cost: the best plan under it, priced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.planning.framework import plan_runnable
from trainwright.planning.model_infeasible import eased
from trainwright.planning.schedules import ONE_F_ONE_B

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.plan.results.plan import Relaxation
    from trainwright.planning.model_question import ModelQuestion

SHARE_S: Final = 20.0  # wall seconds of the search under one change


def priced_relaxations(
    question: ModelQuestion, relaxations: tuple[Relaxation, ...], budget: Budget
) -> Iterator[Relaxation]:
    """The changes with the step of the best plan found under each, where time sufficed.

    They were tried under 1F1B; those that prove too little for the families asked for are left out.
    """
    is_tried = ONE_F_ONE_B in (question.allowed.schedules or (ONE_F_ONE_B,))
    for fix in relaxations:
        changed = None if budget.stopped else relaxed(question, fix)
        if changed is None:
            yield fix
            continue
        outcome = plan_runnable(changed, budget.part(SHARE_S), num_alternatives=0)
        if not outcome.priced:
            if is_tried or not outcome.exhausted:
                yield fix
            continue
        best = outcome.priced[0]
        yield replace(fix, step_time_s=best.step.step_time_s, devices_used=best.plan.devices_used)


def relaxed(question: ModelQuestion, fix: Relaxation) -> ModelQuestion | None:
    """The question with one change of those that a diagnosis offers."""
    for known, allowed in eased(question.allowed):
        if (known.change, known.description) == (fix.change, fix.description):
            return replace(question, allowed=allowed)
    cluster, value = question.cluster, fix.value
    if value is None:
        return None
    if fix.change == "memory":
        return replace(question, cluster=cluster.with_memory(value))
    if fix.change == "sequence":
        workload = replace(question.workload, sequence_length=int(value))
        return replace(question, workload=workload)
    if fix.change == "devices":
        devices, node = int(value), cluster.pool_of().devices_per_node
        if devices > cluster.num_devices:
            cluster = cluster.with_nodes(-(-devices // node))
        return replace(question, cluster=cluster, num_devices=devices)
    return None
