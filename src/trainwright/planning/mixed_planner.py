"""Planning a model on several pools of devices: each pool alone, and all ways to use several.

Pools alone are planned first by `model_planner`, with all that it knows, so that what several pools
must beat is known; `mixed_search` looks for plans that do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainwright.planning.framework import plan_runnable
from trainwright.planning.mixed_priced import MixedPriced, Shape, best_of_shapes, priced_mixed
from trainwright.planning.mixed_search import MixedSearch
from trainwright.planning.mixed_space import MixedShelf

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.execution.executor import Crew
    from trainwright.planning.model_planner import ModelOutcome
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.split_plan import Priced


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedOutcome:
    """Best plan first; the bound holds for every plan of the searched space.

    Beside the best there is one plan for each other shape, where one was found; that is the best of
    its shape where the pool is alone, else a good one.
    """

    priced: tuple[MixedPriced, ...]
    lower_bound_s: float
    considered: int
    pruned: int
    not_reached: int
    exhausted: bool
    interrupted: bool


def plan_mixed(
    question: ModelQuestion,
    budget: Budget,
    *,
    shelf: MixedShelf | None = None,
    crew: Crew | None = None,
) -> MixedOutcome:
    """The fastest plan on one pool or several, and a bound on every other.

    A `crew` helps with each pool alone. Raises `UnsupportedFeature` where the pools share no number
    format, and like `model_planner`.
    """
    shelf = shelf or MixedShelf.of(question)
    alone = {pool: _alone(shelf, pool, budget, crew) for pool in range(len(shelf.cluster.pools))}
    search = MixedSearch(shelf, budget)
    for pool, outcome in alone.items():
        search.priced += [_one_pool(shelf, pool, found) for found in outcome.priced[:1]]
    search.best_s = min((found.step.step_time_s for found in search.priced), default=math.inf)
    is_complete = search.open()
    search.run()
    search.fill_shapes()
    open_parts = [each for each in alone.values() if each.priced or not each.exhausted]
    bound_s = min([search.bound_s, *(each.lower_bound_s for each in open_parts)])
    left = search.count_left()
    reached = search.searched
    considered = search.considered + sum(each.considered for each in alone.values())
    return MixedOutcome(
        priced=best_of_shapes(search.priced),
        lower_bound_s=bound_s if is_complete and math.isfinite(bound_s) else 0.0,
        considered=considered,
        pruned=max(0, search.considered - reached - left)
        + sum(each.pruned for each in alone.values()),
        not_reached=left + sum(each.not_reached for each in alone.values()),
        exhausted=all(each.exhausted for each in alone.values())
        and not (budget.stopped or search.undecided),
        interrupted=budget.interrupted,
    )


def _alone(shelf: MixedShelf, pool: int, budget: Budget, crew: Crew | None) -> ModelOutcome:
    return plan_runnable(shelf.alone(pool), budget, num_alternatives=0, crew=crew)


def _one_pool(shelf: MixedShelf, pool: int, found: Priced) -> MixedPriced:
    """A plan of `model_planner` as one of the whole cluster."""
    kind = shelf.cluster.pools[pool].accelerator.name
    stages = tuple(
        replace(
            stage,
            replicas=tuple(replace(g, pool=pool, device_kind=kind) for g in stage.replicas),
        )
        for stage in found.plan.stages
    )
    plan = replace(found.plan, stages=stages)
    shape = Shape(name="alone", pools=(pool,))
    return priced_mixed(shelf, shape, plan, {pool: found.profile})
