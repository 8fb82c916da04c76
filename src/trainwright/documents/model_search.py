"""How the document of a model's plan is made: from a search, from a stated run, from itself.

On a cluster of several pools `planning.search.pools` searches, which asks for each pool alone what
is asked of a cluster of one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainwright.cluster import Cluster
from trainwright.documents import model_plan
from trainwright.documents.fit import doubt
from trainwright.documents.plan_view import how_left_open, status_of
from trainwright.documents.profile_plan import count_recomputed
from trainwright.documents.reasons import remake_reasons
from trainwright.documents.runs import gaps_of, planned_job
from trainwright.errors import Fault, InvalidInput, UnsupportedFeature, refuse
from trainwright.execution import Budget
from trainwright.formats.catalog import accelerator, known_layouts
from trainwright.options.clusters import StatedChain, resolve_pools, stated_chains, with_host
from trainwright.options.inputs import ModelInput, ProfileInput, inside, naming_options
from trainwright.options.option import Options
from trainwright.options.question import (
    QUESTION_OPTION_OF,
    ModelCall,
    call_of,
    leaner_calls,
    may_be_quicker,
    model_call,
    request_of,
    saying_what_fits,
)
from trainwright.options.run import OPTION_OF, configuration_of, overlap_not_taken, without_effect
from trainwright.options.space import SPANS
from trainwright.options.table import keywords_of
from trainwright.planning.bounds.pools import OFFERED, MixedShelf, is_mixable, mixed_schedules
from trainwright.planning.question.layouts import KEEPS_TO_ROOM
from trainwright.planning.question.question import ModelQuestion, Point
from trainwright.planning.reasons.infeasible import diagnose_model, priced_relaxations
from trainwright.planning.reasons.objectives import (
    as_published,
    expects_runs,
    kinds_with_simplest,
    simplest,
    why,
    with_plain,
)
from trainwright.planning.reasons.why import enough_freedom, priced_on_pools
from trainwright.planning.search.framework import cannot, frameworks_for, plan_runnable
from trainwright.planning.search.frontier import Shelves
from trainwright.planning.search.orders import (
    plan_per_stage,
    search_in_words,
    with_searched_orders,
    with_searched_orders_on_pools,
)
from trainwright.planning.search.plans import (
    bytes_on_host,
    is_more_than_all_devices_hold,
    splits_itself,
)
from trainwright.planning.search.pools import (
    MixedPriced,
    hosts_hold,
    missing_bytes,
    plan_mixed,
    tightest,
)
from trainwright.planning.search.search import FAR, NUM_ALTERNATIVES, ModelOutcome, Outcome
from trainwright.planning.splits.types import Priced
from trainwright.plans import Plan, ReplicaGroup, Stage
from trainwright.plans.capability import capability_of
from trainwright.plans.capability_table import Feature
from trainwright.plans.configuration import USUAL_FIT_PROBABILITY, Configuration, PlanRequest
from trainwright.plans.job import unsaid_training, untold
from trainwright.plans.plan import DATA_INSIDE, DEFAULT_SCHEDULE, mapping_name
from trainwright.plans.status import BoundKind, Status
from trainwright.profile import Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.step.account import chains_by_part_s
from trainwright.step.pipeline import placement_of
from trainwright.step.predict import plan_of, predict_step, require_legal, shape_of
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from trainwright.execution.executor import Crew


# `plan` on a model: the best plan on a cluster, as a document
# ------------------------------------------------------------


class _Tried(NamedTuple):
    """A call that was searched, and what was found."""

    call: ModelCall
    outcome: ModelOutcome

    @property
    def step_s(self) -> float:
        """A step of its plan; infinite where nothing fits."""
        return _step_s(self.outcome.priced[0]) if self.outcome.priced else math.inf


def _in_turn(call: ModelCall, tried: Sequence[_Tried], budget: Budget) -> Iterator[ModelCall]:
    """The call, then other frameworks' as it stands; then those that keep ever less on a device.

    Each is to be among the `tried` before the next is asked for. Behind a leaner one that fits come
    those that may be quicker, as lean or leaner still.
    """
    everyone = (call, *call.otherwise)
    for asked in everyone:
        yield asked
        if tried[-1].outcome.priced or budget.stopped:
            return
    leaner = iter(leaner_calls(everyone))
    for asked in leaner:
        if is_more_than_all_devices_hold(asked.question):
            continue
        yield asked
        if tried[-1].outcome.priced:
            for other in leaner:
                if may_be_quicker(other, min(one.step_s for one in tried), budget):
                    yield other
            return
        if budget.stopped:
            return


def _told_of(call: ModelCall, tried: Sequence[_Tried], budget: Budget) -> _Tried:
    """What was found of the call, or of what is planned in its place, and why that is."""
    fitting = [one for one in tried if one.outcome.priced]
    as_asked = [one.outcome for one in tried if one.call.leaner is None]
    is_known = all(found.exhausted for found in as_asked)
    fits = "fits" if is_known else "was found to fit"
    if not fitting:
        if call.otherwise and not budget.stopped:
            others = [str(one.question.allowed.framework) for one in call.otherwise]
            call = _saying(call, f"no plan of {_either(others)} {fits} either")
        return _Tried(call, tried[0].outcome)
    told, outcome = min(fitting, key=lambda one: one.step_s)
    if told.leaner is not None:
        told = saying_what_fits(told, fitting[0].call, outcome, budget, fits=fits)
    target = str(told.question.allowed.framework)
    names = dict.fromkeys(str(one.call.question.allowed.framework) for one in tried)
    before = [name for name in names if name != target]
    if before and target != call.question.allowed.framework:
        said = f"planned for {target}: no plan {fits} as asked that {_either(before)} launches"
        told = _saying(told, said)
    return _Tried(told, outcome)


def _saying(call: ModelCall, said: str) -> ModelCall:
    return replace(call, warnings=(*call.warnings, f"framework: {said}"))


def _either(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _sought(call: ModelCall) -> int:
    """How many runners-up are looked for: orders are sought behind plans, alike or not."""
    if not call.question.allowed.searches_orders:
        return call.top
    most = max(call.top, NUM_ALTERNATIVES)
    return _OF_A_KIND * most if expects_runs(call.question) else most


def plan_on_cluster(
    call: ModelCall, budget: Budget, *, warnings: Sequence[str] = (), crew: Crew | None = None
) -> model_plan.ModelPlanResult:
    """The best plan on the cluster's one pool, or on its several pools; a `crew` helps.

    On one pool plans are uniform, or, opted in, have degrees per stage. Where nothing fits, what
    keeps less on a device is asked for; then the other frameworks are asked, where none was named,
    and which of them answers is said.
    """
    if len(call.question.cluster.pools) > 1:
        return _plan_on_pools(call, budget, warnings=warnings, crew=crew)
    started_s, shelves, tried = budget.cpu_s, Shelves(), list[_Tried]()
    for asked in _in_turn(call, tried, budget):
        question, is_first = asked.question, asked.prefers_simple
        in_kind = expects_runs(question) and not asked.per_stage_degrees
        with naming_options(QUESTION_OPTION_OF):
            if asked.per_stage_degrees:
                found = plan_per_stage(question, budget, num_alternatives=_sought(asked), crew=crew)
            else:
                found = plan_runnable(
                    question,
                    budget,
                    num_alternatives=_sought(asked),
                    in_kind=in_kind and not question.allowed.searches_orders,
                    crew=crew,
                    shelves=shelves,
                )
            if found.priced and (is_first or in_kind):
                found = with_plain(
                    question, found, budget, count=asked.top, is_first=is_first, shelves=shelves
                )
        tried.append(_Tried(asked, found))
    call, outcome = _told_of(call, tried, budget)
    document = _document_of(call, outcome, budget, shelves=shelves, warnings=warnings)
    return replace(document, search_s=budget.cpu_s - started_s)


def _document_of(
    call: ModelCall,
    outcome: ModelOutcome,
    budget: Budget,
    *,
    shelves: Shelves,
    warnings: Sequence[str],
) -> model_plan.ModelPlanResult:
    """What was found, with what is looked for once more: orders, a published layout, changes."""
    question = call.question
    most = max(call.top, NUM_ALTERNATIVES) if question.allowed.searches_orders else call.top
    if question.allowed.framework is not None:
        # A part of the space may have had one mode of recomputation; what a mode adds is told
        # beside the others, as whoever reads the document has them.
        whole = (
            replace(each, profile=model_plan.profile_of(question, each.plan))
            for each in outcome.priced
        )
        outcome = replace(outcome, priced=tuple(whole))
    listed = outcome.priced
    if question.allowed.searches_orders:
        # Orders are sought behind the quickest plans, alike or not; those shown differ in kind.
        outcome = replace(outcome, priced=listed[: 1 + most])
        outcome = with_searched_orders(question, outcome, budget, num_alternatives=call.top)
        listed = (*outcome.priced[:1], *(each for each in listed if each != outcome.priced[0]))
    most = call.top
    if expects_runs(question):
        listed = kinds_with_simplest(listed, 1 + most)
    outcome = replace(outcome, priced=listed[: 1 + most])
    document = model_plan.ModelPlanResult(
        **answer_keys(call, outcome, budget),
        lower_bound_one_stage_s=outcome.lower_bound_one_stage_s,
        lower_bound_one_order_s=outcome.lower_bound_one_order_s,
        peak_memory_bytes_per_rank=(),
        memory_limit_bytes=question.cluster.accelerator.usable_bytes,
        warnings=(*warnings, *_warnings(call, outcome, was_stopped=budget.stopped)),
    )
    if outcome.priced:
        best = outcome.priced[0]
        _refuse_full_host(question, best)
        document = replace(
            model_plan.with_plan(document, question, best.plan, best.profile, best.step),
            left_open=how_left_open(call, outcome, budget),
        )
        told = outcome.priced
        if expects_runs(question):  # another kind may be far away
            told = tuple(one for one in told if _step_s(one) <= FAR * _step_s(best))
        told, published = _with_published(call, told, budget, shelves)
        own = published is not None and published[0] is best
        document = replace(
            document,
            alternatives=tuple(_alternatives(question, told, published)),
            published=published[1] if published is not None and own else None,
        )
        gaps = launch_gaps(document, question)
        sure = question.overheads.fit_probability > USUAL_FIT_PROBABILITY  # so it was asked for
        doubts = () if sure else tuple(filter(None, [doubt(document)]))
        document = replace(
            document,
            warnings=(*document.warnings, *gaps, *doubts),
            launchable=_launchable(document, question, outcome, budget, shelves),
        )
    elif not budget.stopped:  # also where what is missing is too little for a proof
        question = replace(question, cluster=with_host(question.cluster))
        diagnosis = diagnose_model(question, budget)
        fixes = tuple(priced_relaxations(question, diagnosis.relaxations, budget))
        document = replace(document, binding=diagnosis.binding, relaxations=fixes)
    elif budget.time_limit_s is not None and not outcome.interrupted:
        short = (
            f"time-limit: {budget.time_limit_s:g} s ended before a plan was found; give the search "
            "more time, or narrow the degrees (--tp, --pp, …)"
        )
        document = replace(document, warnings=(*document.warnings, short))
    return document


_PUBLISHED_S: Final = 60.0  # wall seconds for the best plan of a layout; it takes about one
_OF_A_KIND: Final = 3  # plans that orders are sought behind for a runner-up of another kind


def _with_published(
    call: ModelCall, priced: tuple[Priced, ...], budget: Budget, shelves: Shelves
) -> tuple[tuple[Priced, ...], tuple[Priced, str] | None]:
    """The plans with one of the layout that people run, which one that is, and who published it."""
    question = call.question
    described = not isinstance(question.model, MeasuredModel)
    if not call.top or budget.stopped or not (priced and described and expects_runs(question)):
        return priced, None

    def memory_of(name: str) -> float:
        return accelerator(name).memory_bytes

    part = budget.part(_PUBLISHED_S, stage="runners-up")
    found = as_published(question, known_layouts(), memory_of, part, shelves)
    if found is None:
        return priced, None
    known, plan = found
    alike = [each for each in priced if _cut_of(each) == _cut_of(plan)]
    own = bool(alike) and alike[0] is priced[0]
    best = priced[0] if own else min((*alike, plan), key=_step_s)
    others = [each for each in priced[1:] if each is not best]
    if best is not priced[0]:
        others.append(best)
    return (priced[0], *sorted(others, key=_step_s)), (best, str(known))


def _step_s(priced: Priced) -> float:
    return priced.step.step_time_s


def _cut_of(priced: Priced) -> tuple[int, ...]:
    one = priced.candidate
    return one.tensor, one.pipeline, one.context, one.expert, one.data, one.zero_stage == 3


def _refuse_full_host(question: ModelQuestion, best: Priced) -> None:
    """Raise `InvalidInput` where a host would hold more than it has: a search may leave it out."""
    host = question.cluster.accelerator.host
    held = bytes_on_host(question, best.plan, best.profile, best.step)
    if host is not None and held > host.memory_bytes:
        has = format_bytes(host.memory_bytes)
        problem = f"would keep {format_bytes(held)} of each device on its host, which has {has}"
        raise InvalidInput.of("offload", f"{problem}: give smaller shares, or --recompute full")


def _launchable(
    document: model_plan.ModelPlanResult,
    question: ModelQuestion,
    outcome: ModelOutcome,
    budget: Budget,
    shelves: Shelves,
) -> model_plan.Launchable | None:
    """What a framework runs in place of a free plan; None where some framework runs that."""
    free = question.allowed.framework is None and not isinstance(question.model, MeasuredModel)
    if not free or budget.stopped or document.launched_by():
        return None
    able, _ = frameworks_for(question)
    if not able:
        return None
    target = able[0]
    step_s: float | None = None
    # In place of an order that no framework has, the best plan beside it that one runs.
    for each in outcome.priced[1:] if document.schedule in KEEPS_TO_ROOM else ():
        other = model_plan.with_plan(document, question, each.plan, each.profile, each.step)
        if launchers := other.launched_by():
            target, step_s = launchers[0], each.step.step_time_s
            break
    job = planned_job(document, question.config, question.cluster)
    gap = next(iter(gaps_of(job, target)), None)
    if step_s is None:
        asked = replace(question, allowed=replace(question.allowed, framework=target))
        found = plan_runnable(
            asked, budget, num_alternatives=0, is_bounded=False, shelves=shelves
        ).priced
        step_s = found[0].step.step_time_s if found else None
    return model_plan.Launchable(
        framework=target,
        reason="" if gap is None else str(gap.fault),
        step_time_s=step_s,
        slowdown=None if step_s is None else step_s / (document.step_time_s or math.inf),
    )


def launch_gaps(document: model_plan.ModelPlanResult, question: ModelQuestion) -> tuple[str, ...]:
    """What the framework that was named cannot express of the plan that was found."""
    if (framework := question.allowed.framework) is None:
        return ()
    job = planned_job(document, question.config, question.cluster)
    found = (*(gap.fault for gap in gaps_of(job, framework)),)
    found += (*unsaid_training(job.model, job.recipe, framework), *untold(job.model, framework))
    return tuple(f"framework: {fault}" for fault in found)


def answer_keys(call: ModelCall, outcome: Outcome[Any], budget: Budget) -> dict[str, Any]:
    """What a document says of a search and its bound, however many pools it was over."""
    return {
        "status": status_of(outcome),
        "lower_bound_s": outcome.lower_bound_s,
        "bound_kind": BoundKind.PROVED,
        "interrupted": outcome.interrupted,
        "considered": outcome.considered,
        "pruned": outcome.pruned,
        "not_reached": outcome.not_reached,
        "request": request_of(call, time_limit_s=budget.time_limit_s),
    }


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
    yield from overlap_not_taken(call.question.settings.overlap, call.question.cluster)
    yield from search_in_words(call.question, outcome, was_stopped=was_stopped)
    if outcome.priced and outcome.priced[0].plan.parallelism is None:
        yield "degrees that differ between stages: no framework runs such a plan yet"


def _alternatives(
    question: ModelQuestion, priced: Sequence[Priced], published: tuple[Priced, str] | None
) -> Iterator[model_plan.Alternative]:
    """The runners-up that have one degree for all stages, and what they lose to the first.

    Of one of them the layout may be `published`: by whom, and of which run.
    """
    if not priced:
        return
    best = priced[0]
    best_parts = model_plan.parts_of(question, best.plan, best.profile, best.step)
    simple = simplest(priced) if expects_runs(question) else None
    for other in priced[1:]:
        degrees, micro_batch = other.plan.parallelism, other.plan.microbatch_size
        if degrees is None or micro_batch is None:
            continue
        parts = model_plan.parts_of(question, other.plan, other.profile, other.step)
        yield model_plan.Alternative(
            parallelism=degrees,
            micro_batch=micro_batch,
            schedule=other.plan.schedule,
            num_recomputed=sum(count_recomputed(s, other.profile) for s in other.plan.stages),
            devices_used=other.plan.devices_used,
            step_time_s=other.step.step_time_s,
            slowdown=other.step.step_time_s / best.step.step_time_s,
            peak_memory_bytes=other.step.peak_memory_bytes,
            lost_s={name: parts[name] - spent_s for name, spent_s in best_parts.items()},
            reason=why(best, other) if other is simple else None,
            published=published[1] if published and other is published[0] else None,
        )


def _plan_on_pools(
    call: ModelCall, budget: Budget, *, warnings: Sequence[str], crew: Crew | None
) -> model_plan.ModelPlanResult:
    """Search each pool alone and all ways to use several; a `crew` helps."""
    if call.per_stage_degrees:
        raise UnsupportedFeature(
            "per-stage-degrees: stages on several pools share their degrees, as what passes "
            "between others is priced on the network of one pool",
            alternative="leave it out (layers and recomputation of stages differ all the same), "
            "or give a cluster of one pool",
        )
    question, started_s = call.question, budget.cpu_s
    with naming_options(QUESTION_OPTION_OF):
        outcome = plan_mixed(question, budget, crew=crew)
        if question.allowed.searches_orders:
            outcome = with_searched_orders_on_pools(question, outcome, budget)
    said = search_in_words(question, outcome, was_stopped=budget.stopped)
    document = model_plan.ModelPlanResult(
        **answer_keys(call, outcome, budget),
        fits=False,  # unless a plan is found
        warnings=(*warnings, *_left_out(question), *said),
    )
    if outcome.priced:
        best = outcome.priced[0]
        # What a framework runs may have been searched mode by mode; the document knows all modes.
        best = replace(best, profiles=MixedShelf.of(question).profiles_of(best.plan))
        left_open = how_left_open(call, outcome, budget)
        document = replace(
            model_plan.with_plan_on_pools(document, question, best), left_open=left_open
        )
        gaps = launch_gaps(document, question)
        document = replace(
            document,
            warnings=(*document.warnings, *gaps),
            alternatives=tuple(_alternatives_on_pools(question, outcome.priced[: 1 + call.top])),
        )
    elif not budget.stopped:
        document = replace(document, relaxations=tuple(enough_freedom(question, budget)))
    return replace(document, search_s=budget.cpu_s - started_s)


def _alternatives_on_pools(
    question: ModelQuestion, priced: Sequence[MixedPriced]
) -> Iterator[model_plan.Alternative]:
    """The plans of the other shapes, and what they lose to the first."""
    for other in priced[1:]:
        degrees, size = other.plan.parallelism, other.plan.microbatch_size
        assert degrees is not None, "all stages share their degrees"
        assert size is not None, "a model's plan has a microbatch"
        pools = question.cluster.pools
        yield model_plan.Alternative(
            layout=other.shape.name,
            pools=other.shape.pools,
            device_kinds=tuple(pools[pool].accelerator.name for pool in other.shape.pools),
            parallelism=degrees,
            micro_batch=size,
            schedule=other.plan.schedule,
            devices_used=other.plan.devices_used,
            step_time_s=other.step.step_time_s,
            slowdown=other.step.step_time_s / priced[0].step.step_time_s,
        )


# A run that is stated on several pools: a plan that nobody searched
# ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedPlan:
    """A run, its plan with the prices of its pools, and the document of that plan."""

    question: ModelQuestion
    run: Configuration
    priced: MixedPriced
    document: model_plan.ModelPlanResult

    @property
    def missing_bytes(self) -> float:
        """What the device that lacks most lacks; at most 0 where all have room."""
        return missing_bytes(MixedShelf.of(self.question), self.priced)

    @property
    def tightest(self) -> tuple[float, float]:
        """Peak and usable bytes of the rank that leaves the least of its device free."""
        return tightest(MixedShelf.of(self.question), self.priced)

    @property
    def hosts_hold(self) -> bool:
        """Whether what ranks keep on their hosts has room there."""
        return hosts_hold(MixedShelf.of(self.question), self.priced)


def stated_plan(given: ModelInput | ProfileInput, options: Options, usual: Options) -> StatedPlan:
    """The plan that the options of `estimate` state, beside what is `usual` of such an input.

    Raises `InvalidInput` naming every rule it breaks, `UnsupportedFeature` for options that speak
    of one pool.
    """
    where = resolve_pools(
        options["cluster"],
        nodes=options.get("nodes"),
        devices=options.get("devices"),
        memory_bytes=options.get("memory"),
    )[0]
    chains = stated_chains(options.get("pool", ()), where, pipeline=options.get("pp") or 1)
    with naming_options(OPTION_OF):
        run, chains = _stated({**usual, **options}, where, chains)
    degrees = run.parallelism
    asked = {name: options[name] for name in keywords_of("plan") if name in options}
    asked |= {
        flag.replace("-", "_"): getattr(degrees, field, None) for field, flag in SPANS.items()
    }
    asked |= {
        "recompute": tuple(dict.fromkeys(map(str, (Recompute.NONE, run.recompute)))),
        "zero": degrees.zero_stage,
        "mapping": mapping_name(degrees.axis_order),
        "micro_batch": run.microbatch_size,
        "schedule": run.schedule,
    }
    call = model_call(given, asked)
    run = replace(run, recipe=call.question.settings.recipe, overheads=call.question.overheads)
    with naming_options({**OPTION_OF, **_OF_POOLS}):
        return _priced_as_stated(
            call.question, run, chains, request_of(call, time_limit_s=None), call.warnings
        )


def _priced_as_stated(
    question: ModelQuestion,
    run: Configuration,
    chains: Sequence[StatedChain],
    request: PlanRequest,
    warnings: Sequence[str],
) -> StatedPlan:
    _refuse_illegal(question, run, chains)
    shelf = MixedShelf.of(question)
    found = priced_on_pools(shelf, _plan_of_chains(shelf, run, chains))
    document = model_plan.ModelPlanResult(
        status=Status.GAP,
        lower_bound_s=0.0,
        bound_kind=BoundKind.PROVED,
        request=request,
        warnings=tuple(warnings),
    )
    made = model_plan.with_plan_on_pools(document, question, found)
    return StatedPlan(question=question, run=run, priced=found, document=made)


def restated(run: Configuration, document: model_plan.ModelPlanResult) -> StatedPlan:
    """The plan that a run makes of the pools of a document's ranks.

    Raises `InvalidInput` where the run breaks a rule, or is not what the document's request says.
    """
    question = call_of(document.request).question
    settings, workload = question.settings, question.workload
    asked = replace(
        run,
        global_batch=workload.global_batch,
        sequence_length=workload.sequence_length,
        recipe=settings.recipe,
        recompute_modules=settings.recompute_modules,
        overlap=settings.overlap,
        overheads=question.overheads,
        **asdict(settings.kernels),
    )
    if asked != run:
        problem = "must be what plan.request says of workload, recipe, kernels and overheads"
        raise InvalidInput.of("request.configuration", problem)
    with inside("plan"):
        return _priced_there(question, run, document)


def changed(run: Configuration, document: model_plan.ModelPlanResult) -> StatedPlan:
    """The plan that a run makes of the pools of a document's ranks, however it recomputes.

    Its request is that of the document. Raises `InvalidInput` where the run breaks a rule.
    """
    question = call_of(document.request).question
    modes = tuple(dict.fromkeys((Recompute.NONE, run.recompute)))
    asked = replace(
        question,
        allowed=replace(question.allowed, recompute=modes),
        settings=replace(
            question.settings, recipe=run.recipe, recompute_modules=run.recompute_modules
        ),
    )
    return _priced_there(asked, run, document)


def _priced_there(
    question: ModelQuestion, run: Configuration, document: model_plan.ModelPlanResult
) -> StatedPlan:
    chains = tuple(
        StatedChain(
            pools=tuple(rank.pool for rank in own),
            count=own[0].count,
            num_microbatches=own[0].num_microbatches,
        )
        for own in (
            [rank for rank in document.ranks if rank.chain == number]
            for number in sorted({rank.chain for rank in document.ranks})
        )
    )
    return _priced_as_stated(question, run, chains, document.request, document.warnings)


_ONE_WAY: Final = (
    "mapping, state-copies: on several pools the replicas of a stage are neighbours, as in "
    f"{mapping_name(DATA_INSIDE)}, and share one copy of its state, for networks of pools differ; "
    "without both options pipelines inside pools are planned, too"
)
_OF_POOLS: Final = dict.fromkeys(("stages.replicas", "stages.replicas.share"), "pool")


def _stated(
    options: Options, cluster: Cluster, chains: tuple[StatedChain, ...]
) -> tuple[Configuration, tuple[StatedChain, ...]]:
    """The run, and its chains with what was left out of them; all replicas count as data."""
    first, stated = chains[0], options.get("dp")
    size = (options.get("tp") or 1) * (options.get("cp") or 1)
    if first.count is None:
        ranks = Counter(first.pools)
        room = (cluster.pools[p].num_devices // (n * size) for p, n in ranks.items())
        data = stated or max(1, min(room))
    else:
        data = sum(chain.count or 0 for chain in chains)
    if stated not in (None, data):
        raise InvalidInput.of("dp", f"must be the {data} replicas of --pool, got {stated}")
    run = configuration_of({**options, "dp": data}, num_devices=None)
    total = run.global_batch // run.microbatch_size
    if first.count is None:
        chains = (replace(first, count=data, num_microbatches=total // data),)
    shared = sum((chain.count or 0) * (chain.num_microbatches or 0) for chain in chains)
    if shared * run.microbatch_size != run.global_batch:
        wanted = f"must share out the {run.global_batch} sequences of the batch"
        raise InvalidInput.of("pool", f"{wanted}, got {shared} x {run.microbatch_size}")
    return run, chains


def _refuse_illegal(
    question: ModelQuestion, run: Configuration, chains: Iterable[StatedChain]
) -> None:
    """Raise `InvalidInput` with every rule that a chain breaks on one of its pools.

    Whether there are enough devices is for the layout to say.
    """
    faults: list[Fault] = []
    for chain in chains:
        count, each = chain.count or 1, chain.num_microbatches or 1
        own = replace(
            run,
            parallelism=replace(run.parallelism, data=count),
            global_batch=count * each * run.microbatch_size,
        )
        for pool in set(chain.pools):
            try:
                require_legal(question.model, question.cluster.alone(pool), own)
            except InvalidInput as error:
                faults += (fault for fault in error.faults if fault.path != "devices")
    refuse(dict.fromkeys(faults))


def _plan_of_chains(shelf: MixedShelf, run: Configuration, chains: Sequence[StatedChain]) -> Plan:
    """The layers dealt out as the run says, each stage to the pools of its rank."""
    total = run.global_batch // run.microbatch_size
    used = {pool for chain in chains for pool in chain.pools}
    if len(used) > 1 and not is_mixable(shelf.question.allowed):
        raise UnsupportedFeature(_ONE_WAY, alternative="leave both out")
    degrees = run.parallelism
    plan = plan_of(run, shelf.profile(min(used), Point.of(degrees, run.microbatch_size)))
    stages = (
        replace(
            stage,
            replicas=tuple(
                ReplicaGroup(
                    count=chain.count or 1,
                    tensor_parallel=degrees.tensor,
                    device_kind=shelf.cluster.pools[chain.pools[rank]].accelerator.name,
                    share=(chain.count or 1) * (chain.num_microbatches or 1) / total,
                    pool=chain.pools[rank],
                )
                for chain in chains
            ),
        )
        for stage, rank in zip(plan.stages, placement_of(shape_of(run)).rank_of_stage, strict=True)
    )
    return replace(plan, stages=tuple(stages), num_microbatches=total)


def _left_out(question: ModelQuestion) -> Iterator[str]:
    """What was left out where several pools are used."""
    yield from overlap_not_taken(question.settings.overlap, question.cluster)
    why = None
    if (framework := question.allowed.framework) is not None:
        own = capability_of(framework)
        if not own.can(Feature.SEVERAL_KINDS):
            why = f"framework: {cannot(own, Feature.SEVERAL_KINDS)}"
        elif splits_itself(question.allowed):
            yield f"framework: no pipeline from pool to pool: {cannot(own, Feature.UNEVEN_STAGES)}"
    if why is None and not is_mixable(question.allowed):
        why = _ONE_WAY
    if why is None and not mixed_schedules(question):
        why = f"schedule: several pools are used under {', '.join(OFFERED)} only"
    if why is not None:
        yield f"{why}; each pool was planned alone"


# The document again, from its own request and decisions
# ------------------------------------------------------


# What only a search knows: taken over, and held against the rest by whoever reads a document.
_OF_SEARCH: Final = (
    *("kind", "format_version", "request", "status", "objective", "lower_bound_s", "bound_kind"),
    *("left_open", "lower_bound_one_stage_s", "lower_bound_one_order_s", "interrupted"),
    *("considered", "pruned", "not_reached", "search_s", "warnings", "relaxations", "published"),
    *("alternatives", "launchable", "reasons"),
)
_WITHOUT_PLAN: Final = ("fits", "binding", "memory_limit_bytes", "peak_memory_bytes_per_rank")


def remake_model_plan(document: model_plan.ModelPlanResult) -> model_plan.ModelPlanResult:
    """The document with every figure that follows from its plan, or with none without a plan.

    Raises `InvalidInput` where model or cluster cannot be read or the plan breaks a rule.
    """
    bare = model_plan.ModelPlanResult(**{name: getattr(document, name) for name in _OF_SEARCH})
    if not document.stages:
        return replace(bare, **{name: getattr(document, name) for name in _WITHOUT_PLAN})
    if document.on_pools:
        shelf, plan = planned_on_pools(document)
        found = priced_on_pools(shelf, plan)
        step_s, made = (
            found.step.step_time_s,
            model_plan.with_plan_on_pools(bare, shelf.question, found),
        )
    else:
        question, plan, profile = model_plan.planned(document)
        step = predict_step(plan, profile, question.cluster, **question.step_terms)
        step_s, made = step.step_time_s, model_plan.with_plan(bare, question, plan, profile, step)
        limit_bytes = question.cluster.accelerator.usable_bytes
        made = replace(made, memory_limit_bytes=limit_bytes)
    launched, why = document.launchable, document.reasons
    if launched is not None and launched.step_time_s is not None:
        launched = replace(launched, slowdown=launched.step_time_s / step_s)
    others = (replace(o, slowdown=o.step_time_s / step_s) for o in document.alternatives)
    return replace(
        made,
        launchable=launched,
        reasons=None if why is None else remake_reasons(why, step_s),
        alternatives=tuple(others),
    )


def planned_on_pools(document: model_plan.ModelPlanResult) -> tuple[MixedShelf, Plan]:
    """The question of a document on several pools that has stages, and its plan.

    Raises `InvalidInput` where model or cluster cannot be read or the plan does not suit them.
    """
    shelf = MixedShelf.of(call_of(document.request).question)
    return shelf, _plan_in(document, shelf.question)


def planned_by_chains(document: model_plan.ModelPlanResult) -> tuple[MixedShelf, Plan]:
    """The same of a document on any number of pools: one pool is one chain of like replicas."""
    if document.on_pools:
        return planned_on_pools(document)
    refuse_own_degrees(document)
    question, plan, _ = model_plan.planned(document)
    return MixedShelf.of(question), plan


def refuse_own_degrees(document: model_plan.ModelPlanResult) -> None:
    """Raise `UnsupportedFeature` for a plan whose stages differ in degrees."""
    if document.stages and document.parallelism is None:
        raise UnsupportedFeature(
            "stages that differ in degrees are no run that options state or change",
            alternative="plan again without --per-stage-degrees and give that",
        )


def with_plan_by_chains(
    document: model_plan.ModelPlanResult, shelf: MixedShelf, found: MixedPriced
) -> model_plan.ModelPlanResult:
    """The document with another plan and all that follows from it, on as many pools as before."""
    question, plan = shelf.question, found.plan
    if document.on_pools:
        return model_plan.with_plan_on_pools(document, question, found)
    (profile,) = found.profiles.values()
    step = predict_step(plan, profile, question.cluster, **question.step_terms)
    made = model_plan.with_plan(document, question, plan, profile, step)
    return replace(made, memory_limit_bytes=question.cluster.accelerator.usable_bytes)


def priced_parts(document: model_plan.ModelPlanResult) -> tuple[dict[str, float], ...]:
    """Where the step of every rank goes, in the order of the document's ranks."""
    shelf, plan = planned_on_pools(document)
    found = priced_on_pools(shelf, plan)
    chains = chains_by_part_s(plan, found.profiles, shelf.cluster, found.step)
    return tuple(parts_s for chain in chains for parts_s in chain)


def step_on_pools_s(question: ModelQuestion, plan: Plan, cluster: Cluster) -> float:
    """The step of the plan on another cluster with such pools, in seconds."""
    shelf = MixedShelf.of(replace(question, cluster=cluster))
    return priced_on_pools(shelf, plan).step.step_time_s


def _plan_in(document: model_plan.ModelPlanResult, question: ModelQuestion) -> Plan:
    size = model_plan.microbatch_of(document, question)
    total, pools = question.workload.global_batch // size, len(question.cluster.pools)
    stages = []
    for number, stage in enumerate(document.stages):
        groups = []
        if not stage.replicas:
            raise InvalidInput.of(f"stages[{number}].replicas", "must have at least 1 entry, got 0")
        for index, own in enumerate(stage.replicas):
            path = f"stages[{number}].replicas[{index}]"
            if not 0 <= own.pool < pools:
                raise InvalidInput.of(f"{path}.pool", f"must be in 0..{pools - 1}, got {own.pool}")
            missing = [str(layer) for layer in stage.layers if str(layer) not in own.options]
            if missing:
                raise InvalidInput.of(f"{path}.options", f"must name layer {missing[0]}")
            groups.append(
                ReplicaGroup(
                    count=own.count,
                    tensor_parallel=own.tensor_parallel,
                    device_kind=own.device_kind,
                    share=own.count * own.num_microbatches / total,
                    pool=own.pool,
                    options=tuple(own.options[str(layer)] for layer in stage.layers),
                )
            )
        first, layers = groups[0].options, stage.layers
        stages.append(Stage(layers=layers, options=first, replicas=tuple(groups)))
    return Plan(
        stages=tuple(stages),
        num_microbatches=total,
        microbatch_size=size,
        schedule=document.schedule or DEFAULT_SCHEDULE,
        order=document.order,
        parallelism=document.parallelism,
    )
