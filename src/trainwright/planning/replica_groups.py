"""Groups of replicas of points on a cluster, each looked up once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainwright.plan.parallelism import Parallelism
from trainwright.pricing.placement import group_replicas

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainwright.cluster import Cluster
    from trainwright.planning.model_space import Point
    from trainwright.pricing.sharding import Replicas


@dataclass(slots=True)
class ReplicaGroups:
    """Those of a cluster; points of the same degrees share them."""

    cluster: Cluster
    _made: dict[tuple[int, ...], Replicas] = field(default_factory=dict)

    def of_point(self, point: Point, kinds: NDArray[np.int64]) -> list[Replicas]:
        """One for each data degree and number of copies of state, `kinds` [D, 2]."""
        return [self._group(point, data, copies) for data, copies in kinds.tolist()]

    def _group(self, point: Point, data: int, copies: int) -> Replicas:
        key = (point.tensor, point.context, point.expert, point.expert_devices, data, copies)
        if key not in self._made:
            degrees = Parallelism(
                tensor=point.tensor,
                context=point.context,
                data=data,
                expert=point.expert,
                expert_tensor=point.expert_tensor,
                state_copies=copies,
            )
            self._made[key] = group_replicas(self.cluster.pool_of(), degrees)
        return self._made[key]
