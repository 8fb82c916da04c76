"""What a plan is predicted to cost."""

from __future__ import annotations

from dataclasses import dataclass


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
