"""Scores of predictions against measured runs, as tables: one line per file and quantity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.text import add_row, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trainwright.plan.results.validation import DatasetScore, ErrorRecord, ValidationResult

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

    parts = [_errors(found), _ranking(found)]
    if any(dataset.skipped for dataset in found.datasets):
        parts.append(_skipped(found))
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
        ("false fits", "right"),
        ("in 90 % interval", "right"),
        ("interval width", "right"),
    )
    made = table("ranking and intervals", columns)
    for dataset in found.datasets:
        regret = dataset.top1_regret
        add_row(
            made,
            dataset.name,
            str(dataset.ranked_groups or ""),
            "" if dataset.kendall_tau is None else f"{dataset.kendall_tau:.2f}",
            "" if dataset.tau_ceiling is None else f"{dataset.tau_ceiling:.2f}",
            "" if regret is None else _percent(regret.mean),
            "" if regret is None else _percent(regret.max),
            _percent(dataset.false_fits),
            _percent(dataset.interval_coverage),
            _percent(dataset.interval_width),
        )
    pooled = _percent(found.pooled_interval_coverage)
    chosen = found.pooled_top1_regret
    regrets = ("", "") if chosen is None else (_percent(chosen.mean), _percent(chosen.max))
    jobs = sum(dataset.ranked_groups for dataset in found.datasets)
    add_row(made, "all files", str(jobs or ""), "", "", *regrets, "", pooled, "")
    return made


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
