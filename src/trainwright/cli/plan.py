"""`trainwright plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.config_file import read_config
from trainwright.cli.output import (
    budget,
    check_output,
    emit,
    finish,
    parse_count,
    parse_time_limit,
)
from trainwright.errors import InvalidInput

_DEGREE = "N|A..B"


def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A profile (JSON), a config.json or its folder, or the name of a catalog model.",
        ),
    ],
    cluster: Annotated[
        str | None, typer.Option(help="A catalog cluster or a TOML file (for a model).")
    ] = None,
    nodes: Annotated[str | None, typer.Option(help="Nodes of the cluster.", metavar="N")] = None,
    devices: options.Devices = None,
    memory: options.Memory = None,
    bandwidth: options.Bandwidth = None,
    microbatches: options.Microbatches = None,
    global_batch: Annotated[
        str | None, typer.Option(help="Sequences per step, over all replicas.", metavar="N")
    ] = None,
    sequence: Annotated[str | None, typer.Option(help="Tokens per sequence.", metavar="N")] = None,
    micro_batch: Annotated[
        str | None, typer.Option(help="Sequences per microbatch.", metavar=_DEGREE)
    ] = None,
    tp: Annotated[str | None, typer.Option(help="Tensor-parallel degree.", metavar=_DEGREE)] = None,
    pp: Annotated[str | None, typer.Option(help="Pipeline ranks.", metavar=_DEGREE)] = None,
    dp: Annotated[str | None, typer.Option(help="Data-parallel degree.", metavar=_DEGREE)] = None,
    cp: Annotated[
        str | None, typer.Option(help="Context-parallel degree.", metavar=_DEGREE)
    ] = None,
    ep: Annotated[str | None, typer.Option(help="Expert-parallel degree.", metavar=_DEGREE)] = None,
    etp: Annotated[
        str | None, typer.Option(help="Devices that share one expert.", metavar=_DEGREE)
    ] = None,
    virtual_stages: Annotated[
        str | None, typer.Option(help="Stages per pipeline rank.", metavar=_DEGREE)
    ] = None,
    zero: Annotated[
        str | None, typer.Option(help="ZeRO stages, such as 1 or 0,1; all if absent.")
    ] = None,
    recompute: Annotated[
        str | None, typer.Option(help="Of none,selective,full; all if absent.", metavar="MODES")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Families, such as 1f1b,v-half.", metavar="NAMES")
    ] = None,
    framework: Annotated[
        str | None, typer.Option(help="Only plans that this framework can run.", metavar="NAME")
    ] = None,
    top: Annotated[
        str | None, typer.Option(help="Runners-up to show; 5 if absent.", metavar="N")
    ] = None,
    calibration: options.Calibration = None,
    no_data_parallel: Annotated[
        bool, typer.Option("--no-data-parallel", help="One replica per stage.")
    ] = False,
    no_tensor_parallel: Annotated[
        bool, typer.Option("--no-tensor-parallel", help="Do not split layers.")
    ] = False,
    no_recompute: Annotated[
        bool, typer.Option("--no-recompute", help="Drop every option that recomputes.")
    ] = False,
    exclude_option: Annotated[
        list[str] | None, typer.Option(help="Drop options with this id (repeatable).")
    ] = None,
    per_stage_degrees: Annotated[
        bool,
        typer.Option(
            "--per-stage-degrees",
            help="For a model: let stages differ in degrees, which no framework runs yet.",
        ),
    ] = False,
    planner: Annotated[str, typer.Option(help="exact, or the baseline: equal.")] = "exact",
    block_layer: Annotated[
        str | None,
        typer.Option(
            help="Equal split: name of the layers to deal out evenly, or all; "
            "transformer blocks if absent, where there are some.",
            metavar="NAME",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also show restricted modes and equal splits.")
    ] = False,
    point: options.Point = None,
    time_unit: options.TimeUnit = None,
    time_limit: Annotated[
        str | None, typer.Option(help="Stop after this long, such as 30s.", metavar="TIME")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file of these options.", is_eager=True, callback=read_config),
    ] = None,
    output: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """Find the best plan, and prove it."""
    from trainwright.api.plan import plan as make_plan

    check_output(output, model, cluster, config)
    with budget(parse_time_limit(time_limit)) as allowed:
        result = make_plan(
            model,
            cluster=cluster,
            nodes=parse_count(nodes, "nodes"),
            devices=parse_count(devices, "devices"),
            memory=memory,
            bandwidth=bandwidth,
            microbatches=parse_count(microbatches, "microbatches"),
            global_batch=parse_count(global_batch, "global-batch"),
            sequence=parse_count(sequence, "sequence"),
            micro_batch=micro_batch,
            tp=tp,
            pp=pp,
            dp=dp,
            cp=cp,
            ep=ep,
            etp=etp,
            virtual_stages=virtual_stages,
            data_parallel=not no_data_parallel,
            tensor_parallel=not no_tensor_parallel,
            recompute=_recompute(recompute, forbidden=no_recompute),
            exclude_options=exclude_option or (),
            zero_stage=zero,
            schedule=schedule,
            framework=framework,
            top=parse_count(top, "top", least=0),
            calibration=calibration,
            per_stage_degrees=per_stage_degrees,
            planner=planner,
            block_layer=block_layer,
            compare=compare,
            point=parse_count(point, "point", least=0),
            time_unit=time_unit,
            budget=allowed,
        )
    emit(result, as_json=as_json, output=output)
    finish(result.status.exit_code, interrupted=allowed.interrupted)


def _recompute(modes: str | None, *, forbidden: bool) -> bool | str:
    if modes is not None and forbidden:
        problem = f'must not be given together with --no-recompute, got "{modes}"'
        raise InvalidInput.of("recompute", problem)
    return modes if modes is not None else not forbidden
