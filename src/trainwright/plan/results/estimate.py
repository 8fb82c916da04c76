"""The document of `estimate --plan` on a profile: a given plan, priced."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.plan.results.plan import StageRecord
from trainwright.plan.results.request import FORMAT_VERSION, PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowRecord:
    """A stage (index, from 0) that does not fit, and the bytes it misses."""

    stage: int
    missing_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateResult:
    """Price of a plan someone else made; complete also where it does not fit."""

    kind: str = "estimate"
    format_version: int = FORMAT_VERSION
    fits: bool
    time_per_sample_s: float
    devices_used: int
    num_stages: int
    stages: tuple[StageRecord, ...]
    overflows: tuple[OverflowRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    request: PlanRequest
