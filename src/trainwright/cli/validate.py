"""`trainwright validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.output import check_output, emit, finish


def validate(
    folder: Annotated[
        Path, typer.Argument(help="A folder of CSV files with measured runs, or one of them.")
    ],
    profiles: Annotated[
        Path | None,
        typer.Option(help="A folder of layer profiles; by default the one beside the runs."),
    ] = None,
    files: Annotated[
        str | None, typer.Option(help="Only these files, by stem, separated by commas.")
    ] = None,
    rows: Annotated[bool, typer.Option("--rows", help="Print every run too.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw predicted against measured into this file.")
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="Exit with 4 where a file's mean error is larger, as vtrain_multi.time=0.08,…",
            metavar="TARGETS",
        ),
    ] = None,
    output: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """Score predictions against measured runs."""
    from trainwright.api.validate import missed_targets, read_targets
    from trainwright.api.validate import validate as score

    check_output(output)
    check_output(plot)
    targets = read_targets(fail_on) if fail_on else {}
    wanted = tuple(part.strip() for part in files.split(",")) if files else ()
    report = score(folder, profiles=profiles, files=wanted)
    if plot is not None:
        from trainwright.reporting.validation_plot import plot_validation

        plot_validation(report.document, plot)
    if rows and not as_json:
        from trainwright.reporting.text import to_text
        from trainwright.reporting.validation_rows import rows_report

        typer.echo(to_text(rows_report(report.document)))
    emit(report, as_json=as_json, output=output)
    missed = missed_targets(report.document, targets)
    for line in missed:
        typer.echo(line, err=True)
    finish(4 if missed else 0, interrupted=False)
