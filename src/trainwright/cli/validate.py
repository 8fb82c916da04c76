"""`trainwright validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.output import check_output, emit


def validate(
    folder: Annotated[Path, typer.Argument(help="A folder of CSV files with measured runs.")],
    profiles: Annotated[
        Path | None,
        typer.Option(help="A folder of layer profiles; by default the one beside the runs."),
    ] = None,
    files: Annotated[
        str | None, typer.Option(help="Only these files, by stem, separated by commas.")
    ] = None,
    output: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """Score predictions against measured runs."""
    from trainwright.api.validate import validate as score

    check_output(output)
    wanted = tuple(part.strip() for part in files.split(",")) if files else ()
    report = score(folder, profiles=profiles, files=wanted)
    emit(report, as_json=as_json, output=output)
