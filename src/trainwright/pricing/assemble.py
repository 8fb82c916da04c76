"""A step from the sums of its stages: the same for one plan and for thousands of layouts.

Everything of a rank is a sum over its virtual stages, except the pipeline itself, which is
simulated, and the memory in flight, which follows from the order of actions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan import CommunicationTime, StageMemory, StagePrediction, StepPrediction
from trainwright.pricing.memory_curve import RankPeak, StageActivations, rank_peaks
from trainwright.pricing.pipeline_run import (
    PipelineShape,
    PipelineTimes,
    peak_shape,
    pipeline_ends_s,
    schedule_of,
)
from trainwright.pricing.sharding import (
    DataParallelTimes,
    RankState,
    Replicas,
    data_parallel_times,
    optimizer_time_s,
    static_shards,
)
from trainwright.profile import TimeKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.cluster import Accelerator
    from trainwright.plan.overlap import MemoryOverheads, Overlap
    from trainwright.pricing.stage_work import StageWork

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a pipeline rank runs: the kind of its devices, and the groups that replicate it."""

    accelerator: Accelerator
    replicas: Replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The pipeline's shape, where each rank runs, and what overlaps."""

    shape: PipelineShape
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
    """

    stages: tuple[StageWork, ...]
    rank_of_stage: tuple[int, ...]
    transfer_s: Floats
    transfer_bytes: Floats
    tied_s: tuple[float, ...]
    gathered_input_bytes: float = 0.0

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

    def chunks_of(self, rank: int) -> list[int]:
        """The stages of a rank."""
        return [stage for stage, owner in enumerate(self.rank_of_stage) if owner == rank]


def assemble_step(work: StepWork, layout: Layout) -> StepPrediction:
    """Price the step; raises `InvalidInput` where the schedule breaks a rule of its family."""
    step = simulated_step(work, layout)
    return replace(step, communication=_communication(work, layout, step))


def simulated_step(work: StepWork, layout: Layout) -> StepPrediction:
    """Like `assemble_step` without what is spent on communication, for which orders that look at
    times are made again, without transfers.
    """
    m, p = layout.shape.num_microbatches, layout.shape.num_ranks
    sharing = sharing_times(work, layout)
    times = pipeline_times(work, sharing, layout.overlap)
    ends_s = pipeline_ends_s(layout.shape, times)
    peaks = _peaks(work, layout.shape, times)
    stages = tuple(_rank(work, sharing, layout, rank, peaks[rank]) for rank in range(p))
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


def sharing_times(work: StepWork, layout: Layout) -> tuple[DataParallelTimes, ...]:
    """What synchronising each virtual stage over the replicas of its rank costs."""
    return tuple(
        data_parallel_times(
            (stage,),
            layout.places[rank].replicas,
            layout.overlap,
            num_microbatches=layout.shape.num_microbatches,
        )[0]
        for stage, rank in zip(work.stages, work.rank_of_stage, strict=True)
    )


def pipeline_times(
    work: StepWork, sharing: Sequence[DataParallelTimes], overlap: Overlap
) -> PipelineTimes:
    """Seconds of each virtual stage with what data parallelism adds per microbatch."""
    shared = list(zip(work.stages, sharing, strict=True))
    return PipelineTimes(
        forward_s=np.array([w.forward_s + s.added_forward_s for w, s in shared]),
        input_grad_s=np.array([w.input_grad_s + s.added_backward_s for w, s in shared]),
        weight_grad_s=np.array([w.weight_grad_s for w in work.stages]),
        transfer_s=work.transfer_s,
        blocking=1 - overlap.pipeline,
    )


def _peaks(work: StepWork, shape: PipelineShape, times: PipelineTimes) -> tuple[RankPeak, ...]:
    return rank_peaks(schedule_of(peak_shape(shape), times), activations_of(work))


def activations_of(work: StepWork) -> StageActivations:
    """What each virtual stage keeps of a microbatch."""
    return StageActivations(
        until_input_grad=np.array([w.until_input_grad_bytes for w in work.stages]),
        until_weight_grad=np.array([w.until_weight_grad_bytes for w in work.stages]),
        transient=np.array([w.transient_bytes for w in work.stages]),
        logits=np.array([w.logits_bytes for w in work.stages]),
    )


def _rank(
    work: StepWork,
    sharing: Sequence[DataParallelTimes],
    layout: Layout,
    rank: int,
    peak: RankPeak,
) -> StagePrediction:
    chunks = work.chunks_of(rank)
    own = [work.stages[chunk] for chunk in chunks]
    shared = [sharing[chunk] for chunk in chunks]
    tied_s = sum(work.tied_s[chunk] for chunk in chunks)
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
        exposed_gradient_sync_s=sum(s.exposed_sync_s for s in shared) + tied_s,
        optimizer_s=optimizer_time_s(RankState.of(own), place.replicas, place.accelerator),
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
    state, replicas = RankState.of(own), layout.places[rank].replicas
    weight, gradient, optimizer, gathered = static_shards(state, replicas)
    overheads = layout.overheads
    return StageMemory(
        weight_bytes=weight,
        gradient_bytes=gradient,
        optimizer_bytes=optimizer,
        opaque_bytes=sum(w.opaque_bytes for w in own),
        activation_bytes=peak.activation_bytes,
        transient_bytes=peak.transient_bytes + gathered,
        microbatches_in_flight=peak.microbatches_in_flight,
        logits_bytes=peak.logits_bytes,
        buffer_bytes=buffer_bytes(work, chunks) if overheads.buffers else 0.0,
        workspace_bytes=overheads.workspace_bytes,
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

    Of pipeline transfers, exposed is what the whole pipeline gains where they are free.
    """
    sharing = sharing_times(work, layout)
    times = pipeline_times(work, sharing, layout.overlap)
    rank = int(np.argmax([stage.forward_s + stage.backward_s for stage in step.stages]))
    m, chunks = layout.shape.num_microbatches, work.chunks_of(rank)
    found = []
    for kind, name in _LAYER_KINDS.items():
        exposed_s = m * sum(float(work.stages[chunk].exposed_s[kind]) for chunk in chunks)
        total_s = m * sum(float(work.stages[chunk].communication_s[kind]) for chunk in chunks)
        found.append(_split(name, exposed_s, total_s))
    sent_s = 2 * m * float(sum(work.transfer_s[c] for c in chunks if c < len(work.transfer_s)))
    free_s = step.pipeline_s
    if work.transfer_s.any():
        free_s = float(pipeline_ends_s(layout.shape, times.without_transfers()).max())
    found.append(_split("pipeline", max(0.0, step.pipeline_s - free_s), sent_s))
    shared = [sharing[chunk] for chunk in chunks]
    tied_s = sum(work.tied_s[chunk] for chunk in chunks)
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
