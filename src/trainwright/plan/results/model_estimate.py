"""The document of `estimate` on a model: one stated run, its step and its memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from trainwright.plan.configuration import Configuration
from trainwright.plan.results.request import FORMAT_VERSION, Embedded


class Verdict(StrEnum):
    """FITS with all margins; TIGHT only without them; else it does not fit."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """One pipeline rank at its fullest, in bytes by class; the classes add up to `total_bytes`.

    `margin_bytes` is what the device has left after fragmentation and reserve, negative where it
    has not; `largest_class` is the class that holds most.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedChange:
    """A change of options that makes the run fit, and what its step then takes.

    `slowdown` and `device_time_ratio` compare step time, and step time times devices, with those of
    the run as it was asked for.
    """

    options: str
    description: str
    step_time_s: float
    slowdown: float
    device_time_ratio: float
    devices_used: int
    peak_memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEstimateRequest:
    """Everything the estimate depends on."""

    trainwright_version: str
    model: Embedded
    cluster: Embedded
    configuration: Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEstimateResult:
    """Predicted step of a stated run. Times in seconds, sizes in bytes, shares as fractions.

    `step_time_low_s` and `step_time_high_s` hold nine of ten measured steps. `memory` has one entry
    per pipeline rank; all tensor, context and data ranks of it hold the same.
    """

    kind: str = "model-estimate"
    format_version: int = FORMAT_VERSION
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    mfu: float
    hfu: float
    pipeline_s: float
    optimizer_s: float
    exposed_communication_s: dict[str, float]
    hidden_communication_s: dict[str, float]
    bubble_of_makespan: float
    devices_used: int
    num_microbatches: int
    memory: tuple[RankMemory, ...]
    peak_memory_bytes: float
    heaviest_rank: int
    memory_limit_bytes: float
    margin_bytes: float
    fits: bool
    verdict: Verdict
    changes: tuple[PricedChange, ...] = ()
    warnings: tuple[str, ...] = ()
    assumptions: dict[str, str] = field(default_factory=dict)
    request: ModelEstimateRequest
