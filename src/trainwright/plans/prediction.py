"""What a plan is predicted to cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MEMORY_CLASSES: Final = (
    *("weight", "gradient", "optimizer", "opaque"),
    *("activation", "logits", "transient", "buffer", "workspace"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBreakdown:
    """Seconds per microbatch of a stage, by what they are spent on."""

    compute_s: float
    edge_traffic_s: float
    gradient_sync_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Time and memory of one stage, whose activations are kept for `microbatches_in_flight`."""

    time_per_sample_s: float
    breakdown: TimeBreakdown
    memory_bytes: float
    microbatches_in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes of one device of a stage at its fullest, by class.

    `opaque_bytes` are static bytes of imported profiles that do not say what they hold.
    `activation_bytes` leaves out what head and loss keep, `logits_bytes`. `transient_bytes` are
    needed for a moment by one layer, `buffer_bytes` by communication, `workspace_bytes` by
    libraries for ever.
    """

    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    opaque_bytes: float
    activation_bytes: float
    transient_bytes: float
    microbatches_in_flight: int
    logits_bytes: float = 0.0
    buffer_bytes: float = 0.0
    workspace_bytes: float = 0.0

    @property
    def static_bytes(self) -> float:
        """What stays for the whole step."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.opaque_bytes

    @property
    def total_bytes(self) -> float:
        """Peak of one device."""
        kept = self.static_bytes + self.activation_bytes + self.logits_bytes
        return kept + self.transient_bytes + self.buffer_bytes + self.workspace_bytes

    @property
    def movable_bytes(self) -> float:
        """What may lie on the host instead."""
        return self.gradient_bytes + self.optimizer_bytes + self.activation_bytes

    @property
    def by_class(self) -> dict[str, float]:
        """Bytes of each of `MEMORY_CLASSES`; they add up to `total_bytes`."""
        return {name: float(getattr(self, f"{name}_bytes")) for name in MEMORY_CLASSES}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """What one pipeline rank does: with one microbatch in all its stages, then in a step.

    `forward_s` and `backward_s` include the exposed communication inside layers, which
    `tensor_parallel_s`, `context_parallel_s` and `expert_parallel_s` state again for both together;
    `backward_s` includes recomputation.
    """

    forward_s: float
    backward_s: float
    recompute_s: float
    tensor_parallel_s: float
    send_s: float
    gradient_sync_s: float
    exposed_gradient_sync_s: float
    optimizer_s: float
    memory: StageMemory
    context_parallel_s: float = 0.0
    expert_parallel_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationTime:
    """Seconds of a step that the busiest rank communicates for one purpose.

    `kind` is tensor, context, expert, pipeline, gradients or parameters. What is hidden runs beside
    compute and costs nothing; both together are all.
    """

    kind: str
    exposed_s: float
    hidden_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """One training step: the pipeline's makespan, then what cannot hide behind it.

    `stages` has one entry per pipeline rank. `bubble_of_makespan` is 1 − (work of the busiest rank)
    / makespan. Throughput, MFU and HFU (which counts recomputation as work) are `None` where the
    profile or the caller does not say what a microbatch holds.
    """

    step_time_s: float
    pipeline_s: float
    exposed_gradient_sync_s: float
    optimizer_s: float
    bubble_of_makespan: float
    stages: tuple[StagePrediction, ...]
    tokens_per_s: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    communication: tuple[CommunicationTime, ...] = ()

    @property
    def peak_memory_bytes(self) -> float:
        """The fullest device of the plan."""
        return max(stage.memory.total_bytes for stage in self.stages)

    @property
    def fullest_stage(self) -> int:
        """The stage of that device, the first where several are."""
        return max(range(len(self.stages)), key=lambda i: self.stages[i].memory.total_bytes)


# What a plan on several kinds of devices is predicted to cost
# ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPrediction:
    """`count` replicas of the pipeline that run alike; `pools` are those of its ranks, in order.

    `step` is the step as long as this chain alone makes it.
    """

    count: int
    num_microbatches: int
    pools: tuple[int, ...]
    step: StepPrediction

    def busy_s(self, rank: int) -> float:
        """Seconds of a step that a rank works on microbatches."""
        stage: StagePrediction = self.step.stages[rank]
        return self.num_microbatches * (stage.forward_s + stage.backward_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPrediction:
    """One training step over all chains: the latest gradients, then the slowest optimizer.

    Throughput and MFU, over the peaks of all devices used, are `None` where they are not known.
    """

    step_time_s: float
    pipeline_s: float
    exposed_gradient_sync_s: float
    optimizer_s: float
    chains: tuple[ChainPrediction, ...]
    tokens_per_s: float | None = None
    mfu: float | None = None

    @property
    def slowest(self) -> int:
        """The chain that ends last, the first where several do."""
        return max(range(len(self.chains)), key=lambda i: self.chains[i].step.step_time_s)


# What a step sends across each network level, as seconds of one device
# ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisUse:
    """One purpose of communication: groups of `ranks` meet here, for so many seconds of a step."""

    kind: str
    ranks: int
    exposed_s: float
    hidden_s: float

    @property
    def total_s(self) -> float:
        """Seconds under way, whether anything waits for them or not."""
        return self.exposed_s + self.hidden_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelUse:
    """A network level, innermost first, and what crosses nothing further out.

    A group that spans several levels counts at the outermost, whose links are the slowest and
    decide. `effective_bytes_per_s` is what one device gets.
    """

    name: str
    size: int
    effective_bytes_per_s: float
    axes: tuple[AxisUse, ...] = ()

    @property
    def busy_s(self) -> float:
        """Seconds of a step under way across this level, one purpose after the other."""
        return sum(axis.total_s for axis in self.axes)
