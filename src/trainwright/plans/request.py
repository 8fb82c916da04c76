"""What was asked, in full: a document can be explained and re-run without any other file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainwright.model import Recipe
from trainwright.plans.configuration import MemoryOverheads, Overlap

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """An input carried inside the document: its kind, where it came from, its hash and content."""

    kind: str
    name: str
    sha256: str
    content: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRecord:
    """The flat setting after all overrides; see `trainwright.profile.Setting`."""

    num_devices: int
    memory_bytes: float
    bandwidth_bytes_per_s: float
    num_microbatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """Whole numbers from `least` to `most`; no upper end where that is absent."""

    least: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceRecord:
    """Which plans were searched: what was switched off, fixed or bounded.

    The degrees, `zero_stages`, `recompute_modes`, `schedules`, `framework` and `mappings` (orders
    of the axes on the network; one, tp-cp-ep-dp-pp, where absent) belong to a model's plan; a
    degree that is absent was free, and so were the schedules. `micro_batch` and `zero_stage` are
    what earlier versions wrote in place of them.
    """

    data_parallel: bool = True
    tensor_parallel: bool = True
    recompute: bool = True
    excluded_options: tuple[str, ...] = ()
    per_stage_degrees: bool = True
    planner: str = "exact"
    block_layer: str | None = None
    micro_batch: int | None = None
    zero_stage: int | None = None
    tensor: SpanRecord | None = None
    pipeline: SpanRecord | None = None
    data: SpanRecord | None = None
    context: SpanRecord | None = None
    expert: SpanRecord | None = None
    expert_tensor: SpanRecord | None = None
    virtual_stages: SpanRecord | None = None
    microbatch_size: SpanRecord | None = None
    state_copies: SpanRecord | None = None
    zero_stages: tuple[int, ...] = ()
    recompute_modes: tuple[str, ...] = ()
    schedules: tuple[str, ...] | None = None
    framework: str | None = None
    mappings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRecord:
    """What one training step processes, for a model.

    A measured model may not say how long its sequences are.
    """

    global_batch: int
    sequence_length: int | None = None
    precision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The request of `plan` and `estimate`.

    `cluster`, `workload`, `overheads` (none where absent), `recipe` and `overlap` (the usual ones
    where absent), `top`, the number of runners-up, `prefer`, `effort` (1 where absent) and
    `software`, whose account of memory holds where that is not the framework's, belong to a
    model's, `cost_model` to a placement problem's.
    """

    trainwright_version: str
    model: Embedded
    space: SpaceRecord
    setting: SettingRecord | None = None
    cluster: Embedded | None = None
    workload: WorkloadRecord | None = None
    overheads: MemoryOverheads | None = None
    recipe: Recipe | None = None
    overlap: Overlap | None = None
    num_devices: int | None = None
    top: int | None = None
    prefer: str | None = None
    effort: float | None = None
    software: str | None = None
    cost_model: str | None = None
    time_limit_s: float | None = None
