"""Whether a sweep's document still says what its rows and its plan make of each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.api.recheck import changes, recheck
from trainwright.api.recompute import inside, refuse
from trainwright.api.sweep_goal import Goal
from trainwright.api.sweep_rows import (
    best_row,
    pareto_rows,
    plan_row,
    sweep_status,
    with_totals,
)
from trainwright.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.results.model_sweep import ModelSweepResult


def recheck_sweep(document: ModelSweepResult, *, source: str | None = None) -> ModelSweepResult:
    """The document itself; raises `InvalidInput` with every contradiction.

    The preferred plan is priced again; of the other rows only their totals can be.
    """
    from trainwright.planning.objectives import Objective, Training

    try:
        unknown = {document.objective, *document.pareto_objectives} - set(Objective)
        refuse(Fault("objective", f'must be an objective, got "{name}"') for name in unknown)
        stated = document.training
        with inside("training"):
            training = Training(
                tokens=stated.tokens,
                price_per_hour=stated.price_per_hour,
                power_watts=stated.power_watts,
                deadline_s=stated.deadline_s,
                device_mtbf_s=stated.device_mtbf_s,
                checkpoint_bytes_per_s=stated.checkpoint_bytes_per_s,
                restart_s=stated.restart_s,
            )
        goal = Goal(
            objective=Objective(document.objective),
            pareto=tuple(map(Objective, document.pareto_objectives)),
            training=training,
            checkpoint_bytes=stated.checkpoint_bytes,
        )
        refuse(_faults(document, goal))
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=source) from None
    return document


def _faults(document: ModelSweepResult, goal: Goal) -> Iterator[Fault]:
    rows = tuple(with_totals(row, goal) for row in document.rows)
    yield from changes(rows, document.rows, "rows")
    expected = replace(
        document,
        status=sweep_status(rows, goal),
        best=best_row(rows, goal),
        pareto=pareto_rows(rows, goal),
        best_plan=None,
    )
    yield from changes(expected, replace(document, best_plan=None), "")
    if document.best is None or document.best_plan is None:
        return
    if not 0 <= document.best < len(document.rows):
        return
    row = document.rows[document.best]
    with inside("best_plan"):
        plan = recheck(document.best_plan)
    made = replace(plan_row(row.devices, plan, goal), search_s=row.search_s)
    yield from changes(made, row, f"rows[{document.best}]")
