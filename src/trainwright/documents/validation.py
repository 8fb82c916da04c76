"""The document of `validate`: predictions scored against measured runs. Fractions, not percent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainwright.documents import view
from trainwright.errors import InvalidInput, MissingExtra
from trainwright.plans.plan import FORMAT_VERSION, CommandLine


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
    """Of `n` timed runs `inside` lie in their 90% interval.

    From `least_accepted` to `most_accepted` the count agrees with 90%, by a two-sided binomial
    test at 95%.
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
    fits: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetScore:
    """One file. `rows` = `modelled` + the rows under `skipped`; the `n` count configurations.

    `memory_apart` holds the memory errors of runs whose settings are not all recorded, or whose
    kind is counted apart. `false_fits` is the share of runs that need more than 1.05 times the
    upper end of the predicted peak, `refused` of those, all of which ran, that are said not to fit;
    `kendall_tau` ranks the layouts inside `ranked_groups` jobs, and `tau_ceiling` is what the
    scatter of repeated runs lets the true times reach; `interval_coverage` is the share whose time
    lies inside the 90% interval, and `interval_check` whether that agrees with 90%.
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
    refused: float | None = None
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
    predictions: str | None = None
    warnings: tuple[str, ...] = ()
    command_line: CommandLine | None = None


# Scores of predictions against measured runs, as tables: one line per file and quantity
# --------------------------------------------------------------------------------------

QUANTITIES = (
    ("time", "time"),
    ("memory", "memory"),
    ("static_memory", "static"),
    ("memory_apart", "memory, apart"),
    ("static_memory_apart", "static, apart"),
)


def validation_view(found: ValidationResult) -> Iterator[view.Line]:
    """Errors, then ranking and intervals, then what was not modelled."""
    yield error_table(found)
    if is_ranked(found):
        yield ranking_table(found)
    intervals = interval_table(found)
    if len(intervals.columns) > 1:  # predictions of others may state times alone
        yield intervals
    if any(dataset.skipped for dataset in found.datasets):
        yield skipped_table(found)
    yield from view.warning_lines(found.warnings)


def error_table(found: ValidationResult) -> view.Table:
    """Relative errors by file and quantity."""
    return view.table_of(
        "Relative errors",
        (
            view.words("file"),
            view.column("rows"),
            view.column("modelled"),
            view.words("quantity"),
            view.column("runs", "n", "n"),
            view.column("mean", "mape"),
            view.column("median", "median_ape"),
            view.column("nine of ten below", "p90_ape", "p90"),
            view.column("largest", "max_ape", "max"),
            view.column("bias"),
        ),
        (cells for dataset in found.datasets for cells in _error_rows(dataset)),
        caption="relative errors",
        note="Bias is positive where predictions are too high.",
    )


def _error_rows(dataset: DatasetScore) -> Iterator[tuple[view.Cell | float | str, ...]]:
    head = (dataset.name, dataset.rows, dataset.modelled)
    stated = [
        (label, record)
        for field, label in QUANTITIES
        if (record := getattr(dataset, field)) is not None
    ]
    for label, record in stated:
        shares = (record.mape, record.median_ape, record.p90_ape, record.max_ape)
        yield (
            *head,
            label,
            record.n,
            *map(view.percent, shares),
            view.percent(record.bias, sign=True),
        )
    if not stated:
        yield *head, *("",) * 7


def is_ranked(found: ValidationResult) -> bool:
    """Whether some job ran in several layouts."""
    return any(dataset.ranked_groups for dataset in found.datasets)


def ranking_table(found: ValidationResult) -> view.Table:
    """How well layouts of one job are ranked, and what choosing the first loses."""
    ranked = [dataset for dataset in found.datasets if dataset.ranked_groups]
    jobs = sum(dataset.ranked_groups for dataset in ranked)
    made = view.table_of(
        "Ranking",
        (
            view.words("file"),
            view.column("jobs", "ranked_groups"),
            view.column("tau", "kendall_tau"),
            view.column("ceiling", "tau_ceiling"),
            view.column("regret", "regret_mean", "regret mean"),
            view.column("at most", "regret_max", "regret max"),
        ),
        (
            *(
                (
                    dataset.name,
                    dataset.ranked_groups,
                    view.number(dataset.kendall_tau, ".2f"),
                    view.number(dataset.tau_ceiling, ".2f"),
                    *_regrets(dataset.top1_regret),
                )
                for dataset in ranked
            ),
            ("all files", jobs or "", "", "", *_regrets(found.pooled_top1_regret)),
        ),
        caption="ranking",
        note="Tau is 1 where layouts of a job are ranked as measured; its ceiling is what the "
        "scatter of repeated runs allows. Regret is what the layout predicted fastest loses.",
    )
    return made.without_empty()


def _regrets(found: RegretRecord | None) -> tuple[view.Cell, view.Cell]:
    return (
        (view.percent(found.mean), view.percent(found.max)) if found else (view.percent(None),) * 2
    )


def interval_table(found: ValidationResult) -> view.Table:
    """False fits, and how many steps lie inside their interval beside how many should."""
    made = view.table_of(
        "Fits and intervals",
        (
            view.words("file"),
            view.column("false fits", "false_fits"),
            view.column("refused, but ran", "refused"),
            view.column("in 90% interval", "interval_coverage"),
            view.column("expected", "interval_expected"),
            view.column("interval width", "interval_width"),
        ),
        (
            *(
                (
                    dataset.name,
                    view.percent(dataset.false_fits),
                    view.percent(dataset.refused),
                    view.percent(dataset.interval_coverage),
                    _accepted(dataset.interval_check),
                    view.percent(dataset.interval_width),
                )
                for dataset in found.datasets
            ),
            ("all files", "", "", view.percent(found.pooled_interval_coverage), "", ""),
        ),
        caption="fits and intervals",
    )
    return made.without_empty()


def skipped_table(found: ValidationResult) -> view.Table:
    """Rows that were not modelled, the most frequent reason of each file first."""
    return view.table_of(
        "Rows left out, and why",
        (view.words("file"), view.column("rows"), view.words("why", "reason")),
        (
            (dataset.name, one.rows, one.reason)
            for dataset in found.datasets
            for one in sorted(dataset.skipped, key=lambda each: (-each.rows, each.reason))
        ),
        caption="not modelled",
    )


def _accepted(check: CoverageCheck | None) -> str:
    """The shares inside that agree with 90%, and a mark where the file's does not."""
    if check is None:
        return ""
    low, high = check.least_accepted / check.n, check.most_accepted / check.n
    return f"{low:.0%} to {high:.0%}{'' if check.accepted else ', missed'}"


# Every scored run: prediction beside measurement
# -----------------------------------------------

_QUANTITIES = (
    ("step_time_s", "measured_step_time_s", view.seconds),
    ("peak_memory_bytes", "measured_peak_memory_bytes", view.size),
    ("static_memory_bytes", "measured_static_memory_bytes", view.size),
)


def rows_table(found: ValidationResult, *, most: int | None = None) -> view.Table:
    """One row per run; of many those `most` with the largest errors of time."""
    runs = [(dataset.name, run) for dataset in found.datasets for run in dataset.runs]
    hidden = 0 if most is None else len(runs) - most
    if hidden > 0:
        runs = sorted(runs, key=lambda pair: -_time_error(pair[1]))[:most]
    made = view.table_of(
        "Predicted and measured",
        (
            view.words("file", on="page"),
            view.words("run", "row_id"),
            view.column("repeats"),
            view.column("step", "step_time_s"),
            view.column("measured", "measured_step_time_s"),
            view.column("off", "step_error"),
            view.column("memory", "peak_memory_bytes"),
            view.column("measured", "measured_peak_memory_bytes"),
            view.column("off", "memory_error"),
            view.column("static", "static_memory_bytes"),
            view.column("measured", "measured_static_memory_bytes"),
            view.column("off", "static_error"),
            view.words("assumed"),
        ),
        (
            (name, run.row_id, run.repeats, *_run_cells(run), ", ".join(run.assumed))
            for name, run in runs
        ),
        caption="runs",
        note=f"{hidden:,} more with smaller errors are in the document." if hidden > 0 else "",
    )
    return made.without_empty()


def _time_error(run: ScoredRun) -> float:
    if run.step_time_s is None or not run.measured_step_time_s:
        return -1.0
    return abs(run.step_time_s / run.measured_step_time_s - 1)


def _run_cells(run: ScoredRun) -> Iterator[view.Cell]:
    for name, measured_name, shown in _QUANTITIES:
        predicted, measured = getattr(run, name), getattr(run, measured_name)
        yield shown(predicted)
        yield shown(measured)
        known = predicted is not None and measured
        yield view.percent(predicted / measured - 1 if known else None, sign=True)


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
