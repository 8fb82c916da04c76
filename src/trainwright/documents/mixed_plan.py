"""The document of `plan` on a model and a cluster of several kinds of devices."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final

from trainwright.documents.model_plan import (
    ModelPlanResult,
    PlannedStep,
    answer_keys,
    estimate_words,
    in_named_order,
    known_of_others,
    launch_gaps,
    microbatch_of,
    plan_model,
    rank_record,
    schedule_in_words,
    step_keys,
    step_range,
)
from trainwright.documents.plan_view import how_left_open, measured_words, memory_assumption
from trainwright.errors import Fault, InvalidInput, UnsupportedFeature, refuse
from trainwright.options.clusters import refuse_several_pools, resolve_pools, stated_chains
from trainwright.options.inputs import naming_options
from trainwright.options.question import QUESTION_OPTION_OF, call_of, model_call, request_of
from trainwright.options.run import OPTION_OF, configuration_of
from trainwright.options.space import SPANS
from trainwright.options.table import keywords_of
from trainwright.planning.bounds.pools import (
    MixedShelf,
    is_mixable,
    mixed_families,
)
from trainwright.planning.question.layouts import CHAIN
from trainwright.planning.question.question import Point
from trainwright.planning.reasons.why import enough_freedom, priced_on_pools
from trainwright.planning.search.framework import cannot
from trainwright.planning.search.orders import search_in_words, with_searched_orders_on_pools
from trainwright.planning.search.plans import splits_itself
from trainwright.planning.search.pools import host_bytes_by_rank, plan_mixed
from trainwright.plans import Plan, ReplicaGroup, Stage
from trainwright.plans.capability import capability_of
from trainwright.plans.capability_table import Feature
from trainwright.plans.configuration import Configuration
from trainwright.plans.plan import (
    DATA_INSIDE,
    DEFAULT_SCHEDULE,
    Parallelism,
    SearchedOrder,
    mapping_name,
)
from trainwright.plans.prediction import RankRecord
from trainwright.plans.status import BoundKind, Status
from trainwright.profile import Recompute
from trainwright.provenance import RARE
from trainwright.step.account import chains_by_part_s
from trainwright.step.pipeline import placement_of
from trainwright.step.pools import MixedPlacement, as_run_by
from trainwright.step.predict import plan_of, require_legal, shape_of
from trainwright.step.stages import chosen_rows
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trainwright.cluster import Cluster
    from trainwright.execution import Budget
    from trainwright.execution.executor import Crew
    from trainwright.options.clusters import StatedChain
    from trainwright.options.inputs import ModelInput, ProfileInput
    from trainwright.options.option import Options
    from trainwright.options.question import ModelCall
    from trainwright.planning.question.question import ModelQuestion
    from trainwright.planning.search.pools import MixedPriced
    from trainwright.plans.prediction import MixedPrediction
    from trainwright.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedReplicaRecord:
    """`count` replicas of a stage in one pool, each of `num_microbatches` per step.

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
class MixedStageRecord:
    """One (virtual) stage; layers are indices of the model's layer graph.

    As on one pool `data_parallel` counts all replicas; `time_per_sample_s` is the stage's share of
    the time of its ranks, per microbatch of any replica, `memory_bytes` what the fullest of these
    ranks needs, and `num_recomputed` the most that replicas recompute.
    """

    layers: tuple[int, ...]
    data_parallel: int
    tensor_parallel: int
    num_recomputed: int
    time_per_sample_s: float
    memory_bytes: float
    rank: int
    replicas: tuple[MixedReplicaRecord, ...]

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if not self.layers:
            yield Fault("layers", "must have at least 1 entry, got 0")
        if not self.replicas:
            yield Fault("replicas", "must have at least 1 entry, got 0")

    def _of(self, rank: RankRecord) -> MixedReplicaRecord:
        own = (rank.pool, rank.num_microbatches)
        return next(each for each in self.replicas if (each.pool, each.num_microbatches) == own)

    def recomputed_by(self, rank: RankRecord) -> int:
        """Layers that a rank of the stage recomputes, in its chain."""
        return self._of(rank).num_recomputed

    def options_of(self, rank: RankRecord) -> dict[str, str]:
        """The options of its layers in the rank's chain."""
        return self._of(rank).options

    def offloaded_by(self, rank: RankRecord) -> int:
        """Layers that leave on the host what hides, in a rank's chain."""
        return self._of(rank).num_offloaded

    @property
    def options(self) -> dict[str, str]:
        """The options of the first replicas; those of others may differ where chains do."""
        return self.replicas[0].options


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedGroupRecord:
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
class MixedBinding:
    """What ends the step: the busiest rank, its pool and its kind."""

    pool: int
    device_kind: str
    chain: int
    rank: int
    resource: str  # "compute" or "memory"
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedAlternative:
    """The plan found for another way to use the pools, and by how much it is slower.

    `layout` is "alone", "across" or "beside", `pools` those it uses, in the order of the pipeline.
    """

    num_recomputed: ClassVar[None] = None
    peak_memory_bytes: ClassVar[None] = None
    lost_s: ClassVar[dict[str, float]] = {}

    layout: str
    pools: tuple[int, ...]
    device_kinds: tuple[str, ...]
    parallelism: Parallelism
    micro_batch: int
    schedule: str
    devices_used: int
    step_time_s: float
    slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlanResult(PlannedStep):
    """Plan, bound and predicted step of a model on several pools. Seconds and bytes.

    `layout` says how the pools are used: "across", stages on several; "beside", replicas on several
    with their own number of microbatches; or one pool "alone". `parallelism.data` counts the
    replicas of all pools. Under the schedule "searched" `order` is that of all chains, and
    `named_step_time_s` the step in the order of the family that it began with.
    """

    # What only a plan on one pool has; whoever shows plans need not ask on how many it is.
    lower_bound_one_stage_s: ClassVar[None] = None
    lower_bound_one_order_s: ClassVar[None] = None
    bubble_of_makespan: ClassVar[None] = None

    kind: str = "mixed-plan"
    fits: bool = False
    pipeline_s: float | None = None
    layout: str | None = None
    groups: tuple[MixedGroupRecord, ...] = ()
    stages: tuple[MixedStageRecord, ...] = ()
    binding: MixedBinding | None = None
    order: SearchedOrder | None = field(default=None, metadata={RARE: True})
    named_step_time_s: float | None = field(default=None, metadata={RARE: True})
    room_bytes: ClassVar[None] = None
    host_bytes_per_rank: tuple[float, ...] = field(default=(), metadata={RARE: True})
    alternatives: tuple[MixedAlternative, ...] = ()


# The priced plan on several pools, as a document carries it, and back
# --------------------------------------------------------------------


def with_mixed_plan(
    document: MixedPlanResult, question: ModelQuestion, found: MixedPriced
) -> MixedPlanResult:
    """The document with all that follows from its plan."""
    plan, profiles, step = found.plan, found.profiles, found.step
    used = sorted({pool for chain in step.chains for pool in chain.pools})
    spread = step_range(question, plan, used)
    if spread is None:
        pool = used[0]
        own = question.cluster.alone(pool)
        words = measured_words(question.model, profiles[pool], own, question.overheads)
    else:
        words = estimate_words(question, profiles, spread)
    ranks = tuple(_ranks(question, plan, step))
    binding = _binding(ranks, step)
    parts_s = chains_by_part_s(plan, profiles, question.cluster, step)
    devices = [question.cluster.pools[pool].accelerator for pool in used]
    held = (f"{each.name}: {memory_assumption(each, question.overheads)}" for each in devices)
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
        named_step_time_s=_named_step_s(question, plan),
        host_bytes_per_rank=host_bytes_by_rank(MixedShelf.of(question), found),
        time_by_part_s=parts_s[binding.chain][binding.rank],
        assumptions={
            **words,
            "memory": "; ".join(dict.fromkeys(held)),
            "schedule": f"{schedule_in_words(plan)} for each chain of like replicas",
        },
    )


def _named_step_s(question: ModelQuestion, plan: Plan) -> float | None:
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


def mixed_alternatives(
    question: ModelQuestion, priced: Sequence[MixedPriced]
) -> Iterator[MixedAlternative]:
    """The plans of the other shapes, and what they lose to the first."""
    for other in priced[1:]:
        degrees, size = other.plan.parallelism, other.plan.microbatch_size
        assert degrees is not None, "all stages share their degrees"
        assert size is not None, "a model's plan has a microbatch"
        pools = question.cluster.pools
        yield MixedAlternative(
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


def _ranks(question: ModelQuestion, plan: Plan, step: MixedPrediction) -> Iterator[RankRecord]:
    shelf = MixedShelf.of(question)
    for number, chain in enumerate(step.chains):
        for rank, (pool, found) in enumerate(zip(chain.pools, chain.step.stages, strict=True)):
            place = {"chain": number, "rank": rank, "pool": pool}
            place |= {"count": chain.count, "num_microbatches": chain.num_microbatches}
            yield rank_record(shelf.alone(pool), plan, found, step.step_time_s, **place)


def _groups(
    cluster: Cluster, plan: Plan, step: MixedPrediction, ranks: Sequence[RankRecord]
) -> Iterator[MixedGroupRecord]:
    placement = MixedPlacement(plan=plan, cluster=cluster)
    lengths = [0] * len(step.chains[0].pools)
    for stage, rank in zip(plan.stages, placement.rank_of_stage, strict=True):
        lengths[rank] += len(stage.layers)
    passes = sum(lengths) * plan.num_microbatches
    for index, (pool, used) in enumerate(zip(cluster.pools, placement.devices_used, strict=True)):
        own = [rank for rank in ranks if rank.pool == index]
        replicas = sum(rank.count for rank in own)
        yield MixedGroupRecord(
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
) -> Iterator[MixedStageRecord]:
    placement = MixedPlacement(plan=plan, cluster=cluster)
    owner, shares = placement.rank_of_stage, _shares_of_ranks(placement, profiles)
    for number, (stage, rank) in enumerate(zip(plan.stages, owner, strict=True)):
        own = [each for each in ranks if each.rank == rank]
        times_s = [
            (each.forward_s + each.backward_s) * shares[each.chain][number] / each.count
            for each in own
        ]
        replicas = tuple(_replicas(cluster, plan, stage, profiles))
        yield MixedStageRecord(
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
) -> Iterator[MixedReplicaRecord]:
    for group in stage.replicas:
        options = group.options or stage.options
        modes = _modes(profiles[group.pool])
        yield MixedReplicaRecord(
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


def priced_parts(document: MixedPlanResult) -> tuple[dict[str, float], ...]:
    """Where the step of every rank goes, in the order of the document's ranks."""
    shelf, plan = planned_mixed(document)
    found = priced_on_pools(shelf, plan)
    chains = chains_by_part_s(plan, found.profiles, shelf.cluster, found.step)
    return tuple(parts_s for chain in chains for parts_s in chain)


def _modes(profile: Profile) -> dict[str, Recompute]:
    return dict(zip(profile.costs.option_ids, profile.costs.recompute, strict=True))


def _binding(ranks: Sequence[RankRecord], step: MixedPrediction) -> MixedBinding:
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
    return MixedBinding(
        pool=found.pool,
        device_kind=found.device_kind,
        chain=found.chain,
        rank=found.rank,
        resource="memory" if repeated else "compute",
        description=text,
    )


# `plan` on a model and a cluster of several pools: the best plan, as a document, and back
# ----------------------------------------------------------------------------------------


def plan_on_cluster(
    call: ModelCall, budget: Budget, *, warnings: Sequence[str] = (), crew: Crew | None = None
) -> ModelPlanResult | MixedPlanResult:
    """The best plan on the cluster's one pool, or on its several pools; a `crew` helps."""
    if len(call.question.cluster.pools) == 1:
        return plan_model(call, budget, warnings=warnings, crew=crew)
    return plan_mixed_model(call, budget, warnings=warnings, crew=crew)


def plan_mixed_model(
    call: ModelCall, budget: Budget, *, warnings: Sequence[str] = (), crew: Crew | None = None
) -> MixedPlanResult:
    """Search each pool alone and all ways to use several; a `crew` helps."""
    if call.per_stage_degrees:
        raise UnsupportedFeature(
            "per-stage-degrees: stages on several pools share their degrees",
            alternative="leave it out, or give a cluster of one pool",
        )
    question, started_s = call.question, budget.cpu_s
    with naming_options(QUESTION_OPTION_OF):
        outcome = plan_mixed(question, budget, crew=crew)
        if question.allowed.searches_orders:
            outcome = with_searched_orders_on_pools(question, outcome, budget)
    said = search_in_words(question, outcome, was_stopped=budget.stopped)
    document = MixedPlanResult(
        **answer_keys(call, outcome, budget), warnings=(*warnings, *_warnings(question), *said)
    )
    if outcome.priced:
        best = outcome.priced[0]
        # What a framework runs may have been searched mode by mode; the document knows all modes.
        best = replace(best, profiles=MixedShelf.of(question).profiles_of(best.plan))
        left_open = how_left_open(call, outcome, budget)
        document = replace(with_mixed_plan(document, question, best), left_open=left_open)
        gaps = launch_gaps(document, question)
        document = replace(
            document,
            warnings=(*document.warnings, *gaps),
            alternatives=tuple(mixed_alternatives(question, outcome.priced[: 1 + call.top])),
        )
    elif not budget.stopped:
        document = replace(document, relaxations=tuple(enough_freedom(question, budget)))
    return replace(document, search_s=budget.cpu_s - started_s)


# `estimate` of a stated run on several pools: a plan that nobody searched
# ------------------------------------------------------------------------


def estimate_on_pools(
    given: ModelInput | ProfileInput, options: Options, *, warnings: Sequence[str] = ()
) -> MixedPlanResult:
    """The document of the plan that the options of `estimate` state, with nothing considered.

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
        run, chains = _stated(options, where, chains)
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
    shelf = MixedShelf.of(call.question)
    with naming_options({**OPTION_OF, **_OF_POOLS}):
        _refuse_illegal(call.question, run, chains)
        found = priced_on_pools(shelf, _plan_of_chains(shelf, run, chains))
    document = MixedPlanResult(
        status=Status.GAP,
        lower_bound_s=0.0,
        bound_kind=BoundKind.PROVED,
        request=request_of(call, time_limit_s=None),
        warnings=(*given.warnings, *warnings, *call.warnings),
    )
    return with_mixed_plan(document, call.question, found)


_ONE_WAY: Final = (
    f"mapping, state-copies: several pools are used in the order {mapping_name(DATA_INSIDE)} and "
    "with one copy of sharded state only"
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
    usual = Configuration(
        parallelism=run.parallelism,
        microbatch_size=run.microbatch_size,
        global_batch=run.global_batch,
        sequence_length=run.sequence_length,
    )
    for name in _USUAL:
        if getattr(run, name) != getattr(usual, name):
            refuse_several_pools(cluster, OPTION_OF[name], alternative="leave it out")
    if run.parallelism.sequence_parallel != (run.parallelism.tensor > 1):
        refuse_several_pools(cluster, "sequence-parallel", alternative="leave it out")
    total = run.global_batch // run.microbatch_size
    if first.count is None:
        chains = (replace(first, count=data, num_microbatches=total // data),)
    shared = sum((chain.count or 0) * (chain.num_microbatches or 0) for chain in chains)
    if shared * run.microbatch_size != run.global_batch:
        wanted = f"must share out the {run.global_batch} sequences of the batch"
        raise InvalidInput.of("pool", f"{wanted}, got {shared} x {run.microbatch_size}")
    return run, chains


_USUAL: Final = (
    *("recompute_modules", "fused_attention", "fused_cross_entropy", "vocabulary_multiple"),
)


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


def _warnings(question: ModelQuestion) -> Iterator[str]:
    """What was left out where several pools are used."""
    why = None
    if (framework := question.allowed.framework) is not None:
        own = capability_of(framework)
        if not own.can(Feature.SEVERAL_KINDS):
            why = f"framework: {cannot(own, Feature.SEVERAL_KINDS)}"
        elif splits_itself(question.allowed):
            yield f"framework: no pipeline from pool to pool: {cannot(own, Feature.UNEVEN_STAGES)}"
    if why is None and not is_mixable(question.allowed):
        why = _ONE_WAY
    if why is None and not mixed_families(question):
        why = f"schedule: several pools are used under {', '.join(CHAIN)} only"
    if why is not None:
        yield f"{why}; each pool was planned alone"


def remake_mixed_plan(document: MixedPlanResult) -> MixedPlanResult:
    """The document with every figure that follows from its plan, if it has one.

    Raises `InvalidInput` where model or cluster cannot be read or the plan breaks a rule.
    """
    if not document.stages:
        return document
    shelf, plan = planned_mixed(document)
    found = priced_on_pools(shelf, plan)
    computed = with_mixed_plan(document, shelf.question, found)
    return replace(computed, **known_of_others(document, found.step.step_time_s))


def planned_mixed(document: MixedPlanResult) -> tuple[MixedShelf, Plan]:
    """The question of a document that has stages, and its plan.

    Raises `InvalidInput` where model or cluster cannot be read or the plan does not suit them.
    """
    shelf = MixedShelf.of(call_of(document.request).question)
    return shelf, _plan_in(document, shelf.question)


def step_on_pools_s(question: ModelQuestion, plan: Plan, cluster: Cluster) -> float:
    """The step of the plan on another cluster with such pools, in seconds."""
    shelf = MixedShelf.of(replace(question, cluster=cluster))
    return priced_on_pools(shelf, plan).step.step_time_s


def _plan_in(document: MixedPlanResult, question: ModelQuestion) -> Plan:
    size = microbatch_of(document, question)
    total, pools = question.workload.global_batch // size, len(question.cluster.pools)
    stages = []
    for number, stage in enumerate(document.stages):
        groups = []
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
