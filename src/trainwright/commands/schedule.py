"""`trainwright schedule`: pipeline schedules by name, by search, or as given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainwright.commands.output import budget, check_output, emit, finish
from trainwright.documents.schedule_methods import answer_with, open_orders
from trainwright.execution import Budget
from trainwright.execution import Budget as NoLimit
from trainwright.formats.schedule_json import ScheduleSpec
from trainwright.options.schedule import Method, SearchOptions, Time, resolve_case
from trainwright.pages.schedule_report import ScheduleReport, check_targets, report_on
from trainwright.plans.schedule import Schedule
from trainwright.scheduling.families import Family, FamilyRequest


def schedule(
    *,
    family: str | Family | Callable[[FamilyRequest], Schedule] | None = None,
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

    A `family` may be a function of your own, from a request to a `Schedule`.

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
    *,
    orders: Path | None = None,
    orders_form: str | None = None,
    gantt: Path | None = None,
    verify: bool = False,
    output: Path | None = None,
    as_json: bool = False,
    time_limit: float | None = None,
    **options: Any,
) -> None:
    """Schedule, then write, draw and run the orders as asked."""
    check_output(output, options.get("spec"), options.get("simulate"))
    check_targets(orders=orders, orders_form=orders_form, gantt=gantt, verify=verify)
    with budget(time_limit) as allowed:
        report = schedule(budget=allowed, **options)
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
