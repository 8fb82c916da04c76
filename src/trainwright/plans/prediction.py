"""What a plan is predicted to cost."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final

from trainwright.provenance import RARE


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


# What a device holds, by class
# -----------------------------
# A class is a field of `StageMemory`; sums, tables, pages and figures take the rest from its row.


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryClass:
    """A part of a device's peak: what tables head it with and texts call it.

    Pages draw it as `part`, in `colors` on light and on dark ground. What `is_static` stays for the
    whole step; what `is_beside` does so too, and is not the model's.
    """

    name: str
    words: str
    heading: str
    part: str
    colors: tuple[str, str]
    is_static: bool = False
    is_beside: bool = False


def _class(
    words: str,
    *colors: str,
    heading: str = "",
    part: str = "",
    is_static: bool = False,
    is_beside: bool = False,
    **default: float,
) -> Any:
    """A field that is a class of memory; `part` is the name of the class where absent."""
    row = {"words": words, "colors": colors, "heading": heading, "part": part}
    kept = {"is_static": is_static, "is_beside": is_beside}
    return field(metadata={"class": {**row, **kept}}, **default)  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes of one device of a stage at its fullest, by class.

    `opaque_bytes` are static bytes of imported profiles that do not say what they hold.
    `activation_bytes` leaves out what head and loss keep, `logits_bytes`. `transient_bytes` are
    needed for a moment by one layer, `buffer_bytes` by communication, `workspace_bytes` by
    libraries for ever.
    """

    weight_bytes: float = _class("weights", "#0072b2", "#1681c4", part="weights", is_static=True)
    gradient_bytes: float = _class("gradients", "#8cc8ea", "#8cc8ea", is_static=True)
    optimizer_bytes: float = _class(
        "optimizer states", "#00466e", "#0a5a8c", heading="optim", part="state", is_static=True
    )
    opaque_bytes: float = _class("static state", "#4a5562", "#8d99a6", is_static=True)
    activation_bytes: float = _class(
        "activations", "#e69f00", "#e8a51c", heading="active", part="activations"
    )
    logits_bytes: float = _class("logits and loss", "#d55e00", "#dd6a17", default=0.0)
    transient_bytes: float = _class("temporary tensors", "#d3a3c2", "#d9aecb", heading="temp")
    buffer_bytes: float = _class(
        "communication buffers", "#009e73", "#0fa67c", part="buffers", default=0.0
    )
    workspace_bytes: float = _class(
        "workspaces", "#8d99a6", "#6b7682", heading="work", is_beside=True, default=0.0
    )
    microbatches_in_flight: int

    @property
    def static_bytes(self) -> float:
        """What stays for the whole step."""
        return float(sum(_STATIC(self)))

    @property
    def beside_bytes(self) -> float:
        """What stays and is not the model's."""
        return float(sum(getattr(self, name) for name in BESIDE))

    @property
    def total_bytes(self) -> float:
        """Peak of one device."""
        return float(sum(_HELD(self)))

    @property
    def movable_bytes(self) -> float:
        """What may lie on the host instead."""
        states = self.weight_bytes + self.gradient_bytes + self.optimizer_bytes
        return states + self.activation_bytes

    @property
    def by_class(self) -> dict[str, float]:
        """Bytes of each of `MEMORY_CLASSES`; they add up to `total_bytes`."""
        return {each.name: float(getattr(self, f"{each.name}_bytes")) for each in MEMORY_CLASSES}


def _classes() -> tuple[MemoryClass, ...]:
    found = []
    for each in fields(StageMemory):
        if (row := each.metadata.get("class")) is not None:
            name = each.name.removesuffix("_bytes")
            own = {key: row[key] or name for key in ("heading", "part")}
            found.append(MemoryClass(**{**row, **own, "name": name}))
    return tuple(found)


MEMORY_CLASSES: Final = _classes()
_HELD: Final = attrgetter(*(f"{each.name}_bytes" for each in MEMORY_CLASSES))
BESIDE: Final = tuple(f"{each.name}_bytes" for each in MEMORY_CLASSES if each.is_beside)
_STATIC: Final = attrgetter(*(f"{each.name}_bytes" for each in MEMORY_CLASSES if each.is_static))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """One pipeline rank at its fullest, in bytes by class; the classes add up to `total_bytes`.

    `opaque_bytes` are those of a profile that does not say what they hold; absent where it does.
    `margin_bytes` is what the device has left after fragmentation and reserve, negative where it
    has not; `largest_class` is the class that holds most. `host_bytes` lie in the host's memory,
    where anything does. On several pools there is one of each rank of each chain of like replicas;
    `chain` and `pool` are indices.
    """

    rank: int
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    logits_bytes: float
    transient_bytes: float
    buffer_bytes: float
    workspace_bytes: float
    total_bytes: float
    margin_bytes: float
    microbatches_in_flight: int
    largest_class: str
    host_bytes: float | None = None
    opaque_bytes: float | None = None
    chain: int | None = field(default=None, metadata={RARE: True})
    pool: int | None = field(default=None, metadata={RARE: True})
    device_kind: str | None = field(default=None, metadata={RARE: True})
    memory_limit_bytes: float | None = field(default=None, metadata={RARE: True})

    @property
    def beside_bytes(self) -> float:
        """What stays and is not the model's, as `StageMemory.beside_bytes`."""
        return sum(getattr(self, name) or 0.0 for name in BESIDE)


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
class RankRecord(StagePrediction):
    """A pipeline rank of one chain of `count` like replicas, on devices of one pool.

    `pool`, `chain` and `rank` are indices from 0; on one pool there is one chain. Each replica runs
    `num_microbatches` in a step, on which the rank works the share `busy` of it. A device of it
    holds `memory_bytes` of `memory_limit_bytes`; `margin_bytes` are left beside what every device
    keeps.
    """

    chain: int
    rank: int
    pool: int
    device_kind: str
    count: int
    num_microbatches: int
    busy: float
    memory_bytes: float
    memory_limit_bytes: float
    margin_bytes: float


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

    @property
    def peak_memory_bytes(self) -> float:
        """What the fullest device needs, of whatever kind."""
        return max(chain.step.peak_memory_bytes for chain in self.chains)


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
