"""`trainwright diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.output import emit


def diff(
    first: Annotated[Path, typer.Argument(help="A plan, estimate or schedule document.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    as_json: options.Json = False,
) -> None:
    """Compare two documents: what was asked differently, what came out differently."""
    from trainwright.api.diff import diff as compare

    emit(compare(first, second), as_json=as_json, output=None)
