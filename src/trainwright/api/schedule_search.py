"""Schedules that nobody named: by search, by a solver, and the front of memory against time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.api.inputs import naming_options
from trainwright.api.schedule_answer import Answer, bound_for
from trainwright.api.schedule_inputs import DEFAULT_CHUNKS, OPTION_OF, require_size
from trainwright.api.schedule_method import Method
from trainwright.api.schedule_shortfall import (
    exceeded,
    front_shortfall,
    least_shortfall,
    nothing_fits,
)
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.plan.placement import Placement
from trainwright.plan.results.schedule import Shortfall
from trainwright.plan.schedule_bound import Objective
from trainwright.scheduling.exact import load_solver, solve_exactly
from trainwright.scheduling.families import FAMILIES
from trainwright.scheduling.pareto import named_front, searched_front, some_limits
from trainwright.scheduling.search import search_schedule
from trainwright.scheduling.search_question import (
    DEFAULT_SEED,
    PLACEMENT_NAMES,
    LimitTooSmall,
    SearchQuestion,
)

if TYPE_CHECKING:
    from trainwright.api.schedule_inputs import ScheduleCase
    from trainwright.api.schedule_method import SearchOptions
    from trainwright.execution import Budget

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
    own = bound_for(replace(case, max_activations=limit), schedule, outcome.timeline.costs)
    own = max(outcome.pipeline_bound, own, key=lambda bound: bound.value_s)
    is_open = outcome.tried > 1
    return Answer(
        family=_SEARCH,
        timeline=outcome.timeline,
        bound=outcome.bound if is_open else own,
        pipeline_bound=own if is_open else None,
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
        limits = _front_limits(question)
        if method is Method.SEARCHED_FRONT:
            points = searched_front(question, budget=budget, limits=limits)
        else:
            points = named_front(question, limits=limits)
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
    best = within[-1]
    return Answer(
        family=best.source if best.source in FAMILIES else _SEARCH,
        found_by=best.source,
        timeline=best.timeline,
        bound=bound_for(case, best.schedule, best.timeline.costs),
        generate_s=generate_s,
        search_s=generate_s if method is Method.SEARCHED_FRONT else None,
        points=within,
        interrupted=budget.interrupted,
    )


def _question(case: ScheduleCase, options: SearchOptions) -> SearchQuestion | Shortfall:
    """What to ask the search, or why nothing can fit."""
    ranks, microbatches = case.num_ranks, case.num_microbatches
    place: Placement | str = options.placement or case.spec.placement or "any"
    described = place if isinstance(place, Placement) else _described(case, place)
    require_size(described.num_stages, microbatches)
    costs = case.costs(described)
    misfit = least_shortfall(described, costs, case=case)
    no_choice = place != "any" and case.spec.saved_bytes is None
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
            evaluations=options.evaluations,
            seed=DEFAULT_SEED if options.seed is None else options.seed,
        )


def _described(case: ScheduleCase, placement: str) -> Placement:
    """The stages that the times are of: for `any`, one per rank unless said otherwise."""
    if placement not in PLACEMENT_NAMES:
        names = ", ".join(PLACEMENT_NAMES)
        raise InvalidInput.of("placement", f'must be one of {names}, got "{placement}"')
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


def _front_limits(question: SearchQuestion) -> tuple[int, ...]:
    """Some limits up to the one asked for."""
    limits = some_limits(question, count=8)
    most = question.max_activations
    if most is None:
        return limits
    return tuple(sorted({*(limit for limit in limits if limit < most), most}))
