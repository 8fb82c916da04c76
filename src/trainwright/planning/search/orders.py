"""Orders of actions that no family has, for the best plans of a search over named families.

The certified space holds named families; an order that a search finds (`scheduling.search`) lies
outside and may only improve on it. So plans are searched as ever, and the orders of the best few
afterwards, stage times, transfers and the bytes of every rank as pricing has them. What is found is
priced like any plan. Work is counted in simulated actions, never in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np

from trainwright.costing.estimate import Estimator, flat_setting
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.execution import Budget, Progress
from trainwright.partitioning.downset_dp import Restrictions, recompute_least, solve
from trainwright.planning.bounds.pools import MixedShelf
from trainwright.planning.question import layouts
from trainwright.planning.question.layouts import SEARCHED_UNLESS_NAMED as BY_DEFAULT
from trainwright.planning.question.question import (
    Allowed,
    Candidate,
    ModelQuestion,
    Point,
    Span,
    estimate_profile_of_degrees,
    microbatch_sizes,
    missing_of_plan,
    node_degrees,
    room_of_devices,
    room_of_peak,
)
from trainwright.planning.search.framework import plan_runnable
from trainwright.planning.search.frontier import least_of_any_order_s
from trainwright.planning.search.plans import (
    best_first,
    hold_tied_once,
    require_largest_transient,
    reserve_transients,
)
from trainwright.planning.search.pools import (
    MixedPriced,
    fits,
    least_of_any_order_on_pools_s,
    priced_mixed,
)
from trainwright.planning.search.search import NUM_ALTERNATIVES, ModelOutcome, Outcome, plan_model
from trainwright.planning.splits.types import Priced
from trainwright.plans import Plan, StepPrediction
from trainwright.plans.capability import Demands, capability_of
from trainwright.plans.plan import SEARCHED, Parallelism
from trainwright.plans.schedule import ActionKind, FamilyShape, Schedule, ScheduleCosts
from trainwright.plans.status import Objective, Status
from trainwright.profile import Profile, Setting
from trainwright.profile.profile import divisors
from trainwright.scheduling.bounds import LeastCosts, LimitTooSmall, best_bound
from trainwright.scheduling.candidates import Backward, SearchQuestion
from trainwright.scheduling.orders import words_of
from trainwright.scheduling.search import search_schedule
from trainwright.step.account import timeline_of
from trainwright.step.pools import mixed_works
from trainwright.step.predict import Layout, StepWork, predict_step, work_of_plan

if TYPE_CHECKING:
    from trainwright.execution.executor import Crew

# Plans whose orders are worth a search: near the best one, and one of every other placement
# ------------------------------------------------------------------------------------------
# How good an order can become depends on where stages lie, and a family far from the best may leave
# most of that to a search. So placements that no plan near the best has are planned again at the
# degrees of the best pipeline, which is quick.

_NEAR: Final = 1.05  # of the best step: how slow a plan may be under its family's order
_PLACEMENTS: Final = (layouts.IN_V, layouts.LOOPED, layouts.CHAIN)


def order_starts(
    question: ModelQuestion, priced: Sequence[Priced], budget: Budget
) -> Iterator[Priced]:
    """Plans with a pipeline, the best of them first, and one for each placement that is allowed."""
    if not priced:
        return
    near_s = _NEAR * priced[0].step.step_time_s
    near = [
        each
        for each in priced
        if each.candidate.pipeline > 1
        and each.candidate.schedule not in _FIXED
        and each.plan.parallelism is not None
        and each.step.step_time_s <= near_s
    ]
    yield from near
    if not near:
        return
    allowed, seen = question.allowed, {each.candidate.schedule for each in near}
    for families in _PLACEMENTS:
        left = tuple(f for f in allowed.schedules or BY_DEFAULT if f in families)
        if not left or seen & set(families) or budget.stopped:
            continue
        narrowed = _at_degrees(allowed, near[0].candidate, left)
        try:
            found = plan_runnable(
                replace(question, allowed=narrowed), budget, num_alternatives=0
            ).priced
        except (InvalidInput, UnsupportedFeature):  # nothing is left of the space
            continue
        yield from found


def _at_degrees(allowed: Allowed, at: Candidate, families: tuple[str, ...]) -> Allowed:
    """The same devices, replicas and microbatches under some families."""
    return replace(
        allowed,
        tensor=Span.only(at.tensor),
        pipeline=Span.only(at.pipeline),
        data=Span.only(at.data),
        context=Span.only(at.context),
        expert=Span.only(at.expert),
        expert_tensor=Span.only(at.degrees.expert_shards),
        microbatch_size=Span.only(at.microbatch_size),
        state_copies=Span.only(at.state_copies),
        zero_stages=(at.zero_stage,),
        mappings=(at.axis_order,),
        schedules=families,
        searches_orders=False,
    )


# Orders of actions that no family has, for the best plans of a search over named families
# ----------------------------------------------------------------------------------------

_STARTS: Final = 4  # plans whose orders are searched
_WORK: Final = 100_000_000  # simulated actions for each of them: about a second
_LEAST_EVALUATIONS: Final = 7_500  # whole simulations of an order, for three times the work
_MOST_EVALUATIONS: Final = 100_000  # whole simulations of a short order
MOST_ACTIONS: Final = 200_000  # of an order that is searched
_WORTH_IT: Final = 1 - 1e-4  # of the best step: what a schedule without a name has to reach
_ROUNDING: Final = 1 - 2e-9  # of the room, which pricing sums in another order


def with_searched_orders(
    question: ModelQuestion,
    outcome: ModelOutcome,
    budget: Budget,
    *,
    num_alternatives: int,
    work: int = _WORK,
) -> ModelOutcome:
    """The outcome with the best order found in front, where it is faster than every named plan.

    The bound is on any order then: the work of the least layers, however they are cut. The best so
    far is the answer where the budget ends. `work` is how many actions are simulated for each plan.
    """
    bound_s = min(outcome.lower_bound_s, least_of_any_order_s(question, budget))
    outcome = replace(outcome, lower_bound_s=bound_s)
    starts = [
        _start(question, each)
        for each in order_starts(question, outcome.priced, budget)
        if num_actions(each.plan) <= MOST_ACTIONS
    ]

    def repriced(start: Priced, plan: Plan) -> Priced | None:
        step = predict_step(plan, start.profile, question.cluster, **question.step_terms)
        missing = missing_of_plan(question, plan, start.profile, step)
        return None if missing > 0 else replace(start, plan=plan, step=step)

    found = _best_of(question, starts, outcome.priced[:1], repriced, budget, work)
    priced = outcome.priced if found is None else (found, *outcome.priced)
    priced = priced[: 1 + num_alternatives]
    return replace(outcome, priced=priced, interrupted=budget.interrupted)


def with_searched_orders_on_pools(
    question: ModelQuestion, outcome: Outcome[MixedPriced], budget: Budget, *, work: int = _WORK
) -> Outcome[MixedPriced]:
    """The same on several pools, where all chains run as many microbatches.

    The order is searched for the chain that ends last, and priced on all of them.
    """
    shelf = MixedShelf.of(question)
    bound_s = min(outcome.lower_bound_s, least_of_any_order_on_pools_s(question, budget))
    outcome = replace(outcome, lower_bound_s=bound_s, interrupted=budget.interrupted)
    near_s = _NEAR * min((each.step.step_time_s for each in outcome.priced), default=0.0)
    starts = [
        _start_on_pools(shelf, each)
        for each in outcome.priced
        if each.step.step_time_s <= near_s and can_be_searched(each.plan)
    ]

    def priced(start: MixedPriced, plan: Plan) -> MixedPriced | None:
        found = priced_mixed(shelf, start.shape, plan, start.profiles)
        return found if fits(shelf, found) else None

    found = _best_of(question, starts, outcome.priced[:1], priced, budget, work)
    if found is None:
        return outcome
    others = (each for each in outcome.priced if each.shape != found.shape)
    return replace(outcome, priced=(found, *others), interrupted=budget.interrupted)


_P = TypeVar("_P", Priced, MixedPriced)


def _best_of(
    question: ModelQuestion,
    starts: Sequence[_Start[_P]],
    best: Sequence[_P],
    priced: Callable[[_P, Plan], _P | None],
    budget: Budget,
    work: int,
) -> _P | None:
    """The fastest plan whose order was found, if it is faster than the `best` of all others."""
    if not best:
        return None
    best_s, fastest = _WORTH_IT * best[0].step.step_time_s, None
    starts = [start for start in starts if _runs(question, start)]
    for start in sorted(starts, key=lambda each: (each.priced is not best[0], each.bound_s))[
        :_STARTS
    ]:
        if start.bound_s >= best_s:
            continue
        if budget.stopped:
            break
        schedule = _searched(start, budget, work, best_s=best_s)
        if schedule is None:
            continue
        order = words_of(schedule, family=start.priced.plan.schedule)
        plan = replace(start.priced.plan, schedule=SEARCHED, order=order)
        found = priced(start.priced, plan)
        if found is not None and found.step.step_time_s < best_s:
            fastest, best_s = found, found.step.step_time_s
    return fastest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Start(Generic[_P]):
    """A plan with its order under its family, what the order costs and may hold; no order of the
    plan steps faster than `bound_s`.
    """

    priced: _P
    schedule: Schedule
    costs: ScheduleCosts
    bound_s: float


def can_be_searched(plan: Plan) -> bool:
    """Whether an order of a plan with a pipeline is short enough, and one for all its replicas."""
    degrees = plan.parallelism
    if degrees is None or degrees.pipeline == 1 or plan.schedule in _FIXED:
        return False
    return runs_alike(plan) and num_actions(plan) <= MOST_ACTIONS


_FIXED: Final = (
    layouts.CUTS_HEAD | layouts.ON_HOST | layouts.BRAIDED | layouts.SLICED
)  # what a search cannot express


def _runs(question: ModelQuestion, start: _Start[_P]) -> bool:
    """Whether the framework that is asked for reads such orders."""
    framework, degrees = question.allowed.framework, start.priced.plan.parallelism
    demands = Demands(
        parallelism=degrees or Parallelism(),
        schedule=SEARCHED,
        shape=FamilyShape(start.schedule.placement.placing, split_backward=True),
    )
    return framework is None or capability_of(framework).runs(demands)


def runs_alike(plan: Plan) -> bool:
    """Whether all replicas run as many microbatches."""
    each = [group.share / group.count for stage in plan.stages for group in stage.replicas]
    return max(each) - min(each) <= _WHOLE / plan.num_microbatches


_WHOLE: Final = 1e-6  # of a microbatch


def num_actions(plan: Plan) -> int:
    """Of an order of a plan whose replicas run alike, with its backward split."""
    degrees = plan.parallelism
    data = plan.stages[0].data_parallel if degrees is None else degrees.data
    return 3 * len(plan.stages) * plan.num_microbatches // data


def _start(question: ModelQuestion, priced: Priced) -> _Start[Priced]:
    work, layout = work_of_plan(
        priced.plan, priced.profile, question.cluster, **question.step_settings
    )
    rooms = [room_of_peak(question, priced.candidate.degrees)] * layout.shape.num_ranks
    return _Start(priced=priced, **_asked(work, layout, priced.step, rooms))


def _start_on_pools(shelf: MixedShelf, priced: MixedPriced) -> _Start[MixedPriced]:
    """Of the chain that ends last."""
    question, number = shelf.question, priced.step.slowest
    _, work, layout = mixed_works(
        priced.plan, priced.profiles, shelf.cluster, **question.step_settings
    )[number]
    chain = priced.step.chains[number]
    rooms = [
        room_of_peak(shelf.alone(pool), priced.plan.parallelism or Parallelism())
        for pool in chain.pools
    ]
    return _Start(priced=priced, **_asked(work, layout, chain.step, rooms))


def _asked(
    work: StepWork, layout: Layout, step: StepPrediction, rooms: Sequence[float]
) -> dict[str, Any]:
    """The order of a pipeline, what it costs, and the bound, where its ranks have such rooms."""
    timeline = timeline_of(work, layout)
    memory = timeline.costs.memory
    limit = _ROUNDING * np.maximum(0.0, rooms)
    costs = replace(timeline.costs, memory=replace(memory, limit_bytes=limit))
    bound_s = _synced_s(timeline.schedule, costs, step)
    bound_s += step.optimizer_s + layout.step_overhead_s
    return {"schedule": timeline.schedule, "costs": costs, "bound_s": bound_s}


def _synced_s(schedule: Schedule, costs: ScheduleCosts, step: StepPrediction) -> float:
    """What no order ends before: a rank synchronises gradients when all its work is done.

    Its work begins when the first microbatch has passed the stages before its own.
    """
    m, exposed_s = schedule.num_microbatches, [rank.exposed_gradient_sync_s for rank in step.stages]
    least = LeastCosts.of(schedule.placement, costs)
    pipeline = best_bound(least, m, objective=Objective.MAKESPAN)
    before_s = np.concatenate([[0.0], np.cumsum(costs.duration_s[ActionKind.F])])
    works_s = costs.duration_s[[ActionKind.F, ActionKind.I, ActionKind.W]].sum(axis=0)
    ranks_s = [
        float(before_s[own[0]] + m * works_s[list(own)].sum()) + sync_s
        for own, sync_s in zip(schedule.placement.stages_of_rank, exposed_s, strict=True)
    ]
    return max(pipeline.value_s + min(exposed_s), *ranks_s)


def _searched(start: _Start[_P], budget: Budget, work: int, *, best_s: float) -> Schedule | None:
    """The best order found; None where none fits."""
    asked = SearchQuestion(
        placement=start.schedule.placement,
        num_ranks=start.schedule.num_ranks,
        num_microbatches=start.schedule.num_microbatches,
        costs=start.costs,
        backward=Backward.SPLIT,
        evaluations=_evaluations(start.schedule.num_actions, work),
    )
    found = search_schedule(
        asked, budget=_listening(budget, start, best_s=best_s), known=(start.schedule,)
    )
    return None if isinstance(found, LimitTooSmall) else found.schedule


def _evaluations(num_actions: int, work: int) -> int:
    """Whole simulations: fewer of long orders, which may take up to three times the work."""
    least = min(_LEAST_EVALUATIONS, 3 * work // num_actions)
    return max(1, least, min(_MOST_EVALUATIONS, work // num_actions))


def _listening(budget: Budget, start: _Start[Any], *, best_s: float) -> Budget:
    """Stops where the plan's budget does; progress is the plan's."""

    def listen(_: Progress) -> None:
        progress = Progress(
            stage="searching orders",
            elapsed_s=budget.elapsed_s,
            best=best_s,
            lower_bound=min(best_s, start.bound_s),
        )
        if budget.poll(progress):
            inner.interrupt()

    left_s = budget.remaining_s
    inner = Budget(time_limit_s=None if math.isinf(left_s) else max(1e-3, left_s))
    inner.on_progress = listen
    return inner


# A model with degrees of its own in every stage: Piper's problem on an estimated profile
# ---------------------------------------------------------------------------------------
# No framework runs such plans yet; they show what uniform degrees give away. Uniform plans are
# plans of this space too, so the answer is never slower. The partitioner minimises the steady-state
# time per microbatch, the step is then priced like any other, so the bound on the step is only that
# of the least work.


def plan_per_stage(
    question: ModelQuestion,
    budget: Budget,
    *,
    num_alternatives: int = NUM_ALTERNATIVES,
    crew: Crew | None = None,
) -> ModelOutcome:
    """The best of the uniform plans, which a `crew` helps to find, and of one partitioning per
    microbatch size.

    In the latter static state is not sharded (ZeRO 0): replicas of a stage need not be alike, and
    tensor groups lie in nodes. Raises `InvalidInput` where no such degree is allowed.
    """
    workload, degrees = question.workload, node_degrees(question)
    if not degrees:
        node = question.cluster.pool_of().devices_per_node
        held = "must hold a degree whose groups lie in a node"
        raise InvalidInput.of("tensor", f"{held} of {node} where stages differ in theirs")
    uniform = plan_model(question, budget, num_alternatives=num_alternatives, crew=crew)
    config = question.config
    estimator = question.settings.estimator(config, question.cluster)
    offered = [
        (size, _profile(estimator, question, size, degrees))
        for size in microbatch_sizes(workload, question.allowed.microbatch_size)
    ]
    bound_s = min(
        _least_device_s(profile) * (workload.global_batch // size) for size, profile in offered
    )
    found: list[Priced | None] = []
    for size, profile in offered:
        if budget.stopped:
            break
        found.append(_price(question, profile, size, budget))
    priced = best_first([*uniform.priced, *filter(None, found)])
    may_fit = not priced and any(_may_fit(question, p, n, budget) for n, p in offered)
    best_s = priced[0].step.step_time_s if priced else math.inf
    overhead_s = question.cluster.accelerator.step_overhead_s
    # Uniform plans may have tensor degrees that stages may not mix, with a bound of their own.
    bound_s = min(bound_s / question.num_devices + overhead_s, uniform.lower_bound_s, best_s)
    return Outcome(
        priced=priced,
        lower_bound_s=bound_s if math.isfinite(bound_s) else 0.0,
        considered=uniform.considered + len(offered),
        pruned=uniform.pruned,
        not_reached=uniform.not_reached + len(offered) - len(found),
        exhausted=uniform.exhausted and not budget.stopped and not may_fit,
        interrupted=budget.interrupted,
    )


def _profile(
    estimator: Estimator, question: ModelQuestion, size: int, tensor: tuple[int, ...]
) -> Profile:
    point = Point(microbatch_size=size, tensor=max(tensor))
    return estimate_profile_of_degrees(estimator, question, point, tensor=tensor)


def _may_fit(question: ModelQuestion, profile: Profile, size: int, budget: Budget) -> bool:
    """Whether the profile is not proved, in the time left, to be too large."""
    if budget.stopped:
        return True
    lean = require_largest_transient(hold_tied_once(profile))
    setting = _setting(question, size)
    cut = solve(lean, setting, restrictions=_restrictions(question, size), budget=budget)
    return cut.status is not Status.INFEASIBLE


def _restrictions(question: ModelQuestion, size: int) -> Restrictions:
    """The data degrees that are allowed; one that the partitioner refuses where none divides."""
    allowed = question.allowed.data
    degrees = divisors(question.workload.global_batch // size)
    return Restrictions(
        data_degrees=tuple(filter(allowed.__contains__, degrees)) or (allowed.least,)
    )


def _setting(question: ModelQuestion, size: int) -> Setting:
    num_microbatches = question.workload.global_batch // size
    room = room_of_devices(question)
    setting = flat_setting(room, num_microbatches=num_microbatches)
    return replace(setting, num_devices=question.num_devices)


def _price(question: ModelQuestion, profile: Profile, size: int, budget: Budget) -> Priced | None:
    restrictions = _restrictions(question, size)
    roomy, setting = reserve_transients(profile, _setting(question, size), restrictions)
    found = solve(roomy, setting, restrictions=restrictions, budget=budget)
    cut = recompute_least(found, roomy, setting, restrictions=restrictions)
    if cut.plan is None or len(cut.plan.stages) not in question.allowed.pipeline:
        return None
    plan = replace(cut.plan, microbatch_size=size)
    step = predict_step(plan, profile, question.cluster, **question.step_terms)
    if missing_of_plan(question, plan, profile, step) > 0:
        return None
    candidate = Candidate(
        microbatch_size=size,
        tensor=max(stage.tensor_parallel for stage in plan.stages),
        pipeline=len(plan.stages),
        data=max(stage.data_parallel for stage in plan.stages),
        zero_stage=0,
    )
    return Priced(candidate=candidate, plan=plan, profile=profile, step=step)


def _least_device_s(profile: Profile) -> float:
    """Device seconds of one microbatch if every layer took its cheapest option."""
    costs = profile.costs
    device_s = costs.duration_s * costs.tensor_parallel
    by_class = [float(device_s[costs.rows_of(c)].min()) for c in range(costs.num_classes)]
    return sum(by_class[layer.layer_class] for layer in profile.structure.layers)


def search_in_words(
    question: ModelQuestion, outcome: ModelOutcome | Outcome[MixedPriced], *, was_stopped: bool
) -> Iterator[str]:
    """What a search that found nothing says; `was_stopped` where time or patience ran out."""
    if not question.allowed.searches_orders or not outcome.priced:
        return
    plan = outcome.priced[0].plan
    if plan.order is not None:
        return
    degrees = plan.parallelism
    if degrees is not None and degrees.pipeline == 1:
        yield "schedule: nothing to search: the best plan has no pipeline"
    elif not runs_alike(plan):
        yield (
            "schedule: nothing was searched: replicas of the best plan run unlike numbers of "
            "microbatches, and one order is for all"
        )
    elif (count := num_actions(plan)) > MOST_ACTIONS:
        yield (
            f"schedule: nothing was searched: an order of the best plan has {count:,} actions, "
            f"more than {MOST_ACTIONS:,}"
        )
    else:
        when = " before the search was stopped" if was_stopped else ""
        yield f"schedule: no order was found{when} that is shorter than that of {plan.schedule}"
