"""Which devices a plan's stages lie on, and which networks lie between them.

Pipeline ranks take consecutive devices in order. Inside a rank tensor groups are innermost, then
context groups, then replicas: replica k of a stage that starts at device o with c context ranks of
t devices runs on o + k·c·t to o + (k + 1)·c·t − 1. Experts are dealt out over the same devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from trainwright.cluster import crossed_level, group_hops
from trainwright.costing.estimate import axis_hops
from trainwright.plan.parallelism import Parallelism
from trainwright.pricing.pipeline_run import PipelineShape, placement_of
from trainwright.pricing.sharding import Replicas

if TYPE_CHECKING:
    from trainwright.cluster import Hop, NetworkLevel, Pool
    from trainwright.plan import Plan


@dataclass(frozen=True, kw_only=True)  # no slots: what is asked for each stage is kept
class Placement:
    """A plan laid on the devices of one pool."""

    plan: Plan
    pool: Pool

    @cached_property
    def degrees(self) -> Parallelism:
        """The degrees that all stages share; those of the plan's own, else one of each."""
        return self.plan.parallelism or Parallelism(pipeline=len(self.plan.stages))

    @cached_property
    def shape(self) -> PipelineShape:
        """Family, ranks, microbatches of one replica and chunks per rank."""
        stages, p = len(self.plan.stages), self.degrees.pipeline
        return PipelineShape(
            family=self.plan.schedule,
            num_ranks=p,
            num_microbatches=self.plan.num_microbatches // self.data_parallel[0],
            virtual_stages=max(1, stages // p),
        )

    @cached_property
    def rank_of_stage(self) -> tuple[int, ...]:
        """The pipeline rank of each virtual stage."""
        return placement_of(self.shape).rank_of_stage

    @cached_property
    def data_parallel(self) -> list[int]:
        """Replicas of each stage."""
        return [stage.data_parallel for stage in self.plan.stages]

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all stages have the same degrees."""
        return len({(s.data_parallel, s.tensor_parallel) for s in self.plan.stages}) == 1

    @cached_property
    def in_flight(self) -> list[int]:
        """Microbatches a replica holds under 1F1B: ⌈(d of its stage and all later ones) / d⌉."""
        degrees = self.data_parallel
        behind = list(accumulate(reversed(degrees)))[::-1]
        share = [self.plan.num_microbatches // d for d in degrees]
        return [min(-(-s // d), m) for s, d, m in zip(behind, degrees, share, strict=True)]

    def stages_of(self, rank: int) -> list[int]:
        """The virtual stages of a rank."""
        return [stage for stage, owner in enumerate(self.rank_of_stage) if owner == rank]

    def replicas(self, stage: int) -> Replicas:
        """How the replicas of a stage, dense and expert, spread over the network."""
        placed = self.plan.stages[stage]
        t, d = placed.tensor_parallel, placed.data_parallel
        return group_replicas(self.pool, replace(self.degrees, tensor=t, data=d))

    def axis_hops(self, tensor: int) -> dict[str, tuple[Hop, ...]]:
        """How the groups inside a layer spread over the network."""
        return group_axis_hops(self.pool, replace(self.degrees, tensor=tensor))

    def level_between(self, sender: int, receiver: int) -> NetworkLevel | None:
        """The outermost level that any replica's message between two stages crosses."""
        if not self.is_uniform:
            return self._level_between_unequal(sender, receiver)
        ranks = self.rank_of_stage
        return rank_level(
            self.pool.levels, ranks[sender], ranks[receiver], self.degrees.devices_per_rank
        )

    @cached_property
    def _sizes(self) -> list[int]:
        return [stage.num_devices for stage in self.plan.stages]

    @cached_property
    def _first_devices(self) -> list[int]:
        return list(accumulate(self._sizes, initial=0))

    def _level_between_unequal(self, sender: int, receiver: int) -> NetworkLevel:
        sizes, first = self._sizes, self._first_devices
        steps = max(sizes[sender], sizes[receiver])
        step = np.arange(steps)
        crossed = crossed_level(
            self.pool.levels,
            first[sender] + step * sizes[sender] // steps,
            first[receiver] + step * sizes[receiver] // steps,
        )
        assert crossed is not None, "two stages share no device"
        return crossed


def group_replicas(pool: Pool, degrees: Parallelism) -> Replicas:
    """How dense and expert replicas of one pipeline rank spread over the network."""
    t, d, c = degrees.tensor, degrees.data, degrees.context
    stride = degrees.expert * degrees.expert_shards
    sizes = (d * c, max(1, t * c * d // stride))
    dense, expert = (
        group_hops(pool.levels, ranks=ranks, stride=step)
        for ranks, step in zip(sizes, (t, stride), strict=True)
    )
    return Replicas.over(sizes, (dense, expert), zero_stage=degrees.zero_stage)


def group_axis_hops(pool: Pool, degrees: Parallelism) -> dict[str, tuple[Hop, ...]]:
    """How the groups inside a layer spread over the network."""
    return axis_hops(
        pool,
        tensor=degrees.tensor,
        context=degrees.context,
        expert=degrees.expert,
        expert_tensor=degrees.expert_shards,
    )


def rank_level(
    levels: tuple[NetworkLevel, ...], sender: int, receiver: int, size: int
) -> NetworkLevel | None:
    """The outermost level between any two like devices of two ranks of `size` devices each.

    Device k of one rank sends to device k of the other. Some such pair lies across a unit's edge
    just where the first and the last device of all these pairs do.
    """
    low, high = sorted((sender, receiver))
    if low == high:
        return None
    first, distance = low * size, (high - low) * size
    crossed, unit = None, 1
    for level in levels:
        if distance >= unit or first // unit != (first + size - 1 + distance) // unit:
            crossed = level
        unit *= level.size
    return crossed
