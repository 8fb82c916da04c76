"""The document of `validate`: predictions scored against measured runs. Fractions, not percent."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.plan.results.request import FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """Relative errors of `n` predictions; `bias` is their mean, positive where too high."""

    n: int
    mape: float
    median_ape: float
    p90_ape: float
    max_ape: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretRecord:
    """Slowdown of choosing the plan predicted fastest, over the groups of one job."""

    mean: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageCheck:
    """Of `n` timed runs `inside` lie in their 90 % interval.

    From `least_accepted` to `most_accepted` the count agrees with 90 %, by a two-sided binomial
    test at 95 %.
    """

    n: int
    inside: int
    least_accepted: int
    most_accepted: int
    accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRecord:
    """Rows that were not modelled, and why."""

    reason: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRun:
    """One configuration: its prediction beside the median of its `repeats` measurements."""

    row_id: str
    repeats: int
    assumed: tuple[str, ...] = ()
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    measured_step_time_s: float | None = None
    peak_memory_bytes: float | None = None
    measured_peak_memory_bytes: float | None = None
    static_memory_bytes: float | None = None
    measured_static_memory_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetScore:
    """One file. `rows` = `modelled` + the rows under `skipped`; the `n` count configurations.

    `memory_apart` holds the memory errors of runs whose settings are not all recorded, or whose
    kind is counted apart. `false_fits` is the share of runs that need more than 1.05 times the
    predicted peak; `kendall_tau` ranks the layouts inside `ranked_groups` jobs, and `tau_ceiling`
    is what the scatter of repeated runs lets the true times reach; `interval_coverage` is the share
    whose time lies inside the 90 % interval, and `interval_check` whether that agrees with 90 %.
    """

    name: str
    rows: int
    modelled: int
    assumed: int = 0
    skipped: tuple[SkippedRecord, ...] = ()
    time: ErrorRecord | None = None
    memory: ErrorRecord | None = None
    static_memory: ErrorRecord | None = None
    memory_apart: ErrorRecord | None = None
    static_memory_apart: ErrorRecord | None = None
    static_error_bytes: float | None = None
    repeat_spread: float | None = None
    ranked_groups: int = 0
    kendall_tau: float | None = None
    tau_ceiling: float | None = None
    top1_regret: RegretRecord | None = None
    false_fits: float | None = None
    interval_coverage: float | None = None
    interval_check: CoverageCheck | None = None
    interval_width: float | None = None
    runs: tuple[ScoredRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """All files of a folder."""

    kind: str = "validation"
    format_version: int = FORMAT_VERSION
    datasets: tuple[DatasetScore, ...]
    pooled_interval_coverage: float | None = None
    pooled_top1_regret: RegretRecord | None = None
    folder: str = ""
    profiles: str | None = None
    warnings: tuple[str, ...] = ()
