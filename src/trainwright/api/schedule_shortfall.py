"""Why nothing is returned: what fits no schedule, or not the one asked for, and what would."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.results.schedule import Shortfall
from trainwright.plan.schedule import ActionKind
from trainwright.scheduling.portfolio import named_schedules, one_at_a_time
from trainwright.scheduling.simulate import simulate
from trainwright.units import format_bytes, format_bytes_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.api.schedule_inputs import ScheduleCase
    from trainwright.plan.placement import Placement
    from trainwright.plan.schedule import Schedule
    from trainwright.plan.schedule_costs import ScheduleCosts
    from trainwright.plan.timeline import Timeline
    from trainwright.scheduling.families import Family, FamilyRequest
    from trainwright.scheduling.pareto import ParetoPoint
    from trainwright.scheduling.search_question import LimitTooSmall

_F, _I, _W, _B, _R = ActionKind


def least_shortfall(
    placement: Placement, costs: ScheduleCosts, *, case: ScheduleCase
) -> Shortfall | None:
    """Why nothing at all fits, if so: one microbatch alone needs more than there is."""
    held = [len(stages) for stages in placement.stages_of_rank]
    limit = case.max_activations
    if limit is not None and max(held) > limit:
        rank = int(np.argmax(held))
        return nothing_fits(needed=held[rank], limit=limit, rank=rank, unit="activations")
    needed = simulate(_least_memory(placement, costs), costs).peak_bytes
    limits = costs.memory.limit_bytes
    rank = int(np.argmax(needed - limits))
    if needed[rank] <= limits[rank]:
        return None
    unit = "bytes" if case.counts_bytes else "activations"
    return nothing_fits(needed=float(needed[rank]), limit=float(limits[rank]), rank=rank, unit=unit)


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
        fixes=(_raise_to(needed, unit),),
    )


def exceeded(timeline: Timeline, *, case: ScheduleCase) -> tuple[int, float, float, str] | None:
    """The rank that holds most beyond its limit, if any: rank, amount held, limit, unit."""
    peaks = timeline.schedule.peak_activations
    limit = case.max_activations
    if limit is not None and max(peaks) > limit:
        rank = int(np.argmax(peaks))
        return rank, peaks[rank], limit, "activations"
    limits = timeline.costs.memory.limit_bytes
    rank = int(np.argmax(timeline.peak_bytes - limits))
    if timeline.peak_bytes[rank] <= limits[rank]:
        return None
    unit = "bytes" if case.counts_bytes else "activations"
    return rank, float(timeline.peak_bytes[rank]), float(limits[rank]), unit


def amount(value: float, unit: str) -> str:
    """Print an amount of memory."""
    if unit == "bytes":
        return format_bytes(value)
    return f"{value:g} activation{'' if value == 1 else 's'}"


def _raise_to(needed: float, unit: str) -> str:
    enough = format_bytes_up(needed) if unit == "bytes" else amount(needed, unit)
    return f"raise the limit to {enough}"


def _least_memory(placement: Placement, costs: ScheduleCosts) -> Schedule:
    """One microbatch alone, each stage's backward in the form that needs less."""
    delta, transient = costs.memory.delta_bytes, costs.memory.transient_bytes
    whole = np.maximum(delta[_B], 0) + transient[_B]
    first = np.maximum(delta[_I], 0) + transient[_I]
    second = delta[_I] + np.maximum(delta[_W], 0) + transient[_W]
    fused = whole < np.maximum(first, second)
    return one_at_a_time(placement, 1, fused=fused, recomputed=np.zeros_like(fused))


def given_shortfall(timeline: Timeline, *, case: ScheduleCase) -> Shortfall | None:
    """Where given orders hold too much, if they do."""
    over = exceeded(timeline, case=case)
    if over is None:
        return None
    rank, needed, limit, unit = over
    said = f"rank {rank} holds {amount(needed, unit)}; the limit is {amount(limit, unit)}"
    return Shortfall(
        rank=rank,
        needed=needed,
        limit=limit,
        unit=unit,
        description=said,
        fixes=(_raise_to(needed, unit),),
    )


def search_shortfall(found: LimitTooSmall, case: ScheduleCase) -> Shortfall:
    """No pipeline of a search is within the limit."""
    unit = found.unit if case.counts_bytes else "activations"
    return nothing_fits(needed=found.needed, limit=found.limit, rank=found.rank, unit=unit)


def family_shortfall(family: Family, request: FamilyRequest, case: ScheduleCase) -> Shortfall:
    """What this family needs, and what fits instead."""
    placement = family.place(request)
    limit, unit = _tightest(case, request)
    needed = _needed(family, request, case)
    said = f"{family.name} has no schedule within {amount(limit, unit)}"
    if needed is not None:
        said = f"{family.name} needs {amount(needed, unit)}; the limit is {amount(limit, unit)}"
    others = sorted(set(_fitting(placement, request, case)) - {family.name})
    fixes = [_raise_to(needed, unit)] if needed is not None else []
    if others:
        fixes.append(f"take a family of the same placement that fits: {', '.join(others)}")
    fixes.append("leave the order open: --search finds a schedule within this limit")
    held = max(len(stages) for stages in placement.stages_of_rank)
    return Shortfall(
        needed=needed,
        limit=limit,
        least=held if unit == "activations" else None,
        unit=unit,
        description=f"{said}, and other schedules fit",
        fixes=tuple(fixes),
    )


def _tightest(case: ScheduleCase, request: FamilyRequest) -> tuple[float, str]:
    if case.max_activations is not None:
        return case.max_activations, "activations"
    assert request.costs is not None, "a family is priced"
    limit = float(request.costs.memory.limit_bytes.min())
    return limit, "bytes" if case.counts_bytes else "activations"


def _needed(family: Family, request: FamilyRequest, case: ScheduleCase) -> float | None:
    """The smallest activation limit that the family can live with, by bisection."""
    if case.max_activations is None:
        return _needed_amount(family, request)
    low, high = case.max_activations, request.virtual_stages * request.num_microbatches
    peak = _peak_within(family, request, high)
    if peak is None:
        return None
    high = min(high, peak)
    while high - low > 1:
        middle = (low + high) // 2
        peak = _peak_within(family, request, middle)
        if peak is None:
            low = middle
        else:
            high = min(middle, peak)
    return high


def _needed_amount(family: Family, request: FamilyRequest) -> float | None:
    """Memory of the fullest rank where limits are left aside."""
    assert request.costs is not None, "a family is priced"
    memory = request.costs.memory
    open_memory = replace(memory, limit_bytes=memory.limit_bytes + float("inf"))
    costs = replace(request.costs, memory=open_memory)
    schedule: Schedule | None = family.generate(replace(request, costs=costs))
    return None if schedule is None else float(simulate(schedule, costs).peak_bytes.max())


def _peak_within(family: Family, request: FamilyRequest, limit: int) -> int | None:
    """What the family holds at this limit, if it keeps to it."""
    schedule: Schedule | None = family.generate(replace(request, max_activations=limit))
    peak = None if schedule is None else max(schedule.peak_activations)
    return peak if peak is not None and peak <= limit else None


def _fitting(placement: Placement, request: FamilyRequest, case: ScheduleCase) -> Iterator[str]:
    """Families with this placement that keep to the limits."""
    assert request.costs is not None, "a family is priced"
    for name, schedule in named_schedules(
        placement,
        request.num_microbatches,
        costs=request.costs,
        max_activations=request.max_activations,
    ):
        if not exceeded(simulate(schedule, request.costs), case=case):
            yield name


def front_shortfall(points: tuple[ParetoPoint, ...], case: ScheduleCase) -> Shortfall:
    """No schedule of the front is within the limits, though others may be."""
    over = exceeded(points[0].timeline, case=case)
    assert over is not None, "asked only where nothing fits"
    rank, needed, limit, unit = over
    return Shortfall(
        rank=rank,
        needed=needed,
        limit=limit,
        unit=unit,
        description=(
            f"no named schedule is within {amount(limit, unit)}: {points[0].source} needs "
            f"{amount(needed, unit)}, and other schedules fit"
        ),
        fixes=(
            _raise_to(needed, unit),
            "leave the order open: --search finds a schedule within this limit",
        ),
    )
