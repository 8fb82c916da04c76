"""All splits of a candidate that may be faster than a limit, where the order ignores times.

A chain has one stage per rank, a loop has several chunks. What is below the limit is priced, and
lowers it; what was not looked at is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright.planning.bounds.stages import Sharing
from trainwright.planning.splits.chain import (
    ChainTables,
    CutsAndRows,
    Site,
    TiedExchange,
    chain_tables,
    fastest_way,
    fullest_instants,
    touched_bytes,
    updates_s,
    with_replicas,
)
from trainwright.planning.splits.loop import Loop
from trainwright.planning.splits.types import (
    HAIR,
    Effort,
    Finished,
    Found,
    Price,
    SplitQuestion,
    price_below,
)
from trainwright.step.pipeline import PipelineShape, PipelineTimes, quick_ends_s
from trainwright.step.zero import update_time_s

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints

# All cuts of a chain into one stage per rank whose bounds are below a limit
# --------------------------------------------------------------------------
# The bound is that of `chain`. Its recurrence runs from the last rank backwards; here the first
# ranks are cut first, and those behind them count at the least of all their cuts. So each rank more
# that is cut raises the bound, and what reaches the limit is dropped with all that begins like it.
# O(p²) for each beginning that is kept.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutsBelow:
    """Cuts [N, p + 1] and what they take at least, [N], ascending; others take `others_s`.

    `num_bounds` counts the ranks that were added up.
    """

    cuts: Ints
    bound_s: Floats
    others_s: float
    num_bounds: int


class _Later(NamedTuple):
    """The ranks from one on: a microbatch there and back, the end of the rank, and of the step."""

    way_s: Floats
    end_s: Floats
    finish_s: Floats

    def at(self, first: Ints) -> _Later:
        """Where the ranks begin with these layers."""
        return _Later(*(each[first] for each in self))


class _Stage(NamedTuple):
    """Stages of one rank: seconds of a microbatch, after the pipeline, and to the next rank."""

    forward_s: Floats
    weight_grad_s: Floats
    time_s: Floats
    tail_s: Floats
    transfer_s: Floats


def cuts_below(tables: ChainTables, limit_s: float, *, most: int) -> CutsBelow:
    """All of them; of more than `most` that begin alike far, those of the least bounds.

    Bounds are of the pipeline and what follows it, without what a device does once per step.
    """
    p, size = tables.time_s.shape[0], len(tables.kind_of)
    later = _least_later(tables)
    cuts, others_s = np.zeros((1, 1), dtype=np.int64), limit_s
    bound_s, num_bounds = np.zeros(1), 0
    for rank in range(p):
        cuts = _extended(cuts, tables.kind_of.shape[1], size, is_last=rank == p - 1)
        bound_s = _bounds_s(tables, cuts, later[rank + 1])
        num_bounds += len(cuts) * (rank + 1)
        below = np.flatnonzero(bound_s < limit_s)
        below = below[np.argsort(bound_s[below], kind="stable")]
        if len(below) > most:
            others_s = min(others_s, float(bound_s[below[most]]))
            below = below[:most]
        cuts, bound_s = cuts[below], bound_s[below]
    return CutsBelow(cuts=cuts, bound_s=bound_s, others_s=others_s, num_bounds=num_bounds)


def _extended(cuts: Ints, longest: int, size: int, *, is_last: bool) -> Ints:
    """With a stage more, [N, r + 1]; the last stage takes what is left."""
    first = cuts[:, -1]
    if is_last:
        own, lengths = np.flatnonzero(size - first <= longest), (size - first)
        return np.column_stack((cuts[own], first[own] + lengths[own]))
    after = first[:, np.newaxis] + np.arange(1, longest + 1)
    own, length = np.nonzero(after < size)
    return np.column_stack((cuts[own], after[own, length]))


def _least_later(tables: ChainTables) -> list[_Later]:
    """Of the ranks from each one on, by their first layer [L + 1]; past the last rank, too."""
    p, (size, longest) = tables.time_s.shape[0], tables.kind_of.shape
    end = np.full(size + 1, np.inf)
    end[size] = 0.0
    found = [_Later(end, end, end)]
    first = np.arange(size)[:, np.newaxis]
    after = np.minimum(first + np.arange(1, longest + 1), size)
    for rank in reversed(range(p)):
        all_of_rank = _with_rank(tables, rank, first, after, found[-1].at(after))
        found.append(_Later(*(np.append(each.min(axis=1), np.inf) for each in all_of_rank)))
    return found[::-1]


def _bounds_s(tables: ChainTables, cuts: Ints, later: _Later) -> Floats:
    """Of steps whose first ranks are cut like this, [N]."""
    found = later.at(cuts[:, -1])
    for rank in reversed(range(cuts.shape[1] - 1)):
        found = _with_rank(tables, rank, cuts[:, rank], cuts[:, rank + 1], found)
    return found.finish_s


def _with_rank(tables: ChainTables, rank: int, first: Ints, after: Ints, later: _Later) -> _Later:
    """One more rank before, with layers [first, after); infinite where these are no stage."""
    kind = tables.kind_of[first, after - first - 1]
    own = _Stage(
        forward_s=tables.forward_s[rank, kind],
        weight_grad_s=tables.weight_grad_s[rank, kind],
        time_s=np.where(kind < 0, np.inf, tables.time_s[rank, kind]),
        tail_s=tables.tail_s[rank, kind],
        transfer_s=tables.transfer_s[rank, after],
    )
    can_be = np.isfinite(own.time_s) & np.isfinite(later.way_s)
    own = own._replace(time_s=np.where(can_be, own.time_s, 0.0))
    later = _Later(*(np.where(can_be, each, 0.0) for each in later))
    away_s = 2 * own.transfer_s + later.way_s
    handed_on_s = own.time_s - own.weight_grad_s
    end_s = np.maximum(
        _alone_s(own, tables.order[rank].tolist(), away_s, tables.num_microbatches),
        handed_on_s + 2 * own.transfer_s + later.end_s,
    )
    left_s = tables.order[rank, 3] * own.weight_grad_s
    finish_s = np.maximum(
        end_s + left_s + own.tail_s, own.forward_s + own.transfer_s + later.finish_s
    )
    columns = (handed_on_s + away_s, end_s, finish_s)
    return _Later(*(np.where(can_be, each, np.inf) for each in columns))


def _alone_s(own: _Stage, order: list[int], away_s: Floats, m: int) -> Floats:
    """How long a rank runs at least to its last input gradient (`native/chain/chain_cuts.hpp`)."""
    w, drained, drained_weight_grads, left_weight_grads = order
    handed_on_s = own.time_s - own.weight_grad_s
    idle_s = np.maximum(0.0, away_s - (w - 1) * own.forward_s)
    if m > w:
        drained_s = drained * (handed_on_s - own.forward_s)
        drained_s = drained_s + drained_weight_grads * own.weight_grad_s
        idle_s = idle_s + np.maximum(0.0, away_s - drained_s)
    end_s: Floats = m * own.time_s - left_weight_grads * own.weight_grad_s + idle_s
    if m > w:
        late_s = away_s - (w - 1) * handed_on_s
        late_rounds_s = m * handed_on_s + away_s + late_s + (m - w - 1) // w * late_s
        end_s = np.where(late_s > 0, np.maximum(end_s, late_rounds_s), end_s)
    return end_s


# All splits of a candidate with one stage per rank that may be faster than a limit
# ---------------------------------------------------------------------------------
# Ranks share no memory, and a step grows with the time of each stage, so every stage runs the
# fastest way that fits: what is left open are the cuts. Those whose bounds are below the limit are
# simulated; with the exchange that a rank does not hide, that of tied layers, and the slowest
# update this is the step but for rounding. Those that stay below are priced, the shortest first.


def finish_chain(
    question: SplitQuestion, price: Price[Found], effort: Effort, *, limit_s: float
) -> Finished[Found] | None:
    """The fastest plan below the limit, if there is one, and a bound on all others.

    None where the effort does not suffice to look.
    """
    chain = _Chain.of(question, limit_s=limit_s)
    if chain is None:
        return Finished(bound_s=limit_s)
    ranks = question.degrees.pipeline
    most = effort.beginnings(ranks, chain.tables.kind_of.shape[1])
    if not most:
        return None
    found = cuts_below(chain.tables, limit_s - question.overhead_s, most=most)
    effort.spend_on_cuts(ranks, found.num_bounds)
    others_s = found.others_s + question.overhead_s
    simulated: list[tuple[float, CutsAndRows]] = []
    for cuts, bound_s in zip(found.cuts.tolist(), found.bound_s.tolist(), strict=True):
        if effort.is_spent:
            others_s = min(others_s, bound_s + question.overhead_s)
            break
        effort.spend_on_simulation(2 * ranks * question.num_microbatches)
        step = chain.simulated(cuts)
        if step is not None:
            simulated.append(step)
    return price_below(simulated, price, effort, limit_s=limit_s, others_s=others_s)


@dataclass(slots=True)
class _Chain:
    """A candidate's stages: what bounds know of them, and how each of them runs."""

    sites: tuple[Site, ...]
    shape: PipelineShape
    tables: ChainTables
    instants: Floats
    update_s: Floats
    tied: TiedExchange | None
    overhead_s: float
    ways: dict[tuple[int, int], tuple[int, ...] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, question: SplitQuestion, *, limit_s: float) -> _Chain | None:
        """None where no stages below the limit make up the chain.

        From pool to pool nothing is counted that layers share.
        """
        kinds, sites, p = question.kinds, question.ranks, question.degrees.pipeline
        shape = PipelineShape(
            family=question.family, num_ranks=p, num_microbatches=question.num_microbatches
        )
        if kinds.num_layers < p:
            return None
        tables = chain_tables(sites, question.transfers_s, shape, limit_s=limit_s)
        if tables is None:
            return None
        update_s = {
            id(site): updates_s(site.kinds, tables.used, site.replicas, site.cluster)
            for site in {id(site): site for site in sites}.values()
        }
        return cls(
            sites=sites,
            shape=shape,
            tables=tables,
            instants=fullest_instants(shape),
            update_s=np.stack([update_s[id(site)] for site in sites]),
            tied=None if question.levels else TiedExchange.of(question),
            overhead_s=question.overhead_s,
        )

    def simulated(self, cuts: Sequence[int]) -> tuple[float, CutsAndRows] | None:
        """The step and the split; None where a stage does not fit."""
        tables, ranks = self.tables, np.arange(self.shape.num_ranks)
        columns = [int(tables.kind_of[a, b - a - 1]) for a, b in pairwise(cuts)]
        ways = [self._way(rank, column) for rank, column in enumerate(columns)]
        chosen = tuple(way for way in ways if way is not None)
        if len(chosen) < len(ways):
            return None
        weight_grad_s = np.zeros(len(ranks))
        for rank, (site, own) in enumerate(zip(self.sites, chosen, strict=True)):
            phases = site.kinds.profile.costs.by_phase
            weight_grad_s[rank] = np.array(own, dtype=np.float64) @ phases.weight_grad_s
        forward_s, time_s = tables.forward_s[ranks, columns], tables.time_s[ranks, columns]
        times = PipelineTimes(
            forward_s=forward_s,
            input_grad_s=time_s - forward_s - weight_grad_s,
            weight_grad_s=weight_grad_s,
            transfer_s=tables.transfer_s[ranks[:-1], cuts[1:-1]],
            blocking=1 - self.sites[0].kinds.overlap.pipeline,
        )
        update_s = self.update_s[ranks, columns]
        exposed_s = tables.tail_s[ranks, columns] - update_s
        if self.tied is not None:
            exposed_s = exposed_s + self.tied.times_s(cuts)
        synced_s = float((quick_ends_s(self.shape, times) + exposed_s).max())
        step_s = synced_s + float(update_s.max()) + self.overhead_s
        return step_s, (tuple(cuts), chosen)

    def _way(self, rank: int, column: int) -> tuple[int, ...] | None:
        if (rank, column) not in self.ways:
            kind = int(self.tables.used[column])
            self.ways[rank, column] = fastest_way(
                self.sites[rank], kind, self.instants[rank], surely=False
            )
        return self.ways[rank, column]


# Chunks in a loop: all splits that may be faster, or the nearly even ones alone
# ------------------------------------------------------------------------------
# The chunks of a rank share its memory, so which of them recompute is a choice of the rank. Of
# the choices that fit, one that takes no chunk longer than another, and exposes no more of its
# exchange, is never the slower: the others are dropped. Orders do not look at times, so a
# pipeline grows with every chunk, and one whose ranks are not all chosen takes no less than with
# each of their chunks at its shortest. This bound is simulated, rank after rank; what is below
# the limit to the end is priced, and lowers it.

_MOST_CHOICES = 4096  # of one rank


def finish_loop(
    question: SplitQuestion,
    price: Price[Found],
    effort: Effort,
    *,
    limit_s: float,
    even_at_least: bool = True,
) -> Finished[Found] | None:
    """The fastest plan below the limit, if there is one, and a bound on all others.

    None where there are more splits than the effort suffices for, or the nearly even ones alone if
    these will do; the bound is 0 where there are more of others.
    """
    whole = Loop.of(question)
    if whole is None:
        return None
    found = _finished(whole, question, price, effort, limit_s=limit_s)
    if found is not None:
        return found
    even = whole.nearly_even if even_at_least else None
    found = None if even is None else _finished(even, question, price, effort, limit_s=limit_s)
    return None if found is None else replace(found, bound_s=0.0)


def _finished(
    loop: Loop, question: SplitQuestion, price: Price[Found], effort: Effort, *, limit_s: float
) -> Finished[Found] | None:
    """Of the splits of some lengths."""
    stages = loop.lengths
    splits = num_lengths(stages.least.tolist(), stages.most.tolist(), stages.num_blocks)
    actions = 2 * len(stages.least) * question.num_microbatches
    if not effort.suffices(splits, actions):
        return None
    search = _LoopSearch(loop=loop, price=price, effort=effort, limit_s=limit_s, actions=actions)
    return search.run() if search.most_choices <= _MOST_CHOICES else None


def num_lengths(least: Sequence[int], most: Sequence[int], blocks: int) -> int:
    """How many ways `every_lengths` finds."""
    counts = [1, *[0] * blocks]  # by blocks that the stages so far hold
    for fewest, many in zip(least, most, strict=True):
        up_to = (0, *accumulate(counts))
        counts = [
            up_to[max(0, held - fewest + 1)] - up_to[max(0, held - many)]
            for held in range(blocks + 1)
        ]
    return counts[blocks]


def every_lengths(
    least: Sequence[int], most: Sequence[int], blocks: int
) -> Iterator[tuple[int, ...]]:
    """All ways to deal so many blocks to stages that hold at least and at most so many."""
    if not least:
        if blocks == 0:
            yield ()
        return
    fewest, many = blocks - sum(most[1:]), blocks - sum(least[1:])
    for own in range(max(least[0], fewest), min(most[0], many) + 1):
        for others in every_lengths(least[1:], most[1:], blocks - own):
            yield (own, *others)


def _every_cuts(loop: Loop) -> Iterator[tuple[int, ...]]:
    stages = loop.lengths
    least, most = stages.least.tolist(), stages.most.tolist()
    for lengths in every_lengths(least, most, stages.num_blocks):
        inner = stages.first + np.cumsum(lengths)[:-1]
        yield (0, *inner.tolist(), loop.kinds.num_layers)


class _ChunkWays(NamedTuple):
    """N ways to run one kind of chunk: seconds, bytes, and layers by row [N, R].

    The times `before_s` are without what is exchanged of every microbatch.
    """

    sharing: Sharing
    forward_before_s: float
    before_s: Floats
    forward_s: float
    time_s: Floats
    kept_bytes: Floats
    transient_bytes: Floats
    chosen: NDArray[np.int16]


class _RankWays(NamedTuple):
    """N choices of a rank that fit: seconds of its chunks [N, v] and beside, and which ways."""

    time_s: Floats
    tail_s: Floats
    ways: Ints

    @property
    def least(self) -> _RankWays:
        """One choice that is no longer than any in any chunk."""
        time_s = self.time_s.min(axis=0, keepdims=True)
        return _RankWays(time_s, self.tail_s.min(keepdims=True), self.ways[:1])

    def only(self, choice: int) -> _RankWays:
        """One of the choices."""
        own = slice(choice, choice + 1)
        return _RankWays(self.time_s[own], self.tail_s[own], self.ways[own])


@dataclass(slots=True)
class _LoopSearch(Generic[Found]):
    """One candidate's splits: `limit_s` is the best step so far, `others_s` bounds what is left.

    Unlike ranks run the chunks of a kind in ways of their own.
    """

    loop: Loop
    price: Price[Found]
    effort: Effort
    limit_s: float
    actions: int
    others_s: float = np.inf
    best: Found | None = None
    chunk_ways: dict[tuple[int, int], _ChunkWays] = field(default_factory=dict)
    rank_ways: dict[tuple[int, ...], _RankWays | None] = field(default_factory=dict)
    update_s: dict[tuple[int, ...], float] = field(default_factory=dict)

    @property
    def most_choices(self) -> int:
        """Of one rank: those of its longest chunks, had each memory enough."""
        stages, p = self.loop.lengths, self.loop.shape.num_ranks
        longest = [
            self.loop.kinds.kind_of[stages.first, stages.first + blocks]
            for blocks in stages.most.tolist()
        ]
        counts = [len(own.time_s) for own in self._ways_of(list(map(int, longest)))]
        return max(prod(counts[rank::p]) for rank in range(p))

    def run(self) -> Finished[Found]:
        """Splits in the order of what they take at least."""
        open_splits = []
        for number, kinds in enumerate(self._every_kinds()):
            ranks = self._ranks(kinds)
            if ranks is not None:
                least = [rank.least for rank in ranks]
                open_splits.append((self._step_s(kinds, least), number, kinds, ranks))
        for bound_s, _, kinds, ranks in sorted(open_splits, key=lambda each: each[:2]):
            self._descend(bound_s, kinds, ranks, 0)
        return Finished(bound_s=min(self.others_s, self.limit_s), found=self.best)

    def _every_kinds(self) -> Iterator[tuple[int, ...]]:
        """The kinds of all stages, for each split."""
        for cuts in _every_cuts(self.loop):
            yield tuple(int(self.loop.kinds.kind_of[a, b]) for a, b in pairwise(cuts))

    def _descend(
        self, bound_s: float, kinds: tuple[int, ...], ranks: list[_RankWays], rank: int
    ) -> None:
        """Choose for one rank after the other, while the least of what is left is below."""
        if bound_s >= self.limit_s * HAIR:
            return
        while rank < len(ranks) and len(ranks[rank].tail_s) == 1:
            rank += 1
        if self.effort.is_spent:
            self.others_s = min(self.others_s, bound_s)
        elif rank == len(ranks):
            self._price(bound_s, kinds, ranks)
        else:
            tried = []
            for choice in range(len(ranks[rank].tail_s)):
                chosen = [*ranks[:rank], ranks[rank].only(choice), *ranks[rank + 1 :]]
                least = [each.least for each in chosen]
                tried.append((self._step_s(kinds, least), choice, chosen))
            for step_s, _, chosen in sorted(tried, key=lambda each: each[:2]):
                self._descend(step_s, kinds, chosen, rank + 1)

    def _price(self, step_s: float, kinds: tuple[int, ...], ranks: list[_RankWays]) -> None:
        self.effort.spend_on_plan()
        p, lengths = len(ranks), self.loop.kinds.counts[list(kinds)].sum(axis=1)
        chosen = tuple(
            tuple(own.chosen[ranks[stage % p].ways[0, stage // p]].tolist())
            for stage, own in enumerate(self._ways_of(kinds))
        )
        found = self.price(((0, *np.cumsum(lengths).tolist()), chosen))
        if found is None:
            self.others_s = min(self.others_s, step_s)
        elif found.step.step_time_s < self.limit_s:
            self.best, self.limit_s = found, found.step.step_time_s

    def _step_s(self, kinds: tuple[int, ...], ranks: list[_RankWays]) -> float:
        """With the first choice of every rank."""
        self.effort.spend_on_simulation(self.actions)
        loop, p = self.loop, len(ranks)
        time_s = np.concatenate([rank.time_s for rank in ranks]).T.reshape(-1)
        forward_s = np.array([own.forward_s for own in self._ways_of(kinds)])
        times = PipelineTimes(
            forward_s=forward_s,
            input_grad_s=time_s - forward_s,
            weight_grad_s=np.zeros(len(kinds)),
            transfer_s=loop.transfer_s,
            blocking=1 - loop.kinds.overlap.pipeline,
        )
        tail_s = np.array([rank.tail_s[0] for rank in ranks]) + loop.tied_s
        synced_s = float((quick_ends_s(loop.shape, times) + tail_s).max())
        update_s = max(self._updated_s(rank, kinds[rank::p]) for rank in range(p))
        places = loop.of_rank or (loop,)
        return synced_s + update_s + max(o.cluster.accelerator.step_overhead_s for o in places)

    def _ranks(self, kinds: tuple[int, ...]) -> list[_RankWays] | None:
        """The choices of every rank; None where one has none."""
        p, found = self.loop.shape.num_ranks, []
        for rank in range(p):
            own = self._of_rank(rank, kinds[rank::p])
            if own is None:
                return None
            found.append(own)
        return found

    def _of_rank(self, rank: int, kinds: tuple[int, ...]) -> _RankWays | None:
        key = (rank, *kinds)
        if key not in self.rank_ways:
            self.rank_ways[key] = self._choices(rank, kinds)
        return self.rank_ways[key]

    def _choices(self, rank: int, kinds: tuple[int, ...]) -> _RankWays | None:
        """Those that fit and that no other beats; None where none fits."""
        chunks, memory = [self._ways(rank, kind) for kind in kinds], self._place(rank).memory
        sizes = [len(chunk.time_s) for chunk in chunks]
        ways = np.indices(sizes).reshape(len(sizes), -1).T
        picked = list(zip(chunks, ways.T, strict=True))
        kept = np.stack([chunk.kept_bytes[own] for chunk, own in picked], axis=1)
        transient = np.stack([chunk.transient_bytes[own] for chunk, own in picked], axis=1)
        needed = kept @ memory.held[rank].T + transient @ memory.running[rank].T
        ways = ways[needed.max(axis=1) <= memory.room_bytes(kinds, surely=False)]
        if not len(ways):
            return None
        picked = list(zip(chunks, ways.T, strict=True))
        time_s = np.stack([chunk.time_s[own] for chunk, own in picked], axis=1)
        tail_s = self._tail_s(picked)
        best = unbeaten(np.column_stack((time_s, tail_s)))
        return _RankWays(time_s[best], tail_s[best], ways[best])

    def _tail_s(self, picked: list[tuple[_ChunkWays, Ints]]) -> Floats:
        """What a rank exchanges after its last microbatch, of each choice [N]."""
        ahead, total_s = self.loop.ahead, np.zeros(len(picked[0][1]))
        forward_s, under_s = 0.0, np.zeros(len(total_s))
        for chunk, own in picked:
            own_s = chunk.before_s[own]
            added = chunk.sharing.exposed(
                np.full((len(own), 1), chunk.forward_before_s + ahead * forward_s),
                (own_s + ahead * under_s)[:, np.newaxis],
            )
            total_s += added.last_s[:, 0]
            forward_s, under_s = chunk.forward_before_s, own_s
        return total_s

    def _updated_s(self, rank: int, kinds: tuple[int, ...]) -> float:
        """The optimizer of one rank."""
        loop = self._place(rank)
        key = (id(loop), *kinds)
        if key not in self.update_s:
            own = touched_bytes(loop.kinds, loop.replicas, np.array(kinds)).sum()
            self.update_s[key] = update_time_s(float(own), loop.cluster.accelerator)
        return self.update_s[key]

    def _place(self, rank: int) -> Loop:
        return self.loop.of_rank[rank] if self.loop.of_rank else self.loop

    def _ways_of(self, kinds: Sequence[int]) -> list[_ChunkWays]:
        """Those of every stage, of these kinds."""
        p = self.loop.shape.num_ranks
        return [self._ways(stage % p, kind) for stage, kind in enumerate(kinds)]

    def _ways(self, rank: int, kind: int) -> _ChunkWays:
        loop = self._place(rank)
        key = (id(loop), kind)
        if key not in self.chunk_ways:
            self.chunk_ways[key] = self._made_ways(loop, kind)
        return self.chunk_ways[key]

    def _made_ways(self, loop: Loop, kind: int) -> _ChunkWays:
        kinds = loop.kinds
        fronts = [(kinds.front(kind, level), level) for level in kinds.levels_of[kind]]
        time_s = np.concatenate([front.time_s for front, _ in fronts])
        used = np.full(len(time_s), kind)
        times = with_replicas(
            kinds,
            used,
            time_s[np.newaxis],
            np.full((1, len(used)), kinds.forward_s[kind]),
            loop.replicas,
            loop.cluster,
        )
        return _ChunkWays(
            sharing=Sharing.of(kinds, loop.replicas, used[:1]),
            forward_before_s=float(kinds.forward_s[kind]),
            before_s=time_s,
            forward_s=float(times.forward_s[0, 0]),
            time_s=times.time_s[0],
            kept_bytes=np.concatenate([front.kept_bytes for front, _ in fronts]),
            transient_bytes=np.repeat(
                [kinds.level_bytes[level] for _, level in fronts],
                [len(front.time_s) for front, _ in fronts],
            ),
            chosen=np.concatenate([front.chosen for front, _ in fronts]),
        )


def unbeaten(columns: Floats) -> Ints:
    """Rows [N, c] that no other is at most as large as in all columns; of equals the first."""
    order = np.lexsort(columns.T[::-1])
    kept: list[int] = []
    for row in order.tolist():
        if not kept or not (columns[kept] <= columns[row]).all(axis=1).any():
            kept.append(row)
    return np.array(kept)
