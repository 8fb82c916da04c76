"""How much a result claims; one enumeration for every command."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from trainwright.units import format_bytes_up

if TYPE_CHECKING:
    from trainwright.plans.lowered import Timeline

OPTIMAL_TOLERANCE: Final = 1e-9


class Status(StrEnum):
    """`optimal` is proved; `gap` is a plan with a proved bound; `infeasible` is proved."""

    OPTIMAL = "optimal"
    GAP = "gap"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        """The process exit code of a command that ends with this status."""
        return {Status.INFEASIBLE: 3, Status.UNKNOWN: 5}.get(self, 0)


def status_at(gap: float) -> Status:
    """What a gap proves of a plan: the bound is met, or a gap is left."""
    return Status.OPTIMAL if gap <= OPTIMAL_TOLERANCE else Status.GAP


class BoundKind(StrEnum):
    """Whether a bound is proved here or taken from a publication unproved."""

    PROVED = "proved"
    PUBLISHED = "published"


def relative_gap(value: float, lower_bound: float) -> float:
    """(value − bound) / value, 0 where the value is 0; both finite and >= 0."""
    if value <= 0 or not math.isfinite(value):
        return 0.0
    return max(0.0, (value - lower_bound) / value)


# How short a schedule can be, and why
# ------------------------------------


class Objective(StrEnum):
    """What a schedule is judged by.

    MAKESPAN is the window of all ranks, from the first start to the last end; SPAN is the window of
    the rank whose own is longest.
    """

    MAKESPAN = "makespan"
    SPAN = "span"

    def of(self, timeline: Timeline) -> float:
        """The objective's value, in seconds."""
        return timeline.span_s if self is Objective.SPAN else timeline.makespan_s


class BoundName(StrEnum):
    """The argument behind a lower bound."""

    RANK_WORK = "rank-work"
    MEMORY_AREA = "memory-area"
    MEMORY_PATH = "memory-path"
    WINDOW = "window"
    CROSSINGS = "crossings"
    TWO_RANKS = "two-ranks"
    SOLVER = "solver"


class Bound(NamedTuple):
    """No schedule takes less than `value_s`."""

    value_s: float
    name: BoundName


ADAPTER_RANK: Final = 16  # beside the products that `--lora-targets` means if absent
# Weights, gradients and moments as options of `plan` say it (`model.recipe.ALL_IN_16_BIT`).
ALL_BF16: Final = "--main-weight-dtype none --gradient-dtype bf16 --moment-dtype bf16"
# Changes of how a model trains.
TRAININGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gradient-dtype": "--gradient-dtype bf16",
        "moment-dtype": "--moment-dtype int8",
        "all-bf16": ALL_BF16,
        "offload-optimizer": "--offload optimizer=1",
        "offload-states": "--offload optimizer=1 --offload gradients=1",
        "lora": f"--lora-rank {ADAPTER_RANK}",
        "qlora": f"--lora-rank {ADAPTER_RANK} --weight-bits 4",
    }
)
_FREE: Final[Mapping[str, str]] = MappingProxyType(
    {
        **TRAININGS,
        "tensor-parallel": "--tp 1..",
        "data-parallel": "--dp 1..",
        "pipeline-parallel": "--pp 1..",
        "context-parallel": "--cp 1..",
        "expert-parallel": "--ep 1..",
        "expert-tensor-parallel": "--etp 1..",
        "micro-batch": "--micro-batch 1..",
        "recompute": "--recompute none,selective,full",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """One change that, alone, makes a plan fit; `value` is in the unit of what is changed.

    `nodes` are those of a larger cluster, where devices take one. `step_time_s` and `devices_used`
    are those of the best plan found under it, for a model.
    """

    change: str  # "devices", "memory", or the option that allows or sets it, such as "recompute"
    description: str
    value: float | None = None
    nodes: int | None = None
    time_per_sample_s: float | None = None
    step_time_s: float | None = None
    devices_used: int | None = None

    @property
    def option(self) -> str | None:
        """The option of `plan` that asks for the change, None for what only Python can ask."""
        if self.value is None:
            return _FREE.get(self.change)
        match self.change:
            case "memory":
                return f"--memory {format_bytes_up(self.value).replace(' ', '')}"
            case "devices" | "sequence" | "zero":
                larger = "" if self.nodes is None else f"--nodes {self.nodes} "
                return f"{larger}--{self.change} {int(self.value)}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What cannot fit: a layer or a stage (layer ids), and the bytes it misses."""

    kind: str  # "layer", "stage", "devices", "schedule", "memory"
    layers: tuple[int, ...]
    missing_bytes: float
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Another planner or a restricted mode on the same problem; `slowdown` is relative to ours."""

    name: str
    status: Status
    time_per_sample_s: float | None = None
    slowdown: float | None = None
    num_stages: int | None = None


# What a job left behind of its memory: a message that it ran out, or a snapshot
# ------------------------------------------------------------------------------


class Phase(StrEnum):
    """What a job was doing."""

    INITIALISATION = "initialisation"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"


_SMALLEST_SEGMENT: Final = 2 * 2**20  # c10/cuda/CUDACachingAllocator: kSmallBuffer


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The first allocation that failed, in bytes; what the message leaves out is absent.

    `rank` is that of the process among all, `gpu` the number of its device among those that it
    sees, `tried_bytes` what was asked for. Of the device
    `capacity_bytes` is all, `free_bytes` what was left. `in_use_bytes` is what the process held,
    `reserved_bytes` what its allocator did and `allocated_bytes` what its tensors did.
    """

    rank: int | None = None
    gpu: int | None = None
    phase: Phase | None = None
    tried_bytes: float | None = None
    capacity_bytes: float | None = None
    free_bytes: float | None = None
    in_use_bytes: float | None = None
    reserved_bytes: float | None = None
    allocated_bytes: float | None = None

    @property
    def missing_bytes(self) -> float:
        """What must be spared at least for the allocation to succeed.

        Where nobody says what was asked for, it is the smallest segment that PyTorch's allocator
        asks a device for.
        """
        tried = _SMALLEST_SEGMENT if self.tried_bytes is None else self.tried_bytes
        return max(0.0, tried - (self.free_bytes or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """One device at its fullest instant on record. Bytes, by class of what allocated them.

    `reserved_bytes` is what the allocator holds at the end; `num_events` allocations and frees
    were replayed, 0 where only the end is on record.
    """

    device: int
    allocated_bytes: float
    reserved_bytes: float
    by_class_bytes: dict[str, float]
    num_blocks: int
    num_events: int
