"""`trainwright profile`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainwright.cli import options
from trainwright.cli.output import check_output, emit, parse_count
from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from trainwright.api.profile import ProfileReport
    from trainwright.execution import Progress


def profile(
    model: Annotated[
        str, typer.Argument(help="A config.json, its folder, a catalog name; a name in --csv.")
    ],
    device: Annotated[
        str | None, typer.Option(help="cuda or cpu; cuda if absent and there.", metavar="KIND")
    ] = None,
    sequence: Annotated[
        str | None, typer.Option(help="Tokens of a sequence; 2048 if absent.", metavar="N")
    ] = None,
    micro_batch: Annotated[
        str | None, typer.Option(help="Sequences of a microbatch; 1 if absent.", metavar="N")
    ] = None,
    tensor: Annotated[
        str, typer.Option(help="Tensor degrees whose slices are timed, as 1,2,4.")
    ] = "1",
    precision: Annotated[
        str | None, typer.Option(help="bf16 (on cuda, if absent), fp16 or fp32.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="The network that prices collectives between slices.")
    ] = None,
    budget: Annotated[
        str, typer.Option(help="Time to spend measuring, as 30s.", metavar="TIME")
    ] = "60s",
    csv: Annotated[
        list[Path] | None,
        typer.Option(
            help="Do not measure: read tables of layer times and sizes (repeatable).",
            metavar="FILE",
        ),
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option(help="The device in --csv.", metavar="NAME")
    ] = None,
    output: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """Time a model's layers on the device at hand; write a profile that `plan` takes."""
    from trainwright.api.profile import import_layers, profile_model
    from trainwright.execution import Budget
    from trainwright.units import parse_duration

    check_output(output, model, *(csv or ()))
    degrees = [parse_count(part, "tensor") or 1 for part in tensor.split(",")]
    size = parse_count(micro_batch, "micro-batch") or 1
    limit_s = parse_duration(budget, name="budget")
    if limit_s <= 0:
        raise InvalidInput.of("budget", f'must be > 0, got "{budget}"')
    if csv:
        _warn_unused(device=device, sequence=sequence, cluster=cluster)
        if accelerator is None:
            raise InvalidInput.of("accelerator", "must be given with --csv")
        report = import_layers(
            model,
            csv,
            accelerator=accelerator,
            micro_batch=size,
            tensor=degrees,
            precision=precision,
        )
        _emit(report, as_json=as_json, output=output)
        return
    _warn_unused(accelerator=accelerator)
    length = parse_count(sequence, "sequence")
    # Ctrl-C ends at once: a profile without some layers is of no use.
    limited = Budget(time_limit_s=limit_s, on_progress=_tell if sys.stderr.isatty() else None)
    report = profile_model(
        model,
        device=device,
        sequence=length,
        micro_batch=size,
        tensor=degrees,
        precision=precision,
        cluster=cluster,
        budget=limited,
    )
    _emit(report, as_json=as_json, output=output)


def _tell(progress: Progress) -> None:
    typer.echo(progress.stage, err=True)


def _emit(report: ProfileReport, *, as_json: bool, output: Path | None) -> None:
    """The table or the profile; a profile has no room for warnings, so they go beside it."""
    if as_json:
        for warning in report.document.warnings:
            typer.echo(f"warning: {warning}", err=True)
    emit(report, as_json=as_json, output=output)


def _warn_unused(**given: str | None) -> None:
    for name, value in given.items():
        if value is not None:
            typer.echo(f"warning: --{name} was not used", err=True)
