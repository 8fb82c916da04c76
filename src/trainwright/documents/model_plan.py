"""The document of `plan` on a model: the profile case's keys, and the predicted step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from trainwright.documents.fit import StepDocument, doubt, figure_fields
from trainwright.documents.plan_view import (
    how_left_open,
    measured_words,
    memory_assumption,
    mfu_in_words,
    overlap_in_words,
    state_in_words,
    status_of,
    to_fit_in_words,
)
from trainwright.documents.profile_plan import (
    check_stage,
    count_offloaded,
    count_recomputed,
    read_plan,
)
from trainwright.documents.reasons import Reasons, remake_reasons
from trainwright.documents.runs import gaps_of, launchers_of, planned_job, range_of
from trainwright.errors import Fault, InvalidInput, refuse
from trainwright.formats.catalog import accelerator, known_layouts
from trainwright.model import precision_named
from trainwright.options.clusters import with_host
from trainwright.options.inputs import inside, naming_options
from trainwright.options.question import (
    QUESTION_OPTION_OF,
    call_of,
    leaner_calls,
    quickest,
    request_of,
)
from trainwright.options.run import without_effect
from trainwright.options.space import schedule_words
from trainwright.planning.question.layouts import KEEPS_TO_ROOM
from trainwright.planning.question.question import (
    Point,
    estimate_profile_of_degrees,
    left_bytes,
    narrowest,
    node_degrees,
    run_of_plan,
)
from trainwright.planning.reasons.infeasible import diagnose_model, priced_relaxations
from trainwright.planning.reasons.objectives import (
    as_published,
    expects_runs,
    kinds_with_simplest,
    simplest,
    why,
    with_plain,
)
from trainwright.planning.search.framework import framework_for, plan_runnable
from trainwright.planning.search.orders import (
    plan_per_stage,
    search_in_words,
    with_searched_orders,
)
from trainwright.planning.search.plans import (
    bytes_on_host,
    host_bytes_of_ranks,
    is_more_than_all_devices_hold,
    predicted,
)
from trainwright.planning.search.prefetch import Shelves
from trainwright.planning.search.search import FAR, NUM_ALTERNATIVES
from trainwright.plans import Plan
from trainwright.plans.configuration import (
    DEFAULT_OVERLAP,
    USUAL_FIT_PROBABILITY,
    Configuration,
    PlanRequest,
)
from trainwright.plans.job import unsaid_training
from trainwright.plans.plan import (
    DEFAULT_SCHEDULE,
    SEARCHED,
    Parallelism,
    SearchedOrder,
    mapping_name,
)
from trainwright.plans.prediction import RankRecord, StagePrediction
from trainwright.plans.status import (
    Binding,
    BoundKind,
    Relaxation,
    Status,
    relative_gap,
)
from trainwright.profile import Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.provenance import RARE
from trainwright.scheduling.families import family_named
from trainwright.step.account import tells_repeats, time_by_part_s
from trainwright.step.stages import Placement, chosen_rows
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trainwright.documents.open import PlannedModel
    from trainwright.execution import Budget
    from trainwright.execution.executor import Crew
    from trainwright.options.question import ModelCall
    from trainwright.planning.question.question import Allowed, ModelQuestion
    from trainwright.planning.search.search import ModelOutcome, Outcome
    from trainwright.planning.splits.types import Priced
    from trainwright.plans import StepPrediction
    from trainwright.plans.prediction import MixedPrediction
    from trainwright.profile import Profile
    from trainwright.step.account import TimeRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStageRecord:
    """One (virtual) stage of a model's plan; layers are indices of the model's layer graph.

    `time_per_sample_s` is its share of its rank's time, `memory_bytes` what the whole rank needs.
    """

    layers: tuple[int, ...]
    data_parallel: int
    tensor_parallel: int
    options: dict[str, str]
    num_recomputed: int
    num_offloaded: int = field(default=0, metadata={RARE: True})
    time_per_sample_s: float
    memory_bytes: float
    rank: int = 0

    def __post_init__(self) -> None:
        check_stage(self.layers, self.data_parallel, self.tensor_parallel)

    def recomputed_by(self, rank: RankRecord) -> int:
        """Layers that a rank of the stage recomputes; on one pool all do alike."""
        return self.num_recomputed

    def options_of(self, rank: RankRecord) -> dict[str, str]:
        """The options of its layers; those of all ranks."""
        return self.options

    def offloaded_by(self, rank: RankRecord) -> int:
        """Layers of which a rank of the stage keeps what it needs on the host."""
        return self.num_offloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A plan considered and not chosen, and by how much it is slower.

    `lost_s` says by part of the step (as `time_by_part_s`) what it takes more than the best plan,
    less where negative; the parts add up to the difference. `reason` says why to take it
    nevertheless, of the simpler plan where predictions do not tell the two apart; `published` who
    ran the layout, of which model and on what, of the one that people run.
    """

    layout: ClassVar[str] = "alone"
    device_kinds: ClassVar[tuple[str, ...]] = ()

    parallelism: Parallelism
    micro_batch: int
    schedule: str = DEFAULT_SCHEDULE
    num_recomputed: int | None = None
    devices_used: int | None = None
    step_time_s: float
    slowdown: float
    peak_memory_bytes: float
    lost_s: dict[str, float] = field(default_factory=dict)
    reason: str | None = None
    published: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launchable:
    """What to launch in place of a plan that no framework runs, and what that costs.

    `step_time_s` is that of the fastest plan found of those that `framework` runs, None where it
    has none, and `reason` what of the free plan it cannot express.
    """

    framework: str
    reason: str
    step_time_s: float | None = None
    slowdown: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep(StepDocument):
    """What the plan of a model says on one pool of devices and on several. Seconds and bytes.

    `step_time_low_s` and `step_time_high_s` hold nine of ten measured steps. `lower_bound_s` and
    `gap` are about every plan that the request admits; `left_open` says what ended search and proof
    where there is a gap. `ranks` has an entry for each rank of each
    chain of like replicas; on one pool there is one chain. `time_by_part_s` says where the step of
    the rank that ends it goes; compute, recompute, tensor, context, expert, data, transfers,
    bubble, optimizer, overhead add up to it. `relaxations` would each make a plan
    fit, `reasons` say what the plan's choices buy, where that was asked.
    """

    status: Status
    objective: str = "step_time_s"
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    lower_bound_s: float | None = None
    bound_kind: BoundKind | None = None
    gap: float | None = None
    left_open: str | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_device: float | None = None
    mfu: float | None = None
    exposed_gradient_sync_s: float | None = None
    optimizer_s: float | None = None
    parallelism: Parallelism | None = None
    schedule: str | None = None
    micro_batch: int | None = None
    devices_used: int | None = None
    num_stages: int | None = None
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    assumptions: dict[str, str] = field(default_factory=dict)
    considered: int = 0
    pruned: int = 0
    not_reached: int = 0
    search_s: float | None = None
    request: PlanRequest
    time_by_part_s: dict[str, float] = field(default_factory=dict)
    ranks: tuple[RankRecord, ...] = ()
    relaxations: tuple[Relaxation, ...] = ()
    reasons: Reasons | None = None

    @property
    def peak_memory_bytes(self) -> float | None:
        """What the fullest device needs."""
        return max((rank.memory_bytes for rank in self.ranks), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlanResult(PlannedStep):
    """Plan, bound and predicted step of a model on a cluster. Times in seconds, sizes in bytes.

    `stages` are in pipeline order, `ranks` says what each pipeline rank does with all of its stages
    and `peak_memory_bytes_per_rank` again what one device of it needs. Where no schedule is
    named, no plan with one stage per rank is faster than `lower_bound_one_stage_s`, which is
    never above the plan's own step. Where layers branch, no plan cut from their order in
    `stages` is faster than `lower_bound_one_order_s`; `lower_bound_s` holds for other orders,
    too. Under the schedule "searched" `order` is what a search found, and `named_step_time_s` the
    step of the same stages in the order of the family that it began with. `room_bytes` is what
    ranks may hold under a schedule that orders by it. Memory of a device of the
    fullest rank is in three figures as in an estimate, by the account of the framework named. If
    its layout is `published`, that says by whom and of which run. Of a plan that no framework runs,
    `launchable` is the fastest one found that some framework does.
    """

    # What only a plan on several pools has; see `documents.plan_view`.
    layout: ClassVar[str | None] = None
    groups: ClassVar[tuple[()]] = ()
    fits: ClassVar[bool] = True

    kind: str = "model-plan"
    lower_bound_one_stage_s: float | None = None
    lower_bound_one_order_s: float | None = None
    time_per_sample_s: float | None = None
    bubble_of_makespan: float | None = None
    order: SearchedOrder | None = None
    room_bytes: float | None = field(default=None, metadata={RARE: True})
    named_step_time_s: float | None = None
    stages: tuple[ModelStageRecord, ...] = ()
    peak_memory_bytes_per_rank: tuple[float, ...] = ()
    host_bytes_per_rank: tuple[float, ...] = field(default=(), metadata={RARE: True})
    memory_limit_bytes: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    published: str | None = field(default=None, metadata={RARE: True})
    launchable: Launchable | None = None
    binding: Binding | None = None

    def launched_by(self) -> tuple[str, ...]:
        """The frameworks that run the plan as it is; none runs a measured profile."""
        if self.request.model.kind == "profile" or not self.stages:
            return ()
        question = call_of(self.request).question
        return launchers_of(planned_job(self, question.config, question.cluster))


# The priced plan of a model, as a document carries it
# ----------------------------------------------------

_USUAL_STATE: Final = "Adam, states and master weights in 32 bit"


def with_plan(
    document: ModelPlanResult,
    question: ModelQuestion,
    plan: Plan,
    profile: Profile,
    step: StepPrediction,
) -> ModelPlanResult:
    """The document with the plan's decisions and prices; its gap is to the document's bound."""
    spread = step_range(question, plan)
    return replace(
        document,
        **step_keys(document, plan, step, spread),
        time_per_sample_s=step.pipeline_s / plan.num_microbatches,
        time_by_part_s=parts_of(question, plan, profile, step),
        bubble_of_makespan=max(0.0, step.bubble_of_makespan),
        order=plan.order,
        room_bytes=plan.room_bytes,
        named_step_time_s=named_step_s(question, plan, profile),
        stages=_stage_records(plan, profile, step, rank_of_stage(question, plan)),
        ranks=tuple(_ranks(question, plan, step)),
        peak_memory_bytes_per_rank=tuple(s.memory.total_bytes for s in step.stages),
        host_bytes_per_rank=host_bytes_of_ranks(question, plan, profile, step),
        **_figures(question, plan, profile, step),
        assumptions=_assumptions(question, profile, plan, spread),
    )


def step_keys(
    document: PlannedStep,
    plan: Plan,
    step: StepPrediction | MixedPrediction,
    spread: TimeRange | None,
) -> dict[str, Any]:
    """What a document says of a plan's step and degrees, however many pools it uses."""
    time_s, tokens_per_s = step.step_time_s, step.tokens_per_s
    low, high = (None, None) if spread is None else (spread.low_ratio, spread.high_ratio)
    return {
        "step_time_s": time_s,
        "step_time_low_s": None if low is None else low * time_s,
        "step_time_high_s": None if high is None else high * time_s,
        "gap": relative_gap(time_s, document.lower_bound_s or 0.0),
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_device": tokens_per_s / plan.devices_used if tokens_per_s else None,
        "mfu": step.mfu,
        "exposed_gradient_sync_s": step.exposed_gradient_sync_s,
        "optimizer_s": step.optimizer_s,
        "parallelism": plan.parallelism,
        "schedule": plan.schedule,
        "micro_batch": plan.microbatch_size,
        "devices_used": plan.devices_used,
        "num_stages": len(plan.stages),
    }


def rank_record(
    question: ModelQuestion, plan: Plan, found: StagePrediction, step_s: float, **place: int
) -> RankRecord:
    """What a document says of a rank; the question is the one on the rank's pool.

    `place` is chain, rank, pool, count and num_microbatches of the record.
    """
    device, peak_bytes = question.cluster.accelerator, found.memory.total_bytes
    work_s = place["num_microbatches"] * (found.forward_s + found.backward_s)
    predicted_of = {each.name: getattr(found, each.name) for each in fields(StagePrediction)}
    told: dict[str, Any] = {**predicted_of, **place}
    return RankRecord(
        **told,
        device_kind=device.name,
        busy=work_s / step_s if step_s > 0 else 0.0,
        memory_bytes=peak_bytes,
        memory_limit_bytes=device.usable_bytes,
        margin_bytes=left_bytes(question, plan, peak_bytes),
    )


def _ranks(question: ModelQuestion, plan: Plan, step: StepPrediction) -> Iterator[RankRecord]:
    """On one pool there is one chain; only its stages may differ in replicas."""
    stage_of = dict(zip(rank_of_stage(question, plan), plan.stages, strict=True))
    for rank, found in enumerate(step.stages):
        count = stage_of[rank].data_parallel
        each = -(-plan.num_microbatches // count)
        place = {"chain": 0, "rank": rank, "pool": 0, "count": count, "num_microbatches": each}
        yield rank_record(question, plan, found, step.step_time_s, **place)


def _figures(
    question: ModelQuestion, plan: Plan, profile: Profile, step: StepPrediction
) -> dict[str, Any]:
    """The figures of memory of the fullest rank of a plan."""
    measured = isinstance(question.model, MeasuredModel)
    return figure_fields(
        None if measured or plan.parallelism is None else question.config,
        run_of_plan(question, plan, profile),
        step,
        question.cluster.accelerator,
        framework=question.program,
    )


def named_step_s(question: ModelQuestion, plan: Plan, profile: Profile) -> float | None:
    """The step of the stages in the order of the family that a searched order began with."""
    named = in_named_order(plan)
    return None if named is None else predicted(question, named, profile).step_time_s


def in_named_order(plan: Plan) -> Plan | None:
    """The plan in the order of the family that its own began with; None without one."""
    if plan.order is None:
        return None
    with inside("order"):
        family = family_named(plan.order.family).name
    return replace(plan, schedule=family, order=None)


def alternatives(
    question: ModelQuestion, priced: Sequence[Priced], published: tuple[Priced, str] | None
) -> Iterator[Alternative]:
    """The runners-up that have one degree for all stages, and what they lose to the first.

    Of one of them the layout may be `published`: by whom, and of which run.
    """
    if not priced:
        return
    best = priced[0]
    best_parts = parts_of(question, best.plan, best.profile, best.step)
    simple = simplest(priced) if expects_runs(question) else None
    for other in priced[1:]:
        degrees, micro_batch = other.plan.parallelism, other.plan.microbatch_size
        if degrees is None or micro_batch is None:
            continue
        parts = parts_of(question, other.plan, other.profile, other.step)
        yield Alternative(
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


def parts_of(
    question: ModelQuestion, plan: Plan, profile: Profile, step: StepPrediction
) -> dict[str, float]:
    """Where the step's time goes; see `step.account`.

    A search for a framework with one mode for all blocks has a profile of that mode alone; what it
    repeats is told beside the one without, which the question's own profile has.
    """
    if Recompute.NONE in question.allowed.recompute and not tells_repeats(plan, profile):
        profile = profile_of(question, plan)
    return time_by_part_s(plan, profile, step, rank_of_stage=rank_of_stage(question, plan))


def rank_of_stage(question: ModelQuestion, plan: Plan) -> Sequence[int]:
    """The pipeline rank of each virtual stage."""
    placement = Placement(plan=plan, pool=question.cluster.pool_of())
    return placement.rank_of_stage if placement.is_uniform else range(len(plan.stages))


def step_range(
    question: ModelQuestion, plan: Plan, pools: Iterable[int] = (0,)
) -> TimeRange | None:
    """The ratios to the predicted step that hold nine of ten measured ones, of any of the pools.

    Stages that differ count by their narrowest tensor group, which scatters most; see `range_of`.
    """
    run = Configuration(
        parallelism=plan.parallelism or narrowest(plan),
        microbatch_size=plan.microbatch_size or 1,
        global_batch=question.workload.global_batch,
        sequence_length=question.workload.sequence_length,
        schedule=plan.schedule,
    )
    each = [range_of(question.model, question.cluster.alone(pool), run) for pool in pools]
    found = [spread for spread in each if spread is not None]
    if not found:
        return None
    return replace(
        found[0],
        low_ratio=min(spread.low_ratio for spread in found),
        high_ratio=max(spread.high_ratio for spread in found),
        source="; ".join(dict.fromkeys(spread.source for spread in found)),
    )


def _stage_records(
    plan: Plan, profile: Profile, step: StepPrediction, ranks: Sequence[int]
) -> tuple[ModelStageRecord, ...]:
    own_s = [float(profile.costs.duration_s[rows].sum()) for rows in chosen_rows(plan, profile)]
    of_rank_s = [0.0] * len(step.stages)
    for rank, time_s in zip(ranks, own_s, strict=True):
        of_rank_s[rank] += time_s
    return tuple(
        ModelStageRecord(
            layers=stage.layers,
            data_parallel=stage.data_parallel,
            tensor_parallel=stage.tensor_parallel,
            options={str(layer): option for layer, option in stage.option_of.items()},
            num_recomputed=count_recomputed(stage, profile),
            num_offloaded=count_offloaded(stage, profile),
            time_per_sample_s=(
                (step.stages[rank].forward_s + step.stages[rank].backward_s)
                * (time_s / of_rank_s[rank] if of_rank_s[rank] > 0 else 0.0)
                / stage.data_parallel
            ),
            memory_bytes=step.stages[rank].memory.total_bytes,
            rank=rank,
        )
        for stage, rank, time_s in zip(plan.stages, ranks, own_s, strict=True)
    )


def _assumptions(
    question: ModelQuestion, profile: Profile, plan: Plan, spread: TimeRange | None
) -> dict[str, str]:
    if spread is None:
        return {
            **measured_words(question.model, profile, question.cluster, question.overheads),
            "schedule": schedule_in_words(plan),
            "overlap": overlap_in_words(question.settings.overlap, question.settings.recipe),
        }
    recipe, overlap = question.settings.recipe, question.settings.overlap
    found = estimate_words(question, {0: profile}, spread)
    found["schedule"] = schedule_in_words(plan)
    found["memory"] = memory_assumption(question.cluster.accelerator, question.overheads)
    if plan.parallelism is not None and plan.parallelism.expert > 1:
        found["dispatch"] = recipe.dispatch_in_words
    if overlap != DEFAULT_OVERLAP:
        found["overlap"] = overlap_in_words(overlap, recipe)
    found |= to_fit_in_words(recipe)
    return found


def estimate_words(
    question: ModelQuestion, profiles: Mapping[int, Profile], spread: TimeRange
) -> dict[str, str]:
    """What is taken for granted of estimates of layers in these pools."""
    first, used = next(iter(profiles.values())).point, sorted(profiles)
    sources = [profiles[pool].costs.provenance for pool in used]
    devices = [question.cluster.pools[pool].accelerator for pool in used]
    numbers = question.settings.recipe.numbers(str(first.precision))
    is_usual = numbers == replace(
        precision_named(numbers.name), dispatch_bytes=numbers.dispatch_bytes
    )
    return {
        "times": "; ".join(dict.fromkeys(f"{each.origin}: {each.source}" for each in sources)),
        "range": spread.source,
        "mfu": mfu_in_words(devices, numbers),
        "precision": str(first.precision),
        "kernels": ", ".join(first.kernels),
        "optimizer": (
            _USUAL_STATE if is_usual else state_in_words(question.settings.recipe, numbers)
        ),
    }


def schedule_in_words(plan: Plan) -> str:
    """What was simulated, and where a searched order began."""
    if plan.order is None:
        return f"{plan.schedule}, simulated"
    return f"{plan.schedule}, simulated: an order found from {plan.order.family}"


# `plan` on a model without a profile: the best plan on a cluster, as a document
# ------------------------------------------------------------------------------


def _found(
    call: ModelCall, budget: Budget, *, crew: Crew | None, shelves: Shelves
) -> tuple[ModelCall, ModelOutcome]:
    """What the call finds, or the first that keeps less on a device where it finds nothing.

    Then the other frameworks are asked, where none was named; which of them answers is said.
    """
    first: tuple[ModelCall, ModelOutcome] | None = None
    usual, tried = call.question.allowed.framework, list[str]()
    for asked in (call, *call.otherwise):
        calls = leaner_calls(asked, is_named=not call.otherwise)
        for each in calls:
            if each is not asked and is_more_than_all_devices_hold(each.question):
                continue
            outcome = _outcome(each, budget, crew=crew, shelves=shelves)
            if first is None:
                first = (each, outcome)
            if outcome.priced and each is not asked:
                search = partial(_outcome, budget=budget, crew=crew, shelves=shelves)
                each, outcome = quickest(each, outcome, calls, search, budget)
            if outcome.priced and asked is not call:
                said = f"framework: planned for {asked.question.allowed.framework}"
                said += f": no plan fits that {_either([str(usual), *tried])} launches"
                each = replace(each, warnings=(*each.warnings, said))
            if outcome.priced:
                return each, outcome
            if budget.stopped:
                return first
        if asked is not call:
            tried.append(str(asked.question.allowed.framework))
    assert first is not None, "a call is asked itself"
    if tried:
        said = f"framework: no plan of {_either(tried)} fits either"
        return replace(first[0], warnings=(*first[0].warnings, said)), first[1]
    return first


def _either(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _outcome(
    call: ModelCall, budget: Budget, *, crew: Crew | None, shelves: Shelves
) -> ModelOutcome:
    plan = plan_per_stage if call.per_stage_degrees else plan_runnable
    question = call.question
    most = max(call.top, NUM_ALTERNATIVES) if question.allowed.searches_orders else call.top
    options: dict[str, Any] = {"num_alternatives": most, "crew": crew}
    if not call.per_stage_degrees:
        options["shelves"] = shelves
    if expects_runs(question) and question.allowed.searches_orders:
        options["num_alternatives"] = _OF_A_KIND * most  # orders are sought behind alike ones, too
    elif not call.per_stage_degrees:
        options["in_kind"] = expects_runs(question)
    with naming_options(QUESTION_OPTION_OF):
        outcome = plan(question, budget, **options)
        is_first = call.prefers_simple
        joins = is_first or (expects_runs(question) and not call.per_stage_degrees)
        if outcome.priced and joins:
            outcome = with_plain(
                question, outcome, budget, count=call.top, is_first=is_first, shelves=shelves
            )
    return outcome


def plan_model(
    call: ModelCall, budget: Budget, *, warnings: Sequence[str] = (), crew: Crew | None = None
) -> ModelPlanResult:
    """Search the uniform plans (or, opted in, those with degrees per stage); a `crew` helps."""
    started_s, shelves = budget.cpu_s, Shelves()
    call, outcome = _found(call, budget, crew=crew, shelves=shelves)
    question = call.question
    most = max(call.top, NUM_ALTERNATIVES) if question.allowed.searches_orders else call.top
    if question.allowed.framework is not None:
        # A part of the space may have had one mode of recomputation; what a mode adds is told
        # beside the others, as whoever reads the document has them.
        whole = (replace(each, profile=profile_of(question, each.plan)) for each in outcome.priced)
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
    document = ModelPlanResult(
        **answer_keys(call, outcome, budget),
        lower_bound_one_stage_s=outcome.lower_bound_one_stage_s,
        lower_bound_one_order_s=outcome.lower_bound_one_order_s,
        memory_limit_bytes=question.cluster.accelerator.usable_bytes,
        warnings=(*warnings, *_warnings(call, outcome, was_stopped=budget.stopped)),
    )
    if outcome.priced:
        best = outcome.priced[0]
        _refuse_full_host(question, best)
        document = replace(
            with_plan(document, question, best.plan, best.profile, best.step),
            left_open=how_left_open(call, outcome, budget),
        )
        told = outcome.priced
        if expects_runs(question):  # another kind may be far away
            told = tuple(one for one in told if _step_s(one) <= FAR * _step_s(best))
        told, published = _with_published(call, told, budget, shelves)
        own = published is not None and published[0] is best
        document = replace(
            document,
            alternatives=tuple(alternatives(question, told, published)),
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
    return replace(document, search_s=budget.cpu_s - started_s)


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
    document: ModelPlanResult,
    question: ModelQuestion,
    outcome: ModelOutcome,
    budget: Budget,
    shelves: Shelves,
) -> Launchable | None:
    """What a framework runs in place of a free plan; None where some framework runs that."""
    free = question.allowed.framework is None and not isinstance(question.model, MeasuredModel)
    if not free or budget.stopped or document.launched_by():
        return None
    target, _ = framework_for(question)
    if target is None:
        return None
    step_s: float | None = None
    # In place of an order that no framework has, the best plan beside it that one runs.
    for each in outcome.priced[1:] if document.schedule in KEEPS_TO_ROOM else ():
        other = with_plan(document, question, each.plan, each.profile, each.step)
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
    return Launchable(
        framework=target,
        reason="" if gap is None else str(gap.fault),
        step_time_s=step_s,
        slowdown=None if step_s is None else step_s / (document.step_time_s or math.inf),
    )


def launch_gaps(document: PlannedModel, question: ModelQuestion) -> tuple[str, ...]:
    """What the framework that was named cannot express of the plan that was found."""
    if (framework := question.allowed.framework) is None:
        return ()
    job = planned_job(document, question.config, question.cluster)
    found = (*(gap.fault for gap in gaps_of(job, framework)),)
    found += (*unsaid_training(job.model, job.recipe, framework),)
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
    yield from search_in_words(call.question, outcome, was_stopped=was_stopped)
    if outcome.priced and outcome.priced[0].plan.parallelism is None:
        yield "degrees that differ between stages: no framework runs such a plan yet"


# The figures of a document about a model, computed again from what it carries
# ----------------------------------------------------------------------------

_SHARED: Final = (
    *("tensor", "pipeline", "data", "context", "expert", "virtual_stages", "state_copies"),
)


def remake_model_plan(document: ModelPlanResult) -> ModelPlanResult:
    """The document with every figure that follows from its plan, if it has one.

    Raises `InvalidInput` where model or cluster cannot be read or the plan breaks a rule.
    """
    if not document.stages:
        return document
    question, plan, profile = planned(document)
    step = predicted(question, plan, profile)
    computed = with_plan(document, question, plan, profile, step)
    launched = document.launchable
    if launched is not None and launched.step_time_s is not None:
        launched = replace(launched, slowdown=launched.step_time_s / step.step_time_s)
    return replace(
        computed,
        **known_of_others(document, step.step_time_s),
        launchable=launched,
        memory_limit_bytes=question.cluster.accelerator.usable_bytes,
    )


def known_of_others(document: Any, step_s: float) -> dict[str, Any]:
    """What a document of a plan says of other plans, beside a step of `step_s` seconds."""
    why, others = document.reasons, document.alternatives
    return {
        "reasons": None if why is None else remake_reasons(why, step_s),
        "alternatives": tuple(replace(o, slowdown=o.step_time_s / step_s) for o in others),
    }


def planned(document: ModelPlanResult) -> tuple[ModelQuestion, Plan, Profile]:
    """What was asked, the plan that answers it, and the profile it was cut from.

    Raises `InvalidInput` where model or cluster cannot be read or the plan breaks a rule.
    """
    question = call_of(document.request).question
    plan = _plan_in(document, question)
    return question, plan, profile_of(question, plan)


def _plan_in(document: ModelPlanResult, question: ModelQuestion) -> Plan:
    """The decisions of a document; raises `InvalidInput` where the question does not allow them."""
    size = microbatch_of(document, question)
    plan = Plan(
        stages=read_plan(document),
        num_microbatches=question.workload.global_batch // size,
        microbatch_size=size,
        schedule=document.schedule or DEFAULT_SCHEDULE,
        order=document.order,
        room_bytes=document.room_bytes,
        parallelism=_parallelism(document, question),
    )
    if plan.devices_used > question.num_devices:
        wanted = f"must be at most the {question.num_devices} asked for"
        raise InvalidInput.of("devices_used", f"{wanted}, got {plan.devices_used}")
    return plan


def profile_of(question: ModelQuestion, plan: Plan) -> Profile:
    """What the layers cost on the question's cluster at the plan's degrees."""
    return estimate_profile_of_degrees(
        question.estimator(),
        question,
        Point.of(
            plan.parallelism or Parallelism(tensor=plan.stages[0].tensor_parallel),
            plan.microbatch_size,
        ),
        tensor=_tensor_degrees(plan, question),
    )


def microbatch_of(document: PlannedStep, question: ModelQuestion) -> int:
    """Sequences of a microbatch; raises `InvalidInput` where they do not divide the batch."""
    size, batch = document.micro_batch, question.workload.global_batch
    if size is None or size < 1 or batch % size:
        raise InvalidInput.of("micro_batch", f"must divide the global batch of {batch}, got {size}")
    return size


def _parallelism(document: ModelPlanResult, question: ModelQuestion) -> Parallelism | None:
    """The degrees that all stages share; raises where stages or request say otherwise."""
    degrees = document.parallelism
    if degrees is None:
        return None
    refuse(_degree_faults(document, degrees))
    refuse(_space_faults(document, degrees, question.allowed))
    return degrees


def _degree_faults(document: ModelPlanResult, degrees: Parallelism) -> Iterator[Fault]:
    pair = (degrees.tensor, degrees.data)
    for index, stage in enumerate(document.stages):
        if (stage.tensor_parallel, stage.data_parallel) != pair:
            wanted = f"must have the degrees of parallelism, data {pair[1]} and tensor {pair[0]}"
            yield Fault(f"stages[{index}]", wanted)
    count = degrees.pipeline * degrees.virtual_stages
    if len(document.stages) != count:
        yield Fault("stages", f"must be {count} by parallelism, got {len(document.stages)}")
    if degrees.sequence_parallel != (degrees.tensor > 1):
        wanted = "must be true just where tensor > 1"
        yield Fault("parallelism.sequence_parallel", wanted)


def _space_faults(
    document: ModelPlanResult, degrees: Parallelism, allowed: Allowed
) -> Iterator[Fault]:
    """What the request does not allow."""
    for name in _SHARED:
        if (value := getattr(degrees, name)) not in getattr(allowed, name):
            yield Fault(f"parallelism.{name}", f"must be one that the request allows, got {value}")
    if degrees.expert_tensor is not None and degrees.expert_shards not in allowed.expert_tensor:
        value = degrees.expert_shards
        yield Fault("parallelism.expert_tensor", f"must be allowed by the request, got {value}")
    if degrees.zero_stage not in allowed.zero_stages:
        stages = ", ".join(map(str, allowed.zero_stages))
        yield Fault("parallelism.zero_stage", f"must be one of {stages}, got {degrees.zero_stage}")
    if degrees.axis_order not in allowed.mappings:
        orders = ", ".join(map(mapping_name, allowed.mappings))
        given = mapping_name(degrees.axis_order)
        yield Fault("parallelism.axis_order", f"must be that of {orders}, got {given}")
    words, order = schedule_words(allowed) or (), document.order
    if words not in ((), (SEARCHED,)) and document.schedule not in words:
        yield Fault("schedule", f'must be one of {", ".join(words)}, got "{document.schedule}"')
    if order is not None and not allowed.searches_orders:
        yield Fault("schedule", "must be asked for: the request names no searched orders")
    if order is not None and order.family not in (allowed.schedules or (order.family,)):
        families = ", ".join(allowed.schedules or ())
        yield Fault("order.family", f'must be one of {families}, got "{order.family}"')


def _tensor_degrees(plan: Plan, question: ModelQuestion) -> tuple[int, ...]:
    """The degrees of the profile that the plan was cut from."""
    if plan.parallelism is not None:
        return (plan.stages[0].tensor_parallel,)
    return node_degrees(question)
