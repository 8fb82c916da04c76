"""Every scored run: prediction beside measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.text import add_row, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trainwright.plan.results.validation import ValidationResult

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
