"""The same problem under restricted modes and by equal splitting, beside the full optimum.

The modes are those of the Piper paper: no data parallelism, no tensor parallelism, no activation
recomputation; the equal splits are what a person writes by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.plan.results.plan import Baseline
from trainwright.planning.profile_planner import search

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.execution import Budget
    from trainwright.partitioning.restrictions import Restrictions
    from trainwright.profile import Profile, Setting


def baselines(
    profile: Profile,
    setting: Setting,
    *,
    restrictions: Restrictions,
    best_time_s: float | None,
    block_layer: str | None,
    budget: Budget,
) -> Iterator[Baseline]:
    """Each restricted mode and equal split, with its slowdown over `best_time_s`."""
    for name, planner, mode in _modes(restrictions):
        outcome = search(
            profile,
            setting,
            restrictions=mode,
            planner=planner,
            block_layer=block_layer,
            budget=budget,
        )
        yield Baseline(
            name=name,
            status=outcome.status,
            time_per_sample_s=outcome.time_per_sample_s,
            slowdown=slowdown(outcome.time_per_sample_s, best_time_s),
            num_stages=len(outcome.plan.stages) if outcome.plan else None,
        )


def _modes(restrictions: Restrictions) -> Iterator[tuple[str, str, Restrictions]]:
    """(name, planner, restrictions) of each comparison that differs from what was asked."""
    without_tensor = replace(restrictions, tensor_parallel=False)
    if restrictions.data_parallel:
        yield "no data parallelism", "exact", replace(restrictions, data_parallel=False)
    if restrictions.tensor_parallel:
        yield "no tensor parallelism", "exact", without_tensor
    if restrictions.recompute:
        yield "no recomputation", "exact", replace(restrictions, recompute=False)
    if restrictions.tensor_parallel:
        yield "equal split", "equal", restrictions
    yield "equal split, no tensor parallelism", "equal", without_tensor


def slowdown(time_s: float | None, best_time_s: float | None) -> float | None:
    """How many times as long as the best; `None` where one of them is missing or nothing."""
    if time_s is None or best_time_s is None or best_time_s <= 0:
        return None
    return time_s / best_time_s
