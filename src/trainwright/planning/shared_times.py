"""What replicas exchange of all layers of a point, for every kind of replicas at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.costing.communication import fastest_s
from trainwright.planning.mappings import exchanges_no_nearer
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.cluster import NetworkLevel
    from trainwright.planning.point_work import PointWork
    from trainwright.pricing.sharding import Replicas

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

    Ways = tuple[tuple[float, float], ...]  # seconds to start, and for a byte

_BY_ZERO: Final = (StaticKind.OPTIMIZER, StaticKind.GRADIENT, StaticKind.WEIGHT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedTimes:
    """What replicas of D kinds exchange of all layers, nothing hidden, [D]; their sizes [D, 2].

    `gather_s` is of all weights, `update_s` of those that the optimizer changes, `between_s` over
    copies of sharded state. `reduce_byte_s`, `gather_byte_s` and `between_byte_s` [D, 2] are the
    least seconds that a byte takes. `groups` are the first of the kinds.
    """

    groups: Sequence[Replicas]
    reduce_s: Floats
    gather_s: Floats
    update_s: Floats
    scatter_s: Floats
    between_s: Floats
    reduce_byte_s: Floats
    gather_byte_s: Floats
    between_byte_s: Floats
    sizes: Ints

    @classmethod
    def of(cls, work: PointWork, groups: Sequence[Replicas]) -> SharedTimes:
        """Of the layers of a point, for each of these groups."""
        weights = work.static_bytes[:, StaticKind.WEIGHT].tolist()
        trained = work.trained_bytes.tolist()
        sync = work.sync_bytes.tolist()
        return cls(
            groups=groups,
            reduce_s=np.array([_both_s(group.reduce, sync) for group in groups]),
            gather_s=np.array([_both_s(group.gather, weights) for group in groups]),
            update_s=np.array([_both_s(group.gather, trained) for group in groups]),
            scatter_s=np.array([_both_s(group.gather, sync) for group in groups]),
            between_s=np.array([_both_s(group.between, sync) for group in groups]),
            reduce_byte_s=np.array([list(map(_byte_s, group.reduce)) for group in groups]),
            gather_byte_s=np.array([list(map(_byte_s, group.gather)) for group in groups]),
            between_byte_s=np.array([list(map(_byte_s, group.between)) for group in groups]),
            sizes=np.array([group.sizes for group in groups], np.int64).reshape(-1, 2),
        )

    def nearer_and_farther(self, work: PointWork, levels: tuple[NetworkLevel, ...]) -> SharedTimes:
        """These, and after them the least where the same groups lie farther apart, [2·D].

        That is what their bytes take at best; nothing where levels get faster outwards.
        """
        share = 1.0 if exchanges_no_nearer(levels) else 0.0
        reduce_byte_s, gather_byte_s = share * self.reduce_byte_s, share * self.gather_byte_s
        between_byte_s = share * self.between_byte_s
        weights = work.static_bytes[:, StaticKind.WEIGHT]
        return SharedTimes(
            groups=self.groups,
            reduce_s=np.append(self.reduce_s, reduce_byte_s @ work.sync_bytes),
            gather_s=np.append(self.gather_s, gather_byte_s @ weights),
            update_s=np.append(self.update_s, gather_byte_s @ work.trained_bytes),
            scatter_s=np.append(self.scatter_s, gather_byte_s @ work.sync_bytes),
            between_s=np.append(self.between_s, between_byte_s @ work.sync_bytes),
            reduce_byte_s=np.concatenate((self.reduce_byte_s, reduce_byte_s)),
            gather_byte_s=np.concatenate((self.gather_byte_s, gather_byte_s)),
            between_byte_s=np.concatenate((self.between_byte_s, between_byte_s)),
            sizes=np.concatenate((self.sizes, self.sizes)),
        )

    @property
    def most_s(self) -> float:
        """No stage exchanges longer after a microbatch, whatever the ZeRO stage."""
        sharded_s = 2 * self.gather_s + self.scatter_s + self.between_s
        return float(np.maximum(self.reduce_s, sharded_s).max())

    def gathered(self) -> Floats:
        """How many layers' weights a device gathers at most, by ZeRO stage, [4, D]."""
        gathered = np.zeros((1 + len(_BY_ZERO), len(self.sizes)))
        gathered[3] = 2 * (1 - 1 / self.sizes[:, 0])
        return gathered

    def shards(self) -> Floats:
        """Into how many parts each kind of state is cut, by ZeRO stage, [4, D, 2, 3]."""
        parts = np.ones((1 + len(_BY_ZERO), len(self.sizes), 2, len(StaticKind)))
        for first_stage, kind in enumerate(_BY_ZERO, 1):
            parts[first_stage:, :, :, kind] = self.sizes
        return parts


def _both_s(lines: tuple[Ways, ...], sizes: list[float]) -> float:
    """Of dense layers and of experts, each at the fastest of its ways."""
    return sum(fastest_s(ways, size) for ways, size in zip(lines, sizes, strict=True) if size > 0)


def _byte_s(ways: Ways) -> float:
    return min((byte_s for _, byte_s in ways), default=0.0)
