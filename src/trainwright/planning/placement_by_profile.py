"""PHAZE's placement as a restriction of the profile partitioner: one t, uniform d.

The partitioner (Piper's problem) chooses degrees per stage and minimises the slowest stage's time
per sample. Restricted to one tensor degree t and one replica on s·t devices it finds the least load
L(j, s) of layers j … n − 1 in at most s stages, where a microbatch that crosses a cut is charged to
both ends, as here, and stage k from the end holds k microbatches, as here. A batch is then the best
of

    max(load of layers 0 … j − 1, L(j, s − 1)) · (ceil(N / d) + s − 1) + gradients of stage 0

over t, d, s and j. Fewer stages than s only make rounds fewer, so "at most" is enough. This is how
the two problems are one; `place_case` solves it thousands of times faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import UnsupportedFeature
from trainwright.partitioning.downset_dp import solve
from trainwright.partitioning.place_layers import PlacementOutcome
from trainwright.partitioning.placement_price import PlacedPlan, fits, price_placement
from trainwright.partitioning.restrictions import Restrictions
from trainwright.plan.status import Status
from trainwright.profile import (
    CostTable,
    Edge,
    Layer,
    Origin,
    Profile,
    ProfilePoint,
    Provenance,
    Recompute,
    Setting,
    Structure,
)

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.partitioning.placement_price import PlacedCost
    from trainwright.partitioning.placement_rules import PlacementRules
    from trainwright.profile.placement_case import PlacementCase, WidthTable

Stages = tuple[tuple[int, ...], ...]


def place_by_profile(
    case: PlacementCase, *, rules: PlacementRules, budget: Budget
) -> PlacementOutcome:
    """The optimum of a chain by the published rules, from the profile partitioner.

    Raises `UnsupportedFeature` for what its costs cannot say: recomputation, edges that skip
    layers, stages of which only some take t devices, gradients of any stage but the first.
    """
    started_s = budget.cpu_s
    best: tuple[PlacedPlan, PlacedCost] | None = None
    for table in case.widths:
        _refuse(table, case, rules)
        best = _Width(table, case, rules, budget).improve(best)
    status = Status.OPTIMAL if best else Status.INFEASIBLE
    if budget.stopped:
        status = Status.GAP if best else Status.UNKNOWN
    return PlacementOutcome(
        status=status,
        plan=best[0] if best else None,
        cost=best[1] if best else None,
        lower_bound_s=best[1].time_s if best and status is Status.OPTIMAL else 0.0,
        solver_s=budget.cpu_s - started_s,
    )


def _refuse(table: WidthTable, case: PlacementCase, rules: PlacementRules) -> None:
    pairs = {(edge.source, edge.target) for edge in table.edges}
    chain = {(v, v + 1) for v in range(table.num_layers - 1)}
    reasons = {
        "recomputation": case.recompute,
        "edges that skip layers": pairs != chain or len(table.edges) != len(chain),
        "stages on fewer devices than t": table.tensor_parallel > 1 and not table.is_split.all(),
        f"the cost model {rules.name}": not rules.sync_first_stage or rules.caps_in_flight,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedFeature(
                f"the profile partitioner cannot express {reason}", alternative="use planner exact"
            )


@dataclass(frozen=True, slots=True)
class _Width:
    """One tensor width, and what the partitioner says about its suffixes."""

    table: WidthTable
    case: PlacementCase
    rules: PlacementRules
    budget: Budget

    def improve(
        self, best: tuple[PlacedPlan, PlacedCost] | None
    ) -> tuple[PlacedPlan, PlacedCost] | None:
        """The better of `best` and the best placement at this width."""
        setting, width = self.case.setting, self.table.tensor_parallel
        suffix = cache(self._suffix)
        for d in range(1, min(setting.num_devices // width, setting.num_microbatches) + 1):
            for stages in range(1, min(setting.num_devices // (d * width), self._layers) + 1):
                for first in range(1, self._layers - stages + 2):
                    best_s = best[1].time_s if best else math.inf
                    if self.budget.stopped or self._bound_s(d, stages, first) >= best_s:
                        continue
                    rest = suffix(first, stages - 1)
                    if rest is not None:
                        best = self._better(best, (tuple(range(first)), *rest), d)
        return best

    @property
    def _layers(self) -> int:
        return self.table.num_layers

    def _work_s(self, first: int, last: int) -> float:
        table = self.table
        return float((table.forward_s[first:last] + table.backward_s[first:last]).sum())

    def _bound_s(self, d: int, stages: int, first: int) -> float:
        """No placement with this first stage is faster: its work, and an even share of the rest."""
        setting, rules = self.case.setting, self.rules
        load_s = self._work_s(0, first)
        if stages > 1:
            load_s = max(load_s, self._work_s(first, self._layers) / (stages - 1))
        sync_bytes = rules.sync_factor * float(self.table.parameter_bytes[:first].sum())
        sync_s = sync_bytes * (d - 1) / (d * setting.bandwidth_bytes_per_s)
        return load_s * (-(-setting.num_microbatches // d) + stages - 1) + sync_s

    def _suffix(self, first: int, stages: int) -> Stages | None:
        """The best cut of layers `first` … in at most `stages` stages, `None` where none fits."""
        if first == self._layers:
            return ()
        if stages == 0:
            return None
        width = self.table.tensor_parallel
        found = solve(
            _profile(self.table, first, self.case, self.rules),
            Setting(
                num_devices=stages * width,
                memory_bytes=self.case.setting.memory_bytes,
                bandwidth_bytes_per_s=self.case.setting.bandwidth_bytes_per_s,
                num_microbatches=stages,  # the partitioner fills its pipelines
            ),
            restrictions=Restrictions(data_degrees=(1,), tensor_degrees=(width,)),
            budget=self.budget,
        )
        if found.plan is None:
            return None
        return tuple(tuple(sorted(stage.layers)) for stage in found.plan.stages)

    def _better(
        self, best: tuple[PlacedPlan, PlacedCost] | None, stages: Stages, d: int
    ) -> tuple[PlacedPlan, PlacedCost] | None:
        ids, depth = self.table.layer_ids, len(stages)
        plan = PlacedPlan(
            tensor_parallel=self.table.tensor_parallel,
            data_parallel=d,
            stages=tuple(tuple(ids[v] for v in stage) for stage in stages),
            recomputes=(False,) * depth,
            depth=depth,
            positions=tuple(range(depth)),
        )
        cost = price_placement(plan, self.case, self.rules)
        better = best is None or cost.time_s < best[1].time_s
        return (plan, cost) if better and fits(cost, self.case) else best


def _profile(table: WidthTable, first: int, case: PlacementCase, rules: PlacementRules) -> Profile:
    """Layers `first` … as a profile: a cut edge costs both ends half of what Piper would charge."""
    count = table.num_layers - first
    duration_s = (table.forward_s + table.backward_s)[first:].copy()
    entering = [edge.bytes for edge in table.edges if edge.target == first]
    duration_s[0] += sum(entering) / case.setting.bandwidth_bytes_per_s
    nothing = np.zeros(count)
    return Profile(
        structure=Structure(
            layers=tuple(
                Layer(id=v, name="", layer_class=v - first) for v in range(first, first + count)
            ),
            edges=tuple(
                Edge(source=e.source - first, target=e.target - first, bytes=e.bytes / 2)
                for e in table.edges
                if e.source >= first
            ),
        ),
        costs=CostTable(
            class_offsets=np.arange(count + 1),
            option_ids=("",) * count,
            tensor_parallel=np.full(count, table.tensor_parallel),
            recompute=(Recompute.NONE,) * count,
            duration_s=duration_s,
            saved_until_input_grad_bytes=table.activation_bytes[first:].copy(),
            saved_until_weight_grad_bytes=nothing.copy(),
            transient_bytes=nothing.copy(),
            static_bytes=np.zeros((count, 2, 3)),
            opaque_static_bytes=rules.copies[case.optimizer] * table.parameter_bytes[first:],
            gradient_sync_bytes=np.zeros((count, 2)),
            boundary_offsets=np.zeros(count + 1, dtype=np.int64),
            boundary_bytes=np.zeros(0),
            provenance=Provenance(origin=Origin.IMPORTED, source="placement input"),
        ),
        point=ProfilePoint(tensor_parallel=(table.tensor_parallel,)),
    )
