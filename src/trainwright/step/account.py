"""Where the time of a step goes, in parts that add up to it.

The busiest rank works m·(F + B) seconds; what the pipeline takes beyond that is waiting: for
transfers (what the pipeline would gain were they free) and for other ranks, the bubble. After it
come gradients that did not hide, the optimizer, and what every step takes once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright.cluster import Cluster, NetworkLevel
from trainwright.cluster.accelerator import Circumstance
from trainwright.errors import UnsupportedFeature
from trainwright.plans import Plan, StepPrediction
from trainwright.plans.configuration import (
    DEFAULT_OVERLAP,
    NO_OVERHEADS,
    Configuration,
    MemoryOverheads,
    Overlap,
)
from trainwright.plans.lowered import Timeline
from trainwright.plans.prediction import AxisUse, LevelUse, MixedPrediction, StagePrediction
from trainwright.plans.schedule import Schedule, ScheduleMemory
from trainwright.profile import CostTable, Profile, Recompute, TimeKind
from trainwright.scheduling.simulate import simulate
from trainwright.step import predict
from trainwright.step.memory import memory_of_actions, rank_peaks
from trainwright.step.pipeline import schedule_of
from trainwright.step.pools import MixedPlacement, as_run_by
from trainwright.step.stages import Placement, chosen_rows, replica_hops, stages_on

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats
    from trainwright.model import TransformerConfig

    Crossing = tuple[str, int]  # name of the outermost level, ranks that meet


# Which network level carries what a step communicates
# ----------------------------------------------------
# Times are those of the busiest rank, as `StepPrediction.communication` has them; the levels follow
# from where its groups lie on the cluster.


def network_use(plan: Plan, cluster: Cluster, step: StepPrediction) -> tuple[LevelUse, ...]:
    """Every level of the cluster; empty where the step does not say what it communicates.

    Raises `UnsupportedFeature` for a cluster of several pools.
    """
    if not step.communication:
        return ()
    levels = cluster.pool_of().levels
    crossings = _crossings(Placement(plan=plan, pool=cluster.pool_of()))
    return tuple(_level_use(level, crossings, step) for level in levels)


def _level_use(
    level: NetworkLevel, crossings: dict[str, Crossing], step: StepPrediction
) -> LevelUse:
    axes = []
    for part in step.communication:
        name, ranks = crossings.get(part.kind, ("", 0))
        if name == level.name and part.exposed_s + part.hidden_s > 0:
            axes.append(
                AxisUse(
                    kind=part.kind, ranks=ranks, exposed_s=part.exposed_s, hidden_s=part.hidden_s
                )
            )
    return LevelUse(
        name=level.name,
        size=level.size,
        effective_bytes_per_s=level.effective_bytes_per_s,
        axes=tuple(axes),
    )


def _crossings(placement: Placement) -> dict[str, Crossing]:
    """By purpose, the outermost level its groups cross and how many ranks a group has."""
    degrees, levels = placement.degrees, placement.pool.levels
    stage = placement.plan.stages[0]
    own = replace(degrees, tensor=stage.tensor_parallel, data=stage.data_parallel)
    hops = placement.axis_hops(own.tensor)
    hops["gradients"], _ = replica_hops(levels, replace(own, state_copies=1))
    hops["parameters"], _ = replica_hops(levels, own)
    ranks = {
        "tensor": own.tensor,
        "context": own.context,
        "expert": own.expert,
        "gradients": own.data * own.context,
        "parameters": own.data // own.state_copies * own.context,
    }
    found = {kind: (hops[kind][-1].level.name, n) for kind, n in ranks.items() if hops[kind]}
    between = {
        level.name
        for sender, receiver in pairwise(range(len(placement.plan.stages)))
        if (level := placement.level_between(sender, receiver)) is not None
    }
    outermost = [level.name for level in levels if level.name in between]
    if outermost:
        found["pipeline"] = (outermost[-1], degrees.pipeline)
    return found


# How far a predicted step may be off, as the range that holds nine of ten measured ones
# --------------------------------------------------------------------------------------
# Without a calibration the range is an assumption: a roofline with default efficiencies leaves out
# host time, stragglers and imperfect kernels, so it errs on the fast side.


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """A measured step takes between `low_ratio` and `high_ratio` times the predicted one."""

    low_ratio: float
    high_ratio: float
    source: str


_UNCALIBRATED: Final = "assumed: default efficiencies, not fitted to this accelerator and software"

_WHERE: Final = {
    Circumstance.HOST_BOUND: "where hosts, not devices, set the pace",
    Circumstance.SHARED_NODES: "where replicas of several nodes share their network",
    Circumstance.EXPERTS: "where tokens are dispatched to experts",
}


def time_range(
    model: TransformerConfig, cluster: Cluster, configuration: Configuration
) -> TimeRange:
    """The range of the cluster's device for such a run, fitted with its efficiencies or assumed."""
    device = cluster.accelerator
    held = circumstances(model, cluster, configuration)
    spread = next((spread for spread in device.step_spreads if spread.when in held), None)
    fitted = device.calibration
    source = _UNCALIBRATED if fitted is None else f"{fitted.origin}: {fitted.source}"
    if spread is not None:  # the source tells the range of a run without the circumstance
        own = f"{spread.low_ratio:.2f} to {spread.high_ratio:.2f}"
        source += f"; {own} times {_WHERE[spread.when]}"
    return TimeRange(
        low_ratio=device.step_low_ratio if spread is None else spread.low_ratio,
        high_ratio=device.step_high_ratio if spread is None else spread.high_ratio,
        source=source,
    )


def circumstances(
    model: TransformerConfig, cluster: Cluster, configuration: Configuration
) -> frozenset[Circumstance]:
    """What holds of a run that makes steps scatter."""
    degrees, node = configuration.parallelism, cluster.pools[0].devices_per_node
    held = set()
    spans_nodes = degrees.num_devices > node
    apart = degrees.tensor * degrees.context  # replicas, one from the next
    if degrees.adjacent_devices < degrees.devices_per_rank:
        apart *= degrees.pipeline
    if spans_nodes and degrees.data > 1 and apart < node:
        held.add(Circumstance.SHARED_NODES)
    if model.experts is not None:
        held.add(Circumstance.EXPERTS)
    if _is_host_bound(model, cluster, configuration):
        held.add(Circumstance.HOST_BOUND)
    return frozenset(held)


# Multiply-adds of a block's products for each token and squared width, as of a GPT, times two.
_BLOCK_FLOPS: Final = 24
# Tests of megatron-core and small layouts of nanotron scatter below, training runs above.
_HOST_SHARE: Final = 0.25


def _is_host_bound(
    model: TransformerConfig, cluster: Cluster, configuration: Configuration
) -> bool:
    """Whether the products of a block's forward pass are far shorter than its start by the host."""
    device, degrees = cluster.accelerator, configuration.parallelism
    if device.cores is not None:
        return False
    flops = _BLOCK_FLOPS * model.hidden_size**2 * configuration.tokens / degrees.tensor
    share = device.peak(device.default_precision) * device.efficiency.gemm.max
    return flops / share < _HOST_SHARE * device.host_pass_s


# Where the time of a step goes, in parts that add up to it
# ---------------------------------------------------------


def time_by_part_s(
    plan: Plan, profile: Profile, step: StepPrediction, *, rank_of_stage: Sequence[int]
) -> dict[str, float]:
    """Seconds of the step by part; their sum is the step time.

    `recompute` includes the communication it repeats, which tensor, context and expert then leave
    out; `data` is what data parallelism adds: gradients and parameters that do not hide.
    """
    return _parts_of_rank_s(plan, profile, step, rank_of_stage, _busiest(plan, step))


def ranks_by_part_s(
    plan: Plan, profile: Profile, step: StepPrediction, *, rank_of_stage: Sequence[int]
) -> tuple[dict[str, float], ...]:
    """The same for every pipeline rank: each fills the step, those that work less wait longer.

    Synchronisation inside microbatches (ZeRO 2 and 3) is known of the busiest rank; that of the
    others counts as compute.
    """
    return tuple(
        _parts_of_rank_s(plan, profile, step, rank_of_stage, rank)
        for rank in range(len(step.stages))
    )


def chains_by_part_s(
    plan: Plan, profiles: Mapping[int, Profile], cluster: Cluster, step: MixedPrediction
) -> tuple[tuple[dict[str, float], ...], ...]:
    """The same for every rank of every chain of a plan on several pools, each filling the step."""
    placement = MixedPlacement(plan=plan, cluster=cluster)
    found = []
    for chain, told in zip(placement.chains, step.chains, strict=True):
        own, m = as_run_by(plan, chain), chain.num_microbatches
        work_s = [rank.forward_s + rank.backward_s for rank in told.step.stages]
        parts = []
        for number, (pool, rank) in enumerate(zip(told.pools, told.step.stages, strict=True)):
            stages = stages_on(placement.rank_of_stage, number)
            repeated_s = _repeated_s(own, profiles[pool], stages)
            is_busiest = work_s.index(max(work_s)) == number
            exposed_s = _exposed_s(told.step)
            parts.append(_parts_s(rank, m, repeated_s, step, exposed_s, is_busiest=is_busiest))
        found.append(tuple(parts))
    return tuple(found)


def _parts_of_rank_s(
    plan: Plan, profile: Profile, step: StepPrediction, rank_of_stage: Sequence[int], number: int
) -> dict[str, float]:
    return _parts_s(
        step.stages[number],
        _microbatches(plan, step)[number],
        _repeated_s(plan, profile, [at for at, own in enumerate(rank_of_stage) if own == number]),
        step,
        _exposed_s(step),
        is_busiest=number == _busiest(plan, step),
    )


def _exposed_s(step: StepPrediction) -> dict[str, float]:
    """Seconds that the busiest rank waits for each purpose of communication."""
    return {part.kind: part.exposed_s for part in step.communication}


def _parts_s(
    rank: StagePrediction,
    m: int,
    repeated_s: NDArray[np.float64],
    step: StepPrediction | MixedPrediction,
    exposed_s: Mapping[str, float],
    *,
    is_busiest: bool,
) -> dict[str, float]:
    """The step of a rank that runs m microbatches; `exposed_s` is of the busiest of its chain."""
    busy_s = m * (rank.forward_s + rank.backward_s)
    shared_s = exposed_s.get("gradients", 0.0) + exposed_s.get("parameters", 0.0)
    inside_s = max(0.0, shared_s - rank.exposed_gradient_sync_s) if is_busiest else 0.0
    waiting_s = max(0.0, step.pipeline_s - busy_s)
    transfers_s = min(waiting_s, exposed_s.get("pipeline", 0.0))
    after_s = step.pipeline_s + step.exposed_gradient_sync_s + step.optimizer_s
    parts_s = {
        "recompute": m * rank.recompute_s,
        "tensor": m * (rank.tensor_parallel_s - repeated_s[TimeKind.TENSOR_PARALLEL]),
        "context": m * (rank.context_parallel_s - repeated_s[TimeKind.CONTEXT_PARALLEL]),
        "expert": m * (rank.expert_parallel_s - repeated_s[TimeKind.EXPERT_PARALLEL]),
        "data": inside_s + step.exposed_gradient_sync_s,
        "transfers": transfers_s,
        "bubble": waiting_s - transfers_s,
        "optimizer": step.optimizer_s,
        "overhead": max(0.0, step.step_time_s - after_s),
    }
    parts_s = {name: max(0.0, spent_s) for name, spent_s in parts_s.items()}
    return {"compute": step.step_time_s - sum(parts_s.values()), **parts_s}


def _busiest(plan: Plan, step: StepPrediction) -> int:
    """The rank that works longest."""
    busy_s = [
        m * (s.forward_s + s.backward_s)
        for m, s in zip(_microbatches(plan, step), step.stages, strict=True)
    ]
    return busy_s.index(max(busy_s))


def _microbatches(plan: Plan, step: StepPrediction) -> list[int]:
    """How many each rank works on."""
    data = plan.parallelism.data if plan.parallelism is not None else None
    return [
        plan.num_microbatches // (data or plan.stages[rank].data_parallel)
        for rank in range(len(step.stages))
    ]


def _repeated_s(plan: Plan, profile: Profile, stages: Sequence[int]) -> NDArray[np.float64]:
    """Seconds by `TimeKind` that recomputation adds to a microbatch in these stages, shape [4]."""
    costs = profile.costs
    added = np.zeros(len(TimeKind))
    if costs.time_by_kind_s is None:
        return added
    rows = chosen_rows(plan, profile)
    for stage in stages:
        for row in rows[stage].tolist():
            if (plain := _without_recompute(costs, row)) is not None:
                added += costs.time_by_kind_s[row] - costs.time_by_kind_s[plain]
    return added


def tells_repeats(plan: Plan, profile: Profile) -> bool:
    """Whether each layer that the plan recomputes has an option that repeats nothing beside it."""
    costs, rows = profile.costs, {int(row) for own in chosen_rows(plan, profile) for row in own}
    repeated = (row for row in rows if costs.recompute[row].repeats)
    return all(_without_recompute(costs, row) is not None for row in repeated)


def on_the_host(profile: Profile) -> Profile:
    """The profile with what each option leaves on the host as all that a device keeps.

    It is what the option that keeps all of the layer has beyond it. Raises `UnsupportedFeature`
    where the profile has no such option.
    """
    costs = profile.costs
    names = ("saved_until_input_grad_bytes", "saved_until_weight_grad_bytes")
    moved: dict[str, Any] = {name: np.zeros(costs.num_rows) for name in names}
    for row, mode in enumerate(costs.recompute):
        if mode is not Recompute.OFFLOAD:
            continue
        if (whole := _keeping_all(costs, row)) is None:
            raise UnsupportedFeature(
                "the profile does not say what an option leaves on the host",
                alternative="an option of the same layer and tensor degree that keeps all tells it",
            )
        for name, own in moved.items():
            held: Floats = getattr(costs, name)
            own[row] = max(0.0, float(held[whole] - held[row]))
    nothing = np.zeros(costs.num_rows)
    return replace(profile, costs=replace(costs, transient_bytes=nothing, **moved))


def host_activations(stages: Iterable[StagePrediction]) -> tuple[float, ...]:
    """Of the ranks of a step priced `on_the_host`, the most that each has there at once."""
    return tuple(stage.memory.activation_bytes + stage.memory.logits_bytes for stage in stages)


def _without_recompute(costs: CostTable, row: int) -> int | None:
    """The same layer at the same degree, nothing repeated; None where it is the row itself."""
    if not costs.recompute[row].repeats:
        return None
    return _keeping_all(costs, row)


def _keeping_all(costs: CostTable, row: int) -> int | None:
    """The same layer at the same degree with all that it keeps on the device; None without one."""
    own = costs.rows_of(int(np.searchsorted(costs.class_offsets, row, side="right")) - 1)
    degree = costs.tensor_parallel[row]
    return next(
        (
            r
            for r in own
            if costs.recompute[r] is Recompute.NONE and costs.tensor_parallel[r] == degree
        ),
        None,
    )


# Every action of a step with its time and memory: what the price of a plan was computed from
# -------------------------------------------------------------------------------------------
# The price needs ends and peaks only, so long steps are extrapolated there. Here all microbatches
# are simulated under the same schedule, stage times and transfers: the last action ends when the
# priced pipeline does, and every rank is as full as its price says.


def step_timeline(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    *,
    overlap: Overlap = DEFAULT_OVERLAP,
    overheads: MemoryOverheads = NO_OVERHEADS,
) -> Timeline:
    """The pipeline of one step; memory includes all that a device keeps, its limit is the device's.

    Costs memory and time in proportion to the actions, 2 · stages · microbatches. Raises like
    `predict_step`, and `UnsupportedFeature` for stages that branch or differ in degrees.
    """
    work, layout = predict.work_of_plan(
        plan, profile, cluster, overlap=overlap, overheads=overheads
    )
    return timeline_of(work, layout)


def timeline_of(work: predict.StepWork, layout: predict.Layout) -> Timeline:
    """What a step does on its ranks, action by action."""
    times = predict.pipeline_times(work, predict.sharing_times(work, layout), layout)
    schedule = schedule_of(layout.shape, times)
    costs = times.schedule_costs(
        schedule.placement,
        memory=_memory(work, layout, schedule),
        transfer_model=times.transfer_model,
    )
    return simulate(schedule, costs)


def _memory(work: predict.StepWork, layout: predict.Layout, schedule: Schedule) -> ScheduleMemory:
    """Whatever does not come and go with the actions is static."""
    kept = predict.activations_of(work)
    step: StepPrediction = predict.assemble_step(work, layout)
    peaks = rank_peaks(schedule, kept)
    static = [
        stage.memory.total_bytes - peak.total_bytes
        for stage, peak in zip(step.stages, peaks, strict=True)
    ]
    usable = np.array([place.accelerator.usable_bytes for place in layout.places])
    return memory_of_actions(schedule.placement, kept, np.array(static), usable)
