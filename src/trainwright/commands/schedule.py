"""`trainwright schedule`: pipeline schedules by name, by search, or as given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainwright.commands import command_line as options
from trainwright.commands.output import (
    budget,
    check_output,
    emit,
    finish,
    parse_count,
    parse_time_limit,
)

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.formats.schedule_json import ScheduleSpec
    from trainwright.options.schedule import Time
    from trainwright.pages.schedule_report import ScheduleReport
    from trainwright.plans.schedule import Schedule


def schedule(
    *,
    family: str | None = None,
    search: bool = False,
    exact: bool = False,
    pareto: bool = False,
    simulate: str | Path | Schedule | None = None,
    ranks: int | None = None,
    microbatches: int | None = None,
    forward: Time | None = None,
    input_grad: Time | None = None,
    weight_grad: Time | None = None,
    comm: Time | None = None,
    spec: str | Path | ScheduleSpec | None = None,
    virtual_stages: int | None = None,
    group: int | None = None,
    placement: str | None = None,
    memory_limit: str | float | None = None,
    max_activations: int | None = None,
    objective: str = "makespan",
    seed: int | None = None,
    evaluations: int | None = None,
    budget: Budget | None = None,
) -> ScheduleReport:
    """Schedule a pipeline: a named `family`, a `search` within limits, or orders to `simulate`.

    `exact` lets a solver continue the search (extra [exact]); `pareto` gives memory against time
    over all named families, and together with `search` improves on them. `simulate` takes a file of
    orders (JSON, PyTorch's CSV, or a schedule document, whose costs hold where none are given).

    Times are those of one microbatch on one stage: numbers (slots), or text with a unit. A `spec`
    carries them per stage, with transfers, memory and limits; what is given beside it wins.
    `memory_limit` counts chunk activations per rank, or is text such as "40GiB"; `max_activations`
    is its first meaning under its own name. `objective` is "makespan" or "span", the busiest rank's
    window; bound and gap are about it. `budget` may hold a time limit.

    `status` is `infeasible`, with the least that is needed, where nothing fits. Raises InvalidInput
    with what is wrong with the request, and MissingExtra without what it needs.
    """
    from trainwright.documents.schedule_methods import answer_with, open_orders
    from trainwright.execution import Budget as NoLimit
    from trainwright.options.schedule import Method, SearchOptions, resolve_case
    from trainwright.pages.schedule_report import report_on

    method = Method.of(family=family, simulate=simulate, search=search, exact=exact, pareto=pareto)
    given = None if simulate is None else open_orders(simulate)
    times = {"forward": forward, "input-grad": input_grad, "weight-grad": weight_grad, "comm": comm}
    case = resolve_case(
        spec=spec,
        times=times,
        ranks=ranks,
        microbatches=microbatches,
        virtual_stages=virtual_stages,
        group=group,
        memory_limit=memory_limit,
        max_activations=max_activations,
        objective=objective,
        otherwise=given.case if given else None,
    )
    options = SearchOptions(placement=placement, seed=seed, evaluations=evaluations)
    budget = budget or NoLimit()
    answer = answer_with(method, case, options, family=family, orders=given, budget=budget)
    return report_on(answer, case, options, method=method, orders=given, budget=budget)


# `trainwright schedule`
# ----------------------

_CHECK_FAILED = 4


def command(
    family: Annotated[
        str | None,
        typer.Option(
            help="A named schedule, such as 1f1b: `trainwright catalog families` lists them.",
            metavar="NAME",
        ),
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
    from trainwright.pages.schedule_report import check_targets

    check_output(output, spec, simulate)
    check_targets(orders=orders, orders_form=orders_form, gantt=gantt, verify=verify)
    with budget(parse_time_limit(time_limit)) as allowed:
        report = schedule(
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
