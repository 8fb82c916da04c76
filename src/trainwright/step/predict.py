"""A plan on a cluster, priced: how long a step takes and what each rank keeps in memory.

    step = max over ranks (end in the pipeline + exposed gradient synchronisation)
           + optimizer of the slowest rank

The pipeline is simulated under the plan's schedule on the times of its own stages. Peak memory of a
rank = static bytes by ZeRO stage + what its order of actions holds at its fullest + overheads.
Ignored: contention between transfers of different kinds, the norm of the gradients, data loading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from trainwright.cluster import Accelerator, Cluster
from trainwright.costing.communication import point_to_point_time_s
from trainwright.costing.estimate import (
    FUSED_ATTENTION,
    FUSED_CROSS_ENTROPY,
    UNFUSED_ATTENTION,
    UNFUSED_CROSS_ENTROPY,
    Estimator,
    flat_setting,
)
from trainwright.errors import Fault, InvalidInput, UnsupportedFeature
from trainwright.model import (
    BESIDE_BLOCKS,
    LayerKind,
    layer_graph,
    model_flops_per_sequence,
    precision_named,
)
from trainwright.model.config import block_indices
from trainwright.partitioning.evaluate import find_layer_faults, read_prices
from trainwright.plans import (
    CommunicationTime,
    Plan,
    Stage,
    StageMemory,
    StagePrediction,
    StepPrediction,
)
from trainwright.plans.configuration import (
    DEFAULT_OVERLAP,
    NO_OVERHEADS,
    Configuration,
    MemoryOverheads,
    Overlap,
    broken_rules,
    even_blocks,
    offload_faults,
    run_shape,
)
from trainwright.plans.plan import Parallelism
from trainwright.plans.prediction import MixedPrediction
from trainwright.plans.schedule import ScheduleMemory
from trainwright.profile import CostTable, Profile, ProfilePoint, Recompute, StaticKind, TimeKind
from trainwright.profile.measured_model import MeasuredModel
from trainwright.scheduling.families import FAMILIES, family_named
from trainwright.scheduling.families.one_f_one_b import ONE_F_ONE_B
from trainwright.step import pipeline, zero
from trainwright.step.memory import RankPeak, StageActivations, memory_of_actions, rank_peaks
from trainwright.step.stages import (
    CutHead,
    Placement,
    StageWork,
    boundary_bytes,
    cut_bytes,
    cut_head,
    in_slices,
    rank_lines,
    slice_faults,
    stage_works,
    stages_on,
    without_head,
)

if TYPE_CHECKING:
    from trainwright.arrays import Floats
    from trainwright.model import TransformerConfig
    from trainwright.profile.measured_model import Trained

    Feeds = tuple[tuple[int, float, float], ...]  # (stage, seconds of one transfer, bytes)


# A step from the sums of its stages: the same for one plan and for thousands of layouts
# --------------------------------------------------------------------------------------
# Everything of a rank is a sum over its virtual stages, except the pipeline itself, which is
# simulated, and the memory in flight, which follows from the order of actions.


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a pipeline rank runs: the kind of its devices, and the groups that replicate it."""

    accelerator: Accelerator
    replicas: zero.Replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The pipeline's shape, where each rank runs, and what overlaps."""

    shape: pipeline.PipelineShape
    places: tuple[RankPlace, ...]
    overlap: Overlap
    overheads: MemoryOverheads

    @property
    def step_overhead_s(self) -> float:
        """What the slowest device of a step does once."""
        return max(place.accelerator.step_overhead_s for place in self.places)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepWork:
    """S virtual stages and what passes between them.

    `transfer_s` and `transfer_bytes` [S-1] are of one message per device; `tied_s` of each stage,
    the reduction of tied parameters; `gathered_input_bytes` what a tensor group gathers of a layer.
    `heads` is what each rank has beside its stages of a head that is cut over all of them.
    """

    stages: tuple[StageWork, ...]
    rank_of_stage: tuple[int, ...]
    transfer_s: Floats
    transfer_bytes: Floats
    tied_s: tuple[float, ...]
    gathered_input_bytes: float = 0.0
    heads: tuple[CutHead, ...] = ()

    @classmethod
    def alone(cls, stage: StageWork, *, tied_s: float) -> StepWork:
        """A single stage without neighbours."""
        return cls(
            stages=(stage,),
            rank_of_stage=(0,),
            transfer_s=np.zeros(0),
            transfer_bytes=np.zeros(0),
            tied_s=(tied_s,),
        )

    @property
    def parts(self) -> tuple[StageWork, ...]:
        """The stages and, after them, each rank's share of a cut head."""
        return (*self.stages, *(head.share for head in self.heads))

    def parts_of(self, rank: int) -> list[int]:
        """Which of the parts a rank has."""
        own = stages_on(self.rank_of_stage, rank)
        return [*own, len(self.stages) + rank] if self.heads else own

    def tied_of(self, parts: list[int]) -> float:
        """Seconds of the reduction of tied parameters."""
        return sum(self.tied_s[part] for part in parts if part < len(self.stages))


def assemble_step(work: StepWork, layout: Layout) -> StepPrediction:
    """Price the step; raises `InvalidInput` where the schedule breaks a rule of its family."""
    step = simulated_step(work, layout)
    return replace(step, communication=_communication(work, layout, step))


def simulated_step(work: StepWork, layout: Layout) -> StepPrediction:
    """Like `assemble_step`, without what communication takes: that needs another simulation."""
    m, p = layout.shape.num_microbatches, layout.shape.num_ranks
    sharing = sharing_times(work, layout)
    times = pipeline_times(work, sharing, layout)
    ends_s = pipeline.pipeline_ends_s(layout.shape, times)
    peaks = _peaks(work, layout.shape, times)
    hidden_s = pipeline.hidden_by_pairs_s(layout.shape, times)
    stages = tuple(
        _less_hidden(_rank(work, sharing, layout, rank, peaks[rank]), float(hidden_s[rank]))
        for rank in range(p)
    )
    synced = ends_s + np.array([stage.exposed_gradient_sync_s for stage in stages])
    pipeline_s, synced_s = float(ends_s.max()), float(synced.max())
    optimizer_s = max(stage.optimizer_s for stage in stages)
    busy_s = max(m * (stage.forward_s + stage.backward_s) for stage in stages)
    return StepPrediction(
        step_time_s=synced_s + optimizer_s + layout.step_overhead_s,
        pipeline_s=pipeline_s,
        exposed_gradient_sync_s=synced_s - pipeline_s,
        optimizer_s=optimizer_s,
        bubble_of_makespan=1 - busy_s / pipeline_s if pipeline_s > 0 else 0.0,
        stages=stages,
    )


def _less_hidden(stage: StagePrediction, hidden_s: float) -> StagePrediction:
    """What pairs hide is of both directions, and of the tensor network."""
    if not hidden_s:
        return stage
    return replace(
        stage,
        forward_s=stage.forward_s - hidden_s / 2,
        backward_s=stage.backward_s - hidden_s / 2,
        tensor_parallel_s=max(0.0, stage.tensor_parallel_s - hidden_s),
    )


def sharing_times(work: StepWork, layout: Layout) -> tuple[zero.DataParallelTimes, ...]:
    """What synchronising each part of a step over the replicas of its rank costs."""

    def times_of(parts: list[StageWork], rank: int) -> tuple[zero.DataParallelTimes, ...]:
        return zero.data_parallel_times(
            parts,
            layout.places[rank].replicas,
            layout.overlap,
            num_microbatches=layout.shape.num_microbatches,
            group=layout.shape.group_of_chunk,
        )

    found: dict[int, zero.DataParallelTimes] = {}
    for rank in range(len(layout.places)):
        chunks = stages_on(work.rank_of_stage, rank)
        found.update(zip(chunks, times_of([work.stages[c] for c in chunks], rank), strict=True))
    beside: dict[tuple[int, int], zero.DataParallelTimes] = {}
    places = [(id(h), id(p)) for h, p in zip(work.heads, layout.places, strict=False)]
    for rank, key in enumerate(places):
        if key not in beside:
            (beside[key],) = times_of([work.heads[rank].share], rank)
    stages = (found[stage] for stage in range(len(work.stages)))
    return (*stages, *(beside[key] for key in places))


def pipeline_times(
    work: StepWork, sharing: Sequence[zero.DataParallelTimes], layout: Layout
) -> pipeline.PipelineTimes:
    """Seconds of each virtual stage with what data parallelism adds per microbatch."""
    shared = list(zip(work.stages, sharing, strict=False))
    times = pipeline.PipelineTimes(
        forward_s=np.array([w.forward_s + s.added_forward_s for w, s in shared]),
        input_grad_s=np.array([w.input_grad_s + s.added_backward_s for w, s in shared]),
        weight_grad_s=np.array([w.weight_grad_s for w in work.stages]),
        transfer_s=work.transfer_s,
        blocking=1 - layout.overlap.pipeline,
    )
    if pipeline.uses_host(layout.shape):
        hosts = [layout.places[rank].accelerator.host for rank in work.rank_of_stage]
        kept = [stage.saved_bytes for stage in work.stages]
        copy_s = [b / h.link_bytes_per_s for b, h in zip(kept, hosts, strict=True) if h is not None]
        times = replace(times, copy_s=np.array(copy_s))
    if pipeline.braids(layout.shape):
        waits = [stage.exposed_s[TimeKind.TENSOR_PARALLEL] for stage in work.stages]
        times = replace(times, network_s=np.array(waits))
    if pipeline.keeps_to_room(layout.shape):
        ranks = range(layout.shape.num_ranks)
        after_s = [_exposed_s(work, sharing, work.parts_of(rank)) for rank in ranks]
        times = replace(times, room=_room(work, layout), after_s=np.array(after_s))
    if not work.heads:
        return times
    barriers = family_named(layout.shape.family).head_barriers
    passes_s = []
    for head, own in zip(work.heads, sharing[len(work.stages) :], strict=True):
        forward_s, backward_s = head.passes_s(barriers)
        passes_s.append((forward_s + own.added_forward_s, backward_s + own.added_backward_s))
    of_stage = np.array([passes_s[rank] for rank in work.rank_of_stage]).T
    return replace(times, head_s=(of_stage[0], of_stage[1]), barrier_s=work.heads[0].barrier_s)


_BELOW: Final = 1 - 1e-9  # of the room, which prices sum in another order


def _room(work: StepWork, layout: Layout) -> ScheduleMemory:
    """What ranks may hold beside what they always do, with the margins of the overheads."""
    nothing, kept, always, most = RankPeak.of_nothing(), layout.overheads, [], []
    for rank, place in enumerate(layout.places):
        room, chunks = layout.shape.room_bytes, work.parts_of(rank)
        own = [work.parts[chunk] for chunk in chunks]
        always.append(_memory(work, own, chunks, layout, rank, nothing).total_bytes)
        if room is None:
            room = kept.room_bytes(place.accelerator.usable_bytes) + kept.beside_bytes
        most.append(max(0.0, _BELOW * room))
    placement = pipeline.placement_of(layout.shape)
    return memory_of_actions(placement, activations_of(work), np.array(always), np.array(most))


def _exposed_s(
    work: StepWork, sharing: Sequence[zero.DataParallelTimes], chunks: list[int]
) -> float:
    """What a rank still exchanges once it has run its last action."""
    return sum(sharing[chunk].exposed_sync_s for chunk in chunks) + work.tied_of(chunks)


def _peaks(
    work: StepWork, shape: pipeline.PipelineShape, times: pipeline.PipelineTimes
) -> tuple[RankPeak, ...]:
    return rank_peaks(pipeline.schedule_of(pipeline.peak_shape(shape), times), activations_of(work))


def activations_of(work: StepWork) -> StageActivations:
    """What each virtual stage keeps of a microbatch."""
    kept = [work.heads[rank].share.saved_bytes for rank in work.rank_of_stage if work.heads]
    return StageActivations(
        until_input_grad=np.array([w.until_input_grad_bytes for w in work.stages]),
        until_weight_grad=np.array([w.until_weight_grad_bytes for w in work.stages]),
        transient=np.array([w.transient_bytes for w in work.stages]),
        logits=np.array([w.logits_bytes for w in work.stages]),
        cut_head=np.array(kept) if kept else None,
    )


def _rank(
    work: StepWork,
    sharing: Sequence[zero.DataParallelTimes],
    layout: Layout,
    rank: int,
    peak: RankPeak,
) -> StagePrediction:
    chunks = work.parts_of(rank)
    own = [work.parts[chunk] for chunk in chunks]
    shared = [sharing[chunk] for chunk in chunks]
    tied_s = work.tied_of(chunks)
    place = layout.places[rank]
    exposed_s = np.sum([w.exposed_s for w in own], axis=0)
    return StagePrediction(
        forward_s=sum(w.forward_s + s.added_forward_s for w, s in zip(own, shared, strict=True)),
        backward_s=sum(w.backward_s + s.added_backward_s for w, s in zip(own, shared, strict=True)),
        recompute_s=sum(w.recompute_s for w in own),
        tensor_parallel_s=float(exposed_s[TimeKind.TENSOR_PARALLEL]),
        context_parallel_s=float(exposed_s[TimeKind.CONTEXT_PARALLEL]),
        expert_parallel_s=float(exposed_s[TimeKind.EXPERT_PARALLEL]),
        send_s=float(
            sum(work.transfer_s[chunk] for chunk in chunks if chunk < len(work.transfer_s))
        ),
        gradient_sync_s=sum(s.sync_s for s in shared) + tied_s,
        exposed_gradient_sync_s=_exposed_s(work, sharing, chunks),
        optimizer_s=zero.optimizer_time_s(
            zero.RankState.of(own), place.replicas, place.accelerator
        ),
        memory=_memory(work, own, chunks, layout, rank, peak),
    )


def _memory(
    work: StepWork,
    own: list[StageWork],
    chunks: list[int],
    layout: Layout,
    rank: int,
    peak: RankPeak,
) -> StageMemory:
    state, replicas = zero.RankState.of(own), layout.places[rank].replicas
    kept, gathered = zero.static_shards(state, replicas)
    overheads = layout.overheads
    return StageMemory(
        **{kind.key: held for kind, held in zip(StaticKind, kept, strict=True)},
        opaque_bytes=sum(w.opaque_bytes for w in own),
        activation_bytes=peak.activation_bytes,
        transient_bytes=peak.transient_bytes + gathered,
        microbatches_in_flight=peak.microbatches_in_flight,
        logits_bytes=peak.logits_bytes,
        buffer_bytes=buffer_bytes(work, chunks) if overheads.buffers else 0.0,
        **overheads.beside,
    )


def buffer_bytes(work: StepWork, chunks: list[int]) -> float:
    """A tensor and its gradient at each of the rank's boundaries, and one gathered layer input."""
    boundaries = sum(
        2 * float(work.transfer_bytes[edge])
        for chunk in chunks
        for edge in (chunk - 1, chunk)
        if 0 <= edge < len(work.transfer_bytes)
        and work.rank_of_stage[edge] != work.rank_of_stage[edge + 1]
    )
    return boundaries + work.gathered_input_bytes


def _communication(
    work: StepWork, layout: Layout, step: StepPrediction
) -> tuple[CommunicationTime, ...]:
    """What the busiest rank spends on each purpose in a step.

    Of pipeline transfers, exposed is what the whole pipeline gains where they are free, in the
    same order of actions.
    """
    sharing = sharing_times(work, layout)
    times = pipeline_times(work, sharing, layout)
    rank = int(np.argmax([stage.forward_s + stage.backward_s for stage in step.stages]))
    m, chunks = layout.shape.num_microbatches, work.parts_of(rank)
    found = []
    for kind, name in _LAYER_KINDS.items():
        exposed_s = m * sum(float(work.parts[chunk].exposed_s[kind]) for chunk in chunks)
        if kind is TimeKind.TENSOR_PARALLEL and times.network_s is not None:
            exposed_s = m * step.stages[rank].tensor_parallel_s
        total_s = m * sum(float(work.parts[chunk].communication_s[kind]) for chunk in chunks)
        found.append(_split(name, exposed_s, total_s))
    sent_s = 2 * m * float(sum(work.transfer_s[c] for c in chunks if c < len(work.transfer_s)))
    free_s = step.pipeline_s
    if work.transfer_s.any():
        free_s = float(pipeline.pipeline_ends_s(layout.shape, times.without_transfers()).max())
    found.append(_split("pipeline", max(0.0, step.pipeline_s - free_s), sent_s))
    shared = [sharing[chunk] for chunk in chunks]
    tied_s = work.tied_of(chunks)
    gradients_s = sum(s.gradients_s for s in shared) + tied_s
    exposed_s = sum(s.exposed_gradients_s for s in shared) + tied_s
    found.append(_split("gradients", exposed_s, gradients_s))
    exposed_s = sum(s.exposed_parameters_s for s in shared)
    found.append(_split("parameters", exposed_s, sum(s.parameters_s for s in shared)))
    return tuple(found)


_ROUNDING = 1e-12
_LAYER_KINDS = {
    TimeKind.TENSOR_PARALLEL: "tensor",
    TimeKind.CONTEXT_PARALLEL: "context",
    TimeKind.EXPERT_PARALLEL: "expert",
}


def _split(kind: str, exposed_s: float, total_s: float) -> CommunicationTime:
    hidden_s = total_s - exposed_s
    if hidden_s < _ROUNDING * total_s:  # both are sums, in another order
        hidden_s = 0.0
    return CommunicationTime(kind=kind, exposed_s=exposed_s, hidden_s=hidden_s)


# A plan on a cluster, priced: how long a step takes and what each rank keeps in memory
# -------------------------------------------------------------------------------------


def predict_step(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    *,
    model_flops_per_sequence: float | None = None,
    hardware_flops_per_sequence: float | None = None,
    overlap: Overlap = DEFAULT_OVERLAP,
    overheads: MemoryOverheads = NO_OVERHEADS,
    in_full: bool = True,
) -> StepPrediction:
    """Price one training step of `plan` under its schedule.

    If not `in_full`, chains of stages that are alike say nothing of what they communicate
    (`with_communication`).

    `model_flops_per_sequence` (forward and backward, attention in full, no recomputation) gives
    MFU, `hardware_flops_per_sequence` (recomputation included) HFU. Raises `InvalidInput` where the
    plan breaks a rule of the profile or its schedule or does not fit on the devices,
    `UnsupportedFeature` for a cluster of several pools. Not fitting into memory is no error:
    compare `peak_memory_bytes` with the device.
    """
    _require_legal(plan, profile, cluster)
    whole, slices = plan, slices_of_plan(plan)
    point = profile.point
    plan, profile = _cut_in_slices(plan, profile)
    placement = Placement(plan=plan, pool=cluster.pool_of())
    heads, profile = _apart(placement, profile)
    works = stage_works(plan, profile, placement.axis_hops(plan.stages[0].tensor_parallel))
    feeds = _feeds(placement, profile)
    if placement.is_uniform and _is_chain(feeds):
        made_of = assemble_step if in_full else simulated_step
        step = made_of(
            *_laid_out(placement, works, feeds, profile, overlap, overheads, heads=heads)
        )
    else:
        step = _longest_path(placement, works, feeds, profile, overlap, overheads)
    if slices > 1:
        step = of_whole_microbatches(step, slices)
    return with_throughput(
        step,
        point,
        plan=whole,
        devices=((plan.devices_used, cluster.accelerator),),
        model_flops_per_sequence=model_flops_per_sequence,
        hardware_flops_per_sequence=hardware_flops_per_sequence,
    )


def with_communication(
    step: StepPrediction,
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    *,
    overlap: Overlap = DEFAULT_OVERLAP,
    overheads: MemoryOverheads = NO_OVERHEADS,
) -> StepPrediction:
    """A step of whole microbatches that was not priced in full, as if it had been."""
    work, layout = work_of_plan(plan, profile, cluster, overlap=overlap, overheads=overheads)
    return replace(step, communication=_communication(work, layout, step))


Step = TypeVar("Step", bound="StepPrediction | MixedPrediction")


def with_throughput(
    step: Step,
    point: ProfilePoint,
    *,
    plan: Plan,
    devices: Iterable[tuple[int, Accelerator]],
    model_flops_per_sequence: float | None,
    hardware_flops_per_sequence: float | None = None,
) -> Step:
    """The step with tokens per second and the shares of the peak of all `devices`, where known."""
    size = point.microbatch_size
    if size is None or point.sequence_length is None or step.step_time_s <= 0:
        return step
    per_s = plan.num_microbatches * size / step.step_time_s
    flops = {"mfu": model_flops_per_sequence, "hfu": hardware_flops_per_sequence}
    shares: dict[str, Any] = {}
    if point.precision is not None:
        dtype = precision_named(point.precision).matmul_dtype
        peak = sum(count * device.peak(dtype) for count, device in devices if count)
        shares = {n: per_s * each / peak for n, each in flops.items() if each is not None}
    return replace(step, tokens_per_s=per_s * point.sequence_length, **shares)


def _require_legal(plan: Plan, profile: Profile, cluster: Cluster) -> None:
    setting = flat_setting(cluster, num_microbatches=plan.num_microbatches)
    faults = [*find_layer_faults(plan, read_prices(profile), setting)]
    if plan.devices_used > setting.num_devices:
        wanted = f"must use at most {setting.num_devices} devices"
        faults.append(Fault("stages", f"{wanted}, got {plan.devices_used}"))
    degrees = plan.parallelism
    if degrees is not None and len(plan.stages) % degrees.pipeline:
        wanted = f"must be a multiple of the {degrees.pipeline} pipeline ranks"
        faults.append(Fault("stages", f"{wanted}, got {len(plan.stages)}"))
    if faults:
        raise InvalidInput(faults)


def _is_chain(feeds: list[Feeds]) -> bool:
    return all(target == index + 1 for index, sent in enumerate(feeds) for target, *_ in sent)


def slices_of_plan(plan: Plan) -> int:
    """Of each sequence, under the plan's schedule."""
    if plan.order is not None:
        return 1
    degrees = plan.parallelism
    return pipeline.slices_of(
        plan.schedule, len(plan.stages) if degrees is None else degrees.pipeline
    )


def _cut_in_slices(plan: Plan, profile: Profile) -> tuple[Plan, Profile]:
    """As if each slice of a sequence were a microbatch, where the schedule cuts sequences."""
    slices = slices_of_plan(plan)
    if slices == 1:
        return plan, profile
    cut = replace(plan, num_microbatches=slices * plan.num_microbatches)
    return cut, in_slices(profile, slices)


def of_whole_microbatches(step: StepPrediction, slices: int) -> StepPrediction:
    """What ranks do with a microbatch, from what they do with one of its slices."""
    stages = tuple(_of_whole_microbatch(stage, slices) for stage in step.stages)
    return replace(step, stages=stages)


def _of_whole_microbatch(stage: StagePrediction, slices: int) -> StagePrediction:
    held = -(-stage.memory.microbatches_in_flight // slices)
    return replace(
        stage,
        **{name: slices * getattr(stage, name) for name in _OF_MICROBATCH},
        memory=replace(stage.memory, microbatches_in_flight=held),
    )


_OF_MICROBATCH = (
    *("forward_s", "backward_s", "recompute_s", "send_s"),
    *("tensor_parallel_s", "context_parallel_s", "expert_parallel_s"),
)


def _apart(placement: Placement, profile: Profile) -> tuple[tuple[CutHead, ...], Profile]:
    """What each rank has of a head that the schedule cuts, and the profile of all else."""
    if not pipeline.has_cut_head(placement.shape):
        return (), profile
    degrees = placement.degrees
    hops = placement.axis_hops(placement.plan.stages[0].tensor_parallel)
    lines = rank_lines(placement.pool.levels, degrees)
    head = cut_head(profile, degrees.pipeline, lines, hops)
    return (head,) * degrees.pipeline, without_head(profile)


def work_of_plan(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    *,
    overlap: Overlap = DEFAULT_OVERLAP,
    overheads: MemoryOverheads = NO_OVERHEADS,
) -> tuple[StepWork, Layout]:
    """What `predict_step` simulates, for a closer look at it; raises like that.

    Raises `UnsupportedFeature` for stages that branch or differ in degrees, too.
    """
    _require_legal(plan, profile, cluster)
    plan, profile = _cut_in_slices(plan, profile)
    placement = Placement(plan=plan, pool=cluster.pool_of())
    heads, profile = _apart(placement, profile)
    works = stage_works(plan, profile, placement.axis_hops(plan.stages[0].tensor_parallel))
    feeds = _feeds(placement, profile)
    if not (placement.is_uniform and _is_chain(feeds)):
        raise UnsupportedFeature("stages that branch or differ in degrees have no timeline")
    return _laid_out(placement, works, feeds, profile, overlap, overheads, heads=heads)


def _laid_out(
    placement: Placement,
    works: Sequence[StageWork],
    feeds: list[Feeds],
    profile: Profile,
    overlap: Overlap,
    overheads: MemoryOverheads,
    *,
    heads: tuple[CutHead, ...],
) -> tuple[StepWork, Layout]:
    place = RankPlace(accelerator=placement.pool.accelerator, replicas=placement.replicas(0))
    layout = Layout(
        shape=placement.shape,
        places=(place,) * placement.shape.num_ranks,
        overlap=overlap,
        overheads=overheads,
    )
    sent = [{target: (s, b) for target, s, b in each} for each in feeds]
    pairs = [sent[i].get(i + 1, (0.0, 0.0)) for i in range(len(works) - 1)]
    work = StepWork(
        stages=tuple(works),
        rank_of_stage=placement.rank_of_stage,
        transfer_s=np.array([time_s for time_s, _ in pairs]),
        transfer_bytes=np.array([size for _, size in pairs]),
        tied_s=_tied_s(placement, works, profile),
        gathered_input_bytes=gathered_input_bytes(placement.degrees, profile),
        heads=heads,
    )
    return work, layout


def gathered_input_bytes(degrees: Parallelism, profile: Profile) -> float:
    """What sequence parallelism gathers for one layer: the whole of what neighbours send."""
    if not degrees.sequence_parallel or degrees.tensor == 1 or not profile.structure.edges:
        return 0.0
    return boundary_bytes(profile.structure) * degrees.tensor


def _longest_path(
    placement: Placement,
    works: Sequence[StageWork],
    feeds: list[Feeds],
    profile: Profile,
    overlap: Overlap,
    overheads: MemoryOverheads,
) -> StepPrediction:
    """Stages that differ in degrees, or branch: 1F1B without a simulator."""
    plan = placement.plan
    if plan.schedule != ONE_F_ONE_B.name or len(works) != placement.degrees.pipeline:
        raise UnsupportedFeature(
            f"stages that branch or differ in degrees are not priced under {plan.schedule}",
            alternative=f"use the schedule {ONE_F_ONE_B.name} without virtual stages",
        )
    single = [
        assemble_step(
            StepWork.alone(work, tied_s=tied_s),
            Layout(
                shape=replace(
                    placement.shape,
                    family=ONE_F_ONE_B.name,
                    num_ranks=1,
                    num_microbatches=plan.num_microbatches // d,
                    virtual_stages=1,
                ),
                places=(
                    RankPlace(
                        accelerator=placement.pool.accelerator, replicas=placement.replicas(index)
                    ),
                ),
                overlap=overlap,
                overheads=overheads,
            ),
        ).stages[0]
        for index, (work, d, tied_s) in enumerate(
            zip(works, placement.data_parallel, _tied_s(placement, works, profile), strict=True)
        )
    ]
    stages = tuple(
        replace(
            stage,
            send_s=sum(time_s for _, time_s, _ in sent),
            memory=replace(
                stage.memory,
                activation_bytes=stage.memory.activation_bytes * held,
                logits_bytes=stage.memory.logits_bytes * held,
                microbatches_in_flight=held,
            ),
        )
        for stage, sent, held in zip(single, feeds, placement.in_flight, strict=True)
    )
    ends_s = pipeline.one_f_one_b_ends_s(
        [
            pipeline.PipelineStage(
                forward_s=stage.forward_s,
                backward_s=stage.backward_s,
                in_flight=held,
                replicas=d,
                feeds=tuple((target, time_s) for target, time_s, _ in sent),
            )
            for stage, held, d, sent in zip(
                stages, placement.in_flight, placement.data_parallel, feeds, strict=True
            )
        ],
        num_microbatches=plan.num_microbatches,
    )
    pipeline_s = max(ends_s)
    synced_s = max(e + s.exposed_gradient_sync_s for e, s in zip(ends_s, stages, strict=True))
    optimizer_s = max(stage.optimizer_s for stage in stages)
    busiest_s = max(
        (stage.forward_s + stage.backward_s) * (plan.num_microbatches // d)
        for stage, d in zip(stages, placement.data_parallel, strict=True)
    )
    return StepPrediction(
        step_time_s=synced_s + optimizer_s + placement.pool.accelerator.step_overhead_s,
        pipeline_s=pipeline_s,
        exposed_gradient_sync_s=synced_s - pipeline_s,
        optimizer_s=optimizer_s,
        bubble_of_makespan=1 - busiest_s / pipeline_s if pipeline_s > 0 else 0.0,
        stages=stages,
    )


def _feeds(placement: Placement, profile: Profile) -> list[Feeds]:
    """For each stage the stages it feeds, with seconds and bytes of one transfer."""
    feeds: list[list[tuple[int, float, float]]] = [[] for _ in placement.plan.stages]
    for (sender, receiver), size in sorted(cut_bytes(placement.plan, profile).items()):
        level = placement.level_between(sender, receiver)
        feeds[sender].append((receiver, point_to_point_time_s(size, level), size))
    return [tuple(feed) for feed in feeds]


def _tied_s(
    placement: Placement, works: Sequence[StageWork], profile: Profile
) -> tuple[float, ...]:
    layers = (stage.layers for stage in placement.plan.stages)
    ranks = placement.rank_of_stage
    return zero.tied_times_s(works, layers, profile.structure, ranks, placement.level_between)


# From a configuration to a predicted step: lay the model out as stated, then price it
# ------------------------------------------------------------------------------------


def price_configuration(
    model: Trained,
    cluster: Cluster,
    configuration: Configuration,
    profile: Profile | None = None,
) -> StepPrediction:
    """Time and memory of one step; `profile` is that of the run, where it is at hand.

    Without FLOPs, so without MFU, where only the costs of the model are known. Raises
    `InvalidInput` with every rule that is broken.
    """
    require_legal(model, cluster, configuration)
    cluster = zero.with_offload(cluster, configuration.recipe)
    if profile is None:
        profile = profile_of_run(model, cluster, configuration)
    flops = hardware_flops = None
    if not isinstance(model, MeasuredModel):
        flops = model_flops_per_sequence(model, configuration.sequence_length)
        hardware_flops = hardware_flops_per_sequence(model, cluster, configuration)
    return predict_step(
        plan_of(configuration, profile),
        profile,
        cluster,
        model_flops_per_sequence=flops,
        hardware_flops_per_sequence=hardware_flops,
        **configuration.step_settings,
    )


def profile_of_run(model: Trained, cluster: Cluster, configuration: Configuration) -> Profile:
    """What the layers cost at the configuration's point: estimated, or as they were measured.

    Raises `UnsupportedFeature` where nothing was measured there.
    """
    if isinstance(model, MeasuredModel):
        return model.profile(point_of(configuration))
    return estimator_of(model, cluster, configuration).profile(point_of(configuration))


def estimator_of(
    model: TransformerConfig, cluster: Cluster, configuration: Configuration
) -> Estimator:
    """What prices the layers of the configuration."""
    return Estimator(
        model=model,
        cluster=cluster,
        recipe=configuration.recipe,
        overlap=configuration.overlap,
        selective_modules=configuration.recompute_modules,
        vocabulary_multiple=configuration.vocabulary_multiple,
    )


def point_of(configuration: Configuration) -> ProfilePoint:
    """The circumstances under which the configuration runs its layers."""
    degrees = configuration.parallelism
    attention = FUSED_ATTENTION if configuration.fused_attention else UNFUSED_ATTENTION
    entropy = FUSED_CROSS_ENTROPY if configuration.fused_cross_entropy else UNFUSED_CROSS_ENTROPY
    modes = dict.fromkeys((str(Recompute.NONE), str(configuration.recompute)))
    return ProfilePoint(
        microbatch_size=configuration.microbatch_size,
        sequence_length=configuration.sequence_length,
        tensor_parallel=(degrees.tensor,),
        context_parallel=degrees.context,
        expert_parallel=degrees.expert,
        expert_tensor_parallel=degrees.expert_tensor,
        sequence_parallel=degrees.sequence_parallel,
        precision=configuration.recipe.precision,
        recompute=tuple(modes),
        kernels=(attention, entropy),
    )


def plan_of(configuration: Configuration, profile: Profile) -> Plan:
    """The layers dealt out: blocks as the configuration says, the ends to the outer stages.

    Where a layer has several options of a mode it takes the fastest, where it has none one that
    recomputes nothing.

    Raises `InvalidInput` where no layer of the profile has the mode.
    """
    if configuration.recompute not in profile.costs.recompute:
        offered = ", ".join(m for m in Recompute if m in profile.costs.recompute)
        problem = f"must be one of {offered}, which the profile has, got {configuration.recompute}"
        raise InvalidInput.of("recompute", problem)
    degrees, structure = configuration.parallelism, profile.structure
    names = [layer.name for layer in structure.layers]
    blocks = block_indices(names)
    counts = configuration.blocks_per_stage or even_blocks(len(blocks), configuration.num_stages)
    cuts = [blocks[0] + count for count in accumulate(counts, initial=0)]
    cuts[0], cuts[-1] = 0, len(names)
    limit = configuration.recompute_blocks
    beside = [i for i, name in enumerate(names) if name in BESIDE_BLOCKS and limit is None]
    options = _options_by_mode(profile.costs)
    stages = []
    for first, last in pairwise(cuts):
        own = range(first, last)
        again = {*[i for i in own if names[i] == LayerKind.BLOCK][:limit], *beside}
        stages.append(
            Stage.uniform(
                tuple(structure.layers[i].id for i in own),
                tuple(
                    options[structure.layers[i].layer_class][
                        configuration.recompute if i in again else Recompute.NONE
                    ]
                    for i in own
                ),
                data_parallel=degrees.data,
                tensor_parallel=degrees.tensor,
            )
        )
    return Plan(
        stages=tuple(stages),
        num_microbatches=configuration.num_microbatches * degrees.data,
        microbatch_size=configuration.microbatch_size,
        schedule=configuration.schedule,
        parallelism=degrees,
    )


def _options_by_mode(costs: CostTable) -> list[dict[Recompute, str]]:
    """The option that each layer class takes for each mode."""
    found = []
    for number in range(costs.num_classes):
        rows = sorted(costs.rows_of(number), key=lambda row: float(costs.duration_s[row]))
        fastest = {costs.recompute[row]: costs.option_ids[row] for row in reversed(rows)}
        plain = fastest.get(Recompute.NONE, costs.option_ids[rows[0]])
        found.append({mode: fastest.get(mode, plain) for mode in Recompute})
    return found


def hardware_flops_per_sequence(
    model: TransformerConfig, cluster: Cluster, configuration: Configuration
) -> float:
    """FLOPs of a step on one sequence by the convention of HFU: recomputation counts as work."""
    whole = replace(
        configuration,
        microbatch_size=1,
        global_batch=1,
        parallelism=type(configuration.parallelism)(),
        blocks_per_stage=None,
    )
    device = cluster.pool_of().accelerator
    precision = configuration.recipe.precision or device.default_precision
    graph = layer_graph(model, run_shape(whole, precision=precision))
    rule = estimator_of(model, cluster, configuration).rule(
        configuration.recompute, fused_attention=configuration.fused_attention
    )
    repeated = [
        sum(op.model_flops for op in c.operators if c.has_backward and rule.repeats(op))
        for c in graph.classes
    ]
    blocks = [graph.layers[at] for at in block_indices(graph.kinds)]
    counts = configuration.blocks_per_stage or even_blocks(len(blocks), configuration.num_stages)
    again, first = 0.0, 0
    for count in counts:
        own = blocks[first : first + count][: configuration.recompute_blocks]
        again += sum(repeated[c] for c in own)
        first += count
    if configuration.recompute_blocks is None:
        kinds = zip(graph.layers, graph.kinds, strict=True)
        again += sum(repeated[c] for c, kind in kinds if kind in BESIDE_BLOCKS)
    return model_flops_per_sequence(model, configuration.sequence_length) + again


def require_legal(model: Trained, cluster: Cluster, configuration: Configuration) -> None:
    """Raise `InvalidInput` with every rule that is broken: of arithmetic, model and schedule."""
    faults = list(broken_rules(configuration, model, cluster.pool_of()))
    faults += schedule_faults(configuration)
    ranks = configuration.parallelism.pipeline
    faults += slice_faults(
        configuration.schedule, model, configuration.sequence_length, num_ranks=ranks
    )
    if pipeline.uses_host(shape_of(configuration)):
        faults += offload_faults(cluster.pool_of().accelerator)
    if faults:
        raise InvalidInput(faults)


def shape_of(configuration: Configuration) -> pipeline.PipelineShape:
    """The pipeline of the configuration."""
    degrees = configuration.parallelism
    slices = pipeline.slices_of(configuration.schedule, degrees.pipeline)
    return pipeline.PipelineShape(
        family=configuration.schedule,
        num_ranks=degrees.pipeline,
        num_microbatches=max(1, configuration.num_microbatches) * slices,
        virtual_stages=degrees.virtual_stages,
    )


def schedule_faults(configuration: Configuration) -> Iterator[Fault]:
    """What the schedule family forbids, and chunks that it does not make."""
    shape = shape_of(configuration)
    try:
        family = family_named(shape.family)
    except InvalidInput as error:
        for fault in error.faults:
            yield Fault("schedule", fault.problem)
        return
    if not family.is_priced:
        priced = ", ".join(each.name for each in FAMILIES.values() if each.is_priced)
        yield Fault(
            "schedule",
            f"must be one whose step is priced: {priced}; orders of {family.name} are made and "
            f"simulated by the command schedule alone",
        )
        return
    offload = configuration.recipe.offload
    problem = f"must leave activations to the schedule {family.name}"
    if family.host_of is not None and offload is not None and offload.activations:
        yield Fault("offload", f"{problem}, got {offload.in_words}")
    if family.host_of is not None and configuration.recompute is Recompute.OFFLOAD:
        yield Fault("recompute", f"{problem}, got {configuration.recompute}")
    yield from family.rules(shape.request)
    made = family.num_chunks  # not by placing the stages: degrees may be anything here
    if made not in (None, shape.virtual_stages):
        wanted = f"must be {made} for the schedule {shape.family}"
        yield Fault("virtual_stages", f"{wanted}, got {shape.virtual_stages}")
