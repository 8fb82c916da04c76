"""What a method answers: a schedule with times and a bound, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.results.schedule import Shortfall
from trainwright.plan.schedule import ActionKind
from trainwright.scheduling.portfolio import one_at_a_time
from trainwright.scheduling.search import lower_bound
from trainwright.scheduling.search_candidates import candidates
from trainwright.scheduling.search_question import NamedBound, Objective, SearchQuestion
from trainwright.scheduling.simulate import simulate
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from trainwright.api.schedule_inputs import ScheduleCase
    from trainwright.plan.placement import Placement
    from trainwright.plan.schedule import Schedule
    from trainwright.plan.schedule_costs import ScheduleCosts
    from trainwright.plan.timeline import Timeline
    from trainwright.scheduling.pareto import ParetoPoint

_F, _I, _W, _B, _R = ActionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The schedule found, if any, and what is proved about it.

    `tried` counts the pipelines (placements, chunks, modes) it was chosen from; the bound is about
    its own. `shortfall` says why nothing was found, or why what was given does not fit.
    """

    family: str
    timeline: Timeline | None = None
    bound: NamedBound | None = None
    shortfall: Shortfall | None = None
    found_by: str | None = None
    tried: int = 1
    max_activations: int | None = None
    evaluations: int | None = None
    interrupted: bool = False
    generate_s: float | None = None
    search_s: float | None = None
    solver_s: float | None = None
    points: tuple[ParetoPoint, ...] = ()
    warnings: tuple[str, ...] = ()


def proved_bound(
    placement: Placement,
    num_microbatches: int,
    costs: ScheduleCosts,
    *,
    objective: Objective,
    max_activations: int | None,
) -> NamedBound:
    """The best bound on schedules of this placement within the limits of the costs and this one."""
    question = SearchQuestion(
        placement=placement,
        num_ranks=placement.num_ranks,
        num_microbatches=num_microbatches,
        costs=costs,
        max_activations=max_activations or None,
        objective=objective,
    )
    return lower_bound(question, candidates(question)[0])


def least_shortfall(
    placement: Placement, costs: ScheduleCosts, *, case: ScheduleCase
) -> Shortfall | None:
    """Why nothing at all fits, if so: one microbatch alone needs more than there is."""
    held = [len(stages) for stages in placement.stages_of_rank]
    limit = case.max_activations
    if limit is not None and max(held) > limit:
        rank = int(np.argmax(held))
        return nothing_fits(needed=held[rank], limit=limit, rank=rank, unit="activations")
    memory = costs.memory
    alone = simulate(_least_memory(placement, costs), costs)
    for rank in np.flatnonzero(alone.peak_bytes > memory.limit_bytes).tolist():
        return nothing_fits(
            needed=float(alone.peak_bytes[rank]),
            limit=float(memory.limit_bytes[rank]),
            rank=rank,
            unit="bytes" if case.counts_bytes else "activations",
        )
    return None


def nothing_fits(*, needed: float, limit: float, rank: int, unit: str) -> Shortfall:
    """No schedule of this placement is within the limit."""
    return Shortfall(
        rank=rank,
        needed=needed,
        limit=limit,
        least=needed,
        unit=unit,
        description=(
            f"every schedule needs at least {amount(needed, unit)} on rank {rank}, "
            f"for one microbatch at a time; the limit is {amount(limit, unit)}"
        ),
        fixes=(f"raise the limit to {amount(needed, unit)}",),
    )


def exceeded(timeline: Timeline, *, case: ScheduleCase) -> tuple[int, float, float, str] | None:
    """The first rank that holds too much: rank, what it holds, its limit and the unit of both."""
    peaks = timeline.schedule.peak_activations
    limit = case.max_activations
    if limit is not None and max(peaks) > limit:
        rank = int(np.argmax(peaks))
        return rank, peaks[rank], limit, "activations"
    limits = timeline.costs.memory.limit_bytes
    for rank in np.flatnonzero(timeline.peak_bytes > limits).tolist():
        unit = "bytes" if case.counts_bytes else "activations"
        return rank, float(timeline.peak_bytes[rank]), float(limits[rank]), unit
    return None


def amount(value: float, unit: str) -> str:
    """Print an amount of memory."""
    if unit == "bytes":
        return format_bytes(value)
    return f"{value:g} activation{'' if value == 1 else 's'}"


def _least_memory(placement: Placement, costs: ScheduleCosts) -> Schedule:
    """One microbatch alone, each stage's backward in the form that needs less."""
    delta, transient = costs.memory.delta_bytes, costs.memory.transient_bytes
    whole = np.maximum(delta[_B], 0) + transient[_B]
    first = np.maximum(delta[_I], 0) + transient[_I]
    second = delta[_I] + np.maximum(delta[_W], 0) + transient[_W]
    fused = whole < np.maximum(first, second)
    return one_at_a_time(placement, 1, fused=fused, recomputed=np.zeros_like(fused))
