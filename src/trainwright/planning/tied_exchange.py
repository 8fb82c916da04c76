"""What stages that hold one tensor exchange after the pipeline, as `pricing.step` counts it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trainwright.cluster import Hop
from trainwright.costing.communication import all_reduce_time_s
from trainwright.planning.chain_ends import tied_gradient_bytes
from trainwright.pricing.placement import RankSpacing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.cluster import NetworkLevel
    from trainwright.planning.split_question import SplitQuestion

    Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class TiedExchange:
    """Layers that share one tensor, and for each the bytes of its gradient.

    Of several such tensors nothing is counted: the times are then less than those of pricing.
    """

    layers: tuple[int, ...]
    gradient_bytes: tuple[float, ...]
    levels: tuple[NetworkLevel, ...]
    spacing: RankSpacing
    known: dict[tuple[int, ...], Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, question: SplitQuestion) -> TiedExchange:
        """Of a candidate."""
        profile, layers = question.kinds.profile, tuple[int, ...]()
        costs, groups = profile.costs, profile.structure.shared_parameters
        shared_bytes: tuple[float, ...] = ()
        if len(groups) == 1:
            layers = groups[0].layers
            classes = [profile.structure.layers[layer].layer_class for layer in layers]
            rows = [int(costs.class_offsets[number]) for number in classes]
            shared_bytes = tuple(tied_gradient_bytes(costs, groups[0].bytes, row) for row in rows)
        return cls(
            layers=layers,
            gradient_bytes=shared_bytes,
            levels=question.cluster.pool_of().levels,
            spacing=RankSpacing.of(question.degrees),
        )

    def times_s(self, cuts: Sequence[int]) -> Floats:
        """Seconds of every rank, [p], whose stages lie between `cuts`, stage s on rank s mod p."""
        stages = np.searchsorted(cuts, self.layers, side="right") - 1
        key = tuple(stages.tolist())
        if key not in self.known:
            self.known[key] = self._times_s(key)
        return self.known[key]

    def _times_s(self, stage_of: tuple[int, ...]) -> Floats:
        ranks = self.spacing.num_ranks
        found, holders = np.zeros(ranks), sorted(set(stage_of))
        if len(holders) < 2:
            return found
        ends = [holders[0] % ranks, holders[-1] % ranks]
        level = self.spacing.level_between(self.levels, *ends)
        if level is not None:
            hops = (Hop(level=level, ranks=len(holders)),)
            for stage in holders:
                own = self.gradient_bytes[stage_of.index(stage)]
                found[stage % ranks] += all_reduce_time_s(own, hops)
        return found
