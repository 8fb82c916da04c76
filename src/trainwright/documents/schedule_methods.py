"""The ways to a schedule: by name, by search, by a solver, a whole front, or given orders."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trainwright.documents.schedule import (
    Answer,
    BoundAtPlacement,
    FrontPoint,
    ScheduleResult,
    Shortfall,
    bound_for,
    bound_within,
    case_of,
    document_of,
    objective_of,
    proved_bound,
    schedule_of,
    timeline_of,
)
from trainwright.errors import InvalidInput, UnsupportedFeature, one_of
from trainwright.execution import Budget
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.document_json import decode_document
from trainwright.formats.json_text import scan_json
from trainwright.formats.schedule_json import is_json, order_rows, parse_orders, read_orders
from trainwright.options.inputs import display_name, inside, naming_options
from trainwright.options.schedule import (
    DEFAULT_CHUNKS,
    OPTION_OF,
    Method,
    ScheduleCase,
    SearchOptions,
    require_size,
)
from trainwright.plans.lowered import Timeline
from trainwright.plans.schedule import (
    Placement,
    Schedule,
    ScheduleCosts,
    ScheduleMemory,
)
from trainwright.plans.status import Bound, BoundName, Objective
from trainwright.scheduling.bounds import LimitTooSmall, limit_below_all, misfit
from trainwright.scheduling.candidates import (
    DEFAULT_SEED,
    PLACEMENT_NAMES,
    Candidate,
    SearchQuestion,
    activation_limit,
    candidates,
    named_schedules,
    recomputed_everywhere,
)
from trainwright.scheduling.exact import load_solver, solve_exactly
from trainwright.scheduling.families import (
    ALIASES,
    FAMILIES,
    Family,
    FamilyRequest,
    GivenFamily,
    family_named,
    generate,
)
from trainwright.scheduling.families.family import without_limits
from trainwright.scheduling.search import (
    ParetoPoint,
    bound_of_point,
    lower_bound,
    many_limits,
    named_front,
    search_schedule,
    searched_front,
    some_limits,
)
from trainwright.scheduling.simulate import simulate, validate
from trainwright.units import format_bytes, format_bytes_up

# Orders to price: a file, a schedule, or a schedule document with costs of its own
# ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOrders:
    """Orders, where they come from, and the costs that came with them."""

    schedule: Schedule
    name: str
    source: str | None = None
    case: ScheduleCase | None = None


def open_orders(given: str | Path | Schedule) -> GivenOrders:
    """Read orders: JSON, PyTorch's CSV or a schedule document, told apart by content.

    Raises InvalidInput with every fault of the file.
    """
    if isinstance(given, Schedule):
        return GivenOrders(schedule=given, name="orders")
    data, source, name = read_bytes(given, name="simulate"), str(given), display_name(given)
    if not is_json(data):
        return GivenOrders(schedule=parse_orders(data, source=source), name=name, source=source)
    text = scan_json(data, source=source, what="orders")
    if text.value.get("kind") != "schedule":
        schedule = read_orders(text.value, source=source, text_faults=text.faults)
        return GivenOrders(schedule=schedule, name=name, source=source)
    kinds = {"schedule": ScheduleResult}
    document = decode_document(text.value, kinds, source=source, text_faults=text.faults)
    return GivenOrders(
        schedule=schedule_of(document, source=source),
        name=name,
        source=source,
        case=case_of(document, source=source),
    )


# Why nothing is returned: what fits no schedule, or not the one asked for, and what would
# ----------------------------------------------------------------------------------------

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
    needed, limit = amounts(found.needed, found.limit, unit)
    return Shortfall(
        rank=found.rank,
        needed=found.needed,
        limit=found.limit,
        least=found.needed,
        unit=unit,
        description=(
            f"every schedule needs at least {needed} on rank {found.rank}, for one microbatch at "
            f"a time; the limit is {limit}"
        ),
        fixes=(_raise_to(found.needed, unit),),
    )


def exceeded(timeline: Timeline, *, case: ScheduleCase) -> LimitTooSmall | None:
    """Which rank holds more than it may, if any."""
    costs, most = timeline.costs, case.max_activations
    return misfit(timeline.schedule, costs.memory, max_activations=most, costs=costs)


def given_shortfall(timeline: Timeline, *, case: ScheduleCase) -> Shortfall | None:
    """Where given orders hold too much, if they do."""
    over = exceeded(timeline, case=case)
    if over is None:
        return None
    unit = unit_of(over, case)
    held, limit = amounts(over.needed, over.limit, unit)
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
    needs, limit = amounts(needed, found.limit, unit)
    fitting = _fitting(family.place(request), request, case) if family.is_plain else ()
    others = sorted(set(fitting) - {family.name})
    fixes = [_raise_to(needed, unit)]
    if others:
        fixes.append(f"take a family of the same placement that fits: {', '.join(others)}")
    return Shortfall(
        rank=found.rank,
        needed=needed,
        limit=found.limit,
        least=_least(family.place(request), request, unit) if family.is_plain else None,
        unit=unit,
        description=f"{family.name} needs {needs}; the limit is {limit}, and other schedules fit",
        fixes=(*fixes, _BY_SEARCH),
    )


def front_shortfall(points: tuple[ParetoPoint, ...], *, case: ScheduleCase) -> Shortfall:
    """No schedule of the front is within the limits, though others may be."""
    over = exceeded(points[0].timeline, case=case)
    assert over is not None, "asked only where nothing fits"
    unit = unit_of(over, case)
    needs, limit = amounts(over.needed, over.limit, unit)
    return Shortfall(
        rank=over.rank,
        needed=over.needed,
        limit=over.limit,
        unit=unit,
        description=(
            f"no named schedule is within {limit}: {points[0].source} needs {needs}, and other "
            "schedules fit"
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


def amounts(needed: float, limit: float, unit: str) -> tuple[str, str]:
    """Print what is needed and the limit below it, with the digits that tell them apart."""
    texts = amount(needed, unit), amount(limit, unit)
    if texts[0] != texts[1]:
        return texts
    own = "B" if unit == "bytes" else unit
    return f"{needed!r} {own}", f"{limit!r} {own}"


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
        most = case.max_activations
        if misfit(schedule, costs.memory, max_activations=most, costs=costs) is None:
            yield name


# Schedules that nobody named: by search, by a solver, and the front of memory against time
# -----------------------------------------------------------------------------------------

_SEARCH = "search"  # what stands for a family where the orders have no name


def by_search(
    case: ScheduleCase, options: SearchOptions, *, method: Method, budget: Budget
) -> Answer:
    """The best schedule found within the limits; a solver may improve it and prove more."""
    if method is Method.EXACT:
        load_solver()  # before the search, which would be in vain without it
    question = _question(case, options)
    if isinstance(question, Shortfall):
        return Answer(family=_SEARCH, shortfall=question)
    began = budget.cpu_s
    with naming_options(OPTION_OF):
        outcome = search_schedule(question, budget=budget)
    search_s = budget.cpu_s - began
    if isinstance(outcome, LimitTooSmall):
        return Answer(family=_SEARCH, shortfall=nothing_fits(outcome, case=case), search_s=search_s)
    solver_s = None
    if method is Method.EXACT:
        began = budget.cpu_s
        outcome = solve_exactly(question, outcome, budget=budget)
        solver_s = budget.cpu_s - began
    schedule = outcome.schedule
    parts = schedule.placement.num_stages // question.costs.num_stages
    limit = None if case.max_activations is None else case.max_activations * parts
    cut = replace(case, max_activations=limit, parts_per_stage=parts)
    own = bound_within(cut, schedule, outcome.timeline.costs)
    own = max(outcome.pipeline_bound, own, key=lambda bound: bound.value_s)
    return Answer(
        family=_SEARCH,
        timeline=outcome.timeline,
        bound=outcome.bound if outcome.is_open else own,
        pipeline_bound=own if outcome.is_open else None,
        found_by=outcome.winner,
        tried=outcome.tried,
        parts_per_stage=parts,
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
        if method is Method.SEARCHED_FRONT:
            limits = _up_to_the_limit(question, some_limits(question, count=8))
            points = searched_front(question, budget=budget, limits=limits)
        else:
            limits = _up_to_the_limit(question, many_limits(question))
            points = named_front(question, limits=limits, budget=budget)
    generate_s = budget.cpu_s - began
    if not points:
        raise UnsupportedFeature(
            "no named family has this placement", alternative="add --search for other orders"
        )
    within = tuple(point for point in points if not exceeded(point.timeline, case=case))
    if not within:
        misfit = least_shortfall(points[0].schedule.placement, question.costs, case=case)
        shortfall = misfit or front_shortfall(points, case=case)
        return Answer(family="front", shortfall=shortfall, generate_s=generate_s)
    return replace(
        _at_the_front(within, case),
        generate_s=generate_s,
        search_s=generate_s if method is Method.SEARCHED_FRONT else None,
        interrupted=budget.interrupted,
    )


def _at_the_front(points: tuple[ParetoPoint, ...], case: ScheduleCase) -> Answer:
    """The fastest point of those within the limits, and all of them."""
    best = points[-1]
    return Answer(
        family=best.source if best.source in FAMILIES else _SEARCH,
        found_by=best.source,
        timeline=best.timeline,
        bound=bound_within(case, best.schedule, best.timeline.costs),
        points=points,
    )


def _question(case: ScheduleCase, options: SearchOptions) -> SearchQuestion | Shortfall:
    """What to ask the search, or why nothing can fit."""
    ranks, microbatches = case.num_ranks, case.num_microbatches
    place: Placement | str = options.placement or case.spec.placement or "any"
    described = place if isinstance(place, Placement) else _described(case, place)
    require_size(described.num_stages, microbatches)
    costs = case.costs(described)
    misfit = least_shortfall(described, costs, case=case)
    no_choice = place != "any" and case.spec.saved_bytes is None and not case.spec.offload_s
    if misfit is not None and (no_choice or case.max_activations == 0):
        return misfit
    with naming_options(OPTION_OF):
        return SearchQuestion(
            placement=place,  # type: ignore[arg-type]
            num_ranks=ranks,
            num_microbatches=microbatches,
            costs=costs,
            max_activations=case.max_activations,
            objective=Objective(case.objective),
            recompute_saved_bytes=case.spec.saved_bytes,
            offload=bool(case.spec.offload_s),
            evaluations=options.evaluations,
            seed=DEFAULT_SEED if options.seed is None else options.seed,
        )


def _described(case: ScheduleCase, placement: str) -> Placement:
    """The stages that the times are of: for `any`, one per rank unless said otherwise."""
    if placement not in PLACEMENT_NAMES:
        raise InvalidInput.of("placement", one_of(PLACEMENT_NAMES, placement))
    chunks = case.chunks or (1 if placement == "any" else DEFAULT_CHUNKS)
    if placement == "v" and chunks != DEFAULT_CHUNKS and case.virtual_stages is None:
        if case.spec.rank_of_stage is not None:
            problem = f"is no V but {chunks} per rank; leave it out, or placement"
            raise InvalidInput.of("rank_of_stage", problem, source=case.name)
        problem = (
            f"V has {DEFAULT_CHUNKS} stages per rank, the spec {chunks}; wave takes any number"
        )
        raise InvalidInput.of("placement", problem)
    if placement == "v" and chunks != DEFAULT_CHUNKS:
        problem = f"V has {DEFAULT_CHUNKS} per rank, got {chunks}; wave takes any number"
        raise InvalidInput.of("virtual-stages", problem)
    if placement in ("v", "wave"):
        return Placement.wave(case.num_ranks, virtual_stages=chunks)
    return Placement.loop(case.num_ranks, virtual_stages=chunks)


def _up_to_the_limit(question: SearchQuestion, limits: tuple[int, ...]) -> tuple[int, ...]:
    """Limits up to the one asked for, and that."""
    most = question.max_activations
    if most is None:
        return limits
    return tuple(sorted({*(limit for limit in limits if limit < most), most}))


# The ways to a schedule: by name, by search, by a solver, a whole front, or given orders
# ---------------------------------------------------------------------------------------


def answer_with(
    method: Method,
    case: ScheduleCase,
    options: SearchOptions,
    *,
    family: GivenFamily | None,
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
    unused = [*_unused(method, options), *_unused_of_case(method, case, family)]
    if math.isfinite(budget.remaining_s) and method in (Method.FAMILY, Method.SIMULATE):
        unused.append("time-limit")  # an order is made in one go, linear in its actions
    more = tuple(f"{name} does not apply to {what} and was not used" for name in unused)
    return replace(answer, warnings=(*answer.warnings, *more))


def _unused(method: Method, options: SearchOptions) -> Iterator[str]:
    if options.placement is not None and method in (Method.FAMILY, Method.SIMULATE):
        yield "placement"
    for name in ("seed", "evaluations"):
        searches = method in (Method.SEARCH, Method.EXACT, Method.SEARCHED_FRONT)
        if getattr(options, name) is not None and not searches:
            yield name


def _unused_of_case(method: Method, case: ScheduleCase, given: GivenFamily | None) -> Iterator[str]:
    family = None if given is None else family_named(given)
    if case.group is not None and not (family is not None and family.reads_group):
        yield "group"
    chunks = case.virtual_stages
    if chunks is not None and (
        method is Method.SIMULATE or (family is not None and not _has(family, chunks))
    ):
        yield "virtual-stages"


def _has(family: Family, chunks: int) -> bool:
    """Whether a family, asked for so many chunks per rank, has that many."""
    request = FamilyRequest(num_ranks=2, num_microbatches=2, virtual_stages=chunks)
    return family.place(request).num_stages == 2 * chunks


def by_family(case: ScheduleCase, given: GivenFamily, *, budget: Budget) -> Answer:
    """The orders of a family, by its name or somebody else's, at the given times."""
    family = family_named(given)
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
        misfit = least_shortfall(placement, costs, case=case) if family.is_plain else None
        if misfit is not None:
            return Answer(family=family.name, shortfall=misfit)
        began = budget.cpu_s
        request = replace(request, costs=costs)
        schedule = generate(family, request)
        generate_s = budget.cpu_s - began
        if isinstance(schedule, LimitTooSmall):
            shortfall = family_shortfall(family, request, schedule, case=case)
            return Answer(family=family.name, shortfall=shortfall, generate_s=generate_s)
    costs = case.costs_of(schedule)
    return Answer(
        family=family.name,
        timeline=simulate(schedule, costs),
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
    timeline = simulate(schedule, case.costs_of(schedule))
    shortfall = given_shortfall(timeline, case=case)
    if shortfall is not None:
        case = case.without_limits  # what holds within them is not about these orders
    return Answer(
        family="given",
        timeline=timeline,
        bound=bound_for(case, schedule, case.costs_of(schedule)),
        shortfall=shortfall,
    )


# A document again: by the method that it was asked for, with what only a search knows taken over
# -----------------------------------------------------------------------------------------------

_SEARCHES = (Method.SEARCH, Method.EXACT, Method.SEARCHED_FRONT)
_COSTLY = (BoundName.CROSSINGS, BoundName.TWO_RANKS)  # of limited memory only


def remake_schedule(document: ScheduleResult) -> ScheduleResult:
    """The document as its request, its orders and this version's families and bounds give it.

    Orders of searches and fronts are taken over with what those call them, bounds that take seconds
    where they are no less than those that take none, what a solver proved where one was asked for;
    so are work, times, runs and warnings.
    Raises `InvalidInput` for orders that break a law, or costs that cannot be read.
    """
    objective_of(document)
    request, timeline = document.request, timeline_of(document)
    if request.method not in tuple(Method):
        raise InvalidInput.of("request.method", one_of(tuple(Method), request.method))
    if timeline is not None and request.num_ranks != timeline.schedule.num_ranks:
        problem = f"must be {timeline.schedule.num_ranks}, as in the orders"
        raise InvalidInput.of("request.num_ranks", f"{problem}, got {request.num_ranks}")
    method = Method(request.method)
    case = case_of(document)
    if method is Method.SIMULATE:
        answer = by_simulation(case, schedule_of(document))
    elif method is Method.FAMILY:
        answer = _family_again(document, case, timeline)
    else:
        answer = _search_again(document, timeline, method=method)
    answer = replace(
        answer,
        evaluations=document.evaluations if method in _SEARCHES else None,
        generate_s=document.generate_s,
        search_s=document.search_s,
        solver_s=document.solver_s,
        warnings=document.warnings,
    )
    made = document_of(answer, case, request)
    return replace(made, verification=document.verification)


def _asked(document: ScheduleResult) -> ScheduleCase:
    """What was to be scheduled: limits as they were given, and sizes, too."""
    request = document.request
    return replace(
        case_of(replace(document, parts_per_stage=None)),
        ranks=request.num_ranks,
        microbatches=request.num_microbatches,
        virtual_stages=request.virtual_stages,
        group=request.group,
    )


def _family_again(
    document: ScheduleResult, case: ScheduleCase, timeline: Timeline | None
) -> Answer:
    """The orders of a family by its name; those of somebody else's are taken over."""
    name = document.request.family or ""
    if ALIASES.get(name, name) in FAMILIES:
        answer = by_family(_asked(document), name, budget=Budget())
        if timeline is None or answer.timeline is None:
            return answer
        if order_rows(answer.timeline.schedule) == document.orders:
            return answer
        name = "another, whose orders these are"
    if timeline is None:
        return Answer(family=name, shortfall=document.binding)
    bound = bound_for(case, timeline.schedule, timeline.costs)
    return Answer(family=name, timeline=timeline, bound=bound)


def _search_again(document: ScheduleResult, timeline: Timeline | None, *, method: Method) -> Answer:
    """What a search or a front says of orders that it found, or why it found none."""
    request, asked = document.request, _asked(document)
    options = SearchOptions(placement=request.placement, seed=request.seed, evaluations=1)
    is_front = method in (Method.FRONT, Method.SEARCHED_FRONT)
    if is_front and timeline is None:
        return Answer(family="front", shortfall=document.binding)
    if timeline is None:  # proved before any search
        return by_search(asked, options, method=Method.SEARCH, budget=Budget())
    if is_front and options.placement is None:
        options = replace(options, placement=None if asked.spec.placement else "v")
    question = _question(asked, options)
    if isinstance(question, Shortfall):
        return Answer(family=_SEARCH, shortfall=question)
    if is_front:
        return _front_again(document, asked, question)
    return _found_again(document, timeline, question)


def _found_again(document: ScheduleResult, timeline: Timeline, question: SearchQuestion) -> Answer:
    """The orders that a search found, with the bounds of their pipeline and of all tried."""
    schedule, value_s = timeline.schedule, question.objective.of(timeline)
    if exceeded(timeline, case=case_of(document)) is not None:
        raise InvalidInput.of("orders", "must be within the limits of the request")
    every = candidates(question)
    least = bound_within(case_of(document), schedule, timeline.costs)
    is_limited = len(every[0].resources[2]) > 0 or question.recompute_saved_bytes is not None
    costly = tuple(name for name in BoundName if is_limited and name is not BoundName.SOLVER)
    solved = (BoundName.SOLVER,) if document.solver_s is not None else ()
    solved = solved if document.request.method == Method.EXACT else ()
    claimed = document.bound_at_placement or document
    pipeline_bound = _claimed(claimed, [least], costly=(*costly, *solved), most_s=value_s)
    is_open = len(every) > 1 if not is_limited else document.bound_at_placement is not None
    bound = pipeline_bound
    if is_open:
        plain = _plain_bounds(question, every)
        bound = _claimed(document, plain, costly=costly, most_s=pipeline_bound.value_s)
    by_solver = document.found_by == BoundName.SOLVER and not solved
    return Answer(
        family=_SEARCH,
        timeline=timeline,
        bound=bound,
        pipeline_bound=pipeline_bound if is_open else None,
        found_by=_SEARCH if by_solver else _named(document.found_by, schedule),
        tried=(document.tried or 1) if is_limited else len(every),
        parts_per_stage=schedule.placement.num_stages // question.costs.num_stages,
        interrupted=document.interrupted,
    )


def _front_again(document: ScheduleResult, case: ScheduleCase, question: SearchQuestion) -> Answer:
    """The points of a front, each priced again."""
    points: list[ParetoPoint] = []
    for at, point in enumerate(document.points):
        with inside(f"points[{at}]"):
            shown = replace(document, orders=point.orders, rank_of_stage=point.rank_of_stage)
            timeline = timeline_of(shown)
            if timeline is None or exceeded(timeline, case=case) is not None:
                raise InvalidInput.of("orders", "must be there and within the limits")
        value_s = question.objective.of(timeline)
        peak = max(timeline.schedule.peak_activations)
        one = candidates(replace(question, max_activations=peak))[0]
        least = bound_of_point(question, one, num_labels=0)
        made = ParetoPoint(
            timeline=timeline,
            value_s=value_s,
            peak_activations=peak,
            peak_bytes=float(timeline.peak_bytes.max()),
            bound=_claimed(point, [least], costly=_COSTLY, most_s=value_s),
            source=_named(point.family, timeline.schedule) or _SEARCH,
        )
        if points and not (points[-1].peak_activations < peak and points[-1].value_s > value_s):
            raise InvalidInput.of(f"points[{at}]", "must take more memory and less time")
        points.append(made)
    if not points:
        raise InvalidInput.of("points", "must have at least 1 entry, got 0")
    return replace(_at_the_front(tuple(points), case), interrupted=document.interrupted)


def _claimed(
    claim: ScheduleResult | BoundAtPlacement | FrontPoint,
    plain: Sequence[Bound],
    *,
    costly: Sequence[BoundName],
    most_s: float,
) -> Bound:
    """A bound on the least of `plain` that is claimed, or else that least, the first of equal ones.

    With an argument that takes seconds, any from there to `most_s` may be true; or, beside such,
    that on another than the least.
    """
    least_s = min(bound.value_s for bound in plain) * (1 + 1e-12)
    least = next(bound for bound in plain if bound.value_s <= least_s)
    value_s = claim.lower_bound_s or 0.0
    for bound in plain if costly else ():
        if claim.bound == bound.name and math.isclose(value_s, bound.value_s, rel_tol=1e-12):
            return bound
    if claim.bound is not None and claim.bound in costly and least.value_s <= value_s * (1 + 1e-12):
        return Bound(min(value_s, most_s), BoundName(claim.bound))
    return least


def _plain_bounds(question: SearchQuestion, tried: Sequence[Candidate]) -> list[Bound]:
    """Of each pipeline that a search tried, the best bound that takes no time."""
    if question.recompute_saved_bytes is None:
        return [lower_bound(question, one, num_labels=0) for one in tried]
    return [  # whichever stages recompute
        proved_bound(
            placement,
            question.num_microbatches,
            recomputed_everywhere(
                question, parts=placement.num_stages // question.costs.num_stages
            ),
            objective=question.objective,
            max_activations=activation_limit(question, placement),
            offload=question.offload,
        )
        for placement in dict.fromkeys(one.placement for one in tried)
    ]


def _named(name: str | None, schedule: Schedule) -> str | None:
    """What a search calls its orders, unless that is a family of another placement."""
    placement = schedule.placement
    if name is None or name not in FAMILIES:
        return name
    request = FamilyRequest(
        num_ranks=placement.num_ranks,
        num_microbatches=schedule.num_microbatches,
        virtual_stages=max(1, placement.num_stages // placement.num_ranks),
    )
    return name if FAMILIES[name].place(request) == placement else _SEARCH
