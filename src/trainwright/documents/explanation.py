"""Why a model's plan is what it is: what binds, what each choice buys, what more would help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite, isinf
from typing import TYPE_CHECKING, Any, Final

from trainwright.cluster import Cluster
from trainwright.documents import model_plan
from trainwright.documents.improvement import (
    ImprovementRecord,
    ImprovementResult,
    recommended_run,
    remake_improvement,
)
from trainwright.documents.jobs import PricedLayout
from trainwright.documents.model_search import (
    launch_gaps,
    plan_on_cluster,
    planned_by_chains,
    planned_on_pools,
    step_on_pools_s,
    with_plan_by_chains,
)
from trainwright.documents.open import open_document, plan_meant, priced_plan
from trainwright.documents.plan_view import busiest_rank, fullest_rank, memory_classes, plan_view
from trainwright.documents.printing import Report
from trainwright.documents.profile_plan import count_recomputed
from trainwright.documents.reasons import (
    GainRecord,
    Reasons,
    WithoutRecord,
    explanation_tables,
    remake_reasons,
)
from trainwright.documents.view import Line
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.execution import Budget
from trainwright.execution import Budget as NoLimit
from trainwright.options.question import (
    ModelCall,
    call_of,
    leaner_questions,
    of_what_is_told_apart,
    request_of,
)
from trainwright.planning.bounds.pools import MixedShelf
from trainwright.planning.question.question import Allowed, ModelQuestion
from trainwright.planning.reasons.improve import recommended, worth_listing
from trainwright.planning.reasons.why import (
    Gain,
    PoolsChange,
    Without,
    changed_on_pools,
    changes_on_pools,
    freed,
    freedom_gain,
    memory_gain,
    priced_on_pools,
    repriced_gains,
    unnamed,
    unnamed_gain,
    uses,
    without,
)
from trainwright.planning.search.frontier import Shelves
from trainwright.planning.search.pools import fits, tightest
from trainwright.plans import Plan
from trainwright.plans.configuration import FIRST_OF_SHARDS, NO_OVERHEADS, is_wide, modes_beside
from trainwright.plans.plan import DEFAULT_SCHEDULE, FORMAT_VERSION
from trainwright.plans.status import BoundKind, Status
from trainwright.step.predict import predict_step

if TYPE_CHECKING:
    from trainwright.documents.open import AnyDocument


# The document of `explain` on a model's plan: what binds, what choices buy, what would help
# ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExplanation:
    """Ranks are indices of the plan's from 0. `memory_by_class_bytes` is of the fullest rank,
    whose device has `free_bytes` left beside what every device keeps
    (`plans.configuration.MemoryOverheads`); `busiest_rank` works longest. `binding` names the
    resource whose increase of 1% saves most.
    """

    kind: str = "model-explanation"
    format_version: int = FORMAT_VERSION
    busiest_rank: int
    fullest_rank: int
    free_bytes: float
    binding: str | None
    time_by_part_s: dict[str, float]
    memory_by_class_bytes: dict[str, float]
    without: tuple[WithoutRecord, ...] = ()
    gains: tuple[GainRecord, ...] = ()
    not_asked: tuple[str, ...] = ()
    search_s: float = 0.0
    plan: model_plan.ModelPlanResult


# Why a model's plan is what it is: what binds, what each choice buys, what more would help
# -----------------------------------------------------------------------------------------


def reasons(document: AnyDocument, *, budget: Budget | None = None) -> Report[ModelExplanation]:
    """Explain the plan of a model (a path or a result).

    The plan is priced again with 1% more of each resource; plans are looked for briefly with
    10 GiB more memory, with each thing free that was fixed, and without each thing that the plan
    uses. A document that has its reasons is asked nothing again. What the time limit of a `budget`
    leaves no time for is listed; without one, what 3.2 s of CPU do, or a fifth of the search.
    Raises `InvalidInput` where the document holds no plan of a model.
    """
    found = priced_plan(open_document(document))
    if (
        not isinstance(found, model_plan.ModelPlanResult)
        or not found.stages
        or found.step_time_s is None
    ):
        raise InvalidInput.of("document", "must hold a plan of a model")
    budget = budget or NoLimit()
    if budget.time_limit_s is None:
        budget = capped(budget, found)
    known = found.reasons or _reasons_of(found, budget)
    return Report(
        ModelExplanation(
            **_figures(found),
            binding=known.binding,
            without=known.without,
            gains=known.gains,
            not_asked=known.not_asked,
            search_s=known.search_s,
            plan=found,
        )
    )


_LEAST_S: Final = 3.2  # CPU seconds that reasons may take, or if that is more
_SHARE: Final = 0.2  # of what the search for the plan took


def capped(budget: Budget, document: model_plan.ModelPlanResult) -> Budget:
    """The time for reasons by themselves: nobody waits much longer for them than for the plan."""
    return budget.part(cpu_limit_s=max(_LEAST_S, _SHARE * (document.search_s or 0.0)))


def with_reasons(document: Any, budget: Budget) -> Any:
    """The document with its reasons, where it is a plan of a model that has none yet.

    They take no more CPU seconds than some, or a share of the plan's own search.
    """
    if has_reasons(document) and document.reasons is None:
        return replace(document, reasons=_reasons_of(document, capped(budget, document)))
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What the reasons are of: a plan, whether it recomputes, and its step on another cluster."""

    question: ModelQuestion
    plan: Plan
    recomputes: bool
    reprice: Callable[[Cluster], float]


def _subject_of(document: model_plan.ModelPlanResult) -> _Subject:
    if document.on_pools:
        shelf, plan = planned_on_pools(document)
        parts = [own for stage in document.stages for own in stage.replicas]
        return _Subject(
            question=shelf.question,
            plan=plan,
            recomputes=any(own.num_recomputed for own in parts),
            reprice=partial(step_on_pools_s, shelf.question, plan),
        )
    question, plan, profile = model_plan.planned(document)

    def reprice(cluster: Cluster) -> float:
        changed = replace(question, cluster=cluster)
        return predict_step(
            plan, model_plan.profile_of(changed, plan), changed.cluster, **changed.step_terms
        ).step_time_s

    recomputes = any(count_recomputed(stage, profile) for stage in plan.stages)
    return _Subject(question=question, plan=plan, recomputes=recomputes, reprice=reprice)


def _reasons_of(document: model_plan.ModelPlanResult, budget: Budget) -> Reasons:
    """What the plan's choices buy, and what more would help."""
    started_s, step_s = budget.cpu_s, document.step_time_s
    assert step_s is not None
    subject, shelves = _subject_of(document), Shelves()
    question = subject.question
    gains = list(repriced_gains(question, subject.reprice))
    binding = max(gains, key=lambda gain: -gain.step_time_s, default=None)
    not_asked: list[str] = []
    part = budget.part(cpu_limit_s=budget.remaining_cpu_s / 2)
    more = None if budget.stopped else memory_gain(question, step_s, part, shelves=shelves)
    if more is None:
        not_asked.append("10 GiB more memory")
    else:
        gains.append(more)
        if more.step_time_s < step_s:  # so room on a device pays, and may be made on a host
            made, missed = _with_room(question, step_s, budget)
            gains += made
            not_asked += missed
    found = _freedoms(document, subject, budget, shelves)
    saves = binding is not None and binding.step_time_s < step_s * (1 - 1e-6)
    return replace(
        found,
        binding=binding.resource if binding is not None and saves else None,
        gains=(*(_gain_record(gain, step_s) for gain in gains), *found.gains),
        not_asked=(*not_asked, *found.not_asked),
        search_s=budget.cpu_s - started_s,
    )


def _with_room(
    question: ModelQuestion, step_s: float, budget: Budget
) -> tuple[list[Gain], list[str]]:
    """Faster plans where the framework keeps less on a device; what there was no time for."""
    gains: list[Gain] = []
    not_asked: list[str] = []
    for each in leaner_questions(question):
        if "--mlp-tile" in each.options:  # which repeats work, for what little a layer needs
            continue
        part = budget.part(cpu_limit_s=budget.remaining_cpu_s / 5)
        gain = freedom_gain(each.words, each.options, each.question, step_s, part)
        if gain is not None:
            gains.append(gain)
        elif part.stopped:
            not_asked.append(each.words)
    return gains, not_asked


def _freedoms(
    document: model_plan.ModelPlanResult,
    subject: _Subject,
    budget: Budget,
    shelves: Shelves,
) -> Reasons:
    """Plans with each thing free that was fixed, and without each thing that the plan uses."""
    question, plan = subject.question, subject.plan
    started_s, step_s = budget.cpu_s, document.step_time_s
    assert step_s is not None
    gains: list[Gain] = []
    not_asked: list[str] = []
    known: list[WithoutRecord | model_plan.Alternative] = [*document.alternatives]

    def known_s(space: Allowed) -> float:
        return min((each.step_time_s or inf for each in _inside(space, known)), default=inf)

    spaces: list[tuple[str, str, Allowed]] = []
    if plan.parallelism is not None:
        uses_of = (plan, plan.parallelism, question.allowed)
        used = uses(*uses_of, recomputes=subject.recomputes)
        least = FIRST_OF_SHARDS if is_wide(question.model) else 0
        spaces += (each for each in used if min(each[2].zero_stages) >= least)
    fixed = list(freed(question))
    # What nothing is known of comes first: a runner-up without a thing is an answer already.
    order = sorted(range(len(spaces)), key=lambda at: isfinite(known_s(spaces[at][2])))
    if beside := unnamed(question, plan):
        part = budget.part(cpu_limit_s=budget.remaining_cpu_s / 2)
        if gain := unnamed_gain(beside, step_s, part):
            gains.append(gain)
        elif part.stopped:
            not_asked.append("orders that no framework runs")
    left = len(fixed) + len(spaces)
    for fix, options, freer in fixed:
        part, left = _next_of(budget, left), left - 1
        if budget.stopped:
            not_asked.append(fix.description)
        elif gain := freedom_gain(fix.description, options, freer, step_s, part, shelves=shelves):
            gains.append(gain)
        elif part.stopped:
            not_asked.append(fix.description)
    lacking: dict[int, tuple[Without, Allowed]] = {}
    for at in order:
        name, options, space = spaces[at]
        part, left = _next_of(budget, left), left - 1
        than_s = known_s(space)
        if budget.stopped:
            found = Without(name=name, options=options, status=Status.UNKNOWN, best=None)
        else:
            asked = (question, name, options, space, part)
            found = without(*asked, shelves=shelves, known_s=than_s)
        if found.status is Status.UNKNOWN and isinf(than_s) and part.stopped:
            not_asked.append(f"without {name}")
            continue
        known.append(_without_record(found, step_s))
        lacking[at] = found, space
    return Reasons(
        binding=None,
        without=tuple(_without_records([lacking[at] for at in sorted(lacking)], document)),
        gains=tuple(_gain_record(gain, step_s) for gain in gains),
        not_asked=tuple(not_asked),
        search_s=budget.cpu_s - started_s,
    )


def _next_of(budget: Budget, left: int) -> Budget:
    """For the next of so many searches: twice its share of what is left, and all for the last."""
    return budget.part(cpu_limit_s=2 * budget.remaining_cpu_s / (left + 1))


def _figures(plan: model_plan.ModelPlanResult) -> dict[str, Any]:
    """What follows from the plan alone, by key of the document."""
    fullest = fullest_rank(plan)
    found, kept = plan.ranks[fullest], plan.request.overheads or NO_OVERHEADS
    return {
        "busiest_rank": busiest_rank(plan.ranks),
        "fullest_rank": fullest,
        "free_bytes": found.memory_limit_bytes - kept.needed_bytes(found.memory_bytes),
        "time_by_part_s": plan.time_by_part_s,
        "memory_by_class_bytes": memory_classes(found.memory),
    }


def remake_explanation(document: ModelExplanation) -> ModelExplanation:
    """The document with every figure that follows from its plan and the steps of other plans."""
    plan = document.plan
    if not plan.ranks or plan.step_time_s is None:
        raise InvalidInput.of("plan", "must be a plan of a model, with stages")
    made = remake_reasons(document, plan.step_time_s)
    return replace(document, **_figures(plan), without=made.without, gains=made.gains)


def _without_records(
    lacking: list[tuple[Without, Allowed]], document: model_plan.ModelPlanResult
) -> Iterator[WithoutRecord]:
    """Each with the fastest plan known of its space: a brief search may miss what others found."""
    step_s = document.step_time_s
    assert step_s is not None
    found = [_without_record(each, step_s) for each, _ in lacking]
    known: tuple[WithoutRecord | model_plan.Alternative, ...] = (*found, *document.alternatives)
    for record, (_, space) in zip(found, lacking, strict=True):
        inside = _inside(space, known)
        others: tuple[WithoutRecord | model_plan.Alternative, ...] = (record, *inside)
        best = min(others, key=lambda each: each.step_time_s or inf)
        if best is record or best.step_time_s is None:
            yield record
            continue
        yield replace(
            record,
            status=Status.GAP,
            step_time_s=best.step_time_s,
            slowdown=best.step_time_s / step_s,
            peak_memory_bytes=best.peak_memory_bytes,
            parallelism=best.parallelism,
            micro_batch=best.micro_batch,
            schedule=best.schedule,
        )


def _inside(
    space: Allowed, known: Iterable[WithoutRecord | model_plan.Alternative]
) -> list[WithoutRecord | model_plan.Alternative]:
    """Those of the plans that are known which a space allows."""
    return [
        each
        for each in known
        if each.parallelism is not None
        and each.step_time_s is not None
        and space.admits(
            each.parallelism,
            microbatch=each.micro_batch or 1,
            schedule=each.schedule or DEFAULT_SCHEDULE,
            recomputes=getattr(each, "num_recomputed", None) != 0,
        )
    ]


def _without_record(lacking: Without, step_s: float) -> WithoutRecord:
    record = WithoutRecord(name=lacking.name, options=lacking.options, status=lacking.status)
    if lacking.best is None:
        return record
    time_s = lacking.best.step.step_time_s
    return replace(
        record,
        step_time_s=time_s,
        slowdown=time_s / step_s,
        peak_memory_bytes=lacking.best.step.peak_memory_bytes,
        parallelism=lacking.best.plan.parallelism,
        micro_batch=lacking.best.plan.microbatch_size,
        schedule=lacking.best.plan.schedule,
    )


def _gain_record(gain: Gain, step_s: float) -> GainRecord:
    return GainRecord(
        resource=gain.resource,
        change=gain.change,
        step_time_s=gain.step_time_s,
        saved=max(0.0, 1 - gain.step_time_s / step_s),
        replanned=gain.replanned,
        options=gain.options,
    )


def has_reasons(document: object) -> bool:
    """Whether a document holds a plan of a model."""
    document = priced_plan(document)
    if not isinstance(document, model_plan.ModelPlanResult) or not document.stages:
        return False
    return document.status in (Status.OPTIMAL, Status.GAP)


# Why a model's plan is what it is, below its table
# -------------------------------------------------


def model_explanation_view(document: ModelExplanation) -> Iterator[Line]:
    """The plan's view with its reasons, and each of them behind a line."""
    plan = document.plan
    known = Reasons(
        binding=document.binding,
        without=document.without,
        gains=document.gains,
        not_asked=document.not_asked,
        search_s=document.search_s,
    )
    yield from plan_view(replace(plan, reasons=known))
    if document.binding:
        yield f"what would help most is {document.binding}"
    yield from explanation_tables(document)
    if document.not_asked:
        yield f"not asked for want of time: {', '.join(document.not_asked)} (--time-limit)"


# How far a plan that no options state is from the best, and which change gets most of the way
# --------------------------------------------------------------------------------------------
# It is on several pools, or recomputes blocks one by one, or has an order that was searched. The
# run is the plan as it is, the changes are of its decisions, one or two, priced; the best plan is
# searched with all free that the request fixed. Documents are those of a run that was stated.


def improved_plan(document: model_plan.ModelPlanResult, budget: Budget) -> ImprovementResult:
    """The changes of the plan that are faster, or fit, the best plan, and what bounds it.

    Of a plan for a framework, the changes and plans that it launches.
    """
    shelf, plan = planned_by_chains(document)
    changes = [
        each for each in changes_on_pools(shelf, plan, budget) if _launches(document, shelf, each)
    ]
    found = plan_on_cluster(_freed(document, shelf), budget)
    said: tuple[str, ...] = ()
    if budget.stopped:
        said = ("the time limit ended the search: there may be better changes and plans",)
    return _improvement(document, shelf, plan, changes, replace(found, search_s=None), said)


def _freed(document: model_plan.ModelPlanResult, shelf: MixedShelf) -> ModelCall:
    """The question of a plan with all free that it fixed but for its framework."""
    question = shelf.question
    allowed = Allowed(
        framework=question.allowed.framework, recompute=modes_beside(question.settings.recipe)
    )
    free = replace(question, allowed=of_what_is_told_apart(question.model, allowed))
    return replace(call_of(document.request), question=free, top=0)


def _launches(document: model_plan.ModelPlanResult, shelf: MixedShelf, change: PoolsChange) -> bool:
    """Whether the framework of the request, if one was named, launches a plan that was changed."""
    if shelf.question.allowed.framework is None:
        return True
    changed = with_plan_by_chains(document, shelf, change.found)
    try:
        return not launch_gaps(changed, shelf.question)
    except UnsupportedFeature:  # replicas that differ, or share nodes
        return False


def _improvement(
    document: model_plan.ModelPlanResult,
    shelf: MixedShelf,
    plan: Plan,
    changes: Iterable[PoolsChange],
    best: model_plan.ModelPlanResult | None,
    warnings: tuple[str, ...],
) -> ImprovementResult:
    """What the parts say of each other; a plan that something else beats is left out.

    Memory is that of the rank with the least room on a device of its own kind.
    """
    base = priced_on_pools(shelf, plan)
    base_s, fits_now = base.step.step_time_s, fits(shelf, base)
    listed = worth_listing(
        each for each in changes if not fits_now or each.step.step_time_s < base_s
    )
    least_s = min((each.step.step_time_s for each in listed), default=base_s if fits_now else inf)
    if best is None or best.step_time_s is None or best.step_time_s > least_s * _HAIR:
        planned_s, best = inf, None
    else:
        planned_s = best.step_time_s
    best_s = min(least_s, planned_s)
    chosen = recommended(listed, base_s=base_s if fits_now else None, best_s=best_s)
    high = (document.step_time_high_s or base_s) / (document.step_time_s or base_s)

    def record(each: PoolsChange) -> ImprovementRecord:
        step_s = each.step.step_time_s
        gains = fits_now and base_s > best_s
        is_sure = "beyond the error" if base_s / step_s > high else "within the error: measure"
        return ImprovementRecord(
            dimensions=each.dimensions,
            options=each.options,
            step_time_s=step_s,
            peak_memory_bytes=tightest(shelf, each.found)[0],
            speedup=base_s / step_s,
            gain_share=(base_s - step_s) / (base_s - best_s) if gains else None,
            evidence=is_sure if fits_now else "fits by prediction",
            risk="none known" if _SHARDS.isdisjoint(each.dimensions) else _OTHER_SHARDS,
        )

    bound_s = None if best is None else best.lower_bound_s
    peak_bytes, limit_bytes = tightest(shelf, base)
    return ImprovementResult(
        run=PricedLayout(step_time_s=base_s, peak_memory_bytes=peak_bytes),
        run_fits=fits_now,
        memory_limit_bytes=limit_bytes,
        best_known_s=best_s if isfinite(best_s) else None,
        lower_bound_s=bound_s if bound_s and bound_s <= best_s * _HAIR else None,
        recommended=None if chosen is None else record(chosen),
        changes=tuple(map(record, listed)),
        warnings=warnings,
        assumptions=document.assumptions,
        request=document.request,
        plan=document,
        planned=best,
    )


_HAIR: Final = 1 + 1e-9
_SHARDS: Final = frozenset({"tensor", "cut", "zero"})
_OTHER_SHARDS: Final = "checkpoints have other shards"


def remake_any_improvement(document: ImprovementResult) -> ImprovementResult:
    """The document with every figure that follows from its run, its changes and its best plan.

    Raises `InvalidInput` for decisions that cannot be.
    """
    if document.plan is None:
        return remake_improvement(document)
    shelf, plan = planned_by_chains(document.plan)
    changes = []
    for index, one in enumerate(document.changes):
        found = changed_on_pools(shelf, plan, one.options)
        if found is None:
            raise InvalidInput.of(f"changes[{index}].options", f'is no change: "{one.options}"')
        if not fits(shelf, found.found):
            raise InvalidInput.of(f"changes[{index}]", "must fit in the memory of its devices")
        changes.append(found)
    best, said = document.planned, document.warnings
    made = _improvement(document.plan, shelf, plan, changes, best, said)
    asked = replace(made.request, command_line=document.request.command_line)
    return replace(made, request=asked)


def run_meant(document: Any) -> Any:
    """The plan or run that a document stands for; an improvement for its recommended change."""
    if not isinstance(document, ImprovementResult):
        return plan_meant(document)
    return recommended_run(document) if document.plan is None else recommended_plan(document)


def recommended_plan(document: ImprovementResult) -> model_plan.ModelPlanResult:
    """The plan that no options state with the recommended change.

    Raises `InvalidInput` where none is recommended.
    """
    assert document.plan is not None, "of a run that is a plan"
    if document.recommended is None:
        raise InvalidInput.of("document", "recommends no change: give the plan itself")
    shelf, plan = planned_by_chains(document.plan)
    found = changed_on_pools(shelf, plan, document.recommended.options)
    assert found is not None, "an improvement that was read has its changes"
    bare = model_plan.ModelPlanResult(
        status=Status.GAP,
        lower_bound_s=document.lower_bound_s or 0.0,
        bound_kind=BoundKind.PROVED,
        request=request_of(_freed(document.plan, shelf), time_limit_s=None),
    )
    return with_plan_by_chains(bare, shelf, found.found)
