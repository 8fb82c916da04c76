"""The ways to a schedule: by name, by search, by a solver, a whole front, or given orders."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.api.inputs import naming_options
from trainwright.api.schedule_answer import Answer, bound_for
from trainwright.api.schedule_inputs import DEFAULT_CHUNKS, OPTION_OF, require_size
from trainwright.api.schedule_method import Method
from trainwright.api.schedule_search import by_front, by_search
from trainwright.api.schedule_shortfall import (
    family_shortfall,
    given_shortfall,
    least_shortfall,
)
from trainwright.errors import InvalidInput
from trainwright.scheduling.families import FamilyRequest, family_named, generate
from trainwright.scheduling.search_question import LimitTooSmall
from trainwright.scheduling.simulate import simulate
from trainwright.scheduling.validate import validate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.api.schedule_inputs import ScheduleCase
    from trainwright.api.schedule_method import SearchOptions
    from trainwright.api.schedule_orders import GivenOrders
    from trainwright.execution import Budget
    from trainwright.plan.schedule import Schedule


_GROUPED = frozenset({"gis", "gis-h", "depth-first"})  # families that read `group`


def answer_with(
    method: Method,
    case: ScheduleCase,
    options: SearchOptions,
    *,
    family: str | None,
    orders: GivenOrders | None,
    budget: Budget,
) -> Answer:
    """Answer by one method; options it does not use are named in a warning."""
    if method is Method.FAMILY:
        assert family is not None, "the method follows from the option"
        answer = by_family(case, family, budget=budget)
    elif method is Method.SIMULATE:
        assert orders is not None, "the method follows from the option"
        answer = by_simulation(case, orders.schedule, source=orders.source)
    elif method in (Method.FRONT, Method.SEARCHED_FRONT):
        answer = by_front(case, options, method=method, budget=budget)
    else:
        answer = by_search(case, options, method=method, budget=budget)
    what = answer.family if method is Method.FAMILY else method
    unused = (*_unused(method, options), *_unused_of_case(method, case, answer.family))
    more = tuple(f"{name} does not apply to {what} and was not used" for name in unused)
    return replace(answer, warnings=(*answer.warnings, *more))


def _unused(method: Method, options: SearchOptions) -> Iterator[str]:
    if options.placement is not None and method in (Method.FAMILY, Method.SIMULATE):
        yield "placement"
    for name in ("seed", "evaluations"):
        searches = method in (Method.SEARCH, Method.EXACT, Method.SEARCHED_FRONT)
        if getattr(options, name) is not None and not searches:
            yield name


def _unused_of_case(method: Method, case: ScheduleCase, family: str) -> Iterator[str]:
    is_family = method is Method.FAMILY
    if case.group is not None and not (is_family and family in _GROUPED):
        yield "group"
    chunks = case.virtual_stages
    if chunks is not None and (
        method is Method.SIMULATE or (is_family and not _has(family, chunks))
    ):
        yield "virtual-stages"


def _has(family: str, chunks: int) -> bool:
    """Whether a family, asked for so many chunks per rank, has that many."""
    request = FamilyRequest(num_ranks=2, num_microbatches=2, virtual_stages=chunks)
    return family_named(family).place(request).num_stages == 2 * chunks


def by_family(case: ScheduleCase, name: str, *, budget: Budget) -> Answer:
    """The orders of a named family at the given times."""
    family = family_named(name)
    request = FamilyRequest(
        num_ranks=case.num_ranks,
        num_microbatches=case.num_microbatches,
        virtual_stages=case.chunks or DEFAULT_CHUNKS,
        group=case.group,
        max_activations=case.max_activations or None,
    )
    with naming_options(OPTION_OF):
        placement = family.place(request)
        require_size(placement.num_stages, request.num_microbatches)
        costs = case.costs(placement)
        misfit = least_shortfall(placement, costs, case=case)
        if misfit is not None:
            return Answer(family=family.name, shortfall=misfit)
        began = budget.cpu_s
        request = replace(request, costs=costs)
        schedule = generate(family.name, request)
        generate_s = budget.cpu_s - began
        if isinstance(schedule, LimitTooSmall):
            shortfall = family_shortfall(family, request, schedule, case=case)
            return Answer(family=family.name, shortfall=shortfall, generate_s=generate_s)
    timeline = simulate(schedule, costs)
    return Answer(
        family=family.name,
        timeline=timeline,
        bound=bound_for(case, schedule, costs),
        generate_s=generate_s,
    )


def by_simulation(case: ScheduleCase, schedule: Schedule, *, source: str | None = None) -> Answer:
    """Price given orders; those that do not fit are priced all the same."""
    placement = schedule.placement
    for option, given, found in (
        ("ranks", case.ranks, placement.num_ranks),
        ("microbatches", case.microbatches, schedule.num_microbatches),
    ):
        if given not in (None, found):
            raise InvalidInput.of(option, f"must be {found}, as in the orders, got {given}")
    stated = case.spec.num_microbatches
    if stated not in (None, schedule.num_microbatches):
        problem = f"must be {schedule.num_microbatches}, as in the orders, or left out"
        raise InvalidInput.of("num_microbatches", f"{problem}, got {stated}", source=case.name)
    validate(schedule, source=source)
    costs = case.costs_of(schedule)
    timeline = simulate(schedule, costs)
    return Answer(
        family="given",
        timeline=timeline,
        bound=bound_for(case, schedule, costs),
        shortfall=given_shortfall(timeline, case=case),
    )
