"""One door to the ways of partitioning a profile: the exact search and the equal split."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.partitioning.downset_dp import solve
from trainwright.partitioning.equal import plan_equal
from trainwright.partitioning.evaluate import evaluate, time_per_sample_s
from trainwright.partitioning.outcome import PartitionOutcome
from trainwright.partitioning.ties import recompute_least
from trainwright.plan.status import Status

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.partitioning.restrictions import Restrictions
    from trainwright.profile import Profile, Setting


def search(
    profile: Profile,
    setting: Setting,
    *,
    restrictions: Restrictions,
    planner: str,
    block_layer: str | None,
    budget: Budget,
) -> PartitionOutcome:
    """The outcome of the named planner, "exact" or "equal"."""
    if planner == "exact":
        found = solve(profile, setting, restrictions=restrictions, budget=budget)
        return recompute_least(found, profile, setting, restrictions=restrictions)
    return equal_split(
        profile, setting, restrictions=restrictions, block_layer=block_layer, budget=budget
    )


def equal_split(
    profile: Profile,
    setting: Setting,
    *,
    restrictions: Restrictions,
    block_layer: str | None,
    budget: Budget,
) -> PartitionOutcome:
    """The best equal split. It proves nothing, so its bound is 0 and it is never `infeasible`."""
    started_s = budget.cpu_s
    plan = plan_equal(profile, setting, restrictions=restrictions, block_layer=block_layer)
    costs = evaluate(plan, profile, setting) if plan is not None else ()
    return PartitionOutcome(
        status=Status.UNKNOWN if plan is None else Status.GAP,
        plan=plan,
        stage_costs=costs,
        time_per_sample_s=time_per_sample_s(costs) if plan is not None else None,
        lower_bound_s=0.0,
        solver_s=budget.cpu_s - started_s,
    )
