"""`trainwright explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.output import budget, emit, finish, parse_time_limit


def explain(
    document: Annotated[Path, typer.Argument(help="A plan, estimate or schedule document.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the table: look for no other plan of a model.")
    ] = False,
    time_limit: Annotated[
        str, typer.Option(help="For all searches for other plans.", metavar="TIME")
    ] = "2min",
    constants: Annotated[
        bool, typer.Option("--constants", help="Every constant of the cluster, with its source.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show a plan or schedule as a table: times, memory, what binds; of a model's plan also why."""
    from trainwright.api.explain import explain as read
    from trainwright.api.explain import explain_constants
    from trainwright.api.reasons import has_reasons, reasons

    limit_s = parse_time_limit(time_limit)
    if constants:
        emit(explain_constants(document), as_json=as_json, output=None)
        return
    report = read(document)
    if quick or not has_reasons(report.document):
        emit(report, as_json=as_json, output=None)
        return
    with budget(limit_s) as allowed:
        found = reasons(report, budget=allowed)
    emit(found, as_json=as_json, output=None)
    finish(0, interrupted=allowed.interrupted)
