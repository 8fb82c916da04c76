"""`trainwright explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.output import emit


def explain(
    document: Annotated[Path, typer.Argument(help="A plan, estimate or schedule document.")],
    as_json: options.Json = False,
) -> None:
    """Show a plan or schedule as a table: times, memory, what binds."""
    from trainwright.api.explain import explain as read

    emit(read(document), as_json=as_json, output=None)
