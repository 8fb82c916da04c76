"""Every design of a search as a row: its parts, what ended it, and its figures where priced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.codesign.area import UM2_PER_MM2
from trainwright.codesign.space import FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.codesign.population import Population
    from trainwright.codesign.question import CodesignQuestion
    from trainwright.codesign.search import CodesignOutcome

COLUMNS: Final = (
    "variant",
    "design",
    *FIELDS,
    "area_mm2",
    "ended_by",
    "bound",
    "objective",
    "power_watts",
    "energy_per_token_j",
    "tensor_parallel",
    "data_parallel",
    "pipeline_parallel",
    "recompute",
    "schedule",
)

Row = tuple[str | int | float, ...]


def design_rows(
    question: CodesignQuestion, outcome: CodesignOutcome, found: Population | None
) -> Iterator[Row]:
    """One row per node; plans are those of the first model, empty where no plan was priced.

    The bound is the one that ended the node, in the unit of the objective.
    """
    priced = {}
    if found is not None:
        nodes = zip(found.variant.tolist(), found.index.tolist(), strict=True)
        priced = {node: row for row, node in enumerate(nodes)}
    ledger = outcome.ledger
    for variant, one in enumerate(question.variants):
        areas = question.areas_um2(one) / UM2_PER_MM2
        for design in range(len(question.space)):
            level = str(ledger.levels[variant, design]) or "open"
            bound = float(ledger.bounds[variant, design])
            parts = tuple(question.space.designs[:, design].tolist())
            row: Row = (variant, design, *parts, float(areas[design]), level, bound)
            place = priced.get((variant, design))
            yield row + (_figures(found, place) if found and place is not None else ("",) * 8)


def _figures(found: Population, row: int) -> Row:
    plan = found.plans[row][0]
    return (
        float(found.cost[row]),
        float(found.power_watts[row]),
        float(found.energy_per_token_j[row]),
        plan.tensor_degree,
        plan.data_degree,
        plan.num_ranks,
        plan.recompute_name,
        plan.schedule,
    )
