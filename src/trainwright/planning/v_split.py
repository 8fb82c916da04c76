"""The best split for V placement: rank r owns stages r and 2p-1-r, cut from both ends of the chain.

A family orders a V by the times of its stages and promises only how many activations a rank holds
at most. So the bound takes from memory what every order needs. In a step of T seconds a rank that
starts after h of them holds each activation for at least its way to the loss and back:

    m · Σ kept · way ≤ room · (T - h)

A split that takes less than T keeps to this, one that does not takes T: what the search of
`native/peel` finds within T is a bound, and if it finds nothing, T is.

A second bound, `promised_s`, is on splits that fit with what the published order of the family
holds (`v_memory`): the same search with these counts in place of the way. The split that comes
along has room for all activations that the family ever holds, so that it fits whatever order is
found.
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
from trainwright.planning.packed_fronts import packed_fronts
from trainwright.planning.split_bound import Split, longest_stage
from trainwright.planning.undivided import undivided_work_s
from trainwright.planning.v_memory import MOST_ACTIVATIONS, most_in_flight, published_in_flight
from trainwright.pricing.placement import group_replicas
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.cluster import Cluster
    from trainwright.plan.parallelism import Parallelism
    from trainwright.planning.packed_fronts import PackedFronts
    from trainwright.planning.stage_kinds import StageKinds

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_FIRST_LIMIT: Final = 1.02  # times the work of an average rank
_NEXT_LIMIT: Final = 1.06
_LAST_LIMIT: Final = 4.0  # times a bound; from there on in one go
_EVEN_WITHIN: Final = 1.012  # of the shortest step, for more even chunks
_UNLIMITED: Final = 2**40
_HAIR: Final = 1e-9
_TIGHTER: Final = (1.0, 0.93, 0.85)  # of the room, until a split is found


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
    p, overhead_s = degrees.pipeline, cluster.accelerator.step_overhead_s
    if kinds.num_layers < 2 * p:
        return Split(bound_s=math.inf)
    question = _Question.of(
        kinds,
        degrees,
        cluster,
        family=family,
        num_microbatches=num_microbatches,
        limit_s=limit_s - overhead_s,
    )
    bound_s = question.least_step_s(limit_s - overhead_s)
    if not bound_s + overhead_s < limit_s:
        return Split(bound_s=limit_s if math.isfinite(bound_s) else bound_s)
    promised_s = question.promised_step_s(bound_s, limit_s - overhead_s)
    bound_s, promised_s = bound_s + overhead_s, promised_s + overhead_s
    if not promised_s < limit_s:
        promised_s = limit_s if math.isfinite(promised_s) else promised_s
        return Split(bound_s=bound_s, promised_s=promised_s)
    cuts, chosen = question.likely_split(promised_s - overhead_s, limit_s - overhead_s)
    return Split(bound_s=bound_s, cuts=cuts, chosen=chosen, promised_s=promised_s)


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
    ) -> _Question:
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
                    kinds.static_bytes, replicas, cluster, chunks_per_rank=2
                ),
                "static_bytes": held_static_bytes(kinds, replicas),
                "weight_bytes": kinds.static_bytes[:, :, StaticKind.WEIGHT].sum(axis=1),
                "largest_weight_bytes": kinds.weight_bytes,
            },
            transfer_s=least_transfers_s(kinds, degrees, cluster, tuple(range(p))),
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
        """A bound on every split; infinite where none fits, and anything from the limit on."""
        work_s = self.floor_s
        failed_s, tried_s = 0.0, _FIRST_LIMIT * work_s
        while tried_s < 2 * work_s:
            tried_s = min(tried_s, limit_s)
            found_s = self._within(tried_s)
            if math.isfinite(found_s):
                return self._sharper(failed_s, found_s, tried_s)
            if tried_s >= limit_s:
                return limit_s
            failed_s, tried_s = tried_s, _NEXT_LIMIT * tried_s
        return max(failed_s, self._within(limit_s))

    def _sharper(self, failed_s: float, found_s: float, tried_s: float) -> float:
        """The larger the time, the less memory it asks for: the least that it leads to itself."""
        low_s, high_s = max(failed_s, found_s), tried_s
        if high_s > low_s * 1.004:
            middle_s = (low_s + high_s) / 2
            own_s = self._within(middle_s)
            low_s = max(low_s, own_s) if math.isfinite(own_s) else middle_s
        return low_s

    def _within(self, limit_s: float) -> float:
        near, far = self._least_in_flight(limit_s)
        return _core.peel(**self._problem(limit_s, near, far))[0]

    def _least_in_flight(self, limit_s: float) -> tuple[Floats, Floats]:
        """Of stage r and of stage 2p-1-r, by their first layer, on average over a step so long."""
        p, size = self.num_ranks, self.kinds.num_layers
        if not math.isfinite(limit_s):
            none = np.zeros((p, size + 1))
            return none, none
        reached_s = np.concatenate(([0.0], np.cumsum(self.transfer_s)))[:, np.newaxis]
        before_s = self.times.forward_before_s + self.times.input_grad_before_s
        behind_s = before_s[-1] - before_s
        start_s = reached_s + self.times.forward_before_s[:p, np.newaxis]
        share = self.num_microbatches / np.maximum(limit_s - start_s, 1e-300)
        near = (behind_s + 2 * (2 * reached_s[-1] - reached_s)) * share
        far = (behind_s + 2 * reached_s) * share
        return near * (1 - _HAIR), far * (1 - _HAIR)

    def promised_step_s(self, bound_s: float, limit_s: float) -> float:
        """A bound on splits that fit with what the family's published order holds."""
        held = published_in_flight(self.family, self.num_ranks, self.num_microbatches)
        held = self._wide(*held)
        tried_s = _FIRST_LIMIT * bound_s
        while tried_s < min(limit_s, _LAST_LIMIT * bound_s):
            found_s = _core.peel(**self._problem(tried_s, *held))[0]
            if math.isfinite(found_s):
                return max(bound_s, found_s)
            tried_s *= _NEXT_LIMIT
        return max(bound_s, _core.peel(**self._problem(limit_s, *held))[0])

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
        self, promised_s: float, limit_s: float
    ) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """An even split that fits, all transients counted; none where rounding alone lets it."""
        chunk_s = float(self.times.total_before_s[-1]) / (2 * self.num_ranks)
        most = min(self.max_activations, 2 * self.num_microbatches)
        held = self._wide(*most_in_flight(self.num_ranks, most))
        for share in _TIGHTER:
            tried_s = _FIRST_LIMIT * promised_s
            while tried_s < min(_NEXT_LIMIT * limit_s, _LAST_LIMIT * promised_s):
                problem = self._problem(min(tried_s, limit_s), *held)
                problem["usable_bytes"] *= share
                problem["transient_bytes"] = self.fronts.most_level_bytes
                problem["beside_bytes"] = self.fronts.most_level_bytes
                problem["max_activations"] = _UNLIMITED  # else chunks that hide waits look best
                least_s = _core.peel(**problem)[0]
                if math.isfinite(least_s):
                    problem["limit_s"] = min(_EVEN_WITHIN * least_s, problem["limit_s"])
                    return self._decoded(*_core.peel_evenly(**problem, chunk_s=chunk_s)[1:])
                tried_s *= _NEXT_LIMIT
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
            "transient_bytes": fronts.level_bytes,
            "beside_bytes": np.zeros_like(fronts.level_bytes),
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
            front = self.kinds.front(kind, self.kinds.levels_of[kind][-1])
            chosen.append(tuple(front.chosen[point].tolist()))
        return cuts, tuple(chosen)


def _with_added(fronts: PackedFronts, kinds: StageKinds, sharing: Sharing) -> PackedFronts:
    """With what replicas add to every microbatch."""
    if sharing.zero_stage < 2:
        return fronts
    time_s = fronts.time_s.copy()
    for kind in np.flatnonzero(np.diff(fronts.offset)).tolist():
        own = slice(int(fronts.offset[kind]), int(fronts.offset[kind + 1]))
        time_s[own] = sharing.with_added(kind, float(kinds.forward_s[kind]), time_s[own])
    return replace(fronts, time_s=time_s)
