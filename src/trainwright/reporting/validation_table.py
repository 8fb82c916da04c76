"""Scores of predictions against measured runs, as tables: one line per file and quantity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.text import add_row, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trainwright.plan.results.validation import (
        CoverageCheck,
        DatasetScore,
        ErrorRecord,
        RegretRecord,
        ValidationResult,
    )

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
