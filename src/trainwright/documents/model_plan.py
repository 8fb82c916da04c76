"""The document of `plan` on a model: the profile case's keys, and the predicted step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

from trainwright.cluster import Cluster
from trainwright.documents import plan_view
from trainwright.documents.fit import StepDocument, figure_fields
from trainwright.documents.profile_plan import (
    check_stage,
    count_offloaded,
    count_recomputed,
    read_plan,
)
from trainwright.documents.reasons import Reasons
from trainwright.documents.runs import able_targets, planned_job, range_of
from trainwright.errors import Fault, InvalidInput, one_of, refuse
from trainwright.model import precision_named
from trainwright.options.inputs import inside
from trainwright.options.question import call_of
from trainwright.options.space import schedule_words
from trainwright.planning.bounds.pools import MixedShelf
from trainwright.planning.question.question import (
    Allowed,
    ModelQuestion,
    Point,
    estimate_profile_of_degrees,
    left_bytes,
    narrowest,
    node_degrees,
    run_of_plan,
)
from trainwright.plans import Plan, Stage, StepPrediction
from trainwright.plans.configuration import DEFAULT_OVERLAP, Configuration, PlanRequest
from trainwright.plans.plan import (
    DEFAULT_SCHEDULE,
    SEARCHED,
    Parallelism,
    SearchedOrder,
    mapping_name,
)
from trainwright.plans.prediction import MixedPrediction, RankRecord, StagePrediction
from trainwright.plans.status import Binding, BoundKind, Relaxation, Status, relative_gap
from trainwright.profile import Profile, Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.provenance import RARE
from trainwright.scheduling.families import family_named
from trainwright.step.account import TimeRange, chains_by_part_s, tells_repeats, time_by_part_s
from trainwright.step.pools import MixedPlacement, as_run_by
from trainwright.step.predict import predict_step
from trainwright.step.stages import Placement, chosen_rows
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from trainwright.planning.search.pools import MixedPriced


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRecord:
    """`count` replicas of a stage in one pool of several, each of `num_microbatches` per step.

    `options` maps layer (as text) to option.
    """

    pool: int
    device_kind: str
    count: int
    tensor_parallel: int
    num_microbatches: int
    options: dict[str, str]
    num_recomputed: int
    num_offloaded: int = field(default=0, metadata={RARE: True})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStageRecord:
    """One (virtual) stage of a model's plan; layers are indices of the model's layer graph.

    `data_parallel` counts all replicas; `time_per_sample_s` is the stage's share of the time of its
    ranks, per microbatch of any replica, `memory_bytes` what the fullest of these ranks needs.
    On one pool all replicas run by the same `options`; on several `replicas` says how those of each
    pool run, and `num_recomputed` is the most that any recompute.
    """

    layers: tuple[int, ...]
    data_parallel: int
    tensor_parallel: int
    options: dict[str, str] | None = None
    num_recomputed: int
    num_offloaded: int = field(default=0, metadata={RARE: True})
    time_per_sample_s: float
    memory_bytes: float
    rank: int = 0
    replicas: tuple[ReplicaRecord, ...] = field(default=(), metadata={RARE: True})

    def __post_init__(self) -> None:
        check_stage(self.layers, self.data_parallel, self.tensor_parallel)
        if self.options is None and not self.replicas:
            raise InvalidInput.of("options", "must be given, or replicas with theirs")

    @property
    def first_options(self) -> dict[str, str]:
        """The options of the first replicas; those of others may differ where pools do."""
        return self.replicas[0].options if self.options is None else self.options

    def _of(self, rank: RankRecord) -> ModelStageRecord | ReplicaRecord:
        own = (rank.pool, rank.num_microbatches)
        alike = (each for each in self.replicas if (each.pool, each.num_microbatches) == own)
        return next(alike) if self.replicas else self

    def recomputed_by(self, rank: RankRecord) -> int:
        """Layers that a rank of the stage recomputes, in its chain."""
        return self._of(rank).num_recomputed

    def options_of(self, rank: RankRecord) -> dict[str, str]:
        """The options of its layers in the rank's chain."""
        return self._of(rank).options or {}

    def offloaded_by(self, rank: RankRecord) -> int:
        """Layers of which a rank of the stage keeps what it needs on the host."""
        return self._of(rank).num_offloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecord:
    """A pool, and what the plan makes of it.

    `layer_share` is the share of all passes of microbatches through layers that it runs, `busy`
    that of the step in which its devices in use work on microbatches.
    """

    pool: int
    device_kind: str
    num_devices: int
    devices_used: int
    layer_share: float
    busy: float
    peak_memory_bytes: float
    memory_limit_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BusiestRank:
    """What ends a step on several pools: the busiest rank, its pool and its kind."""

    pool: int
    device_kind: str
    chain: int
    rank: int
    resource: str  # "compute" or "memory"
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A plan considered and not chosen, and by how much it is slower.

    `lost_s` says by part of the step (as `time_by_part_s`) what it takes more than the best plan,
    less where negative; the parts add up to the difference. `reason` says why to take it
    nevertheless, of the simpler plan where predictions do not tell the two apart; `published` who
    ran the layout, of which model and on what, of the one that people run. Of several pools
    `layout` is "alone", "across" or "beside", and `pools` are those it uses, in the order of the
    pipeline.
    """

    layout: str | None = None
    pools: tuple[int, ...] = field(default=(), metadata={RARE: True})
    device_kinds: tuple[str, ...] = field(default=(), metadata={RARE: True})
    parallelism: Parallelism
    micro_batch: int
    schedule: str = DEFAULT_SCHEDULE
    num_recomputed: int | None = None
    devices_used: int | None = None
    step_time_s: float
    slowdown: float
    peak_memory_bytes: float | None = None
    lost_s: dict[str, float] | None = None
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
class ModelPlanResult(StepDocument):
    """Plan, bound and predicted step of a model on a cluster. Times in seconds, sizes in bytes.

    `step_time_low_s` and `step_time_high_s` hold nine of ten measured steps. `lower_bound_s` and
    `gap` are about every plan that the request admits; `left_open` says what ended search and proof
    where there is a gap, `interrupted` that it was Ctrl-C, no time limit. Where no schedule is
    named, no plan with one stage per rank is faster than `lower_bound_one_stage_s`, which is
    never above the plan's own step. Where layers branch, no plan cut from their order in
    `stages` is faster than `lower_bound_one_order_s`; `lower_bound_s` holds for other orders,
    too. `time_by_part_s` says where the step of the rank that ends it goes; compute, recompute,
    tensor, context, expert, data, transfers, bubble, optimizer, overhead add up to it.

    `stages` are in pipeline order, `ranks` has an entry for each rank of each chain of like
    replicas, with all of its stages. Under the schedule "searched" `order` is what a search found
    (for all chains), and `named_step_time_s` the
    step of the same stages in the order of the family that it began with. `room_bytes` is what
    ranks may hold under a schedule that orders by it.

    One pool is the special case with one chain: `peak_memory_bytes_per_rank` says again what one
    device of each rank needs, and memory of a device of the
    fullest rank is in three figures as in an estimate, by the account of the framework named. If
    its layout is `published`, that says by whom and of which run. Of a plan that no framework runs,
    `launchable` is the fastest one found that some framework does. On a cluster of several pools
    `layout` says how they are used: "across", stages on several; "beside", replicas on several
    with their own number of microbatches; "woven", chains in ways of their own; or one pool
    "alone". Then `groups` are the pools, `parallelism.data` counts the replicas of all, `fits` says
    whether each rank has room on its own kind of device, and `binding` is the busiest rank.

    Without a plan `binding` says what cannot fit. `relaxations` would each make a plan fit,
    `reasons` say what the plan's choices buy, where that was asked.
    """

    kind: str = "model-plan"
    status: Status
    objective: str = "step_time_s"
    fits: bool | None = None
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    lower_bound_s: float | None = None
    bound_kind: BoundKind | None = None
    gap: float | None = None
    left_open: str | None = None
    lower_bound_one_stage_s: float | None = None
    lower_bound_one_order_s: float | None = None
    time_per_sample_s: float | None = None
    pipeline_s: float | None = None
    bubble_of_makespan: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_device: float | None = None
    mfu: float | None = None
    exposed_gradient_sync_s: float | None = None
    optimizer_s: float | None = None
    layout: str | None = None
    parallelism: Parallelism | None = None
    schedule: str | None = None
    order: SearchedOrder | None = None
    room_bytes: float | None = field(default=None, metadata={RARE: True})
    named_step_time_s: float | None = None
    micro_batch: int | None = None
    devices_used: int | None = None
    num_stages: int | None = None
    groups: tuple[PoolRecord, ...] = field(default=(), metadata={RARE: True})
    stages: tuple[ModelStageRecord, ...] = ()
    ranks: tuple[RankRecord, ...] = ()
    time_by_part_s: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes_per_rank: tuple[float, ...] | None = None
    host_bytes_per_rank: tuple[float, ...] = field(default=(), metadata={RARE: True})
    memory_limit_bytes: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    published: str | None = field(default=None, metadata={RARE: True})
    launchable: Launchable | None = None
    binding: Binding | BusiestRank | None = None
    relaxations: tuple[Relaxation, ...] = ()
    reasons: Reasons | None = None
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    assumptions: dict[str, str] = field(default_factory=dict)
    considered: int = 0
    pruned: int = 0
    not_reached: int = 0
    search_s: float | None = None
    request: PlanRequest

    @property
    def on_pools(self) -> bool:
        """Whether its cluster has several pools, whether a plan was found or not."""
        where = self.request.cluster
        pools = None if where is None else where.content.get("pools")
        return isinstance(pools, list) and len(pools) > 1

    @property
    def ends(self) -> tuple[int, int] | None:
        """Chain and rank that end the step, where a plan on several pools says so."""
        last = self.binding
        return (last.chain, last.rank) if isinstance(last, BusiestRank) else None

    @property
    def peak_memory_bytes(self) -> float | None:
        """What the fullest device needs."""
        return max((rank.memory_bytes for rank in self.ranks), default=None)

    def launched_by(self) -> tuple[str, ...]:
        """The frameworks that run the plan as it is; none runs a measured profile."""
        if self.request.model.kind == "profile" or not self.stages:
            return ()
        question = call_of(self.request).question
        return able_targets(planned_job(self, question.config, question.cluster))


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
    from trainwright.planning.search.plans import host_bytes_of_ranks  # a start without a search

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
    document: ModelPlanResult,
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
    if named is None:
        return None
    return predict_step(named, profile, question.cluster, **question.step_terms).step_time_s


def in_named_order(plan: Plan) -> Plan | None:
    """The plan in the order of the family that its own began with; None without one."""
    if plan.order is None:
        return None
    with inside("order"):
        family = family_named(plan.order.family).name
    return replace(plan, schedule=family, order=None)


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
            **plan_view.measured_words(
                question.model, profile, question.cluster, question.overheads
            ),
            "schedule": schedule_in_words(plan),
            "overlap": plan_view.overlap_in_words(
                question.settings.overlap, question.settings.recipe
            ),
        }
    recipe, overlap = question.settings.recipe, question.settings.overlap
    found = estimate_words(question, {0: profile}, spread)
    found["schedule"] = schedule_in_words(plan)
    found["memory"] = plan_view.memory_assumption(question.cluster.accelerator, question.overheads)
    if plan.parallelism is not None and plan.parallelism.expert > 1:
        found["dispatch"] = recipe.dispatch_in_words
    if overlap != DEFAULT_OVERLAP:
        found["overlap"] = plan_view.overlap_in_words(overlap, recipe)
    found |= plan_view.to_fit_in_words(recipe)
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
        "mfu": plan_view.mfu_in_words(devices, numbers),
        "precision": str(first.precision),
        "kernels": ", ".join(first.kernels),
        "optimizer": (
            _USUAL_STATE
            if is_usual
            else plan_view.state_in_words(question.settings.recipe, numbers)
        ),
    }


def schedule_in_words(plan: Plan) -> str:
    """What was simulated, and where a searched order began."""
    if plan.order is None:
        return f"{plan.schedule}, simulated"
    return f"{plan.schedule}, simulated: an order found from {plan.order.family}"


# The priced plan on several pools, as a document carries it
# ----------------------------------------------------------


def with_plan_on_pools(
    document: ModelPlanResult, question: ModelQuestion, found: MixedPriced
) -> ModelPlanResult:
    """The document with all that follows from its plan."""
    from trainwright.planning.search.pools import host_bytes_by_rank

    plan, profiles, step = found.plan, found.profiles, found.step
    used = sorted({pool for chain in step.chains for pool in chain.pools})
    spread = step_range(question, plan, used)
    if spread is None:
        pool = used[0]
        own = question.cluster.alone(pool)
        words = plan_view.measured_words(question.model, profiles[pool], own, question.overheads)
    else:
        words = estimate_words(question, profiles, spread)
    ranks = tuple(_ranks_on_pools(question, plan, step))
    binding = _binding(ranks, step)
    parts_s = chains_by_part_s(plan, profiles, question.cluster, step)
    devices = [question.cluster.pools[pool].accelerator for pool in used]
    held = (
        f"{each.name}: {plan_view.memory_assumption(each, question.overheads)}" for each in devices
    )
    return replace(
        document,
        **step_keys(document, plan, step, spread),
        fits=all(rank.margin_bytes >= 0 for rank in ranks),
        pipeline_s=step.pipeline_s,
        layout=layout_of(step),
        groups=tuple(_groups(question.cluster, plan, step, ranks)),
        stages=tuple(_stages(question.cluster, plan, profiles, ranks)),
        ranks=ranks,
        binding=binding,
        order=plan.order,
        named_step_time_s=_named_step_on_pools_s(question, plan),
        host_bytes_per_rank=host_bytes_by_rank(MixedShelf.of(question), found),
        time_by_part_s=parts_s[binding.chain][binding.rank],
        assumptions={
            **words,
            "memory": "; ".join(dict.fromkeys(held)),
            "schedule": f"{schedule_in_words(plan)} for each chain of like replicas",
        },
    )


def _named_step_on_pools_s(question: ModelQuestion, plan: Plan) -> float | None:
    from trainwright.planning.reasons.why import priced_on_pools

    named = in_named_order(plan)
    if named is None:
        return None
    return priced_on_pools(MixedShelf.of(question), named).step.step_time_s


def layout_of(step: MixedPrediction) -> str:
    """How the plan uses its pools; "woven" where chains cross pools in ways of their own."""
    pools = {pool for chain in step.chains for pool in chain.pools}
    if len(pools) == 1:
        return "alone"
    if all(len(set(chain.pools)) == 1 for chain in step.chains):
        return "beside"
    return "across" if len(step.chains) == 1 else "woven"


def _ranks_on_pools(
    question: ModelQuestion, plan: Plan, step: MixedPrediction
) -> Iterator[RankRecord]:
    shelf = MixedShelf.of(question)
    for number, chain in enumerate(step.chains):
        for rank, (pool, found) in enumerate(zip(chain.pools, chain.step.stages, strict=True)):
            place = {"chain": number, "rank": rank, "pool": pool}
            place |= {"count": chain.count, "num_microbatches": chain.num_microbatches}
            yield rank_record(shelf.alone(pool), plan, found, step.step_time_s, **place)


def _groups(
    cluster: Cluster, plan: Plan, step: MixedPrediction, ranks: Sequence[RankRecord]
) -> Iterator[PoolRecord]:
    placement = MixedPlacement(plan=plan, cluster=cluster)
    lengths = [0] * len(step.chains[0].pools)
    for stage, rank in zip(plan.stages, placement.rank_of_stage, strict=True):
        lengths[rank] += len(stage.layers)
    passes = sum(lengths) * plan.num_microbatches
    for index, (pool, used) in enumerate(zip(cluster.pools, placement.devices_used, strict=True)):
        own = [rank for rank in ranks if rank.pool == index]
        replicas = sum(rank.count for rank in own)
        yield PoolRecord(
            pool=index,
            device_kind=pool.accelerator.name,
            num_devices=pool.num_devices,
            devices_used=used,
            layer_share=sum(r.count * r.num_microbatches * lengths[r.rank] for r in own) / passes,
            busy=sum(r.count * r.busy for r in own) / replicas if replicas else 0.0,
            peak_memory_bytes=max((rank.memory_bytes for rank in own), default=0.0),
            memory_limit_bytes=pool.accelerator.usable_bytes,
        )


def _stages(
    cluster: Cluster, plan: Plan, profiles: Mapping[int, Profile], ranks: Sequence[RankRecord]
) -> Iterator[ModelStageRecord]:
    placement = MixedPlacement(plan=plan, cluster=cluster)
    owner, shares = placement.rank_of_stage, _shares_of_ranks(placement, profiles)
    for number, (stage, rank) in enumerate(zip(plan.stages, owner, strict=True)):
        own = [each for each in ranks if each.rank == rank]
        times_s = [
            (each.forward_s + each.backward_s) * shares[each.chain][number] / each.count
            for each in own
        ]
        replicas = tuple(_replicas(cluster, plan, stage, profiles))
        yield ModelStageRecord(
            layers=stage.layers,
            data_parallel=stage.data_parallel,
            tensor_parallel=stage.replicas[0].tensor_parallel,
            num_recomputed=max(each.num_recomputed for each in replicas),
            time_per_sample_s=_together_s(times_s),
            memory_bytes=max(each.memory_bytes for each in own),
            rank=rank,
            replicas=replicas,
        )


def _together_s(times_s: Sequence[float]) -> float:
    """Seconds per microbatch of chains side by side that take so many each."""
    return 1 / sum(1 / time_s for time_s in times_s) if min(times_s) > 0 else 0.0


def _shares_of_ranks(
    placement: MixedPlacement, profiles: Mapping[int, Profile]
) -> list[list[float]]:
    """By chain and stage, what part of the work of its rank the stage is."""
    found, owner = [], placement.rank_of_stage
    for chain in placement.chains:
        plan = as_run_by(placement.plan, chain)
        rows = {pool: chosen_rows(plan, profile) for pool, profile in profiles.items()}
        own_s = [
            float(profiles[group.pool].costs.duration_s[rows[group.pool][number]].sum())
            for number, group in enumerate(chain.groups)
        ]
        of_rank_s = [0.0] * (max(owner) + 1)
        for rank, time_s in zip(owner, own_s, strict=True):
            of_rank_s[rank] += time_s
        found.append(
            [
                time_s / of_rank_s[rank] if of_rank_s[rank] > 0 else 0.0
                for rank, time_s in zip(owner, own_s, strict=True)
            ]
        )
    return found


def _replicas(
    cluster: Cluster, plan: Plan, stage: Stage, profiles: Mapping[int, Profile]
) -> Iterator[ReplicaRecord]:
    for group in stage.replicas:
        options = group.options or stage.options
        modes = _modes(profiles[group.pool])
        yield ReplicaRecord(
            pool=group.pool,
            device_kind=cluster.pools[group.pool].accelerator.name,
            count=group.count,
            tensor_parallel=group.tensor_parallel,
            num_microbatches=round(plan.num_microbatches * group.share / group.count),
            options={
                str(layer): option for layer, option in zip(stage.layers, options, strict=True)
            },
            num_recomputed=sum(modes[option].repeats for option in options),
            num_offloaded=sum(modes[option] is Recompute.OFFLOAD for option in options),
        )


def _modes(profile: Profile) -> dict[str, Recompute]:
    return dict(zip(profile.costs.option_ids, profile.costs.recompute, strict=True))


def _binding(ranks: Sequence[RankRecord], step: MixedPrediction) -> BusiestRank:
    """The busiest rank of the chain that ends last; memory binds where it makes it recompute."""
    own = [rank for rank in ranks if rank.chain == step.slowest]
    found = max(own, key=lambda rank: (rank.busy, -rank.rank))
    full = found.memory_bytes / found.memory_limit_bytes
    repeated = found.recompute_s > 0
    text = f"rank {found.rank} on {found.device_kind} works {found.busy:.1%} of the step"
    if repeated:
        text += f" and recomputes, its memory {full:.1%} full"
    others = [r for r in ranks if r.pool != found.pool]
    if others:
        most = max(others, key=lambda rank: rank.busy)
        text += f"; the busiest {most.device_kind} works {most.busy:.1%}"
    fullest = max(ranks, key=lambda rank: rank.memory_bytes / rank.memory_limit_bytes)
    text += (
        f"; fullest is rank {fullest.rank} on {fullest.device_kind}, "
        f"{format_bytes(fullest.margin_bytes)} free"
    )
    return BusiestRank(
        pool=found.pool,
        device_kind=found.device_kind,
        chain=found.chain,
        rank=found.rank,
        resource="memory" if repeated else "compute",
        description=text,
    )


# The figures of a document about a model, computed again from what it carries
# ----------------------------------------------------------------------------

_SHARED: Final = (
    *("tensor", "pipeline", "data", "context", "expert", "virtual_stages", "state_copies"),
)


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
    size = plan.microbatch_size or 1
    if plan.parallelism is None:
        point = Point(microbatch_size=size, tensor=plan.stages[0].tensor_parallel)
    else:
        point = Point.of(plan.parallelism, size)
    return estimate_profile_of_degrees(
        question.estimator(), question, point, tensor=_tensor_degrees(plan, question)
    )


def microbatch_of(document: ModelPlanResult, question: ModelQuestion) -> int:
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
        yield Fault("schedule", one_of(words, document.schedule))
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
