"""A good split over v chunks per rank in a loop, with a bound on all of them.

The chunks of a rank are coupled by its work and its memory, so no chain DP finds the best split.
The bound says how many blocks each rank can hold within the least step; how these are dealt to
its chunks is tried in a few ways: what a chunk has more than another at the loss end, at the other,
or spread. Where memory runs out a rank recomputes what frees most per second, the chunks that wait
longest first. The way that runs shortest in the simulator is returned, with the even split beside
it: it is simulated like the others, and priced where it is about as short.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import cycle, permutations
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np

from trainwright._native import _core
from trainwright.cluster import Cluster
from trainwright.costing.communication import beyond_s
from trainwright.planning.bounds.layers import Blocks
from trainwright.planning.bounds.loop import (
    LOOP_HAIR,
    NEAR,
    WHOLE,
    Count,
    Counts,
    Exchanged,
    LoopChain,
    LoopMemory,
    LoopStep,
    PathsProgram,
    PathsStep,
    RankSharing,
    dealt_evenly,
    held_within,
    kinds_by_blocks,
    least_of_program,
    least_of_times_s,
    least_step_s,
    most_within,
    rank_ends,
    rank_sharing,
    rank_times_s,
    spread_order,
    unlike_times_s,
)
from trainwright.planning.bounds.stages import (
    LayerTimes,
    Sharing,
    StageKinds,
    StageLengths,
    any_lengths,
    least_work_s,
    nearly_even,
    optimizer_s,
)
from trainwright.planning.splits.chain import CutsAndRows, Split, TiedExchange, fullest_rows
from trainwright.plans.configuration import even_blocks
from trainwright.profile import StaticKind
from trainwright.scheduling.families import family_named
from trainwright.scheduling.simulate import native_orders
from trainwright.step import pipeline, zero
from trainwright.step.zero import Replicas

if TYPE_CHECKING:
    from trainwright.arrays import Flags, Floats, Ints
    from trainwright.planning.splits.types import SplitQuestion

_T = TypeVar("_T")


# A bound on all splits of a loop from every path through its order
# -----------------------------------------------------------------
# Orders in a loop do not look at times, so the step of a split is the longest of many sums of times
# of stages, and memory limits sums of bytes at known instants. With blocks dealt in parts, and each
# part run in any way, the least step is a linear program (`native/chain/order_splits.hpp`). What
# replicas exchange is convex in the blocks of a chunk but for rounding: a line below it counts.

_MOST_ACTIONS: Final = 100_000  # of an order that is looked through
_MOST_ROWS: Final = 200  # stages times ways to run a block
_LITTLE_BELOW: Final = 0.991  # of a limit: a bound this near is as good as at it
_RISING: Final = (0.9, 0.915, 0.93, 0.945, 0.96, 0.98, 1.0)  # of a limit
_MOST_LOOKED_AT: Final = 250_000_000  # actions, of whole blocks that are dealt: about a second


class _Line(NamedTuple):
    """A value is at least `base` + `slope` · blocks."""

    base: float
    slope: float

    @classmethod
    def below(cls, values: Floats, least: int, at: float, *, nowhere_less: bool) -> _Line:
        """Of values with `least` blocks, one more, ...; high `at` so many.

        If `nowhere_less` than 0, it takes nothing off a bound even with none or all blocks.
        """
        if len(values) == 1:
            return cls(float(values[0]), 0.0)
        near, blocks = min(max(at - least, 0.5), len(values) - 1.5), np.arange(len(values))
        left, right = blocks <= near, blocks > near
        slopes = values[right] - values[left, np.newaxis]
        slopes /= blocks[right] - blocks[left, np.newaxis]
        before, after = blocks[left, np.newaxis], values[left, np.newaxis]
        highest = np.unravel_index(np.argmin(after + slopes * (near - before)), slopes.shape)
        slope, counts = float(slopes[highest]), least + blocks
        if nowhere_less:
            slope = min(max(slope, 0.0), float((values[1:] / counts[1:]).min()))
        return cls(float((values - slope * counts).min()), slope)


def least_of_dealt(loop: Loop, *, limit_s: float, effort: float = 1.0) -> PathsStep:
    """No split of any lengths has a shorter pipeline; no more is tried than to prove the limit.

    Ranks and stages hold whole blocks, as far as some programs tell. The bound is 0 where the order
    is too long, and infinite where none fits.
    """
    first = loop.most_of_ranks(limit_s)
    if first is None:
        return PathsStep(limit_s)
    roomy, program = (program_of(loop, limit_s=limit_s, in_room=each) for each in (False, True))
    if roomy is None:
        return PathsStep(0.0)
    if program is None:
        return least_of_program(roomy, first, limit_s=limit_s, effort=effort)
    found = roomy.solved(first)  # much quicker, and often enough
    if found.step_s >= limit_s:
        return found
    whole = least_of_program(program, first, limit_s=limit_s, effort=effort)
    return whole._replace(step_s=max(found.step_s, whole.step_s))


def least_of_whole(loop: Loop, *, limit_s: float, effort: float = 1.0) -> PathsStep:
    """No split of any lengths has a shorter pipeline; none is looked for beyond the limit.

    Stages hold whole blocks. What these recompute so that a rank fits counts in paths along that
    rank alone: in those of others its blocks run fastest. The bound is 0 where the ways to deal
    them are too many.
    """
    first = loop.most_of_ranks(limit_s)
    if first is None:
        return PathsStep(limit_s)
    shape, chain = loop.shape, loop.chain(0)
    size, least, most = len(chain.least), chain.least, np.array([each.blocks for each in first])
    if 2 * size * shape.num_microbatches > _MOST_ACTIONS or chain.blocks.count < least.sum():
        return PathsStep(0.0)
    extra = most - chain.fewest
    width = int(min(extra.max(), (chain.most - least).max()))
    counts = (least[:, np.newaxis] + np.arange(width + 1)).astype(np.float64)
    blocks = chain.blocks
    forward_s = counts * blocks.forward_s
    backward_s = counts * (float(blocks.time_s[0]) - blocks.forward_s)
    backward_s += chain.again_s[:, np.newaxis]
    exchanged_s = np.zeros_like(backward_s)
    for stage, (there_s, back_s, _) in enumerate(loop.added_s(least, extra.tolist())):
        back_s = beyond_s(back_s, chain.hidden_s(chain.again_s[stage]))
        exchanged_s[stage, : len(back_s)] = back_s[: width + 1]
        for times_s, own in zip((forward_s, backward_s), (there_s, back_s), strict=True):
            times_s[stage, : len(own)] += own[: width + 1]
            times_s[stage, len(own) :] = math.inf
    after_s = counts[:, np.newaxis] * chain.optimizer_s + loop.tails_s(
        least, extra.tolist(), width + 1
    )
    rank_after_s = _add_ends(loop, chain, forward_s, backward_s)
    instants = loop.memory.held
    whole = _core.WholeLoop(
        num_blocks=blocks.count,
        limit_s=limit_s,
        most_actions=int(effort * _MOST_LOOKED_AT),
        least=least,
        forward_s=_never_falling(forward_s),
        backward_s=_never_falling(backward_s),
        after_s=after_s.reshape(size, -1),
        rank_after_s=rank_after_s,
        transfer_s=chain.transfer_s,
        most_of_rank=most,
        static_bytes=blocks.static_bytes,
        under_backward=chain.under_backward,
        block_time_s=blocks.time_s,
        block_bytes=blocks.kept_bytes,
        instant_offset=np.cumsum([0, *map(len, instants)]),
        held=np.concatenate(instants),
        room_bytes=np.concatenate(chain.room_bytes(instants, loop.memory.running)),
        exchanged_s=exchanged_s,
    )
    found = _core.least_of_whole(whole, native_orders(pipeline.orders_of(shape)))
    return PathsStep(found.step_s, found.blocks.astype(np.float64) if len(found.blocks) else None)


def _add_ends(loop: Loop, chain: LoopChain, forward_s: Floats, backward_s: Floats) -> Floats:
    """Add what lies before and after the blocks to times by stage; what ranks [p] do at the end."""
    after_s, last = loop.tied_s.copy(), len(chain.least) - 1
    for end, stage in ((0, 0), (1, last)):
        forward_s[stage] += chain.edges.forward_s[end]
        backward_s[stage] += chain.edges.time_s[end] - chain.edges.forward_s[end]
        after_s[stage % chain.num_ranks] += chain.edges.optimizer_s[end]
    return after_s


def _never_falling(times_s: Floats) -> Floats:
    """The highest tables below that never fall along rows."""
    return np.ascontiguousarray(np.minimum.accumulate(times_s[:, ::-1], axis=1)[:, ::-1])


def program_of(loop: Loop, *, limit_s: float, in_room: bool = True) -> PathsProgram | None:
    """None where the order is too long. If not in the room of devices, all blocks run fastest."""
    if loop.of_rank:
        loops = {id(own): own for own in loop.of_rank}
        made = {
            key: program_of(own, limit_s=limit_s, in_room=in_room) for key, own in loops.items()
        }
        programs = [each for own in loop.of_rank if (each := made[id(own)]) is not None]
        instants = [len(rows) if in_room else 0 for rows in loop.memory.held]
        is_whole = len(programs) == len(loop.of_rank)
        return PathsProgram.joined(programs, instants) if is_whole else None
    shape, p, v = loop.shape, loop.shape.num_ranks, loop.shape.virtual_stages
    chain = loop.chain(0)
    blocks, size = chain.blocks, p * v
    times_s = blocks.time_s if in_room else blocks.time_s[:1]
    ways = len(times_s)
    too_long = 2 * size * shape.num_microbatches > _MOST_ACTIONS or size * ways > _MOST_ROWS
    if too_long or blocks.count < chain.least.sum():
        return None
    forward_s, backward_s = np.zeros(size), np.zeros(size)
    block_forward_s = np.full((size, ways), blocks.forward_s)
    block_backward_s = np.tile(times_s - blocks.forward_s, (size, 1))
    after_s = _add_ends(loop, chain, forward_s, backward_s)
    block_after_s = np.full((size, ways), chain.optimizer_s)
    backward_s += chain.again_s
    lines = loop.sharing_lines(chain.least, blocks.count / size)
    for stage, (forward, backward, tail) in enumerate(lines):
        forward_s[stage] += forward.base
        backward_s[stage] += backward.base
        after_s[stage % p] += tail.base
        block_forward_s[stage] += forward.slope
        block_backward_s[stage] += backward.slope
        block_after_s[stage] += tail.slope
        if backward != (0.0, 0.0):  # more of it hides under what is recomputed
            block_backward_s[stage] -= chain.hidden_s(times_s - times_s[0])
            backward_s[stage] -= chain.hidden_s(chain.again_s[stage])
    if min(each.min() for each in (block_forward_s, block_backward_s, block_after_s)) < 0:
        return None
    held, room = np.zeros((0, size)), np.zeros(0)
    if in_room:
        held, room = chain.shares_held(loop.memory.held, loop.memory.running)
    splits = _core.OrderSplits(
        num_ways=ways,
        num_blocks=blocks.count,
        limit_s=limit_s,
        near=NEAR,
        least=chain.least,
        forward_s=forward_s,
        backward_s=backward_s,
        block_forward_s=block_forward_s,
        block_backward_s=block_backward_s,
        after_s=after_s,
        block_after_s=block_after_s,
        transfer_s=chain.transfer_s,
        block_held=held,
        room=room,
    )
    return PathsProgram(
        splits, native_orders(pipeline.orders_of(shape)), held, room, p, blocks.count
    )


# A good split over v chunks per rank in a loop, with a bound on all of them
# --------------------------------------------------------------------------
_MOST_TRIALS: Final = 60  # moves of a block that are simulated
_ACTIONS: Final = 100_000  # of all of them together
_MORE_TRIALS: Final = 600  # of a split that a bound leaves open
_NEAR_ENOUGH: Final = 1.1  # times the limit: so much may many moves gain
_WORTH_PRICING: Final = 1.01  # times the likely pipeline: no other follows so much sooner
_WORTH_MOVING: Final = 1.02  # times the limit: moves gain no more


def bound_loop_splits(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """The bound of `best_loop_split` alone, a tenth of the work: of nearly even splits."""
    loop = Loop.of(question)
    return Split(bound_s=math.inf if loop is None else loop.likely.bound_s(limit_s))


def bound_every_loop_split(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """A bound on splits of any lengths.

    Most take longer than the limit with plenty of memory, or if replicas exchange nothing. Neither
    shortens what a rank takes, so a tenth of the work tells that.
    """
    roomy = Loop.of(question, in_room=False)
    if roomy is None:
        return Split(bound_s=math.inf)
    if roomy.of_rank:
        return Split(bound_s=roomy.in_room().bound_s(limit_s))
    alone = roomy.chain(roomy.most_blocks(limit_s), exchanging=False)
    loop = None if roomy.exceeds(limit_s, alone) else roomy.in_room()
    if loop is None or loop.exceeds(limit_s, alone):
        return Split(bound_s=limit_s)
    return Split(bound_s=loop.bound_s(limit_s, alone))


def bound_dealt_loops(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """Another bound on splits of any lengths, of all ranks together: a hundred times the work.

    `cuts` are of a split near the parts that reach it, where that fits.
    """
    return _bound_by(least_of_dealt, question, limit_s)


def bound_whole_loops(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """Another bound on splits of any lengths, of whole blocks where the ways to deal them are few.

    Limits rise: a lower one is sooner proved. `cuts` are of a split near the one that reaches the
    bound, where that fits.
    """
    best = Split(bound_s=0.0)
    for share in _RISING:
        found = _bound_by(least_of_whole, question, share * limit_s)
        best = max(best, found, key=lambda each: each.bound_s)
        if found.bound_s < share * limit_s:
            break
    return best


def bound_near_whole_loops(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """The same, as far as a little below the limit, which is much sooner proved."""
    return _bound_by(least_of_whole, question, _LITTLE_BELOW * limit_s)


def bound_few_whole_loops(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """The same, up to the limit at once, as where a little below it has been proved."""
    return _bound_by(least_of_whole, question, limit_s)


def is_near(split: Split, limit_s: float) -> bool:
    """Whether it proves all that `bound_near_whole_loops` tries."""
    return split.bound_s >= _LITTLE_BELOW * limit_s


def _bound_by(least_of: Callable[..., PathsStep], question: SplitQuestion, limit_s: float) -> Split:
    loop = Loop.of(question)
    if loop is None:
        return Split(bound_s=math.inf)
    own_s = limit_s - question.overhead_s
    found = least_of(loop, limit_s=own_s, effort=question.effort)
    bound_s = min(limit_s, found.step_s + question.overhead_s)
    if found.blocks is None or bound_s >= limit_s:
        return Split(bound_s=bound_s)
    split = loop.split_near(found.blocks, limit_s=own_s)
    if split is None or split.step_s >= own_s:
        return Split(bound_s=bound_s)
    return Split(bound_s=bound_s, cuts=split.cuts, chosen=split.chosen)


def best_loop_split(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """Like `best_chain_split` over p·v stages; the bound is on nearly even splits, if there are."""
    loop = Loop.of(question)
    if loop is None:
        return Split(bound_s=math.inf)
    bound_s = loop.likely.bound_s(limit_s)
    if math.isinf(bound_s) or bound_s >= limit_s:
        return Split(bound_s=bound_s)
    likely = loop.likely_split(limit_s=limit_s - question.overhead_s)
    if likely is None:
        return Split(bound_s=bound_s)
    even = loop.even_split()
    others: tuple[CutsAndRows, ...] = ()
    if even is not None and even.step_s <= _WORTH_PRICING * likely.step_s:
        others = ((even.cuts, even.chosen),) if even.cuts != likely.cuts else ()
    return Split(bound_s=bound_s, cuts=likely.cuts, chosen=likely.chosen, others=others)


def _tied_s(question: SplitQuestion, lengths: StageLengths) -> Floats:
    """Seconds of every rank, [p]; nothing is counted that depends on where blocks or pools are."""
    if question.levels:
        return np.zeros(question.degrees.pipeline)
    tied = TiedExchange.of(question)
    if any(lengths.first <= layer < lengths.after for layer in tied.layers):
        return np.zeros(question.degrees.pipeline)
    inner = np.cumsum(even_blocks(lengths.num_blocks, len(lengths.least)))[:-1]
    return tied.times_s((0, *(lengths.first + inner).tolist(), question.kinds.num_layers))


def is_legal(shape: pipeline.PipelineShape) -> bool:
    """Whether the family's rules admit the shape."""
    return not tuple(family_named(shape.family).rules(shape.request))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    step_s: float
    cuts: tuple[int, ...]
    chosen: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loop:
    """One candidate: the chain, its stages, and what ranks hold at their fullest.

    `lengths` are those that are looked at: all there are, unless they are narrowed. `tied_s` [p]
    of a rank reduces what layers before and after the blocks share. Unlike ranks have loops of
    their own, `of_rank` [p]; what else is said of them is that of the first.
    """

    kinds: StageKinds
    shape: pipeline.PipelineShape
    lengths: StageLengths
    replicas: Replicas
    cluster: Cluster
    transfer_s: Floats
    sharing: Sharing
    tied_s: Floats
    memory: LoopMemory
    of_rank: tuple[Loop, ...] = ()

    @classmethod
    def of(cls, question: SplitQuestion, *, in_room: bool = True) -> Loop | None:
        """None where the family's rules forbid the shape or blocks are too few for its stages.

        If not in the room of devices, no rank holds activations.
        """
        degrees, sites = question.degrees, question.ranks
        kinds, cluster, replicas = sites[0].kinds, sites[0].cluster, sites[0].replicas
        shape = pipeline.PipelineShape(
            family=question.family,
            num_ranks=degrees.pipeline,
            num_microbatches=question.num_microbatches,
            virtual_stages=degrees.virtual_stages,
        )
        lengths = any_lengths(kinds.profile, degrees.pipeline * degrees.virtual_stages)
        if lengths is None or not is_legal(shape):
            return None
        places = {id(site): site for site in sites}
        if len(places) > 1:
            alike = {
                key: replace(question, sites=(site,) * len(sites)) for key, site in places.items()
            }
            loops = {key: cls.of(own, in_room=in_room) for key, own in alike.items()}
            of_rank = tuple(own for site in sites if (own := loops[id(site)]) is not None)
            return replace(of_rank[0], of_rank=of_rank)
        ranks = pipeline.placement_of(shape).rank_of_stage
        nothing = [np.zeros((1, shape.virtual_stages))] * shape.num_ranks
        roomy = cls(
            kinds=kinds,
            shape=shape,
            lengths=lengths,
            replicas=replicas,
            cluster=cluster,
            transfer_s=question.least_transfers_s(ranks),
            sharing=Sharing.of(kinds, replicas),
            tied_s=_tied_s(question, lengths),
            memory=LoopMemory(
                kinds=kinds,
                replicas=replicas,
                device=cluster.accelerator,
                held=nothing,
                running=nothing,
            ),
        )
        return roomy.in_room() if in_room else roomy

    def in_room(self) -> Loop:
        """With the activations that the order holds on each rank."""
        rows = fullest_rows(self.shape)
        held, _, running = (
            np.split(each, rows.starts[1:]) for each in np.split(rows.rows, 3, axis=1)
        )
        made = {id(own): own.in_room() for own in self.of_rank}
        of_rank = tuple(made[id(own)] for own in self.of_rank)
        memory = replace(self.memory, held=held, running=running)
        return replace(self, memory=memory, of_rank=of_rank)

    @property
    def likely(self) -> Loop:
        """With nearly even stages, unless there are none."""
        return self if self.of_rank else self.nearly_even or self

    @property
    def nearly_even(self) -> Loop | None:
        """With stages of about as many blocks, all others left out; None where there are none."""
        even = nearly_even(self.kinds.profile, len(self.lengths.least))
        return None if even is None else replace(self, lengths=even)

    def bound_s(self, limit_s: float, alone: LoopChain | None = None) -> float:
        """On the step of all splits; cut down to the limit, infinite where nothing fits.

        `alone` is its chain where replicas exchange nothing, if that is known.
        """
        found = self.least_step(limit_s, alone)
        overhead_s = max(own.cluster.accelerator.step_overhead_s for own in (self, *self.of_rank))
        if math.isinf(found.step_s) and self.most_blocks(limit_s) < self.lengths.num_blocks:
            return limit_s  # ranks that could hold more would take longer
        return min(limit_s, max(found.step_s, self.mean_work_s) + overhead_s)

    def exceeds(self, limit_s: float, alone: LoopChain) -> bool:
        """Whether no split is within a limit, even `alone`, if replicas exchange nothing."""
        if math.isinf(limit_s):
            return False
        own_s = limit_s - self.cluster.accelerator.step_overhead_s
        times_s = rank_times_s(alone, rank_ends(self.shape), self.memory.held, self.memory.running)
        return held_within(times_s, alone.fewest, own_s) < alone.blocks.count

    def least_step(self, limit_s: float = math.inf, alone: LoopChain | None = None) -> LoopStep:
        """On the pipeline, and the blocks of each rank that may reach it, none beyond the limit."""
        most = self.most_blocks(limit_s)
        if self.of_rank:
            times_s, chain = self._times_of_unlike(most)
            return least_of_times_s(times_s, chain.fewest, chain.blocks.count)
        return least_step_s(
            self.chain(most) if alone is None else self.exchanging(alone, most),
            rank_ends(self.shape),
            self.memory.held,
            self.memory.running,
        )

    def _times_of_unlike(self, most: int) -> tuple[list[Floats], LoopChain]:
        """`rank_times_s`, and the chain of the first rank."""
        made = {id(own): own.chain(most) for own in self.of_rank}
        chains, memory = [made[id(own)] for own in self.of_rank], self.memory
        kinds, ends = [own.kinds for own in self.of_rank], rank_ends(self.shape)
        return unlike_times_s(chains, kinds, ends, memory.held, memory.running), chains[0]

    def most_of_ranks(self, limit_s: float) -> Counts | None:
        """Blocks that each rank can hold within a step; None where all of them cannot hold all."""
        blocks, memory = self.most_blocks(limit_s), self.memory
        if self.of_rank:
            times_s, chain = self._times_of_unlike(blocks)
        else:
            chain = self.chain(blocks)
            times_s = rank_times_s(chain, rank_ends(self.shape), memory.held, memory.running)
        most = [most_within(*own, limit_s) for own in zip(times_s, chain.fewest, strict=True)]
        if min(most) < 0 or sum(most) < chain.blocks.count:
            return None
        return tuple(Count(rank, own, True) for rank, own in enumerate(most))

    def most_blocks(self, limit_s: float) -> int:
        """Blocks that a rank can run within a step."""
        if self.of_rank:
            loops = {id(own): own for own in self.of_rank}.values()
            return max(own.most_blocks(limit_s) for own in loops)
        times = LayerTimes.of(self.kinds).total_s[self._blocks()]
        least_s = self.shape.num_microbatches * float(times.min())
        most = self.lengths.num_blocks
        return most if least_s * most <= limit_s else int(limit_s / least_s)

    def _most_frequent(self) -> tuple[int, int]:
        """The class of most blocks, and how many are of others."""
        own = np.bincount(self._blocks())
        return int(own.argmax()), int(self.lengths.num_blocks - own.max())

    def _again(self) -> tuple[Floats, Flags]:
        """Of each stage: how much longer it takes in any way, and whether a main block does so.

        That is where its first block recomputes, and is of one class in all splits.
        """
        first, least = self.kinds.first, self.lengths.least
        longer_s, is_main = np.zeros(len(least)), np.zeros(len(least), dtype=np.bool_)
        if first is None:
            return longer_s, is_main
        classes, main = self._blocks(), self._most_frequent()[0]
        before, last = (
            np.cumsum(least) - least,
            self.lengths.num_blocks - np.cumsum(least[::-1])[::-1],
        )
        for stage in np.flatnonzero(least).tolist():
            may_be = np.unique(classes[before[stage] : last[stage] + 1])
            if len(may_be) == 1:
                longer_s[stage] = first.longer_s[first.classes.index(int(may_be[0]))]
                is_main[stage] = may_be[0] == main
        return longer_s, is_main

    def _blocks(self) -> Ints:
        """The class of every block."""
        layers = self.kinds.profile.structure.layers[self.lengths.first : self.lengths.after]
        return np.array([layer.layer_class for layer in layers])

    @property
    def ahead(self) -> float:
        """Microbatches of the chunk before that hide what a chunk exchanges once, beside its own.

        All but one of a group (`zero.group_hiding`).
        """
        group = self.shape.group_of_chunk
        return float(zero.group_hiding(self.replicas.zero_stage, group)) - 1.0

    @property
    def mean_work_s(self) -> float:
        """Of a rank."""
        if self.of_rank:
            return self.shape.num_microbatches * least_work_s([own.kinds for own in self.of_rank])
        whole_s = float(LayerTimes.of(self.kinds).total_before_s[-1])
        whole_s += float(self._again()[0].sum())
        return self.shape.num_microbatches * whole_s / self.shape.num_ranks

    def chain(self, most_blocks: int, *, exchanging: bool = True) -> LoopChain:
        """What the bound needs to know; of several classes of blocks it knows the largest.

        No rank has more than `most_blocks`. Replicas exchange nothing unless `exchanging`.
        """
        kinds, costs, lengths = self.kinds, self.kinds.profile.costs, self.lengths
        times = LayerTimes.of(kinds)
        classes = np.array([layer.layer_class for layer in kinds.profile.structure.layers])
        main, missing = self._most_frequent()
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
        ends = (classes[: lengths.first], classes[lengths.after :])

        def edges(values: Floats) -> Floats:
            return np.array([values[each].sum() for each in ends])

        again_s, again_in_main = self._again()
        backward_all_s = float((times.total_before_s - times.forward_before_s)[-1])
        blocks = Blocks.of(
            count=lengths.num_blocks - missing,
            forward_s=float(times.forward_s[main]),
            time_s=np.asarray(costs.by_phase.total_s[rows]),
            kept_bytes=np.asarray(costs.saved_bytes[rows]),
            static=float(static[main]),
            transient=float(costs.transient_bytes[rows].min()),
        )
        return LoopChain(
            blocks=blocks,
            num_ranks=self.shape.num_ranks,
            num_microbatches=self.shape.num_microbatches,
            least=np.maximum(lengths.least - missing, 0),
            most=lengths.most,
            edges=_core.LoopEdges(
                forward_s=edges(times.forward_s),
                time_s=edges(times.total_s),
                kept_bytes=edges(least_kept),
                static_bytes=edges(static),
                optimizer_s=edges(update_s),
            ),
            optimizer_s=float(update_s[main]),
            forward_all_s=float(times.forward_before_s[-1]),
            backward_all_s=backward_all_s + float(again_s.sum()),
            transfer_s=self.transfer_s,
            usable_bytes=self.cluster.accelerator.most_usable_bytes,
            beside_bytes=self._stages_bytes() + (0.0 if missing else self._gathered_bytes(main)),
            sharing=self._sharing(main, missing, most_blocks, exchanging=exchanging),
            again_s=again_s,
            spared_bytes=again_in_main * (blocks.kept_bytes[0] - blocks.kept_bytes[-1]),
            under_backward=kinds.overlap.gradients,
        )

    def exchanging(self, alone: LoopChain, most_blocks: int) -> LoopChain:
        """A chain once replicas exchange what they do; no rank has more than `most_blocks`."""
        sharing = self._sharing(*self._most_frequent(), most_blocks, exchanging=True)
        return replace(alone, sharing=sharing)

    def sharing_lines(self, least: Ints, blocks: float) -> list[tuple[_Line, _Line, _Line]]:
        """Of every stage, lines below what is added to its forward, its backward, and at the end.

        They are near with so many blocks of the most frequent class, of which it has `least` [S].
        """
        missing = self._most_frequent()[1]
        made: dict[tuple[int, int], tuple[_Line, _Line, _Line]] = {}
        found = []
        added = self.added_s(least, [self.lengths.num_blocks] * self.shape.num_ranks)
        for fewest, added_s in zip(least.tolist(), added, strict=True):
            key = fewest, id(added_s)
            if key not in made:
                forward, backward, tail = (
                    _Line.below(of, fewest, blocks, nowhere_less=missing > 0) for of in added_s
                )
                made[key] = forward, backward, tail
            found.append(made[key])
        return found

    def added_s(self, least: Ints, extra: list[int]) -> list[tuple[Floats, Floats, Floats]]:
        """Of every stage what exchanges add to its forward, its backward, and at the end: [E] each.

        That is the least with so many blocks of the most frequent class, of which it has `least`
        [S], one more, ...; no rank has more than `extra` beyond.
        """
        return self._of_stages(self._exchanged.least_s, least, extra)

    def tails_s(self, least: Ints, extra: list[int], size: int) -> Floats:
        """The last of these by blocks of the chunk before it, and by its own: [S, size, size]."""
        return np.stack(self._of_stages(partial(self._exchanged.tails_s, size=size), least, extra))

    @property
    def _exchanged(self) -> Exchanged:
        return Exchanged.of(self.kinds, self.replicas, group=self.shape.group_of_chunk)

    def _of_stages(
        self, made_of: Callable[[Ints, Ints | None], _T], least: Ints, extra: list[int]
    ) -> list[_T]:
        """Of every stage, from the kinds that it and the one before it on its rank may be."""
        kinds_of = self._kinds_of_stages(self._most_frequent()[0], least, extra)
        made: dict[tuple[int, int], _T] = {}
        p, found = self.shape.num_ranks, []
        for stage, own in enumerate(kinds_of):
            before = kinds_of[stage - p] if stage >= p else None
            key = id(own), id(before)
            if key not in made:
                made[key] = made_of(own, before)
            found.append(made[key])
        return found

    def _sharing(
        self, main: int, missing: int, most_blocks: int, *, exchanging: bool
    ) -> tuple[RankSharing, ...]:
        """What ranks exchange with replicas, by their blocks of the class `main`."""
        lengths, p, group = self.lengths, self.shape.num_ranks, self.shape.group_of_chunk
        least = np.maximum(lengths.least - missing, 0)
        extra = [max(0, most_blocks - int(least[rank::p].sum())) for rank in range(p)]
        if exchanging:
            # Families, orders of pools and their depths differ in none of this.
            lies = lengths.first, lengths.after, lengths.least.tobytes(), lengths.most.tobytes()
            key, known = (self.replicas, p, group, most_blocks, *lies), self.kinds.of_ranks_in_loops
            if key not in known:
                kinds_of_stage = self._kinds_of_stages(main, least, extra)
                known[key] = rank_sharing(
                    self.kinds,
                    self.replicas,
                    [kinds_of_stage[r::p] for r in range(p)],
                    most=max(extra),
                    group=group,
                )
            found = known[key]
        else:
            sizes = lengths.most - least
            found = tuple(
                RankSharing.none(min(extra[r], int(sizes[r::p].sum())) + 1) for r in range(p)
            )
        return tuple(
            replace(own, tail_s=own.tail_s + tied_s) if tied_s else own
            for own, tied_s in zip(found, self.tied_s.tolist(), strict=True)
        )

    def _kinds_of_stages(self, main: int, least: Ints, extra: list[int]) -> list[Ints]:
        """Which kinds [E, O] stages may be, with their least blocks of a class and one more, ...

        None has more than `extra` of its rank.
        """
        lengths, p, last = self.lengths, self.shape.num_ranks, len(self.lengths.least) - 1
        ways = kinds_by_blocks(self.kinds, lengths.first, lengths.after, main)
        made: dict[tuple[int, int, int], Ints] = {}
        found = []
        for stage in range(last + 1):
            most = min(int(lengths.most[stage]), int(least[stage]) + extra[stage % p])
            key = ((stage > 0) + (stage == last), int(least[stage]), most)
            if key not in made:
                made[key] = ways[key[0]].with_blocks(*key[1:])
            found.append(made[key])
        return found

    def _stages_bytes(self) -> float:
        """What the stages of a rank hold that is owed to none of their layers."""
        beside = zero.beside_layers_bytes(self.replicas.zero_stage, self.replicas.sizes)
        return self.shape.virtual_stages * float(beside)

    def _gathered_bytes(self, main: int) -> float:
        """Weights that a rank of at least one block of the class gathers at least."""
        costs = self.kinds.profile.costs
        weights = costs.static_bytes[costs.class_offsets[main], :, StaticKind.WEIGHT].sum()
        layers = self.replicas.gathered_layers
        return float(zero.gathered_bytes(layers, weights, weights))

    def _held_of_classes(self) -> Floats:
        """State of one layer of each class on one device, [C]."""
        costs = self.kinds.profile.costs
        first = costs.class_offsets[:-1]
        stage, sizes = self.replicas.zero_stage, self.replicas.sizes
        held = self.replicas.state_bytes(costs.static_bytes[first]).sum(axis=-1)
        held = held - zero.beside_layers_bytes(stage, sizes)
        total: Floats = held + costs.opaque_static_bytes[first]
        return total

    def even_split(self) -> _Found | None:
        """What frameworks run where no split is stated, if it fits."""
        stages = self.lengths
        lengths = np.array(even_blocks(stages.num_blocks, len(stages.least)))
        if not ((stages.least <= lengths) & (lengths <= stages.most)).all():
            return None
        return self._with_blocks(lengths)

    def likely_split(self, *, limit_s: float) -> _Found | None:
        """The shortest of the ways to deal them and the even one, after a few moves from there."""
        dealt, likely = [self.even_split()], self.likely
        step = likely.least_step()
        if math.isfinite(step.step_s):
            arranged = likely._arrangements(step.blocks_of_rank)
            dealt = [*map(self._found, arranged), *dealt]
        fitting = [each for each in dealt if each is not None]
        best = min(fitting, key=lambda each: each.step_s, default=None)
        if best is None or best.step_s > _WORTH_MOVING * limit_s:
            return best
        return self._improved(likely._improved(best))

    def split_near(self, blocks: Floats, *, limit_s: float) -> _Found | None:
        """A split of about so many blocks in each stage, moved from there; None unless it fits.

        Where a step is far beyond the limit, no moves are tried.
        """
        lengths = np.floor(blocks + WHOLE).astype(np.int64)
        missing = self.lengths.num_blocks - int(lengths.sum())
        if not 0 <= missing <= len(lengths):
            return None
        lengths[np.argsort(lengths - blocks, kind="stable")[:missing]] += 1
        if not ((self.lengths.least <= lengths) & (lengths <= self.lengths.most)).all():
            return None
        found = self._with_blocks(lengths)
        if found is None or found.step_s > _NEAR_ENOUGH * limit_s:
            return found
        found = self._improved(found)
        if found.step_s > _WORTH_MOVING * limit_s:
            return found
        return self._improved(found, most_trials=_MORE_TRIALS)

    def _with_blocks(self, blocks: Ints) -> _Found | None:
        """The split of so many blocks in each stage, with the other layers, if it fits."""
        lengths = blocks.copy()
        lengths[0] += self.lengths.first
        lengths[-1] += self.kinds.num_layers - self.lengths.after
        return self._found(lengths)

    def _blocks_of(self, found: _Found) -> Ints:
        lengths: Ints = np.diff(found.cuts)
        lengths[0] -= self.lengths.first
        lengths[-1] -= self.kinds.num_layers - self.lengths.after
        return lengths

    def _found(self, lengths: Ints) -> _Found | None:
        chosen = self.memory.recomputed(lengths, [own.memory for own in self.of_rank])
        if chosen is None:
            return None
        cuts = np.concatenate(([0], np.cumsum(lengths)))
        step_s = self._step_s(self.kinds.kind_of[cuts[:-1], cuts[1:]], chosen)
        return _Found(step_s=step_s, cuts=tuple(cuts.tolist()), chosen=chosen)

    def _improved(self, best: _Found, *, most_trials: int = _MOST_TRIALS) -> _Found:
        """One block at a time from a stage to another, while that helps or the effort is spent.

        Between stages of one rank first, then of near ranks; what was tried last comes last again.
        """
        num_actions = 2 * len(best.chosen) * self.shape.num_microbatches
        trials = min(most_trials, most_trials * _ACTIONS // (_MOST_TRIALS * num_actions))
        every, failed = _moves_between(self.shape.num_ranks, len(best.chosen)), 0
        moves = cycle(every)
        least, most = self.lengths.least, self.lengths.most
        lengths = self._blocks_of(best)
        while trials > 0 and failed < len(every):
            giver, taker = next(moves)
            failed += 1
            if lengths[giver] == least[giver] or lengths[taker] == most[taker]:
                continue
            trials -= 1
            lengths[giver] -= 1
            lengths[taker] += 1
            found = self._with_blocks(lengths)
            if found is not None and found.step_s < best.step_s * (1 - LOOP_HAIR):
                best, failed = found, 0
                continue
            lengths[giver] += 1
            lengths[taker] -= 1
        return best

    def _arrangements(self, blocks_of_rank: tuple[int, ...]) -> list[Ints]:
        """Lengths of all stages, [S], for blocks of ranks of which the bound knows one class."""
        p, v = self.shape.num_ranks, self.shape.virtual_stages
        least, most = self.lengths.least.reshape(v, p), self.lengths.most.reshape(v, p)
        counts = np.maximum(blocks_of_rank, least.sum(axis=0))
        missing = self.lengths.num_blocks - int(counts.sum())
        for _ in range(missing):  # blocks of other classes: where there is most room
            counts[int((most.sum(axis=0) - counts).argmax())] += 1
        for _ in range(-missing):  # the bound allows ranks fewer of its class than they must hold
            counts[int((counts - least.sum(axis=0)).argmax())] -= 1
        late, early = np.arange(v)[::-1], np.arange(v)
        found: list[Ints] = []
        for order in (late, early, spread_order(v)):
            blocks = np.stack(
                [dealt_evenly(int(counts[r]), least[:, r], most[:, r], order) for r in range(p)],
                axis=1,
            )
            lengths = blocks.reshape(-1)
            lengths[0] += self.lengths.first
            lengths[-1] += self.kinds.num_layers - self.lengths.after
            if not any((lengths == other).all() for other in found):
                found.append(lengths)
        return found

    def _step_s(self, kinds: Ints, chosen: tuple[tuple[int, ...], ...]) -> float:
        """Pipeline and exchanges; the update that follows them differs little between splits."""
        loops = {id(own): own for own in self.of_rank or (self,)}
        parts = {key: own._stage_times_s(kinds, chosen) for key, own in loops.items()}
        p, found = self.shape.num_ranks, next(iter(parts.values()))
        if len(loops) > 1:
            keys = [id(self.of_rank[stage % p]) for stage in range(len(chosen))]
            found = np.stack([parts[key][:, stage] for stage, key in enumerate(keys)], axis=1)
        forward_s, input_grad_s, weight_grad_s, tail_s = found
        times = pipeline.PipelineTimes(
            forward_s=forward_s,
            input_grad_s=input_grad_s,
            weight_grad_s=weight_grad_s,
            transfer_s=self.transfer_s,
        )
        ends_s = pipeline.quick_ends_s(self.shape, times) + tail_s.reshape(-1, p).sum(axis=0)
        return float((ends_s + self.tied_s).max())

    def _stage_times_s(self, kinds: Ints, chosen: tuple[tuple[int, ...], ...]) -> Floats:
        """Forward, gradient of the input and of the weights, and exchanges at last, [4, S]."""
        phases = self.kinds.profile.costs.by_phase
        own = np.array(chosen, dtype=np.float64)
        forward_s, total_s = own @ phases.forward_s, own @ phases.total_s
        weight_grad_s = own @ phases.weight_grad_s
        sharing, p = self.sharing.at(kinds), self.shape.num_ranks
        every = sharing.exposed(forward_s, total_s)
        none, ahead = np.zeros(p), self.ahead
        before_forward_s, before_s = (np.append(none, x[:-p]) for x in (forward_s, total_s))
        under_s = forward_s + ahead * before_forward_s, total_s + ahead * before_s
        tail_s = sharing.exposed(*under_s).last_s
        input_grad_s = total_s - forward_s - weight_grad_s + every.backward_s
        return np.stack((forward_s + every.forward_s, input_grad_s, weight_grad_s, tail_s))


def ways_in_loop(
    question: SplitQuestion, cuts: tuple[int, ...]
) -> tuple[tuple[int, ...], ...] | None:
    """Layers by row for the stages between `cuts`; None where they do not fit."""
    loop = Loop.of(question)
    return None if loop is None else loop.memory.recomputed(np.diff(cuts))


@lru_cache(maxsize=16)
def _moves_between(num_ranks: int, num_stages: int) -> tuple[tuple[int, int], ...]:
    """From one stage to another, of one rank first, then of near ranks."""
    moves = permutations(range(num_stages), 2)
    return tuple(
        sorted(moves, key=lambda move: (abs(move[0] % num_ranks - move[1] % num_ranks), move))
    )
