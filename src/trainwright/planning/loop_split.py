"""The best nearly even split over v chunks per rank in a loop, with a bound on all such splits.

The chunks of a rank are coupled by its work and its memory, so no chain DP finds the best split.
`loop_bound` says how many blocks each rank can hold within the least step; how these are dealt to
its chunks is tried in a few ways: what a chunk has more than another at the loss end, at the other,
or spread. Where memory runs out a rank recomputes what frees most per second, the chunks that wait
longest first. The way that runs shortest in the simulator is returned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.model import LayerKind
from trainwright.planning.kind_costs import (
    LayerTimes,
    held_static_bytes,
    least_transfers_s,
    optimizer_s,
)
from trainwright.planning.loop_bound import Blocks, LoopChain, least_step_s, rank_ends
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
    from trainwright.profile import Profile

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

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
    """Like `split_bound.best_split` over p·v stages; the bound is on nearly even splits."""
    shape = PipelineShape(
        family=family,
        num_ranks=degrees.pipeline,
        num_microbatches=num_microbatches,
        virtual_stages=degrees.virtual_stages,
    )
    even = nearly_even(kinds.profile, degrees.pipeline * degrees.virtual_stages)
    if even is None or not is_legal(shape):
        return Split(bound_s=math.inf)
    overhead_s = cluster.accelerator.step_overhead_s
    loop = _Loop.of(kinds, degrees, cluster, shape, even)
    found = least_step_s(loop.chain(), rank_ends(shape), loop.instants_of_ranks)
    bound_s = max(found.step_s, loop.mean_work_s) + overhead_s
    if math.isinf(bound_s):
        return Split(bound_s=bound_s)
    if bound_s >= limit_s:
        return Split(bound_s=limit_s)
    likely = loop.likely_split(found.blocks_of_rank)
    if likely is None:
        return Split(bound_s=bound_s)
    return Split(bound_s=bound_s, cuts=likely.cuts, chosen=likely.chosen)


def is_legal(shape: PipelineShape) -> bool:
    """Whether the family's rules admit the shape."""
    return not tuple(family_named(shape.family).rules(shape.request))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NearlyEven:
    """Blocks are layers `first` up to `after`; stages hold from `least` to `most` [S] of them."""

    first: int
    after: int
    least: Ints
    most: Ints

    def holds(self, cuts: tuple[int, ...]) -> bool:
        """Whether a split is one of these."""
        inside = np.clip(cuts, self.first, self.after)
        lengths = np.diff(inside)
        edges = cuts[1] >= self.first and cuts[-2] <= self.after
        return edges and bool(((self.least <= lengths) & (lengths <= self.most)).all())


def nearly_even(profile: Profile, num_stages: int) -> NearlyEven | None:
    """The splits with ⌊n / S⌋ or one more of n blocks in every stage; None if there are none.

    Layers before the blocks are in the first stage, those after them in the last: these two may
    have any number of blocks up to that of the others.
    """
    names = [layer.name for layer in profile.structure.layers]
    blocks = [index for index, name in enumerate(names) if name == LayerKind.BLOCK]
    first, after = blocks[0], blocks[-1] + 1
    each = (after - first) // num_stages
    least = np.full(num_stages, max(each, 1), dtype=np.int64)
    if first > 0:
        least[0] = 0
    if after < len(names):
        least[-1] = 0
    most = np.full(num_stages, each + 1, dtype=np.int64)
    if not least.sum() <= after - first <= most.sum():
        return None
    return NearlyEven(first=first, after=after, least=least, most=most)


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
    even: NearlyEven
    replicas: Replicas
    cluster: Cluster
    transfer_s: Floats
    instants_of_ranks: list[Floats]  # [N, v] microbatches of each chunk that are held
    running_of_ranks: list[Floats]  # [N, v] whose transients lie beside
    switches_of_row: dict[int, list[tuple[int, float, float]]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        kinds: StageKinds,
        degrees: Parallelism,
        cluster: Cluster,
        shape: PipelineShape,
        even: NearlyEven,
    ) -> _Loop:
        rows = fullest_rows(shape)
        held, _, running = np.split(rows.rows, 3, axis=1)
        ranks = placement_of(shape).rank_of_stage
        return cls(
            kinds=kinds,
            shape=shape,
            even=even,
            replicas=group_replicas(cluster.pool_of(), degrees),
            cluster=cluster,
            transfer_s=least_transfers_s(kinds, degrees, cluster, ranks),
            instants_of_ranks=np.split(held, rows.starts[1:]),
            running_of_ranks=np.split(running, rows.starts[1:]),
        )

    @property
    def mean_work_s(self) -> float:
        """Of a rank."""
        whole_s = float(LayerTimes.of(self.kinds).total_before_s[-1])
        return self.shape.num_microbatches * whole_s / self.shape.num_ranks

    def chain(self) -> LoopChain:
        """What the bound needs to know; of several classes of blocks it knows the largest."""
        kinds, costs, even = self.kinds, self.kinds.profile.costs, self.even
        assert costs.phases is not None, "an estimate has phases"
        times = LayerTimes.of(kinds)
        classes = np.array([layer.layer_class for layer in kinds.profile.structure.layers])
        own = np.bincount(classes[even.first : even.after])
        main = int(own.argmax())
        missing = int(even.after - even.first - own[main])
        rows = list(costs.rows_of(main))
        static = self._held_of_classes()
        update_s = optimizer_s(
            costs.static_bytes[costs.class_offsets[:-1]],
            self.replicas,
            self.cluster,
            chunks_per_rank=len(classes),
        )
        least_kept = np.minimum.reduceat(costs.saved_bytes, costs.class_offsets[:-1])
        ends = (classes[: even.first], classes[even.after :])

        def edges(values: Floats) -> Floats:
            return np.array([values[each].sum() for each in ends])

        return LoopChain(
            blocks=Blocks.of(
                count=int(own[main]),
                forward_s=float(times.forward_s[main]),
                time_s=np.asarray(costs.phases.total_s[rows]),
                kept_bytes=np.asarray(costs.saved_bytes[rows]),
                static=float(static[main]),
            ),
            num_ranks=self.shape.num_ranks,
            num_microbatches=self.shape.num_microbatches,
            least=np.maximum(even.least - missing, 0),
            most=even.most,
            edge_forward_s=edges(times.forward_s),
            edge_time_s=edges(times.total_s),
            edge_kept_bytes=edges(least_kept),
            edge_static_bytes=edges(static),
            edge_optimizer_s=edges(update_s),
            optimizer_s=float(update_s[main]),
            forward_all_s=float(times.forward_before_s[-1]),
            backward_all_s=float((times.total_before_s - times.forward_before_s)[-1]),
            transfer_s=self.transfer_s,
            usable_bytes=self.cluster.accelerator.usable_bytes,
        )

    def _held_of_classes(self) -> Floats:
        """State of one layer of each class on one device, [C]."""
        costs = self.kinds.profile.costs
        first = costs.class_offsets[:-1]
        shards = np.array([[self.replicas.shards(g, k) for k in StaticKind] for g in range(2)])
        sharded = (costs.static_bytes[first] / shards).sum(axis=(1, 2))
        held: Floats = sharded + costs.opaque_static_bytes[first]
        return held

    def likely_split(self, blocks_of_rank: tuple[int, ...]) -> _Found | None:
        """The shortest of the ways to deal them that fit."""
        found = []
        for lengths in self._arrangements(blocks_of_rank):
            chosen = self._recomputed(lengths)
            if chosen is not None:
                cuts = (0, *np.cumsum(lengths).tolist())
                found.append(_Found(step_s=self._step_s(chosen), cuts=cuts, chosen=chosen))
        return min(found, key=lambda each: each.step_s, default=None)

    def _arrangements(self, blocks_of_rank: tuple[int, ...]) -> list[Ints]:
        """Lengths of all stages, [S], for blocks of ranks of which the bound knows one class."""
        p, v = self.shape.num_ranks, self.shape.virtual_stages
        least, most = self.even.least.reshape(v, p), self.even.most.reshape(v, p)
        missing = self.even.after - self.even.first - sum(blocks_of_rank)
        counts = np.array(blocks_of_rank)
        for _ in range(missing):  # blocks of other classes: where there is most room
            counts[int((most.sum(axis=0) - counts).argmax())] += 1
        late, early = np.arange(v)[::-1], np.arange(v)
        spread = np.argsort([int(f"{chunk:06b}"[::-1], 2) for chunk in range(v)], kind="stable")
        found: list[Ints] = []
        for order in (late, early, spread):
            blocks = np.stack(
                [_dealt_evenly(int(counts[r]), least[:, r], most[:, r], order) for r in range(p)],
                axis=1,
            )
            lengths = blocks.reshape(-1)
            lengths[0] += self.even.first
            lengths[-1] += self.kinds.num_layers - self.even.after
            if not any((lengths == other).all() for other in found):
                found.append(lengths)
        return found

    def _recomputed(self, lengths: Ints) -> tuple[tuple[int, ...], ...] | None:
        """Layers by row for every stage, [S, R], so that all ranks fit; None if some cannot."""
        chosen: dict[int, Ints] = {}
        cuts = np.concatenate(([0], np.cumsum(lengths)))
        for rank in range(self.shape.num_ranks):
            stages = list(range(rank, len(lengths), self.shape.num_ranks))
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
        held, running = self.instants_of_ranks[rank], self.running_of_ranks[rank]
        usable_bytes = self.cluster.accelerator.usable_bytes
        choice = [self._fastest(kind) for kind in kind_of]
        room = usable_bytes * (1 - _HAIR) - float(static)
        while True:
            kept = np.array([own @ costs.saved_bytes for own in choice])
            transient = np.array([costs.transient_bytes[own > 0].max() for own in choice])
            needed = held @ kept + running @ transient
            fullest = int(needed.argmax())
            if needed[fullest] <= room:
                return choice
            if not self._recompute_more(choice, held[fullest], float(needed[fullest]) - room):
                return None

    def _fastest(self, kind: int) -> Ints:
        costs = self.kinds.profile.costs
        assert costs.phases is not None, "an estimate has phases"
        own, total_s = np.zeros(costs.num_rows, dtype=np.int64), costs.phases.total_s
        for layer_class, count in enumerate(self.kinds.counts[kind].tolist()):
            rows = list(costs.rows_of(layer_class))
            own[rows[int(np.argmin(total_s[rows]))]] = count
        return own

    def _recompute_more(self, choice: list[Ints], held: Floats, over_bytes: float) -> bool:
        """Switches layers where that frees most bytes of the fullest instant per second.

        As many as that instant asks for, so that few steps suffice.
        """
        best, switch, each = 0.0, None, 0.0
        for chunk, own in enumerate(choice):
            for row in np.flatnonzero(own).tolist():
                for other, freed, longer_s in self._switches(row):
                    rate = float(held[chunk]) * freed / longer_s
                    if rate > best:
                        best, switch, each = rate, (chunk, row, other), float(held[chunk]) * freed
        if switch is None:
            return False
        chunk, row, other = switch
        count = min(int(choice[chunk][row]), max(1, math.ceil(over_bytes / each)))
        choice[chunk] = choice[chunk].copy()
        choice[chunk][row] -= count
        choice[chunk][other] += count
        return True

    def _switches(self, row: int) -> list[tuple[int, float, float]]:
        """Other rows of the same class, with bytes freed and seconds added per microbatch."""
        if row not in self.switches_of_row:
            costs = self.kinds.profile.costs
            total_s, saved = costs.duration_s, costs.saved_bytes
            layer_class = int(np.searchsorted(costs.class_offsets, row, side="right")) - 1
            self.switches_of_row[row] = [
                (
                    other,
                    float(saved[row] - saved[other]),
                    max(float(total_s[other] - total_s[row]), 1e-12),
                )
                for other in costs.rows_of(layer_class)
                if saved[other] < saved[row]
            ]
        return self.switches_of_row[row]

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


def _dealt_evenly(count: int, least: Ints, most: Ints, order: Ints) -> Ints:
    """Blocks of the chunks of one rank, [v], as alike as may be; more of them come in `order`."""
    blocks = least.copy()
    for _ in range(count - int(least.sum())):
        open_chunks = [chunk for chunk in order.tolist() if blocks[chunk] < most[chunk]]
        blocks[min(open_chunks, key=lambda chunk: int(blocks[chunk]))] += 1
    return blocks
