"""`trainwright export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.output import emit


def export(
    document: Annotated[
        Path,
        typer.Argument(
            help="A plan or estimate of a model, or what improve, whatif or a sweep wrote."
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            help="A framework, as in `trainwright catalog targets`, or chrome-trace.",
            metavar="TARGET[@VERSION]",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the files to this new or empty folder."),
    ] = None,
    launcher: Annotated[str, typer.Option(help="torchrun or slurm.", metavar="NAME")] = "torchrun",
    allow_nearest: Annotated[
        bool,
        typer.Option(
            "--allow-nearest",
            help="Replace what the target cannot express by the nearest it can, priced again.",
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Hand the files to the framework's own parser, if installed."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write into a folder that is not empty.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Write the files that make a training framework run a plan."""
    from trainwright.api.export import export as write

    report = write(
        document,
        to,
        output=output,
        launcher=launcher,
        allow_nearest=allow_nearest,
        check=check,
        force=force,
    )
    emit(report, as_json=as_json, output=None)
