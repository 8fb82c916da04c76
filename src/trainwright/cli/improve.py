"""`trainwright improve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.output import budget, check_output, emit, finish, parse_count, parse_time_limit


def improve(
    document: Annotated[
        Path | None,
        typer.Argument(help="An estimate or a plan of a model.", show_default=False),
    ] = None,
    source: options.Source = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model, where the framework's file does not describe it."),
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="A catalog cluster or a TOML file.")] = None,
    nodes: Annotated[str | None, typer.Option(help="Nodes of the cluster.", metavar="N")] = None,
    sequence: Annotated[
        str | None,
        typer.Option(help="Tokens per sequence, in place of what the file says.", metavar="N"),
    ] = None,
    global_batch: Annotated[
        str | None,
        typer.Option(help="Sequences per step, in place of what the file says.", metavar="N"),
    ] = None,
    calibration: options.Calibration = None,
    framework: Annotated[
        str | None,
        typer.Option(help="Consider only what this framework can run.", metavar="TARGET"),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(help="Stop after this long with the best found.", metavar="TIME"),
    ] = None,
    output: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """How far is a job from the best plan, and what is the smallest change that gets most of it?"""
    from trainwright.api.improve import improve as compare

    check_output(output, document, source[1] if source else None)
    with budget(parse_time_limit(time_limit)) as limited:
        report = compare(
            document,
            source=source,
            model=model,
            cluster=cluster,
            nodes=parse_count(nodes, "nodes"),
            sequence=parse_count(sequence, "sequence"),
            global_batch=parse_count(global_batch, "global-batch"),
            calibration=calibration,
            framework=framework,
            budget=limited,
        )
    emit(report, as_json=as_json, output=output)
    nothing_fits = report.document.best_known_s is None
    finish(3 if nothing_fits and not limited.stopped else 0, interrupted=limited.interrupted)
