"""The ways to a schedule: by name, by search, by a solver, a whole front, or given orders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from trainwright.api.inputs import naming_options
from trainwright.api.schedule_answer import (
    Answer,
    amount,
    exceeded,
    least_shortfall,
    nothing_fits,
    proved_bound,
)
from trainwright.api.schedule_inputs import OPTION_OF, require_size
from trainwright.errors import Fault, InvalidInput
from trainwright.plan.placement import Placement
from trainwright.plan.results.schedule import Shortfall
from trainwright.scheduling.families import FamilyRequest, family_named
from trainwright.scheduling.pareto import named_front, searched_front, some_limits
from trainwright.scheduling.portfolio import named_schedules
from trainwright.scheduling.search import search_schedule
from trainwright.scheduling.search_question import (
    PLACEMENT_NAMES,
    LimitTooSmall,
    NamedBound,
    Objective,
    SearchQuestion,
)
from trainwright.scheduling.simulate import simulate
from trainwright.scheduling.validate import validate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.api.schedule_inputs import ScheduleCase
    from trainwright.api.schedule_orders import GivenOrders
    from trainwright.execution import Budget
    from trainwright.plan.schedule import Schedule
    from trainwright.plan.schedule_costs import ScheduleCosts
    from trainwright.scheduling.families import Family
    from trainwright.scheduling.pareto import ParetoPoint

_CHUNKS = 2  # of families and placements that have chunks, where nobody says


class Method(StrEnum):
    """How a schedule is come by; the two last improve on what others found."""

    FAMILY = "family"
    SIMULATE = "simulate"
    SEARCH = "search"
    FRONT = "front"
    EXACT = "exact"
    SEARCHED_FRONT = "searched-front"

    @classmethod
    def of(
        cls, *, family: object, simulate: object, search: bool, exact: bool, pareto: bool
    ) -> Method:
        """The method that such options ask for; raises InvalidInput for none and for two."""
        asked = {
            "family": family is not None,
            "simulate": simulate is not None,
            "search": search or exact,
            "pareto": pareto,
        }
        names = [name for name, is_asked in asked.items() if is_asked]
        if not names:
            problem = "say which: --family NAME, --search, --exact, --pareto or --simulate FILE"
            raise InvalidInput.of("schedule", problem)
        if names == ["search", "pareto"] and not exact:
            return cls.SEARCHED_FRONT
        if len(names) > 1:
            problem = f"cannot be asked for together with --{names[0]}"
            raise InvalidInput.of("exact" if names[1] == "search" and exact else names[1], problem)
        if names == ["search"]:
            return cls.EXACT if exact else cls.SEARCH
        return {"family": cls.FAMILY, "simulate": cls.SIMULATE, "pareto": cls.FRONT}[names[0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What only a search, or a front, needs to know."""

    placement: str | None = None
    seed: int | None = None
    evaluations: int | None = None


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
        answer = by_simulation(case, orders.schedule)
    elif method in (Method.FRONT, Method.SEARCHED_FRONT):
        answer = by_front(case, options, method=method, budget=budget)
    else:
        answer = by_search(case, options, method=method, budget=budget)
    unused = _unused(method, case, options)
    more = tuple(f"{name} does not apply to {method} and was not used" for name in unused)
    return replace(answer, warnings=(*answer.warnings, *more))


def _unused(method: Method, case: ScheduleCase, options: SearchOptions) -> Iterator[str]:
    searches = method in (Method.SEARCH, Method.EXACT, Method.SEARCHED_FRONT)
    if case.group is not None and method is not Method.FAMILY:
        yield "group"
    if case.virtual_stages is not None and method is Method.SIMULATE:
        yield "virtual-stages"
    if options.placement is not None and method in (Method.FAMILY, Method.SIMULATE):
        yield "placement"
    for name in ("seed", "evaluations"):
        if getattr(options, name) is not None and not searches:
            yield name


def by_family(case: ScheduleCase, name: str, *, budget: Budget) -> Answer:
    """The orders of a named family at the given times."""
    family = family_named(name)
    request = FamilyRequest(
        num_ranks=case.num_ranks,
        num_microbatches=case.num_microbatches,
        virtual_stages=case.chunks or _CHUNKS,
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
        schedule: Schedule | None = family.generate(replace(request, costs=costs))
        generate_s = budget.cpu_s - began
    if schedule is None:
        shortfall = _family_shortfall(family, replace(request, costs=costs), case)
        return Answer(family=family.name, shortfall=shortfall, generate_s=generate_s)
    timeline = simulate(schedule, costs)
    if exceeded(timeline, case=case):
        shortfall = _family_shortfall(family, replace(request, costs=costs), case)
        return Answer(family=family.name, shortfall=shortfall, generate_s=generate_s)
    return Answer(
        family=family.name,
        timeline=timeline,
        bound=_bound(case, schedule, costs),
        max_activations=case.max_activations,
        generate_s=generate_s,
    )


def by_search(
    case: ScheduleCase, options: SearchOptions, *, method: Method, budget: Budget
) -> Answer:
    """The best schedule found within the limits; a solver may improve it and prove more."""
    question = _question(case, options)
    if isinstance(question, Shortfall):
        return Answer(family="search", shortfall=question)
    began = budget.cpu_s
    with naming_options(OPTION_OF):
        outcome = search_schedule(question, budget=budget)
    search_s = budget.cpu_s - began
    if isinstance(outcome, LimitTooSmall):
        return Answer(family="search", shortfall=_too_small(outcome, case), search_s=search_s)
    solver_s = None
    if method is Method.EXACT:
        from trainwright.scheduling.exact import solve_exactly

        began = budget.cpu_s
        outcome = solve_exactly(question, outcome, budget=budget)
        solver_s = budget.cpu_s - began
    schedule = outcome.schedule
    parts = schedule.placement.num_stages // question.costs.num_stages
    limit = None if case.max_activations is None else case.max_activations * parts
    own = _bound(replace(case, max_activations=limit), schedule, outcome.timeline.costs)
    return Answer(
        family="search",
        timeline=outcome.timeline,
        bound=max(outcome.bound, own, key=lambda bound: bound.seconds),
        found_by=outcome.winner,
        tried=outcome.tried,
        max_activations=limit,
        evaluations=outcome.evaluations,
        interrupted=outcome.interrupted,
        generate_s=search_s + (solver_s or 0.0),
        search_s=search_s,
        solver_s=solver_s,
    )


def by_front(
    case: ScheduleCase, options: SearchOptions, *, method: Method, budget: Budget
) -> Answer:
    """Memory against time; the answer itself is the fastest point within the limits."""
    if options.placement == "any":
        raise InvalidInput.of(
            "placement", "must be one placement for a front: chunks of others differ in size"
        )
    if options.placement is None and case.spec.placement is None:
        options = replace(options, placement="v")
    question = _question(case, options)
    if isinstance(question, Shortfall):
        return Answer(family="front", shortfall=question)
    began = budget.cpu_s
    with naming_options(OPTION_OF):
        limits = _front_limits(question)
        if method is Method.SEARCHED_FRONT:
            points = searched_front(question, budget=budget, limits=limits)
        else:
            points = named_front(question, limits=limits)
    generate_s = budget.cpu_s - began
    within = tuple(point for point in points if not exceeded(point.timeline, case=case))
    if not within:
        misfit = least_shortfall(points[0].schedule.placement, question.costs, case=case)
        shortfall = misfit or _front_shortfall(points, case)
        return Answer(family="front", shortfall=shortfall, generate_s=generate_s)
    best = within[-1]
    return Answer(
        family=best.source,
        timeline=best.timeline,
        bound=_bound(case, best.schedule, best.timeline.costs),
        max_activations=case.max_activations,
        generate_s=generate_s,
        search_s=generate_s if method is Method.SEARCHED_FRONT else None,
        points=within,
        interrupted=budget.interrupted,
    )


def by_simulation(case: ScheduleCase, schedule: Schedule) -> Answer:
    """Price given orders; those that do not fit are priced all the same."""
    placement = schedule.placement
    for option, given, found in (
        ("ranks", case.ranks, placement.num_ranks),
        ("microbatches", case.microbatches, schedule.num_microbatches),
    ):
        if given not in (None, found):
            raise InvalidInput.of(option, f"must be {found}, as in the orders, got {given}")
    validate(schedule)
    costs = case.costs(placement)
    timeline = simulate(schedule, costs)
    over = exceeded(timeline, case=case)
    shortfall = None
    if over:
        rank, needed, limit, unit = over
        shortfall = Shortfall(
            rank=rank,
            needed=needed,
            limit=limit,
            unit=unit,
            description=(
                f"rank {rank} holds {amount(needed, unit)}; the limit is {amount(limit, unit)}"
            ),
        )
    return Answer(
        family="given",
        timeline=timeline,
        bound=_bound(case, schedule, costs),
        max_activations=case.max_activations,
        shortfall=shortfall,
    )


def _bound(case: ScheduleCase, schedule: Schedule, costs: ScheduleCosts) -> NamedBound:
    return proved_bound(
        schedule.placement,
        schedule.num_microbatches,
        costs,
        objective=Objective(case.objective),
        max_activations=case.max_activations,
    )


def _question(case: ScheduleCase, options: SearchOptions) -> SearchQuestion | Shortfall:
    """What to ask the search, or why nothing can fit."""
    ranks, microbatches = case.num_ranks, case.num_microbatches
    place: Placement | str = options.placement or case.spec.placement or "any"
    described = place if isinstance(place, Placement) else _described(case, place)
    require_size(described.num_stages, microbatches)
    costs = case.costs(described)
    misfit = least_shortfall(described, costs, case=case)
    if misfit is not None and place != "any":
        return misfit
    if case.max_activations == 0:
        return misfit or nothing_fits(needed=1, limit=0, rank=0, unit="activations")
    with naming_options(OPTION_OF):
        return SearchQuestion(
            placement=place,  # type: ignore[arg-type]
            num_ranks=ranks,
            num_microbatches=microbatches,
            costs=costs,
            max_activations=case.max_activations,
            objective=Objective(case.objective),
            evaluations=options.evaluations,
            seed=options.seed or 0,
        )


def _described(case: ScheduleCase, placement: str) -> Placement:
    """The stages that the times are of: for `any`, one per rank unless said otherwise."""
    if placement not in PLACEMENT_NAMES:
        names = ", ".join(PLACEMENT_NAMES)
        raise InvalidInput.of("placement", f'must be one of {names}, got "{placement}"')
    chunks = case.chunks or (1 if placement == "any" else _CHUNKS)
    if placement == "v" and chunks != _CHUNKS:
        problem = f"V has {_CHUNKS} per rank, got {chunks}; wave takes any number"
        raise InvalidInput([Fault("virtual-stages", problem)])
    if placement in ("v", "wave"):
        return Placement.wave(case.num_ranks, virtual_stages=chunks)
    return Placement.loop(case.num_ranks, virtual_stages=chunks)


def _front_limits(question: SearchQuestion) -> tuple[int, ...]:
    """Some limits up to the one asked for."""
    limits = some_limits(question, count=8)
    most = question.max_activations
    if most is None:
        return limits
    return tuple(sorted({*(limit for limit in limits if limit < most), most}))


def _too_small(found: LimitTooSmall, case: ScheduleCase) -> Shortfall:
    unit = found.unit if case.counts_bytes else "activations"
    return nothing_fits(needed=found.needed, limit=found.limit, rank=found.rank, unit=unit)


def _family_shortfall(family: Family, request: FamilyRequest, case: ScheduleCase) -> Shortfall:
    """What this family needs, and what fits instead."""
    placement = family.place(request)
    limit, unit = _tightest(case, request)
    needed = _needed(family, request, case)
    said = f"{family.name} has no schedule within {amount(limit, unit)}"
    if needed is not None:
        said = f"{family.name} needs {amount(needed, unit)}; the limit is {amount(limit, unit)}"
    others = sorted(set(_fitting(placement, request, case)) - {family.name})
    fixes = [f"raise the limit to {amount(needed, unit)}"] if needed is not None else []
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


def _front_shortfall(points: tuple[ParetoPoint, ...], case: ScheduleCase) -> Shortfall:
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
            f"raise the limit to {amount(needed, unit)}",
            "leave the order open: --search finds a schedule within this limit",
        ),
    )
