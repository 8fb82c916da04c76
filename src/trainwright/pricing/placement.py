"""Which devices a plan's stages lie on, and which networks lie between them.

Stages take consecutive devices in pipeline order. Inside a stage the tensor groups are innermost:
replica k of a stage that starts at device o runs on o + k·t to o + k·t + t − 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from trainwright.cluster import Hop, NetworkLevel, Pool, crossed_level, group_hops
from trainwright.plan import Plan


@dataclass(frozen=True, kw_only=True)  # no slots: what is asked for each stage is kept
class Placement:
    """A plan laid on the devices of one pool."""

    plan: Plan
    pool: Pool

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage of the plan, 0 where it does not say."""
        return 0 if self.plan.parallelism is None else self.plan.parallelism.zero_stage

    @cached_property
    def data_parallel(self) -> list[int]:
        """Replicas of each stage."""
        return [stage.data_parallel for stage in self.plan.stages]

    @cached_property
    def in_flight(self) -> list[int]:
        """Microbatches a replica of each stage holds: ⌈(its d and all later ones) / d⌉."""
        degrees = self.data_parallel
        behind = list(accumulate(reversed(degrees)))[::-1]
        share = [self.plan.num_microbatches // d for d in degrees]
        return [min(-(-s // d), m) for s, d, m in zip(behind, degrees, share, strict=True)]

    def data_hops(self, stage: int) -> tuple[Hop, ...]:
        """How the replicas of a stage spread over the network."""
        placed = self.plan.stages[stage]
        return group_hops(
            self.pool.levels, ranks=placed.data_parallel, stride=placed.tensor_parallel
        )

    @cached_property
    def _sizes(self) -> list[int]:
        return [stage.num_devices for stage in self.plan.stages]

    @cached_property
    def _first_devices(self) -> list[int]:
        return list(accumulate(self._sizes, initial=0))

    def level_between(self, sender: int, receiver: int) -> NetworkLevel:
        """The outermost level that any replica's message between two stages crosses."""
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
