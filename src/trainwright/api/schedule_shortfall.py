"""Why nothing is returned: what fits no schedule, or not the one asked for, and what would."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.results.schedule import Shortfall
from trainwright.plan.schedule_memory import ScheduleMemory
from trainwright.scheduling.families.family import without_limits
from trainwright.scheduling.least_memory import limit_below_all, misfit
from trainwright.scheduling.portfolio import named_schedules
from trainwright.units import format_bytes, format_bytes_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.api.schedule_inputs import ScheduleCase
    from trainwright.plan.placement import Placement
    from trainwright.plan.schedule_costs import ScheduleCosts
    from trainwright.plan.timeline import Timeline
    from trainwright.scheduling.families import Family, FamilyRequest
    from trainwright.scheduling.pareto import ParetoPoint
    from trainwright.scheduling.search_question import LimitTooSmall

_BY_SEARCH = "leave the order open: --search finds a schedule within this limit"


def least_shortfall(
    placement: Placement, costs: ScheduleCosts, *, case: ScheduleCase
) -> Shortfall | None:
    """Why nothing at all fits, if so: one microbatch alone needs more than there is."""
    found = limit_below_all(placement, costs.memory, max_activations=case.max_activations)
    return None if found is None else nothing_fits(found, case=case)


def nothing_fits(found: LimitTooSmall, *, case: ScheduleCase) -> Shortfall:
    """No schedule of this placement is within the limit."""
    unit = unit_of(found, case)
    needed = amount(found.needed, unit)
    return Shortfall(
        rank=found.rank,
        needed=found.needed,
        limit=found.limit,
        least=found.needed,
        unit=unit,
        description=(
            f"every schedule needs at least {needed} on rank {found.rank}, for one microbatch at "
            f"a time; the limit is {amount(found.limit, unit)}"
        ),
        fixes=(_raise_to(found.needed, unit),),
    )


def exceeded(timeline: Timeline, *, case: ScheduleCase) -> LimitTooSmall | None:
    """Which rank holds more than it may, if any."""
    memory = timeline.costs.memory
    return misfit(timeline.schedule, memory, max_activations=case.max_activations)


def given_shortfall(timeline: Timeline, *, case: ScheduleCase) -> Shortfall | None:
    """Where given orders hold too much, if they do."""
    over = exceeded(timeline, case=case)
    if over is None:
        return None
    unit = unit_of(over, case)
    held, limit = amount(over.needed, unit), amount(over.limit, unit)
    return Shortfall(
        rank=over.rank,
        needed=over.needed,
        limit=over.limit,
        unit=unit,
        description=f"rank {over.rank} holds {held}; the limit is {limit}",
        fixes=(_raise_to(over.needed, unit),),
    )


def family_shortfall(
    family: Family, request: FamilyRequest, found: LimitTooSmall, *, case: ScheduleCase
) -> Shortfall:
    """What a family needs that does not fit, though others of its placement may."""
    unit = unit_of(found, case)
    needed = _needed(family, request, found)
    others = sorted(set(_fitting(family.place(request), request, case)) - {family.name})
    fixes = [_raise_to(needed, unit)]
    if others:
        fixes.append(f"take a family of the same placement that fits: {', '.join(others)}")
    return Shortfall(
        rank=found.rank,
        needed=needed,
        limit=found.limit,
        least=_least(family.place(request), request, unit),
        unit=unit,
        description=(
            f"{family.name} needs {amount(needed, unit)}; the limit is "
            f"{amount(found.limit, unit)}, and other schedules fit"
        ),
        fixes=(*fixes, _BY_SEARCH),
    )


def front_shortfall(points: tuple[ParetoPoint, ...], *, case: ScheduleCase) -> Shortfall:
    """No schedule of the front is within the limits, though others may be."""
    over = exceeded(points[0].timeline, case=case)
    assert over is not None, "asked only where nothing fits"
    unit = unit_of(over, case)
    return Shortfall(
        rank=over.rank,
        needed=over.needed,
        limit=over.limit,
        unit=unit,
        description=(
            f"no named schedule is within {amount(over.limit, unit)}: {points[0].source} needs "
            f"{amount(over.needed, unit)}, and other schedules fit"
        ),
        fixes=(_raise_to(over.needed, unit), _BY_SEARCH),
    )


def unit_of(found: LimitTooSmall, case: ScheduleCase) -> str:
    """What the amounts are in: without sizes in the spec, its limits count activations."""
    return found.unit if case.counts_bytes else "activations"


def amount(value: float, unit: str) -> str:
    """Print an amount of memory."""
    if unit == "bytes":
        return format_bytes(value)
    return f"{value:g} activation{'' if value == 1 else 's'}"


def _raise_to(needed: float, unit: str) -> str:
    enough = format_bytes_up(needed) if unit == "bytes" else amount(needed, unit)
    return f"raise the limit to {enough}"


def _needed(family: Family, request: FamilyRequest, found: LimitTooSmall) -> float:
    """The smallest limit that the family can live with; by bisection where it heeds limits."""
    if not family.obeys_limits or found.unit == "bytes" or request.max_activations is None:
        return found.needed
    low, high = request.max_activations, int(found.needed)
    while high - low > 1:
        middle = (low + high) // 2
        peak = _peak_within(family, request, middle)
        low, high = (middle, high) if peak is None else (low, peak)
    return high


def _least(placement: Placement, request: FamilyRequest, unit: str) -> float | None:
    """What any schedule of the placement needs on its fullest rank."""
    assert request.costs is not None, "a family is priced"
    memory = request.costs.memory
    if unit == "bytes":
        none = np.zeros(memory.num_ranks)
        found = limit_below_all(placement, replace(memory, limit_bytes=none), max_activations=None)
    else:
        counted = ScheduleMemory.of(placement)
        found = limit_below_all(placement, counted, max_activations=0)
    return None if found is None else found.needed


def _peak_within(family: Family, request: FamilyRequest, limit: int) -> int | None:
    """What the family holds at this limit, if it keeps to it."""
    schedule = family.generate(replace(without_limits(request), max_activations=limit))
    peak = None if schedule is None else max(schedule.peak_activations)
    return peak if peak is not None and peak <= limit else None


def _fitting(placement: Placement, request: FamilyRequest, case: ScheduleCase) -> Iterator[str]:
    """Families with this placement that keep to the limits."""
    costs = request.costs
    assert costs is not None, "a family is priced"
    for name, schedule in named_schedules(
        placement,
        request.num_microbatches,
        costs=costs,
        limits=(request.max_activations,),
    ):
        if misfit(schedule, costs.memory, max_activations=case.max_activations) is None:
            yield name
