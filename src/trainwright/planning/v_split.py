"""The best split for V placement: rank r owns stages r and 2p-1-r, cut from both ends of the chain.

A family orders a V by the times of its stages, and what its order holds is known only then. A split
is in the space if it fits with what the published order of its family holds (`v_memory`); the
bound is on the step of any order of so many activations as the family allows at most. The split
that comes along has room for these many, so that it fits whatever order is found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright._native import _core
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
from trainwright.planning.split_bound import Split, longest_stage
from trainwright.planning.undivided import undivided_work_s
from trainwright.planning.v_lifetimes import lifetime_bound_s
from trainwright.planning.v_memory import MOST_ACTIVATIONS, most_in_flight, published_in_flight
from trainwright.pricing.placement import group_replicas
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.cluster import Cluster
    from trainwright.plan.parallelism import Parallelism
    from trainwright.planning.nearly_even import NearlyEven
    from trainwright.planning.packed_fronts import PackedFronts
    from trainwright.planning.stage_kinds import StageKinds

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_FIRST_LIMIT: Final = 1.1  # times the work of the busiest rank
_NEXT_LIMIT: Final = 1.2
_LIKELY_LIMITS: Final = (1.02, 1.06)  # the same for a split: the first, and from one to the next
_LAST_LIMIT: Final = 4.0  # times a bound; from there on in one go
_EVEN_WITHIN: Final = 1.012  # of the shortest step, for more even chunks
_UNLIMITED: Final = 2**40
_HAIR: Final = 1e-9
_TIGHTER: Final = (1.0, 0.93, 0.85)  # of the room, until a split is found


def bound_v_splits(
    kinds: StageKinds,
    degrees: Parallelism,
    cluster: Cluster,
    *,
    family: str,
    num_microbatches: int,
    limit_s: float = math.inf,
) -> Split:
    """The bound of `best_v_split` alone, in half of the time."""
    overhead_s = cluster.accelerator.step_overhead_s
    question = _Question.of(
        kinds,
        degrees,
        cluster,
        family=family,
        num_microbatches=num_microbatches,
        limit_s=limit_s - overhead_s,
    )
    if question is None:
        return Split(bound_s=math.inf)
    return Split(bound_s=min(question.least_step_s(limit_s - overhead_s) + overhead_s, limit_s))


def bound_v_lifetimes(
    kinds: StageKinds,
    degrees: Parallelism,
    cluster: Cluster,
    *,
    family: str,
    num_microbatches: int,
    limit_s: float = math.inf,
) -> Split:
    """Another bound on the same splits, of all ranks together: up to a hundred times the work.

    It is 0 where replicas exchange with every microbatch.
    """
    overhead_s = cluster.accelerator.step_overhead_s
    left_s = limit_s - overhead_s
    question = _Question.of(
        kinds,
        degrees,
        cluster,
        family=family,
        num_microbatches=num_microbatches,
        limit_s=left_s,
    )
    if question is None:
        return Split(bound_s=math.inf)
    if degrees.zero_stage > 1:
        return Split(bound_s=0.0)
    return Split(bound_s=question.least_lifetimes_s(left_s) + overhead_s)


def best_v_split(
    kinds: StageKinds,
    degrees: Parallelism,
    cluster: Cluster,
    *,
    family: str,
    num_microbatches: int,
    limit_s: float = math.inf,
) -> Split:
    """Like `split_bound.best_split`, over the 2p stages of a V."""
    overhead_s = cluster.accelerator.step_overhead_s
    question = _Question.of(
        kinds,
        degrees,
        cluster,
        family=family,
        num_microbatches=num_microbatches,
        limit_s=limit_s - overhead_s,
    )
    if question is None:
        return Split(bound_s=math.inf)
    bound_s = question.least_step_s(limit_s - overhead_s) + overhead_s
    if not bound_s < limit_s:
        return Split(bound_s=limit_s)
    cuts, chosen = question.likely_split(bound_s - overhead_s, limit_s - overhead_s)
    return Split(bound_s=bound_s, cuts=cuts, chosen=chosen)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Question:
    """What one candidate asks of the peel, whatever the time limit."""

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
    even: NearlyEven

    @classmethod
    def of(
        cls,
        kinds: StageKinds,
        degrees: Parallelism,
        cluster: Cluster,
        *,
        family: str,
        num_microbatches: int,
        limit_s: float,
    ) -> _Question | None:
        """None where no split is nearly even."""
        even = nearly_even(kinds.profile, 2 * degrees.pipeline)
        if even is None:
            return None
        p, times = degrees.pipeline, LayerTimes.of(kinds)
        replicas = group_replicas(cluster.pool_of(), degrees)
        sharing = Sharing.of(kinds, replicas)
        longest = longest_stage(kinds, kinds.num_layers - 2 * p + 1, limit_s / num_microbatches)
        fronts = packed_fronts(kinds, longest)
        fronts = _with_added(fronts, kinds, sharing)
        gathers = replicas.zero_stage == 3
        return cls(
            kinds=kinds,
            fronts=fronts,
            times=times,
            num_ranks=p,
            family=family,
            num_microbatches=num_microbatches,
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
            even=even,
        )

    @property
    def floor_s(self) -> float:
        """Work of the busiest rank, whatever it waits for."""
        classes = [layer.layer_class for layer in self.kinds.profile.structure.layers]
        counts = np.bincount(classes, minlength=len(self.times.total_s))
        ranks = np.array([self.num_ranks])
        work_s = undivided_work_s(self.times.total_s, counts, ranks)
        return self.num_microbatches * float(work_s[0])

    def least_step_s(self, limit_s: float) -> float:
        """The bound; infinite where no split of the space is within the limit."""
        problem = self._published(limit_s)
        tried_s = _FIRST_LIMIT * self.floor_s
        while tried_s < min(limit_s, _LAST_LIMIT * self.floor_s):
            found_s = _core.peel(**(problem | {"limit_s": tried_s}))[0]
            if math.isfinite(found_s):
                return found_s
            tried_s *= _NEXT_LIMIT
        return _core.peel(**problem)[0]

    def least_lifetimes_s(self, limit_s: float) -> float:
        """The bound from how long activations live; cut down to the limit."""
        across_s = np.concatenate((self.transfer_s, [0.0], self.transfer_s[::-1]))
        return lifetime_bound_s(self._published(limit_s), across_s, limit_s=limit_s)

    def _published(self, limit_s: float) -> dict[str, Any]:
        """The splits of the space, with room for what the published order holds."""
        held = published_in_flight(self.family, self.num_ranks, self.num_microbatches)
        return self._nearly_even(self._problem(limit_s, *self._wide(*held)))

    def _nearly_even(self, problem: dict[str, Any]) -> dict[str, Any]:
        """The problem with all other stages of a kind that cannot be run."""
        levels, is_stage = problem["level_offset"], self.even.stages(self.kinds.num_layers)
        kind_of = np.where(is_stage, self.kinds.kind_of, len(levels) - 1)
        never = np.append(levels, levels[-1])
        return problem | {"kind_of": kind_of, "level_offset": never}

    @property
    def max_activations(self) -> int:
        """No rank ever holds more."""
        return MOST_ACTIVATIONS[self.family](self.num_ranks)

    def _wide(self, near: Floats, far: Floats) -> tuple[Floats, Floats]:
        """Counts of ranks, whatever layers their stages begin with."""
        size = self.kinds.num_layers
        wide = [np.repeat(held.reshape(-1, 1), size + 1, axis=1) for held in (near, far)]
        return wide[0], wide[1]

    def likely_split(
        self, bound_s: float, limit_s: float
    ) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """An even split that fits, all transients counted; none where rounding alone lets it."""
        chunk_s = float(self.times.total_before_s[-1]) / (2 * self.num_ranks)
        most = min(self.max_activations, 2 * self.num_microbatches)
        held = self._wide(*most_in_flight(self.num_ranks, most))
        first, following = _LIKELY_LIMITS
        for share in _TIGHTER:
            tried_s = first * bound_s
            while tried_s < min(following * limit_s, _LAST_LIMIT * bound_s):
                problem = self._problem(min(tried_s, limit_s), *held)
                problem["usable_bytes"] *= share
                problem["beside_bytes"] = self.fronts.level_bytes
                problem["max_activations"] = _UNLIMITED  # else chunks that hide waits look best
                least_s = _core.peel(**problem)[0]
                if math.isfinite(least_s):
                    problem["limit_s"] = min(_EVEN_WITHIN * least_s, problem["limit_s"])
                    return self._decoded(*_core.peel_evenly(**problem, chunk_s=chunk_s)[1:5])
                tried_s *= following
        return (), ()

    def _problem(self, limit_s: float, near: Floats, far: Floats) -> dict[str, Any]:
        fronts = self.fronts
        return {
            "num_ranks": self.num_ranks,
            "num_microbatches": self.num_microbatches,
            "max_activations": self.max_activations,
            "usable_bytes": self.usable_bytes,
            "gathered_share": self.gathered_share,
            "floor_s": self.floor_s,
            "limit_s": limit_s,
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
            "near_in_flight": near,
            "far_in_flight": far,
            **self.arrays,
        }

    def _decoded(
        self, near: Ints, far: Ints, near_point: Ints, far_point: Ints
    ) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        sizes = [*near.tolist(), *reversed(far.tolist())]
        points = [*near_point.tolist(), *reversed(far_point.tolist())]
        cuts = (0, *accumulate(sizes))
        chosen = []
        for first, after, point in zip(cuts, cuts[1:], points, strict=False):
            kind = int(self.kinds.kind_of[first, after])
            level, place = self.fronts.place(kind, point)
            front = self.kinds.front(kind, self.kinds.levels_of[kind][level])
            chosen.append(tuple(front.chosen[place].tolist()))
        return cuts, tuple(chosen)


def _with_added(fronts: PackedFronts, kinds: StageKinds, sharing: Sharing) -> PackedFronts:
    """With what replicas add to every microbatch."""
    if sharing.zero_stage < 2:
        return fronts
    time_s = fronts.time_s.copy()
    for kind in np.flatnonzero(np.diff(fronts.levels)).tolist():
        first, after = fronts.offset[fronts.levels[kind : kind + 2]].tolist()
        own = slice(first, after)
        time_s[own] = sharing.with_added(kind, float(kinds.forward_s[kind]), time_s[own])
    return replace(fronts, time_s=time_s)
