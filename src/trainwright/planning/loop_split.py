"""A good split over v chunks per rank in a loop: balanced over ranks, then even, then simulated.

The chunks of a rank are coupled by its work and its memory, so no chain DP finds the best split.
Chunks are first cut where equal shares of the work would end. Then layers move between stages, with
all boundaries between them, while that shortens the longest rank; of equally long ranks the more
even chunks count. Where memory runs out a rank recomputes what frees most per second, the chunks
that wait longest first. Of the arrangements tried the one that runs shortest is returned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.planning.kind_costs import (
    LayerTimes,
    held_static_bytes,
    least_transfers_s,
)
from trainwright.planning.loop_bound import ChainCosts, path_counts, relaxed_step_s
from trainwright.planning.order_facts import fullest_rows
from trainwright.planning.split_bound import Split
from trainwright.pricing.pipeline_run import (
    PipelineShape,
    PipelineTimes,
    placement_of,
    quick_ends_s,
)
from trainwright.pricing.placement import group_replicas
from trainwright.profile import StaticKind
from trainwright.scheduling.families import family_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.cluster import Cluster
    from trainwright.plan.parallelism import Parallelism
    from trainwright.planning.stage_kinds import StageKinds
    from trainwright.pricing.sharding import Replicas

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_ROUNDS: Final = 40
_MOVES: Final = 60
_HAIR: Final = 1e-9


def best_loop_split(
    kinds: StageKinds,
    degrees: Parallelism,
    cluster: Cluster,
    *,
    family: str,
    num_microbatches: int,
    limit_s: float = math.inf,
) -> Split:
    """Like `split_bound.best_split` over p·v stages; the bound is a relaxation."""
    shape = PipelineShape(
        family=family,
        num_ranks=degrees.pipeline,
        num_microbatches=num_microbatches,
        virtual_stages=degrees.virtual_stages,
    )
    num_stages = degrees.pipeline * degrees.virtual_stages
    if kinds.num_layers < num_stages or not is_legal(shape):
        return Split(bound_s=math.inf)
    overhead_s = cluster.accelerator.step_overhead_s
    loop = _Loop.of(kinds, degrees, cluster, shape)
    whole_s = loop.undivided_s()
    if whole_s + overhead_s >= limit_s:
        return Split(bound_s=limit_s)
    found = loop.likely_split()
    target_s = min(limit_s - overhead_s, found.step_s if found else math.inf)
    if not math.isfinite(target_s):
        target_s = 2 * whole_s
    bound_s = max(whole_s, loop.relaxed_s(target_s)) + overhead_s
    if bound_s >= limit_s:
        return Split(bound_s=limit_s)
    if found is None:
        return Split(bound_s=bound_s)
    return Split(bound_s=bound_s, cuts=found.cuts, chosen=found.chosen)


def is_legal(shape: PipelineShape) -> bool:
    """Whether the family's rules admit the shape."""
    return not tuple(family_named(shape.family).rules(shape.request))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    step_s: float
    cuts: tuple[int, ...]
    chosen: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Loop:
    """One candidate: the chain, its stages, and what ranks hold at their fullest."""

    kinds: StageKinds
    shape: PipelineShape
    replicas: Replicas
    cluster: Cluster
    layer_class: Ints
    rank_of_stage: Ints
    transfer_s: Floats
    instants: Floats  # [N, S] microbatches of each stage that are kept
    running: Floats  # [N, S] whose transients lie beside
    rank_of_instant: Ints
    usable_bytes: float

    @classmethod
    def of(
        cls, kinds: StageKinds, degrees: Parallelism, cluster: Cluster, shape: PipelineShape
    ) -> _Loop:
        ranks = placement_of(shape).rank_of_stage
        num_stages = len(ranks)
        rows = fullest_rows(shape)
        most = rows.stage.shape[1]
        held, _, running = np.split(rows.rows, 3, axis=1)
        instants = np.zeros((len(rows.rows), num_stages))
        beside = np.zeros_like(instants)
        number = np.arange(len(instants))
        for chunk in range(most):
            instants[number, rows.stage[:, chunk]] += held[:, chunk]
            beside[number, rows.stage[:, chunk]] += running[:, chunk]
        counts = np.diff(np.append(rows.starts, len(instants)))
        return cls(
            kinds=kinds,
            shape=shape,
            replicas=group_replicas(cluster.pool_of(), degrees),
            cluster=cluster,
            layer_class=np.array([x.layer_class for x in kinds.profile.structure.layers]),
            rank_of_stage=np.array(ranks),
            transfer_s=least_transfers_s(kinds, degrees, cluster, ranks),
            instants=instants,
            running=beside,
            rank_of_instant=np.repeat(np.arange(shape.num_ranks), counts),
            usable_bytes=cluster.accelerator.usable_bytes,
        )

    def undivided_s(self) -> float:
        """Work of the longest rank, as layers cannot be divided, and of an average one."""
        times, p, m = LayerTimes.of(self.kinds), self.shape.num_ranks, self.shape.num_microbatches
        counts = np.bincount(self.layer_class, minlength=len(times.total_s))
        most = float((times.total_s * -(-counts // p)).max())
        return m * max(most, float(times.total_before_s[-1]) / p)

    def relaxed_s(self, target_s: float) -> float:
        """By multipliers; see `loop_bound`."""
        table = self.kinds.profile.costs
        assert table.phases is not None, "an estimate has phases"
        shards = np.array([[self.replicas.shards(g, k) for k in StaticKind] for g in range(2)])
        costs = ChainCosts(
            layer_class=self.layer_class,
            class_offsets=np.asarray(table.class_offsets),
            forward_s=np.asarray(table.phases.forward_s),
            backward_s=np.asarray(table.phases.total_s - table.phases.forward_s),
            kept_bytes=np.asarray(table.saved_bytes),
            static_bytes=(table.static_bytes / shards).sum(axis=(1, 2)) + table.opaque_static_bytes,
            instants=self.instants,
            rank_of_instant=self.rank_of_instant,
            rank_of_stage=self.rank_of_stage,
            room_bytes=self.usable_bytes,
        )
        paths = path_counts(self.shape)
        return relaxed_step_s(costs, paths, self.transfer_s, target_s=target_s, rounds=_ROUNDS)

    def likely_split(self) -> _Found | None:
        """The shortest of the arrangements that fit."""
        found = []
        for lengths in self._arrangements():
            chosen = self._recomputed(lengths)
            if chosen is not None:
                cuts = (0, *np.cumsum(lengths).tolist())
                found.append(_Found(step_s=self._step_s(chosen), cuts=cuts, chosen=chosen))
        return min(found, key=lambda each: each.step_s, default=None)

    def _arrangements(self) -> list[Ints]:
        """Lengths of all stages, [S]: by equal shares, and balanced from there."""
        before_s = LayerTimes.of(self.kinds).total_before_s
        num_stages, size = len(self.rank_of_stage), self.kinds.num_layers
        found: list[Ints] = []
        for shift in (0.5, 0.0, 1.0):
            marks = before_s[-1] * np.arange(1, num_stages) / num_stages
            # The layer in which a mark lies goes to the one side, the other, or the nearer.
            cuts = np.searchsorted(before_s[1:] - (1 - shift) * np.diff(before_s), marks)
            cuts = np.maximum(cuts, np.arange(1, num_stages))
            cuts = np.maximum.accumulate(cuts - np.arange(1, num_stages)) + np.arange(1, num_stages)
            cuts = np.minimum(cuts, size - np.arange(num_stages - 1, 0, -1))
            lengths = np.diff(np.concatenate(([0], cuts, [size])))
            lengths = self._balanced(lengths, before_s)
            if not any((lengths == other).all() for other in found):
                found.append(lengths)
        return found

    def _balanced(self, lengths: Ints, before_s: Floats) -> Ints:
        """Moves a layer from the longest rank to another while the longest gets shorter."""
        num_stages = len(lengths)
        even_s = before_s[-1] / num_stages
        best = self._badness(lengths, before_s, even_s)
        for _ in range(_MOVES):
            stage_s = np.diff(before_s[np.concatenate(([0], np.cumsum(lengths)))])
            rank_s = np.bincount(self.rank_of_stage, weights=stage_s)
            givers = np.flatnonzero(
                (self.rank_of_stage == int(rank_s.argmax())) & (lengths > 1)
            ).tolist()
            lighter = np.argsort(rank_s, kind="stable")[: max(1, min(4, len(rank_s) - 1))]
            takers = np.flatnonzero(np.isin(self.rank_of_stage, lighter)).tolist()
            moved = None
            for giver in givers:
                for taker in takers:
                    if giver == taker:
                        continue
                    tried = lengths.copy()
                    tried[giver] -= 1
                    tried[taker] += 1
                    badness = self._badness(tried, before_s, even_s)
                    if badness < best:
                        best, moved = badness, tried
            if moved is None:
                return lengths
            lengths = moved
        return lengths

    def _badness(self, lengths: Ints, before_s: Floats, even_s: float) -> tuple[float, float]:
        stage_s = np.diff(before_s[np.concatenate(([0], np.cumsum(lengths)))])
        rank_s = np.bincount(self.rank_of_stage, weights=stage_s)
        longest = round(float(rank_s.max()), 12)
        return longest, round(float(((stage_s / even_s - 1) ** 2).sum()), 9)

    def _recomputed(self, lengths: Ints) -> tuple[tuple[int, ...], ...] | None:
        """Layers by row for every stage, [S, R], so that all ranks fit; None if some cannot."""
        chosen: dict[int, Ints] = {}
        cuts = np.concatenate(([0], np.cumsum(lengths)))
        for rank in range(self.shape.num_ranks):
            stages = np.flatnonzero(self.rank_of_stage == rank).tolist()
            own = self._rank_choice(rank, stages, cuts)
            if own is None:
                return None
            chosen.update(zip(stages, own, strict=True))
        return tuple(tuple(chosen[stage].tolist()) for stage in range(len(lengths)))

    def _rank_choice(self, rank: int, stages: list[int], cuts: Ints) -> list[Ints] | None:
        costs = self.kinds.profile.costs
        assert costs.phases is not None, "an estimate has phases"
        kind_of = [int(self.kinds.kind_of[cuts[s], cuts[s + 1]]) for s in stages]
        static = held_static_bytes(self.kinds, self.replicas)[kind_of].sum()
        if self.replicas.zero_stage == 3:
            whole = self.kinds.static_bytes[kind_of][:, :, StaticKind.WEIGHT].sum()
            heaviest = self.kinds.weight_bytes[kind_of].max()
            static += min(2 * heaviest * (1 - 1 / self.replicas.sizes[0]), whole)
        at = self.rank_of_instant == rank
        held = self.instants[at][:, stages]
        running = self.running[at][:, stages]
        choice = [self._fastest(kind) for kind in kind_of]
        while True:
            kept = np.array([own @ costs.saved_bytes for own in choice])
            transient = np.array([costs.transient_bytes[own > 0].max() for own in choice])
            needed = held @ kept + running @ transient + static
            if needed.max() <= self.usable_bytes * (1 - _HAIR):
                return choice
            if not self._recompute_more(choice, held[int(needed.argmax())]):
                return None

    def _fastest(self, kind: int) -> Ints:
        costs = self.kinds.profile.costs
        assert costs.phases is not None, "an estimate has phases"
        own, total_s = np.zeros(costs.num_rows, dtype=np.int64), costs.phases.total_s
        for layer_class, count in enumerate(self.kinds.counts[kind].tolist()):
            rows = list(costs.rows_of(layer_class))
            own[rows[int(np.argmin(total_s[rows]))]] = count
        return own

    def _recompute_more(self, choice: list[Ints], held: Floats) -> bool:
        """Switches one layer, where that frees most bytes of the fullest instant per second."""
        costs = self.kinds.profile.costs
        assert costs.phases is not None, "an estimate has phases"
        best, switch = 0.0, None
        for chunk, own in enumerate(choice):
            for row in np.flatnonzero(own).tolist():
                for other in self._alternatives(row):
                    freed = held[chunk] * float(costs.saved_bytes[row] - costs.saved_bytes[other])
                    longer_s = float(costs.phases.total_s[other] - costs.phases.total_s[row])
                    if freed > 0 and freed / max(longer_s, 1e-12) > best:
                        best, switch = freed / max(longer_s, 1e-12), (chunk, row, other)
        if switch is None:
            return False
        chunk, row, other = switch
        choice[chunk] = choice[chunk].copy()
        choice[chunk][row] -= 1
        choice[chunk][other] += 1
        return True

    def _alternatives(self, row: int) -> list[int]:
        offsets = np.asarray(self.kinds.profile.costs.class_offsets)
        layer_class = int(np.searchsorted(offsets, row, side="right")) - 1
        rows = self.kinds.profile.costs.rows_of(layer_class)
        return [other for other in rows if other != row]

    def _step_s(self, chosen: tuple[tuple[int, ...], ...]) -> float:
        """The pipeline simulated; what follows it differs little between splits."""
        phases = self.kinds.profile.costs.phases
        assert phases is not None, "an estimate has phases"
        own = np.array(chosen, dtype=np.float64)
        weight_grad_s = own @ phases.weight_grad_s
        times = PipelineTimes(
            forward_s=own @ phases.forward_s,
            input_grad_s=own @ (phases.total_s - phases.forward_s) - weight_grad_s,
            weight_grad_s=weight_grad_s,
            transfer_s=self.transfer_s,
        )
        return float(quick_ends_s(self.shape, times).max())
