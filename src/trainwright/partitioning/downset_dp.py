"""The exact partitioner: the plan of least time per sample, and the proof.

A plan is a chain of downsets (sets closed under successors) of the layer graph. For a threshold the
native core sweeps all chains whose stages stay below it, each stage with its best choice of options
under the memory limit; the last "no" is the proof. See `native/partition/partition.hpp` for the
recurrence and `docs/partitioning.md` for the idea; the problem is Piper's (Tarnawski et al.,
NeurIPS 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from trainwright._native import _core
from trainwright.execution import Budget, Progress
from trainwright.partitioning.evaluate import evaluate, time_per_sample_s
from trainwright.partitioning.problem import (
    PartitionOutcome,
    Restrictions,
    compile_problem,
    surviving_rows,
)
from trainwright.plans.status import Status
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.plans import Stage, StageCost
    from trainwright.profile import CostTable, Profile, Setting


def solve(
    profile: Profile,
    setting: Setting,
    *,
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> PartitionOutcome:
    """Best plan of `profile` in `setting`, with a lower bound; `optimal` only where proved.

    The time reported is that of the public evaluator, not of the search. Deterministic unless the
    budget has a time limit. Without a plan the outcome says whether that is proved.
    """
    budget = budget or Budget()
    started_s = budget.cpu_s
    compiled = compile_problem(profile, setting, restrictions or Restrictions())

    def poll(elapsed_s: float, best_s: float, lower_bound_s: float) -> bool:
        return budget.poll(
            Progress(
                stage="partitioning", elapsed_s=elapsed_s, best=best_s, lower_bound=lower_bound_s
            )
        )

    found = _core.solve_partition(compiled.native, time_limit_s=budget.remaining_s, poll=poll)
    plan = compiled.decode(found.stages)
    stage_costs = evaluate(plan, profile, setting) if plan is not None else ()
    time_s = max((cost.time_per_sample_s for cost in stage_costs), default=None)
    bound_s = found.lower_bound_s if math.isfinite(found.lower_bound_s) else 0.0
    return PartitionOutcome(
        status=Status(found.status),
        plan=plan,
        stage_costs=stage_costs,
        time_per_sample_s=time_s,
        lower_bound_s=bound_s if time_s is None else min(bound_s, time_s),
        solver_s=budget.cpu_s - started_s,
        interrupted=budget.interrupted,  # the core cannot tell the user from the deadline
        counters=found.counters,
    )


# Among plans of the same time, one that recomputes less
# ------------------------------------------------------
# The search keeps, of options that take equally long, the one that needs less memory, and asks no
# further. An option that recomputes for nothing is then replaced by one that does not, wherever the
# stage's memory allows: no stage gets slower, so the outcome's proof stands. Within a stage the
# cheapest replacements in bytes come first, which replaces as many layers as fit.

_WORK: Final = tuple(Recompute)  # from least to most


def recompute_least(
    outcome: PartitionOutcome, profile: Profile, setting: Setting, *, restrictions: Restrictions
) -> PartitionOutcome:
    """The outcome with the same cuts and times, and no recomputation that saves nothing needed."""
    if outcome.plan is None:
        return outcome
    lighter = _Lighter(profile, restrictions)
    stages = tuple(
        _relieve(stage, cost, lighter, setting.memory_bytes - cost.memory_bytes)
        for stage, cost in zip(outcome.plan.stages, outcome.stage_costs, strict=True)
    )
    if stages == outcome.plan.stages:
        return outcome
    plan = replace(outcome.plan, stages=stages)
    costs = evaluate(plan, profile, setting)
    return replace(
        outcome, plan=plan, stage_costs=costs, time_per_sample_s=time_per_sample_s(costs)
    )


def _relieve(stage: Stage, cost: StageCost, lighter: _Lighter, free_bytes: float) -> Stage:
    """The stage with as many layers relieved as its memory allows, of all recomputation first."""
    held = cost.microbatches_in_flight
    wishes = sorted(
        (other.work, held * other.saved_bytes + other.static_bytes, place, other.option)
        for place, (layer, option) in enumerate(zip(stage.layers, stage.options, strict=True))
        for other in lighter.than(layer, stage.tensor_parallel, option)
    )
    options = list(stage.options)
    for _, needed_bytes, place, option in wishes:
        if options[place] == stage.options[place] and needed_bytes <= free_bytes:
            options[place] = option
            free_bytes -= needed_bytes
    return replace(stage, options=tuple(options))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Other:
    """An option with less `work` to redo, as quick as another, and the bytes it needs beyond."""

    option: str
    work: int
    saved_bytes: float
    static_bytes: float


class _Lighter:
    """For an option, those as quick that recompute less; looked up by layer and degree."""

    def __init__(self, profile: Profile, restrictions: Restrictions) -> None:
        self._costs = profile.costs
        self._kept = surviving_rows(profile.costs, restrictions)
        self._class_of = {layer.id: layer.layer_class for layer in profile.structure.layers}
        self._found: dict[tuple[int, int, str], tuple[_Other, ...]] = {}

    def than(self, layer: int, tensor: int, option: str) -> tuple[_Other, ...]:
        key = (self._class_of[layer], tensor, option)
        if key not in self._found:
            self._found[key] = tuple(self._search(*key))
        return self._found[key]

    def _search(self, layer_class: int, tensor: int, option: str) -> Iterator[_Other]:
        costs = self._costs
        rows = [r for r in costs.rows_of(layer_class) if costs.tensor_parallel[r] == tensor]
        (chosen,) = (row for row in rows if costs.option_ids[row] == option)
        work = _WORK.index(costs.recompute[chosen])
        for row in rows if work else ():
            less = _WORK.index(costs.recompute[row])
            if less < work and self._kept[row] and _is_as_quick(costs, row, chosen):
                yield _Other(
                    option=costs.option_ids[row],
                    work=less,
                    saved_bytes=float(costs.saved_bytes[row] - costs.saved_bytes[chosen]),
                    static_bytes=float(
                        costs.total_static_bytes[row] - costs.total_static_bytes[chosen]
                    ),
                )


def _is_as_quick(costs: CostTable, row: int, than: int) -> bool:
    """Whether no stage takes longer with `row`, wherever it is cut."""
    cut, other = costs.boundary_of(row), costs.boundary_of(than)
    return bool(
        costs.duration_s[row] <= costs.duration_s[than]
        and costs.gradient_sync_bytes[row].sum() <= costs.gradient_sync_bytes[than].sum()
        and (len(cut) == 0 or (len(cut) == len(other) and (cut <= other).all()))
    )
