"""`plan` on a model without a profile: the best plan on a cluster, as a document."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.api.inputs import naming_options
from trainwright.api.model_options import QUESTION_OPTION_OF
from trainwright.api.model_records import alternatives, with_plan
from trainwright.api.model_request import request_of
from trainwright.api.recipe_options import without_effect
from trainwright.api.searched import search_in_words
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.status import BoundKind, Status, relative_gap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainwright.api.model_request import ModelCall
    from trainwright.execution import Budget
    from trainwright.execution.executor import Crew
    from trainwright.planning.model_planner import ModelOutcome


def plan_model(
    call: ModelCall, budget: Budget, *, warnings: Sequence[str] = (), crew: Crew | None = None
) -> ModelPlanResult:
    """Search the uniform plans (or, opted in, those with degrees per stage); a `crew` helps."""
    from trainwright.planning.framework import plan_runnable
    from trainwright.planning.model_infeasible import diagnose_model
    from trainwright.planning.model_planner import NUM_ALTERNATIVES
    from trainwright.planning.model_relaxations import priced_relaxations
    from trainwright.planning.per_stage import plan_per_stage

    question, started_s = call.question, budget.cpu_s
    plan = plan_per_stage if call.per_stage_degrees else plan_runnable
    most = max(call.top, NUM_ALTERNATIVES) if question.allowed.searches_orders else call.top
    with naming_options(QUESTION_OPTION_OF):
        outcome = plan(question, budget, num_alternatives=most, crew=crew)
    if question.allowed.searches_orders:
        from trainwright.planning.searched_orders import with_searched_orders

        outcome = with_searched_orders(question, outcome, budget, num_alternatives=call.top)
    document = ModelPlanResult(
        status=_status(outcome),
        lower_bound_s=outcome.lower_bound_s,
        lower_bound_all_s=outcome.lower_bound_all_s,
        bound_kind=BoundKind.PROVED,
        memory_limit_bytes=question.cluster.accelerator.usable_bytes,
        interrupted=outcome.interrupted,
        warnings=(*warnings, *_warnings(call, outcome, was_stopped=budget.stopped)),
        considered=outcome.considered,
        pruned=outcome.pruned,
        not_reached=outcome.not_reached,
        request=request_of(call, time_limit_s=budget.time_limit_s),
    )
    if outcome.priced:
        best = outcome.priced[0]
        document = replace(
            with_plan(document, question, best.plan, best.profile, best.step),
            alternatives=tuple(alternatives(question, outcome.priced)),
        )
        gaps = tuple(_gaps(document, question.allowed.framework))
        document = replace(document, warnings=(*document.warnings, *gaps))
    elif not budget.stopped:  # also where what is missing is too little for a proof
        diagnosis = diagnose_model(question, budget)
        fixes = tuple(priced_relaxations(question, diagnosis.relaxations, budget))
        document = replace(document, binding=diagnosis.binding, relaxations=fixes)
    elif budget.time_limit_s is not None and not outcome.interrupted:
        short = (
            f"time-limit: {budget.time_limit_s:g} s ended before a plan was found; give the search "
            "more time, or narrow the degrees (--tp, --pp, …)"
        )
        document = replace(document, warnings=(*document.warnings, short))
    return replace(document, search_s=budget.cpu_s - started_s)


def _gaps(document: ModelPlanResult, framework: str | None) -> Iterator[str]:
    """What the framework cannot express of the plan that was found."""
    from trainwright.api.jobs import job_of
    from trainwright.plan.capability import unsupported

    if framework is not None:
        for gap in unsupported(job_of(document).demands, framework):
            yield f"framework: {gap.fault}"


def _status(outcome: ModelOutcome) -> Status:
    if not outcome.priced:
        return Status.INFEASIBLE if outcome.exhausted else Status.UNKNOWN
    best_s = outcome.priced[0].step.step_time_s
    return Status.OPTIMAL if relative_gap(best_s, outcome.least_bound_s) <= 1e-9 else Status.GAP


def _warnings(call: ModelCall, outcome: ModelOutcome, *, was_stopped: bool) -> Iterator[str]:
    yield from call.warnings
    has_experts = call.question.model.experts is not None
    recipe, most = call.question.settings.recipe, call.question.allowed.expert.most
    yield from without_effect(
        recipe,
        model=call.model.name,
        expert_parallel=has_experts and most != 1,
        experts=has_experts,
    )
    yield from search_in_words(call.question, outcome, was_stopped=was_stopped)
    if outcome.priced and outcome.priced[0].plan.parallelism is None:
        yield "degrees that differ between stages: no framework runs such a plan yet"
