"""The page of `validate`: how far predictions are from measured runs, file by file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.documents.printing import counted
from trainwright.documents.validation import QUANTITIES
from trainwright.documents.view import Cell, Column, Facts, Notes, Table, percent, seconds, size
from trainwright.pages.blocks import Bar, BarChart, Card, Code, Part, Section
from trainwright.pages.subject import Content, Figure, provenance_section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.documents.validation import DatasetScore, ScoredRun, ValidationResult
    from trainwright.pages.subject import Subject

_MOST_RUNS: Final = 500  # in the table, those with the largest error of time first


def validation_content(subject: Subject[ValidationResult]) -> Content:
    """Everything the page says about predictions beside measurements."""
    document = subject.document
    rows = sum(dataset.rows for dataset in document.datasets)
    modelled = sum(dataset.modelled for dataset in document.datasets)
    return Content(
        title="Predictions beside measured runs",
        subtitle=f"{counted(len(document.datasets), 'file')} of {document.folder}: "
        f"{modelled:,} of {rows:,} rows modelled",
        figures=tuple(_figures(document)),
        sections=tuple(_sections(subject)),
    )


def _figures(document: ValidationResult) -> Iterator[Figure]:
    for dataset in document.datasets:
        if dataset.time is not None:
            value = dataset.time.mape
            key = f"time_mape_{dataset.name}"
            yield Figure(key=key, title=f"{dataset.name}, time", value=value, text=f"{value:.1%}")


def _sections(subject: Subject[ValidationResult]) -> Iterator[Section]:
    document = subject.document
    yield Section(name="summary", label="Summary", title="Summary", cards=tuple(_cards(document)))
    bars = tuple(_error_bars(document))
    yield Section(
        name="errors",
        label="Errors",
        title="How far predictions are off",
        blocks=(*bars, _errors(document)),
    )
    yield Section(
        name="ranking",
        label="Ranking",
        title="Which layout is faster, and how sure",
        blocks=(_ranking(document),),
    )
    if any(dataset.runs for dataset in document.datasets):
        yield Section(name="runs", label="Runs", title="Run by run", blocks=(_runs(document),))
    if any(dataset.skipped for dataset in document.datasets):
        yield Section(
            name="skipped", label="Not modelled", title="Not modelled", blocks=(_skipped(document),)
        )
    stated = {"measured runs": document.folder, "layer times": document.profiles or "none"}
    yield provenance_section(subject, stated)
    note = Notes(lines=(subject.command_note,))
    facts = Facts(rows=(("this document", f"sha256 {subject.sha256}"),))
    blocks = (Code(text=subject.command), note, facts)
    yield Section(name="reproduce", label="Reproduce", title="How to reproduce", blocks=blocks)


def _cards(document: ValidationResult) -> Iterator[Card]:
    timed = [d.time for d in document.datasets if d.time is not None]
    runs = sum(record.n for record in timed)
    if runs:
        mean = sum(record.mape * record.n for record in timed) / runs
        yield Card(
            label="error of step times",
            value=f"{mean:.1%}",
            note=f"mean over {counted(runs, 'configuration')}",
        )
    if document.pooled_interval_coverage is not None:
        yield Card(
            label="in the 90 % range",
            value=f"{document.pooled_interval_coverage:.1%}",
            note="of measured times, all files",
        )
    if (regret := document.pooled_top1_regret) is not None:
        yield Card(
            label="slower by choosing",
            value=f"{regret.mean:.1%}",
            note=f"than the fastest layout on average; at most {regret.max:.1%}",
        )
    skipped = sum(one.rows for dataset in document.datasets for one in dataset.skipped)
    yield Card(label="not modelled", value=f"{skipped:,}", note="rows, each with its reason")


def _error_bars(document: ValidationResult) -> Iterator[BarChart]:
    """One chart per quantity: mean and worst decile of each file."""
    for field, label in QUANTITIES:
        found = [(d.name, getattr(d, field)) for d in document.datasets]
        stated = [(name, record) for name, record in found if record is not None]
        if not stated:
            continue
        bars = tuple(
            Bar(
                label=name,
                parts=(
                    Part(
                        kind="plain",
                        label="mean error",
                        amount=record.mape,
                        text=f"{record.mape:.1%}",
                    ),
                ),
                total=f"{record.mape:.1%} of {record.n}",
            )
            for name, record in stated
        )
        yield BarChart(title=f"Mean relative error: {label}", bars=bars, label="file")


def _errors(document: ValidationResult) -> Table:
    rows = tuple(
        (
            Cell.of(dataset.name),
            Cell.of(label),
            Cell.of(record.n),
            percent(record.mape),
            percent(record.median_ape),
            percent(record.p90_ape),
            percent(record.max_ape),
            Cell(text=f"{record.bias:+.1%}", value=record.bias),
        )
        for dataset in document.datasets
        for field, label in QUANTITIES
        if (record := getattr(dataset, field)) is not None
    )
    return Table(
        title="Relative errors",
        columns=(
            Column(title="file", key="file", is_number=False),
            Column(title="quantity", key="quantity", is_number=False),
            Column(title="runs", key="n"),
            Column(title="mean", key="mape"),
            Column(title="median", key="median_ape"),
            Column(title="nine of ten below", key="p90_ape"),
            Column(title="largest", key="max_ape"),
            Column(title="bias", key="bias"),
        ),
        rows=rows,
        note="Bias is positive where predictions are too high.",
    )


def _ranking(document: ValidationResult) -> Table:
    return Table(
        title="Ranking and ranges",
        columns=(
            Column(title="file", key="file", is_number=False),
            Column(title="jobs", key="ranked_groups"),
            Column(title="tau", key="kendall_tau"),
            Column(title="ceiling", key="tau_ceiling"),
            Column(title="regret", key="regret_mean"),
            Column(title="at most", key="regret_max"),
            Column(title="false fits", key="false_fits"),
            Column(title="in the range", key="interval_coverage"),
            Column(title="width of the range", key="interval_width"),
        ),
        rows=tuple(tuple(_ranking_cells(dataset)) for dataset in document.datasets),
        note="Tau is 1 where layouts of a job are ranked as measured; its ceiling is what the "
        "scatter of repeated runs allows. Regret is what the layout predicted fastest loses.",
    )


def _ranking_cells(dataset: DatasetScore) -> Iterator[Cell]:
    yield Cell.of(dataset.name)
    yield Cell.of(dataset.ranked_groups or "")
    for tau in (dataset.kendall_tau, dataset.tau_ceiling):
        yield Cell.of("") if tau is None else Cell(text=f"{tau:.2f}", value=tau)
    regret = dataset.top1_regret
    shares = (
        *((None, None) if regret is None else (regret.mean, regret.max)),
        dataset.false_fits,
        dataset.interval_coverage,
        dataset.interval_width,
    )
    for fraction in shares:
        yield Cell.of("") if fraction is None else percent(fraction)


def _runs(document: ValidationResult) -> Table:
    found = [(d.name, run) for d in document.datasets for run in d.runs]
    found.sort(key=lambda pair: -_time_error(pair[1]))
    hidden = len(found) - _MOST_RUNS
    note = f"{hidden:,} more with smaller errors are in the document." if hidden > 0 else ""
    return Table(
        title="Predicted and measured",
        columns=(
            Column(title="file", key="file", is_number=False),
            Column(title="run", key="row_id", is_number=False),
            Column(title="step predicted", key="step_time_s"),
            Column(title="measured", key="measured_step_time_s"),
            Column(title="off", key="step_error"),
            Column(title="memory predicted", key="peak_memory_bytes"),
            Column(title="measured", key="measured_peak_memory_bytes"),
            Column(title="off", key="memory_error"),
            Column(title="assumed", key="assumed", is_number=False),
        ),
        rows=tuple((Cell.of(name), *_run_cells(run)) for name, run in found[:_MOST_RUNS]),
        note=note,
    )


def _time_error(run: ScoredRun) -> float:
    if run.step_time_s is None or not run.measured_step_time_s:
        return -1.0
    return abs(run.step_time_s / run.measured_step_time_s - 1)


def _run_cells(run: ScoredRun) -> Iterator[Cell]:
    yield Cell.of(run.row_id)
    pairs = (
        (run.step_time_s, run.measured_step_time_s, seconds),
        (run.peak_memory_bytes, run.measured_peak_memory_bytes, size),
    )
    for predicted, measured, shown in pairs:
        yield Cell.of("") if predicted is None else shown(predicted)
        yield Cell.of("") if measured is None else shown(measured)
        if predicted is None or not measured:
            yield Cell.of("")
        else:
            error = predicted / measured - 1
            yield Cell(text=f"{error:+.1%}", value=error)
    yield Cell.of(", ".join(run.assumed))


def _skipped(document: ValidationResult) -> Table:
    rows = tuple(
        (Cell.of(dataset.name), Cell.of(one.rows), Cell.of(one.reason))
        for dataset in document.datasets
        for one in sorted(dataset.skipped, key=lambda one: -one.rows)
    )
    return Table(
        title="Rows left out, and why",
        columns=(
            Column(title="file", key="file", is_number=False),
            Column(title="rows", key="rows"),
            Column(title="why", key="reason", is_number=False),
        ),
        rows=rows,
    )
