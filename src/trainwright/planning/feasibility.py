"""Does any plan fit at all? The partitioning problem with its times removed.

Feasibility ignores time, so the question is asked of a profile whose durations and traffic are
zero: the partitioner then only has to find stages that fit. More memory and more devices never
hurt, so the least amounts are bisected; the leanest plan found then says exactly what it needs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.partitioning.downset_dp import solve
from trainwright.partitioning.restrictions import surviving_rows

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.partitioning.outcome import PartitionOutcome
    from trainwright.partitioning.restrictions import Restrictions
    from trainwright.profile import Profile, Setting

_TOLERANCE: Final = 1e-4
_HAIR: Final = 1e-9
_MAX_STEPS: Final = 20
_MAX_DEVICES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Feasibility:
    """A profile without times, in a setting, under restrictions; `budget` bounds the searching."""

    profile: Profile
    setting: Setting
    restrictions: Restrictions
    budget: Budget

    @classmethod
    def of(
        cls, profile: Profile, setting: Setting, *, restrictions: Restrictions, budget: Budget
    ) -> Feasibility:
        """The question whether `profile` fits."""
        return cls(
            profile=_without_times(profile),
            setting=setting,
            restrictions=restrictions,
            budget=budget,
        )

    def outcome(self) -> PartitionOutcome:
        """A plan that fits, or the proof that none does, or neither where time ran out."""
        return solve(self.profile, self.setting, restrictions=self.restrictions, budget=self.budget)

    def fits(self) -> bool:
        """Whether a plan that fits was found."""
        return self.outcome().plan is not None

    def with_memory(self, memory_bytes: float) -> Feasibility:
        """The same question for devices of another size."""
        return replace(self, setting=replace(self.setting, memory_bytes=memory_bytes))

    def with_devices(self, num_devices: int) -> Feasibility:
        """The same question for another number of devices."""
        return replace(self, setting=replace(self.setting, num_devices=num_devices))

    def with_restrictions(self, restrictions: Restrictions) -> Feasibility:
        """The same question under other restrictions."""
        return replace(self, restrictions=restrictions)

    def least_per_layer(self) -> list[float]:
        """For each layer the least bytes of one microbatch over all its options; inf if none."""
        costs = self.profile.costs
        kept = surviving_rows(costs, self.restrictions)
        kept &= costs.tensor_parallel <= self.setting.num_devices
        with np.errstate(over="ignore"):
            total = costs.saved_bytes + costs.total_static_bytes
        need = np.where(kept, np.minimum(total, sys.float_info.max), np.inf)
        by_class = [float(need[costs.rows_of(c)].min()) for c in range(costs.num_classes)]
        return [by_class[layer.layer_class] for layer in self.profile.structure.layers]

    def least_memory(self) -> float | None:
        """The least bytes per device at which a plan fits; `None` where no amount is enough.

        It is what the leanest plan found needs: exactly the least, or, where many plans need nearly
        the same or time runs out, an amount that is enough (within 1e-4 of the least with time).
        """
        high = self._need_at(sys.float_info.max)
        if high is None:
            return None
        low = max(self.least_per_layer()) * (1 - _HAIR)
        while high > low * (1 + _TOLERANCE) and not self.budget.stopped:
            middle = (low * high) ** 0.5 if low > 0 else high / 2
            need = self._need_at(middle)
            low, high = (middle, high) if need is None else (low, min(need, middle))
        for _ in range(_MAX_STEPS):
            need = self._need_at(high * (1 - _HAIR)) if high > low else None
            if need is None:
                break
            high = need
        return high

    def _need_at(self, memory_bytes: float) -> float | None:
        """What the fullest device of some plan that fits into `memory_bytes` needs."""
        costs = self.with_memory(memory_bytes).outcome().stage_costs
        return max((cost.memory_bytes for cost in costs), default=None)

    def fewest_devices(self) -> int | None:
        """The fewest devices on which a plan fits, at least those of the setting."""
        low, setting = self.setting.num_devices, self.setting
        most = setting.num_microbatches * int(self.profile.costs.tensor_parallel.max())
        high = max(low, min(_MAX_DEVICES, most))
        if low == high or not self.with_devices(high).fits():
            return None
        while high - low > 1 and not self.budget.stopped:
            middle = (low + high) // 2
            low, high = (low, middle) if self.with_devices(middle).fits() else (middle, high)
        return high


def _without_times(profile: Profile) -> Profile:
    costs = profile.costs
    free = replace(
        costs,
        duration_s=np.zeros_like(costs.duration_s),
        gradient_sync_bytes=np.zeros_like(costs.gradient_sync_bytes),
        boundary_offsets=np.zeros_like(costs.boundary_offsets),
        boundary_bytes=np.zeros(0),
        phases=None,
        time_by_kind_s=None,
    )
    edges = tuple(replace(edge, bytes=0.0) for edge in profile.structure.edges)
    return replace(profile, costs=free, structure=replace(profile.structure, edges=edges))
