"""All splits of a candidate over chunks in a loop that may be faster than a limit.

Where there are too many, the nearly even ones alone, and nothing is proved of the others.

The chunks of a rank share its memory, so which of them recompute is a choice of the rank. Of the
choices that fit, one that takes no chunk longer than another, and exposes no more of its exchange,
is never the slower: the others are dropped. Orders do not look at times, so a pipeline grows with
every chunk, and one whose ranks are not all chosen takes no less than with each of their chunks at
its shortest. This bound is simulated, rank after rank; what is below the limit to the end is
priced, and lowers it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from trainwright.planning.splits.chain import TiedExchange, touched_bytes, updates_s, with_replicas
from trainwright.planning.splits.loop import Loop
from trainwright.planning.splits.types import HAIR, Finished
from trainwright.step.pipeline import PipelineTimes, quick_ends_s
from trainwright.step.zero import update_time_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from trainwright.arrays import Floats, Ints
    from trainwright.planning.splits.chain import CutsAndRows
    from trainwright.planning.splits.types import Effort, Priced, SplitQuestion

Price: TypeAlias = "Callable[[CutsAndRows], Priced | None]"

_HAIR = 1e-9  # of a device's memory, left free for rounding
_MOST_CHOICES = 4096  # of one rank


def finish_loop(
    question: SplitQuestion,
    price: Price,
    effort: Effort,
    *,
    limit_s: float,
    even_at_least: bool = True,
) -> Finished | None:
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
    loop: Loop, question: SplitQuestion, price: Price, effort: Effort, *, limit_s: float
) -> Finished | None:
    """Of the splits of some lengths."""
    stages = loop.lengths
    splits = num_lengths(stages.least.tolist(), stages.most.tolist(), stages.num_blocks)
    actions = 2 * len(stages.least) * question.num_microbatches
    if not effort.suffices(splits, actions):
        return None
    tied_s = TiedExchange.of(question).times_s(next(_every_cuts(loop)))  # the same for all
    search = _LoopSearch(
        loop=loop, price=price, effort=effort, limit_s=limit_s, actions=actions, tied_s=tied_s
    )
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
    """N ways to run one kind of chunk: seconds, bytes, and layers by row [N, R]."""

    forward_s: float
    time_s: Floats
    tail_s: Floats
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
class _LoopSearch:
    """One candidate's splits: `limit_s` is the best step so far, `others_s` bounds what is left."""

    loop: Loop
    price: Price
    effort: Effort
    limit_s: float
    actions: int
    tied_s: Floats
    others_s: float = np.inf
    best: Priced | None = None
    chunk_ways: dict[int, _ChunkWays] = field(default_factory=dict)
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
        counts = [len(self._ways(int(kind)).time_s) for kind in longest]
        return max(prod(counts[rank::p]) for rank in range(p))

    def run(self) -> Finished:
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
            tuple(self._ways(kind).chosen[ranks[stage % p].ways[0, stage // p]].tolist())
            for stage, kind in enumerate(kinds)
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
        forward_s = np.array([self._ways(kind).forward_s for kind in kinds])
        times = PipelineTimes(
            forward_s=forward_s,
            input_grad_s=time_s - forward_s,
            weight_grad_s=np.zeros(len(kinds)),
            transfer_s=loop.transfer_s,
            blocking=1 - loop.kinds.overlap.pipeline,
        )
        tail_s = np.array([rank.tail_s[0] for rank in ranks]) + self.tied_s
        synced_s = float((quick_ends_s(loop.shape, times) + tail_s).max())
        update_s = max(self._updated_s(kinds[rank::p]) for rank in range(p))
        return synced_s + update_s + loop.cluster.accelerator.step_overhead_s

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
        chunks, memory = [self._ways(kind) for kind in kinds], self.loop.memory
        sizes = [len(chunk.time_s) for chunk in chunks]
        ways = np.indices(sizes).reshape(len(sizes), -1).T
        picked = list(zip(chunks, ways.T, strict=True))
        kept = np.stack([chunk.kept_bytes[own] for chunk, own in picked], axis=1)
        transient = np.stack([chunk.transient_bytes[own] for chunk, own in picked], axis=1)
        needed = kept @ memory.held[rank].T + transient @ memory.running[rank].T
        ways = ways[needed.max(axis=1) <= memory.room_bytes(kinds)]
        if not len(ways):
            return None
        picked = list(zip(chunks, ways.T, strict=True))
        time_s = np.stack([chunk.time_s[own] for chunk, own in picked], axis=1)
        tail_s = np.sum([chunk.tail_s[own] for chunk, own in picked], axis=0)
        best = unbeaten(np.column_stack((time_s, tail_s)))
        return _RankWays(time_s[best], tail_s[best], ways[best])

    def _updated_s(self, kinds: tuple[int, ...]) -> float:
        """The optimizer of one rank."""
        if kinds not in self.update_s:
            own = touched_bytes(self.loop.kinds, self.loop.replicas, np.array(kinds)).sum()
            device = self.loop.cluster.accelerator
            self.update_s[kinds] = update_time_s(float(own), device)
        return self.update_s[kinds]

    def _ways(self, kind: int) -> _ChunkWays:
        if kind not in self.chunk_ways:
            self.chunk_ways[kind] = self._made_ways(kind)
        return self.chunk_ways[kind]

    def _made_ways(self, kind: int) -> _ChunkWays:
        loop, kinds = self.loop, self.loop.kinds
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
            forward_s=float(times.forward_s[0, 0]),
            time_s=times.time_s[0],
            tail_s=times.tail_s[0] - updates_s(kinds, used, loop.replicas, loop.cluster),
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
