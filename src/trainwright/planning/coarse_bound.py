"""Bounds on the step of every plan of a pair of degrees, from sums over all layers.

With W the work of a microbatch over all layers and ranks, m microbatches per replica, p ranks and
sync_r what rank r still exchanges after its last backward:

    any order   T ≥ m·P_r + sync_r for every rank, so T ≥ (m·W + Σ sync_r) / p
    any order   some rank holds ⌈blocks / p⌉ blocks
    1F1B        T ≥ m·P_r + Σ_{i<r} P_i, so T ≥ W / (1 − (1 − 1/m)^p)

and the optimizer of the slowest rank, no faster than the mean, follows. What is exchanged costs
start + bytes · slope at the fastest of some ways, so parts cost no less than their sum. A device
keeps its share of the state and one microbatch of its layers: where all devices together cannot
hold that, nothing fits and the bound is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trainwright.costing.communication import fastest_s
from trainwright.costing.compute import memory_time_s
from trainwright.plan.overlap import DEFAULT_OVERLAP
from trainwright.plan.parallelism import Parallelism
from trainwright.planning.schedules import ONE_F_ONE_B
from trainwright.pricing.placement import group_replicas
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.cluster import Cluster
    from trainwright.planning.layouts import Layouts
    from trainwright.planning.model_space import Point
    from trainwright.planning.point_work import PointWork
    from trainwright.planning.schedules import Schedule
    from trainwright.pricing.sharding import Replicas

    Floats = NDArray[np.float64]

_HAIR = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What data parallelism adds over all ranks: per microbatch, after the last, at the update."""

    added_s: float
    sync_s: float
    update_s: float
    held_bytes: float


@dataclass(slots=True)
class CoarseBounds:
    """Bounds of a point's pairs; groups of replicas are looked up once."""

    cluster: Cluster
    _groups: dict[tuple[int, ...], Replicas] = field(default_factory=dict)

    def bounds_s(
        self,
        work: PointWork,
        point: Point,
        layouts: Layouts,
        *,
        zero_stage: int,
        schedule: Schedule,
    ) -> Floats:
        """The bound of every pair, shape [N]."""
        degrees, index = np.unique(layouts.data, return_inverse=True)
        shared = [self._shared(work, point, d, zero_stage) for d in degrees.tolist()]
        added_s, sync_s, update_s, held_bytes = (
            np.array([getattr(each, name) for each in shared])[index]
            for name in ("added_s", "sync_s", "update_s", "held_bytes")
        )
        p, m = layouts.pipeline, layouts.num_microbatches
        total_s = work.total_s + added_s
        heaviest = -(-work.num_blocks // p) * work.block_s
        bounds_s = np.maximum((m * total_s + sync_s) / p, m * heaviest)
        if schedule.family == ONE_F_ONE_B:
            bounds_s = np.maximum(bounds_s, total_s / (1 - (1 - 1 / m) ** p))
        device = self.cluster.accelerator
        bounds_s += update_s / p + device.step_overhead_s
        too_large = held_bytes > p * device.usable_bytes * _HAIR
        found: Floats = np.where(too_large, np.inf, bounds_s)
        return found

    def _shared(self, work: PointWork, point: Point, data: int, zero_stage: int) -> _Shared:
        replicas = self._replicas(point, data, zero_stage)
        weights = work.static_bytes[:, StaticKind.WEIGHT].tolist()
        sync = work.sync_bytes.tolist()
        under_forward_s = DEFAULT_OVERLAP.parameters * work.forward_s
        under_backward_s = DEFAULT_OVERLAP.gradients * work.backward_s
        gather_s = _both_s(replicas.gather, weights)
        scatter_s = _both_s(replicas.gather, sync)
        gathered_s = max(0.0, gather_s - under_forward_s)
        scattered_s = max(0.0, scatter_s - under_backward_s)
        added_s = sync_s = 0.0
        match zero_stage:
            case 0:
                sync_s = max(0.0, _both_s(replicas.reduce, sync) - under_backward_s)
            case 1:
                sync_s = scattered_s + gathered_s
            case 2:
                added_s, sync_s = scattered_s, gathered_s
            case _:
                both_s = max(0.0, gather_s + scatter_s - under_backward_s)
                added_s = gathered_s + both_s
        shards = np.array([[replicas.shards(g, kind) for kind in StaticKind] for g in range(2)])
        held = work.static_bytes / shards
        updated = shards[:, StaticKind.OPTIMIZER]
        touched = float((work.static_bytes @ np.array([1.0, 1.0, 2.0]) / updated).sum())
        return _Shared(
            added_s=added_s,
            sync_s=sync_s,
            update_s=memory_time_s(touched, self.cluster.accelerator) if touched else 0.0,
            held_bytes=float(held.sum()) + work.kept_bytes,
        )

    def _replicas(self, point: Point, data: int, zero_stage: int) -> Replicas:
        key = (point.tensor, point.context, point.expert, point.expert_devices, data, zero_stage)
        if key not in self._groups:
            degrees = Parallelism(
                tensor=point.tensor,
                context=point.context,
                data=data,
                expert=point.expert,
                expert_tensor=point.expert_tensor,
                zero_stage=zero_stage,
            )
            self._groups[key] = group_replicas(self.cluster.pool_of(), degrees)
        return self._groups[key]


def _both_s(lines: tuple[tuple[tuple[float, float], ...], ...], sizes: list[float]) -> float:
    return sum(fastest_s(ways, size) for ways, size in zip(lines, sizes, strict=True) if size > 0)
