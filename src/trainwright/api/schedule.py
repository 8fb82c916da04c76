"""`trainwright schedule`: pipeline schedules by name, by search, or as given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.api.schedule_inputs import Time
    from trainwright.api.schedule_report import ScheduleReport
    from trainwright.execution import Budget
    from trainwright.formats.schedule_spec import ScheduleSpec
    from trainwright.plan.schedule import Schedule


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
    from trainwright.api.schedule_inputs import resolve_case
    from trainwright.api.schedule_method import Method, SearchOptions
    from trainwright.api.schedule_methods import answer_with
    from trainwright.api.schedule_orders import open_orders
    from trainwright.api.schedule_report import report_on
    from trainwright.execution import Budget as NoLimit

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
