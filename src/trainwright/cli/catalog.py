"""`trainwright catalog`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.output import emit


def catalog(
    topic: Annotated[
        str | None,
        typer.Argument(
            help="models, accelerators, clusters, calibrations, families or targets; all."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List what is built in, with where each figure comes from."""
    from trainwright.api.catalog import catalog as read

    emit(read(topic), as_json=as_json, output=None)
