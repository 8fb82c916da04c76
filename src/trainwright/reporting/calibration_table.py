"""Fitted constants as tables: value, 90 % interval, and how far predictions with them miss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.text import add_row, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trainwright.plan.results.calibration import CalibrationResult


def calibration_report(found: CalibrationResult) -> RenderableType:
    """One table of constants for all lines, one of errors."""
    from rich.console import Group
    from rich.text import Text

    columns = (
        ("accelerator", "left"),
        ("software", "left"),
        ("constant", "left"),
        ("value", "right"),
        ("low", "right"),
        ("high", "right"),
    )
    constants = table("constants, with 90 % intervals", columns)
    for made in found.calibrations:
        head = (made.accelerator, made.line)
        for constant in made.constants:
            figures = (constant.value, constant.low, constant.high)
            add_row(constants, *head, constant.name, *(f"{value:.4g}" for value in figures))
            head = ("", "")
    errors = table(
        "errors of the fit",
        (
            ("accelerator", "left"),
            ("software", "left"),
            ("rows", "right"),
            ("mean", "right"),
            ("mean, unseen", "right"),
            ("9 of 10 steps within", "right"),
        ),
    )
    for made, fit in zip(found.calibrations, found.fits, strict=True):
        unseen = "" if fit.unseen_mape is None else f"{fit.unseen_mape:.1%}"
        spread = f"{made.low_ratio:.2f} to {made.high_ratio:.2f}"
        add_row(errors, fit.accelerator, fit.line, str(fit.rows), f"{fit.mape:.1%}", unseen, spread)
    return Group(constants, errors, *(Text(f"warning: {line}") for line in found.warnings))
