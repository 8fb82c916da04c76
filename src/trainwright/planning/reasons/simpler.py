"""The simpler of plans that predictions do not tell apart, and runners-up that differ in kind.

Two layouts of one job share most of the error of their predictions: the device, the software and
the model are the same. What is left decides which of them is faster. Of 157 pairs of public runs of
one job, predicted by efficiencies fitted without their table, half of the predicted ratios miss the
measured one by more than `PAIRED_ERROR`. A plan that is faster by less, and that needs what few
public runs show (context parallelism, a schedule other than 1F1B and its interleaved form), may not
pay: the simpler one is shown beside it, or taken where that is preferred.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.cluster.calibration import POOLED
from trainwright.planning.question.question import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.planning.question.question import ModelQuestion
    from trainwright.planning.splits.types import Priced

PAIRED_ERROR: Final = 0.065
_USUAL: Final = ("1f1b", "interleaved")


def expects_runs(question: ModelQuestion) -> bool:
    """Whether times rest on pooled public runs, so that measured errors say what may be faster."""
    fitted = question.cluster.pool_of().accelerator.calibration
    return fitted is not None and POOLED in fitted.source


def extras(found: Priced) -> frozenset[str]:
    """What a plan needs that few public runs show."""
    degrees, schedule = found.plan.parallelism, found.plan.schedule
    if degrees is None:
        return frozenset({"degrees that differ between stages"})
    needed = set()
    if degrees.context > 1:
        needed.add("context parallelism")
    if schedule not in _USUAL and degrees.pipeline > 1:
        needed.add(f"the schedule {schedule}")
    elif degrees.virtual_stages > 1:
        needed.add("virtual stages")
    if degrees.state_copies > 1:
        needed.add("copies of sharded state")
    return frozenset(needed)


def simplest(priced: Sequence[Priced]) -> Priced | None:
    """Of plans best first the simplest that is no slower than the error allows, if there is one.

    It needs less than the best plan, and nothing that the best plan does without.
    """
    best, *others = priced
    longest_s = best.step.step_time_s * (1 + PAIRED_ERROR)
    found = [
        other
        for other in others
        if other.step.step_time_s <= longest_s and _needs_less(other, best)
    ]
    return min(found, key=lambda each: (len(extras(each)), each.step.step_time_s), default=None)


def _needs_less(other: Priced, best: Priced) -> bool:
    own, its = extras(best), extras(other)
    schedules = {each for each in its if each.startswith("the schedule")}
    chunks = {"virtual stages"} if any(each.startswith("the schedule") for each in own) else set()
    return len(its) < len(own) and not schedules and its <= own | chunks


def why(best: Priced, simple: Priced) -> str:
    """The reason to take the simple plan, in words."""
    spared = " and ".join(sorted(extras(best) - extras(simple))).replace("the schedule", "schedule")
    slower = simple.step.step_time_s / best.step.step_time_s - 1
    return (
        f"simpler: it needs no {spared}, for {slower:.1%}; half "
        f"of the predictions of two layouts miss their ratio by more than {PAIRED_ERROR:.1%}"
    )


def simple_question(question: ModelQuestion) -> ModelQuestion | None:
    """The question for simple plans alone; None where the options leave no room for them."""
    allowed = question.allowed
    schedules = tuple(name for name in _USUAL if name in (allowed.schedules or _USUAL))
    if not schedules or 1 not in allowed.context or 1 not in allowed.state_copies:
        return None
    return replace(
        question,
        allowed=replace(
            allowed, schedules=schedules, context=Span.only(1), state_copies=Span.only(1)
        ),
    )


def of_kinds(priced: Sequence[Priced], count: int) -> tuple[Priced, ...]:
    """The first of each kind: plans of other degrees or of another schedule, not of other chunks.

    Plans come best first; where fewer than `count` kinds are known, there are fewer.
    """
    found: dict[object, Priced] = {}
    for each in priced:
        degrees = each.plan.parallelism
        kind: object = id(each)
        if degrees is not None:
            cut = (degrees.tensor, degrees.pipeline, degrees.context, degrees.expert)
            kind = (*cut, degrees.data, each.plan.schedule)
        found.setdefault(kind, each)
    return tuple(found.values())[:count]
