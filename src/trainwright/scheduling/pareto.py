"""Memory against time: the schedules that no other beats in both.

Named families give the first points, at many limits those that take one; the search then fills in
limits of its own. Memory is the largest rank's peak: chunk activations, or the bytes of the costs
where those are limited. A dominated point (no less memory and no less time than another) is
dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plans.status import relative_gap
from trainwright.scheduling.search import (
    SearchOutcome,
    candidates,
    default_evaluations,
    lower_bound,
    named_schedules,
    search_schedule,
)
from trainwright.scheduling.simulate import simulate

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.plans.schedule import Schedule
    from trainwright.plans.status import Bound
    from trainwright.plans.timeline import Timeline
    from trainwright.scheduling.search import SearchQuestion


_NAMED_ACTIONS = 400_000  # of named families at all limits together: about five seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """One schedule: what it holds at most, how long it takes, and how much shorter one could be.

    `bound` holds for schedules of this placement that need no more than `peak_activations`.
    """

    timeline: Timeline
    value_s: float
    peak_activations: int
    peak_bytes: float
    bound: Bound
    source: str

    @property
    def schedule(self) -> Schedule:
        """Orders without times."""
        return self.timeline.schedule

    @property
    def gap(self) -> float:
        """(value - bound) / value."""
        return relative_gap(self.value_s, self.bound.value_s)


def named_front(question: SearchQuestion, *, limits: Sequence[int] = ()) -> tuple[ParetoPoint, ...]:
    """The front of all named families with the question's placement, least memory first.

    Families that take a memory limit are built for each of `limits`, by default `many_limits`, and
    for none. The question's own limits and work are ignored.
    """
    best: dict[int, tuple[float, str, Timeline]] = {}
    candidate = candidates(question)[0]
    named = named_schedules(
        candidate.placement,
        question.num_microbatches,
        costs=candidate.costs,
        limits=(None, *(limits or many_limits(question))),
    )
    for name, schedule in named:
        timeline = simulate(schedule, candidate.costs)
        value_s = question.objective.of(timeline)
        peak = max(schedule.peak_activations)
        if peak not in best or value_s < best[peak][0]:
            best[peak] = value_s, name, timeline
    return _front(_point(question, timeline, source=name) for _, name, timeline in best.values())


def searched_front(
    question: SearchQuestion, *, budget: Budget, limits: Sequence[int] = ()
) -> tuple[ParetoPoint, ...]:
    """The named front improved by a search at each limit, each from the schedules before it.

    The question's evaluations are for all limits together, half of them for the largest, whose
    schedule is the answer; the default is that of four searches.
    """
    limits = sorted(limits or some_limits(question, count=8))
    between = (limit for limit in many_limits(question) if limit < limits[-1])
    points = list(named_front(question, limits=sorted({*limits, *between})))
    placement = candidates(question)[0].placement
    num_actions = 3 * placement.num_stages * question.num_microbatches
    evaluations = question.evaluations or 4 * default_evaluations(num_actions)
    known: list[Schedule] = []
    for limit in limits:
        at_limit = replace(
            question,
            placement=placement,
            max_activations=limit,
            evaluations=max(1, evaluations // (2 if limit == limits[-1] else 2 * len(limits))),
        )
        outcome = search_schedule(at_limit, budget=budget, known=known)
        if isinstance(outcome, SearchOutcome):
            known = [outcome.schedule]
            points.append(_point(question, outcome.timeline, source=outcome.winner))
        if budget.stopped:
            break
    return _front(points)


def many_limits(question: SearchQuestion) -> tuple[int, ...]:
    """Every limit worth asking about, or as many as take a few seconds to build families for."""
    num_actions = 3 * candidates(question)[0].placement.num_stages * question.num_microbatches
    return some_limits(question, count=max(8, _NAMED_ACTIONS // num_actions))


def some_limits(question: SearchQuestion, *, count: int) -> tuple[int, ...]:
    """Limits worth asking about: from what one microbatch needs to 1F1B's peak, evenly spread.

    V-Min's peak, a third of it, and V-Half's lie between; beyond it memory brings nothing where
    all stages cost the same.
    """
    placement = candidates(question)[0].placement
    least = max(map(len, placement.stages_of_rank))
    most = max(least, placement.num_stages)
    return tuple(sorted({round(limit) for limit in np.linspace(least, most, count)}))


def _point(question: SearchQuestion, timeline: Timeline, *, source: str) -> ParetoPoint:
    peak = max(timeline.schedule.peak_activations)
    candidate = candidates(replace(question, max_activations=peak))[0]
    return ParetoPoint(
        timeline=timeline,
        value_s=question.objective.of(timeline),
        peak_activations=peak,
        peak_bytes=float(timeline.peak_bytes.max()),
        bound=lower_bound(question, candidate),
        source=source,
    )


def _front(points: Iterable[ParetoPoint]) -> tuple[ParetoPoint, ...]:
    """Points by memory, each shorter than all before it; of equals the first stays."""
    front: list[ParetoPoint] = []
    for point in sorted(points, key=lambda point: (point.peak_activations, point.value_s)):
        if not front or point.value_s < front[-1].value_s:
            front.append(point)
    return tuple(front)
