"""`trainwright schedule`."""

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
    parse_time_limit,
)

FAMILIES = (
    *("gpipe", "1f1b", "eager-1f1b", "interleaved", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v"),
    *("zb-v-handmade", "v-half", "v-min", "adaptive-v", "1f1b-v", "gis", "gis-h", "dualpipe-v"),
    *("wave", "breadth-first", "depth-first"),
)
_CHECK_FAILED = 4


def schedule(
    family: Annotated[
        str | None, typer.Option(help=f"A named schedule: {', '.join(FAMILIES)}.", metavar="NAME")
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Search for the best schedule within the limit.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Search, then let a solver improve and prove it.")
    ] = False,
    pareto: Annotated[
        bool,
        typer.Option("--pareto", help="Memory against time; with --search, of more than names."),
    ] = False,
    simulate: Annotated[
        Path | None,
        typer.Option(
            help="Price these orders: JSON, PyTorch's CSV, or a schedule document.", metavar="FILE"
        ),
    ] = None,
    ranks: Annotated[str | None, typer.Option(help="Pipeline ranks.", metavar="P")] = None,
    microbatches: Annotated[
        str | None, typer.Option(help="Microbatches per step.", metavar="M")
    ] = None,
    forward: Annotated[
        str | None,
        typer.Option(help="Time of a forward of one stage: 1 (slots) or 3.5ms.", metavar="TIME"),
    ] = None,
    input_grad: Annotated[
        str | None, typer.Option(help="Of its input gradient; 1 if absent.", metavar="TIME")
    ] = None,
    weight_grad: Annotated[
        str | None, typer.Option(help="Of its weight gradient; 1 if absent.", metavar="TIME")
    ] = None,
    comm: Annotated[
        str | None, typer.Option(help="Of a transfer between ranks; 0 if absent.", metavar="TIME")
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(help="A JSON file of times and memory per stage.", metavar="FILE"),
    ] = None,
    virtual_stages: Annotated[
        str | None,
        typer.Option(help="Stages (chunks) per rank, where there is a choice.", metavar="V"),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Microbatches that pass a chunk together.", metavar="G"),
    ] = None,
    placement: Annotated[
        str | None, typer.Option(help="v, loop, wave or any; for a search or front.")
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(help="Chunk activations per rank, or a size such as 40GiB.", metavar="K"),
    ] = None,
    max_activations: Annotated[
        str | None, typer.Option(help="Chunk activations per rank.", metavar="K")
    ] = None,
    objective: Annotated[
        str, typer.Option(help="makespan, or span: the busiest rank's window.")
    ] = "makespan",
    seed: Annotated[str | None, typer.Option(help="Of the search.", metavar="N")] = None,
    evaluations: Annotated[
        str | None, typer.Option(help="Schedules to try; by size if absent.", metavar="N")
    ] = None,
    time_limit: options.TimeLimit = None,
    orders: Annotated[
        Path | None, typer.Option(help="Write the orders: .json or .csv (PyTorch).", metavar="FILE")
    ] = None,
    orders_form: Annotated[
        str | None,
        typer.Option(help="json, compute_only or compute_comms; by suffix if absent."),
    ] = None,
    gantt: Annotated[
        Path | None,
        typer.Option(help="Draw: .svg, .html, or .json[.gz] (Chrome trace).", metavar="FILE"),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Run it on PyTorch (CPU) and compare every gradient."),
    ] = False,
    output: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """Order the work of a pipeline: by name, by search, or as given."""
    from trainwright.api.schedule import schedule as make_schedule
    from trainwright.api.schedule_report import check_targets

    check_output(output, spec, simulate)
    check_targets(orders=orders, orders_form=orders_form, gantt=gantt, verify=verify)
    with budget(parse_time_limit(time_limit)) as allowed:
        report = make_schedule(
            family=family,
            search=search,
            exact=exact,
            pareto=pareto,
            simulate=simulate,
            ranks=parse_count(ranks, "ranks"),
            microbatches=parse_count(microbatches, "microbatches"),
            forward=forward,
            input_grad=input_grad,
            weight_grad=weight_grad,
            comm=comm,
            spec=spec,
            virtual_stages=parse_count(virtual_stages, "virtual-stages"),
            group=parse_count(group, "group"),
            placement=placement,
            memory_limit=memory_limit,
            max_activations=parse_count(max_activations, "max-activations", least=0),
            objective=objective,
            seed=parse_count(seed, "seed", least=0),
            evaluations=parse_count(evaluations, "evaluations"),
            budget=allowed,
        )
        found = report.timeline is not None
        if orders_form is not None and orders is None:
            report = report.with_warnings(
                "orders-form does not apply without orders and was not used"
            )
        try:
            if found and verify:
                report = report.verified()
            if found and orders is not None:
                report.save_orders(orders, form=orders_form)
                report = report.with_warnings(*report.notes_on_orders(orders, form=orders_form))
            if found and gantt is not None:
                report.save_gantt(gantt)
        finally:  # what was found is shown, also where it cannot be run, written or drawn
            emit(report, as_json=as_json, output=output)
    failed = found and verify and not report.verification_passed
    code = _CHECK_FAILED if failed else report.status.exit_code
    finish(code, interrupted=allowed.interrupted)
