"""`trainwright estimate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.output import check_output, emit, finish, parse_count


def estimate(
    model: Annotated[str, typer.Argument(help="A profile (JSON).")],
    plan: Annotated[Path, typer.Option(help="The plan to price: a plan document.")],
    devices: options.Devices = None,
    memory: options.Memory = None,
    bandwidth: options.Bandwidth = None,
    microbatches: options.Microbatches = None,
    point: options.Point = None,
    time_unit: options.TimeUnit = None,
    output: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """Price a given plan, or say which rule it breaks and which stage overflows."""
    from trainwright.api.estimate import estimate as price

    check_output(output, model, plan)
    report = price(
        model,
        plan=plan,
        devices=parse_count(devices, "devices"),
        memory=memory,
        bandwidth=bandwidth,
        microbatches=parse_count(microbatches, "microbatches"),
        point=parse_count(point, "point", least=0),
        time_unit=time_unit,
    )
    emit(report, as_json=as_json, output=output)
    finish(0 if report.document.fits else 3, interrupted=False)
