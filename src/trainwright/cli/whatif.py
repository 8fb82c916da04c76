"""`trainwright whatif`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.output import (
    budget,
    check_output,
    emit,
    finish,
    parse_count,
    parse_number,
    parse_time_limit,
)


def whatif(
    document: Annotated[Path, typer.Argument(help="A plan document of a model.")],
    memory: options.Memory = None,
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(
            help="Of a level, such as inter=800Gb/s or nvlink=900GB/s (repeatable).",
            metavar="LEVEL=RATE",
        ),
    ] = None,
    flops_scale: Annotated[
        str | None, typer.Option(help="So many times the peak of each device.", metavar="X")
    ] = None,
    devices: options.Devices = None,
    global_batch: Annotated[
        str | None, typer.Option(help="Sequences per step, over all replicas.", metavar="N")
    ] = None,
    sequence: Annotated[str | None, typer.Option(help="Tokens per sequence.", metavar="N")] = None,
    dispatch_dtype: options.DispatchDtype = None,
    token_dispatcher: options.TokenDispatcher = None,
    time_limit: options.TimeLimit = None,
    output: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """Plan the request of a document again with something different, beside the old plan."""
    from trainwright.api.what_if import what_if

    check_output(output, document)
    with budget(parse_time_limit(time_limit)) as allowed:
        report = what_if(
            document,
            memory=memory,
            bandwidth=bandwidth or (),
            flops_scale=parse_number(flops_scale, "flops-scale"),
            devices=parse_count(devices, "devices"),
            global_batch=parse_count(global_batch, "global-batch"),
            sequence=parse_count(sequence, "sequence"),
            dispatch_dtype=dispatch_dtype,
            token_dispatcher=token_dispatcher,
            budget=allowed,
        )
    emit(report, as_json=as_json, output=output)
    finish(report.status.exit_code, interrupted=allowed.interrupted)
