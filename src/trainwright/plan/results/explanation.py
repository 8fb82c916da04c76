"""Which stage limits time, which limits memory: read off a plan's own figures."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.plan.results.plan import StageRecord
from trainwright.plan.results.request import FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What binds. Stages are indices from 0; `time_share` says what the slowest is busy with.

    `idle_fraction` is the share of device time that waits for the slowest stage, over all stages.
    """

    kind: str = "explanation"
    format_version: int = FORMAT_VERSION
    slowest_stage: int
    time_kind: str
    time_share: dict[str, float]
    fullest_stage: int
    free_bytes: float | None
    idle_fraction: float


def explain_stages(
    stages: tuple[StageRecord, ...], memory_limit_bytes: float | None
) -> Explanation:
    """Explain priced stages; the first stage wins a tie."""
    times = [stage.time_per_sample_s for stage in stages]
    slowest = times.index(max(times))
    breakdown = stages[slowest].breakdown
    spent = {
        "compute": breakdown.compute_s,
        "edge traffic": breakdown.edge_traffic_s,
        "gradient sync": breakdown.gradient_sync_s,
    }
    total = sum(spent.values())
    memories = [stage.memory_bytes for stage in stages]
    fullest = memories.index(max(memories))
    return Explanation(
        slowest_stage=slowest,
        time_kind=max(spent, key=spent.__getitem__),
        time_share={kind: value / total if total > 0 else 0.0 for kind, value in spent.items()},
        fullest_stage=fullest,
        free_bytes=None if memory_limit_bytes is None else memory_limit_bytes - memories[fullest],
        idle_fraction=_idle_fraction(stages, times[slowest]),
    )


def _idle_fraction(stages: tuple[StageRecord, ...], slowest_s: float) -> float:
    devices = [stage.data_parallel * stage.tensor_parallel for stage in stages]
    busy = sum(n * stage.time_per_sample_s for n, stage in zip(devices, stages, strict=True))
    return 1 - busy / (sum(devices) * slowest_s) if slowest_s > 0 else 0.0
