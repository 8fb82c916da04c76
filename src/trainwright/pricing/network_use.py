"""Which network level carries what a step communicates.

Times are those of the busiest rank, as `StepPrediction.communication` has them; the levels follow
from where its groups lie on the cluster.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from trainwright.cluster import nested_hops
from trainwright.plan.network_use import AxisUse, LevelUse
from trainwright.pricing.placement import Placement, replica_rows

if TYPE_CHECKING:
    from trainwright.cluster import Cluster, NetworkLevel
    from trainwright.plan import Plan, StepPrediction

    Crossing = tuple[str, int]  # name of the outermost level, ranks that meet


def network_use(plan: Plan, cluster: Cluster, step: StepPrediction) -> tuple[LevelUse, ...]:
    """Every level of the cluster; empty where the step does not say what it communicates.

    Raises `UnsupportedFeature` for a cluster of several pools.
    """
    if not step.communication:
        return ()
    levels = cluster.pool_of().levels
    crossings = _crossings(Placement(plan=plan, pool=cluster.pool_of()))
    return tuple(_level_use(level, crossings, step) for level in levels)


def _level_use(
    level: NetworkLevel, crossings: dict[str, Crossing], step: StepPrediction
) -> LevelUse:
    axes = []
    for part in step.communication:
        name, ranks = crossings.get(part.kind, ("", 0))
        if name == level.name and part.exposed_s + part.hidden_s > 0:
            axes.append(
                AxisUse(
                    kind=part.kind, ranks=ranks, exposed_s=part.exposed_s, hidden_s=part.hidden_s
                )
            )
    return LevelUse(
        name=level.name,
        size=level.size,
        effective_bytes_per_s=level.effective_bytes_per_s,
        axes=tuple(axes),
    )


def _crossings(placement: Placement) -> dict[str, Crossing]:
    """By purpose, the outermost level its groups cross and how many ranks a group has."""
    degrees, levels = placement.degrees, placement.pool.levels
    stage = placement.plan.stages[0]
    t, d = stage.tensor_parallel, stage.data_parallel
    replicas = d * degrees.context
    hops, (rows, _) = placement.axis_hops(t), replica_rows(replace(degrees, tensor=t, data=d))
    shards = d // degrees.state_copies
    own, _ = replica_rows(replace(degrees, tensor=t, data=shards))
    hops["gradients"] = nested_hops(levels, rows)
    hops["parameters"] = nested_hops(levels, own)
    ranks = {
        "tensor": t,
        "context": degrees.context,
        "expert": degrees.expert,
        "gradients": replicas,
        "parameters": shards * degrees.context,
    }
    found = {kind: (hops[kind][-1].level.name, n) for kind, n in ranks.items() if hops[kind]}
    between = {
        level.name
        for sender, receiver in pairwise(range(len(placement.plan.stages)))
        if (level := placement.level_between(sender, receiver)) is not None
    }
    outermost = [level.name for level in levels if level.name in between]
    if outermost:
        found["pipeline"] = (outermost[-1], degrees.pipeline)
    return found
