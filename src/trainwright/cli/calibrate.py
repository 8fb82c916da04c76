"""`trainwright calibrate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.output import check_output, emit
from trainwright.errors import InvalidInput

_STDIN = "-"


def calibrate(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="CSV files or folders of measured runs, or documents of estimate or plan."
        ),
    ],
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="A training log for each document (repeatable); - reads pasted lines.",
            metavar="FILE",
        ),
    ] = None,
    line: Annotated[
        str | None, typer.Option(help="The software of the logs, or the one line to fit.")
    ] = None,
    constants: Annotated[
        str, typer.Option(help="What to fit, separated by commas.")
    ] = "gemm_max,memory_max",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the constants, as TOML.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Fit a few efficiencies from measured runs or training logs."""
    from trainwright.api.calibrate import calibrate as fit
    from trainwright.formats.calibration_toml import write_calibrations

    check_output(output)
    names = [part.strip() for part in constants.split(",") if part.strip()]
    given = log or []
    if given.count(_STDIN) > 1:
        raise InvalidInput.of("log", "must be read from stdin at most once, got - twice")
    logs = [_read(name) for name in given]
    report = fit(list(sources), logs=logs, line=line, constants=names)
    if output is not None:
        write_calibrations(output, report.document.calibrations)
    emit(report, as_json=as_json, output=None)


def _read(name: str) -> str:
    if name == _STDIN:
        return sys.stdin.read()
    try:
        return Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidInput.of("log", f"cannot be read: {error.strerror}", source=name) from None
