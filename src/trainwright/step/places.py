"""Which devices a plan's stages lie on, and which networks lie between them.

Pipeline ranks take consecutive devices in order. Inside a rank tensor groups are innermost, then
context groups, then replicas: replica k of a stage that starts at device o with c context ranks of
t devices runs on o + k·c·t to o + (k + 1)·c·t − 1. Experts are dealt out over the same devices.

With the pipeline inside the replicas (`plans.parallelism`), replica k is a whole pipeline of p
ranks of c·t devices each: rank r of it runs on (k·p + r)·c·t to (k·p + r + 1)·c·t − 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.cluster import crossed_level, group_hops, nested_hops
from trainwright.costing.estimate import axis_hops
from trainwright.plans.parallelism import Parallelism
from trainwright.step.pipeline import PipelineShape, placement_of
from trainwright.step.zero import Replicas

if TYPE_CHECKING:
    from trainwright.cluster import Hop, NetworkLevel, Pool, Rows
    from trainwright.plans import Plan


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
            order=self.plan.order,
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
        ranks, spacing = self.rank_of_stage, RankSpacing.of(self.degrees)
        return spacing.level_between(self.pool.levels, ranks[sender], ranks[receiver])

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
    copies, apart = degrees.state_copies, copy_distance(degrees)
    rows = replica_rows(replace(degrees, data=degrees.data // copies))
    dense, expert = (nested_hops(pool.levels, each) for each in rows)
    sizes = (math.prod(n for n, _ in rows[0]), math.prod(n for n, _ in rows[1]))
    return Replicas.over(
        sizes,
        (dense, expert),
        zero_stage=degrees.zero_stage,
        copies=group_hops(pool.levels, ranks=copies, stride=apart) if copies > 1 else (),
    )


def copy_distance(degrees: Parallelism) -> int:
    """Devices from one copy of sharded state to the next."""
    whole = degrees.devices_per_rank
    if degrees.adjacent_devices < whole:  # a group is so many whole pipelines
        whole *= degrees.pipeline
    return whole // degrees.state_copies


def replica_rows(degrees: Parallelism) -> tuple[Rows, Rows]:
    """Where the replicas of what a device holds lie, dense and expert: context, then data.

    Experts that do not fill the devices of a rank that follow on each other have replicas there.
    """
    t, c, d = degrees.tensor, degrees.context, degrees.data
    spanned = degrees.expert * degrees.expert_shards
    if degrees.adjacent_devices == degrees.devices_per_rank:
        return ((d * c, t),), ((max(1, t * c * d // spanned), spanned),)
    outer = (d, t * c * degrees.pipeline)
    return ((c, t), outer), ((max(1, t * c // spanned), spanned), outer)


def group_axis_hops(pool: Pool, degrees: Parallelism) -> dict[str, tuple[Hop, ...]]:
    """How the groups inside a layer spread over the network."""
    return axis_hops(
        pool,
        tensor=degrees.tensor,
        context=degrees.context,
        expert=degrees.expert,
        expert_tensor=degrees.expert_shards,
    )


class RankSpacing(NamedTuple):
    """Pipelines of `num_ranks` ranks of `size` devices each, `repeats` of them in a row."""

    size: int
    num_ranks: int
    repeats: int = 1

    @classmethod
    def of(cls, degrees: Parallelism) -> RankSpacing:
        """That of all ranks of a plan."""
        size = degrees.adjacent_devices
        return cls(size, degrees.pipeline, degrees.devices_per_rank // size)

    def level_between(
        self, levels: tuple[NetworkLevel, ...], sender: int, receiver: int
    ) -> NetworkLevel | None:
        """The outermost level between any two like devices of two ranks.

        Device k of one rank sends to device k of the other. Some such pair lies across a unit's
        edge just where the first and the last device of all these pairs do.
        """
        low, high = sorted((sender, receiver))
        if low == high:
            return None
        first, distance = low * self.size, (high - low) * self.size
        crossed, unit = None, 1
        for level in levels:
            reach = self.size - 1 + distance
            if distance >= unit or self._latest(first, unit) + reach >= unit:
                crossed = level
            unit *= level.size
        return crossed

    def _latest(self, first: int, unit: int) -> int:
        """How far into a unit of devices that device of a pipeline lies at most."""
        period = self.size * self.num_ranks
        shared = math.gcd(unit, period)
        if self.repeats >= unit // shared:  # every place that it can have
            return unit - shared + first % shared
        if first % unit + (self.repeats - 1) * period < unit:
            return first % unit + (self.repeats - 1) * period
        return max((first + k * period) % unit for k in range(self.repeats))


def rank_level(
    levels: tuple[NetworkLevel, ...], sender: int, receiver: int, size: int
) -> NetworkLevel | None:
    """The outermost level between any two like devices of two ranks of `size` devices each."""
    return RankSpacing(size, max(sender, receiver) + 1).level_between(levels, sender, receiver)
