"""What one candidate asks of the peel (`native/peel.hpp`): V placement, cut from both ends.

Rank r owns stages r and 2p-1-r. A family orders a V by the times of its stages, and what its order
holds is known only then. A split is in the space if it is nearly even and fits with what the
published order of its family holds (`v_memory`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.planning.kind_costs import (
    LayerTimes,
    Sharing,
    held_static_bytes,
    least_transfers_s,
    optimizer_s,
    slowest_s,
)
from trainwright.planning.nearly_even import nearly_even
from trainwright.planning.packed_fronts import packed_fronts
from trainwright.planning.split_bound import longest_stage
from trainwright.planning.undivided import undivided_work_s
from trainwright.planning.v_memory import MOST_ACTIVATIONS, published_in_flight
from trainwright.pricing.placement import group_replicas
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.planning.nearly_even import NearlyEven
    from trainwright.planning.packed_fronts import PackedFronts
    from trainwright.planning.split_question import SplitQuestion
    from trainwright.planning.stage_kinds import StageKinds

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VProblem:
    """One candidate, prepared for the peel. `limit_s` is on the pipeline, without `overhead_s`.

    `floor_s` is the work of the busiest rank, whatever it waits for and however much memory it has.
    """

    kinds: StageKinds
    fronts: PackedFronts
    times: LayerTimes
    num_ranks: int
    family: str
    num_microbatches: int
    usable_bytes: float
    gathered_share: float
    arrays: dict[str, Floats]
    transfer_s: Floats
    even: NearlyEven | None
    overhead_s: float
    floor_s: float
    limit_s: float

    @classmethod
    def of(cls, question: SplitQuestion, *, limit_s: float) -> VProblem:
        """Of steps within the limit."""
        kinds, degrees, cluster = question.kinds, question.degrees, question.cluster
        p, m = degrees.pipeline, question.num_microbatches
        times, limit_s = LayerTimes.of(kinds), limit_s - question.overhead_s
        replicas = group_replicas(cluster.pool_of(), degrees)
        sharing = Sharing.of(kinds, replicas)
        longest = longest_stage(kinds, kinds.num_layers - 2 * p + 1, limit_s / m)
        gathers = replicas.zero_stage == 3
        return cls(
            kinds=kinds,
            fronts=_with_added(packed_fronts(kinds, longest), kinds, sharing),
            times=times,
            num_ranks=p,
            family=question.family,
            num_microbatches=m,
            usable_bytes=cluster.accelerator.usable_bytes,
            gathered_share=2 * (1 - 1 / replicas.sizes[0]) if gathers else 0.0,
            arrays={
                "forward_s": kinds.counts @ times.forward_s,
                "input_grad_s": kinds.counts @ times.input_grad_s,
                "weight_grad_s": kinds.counts @ times.weight_grad_s,
                "tail_s": sharing.tail_s(kinds.forward_s, slowest_s(kinds)),
                "optimizer_s": optimizer_s(
                    kinds.static_bytes,
                    kinds.trained_bytes,
                    replicas,
                    cluster,
                    chunks_per_rank=2,
                ),
                "static_bytes": held_static_bytes(kinds, replicas),
                "weight_bytes": kinds.static_bytes[:, :, StaticKind.WEIGHT].sum(axis=1),
                "largest_weight_bytes": kinds.weight_bytes,
            },
            transfer_s=least_transfers_s(kinds, degrees, cluster, tuple(range(p))),
            even=nearly_even(kinds.profile, 2 * p),
            overhead_s=question.overhead_s,
            floor_s=m * _busiest_work_s(kinds, times, p),
            limit_s=limit_s,
        )

    @property
    def max_activations(self) -> int:
        """No rank ever holds more."""
        return MOST_ACTIVATIONS[self.family](self.num_ranks)

    def published(self) -> dict[str, Any] | None:
        """The splits of the space, with room for what the published order holds; None if empty."""
        return None if self.even is None else self._nearly_even(self.any_published(), self.even)

    def any_published(self) -> dict[str, Any]:
        """All splits with that room, whether nearly even or not."""
        held = published_in_flight(self.family, self.num_ranks, self.num_microbatches)
        return self.with_room_for(*held)

    def _nearly_even(self, problem: dict[str, Any], even: NearlyEven) -> dict[str, Any]:
        """The problem with all other stages of a kind that cannot be run."""
        levels, is_stage = problem["level_offset"], even.stages(self.kinds.num_layers)
        kind_of = np.where(is_stage, self.kinds.kind_of, len(levels) - 1)
        never = np.append(levels, levels[-1])
        return problem | {"kind_of": kind_of, "level_offset": never}

    def with_room_for(self, near: Floats, far: Floats) -> dict[str, Any]:
        """All splits whose ranks have room for these counts [N, p] of their near and far stage."""
        fronts = self.fronts
        return {
            "num_ranks": self.num_ranks,
            "num_microbatches": self.num_microbatches,
            "max_activations": self.max_activations,
            "usable_bytes": self.usable_bytes,
            "gathered_share": self.gathered_share,
            "floor_s": self.floor_s,
            "limit_s": self.limit_s,
            "kind_of": self.kinds.kind_of,
            "level_offset": fronts.levels,
            "transient_bytes": fronts.level_bytes,
            "beside_bytes": np.zeros_like(fronts.level_bytes),  # but for one of both chunks
            "front_offset": fronts.offset,
            "front_bytes": fronts.kept_bytes,
            "front_time_s": fronts.time_s,
            "forward_before_s": self.times.forward_before_s,
            "input_grad_before_s": self.times.input_grad_before_s,
            "transfer_s": self.transfer_s,
            "near_in_flight": self._by_first_layer(near),
            "far_in_flight": self._by_first_layer(far),
            **self.arrays,
        }

    def _by_first_layer(self, held: Floats) -> Floats:
        """Counts of ranks, whatever layer their stages begin with."""
        return np.repeat(held.reshape(-1, 1), self.kinds.num_layers + 1, axis=1)


def _busiest_work_s(kinds: StageKinds, times: LayerTimes, num_ranks: int) -> float:
    """Of a microbatch, on the rank that works longest."""
    classes = [layer.layer_class for layer in kinds.profile.structure.layers]
    counts = np.bincount(classes, minlength=len(times.total_s))
    return float(undivided_work_s(times.total_s, counts, np.array([num_ranks]))[0])


def _with_added(fronts: PackedFronts, kinds: StageKinds, sharing: Sharing) -> PackedFronts:
    """With what replicas add to every microbatch."""
    if sharing.zero_stage < 2:
        return fronts
    level_kind = np.repeat(np.arange(len(fronts.levels) - 1), np.diff(fronts.levels))
    kind = np.repeat(level_kind, np.diff(fronts.offset))
    return replace(fronts, time_s=sharing.with_added(kind, kinds.forward_s[kind], fronts.time_s))
