"""The exact partitioner: the plan of least time per sample, and the proof.

A plan is a chain of downsets (sets closed under successors) of the layer graph. For a threshold the
native core sweeps all chains whose stages stay below it, each stage with its best choice of options
under the memory limit; the last "no" is the proof. See `native/partition.hpp` for the recurrence
and `docs/partitioning.md` for the idea; the problem is Piper's (Tarnawski et al., NeurIPS 2021).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trainwright._native import _core
from trainwright.execution import Budget, Progress
from trainwright.partitioning.compile import compile_problem
from trainwright.partitioning.evaluate import evaluate
from trainwright.partitioning.outcome import PartitionOutcome
from trainwright.partitioning.restrictions import Restrictions
from trainwright.plan.status import Status

if TYPE_CHECKING:
    from trainwright.profile import Profile, Setting


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
