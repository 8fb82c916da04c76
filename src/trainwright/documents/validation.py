"""The document of `validate`: predictions scored against measured runs. Fractions, not percent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.documents.view import add_row, table
from trainwright.errors import InvalidInput, MissingExtra
from trainwright.plans.request import FORMAT_VERSION

if TYPE_CHECKING:
    from rich.console import RenderableType


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
    """Slowdown of choosing by prediction, over the groups of one job.

    `beyond_repeats` is the mean of what exceeds the difference of two runs of one configuration.
    """

    mean: float
    max: float
    beyond_repeats: float = 0.0


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
    top3_regret: RegretRecord | None = None
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


# Scores of predictions against measured runs, as tables: one line per file and quantity
# --------------------------------------------------------------------------------------

QUANTITIES = (
    ("time", "time"),
    ("memory", "memory"),
    ("static_memory", "static"),
    ("memory_apart", "memory, apart"),
    ("static_memory_apart", "static, apart"),
)


def validation_report(found: ValidationResult) -> RenderableType:
    """Errors, then ranking and intervals, then what was not modelled."""
    from rich.console import Group
    from rich.text import Text

    parts = [_errors(found), _ranking(found), _intervals(found)]
    if any(dataset.skipped for dataset in found.datasets):
        parts.append(_skipped(found))
    parts.extend(Text(f"warning: {warning}") for warning in found.warnings)
    return Group(*parts)


def _errors(found: ValidationResult) -> RenderableType:
    columns = (
        ("file", "left"),
        ("rows", "right"),
        ("modelled", "right"),
        ("quantity", "left"),
        ("n", "right"),
        ("mean", "right"),
        ("median", "right"),
        ("p90", "right"),
        ("max", "right"),
        ("bias", "right"),
    )
    made = table("relative errors", columns)
    for dataset in found.datasets:
        first = True
        for field, label in QUANTITIES:
            record: ErrorRecord | None = getattr(dataset, field)
            if record is None:
                continue
            head = (dataset.name, str(dataset.rows), str(dataset.modelled))
            add_row(made, *(head if first else ("", "", "")), label, *_figures(record))
            first = False
        if first:
            add_row(made, dataset.name, str(dataset.rows), str(dataset.modelled), *[""] * 7)
    return made


def _figures(record: ErrorRecord) -> tuple[str, ...]:
    shares = (record.mape, record.median_ape, record.p90_ape, record.max_ape)
    return (str(record.n), *map(_percent, shares), f"{record.bias:+.1%}")


def _ranking(found: ValidationResult) -> RenderableType:
    columns = (
        ("file", "left"),
        ("jobs", "right"),
        ("tau", "right"),
        ("ceiling", "right"),
        ("regret mean", "right"),
        ("regret max", "right"),
    )
    made = table("ranking", columns)
    for dataset in found.datasets:
        if not dataset.ranked_groups:
            continue
        add_row(
            made,
            dataset.name,
            str(dataset.ranked_groups),
            "" if dataset.kendall_tau is None else f"{dataset.kendall_tau:.2f}",
            "" if dataset.tau_ceiling is None else f"{dataset.tau_ceiling:.2f}",
            *_regrets(dataset.top1_regret),
        )
    jobs = sum(dataset.ranked_groups for dataset in found.datasets)
    add_row(made, "all files", str(jobs or ""), "", "", *_regrets(found.pooled_top1_regret))
    return made


def _intervals(found: ValidationResult) -> RenderableType:
    """False fits, and how many steps lie inside their interval beside how many should."""
    columns = (
        ("file", "left"),
        ("false fits", "right"),
        ("in 90 % interval", "right"),
        ("expected", "right"),
        ("interval width", "right"),
    )
    made = table("fits and intervals", columns)
    for dataset in found.datasets:
        add_row(
            made,
            dataset.name,
            _percent(dataset.false_fits),
            _percent(dataset.interval_coverage),
            _accepted(dataset.interval_check),
            _percent(dataset.interval_width),
        )
    add_row(made, "all files", "", _percent(found.pooled_interval_coverage), "", "")
    return made


def _regrets(found: RegretRecord | None) -> tuple[str, str]:
    return ("", "") if found is None else (_percent(found.mean), _percent(found.max))


def _skipped(found: ValidationResult) -> RenderableType:
    made = table("not modelled", (("file", "left"), ("rows", "right"), ("why", "left")))
    for dataset in found.datasets:
        for skipped in _most_first(dataset):
            add_row(made, dataset.name, str(skipped[0]), skipped[1])
    return made


def _most_first(dataset: DatasetScore) -> list[tuple[int, str]]:
    return sorted(((s.rows, s.reason) for s in dataset.skipped), reverse=True)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _accepted(check: CoverageCheck | None) -> str:
    """The shares inside that agree with 90 %, and a mark where the file's does not."""
    if check is None:
        return ""
    low, high = check.least_accepted / check.n, check.most_accepted / check.n
    return f"{low:.0%} to {high:.0%}{'' if check.accepted else ', missed'}"


# Every scored run: prediction beside measurement
# -----------------------------------------------

_QUANTITIES = (
    ("step_time_s", "measured_step_time_s", 1.0, "s"),
    ("peak_memory_bytes", "measured_peak_memory_bytes", 1e-9, "GB peak"),
    ("static_memory_bytes", "measured_static_memory_bytes", 1e-9, "GB static"),
)


def rows_report(found: ValidationResult) -> RenderableType:
    """One line per run and quantity that was measured."""
    columns = (
        ("run", "left"),
        ("repeats", "right"),
        ("quantity", "left"),
        ("predicted", "right"),
        ("measured", "right"),
        ("error", "right"),
        ("assumed", "left"),
    )
    made = table("runs", columns)
    for dataset in found.datasets:
        for run in dataset.runs:
            for predicted, measured, scale, unit in _QUANTITIES:
                here, there = getattr(run, predicted), getattr(run, measured)
                if here is None or there is None:
                    continue
                figures = (
                    f"{here * scale:.4g}",
                    f"{there * scale:.4g}",
                    f"{here / there - 1:+.1%}",
                )
                add_row(made, run.row_id, str(run.repeats), unit, *figures, ", ".join(run.assumed))
    return made


# Predicted against measured, one panel per quantity, one colour per file (extra `[plot]`)
# ----------------------------------------------------------------------------------------

_PANELS = (
    ("step time (s)", "step_time_s", "measured_step_time_s"),
    ("peak memory (GB)", "peak_memory_bytes", "measured_peak_memory_bytes"),
)
_SCALES = {"step_time_s": 1.0, "peak_memory_bytes": 1e-9}


def plot_validation(found: ValidationResult, path: Path) -> None:
    """Write the figure in the format of the file's ending.

    Raises `MissingExtra` without matplotlib, `InvalidInput` for an ending it cannot write.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("drawing predictions needs matplotlib", extra="plot") from None
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    for axes, (title, predicted, measured) in zip(figure.subplots(1, 2), _PANELS, strict=True):
        scale, seen = _SCALES[predicted], []
        for index, dataset in enumerate(found.datasets):
            pairs = [
                (getattr(run, measured) * scale, getattr(run, predicted) * scale)
                for run in dataset.runs
                if getattr(run, measured) is not None and getattr(run, predicted) is not None
            ]
            if pairs:
                axes.scatter(
                    *zip(*pairs, strict=True),
                    s=12,
                    alpha=0.6,
                    c=f"C{index % 10}",
                    label=dataset.name,
                )
                seen += [value for pair in pairs for value in pair]
        axes.set(xscale="log", yscale="log", title=title, xlabel="measured", ylabel="predicted")
        if seen:
            ends = (min(seen), max(seen))
            axes.plot(ends, ends, color="0.4", linewidth=0.8)
            axes.legend(fontsize="x-small")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InvalidInput.of("plot", f"cannot be written: {error}", source=str(path)) from None
