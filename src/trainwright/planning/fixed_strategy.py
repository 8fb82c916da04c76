"""A strategy stated beside a placement problem, priced next to the optimum.

It deals out its layers evenly over p stages, with t devices for every stage and d replicas. The
published program counts positions in the whole chain, so that an embedding in front shifts every
group by one; the native rules find the repeated layers, deal out those, and give what comes before
and after to the first and the last stage. What does not fit is reported, never an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwright.partitioning.placement_price import (
    PlacedPlan,
    fits,
    held_by,
    needs_recompute,
    price_placement,
)

if TYPE_CHECKING:
    from trainwright.partitioning.placement_price import PlacedCost
    from trainwright.partitioning.placement_rules import PlacementRules
    from trainwright.profile.placement_case import FixedStrategy, PlacementCase, WidthTable

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedStrategy:
    """The strategy's plan and price; `reason` says why it cannot run, and is absent if it can."""

    plan: PlacedPlan | None
    cost: PlacedCost | None
    reason: str | None


def price_strategy(case: PlacementCase, rules: PlacementRules) -> PricedStrategy | None:
    """Price the case's fixed strategy; `None` where it states none."""
    fixed = case.fixed
    if fixed is None:
        return None
    table = case.at_width(fixed.tensor_parallel)
    if table is None:
        offered = ", ".join(str(width.tensor_parallel) for width in case.widths)
        missing = f"tensor width {fixed.tensor_parallel} is not one of {offered}"
        return PricedStrategy(plan=None, cost=None, reason=missing)
    plan = _plan(fixed, table, case, rules)
    cost = price_placement(plan, case, rules)
    if cost.devices_used > case.setting.num_devices:
        excess = f"needs {cost.devices_used} devices of {case.setting.num_devices}"
        return PricedStrategy(plan=plan, cost=cost, reason=excess)
    reason = None if fits(cost, case) else OUT_OF_MEMORY
    return PricedStrategy(plan=plan, cost=cost, reason=reason)


def _plan(
    fixed: FixedStrategy, table: WidthTable, case: PlacementCase, rules: PlacementRules
) -> PlacedPlan:
    by_position: dict[int, list[int]] = {}
    for layer, position in enumerate(stage_positions(fixed, table, rules)):
        by_position.setdefault(position, []).append(layer)
    held = {
        k: held_by(k, fixed.num_stages, fixed.data_parallel, case, rules.caps_in_flight)
        for k in by_position
    }
    return PlacedPlan(
        tensor_parallel=table.tensor_parallel,
        data_parallel=fixed.data_parallel,
        stages=tuple(tuple(table.layer_ids[v] for v in stage) for stage in by_position.values()),
        recomputes=tuple(
            needs_recompute(stage, held[k], table, case, rules) for k, stage in by_position.items()
        ),
        depth=fixed.num_stages,
        positions=tuple(by_position),
        narrow_stages=False,
    )


def stage_positions(
    fixed: FixedStrategy, table: WidthTable, rules: PlacementRules
) -> tuple[int, ...]:
    """The stage of each layer, ascending along the table's order."""
    last, count = fixed.num_stages - 1, fixed.num_layers
    per_stage = -(-count // fixed.num_stages)
    first = _first_block(table, count) if rules.deals_blocks else 0
    return tuple(
        last if v - first >= count else min(max(0, v - first) // per_stage, last)
        for v in range(table.num_layers)
    )


def _first_block(table: WidthTable, count: int) -> int:
    """Where the `count` most alike consecutive layers begin; about the middle where many do."""
    spare = table.num_layers - count
    if spare <= 0:
        return 0
    columns = (
        table.parameter_bytes,
        table.activation_bytes,
        table.forward_s,
        table.backward_s,
        table.is_split,
    )
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    middle = -(-spare // 2)
    starts = range(spare + 1)
    return min(starts, key=lambda k: (len(set(rows[k : k + count])), abs(k - middle)))
