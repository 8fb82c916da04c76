"""`trainwright codesign`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainwright.cli import options
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
    memory: Annotated[
        str | None, typer.Option(help="Memory of a chip, such as 32GiB,80GiB.", metavar=_LIST)
    ] = None,
    memory_bandwidth: Annotated[
        str | None, typer.Option(help="Of that memory, such as 1.2TB/s,2TB/s.", metavar=_LIST)
    ] = None,
    link_bandwidth: Annotated[
        str | None, typer.Option(help="Of a chip to others, such as 300GB/s.", metavar=_LIST)
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
    time_limit: Annotated[
        str | None, typer.Option(help="Stop after this long, such as 30s.", metavar="TIME")
    ] = None,
    output: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """Find the best accelerator and its plans within an area, and prove it."""
    from trainwright.api.codesign import Extras, recheck_document
    from trainwright.api.codesign import codesign as design

    check_output(output, recheck, *(models or ()))
    check_output(csv, output, *(models or ()))
    number = parse_count(seed, "seed", least=0) or 0
    count = parse_count(sample, "sample")
    with budget(parse_time_limit(time_limit)) as allowed:
        if recheck is not None:
            if models:
                raise InvalidInput.of("model", "must not be given beside --recheck")
            result = recheck_document(recheck, sample=count or 1000, seed=number, budget=allowed)
        else:
            total = parse_count(devices, "devices")
            if not models or total is None:
                raise InvalidInput.of("devices" if models else "model", "must be given")
            result = design(
                models,
                devices=total,
                global_batch=parse_count(global_batch, "global-batch"),
                sequence=parse_count(sequence, "sequence"),
                micro_batch=_counts(micro_batch, "micro-batch") or (1,),
                tensor_parallel=_counts(tp, "tp"),
                recompute=_texts(recompute) or (),
                memory=_texts(memory),
                memory_bandwidth=_texts(memory_bandwidth),
                link_bandwidth=_texts(link_bandwidth),
                clock_hz=_numbers(clock, "clock"),
                weights=_numbers(weights, "weights"),
                objective=objective,
                max_area_mm2=_number(max_area, "max-area"),
                max_power_watts=_number(max_power, "max-power"),
                die=_die(defect_density),
                extras=Extras(
                    pareto=not no_pareto,
                    epsilon=_number(epsilon, "epsilon") or 0.0,
                    search=search,
                    csv=csv,
                    recheck_sample=count or 0,
                    seed=number,
                ),
                budget=allowed,
            )
    emit(result, as_json=as_json, output=output)
    finish(result.status.exit_code, interrupted=allowed.interrupted)


def _texts(given: str | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(p.strip() for p in given.split(",") if p.strip())


def _counts(given: str | None, name: str) -> tuple[int, ...] | None:
    parts = _texts(given)
    return None if parts is None else tuple(parse_count(p, name) or 1 for p in parts)


def _numbers(given: str | None, name: str) -> tuple[float, ...] | None:
    parts = _texts(given)
    return None if parts is None else tuple(_number(p, name) or 0.0 for p in parts)


def _number(given: str | None, name: str) -> float | None:
    if given is None:
        return None
    try:
        value = float(given)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise InvalidInput.of(name, f'must be a finite number >= 0, got "{given}"')
    return value


def _die(defects: str | None) -> DieModel | None:
    from trainwright.codesign.area import DieModel

    density = _number(defects, "defect-density")
    return None if density is None else DieModel(defects_per_mm2=density)
