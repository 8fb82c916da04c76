"""The best nearly even split over v chunks per rank in a loop, with a bound on all such splits.

The chunks of a rank are coupled by its work and its memory, so no chain DP finds the best split.
`loop_bound` says how many blocks each rank can hold within the least step; how these are dealt to
its chunks is tried in a few ways: what a chunk has more than another at the loss end, at the other,
or spread. Where memory runs out a rank recomputes what frees most per second, the chunks that wait
longest first. The way that runs shortest in the simulator is returned, with the even split beside
it: it is simulated like the others, and priced where it is about as short.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.plan.configuration import even_blocks
from trainwright.planning.kind_costs import LayerTimes, least_transfers_s, optimizer_s
from trainwright.planning.loop_bound import Blocks, LoopChain, least_step_s, rank_ends
from trainwright.planning.loop_memory import LoopMemory
from trainwright.planning.loop_sharing import RankSharing, rank_sharing
from trainwright.planning.nearly_even import NearlyEven, nearly_even
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
    from trainwright.planning.split_bound import CutsAndRows
    from trainwright.planning.split_question import SplitQuestion
    from trainwright.planning.stage_kinds import StageKinds
    from trainwright.pricing.sharding import Replicas

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_HAIR: Final = 1e-9
_MOST_TRIALS: Final = 60  # moves of a block that are simulated
_ACTIONS: Final = 100_000  # of all of them together
_WORTH_PRICING: Final = 1.01  # times the likely pipeline: no other follows so much sooner
_WORTH_MOVING: Final = 1.02  # times the limit: moves gain no more


def bound_loop_splits(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """The bound of `best_loop_split` alone, a tenth of the work; it may exceed the limit."""
    loop = Loop.of(question)
    return Split(bound_s=math.inf if loop is None else loop.bound()[0])


def best_loop_split(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """Like `split_bound.best_split` over p·v stages; the bound is on nearly even splits."""
    loop = Loop.of(question)
    if loop is None:
        return Split(bound_s=math.inf)
    bound_s, blocks_of_rank = loop.bound()
    if math.isinf(bound_s) or bound_s >= limit_s:
        return Split(bound_s=bound_s if math.isinf(bound_s) else limit_s)
    likely = loop.likely_split(blocks_of_rank, limit_s=limit_s - question.overhead_s)
    if likely is None:
        return Split(bound_s=bound_s)
    even = loop.even_split()
    others: tuple[CutsAndRows, ...] = ()
    if even is not None and even.step_s <= _WORTH_PRICING * likely.step_s:
        others = ((even.cuts, even.chosen),) if even.cuts != likely.cuts else ()
    return Split(bound_s=bound_s, cuts=likely.cuts, chosen=likely.chosen, others=others)


def is_legal(shape: PipelineShape) -> bool:
    """Whether the family's rules admit the shape."""
    return not tuple(family_named(shape.family).rules(shape.request))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    step_s: float
    cuts: tuple[int, ...]
    chosen: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loop:
    """One candidate: the chain, its stages, and what ranks hold at their fullest."""

    kinds: StageKinds
    shape: PipelineShape
    even: NearlyEven
    replicas: Replicas
    cluster: Cluster
    transfer_s: Floats
    memory: LoopMemory

    @classmethod
    def of(cls, question: SplitQuestion) -> Loop | None:
        """None where the family's rules forbid the shape or no split is nearly even."""
        kinds, degrees, cluster = question.kinds, question.degrees, question.cluster
        shape = PipelineShape(
            family=question.family,
            num_ranks=degrees.pipeline,
            num_microbatches=question.num_microbatches,
            virtual_stages=degrees.virtual_stages,
        )
        even = nearly_even(kinds.profile, degrees.pipeline * degrees.virtual_stages)
        if even is None or not is_legal(shape):
            return None
        rows, replicas = fullest_rows(shape), group_replicas(cluster.pool_of(), degrees)
        held, _, running = np.split(rows.rows, 3, axis=1)
        ranks = placement_of(shape).rank_of_stage
        return cls(
            kinds=kinds,
            shape=shape,
            even=even,
            replicas=replicas,
            cluster=cluster,
            transfer_s=least_transfers_s(kinds, degrees, cluster, ranks),
            memory=LoopMemory(
                kinds=kinds,
                replicas=replicas,
                usable_bytes=cluster.accelerator.usable_bytes,
                held=np.split(held, rows.starts[1:]),
                running=np.split(running, rows.starts[1:]),
            ),
        )

    def bound(self) -> tuple[float, tuple[int, ...]]:
        """On the step, and the blocks of each rank that may reach it."""
        found = least_step_s(
            self.chain(), rank_ends(self.shape), self.memory.held, self.memory.running
        )
        pipeline_s = max(found.step_s, self.mean_work_s)
        return pipeline_s + self.cluster.accelerator.step_overhead_s, found.blocks_of_rank

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
            costs.updated_weight_bytes[costs.class_offsets[:-1]],
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
                transient=float(costs.transient_bytes[rows].min()),
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
            gathered_bytes=0.0 if missing else self._gathered_bytes(main),
            sharing=self._sharing(missing),
            under_backward=kinds.overlap.gradients,
        )

    def _sharing(self, missing: int) -> tuple[RankSharing, ...]:
        """What ranks exchange with replicas; nothing where blocks of another class may be meant."""
        even, p = self.even, self.shape.num_ranks
        if missing:
            sizes = even.most - np.maximum(even.least - missing, 0)
            return tuple(RankSharing.none(int(sizes[r::p].sum()) + 1) for r in range(p))
        last = len(even.least) - 1
        kinds_of_stage = []
        for stage in range(last + 1):
            blocks = np.arange(even.least[stage], even.most[stage] + 1)
            first = 0 if stage == 0 else even.after - blocks if stage == last else even.first
            after = self.kinds.num_layers if stage == last else even.first + blocks
            kinds_of_stage.append(self.kinds.kind_of[first, after])
        return rank_sharing(self.kinds, self.replicas, [kinds_of_stage[r::p] for r in range(p)])

    def _gathered_bytes(self, main: int) -> float:
        """Weights that a rank of at least one block of the class gathers at least."""
        if self.replicas.zero_stage < 3:
            return 0.0
        costs = self.kinds.profile.costs
        static = costs.static_bytes[costs.class_offsets[main], :, StaticKind.WEIGHT]
        return float(static.sum()) * min(1.0, 2 * (1 - 1 / self.replicas.sizes[0]))

    def _held_of_classes(self) -> Floats:
        """State of one layer of each class on one device, [C]."""
        costs = self.kinds.profile.costs
        first = costs.class_offsets[:-1]
        shards = np.array([[self.replicas.shards(g, k) for k in StaticKind] for g in range(2)])
        sharded = (costs.static_bytes[first] / shards).sum(axis=(1, 2))
        held: Floats = sharded + costs.opaque_static_bytes[first]
        return held

    def even_split(self) -> _Found | None:
        """What frameworks run where no split is stated, if it is nearly even and fits."""
        lengths = np.array(even_blocks(self.even.after - self.even.first, len(self.even.least)))
        if not ((self.even.least <= lengths) & (lengths <= self.even.most)).all():
            return None
        lengths[0] += self.even.first
        lengths[-1] += self.kinds.num_layers - self.even.after
        return self._found(lengths)

    def likely_split(self, blocks_of_rank: tuple[int, ...], *, limit_s: float) -> _Found | None:
        """The shortest of the ways to deal them and the even one, after a few moves from there."""
        dealt = [self._found(lengths) for lengths in self._arrangements(blocks_of_rank)]
        dealt.append(self.even_split())
        best = min(
            (each for each in dealt if each is not None),
            key=lambda each: each.step_s,
            default=None,
        )
        if best is None or best.step_s > _WORTH_MOVING * limit_s:
            return best
        return self._improved(best)

    def _found(self, lengths: Ints) -> _Found | None:
        chosen = self.memory.recomputed(lengths)
        if chosen is None:
            return None
        cuts = (0, *np.cumsum(lengths).tolist())
        return _Found(step_s=self._step_s(chosen), cuts=cuts, chosen=chosen)

    def _improved(self, best: _Found) -> _Found:
        """One block at a time from a stage to another, while that helps or the effort is spent."""
        num_actions = 2 * len(best.chosen) * self.shape.num_microbatches
        trials = min(_MOST_TRIALS, _ACTIONS // num_actions)
        improving = True
        while improving:
            improving = False
            lengths = np.diff(best.cuts)
            for giver, taker in self._moves(lengths):
                if trials <= 0:
                    return best
                trials -= 1
                moved = lengths.copy()
                moved[giver] -= 1
                moved[taker] += 1
                found = self._found(moved)
                if found is not None and found.step_s < best.step_s * (1 - _HAIR):
                    best, improving = found, True
                    break
        return best

    def _moves(self, lengths: Ints) -> list[tuple[int, int]]:
        """Stages that can give a block and take one, of one rank first, then of near ranks."""
        p, blocks = self.shape.num_ranks, lengths.copy()
        blocks[0] -= self.even.first
        blocks[-1] -= self.kinds.num_layers - self.even.after
        givers = np.flatnonzero(blocks > self.even.least).tolist()
        takers = np.flatnonzero(blocks < self.even.most).tolist()
        moves = [(giver, taker) for giver in givers for taker in takers if giver != taker]
        return sorted(moves, key=lambda move: (abs(move[0] % p - move[1] % p), move))

    def _arrangements(self, blocks_of_rank: tuple[int, ...]) -> list[Ints]:
        """Lengths of all stages, [S], for blocks of ranks of which the bound knows one class."""
        p, v = self.shape.num_ranks, self.shape.virtual_stages
        least, most = self.even.least.reshape(v, p), self.even.most.reshape(v, p)
        counts = np.maximum(blocks_of_rank, least.sum(axis=0))
        missing = self.even.after - self.even.first - int(counts.sum())
        for _ in range(missing):  # blocks of other classes: where there is most room
            counts[int((most.sum(axis=0) - counts).argmax())] += 1
        for _ in range(-missing):  # the bound allows ranks fewer of its class than they must hold
            counts[int((counts - least.sum(axis=0)).argmax())] -= 1
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
