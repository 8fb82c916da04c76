"""`trainwright codesign`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainwright.cli import options
from trainwright.cli.lists import counts, number, numbers, texts
from trainwright.cli.output import (
    budget,
    check_output,
    emit,
    finish,
    parse_count,
    parse_time_limit,
)
from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainwright.api.codesign_request import CodesignOptions
    from trainwright.api.printed import Report
    from trainwright.codesign.area import DieModel

_LIST = "VALUE,..."


def codesign(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help="Catalog models, config.json files or their folders; several share one chip.",
        ),
    ] = None,
    devices: options.Devices = None,
    chip: Annotated[
        str | None,
        typer.Option(
            help="Plan only: an accelerator or cluster, or a document's design.", metavar="NAME"
        ),
    ] = None,
    global_batch: Annotated[
        str | None, typer.Option(help="Sequences per step; 4096 if absent.", metavar="N")
    ] = None,
    sequence: Annotated[
        str | None, typer.Option(help="Tokens per sequence; the model's if absent.", metavar="N")
    ] = None,
    micro_batch: Annotated[
        str, typer.Option(help="Sizes of a microbatch to choose from.", metavar=_LIST)
    ] = "1",
    tp: Annotated[
        str | None, typer.Option(help="Tensor degrees to choose from.", metavar=_LIST)
    ] = None,
    recompute: Annotated[
        str, typer.Option(help="What to recompute: none, full, or none,full.", metavar=_LIST)
    ] = "none,full",
    schedule: Annotated[
        str | None,
        typer.Option(help="1f1b and others: zb-h1, v-half, v-min; all if absent.", metavar=_LIST),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="Number formats: bf16, fp8, fp32; bf16 if absent.", metavar=_LIST),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory of a chip, such as 32GiB,80GiB.", metavar=_LIST)
    ] = None,
    memory_bandwidth: Annotated[
        str | None, typer.Option(help="Of that memory, such as 1.2TB/s,2TB/s.", metavar=_LIST)
    ] = None,
    link_bandwidth: Annotated[
        str | None, typer.Option(help="Of a chip to others, such as 300GB/s.", metavar=_LIST)
    ] = None,
    stacks: Annotated[
        str | None,
        typer.Option(help="Memory stacks, in place of memory and its bandwidth.", metavar=_LIST),
    ] = None,
    stack_memory: Annotated[
        str | None, typer.Option(help="Of one stack; 16GiB if absent.", metavar="SIZE")
    ] = None,
    stack_bandwidth: Annotated[
        str | None, typer.Option(help="Of one stack; 460.8GB/s if absent.", metavar="RATE")
    ] = None,
    stack_area: Annotated[
        str | None,
        typer.Option(help="Chip area that a stack's interface takes, in mm².", metavar="MM2"),
    ] = None,
    node_devices: Annotated[
        str | None, typer.Option(help="Chips of a node; 1 if absent.", metavar="N")
    ] = None,
    node_bandwidth: Annotated[
        str | None,
        typer.Option(help="Of a chip to others of its node, such as 900GB/s.", metavar="RATE"),
    ] = None,
    tensor_overlap: Annotated[
        str | None,
        typer.Option(help="Share of compute that tensor exchanges hide under; 0.", metavar="SHARE"),
    ] = None,
    gradient_overlap: Annotated[
        str | None,
        typer.Option(help="Of the last backward, for those of gradients; 0.", metavar="SHARE"),
    ] = None,
    clock: Annotated[
        str | None, typer.Option(help="Clocks in Hz, such as 1.05e9,1.4e9.", metavar=_LIST)
    ] = None,
    objective: Annotated[
        str,
        typer.Option(help="Of several models: geometric, mean, worst, regret, arithmetic."),
    ] = "geometric",
    weights: Annotated[
        str | None, typer.Option(help="Shares of the models.", metavar=_LIST)
    ] = None,
    max_area: Annotated[
        str | None,
        typer.Option(help="Largest cores and buffers, in mm2; 278.8 if absent.", metavar="MM2"),
    ] = None,
    max_power: Annotated[
        str | None, typer.Option(help="Watts in the hungriest operator.", metavar="W")
    ] = None,
    tdp: Annotated[
        str | None, typer.Option(help="Limit of its mean power over a step.", metavar="WATTS")
    ] = None,
    defect_density: Annotated[
        str | None,
        typer.Option(help="Defects per mm2: also price a good die.", metavar="D"),
    ] = None,
    epsilon: Annotated[
        str, typer.Option(help="Points of the front this close count as one; 0: all.")
    ] = "0.02",
    no_pareto: Annotated[
        bool, typer.Option("--no-pareto", help="Do not work out a front.")
    ] = False,
    search: Annotated[
        str, typer.Option(help="exact, or the published one without a proof: descending-area.")
    ] = "exact",
    workers: Annotated[
        str | None,
        typer.Option(help="Processes to search with, or dask://HOST:PORT.", metavar="N"),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="Write finished batches down; go on from there.", metavar="FILE"),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Write every design to this file.", metavar="FILE")
    ] = None,
    recheck: Annotated[
        Path | None,
        typer.Option(help="Prove the search of this document again.", metavar="DOCUMENT"),
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            help="Price so many pruned designs in full; 1000 with --recheck.", metavar="N"
        ),
    ] = None,
    seed: Annotated[str, typer.Option(help="Of that sample.", metavar="N")] = "0",
    figure: Annotated[
        Path | None,
        typer.Option(help="Draw front, area and operators (extra [plot]).", metavar="FILE"),
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option(help="One stage alone: graph, estimate or solve.", metavar="STAGE"),
    ] = None,
    artifacts: Annotated[
        Path | None, typer.Option(help="Where stages leave their files.", metavar="DIR")
    ] = None,
    time_limit: options.TimeLimit = None,
    output: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """Find the best accelerator and its plans within an area, and prove it."""
    from trainwright.api.codesign import Extras, recheck_document
    from trainwright.api.codesign import codesign as design
    from trainwright.api.codesign_chip import plan_on_chip
    from trainwright.api.codesign_stages import STAGES, solve, write_estimates, write_graph

    check_output(output, recheck, *(models or ()))
    check_output(figure, output, csv)
    check_output(csv, output, *(models or ()))
    count = parse_count(sample, "sample")
    extras = Extras(
        pareto=not no_pareto,
        epsilon=number(epsilon, "epsilon") or 0.0,
        search=search,
        workers=workers,
        journal=journal,
        csv=csv,
        recheck_sample=count or 0,
        seed=parse_count(seed, "seed", least=0) or 0,
    )
    given: CodesignOptions = {
        "global_batch": parse_count(global_batch, "global-batch"),
        "sequence": parse_count(sequence, "sequence"),
        "micro_batch": counts(micro_batch, "micro-batch") or (1,),
        "tensor_parallel": counts(tp, "tp"),
        "recompute": texts(recompute) or (),
        "memory": texts(memory),
        "memory_bandwidth": texts(memory_bandwidth),
        "link_bandwidth": texts(link_bandwidth),
        "clock_hz": numbers(clock, "clock"),
        "schedule": texts(schedule) or (),
        "precision": texts(precision) or (),
        "memory_stacks": counts(stacks, "stacks"),
        "stack_memory": stack_memory,
        "stack_bandwidth": stack_bandwidth,
        "stack_area_mm2": number(stack_area, "stack-area"),
        "tensor_overlap": number(tensor_overlap, "tensor-overlap"),
        "gradient_overlap": number(gradient_overlap, "gradient-overlap"),
        "node_devices": parse_count(node_devices, "node-devices"),
        "node_bandwidth": node_bandwidth,
        "weights": numbers(weights, "weights"),
        "objective": objective,
        "max_area_mm2": number(max_area, "max-area"),
        "max_power_watts": number(max_power, "max-power"),
        "max_mean_watts": number(tdp, "tdp"),
    }
    total = parse_count(devices, "devices")
    if stage is not None and stage not in STAGES:
        raise InvalidInput.of("stage", f'must be one of {", ".join(STAGES)}, got "{stage}"')
    if (stage is None) != (artifacts is None):
        missing = "stage" if stage is None else "artifacts"
        raise InvalidInput.of(missing, "must be given: --stage and --artifacts go together")
    if chip is not None:
        _refuse_beside_chip(
            {
                "stage": stage,
                "recheck": recheck,
                "sample": sample,
                "journal": journal,
                "csv": csv,
                "figure": figure,
                "defect-density": defect_density,
                "workers": workers,
            }
        )
    alone = recheck is not None or stage in ("estimate", "solve")
    if alone and models:
        raise InvalidInput.of("model", "must not be given: the file holds the request")
    if not alone and (not models or total is None):
        raise InvalidInput.of("devices" if models else "model", "must be given")
    result: Report[Any]
    with budget(parse_time_limit(time_limit)) as allowed:
        if recheck is not None:
            result = recheck_document(
                recheck, sample=count or 1000, seed=extras.seed, budget=allowed
            )
        elif stage == "estimate" and artifacts is not None:
            result = write_estimates(artifacts, budget=allowed)
        elif stage == "solve" and artifacts is not None:
            result = solve(artifacts, extras=extras, die=_die(defect_density), budget=allowed)
        else:
            assert models is not None
            assert total is not None
            if chip is not None:
                if len(models) > 1:
                    raise InvalidInput.of("model", f"must be one with --chip, got {len(models)}")
                result = plan_on_chip(models[0], chip=chip, devices=total, budget=allowed, **given)
            elif artifacts is not None:
                result = write_graph(artifacts, models, devices=total, budget=allowed, **given)
            else:
                result = design(
                    models,
                    devices=total,
                    die=_die(defect_density),
                    extras=extras,
                    budget=allowed,
                    **given,
                )
    if figure is not None:
        _draw(result, figure)
    emit(result, as_json=as_json, output=output)
    status = getattr(result.document, "status", None)
    finish(0 if status is None else status.exit_code, interrupted=allowed.interrupted)


def _refuse_beside_chip(given: Mapping[str, object]) -> None:
    """What only a search for a chip has."""
    if named := [name for name, value in given.items() if value is not None]:
        raise InvalidInput.of(named[0], "must not be given with --chip: the chip is fixed")


def _draw(result: Report[Any], path: Path) -> None:
    from trainwright.plan.results.codesign import CodesignResult
    from trainwright.reporting.codesign_plot import plot_codesign

    if not isinstance(result.document, CodesignResult) or result.document.best is None:
        raise InvalidInput.of("figure", "needs a best design to draw")
    plot_codesign(result.document, path)


def _die(defects: str | None) -> DieModel | None:
    from trainwright.codesign.area import DieModel

    density = number(defects, "defect-density")
    return None if density is None else DieModel(defects_per_mm2=density)
