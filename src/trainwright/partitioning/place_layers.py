"""Placing the layers of a whole case: every tensor width, chains and graphs that branch.

A chain is searched over all cuts between its layers. A graph that branches is searched over all
sets of layers closed under predecessors, each stage in its best order; where these are too many the
graph is taken as a chain in one topological order, and a bound from its work says how far the
result can be from the optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright._native import _core
from trainwright.errors import UnsupportedFeature
from trainwright.execution import Progress
from trainwright.partitioning.chain_placement import (
    native_layers,
    native_rules,
    place_many,
    recompute_mode,
)
from trainwright.partitioning.placement_price import (
    PlacedPlan,
    held_by,
    needs_recompute,
    price_placement,
)
from trainwright.plan.status import OPTIMAL_TOLERANCE, Status, relative_gap

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainwright.execution import Budget
    from trainwright.partitioning.placement_price import PlacedCost
    from trainwright.partitioning.placement_rules import PlacementRules
    from trainwright.profile.placement_case import PlacementCase, WidthTable

_MAX_STAGE_SETS: Final = 1_000_000
_MAX_CHAIN: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOutcome:
    """A placement and its price, or none; `lower_bound_s` holds for every placement of the space.

    `solver_s` is CPU time of the search alone.
    """

    status: Status
    plan: PlacedPlan | None
    cost: PlacedCost | None
    lower_bound_s: float
    solver_s: float

    @property
    def gap(self) -> float | None:
        """(T − L) / T, as a fraction; absent without a plan."""
        return relative_gap(self.cost.time_s, self.lower_bound_s) if self.cost else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """The best of one width: replicas and stages as layer indices; whether all was looked at."""

    time_s: float
    data_parallel: int
    stages: tuple[tuple[int, ...], ...]
    complete: bool


def place_case(
    case: PlacementCase,
    *,
    rules: PlacementRules,
    budget: Budget,
    max_data_parallel: int | None = None,
    max_stage_sets: int = _MAX_STAGE_SETS,
) -> PlacementOutcome:
    """The fastest placement over all widths; equal times go to the smaller width.

    Raises `UnsupportedFeature` for a graph that branches where the rules do not admit one.
    """
    started_s = budget.cpu_s
    best: tuple[_Placed, WidthTable] | None = None
    complete, bound_s = True, math.inf
    for table in case.widths:
        _refuse_shape(table, rules)
        found = _place_width(table, case, rules, budget, max_data_parallel, max_stage_sets)
        if found.complete:
            bound_s = min(bound_s, found.time_s)
        else:
            complete = False
            bound_s = min(bound_s, _work_bound_s(table, case, max_data_parallel))
        if found.data_parallel and (best is None or found.time_s < best[0].time_s * (1 - 1e-12)):
            best = found, table
    if best is None:
        return PlacementOutcome(
            status=Status.INFEASIBLE if complete else Status.UNKNOWN,
            plan=None,
            cost=None,
            lower_bound_s=bound_s if math.isfinite(bound_s) else 0.0,
            solver_s=budget.cpu_s - started_s,
        )
    plan = _plan(*best, case, rules)
    cost = price_placement(plan, case, rules)
    bound_s = min(bound_s, cost.time_s)
    proved = complete or relative_gap(cost.time_s, bound_s) <= OPTIMAL_TOLERANCE
    return PlacementOutcome(
        status=Status.OPTIMAL if proved else Status.GAP,
        plan=plan,
        cost=cost,
        lower_bound_s=cost.time_s if proved else bound_s,
        solver_s=budget.cpu_s - started_s,
    )


def _refuse_shape(table: WidthTable, rules: PlacementRules) -> None:
    if table.branches and not rules.allows_branches:
        raise UnsupportedFeature(
            f"branching in the layer graph is not supported by the cost model {rules.name}",
            alternative="use phaze-general-dag or native",
        )
    if table.num_layers > _MAX_CHAIN:
        raise UnsupportedFeature(
            f"a placement of {table.num_layers} layers", alternative=f"at most {_MAX_CHAIN}"
        )


def _place_width(
    table: WidthTable,
    case: PlacementCase,
    rules: PlacementRules,
    budget: Budget,
    max_data_parallel: int | None,
    max_stage_sets: int,
) -> _Placed:
    poll = _poll(budget)
    if table.branches:
        found = _core.place_graph(
            forward_s=table.forward_s,
            backward_s=table.backward_s,
            max_stage_sets=max_stage_sets,
            layers=native_layers(table, rules.copies[case.optimizer]),
            memory_bytes=case.setting.memory_bytes,
            recompute=recompute_mode(rules, recompute=case.recompute),
            rules=native_rules(table, case.setting, rules, max_data_parallel),
            poll=poll,
        )
        if found["complete"]:
            cuts, order = found["stage_offset"].tolist(), found["layers"].tolist()
            return _Placed(
                time_s=found["time_s"],
                data_parallel=found["data_parallel"],
                stages=tuple(tuple(order[a:b]) for a, b in pairwise(cuts)),
                complete=not found["stopped"],
            )
    chains = place_many(
        table.forward_s[None, :],
        table.backward_s[None, :],
        table,
        case.setting,
        rules=rules,
        optimizer=case.optimizer,
        recompute=case.recompute,
        max_data_parallel=max_data_parallel,
        poll=poll,
    )
    return _Placed(
        time_s=float(chains.time_s[0]),
        data_parallel=int(chains.data_parallel[0]),
        stages=tuple(map(tuple, chains.stages_of(0))),
        complete=not (chains.stopped or table.branches),
    )


def _poll(budget: Budget) -> Callable[[], bool]:
    return lambda: budget.poll(Progress(stage="placement", elapsed_s=budget.elapsed_s))


def _plan(
    found: _Placed, table: WidthTable, case: PlacementCase, rules: PlacementRules
) -> PlacedPlan:
    depth = len(found.stages)
    held = [
        held_by(k, depth, found.data_parallel, case, rules.caps_in_flight) for k in range(depth)
    ]
    return PlacedPlan(
        tensor_parallel=table.tensor_parallel,
        data_parallel=found.data_parallel,
        stages=tuple(tuple(table.layer_ids[v] for v in stage) for stage in found.stages),
        recomputes=tuple(
            needs_recompute(stage, count, table, case, rules)
            for stage, count in zip(found.stages, held, strict=True)
        ),
        depth=depth,
        positions=tuple(range(depth)),
    )


def _work_bound_s(table: WidthTable, case: PlacementCase, max_data_parallel: int | None) -> float:
    """No placement at this width is faster: its work, shared evenly, and its longest layer."""
    setting = case.setting
    work_s = table.forward_s + table.backward_s
    widest = table.tensor_parallel if bool(table.is_split.all()) else 1
    most = min(max_data_parallel or setting.num_devices, setting.num_devices)
    bounds = [math.inf]
    for stages in range(1, min(table.num_layers, setting.num_devices // widest) + 1):
        replicas = min(most, setting.num_devices // (stages * widest), setting.num_microbatches)
        if replicas >= 1:
            rounds = -(-setting.num_microbatches // replicas) + stages - 1
            bounds.append(rounds * max(float(work_s.max()), float(np.sum(work_s)) / stages))
    return min(bounds)
