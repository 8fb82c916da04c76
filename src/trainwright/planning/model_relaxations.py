"""What each change that makes a model fit would cost: the best plan under it, priced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.planning.framework import plan_runnable
from trainwright.planning.model_infeasible import eased, memory_change
from trainwright.planning.schedules import ONE_F_ONE_B

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.plan.results.plan import Relaxation
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.split_plan import Priced

SHARE_S: Final = 20.0  # wall seconds of the search under one change
_GROWTH: Final = 1.2  # of memory that is tried
_MAX_GROWTHS: Final = 10
_MAX_BISECTIONS: Final = 2


def priced_relaxations(
    question: ModelQuestion, relaxations: tuple[Relaxation, ...], budget: Budget
) -> Iterator[Relaxation]:
    """The changes with the step of the best plan found under each, where time sufficed.

    They were tried under 1F1B; those that prove too little for the families asked for are left out,
    and memory is grown until a plan of theirs is found.
    """
    is_tried = ONE_F_ONE_B in (question.allowed.schedules or (ONE_F_ONE_B,))
    for fix in relaxations:
        if fix.change == "memory" and not is_tried:
            continue
        changed = None if budget.stopped else relaxed(question, fix)
        if changed is None:
            yield fix
            continue
        part = budget.part(SHARE_S, stage=f"nothing fits; trying {fix.change}")
        outcome = plan_runnable(changed, part, num_alternatives=0)
        if not outcome.priced:
            if is_tried or not outcome.exhausted:
                yield fix
            continue
        yield _priced(fix, outcome.priced[0])
    if not is_tried:
        part = budget.part(SHARE_S, stage="nothing fits; trying memory")
        yield from _enough_memory(question, relaxations, part)


def _priced(fix: Relaxation, best: Priced) -> Relaxation:
    return replace(fix, step_time_s=best.step.step_time_s, devices_used=best.plan.devices_used)


def _enough_memory(
    question: ModelQuestion, relaxations: tuple[Relaxation, ...], budget: Budget
) -> Iterator[Relaxation]:
    """Memory with which a plan of the families asked for was found, within 5 % of one without."""
    low = question.cluster.accelerator.memory_bytes
    low = max([low, *(fix.value or low for fix in relaxations if fix.change == "memory")])

    def best_with(memory_bytes: float) -> Priced | None:
        changed = replace(question, cluster=question.cluster.with_memory(memory_bytes))
        return next(iter(plan_runnable(changed, budget, num_alternatives=0).priced), None)

    high, best = low, None
    for _ in range(_MAX_GROWTHS):
        low, high = high, high * _GROWTH
        best = best_with(high)
        if best is not None or budget.stopped:
            break
    for _ in range(_MAX_BISECTIONS):
        if best is None or budget.stopped:
            break
        middle = (low * high) ** 0.5
        found = best_with(middle)
        low, high, best = (middle, high, best) if found is None else (low, middle, found)
    if best is not None:
        yield _priced(memory_change(high, question), best)


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
