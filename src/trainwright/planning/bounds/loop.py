"""What any split over v chunks per rank in a loop takes at the least, and what its ranks hold.

Orders in a loop ignore times. Three parts: the exchanges that chunks of a rank leave exposed, what
ranks recompute so that they fit, and the least step that lets the ranks hold all blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, reduce
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from trainwright._native import _core
from trainwright.cluster import Accelerator
from trainwright.execution.best_first import BestFirst
from trainwright.planning.bounds.layers import Blocks
from trainwright.planning.bounds.stages import (
    LayerTimes,
    Sharing,
    StageKinds,
    held_static_bytes,
    slowest_s,
)
from trainwright.plans.configuration import DEFAULT_OVERLAP
from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.profile import StaticKind
from trainwright.step import zero
from trainwright.step.pipeline import PipelineShape, orders_of, peak_shape
from trainwright.step.zero import Replicas

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints


# What the chunks of a rank in a loop exchange with replicas, at the least, by its blocks
# ---------------------------------------------------------------------------------------
# Every chunk gathers and scatters its own state, hidden under its own compute (`step.zero`).
# So what a rank exchanges depends on how its blocks are dealt to its chunks, and the least of all
# ways to deal them is the min-plus convolution of what each chunk exchanges with so many blocks.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankSharing:
    """Of a rank with its least blocks, one more, ...: [E] each.

    What is added to the forward and to the backward of every microbatch, the latter without
    recomputation, under which more of it would hide; and what follows the last microbatch.
    """

    forward_s: Floats
    backward_s: Floats
    tail_s: Floats

    @classmethod
    def none(cls, size: int) -> RankSharing:
        """Nothing."""
        zeros = np.zeros(size)
        return cls(forward_s=zeros, backward_s=zeros, tail_s=zeros)


def rank_sharing(
    kinds: StageKinds,
    replicas: Replicas,
    chunks_of_rank: list[list[Ints]],
    *,
    most: int,
    group: int,
) -> tuple[RankSharing, ...]:
    """The least of every rank, whose chunks are listed as the kinds they may be, [E, O] each.

    With each number of blocks, from its least on, a chunk may be one of O kinds. No rank has more
    than `most` blocks beyond the least of its chunks, each of which `group` microbatches pass in
    turn.
    """
    exchanged = Exchanged.of(kinds, replicas, group=group)
    made: dict[tuple[tuple[tuple[int, ...], bytes], ...], RankSharing] = {}
    found = []
    for chunks in chunks_of_rank:
        key = tuple((own.shape, own.tobytes()) for own in chunks)
        if key not in made:
            before = (None, *chunks)
            least = zip(*map(exchanged.least_s, chunks, before), strict=True)
            forward, backward, tail = (_dealt_least(list(each), most) for each in least)
            made[key] = RankSharing(forward_s=forward, backward_s=backward, tail_s=tail)
        found.append(made[key])
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchanged:
    """Of a chunk by kind [K]: what is added to forward and backward, and follows the last of these.

    What is exchanged once a step hides under `hiding` microbatches of the chunk before it, too.
    """

    kinds: StageKinds
    sharing: Sharing
    forward_s: Floats
    backward_s: Floats
    slowest_s: Floats
    hiding: float
    _tails: dict[tuple[float, float], Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, kinds: StageKinds, replicas: Replicas, *, group: int) -> Exchanged:
        """Of chunks that `group` microbatches pass in turn."""
        sharing = Sharing.of(kinds, replicas)
        added = sharing.exposed(kinds.forward_s, kinds.counts @ LayerTimes.of(kinds).total_s)
        return cls(
            kinds=kinds,
            sharing=sharing,
            forward_s=added.forward_s,
            backward_s=added.backward_s,
            slowest_s=slowest_s(kinds),
            hiding=float(zero.group_hiding(replicas.zero_stage, group)) - 1.0,
        )

    def least_s(self, own: Ints, before: Ints | None) -> tuple[Floats, Floats, Floats]:
        """Of all three the least, [E], of a chunk of the kinds `own` [E, O] behind others."""
        forward_s, backward_s, tail_s = (
            each[own].min(axis=1) for each in (self.forward_s, self.backward_s, self.tail_s(before))
        )
        return forward_s, backward_s, tail_s

    def tails_s(self, own: Ints, before: Ints | None, *, size: int) -> Floats:
        """The least of the last, [size, size], by the row of `before` and by that of `own` [E, O].

        Infinite where there is no such row.
        """
        found = np.full((size, size), np.inf)
        rows: Sequence[Ints | None] = (None,) * size if before is None else tuple(before[:size])
        for row, kinds in enumerate(rows):
            tail_s = self.tail_s(kinds)[own[:size]].min(axis=1)
            found[row, : len(tail_s)] = tail_s
        return found

    def tail_s(self, before: Ints | None) -> Floats:
        """What follows the last microbatch, behind a chunk of one of the kinds `before`, if any."""
        forward_s, most = self.kinds.forward_s, (0.0, 0.0)
        if before is not None and self.hiding:
            backward_s = np.maximum(self.slowest_s - forward_s, 0.0)[before]
            most = float(forward_s[before].max()), float(backward_s.max())
        if most not in self._tails:
            forward_s = forward_s + self.hiding * most[0]
            time_s = self.slowest_s + self.hiding * (most[0] + most[1])
            self._tails[most] = self.sharing.exposed(forward_s, time_s).last_s
        return self._tails[most]


class KindsByBlocks(NamedTuple):
    """Stages by how many blocks of one class they have, fewest first."""

    blocks: Ints
    kinds: Ints

    def with_blocks(self, least: int, most: int) -> Ints:
        """Which a stage of each number of blocks may be, [E, O]; any, where there is none such."""
        counts = np.arange(least, most + 1)
        begin, end = (np.searchsorted(self.blocks, counts, side) for side in ("left", "right"))
        begin, end = np.where(begin < end, (begin, end), [[0], [len(self.blocks)]])
        ways = np.arange(int((end - begin).max()))
        found: Ints = self.kinds[np.minimum(begin[:, np.newaxis] + ways, end[:, np.newaxis] - 1)]
        return found


@lru_cache(maxsize=64)
def kinds_by_blocks(
    kinds: StageKinds, first: int, after: int, main: int
) -> tuple[KindsByBlocks, KindsByBlocks, KindsByBlocks]:
    """Of the first stage, of those between, and of the last, with blocks `first` to `after`."""
    begin, end = np.triu_indices(after - first + 1, 1)
    every = (
        kinds.kind_of[0, max(first, 1) : after + 1],
        kinds.kind_of[first + begin, first + end],
        kinds.kind_of[first : min(after, kinds.num_layers - 1) + 1, kinds.num_layers],
    )
    found = []
    for own in map(np.unique, every):
        blocks = kinds.counts[own, main]
        order = np.argsort(blocks, kind="stable")
        found.append(KindsByBlocks(blocks[order], own[order]))
    return (found[0], found[1], found[2])


def _dealt_least(chunks: list[Floats], most: int) -> Floats:
    """The least sum over chunks, by all extra blocks together."""
    if not any(chunk.any() for chunk in chunks):
        return np.zeros(min(most + 1, 1 + sum(len(chunk) - 1 for chunk in chunks)))
    alike: dict[bytes, list[Floats]] = {}
    for chunk in chunks:
        alike.setdefault(chunk.tobytes(), []).append(chunk)
    each = (_dealt_to_alike(own[0], len(own), most) for own in alike.values())
    return reduce(lambda a, b: _convolved(a, b, most + 1), each)


def _dealt_to_alike(chunk: Floats, count: int, most: int) -> Floats:
    """Of so many chunks that are alike, in as few steps as there are digits in their number."""
    if count == 1:
        return chunk
    half = _dealt_to_alike(chunk, count // 2, most)
    both = _convolved(half, half, most + 1)
    return _convolved(both, chunk, most + 1) if count % 2 else both


def _convolved(a: Floats, b: Floats, size: int) -> Floats:
    least = np.full(min(size, len(a) + len(b) - 1), np.inf)
    for extra, own in enumerate(a[:size].tolist()):
        left = least[extra : extra + len(b)]
        np.minimum(left, own + b[: len(left)], out=left)
    return least


# Blocks of a rank over its chunks
# ---------------------------------


def spread_order(count: int) -> Ints:
    """0 to `count` - 1 with bits reversed: 0, then the middle, the quarters, the eighths, ...

    Whatever number of them is taken from the front lies about evenly over all.
    """
    order = np.zeros(1, dtype=np.int64)
    while len(order) < count:
        order = np.concatenate((2 * order, 2 * order + 1))
    return order[order < count]


def dealt_evenly(count: int, least: Ints, most: Ints, order: Ints) -> Ints:
    """Blocks of the chunks of one rank, [v], as alike as may be; more of them come in `order`."""
    blocks = least.copy()
    for _ in range(count - int(least.sum())):
        open_chunks = [chunk for chunk in order.tolist() if blocks[chunk] < most[chunk]]
        blocks[min(open_chunks, key=lambda chunk: int(blocks[chunk]))] += 1
    return blocks


# What chunks in a loop recompute so that every rank fits, switched where it frees most per second
# ------------------------------------------------------------------------------------------------
# A rank starts with the fastest option of every layer. While its fullest instant does not fit,
# layers of one chunk and one option switch to another: those that free most bytes there per second
# that they take longer, so that chunks with many microbatches waiting go first.

LOOP_HAIR: Final = 1e-9  # of a step, and of the room of a device


class _Switches(NamedTuple):
    """Rows that layers may leave for others, the bytes freed and seconds added per microbatch."""

    rows: Ints
    others: Ints
    freed_bytes: Floats
    longer_s: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class LoopMemory:
    """Of each rank, at the instants that can be its fullest: microbatches of each chunk, [N, v].

    All run on the `device`. `held` are kept, and the transients of those `running` lie beside them.
    """

    kinds: StageKinds
    replicas: Replicas
    device: Accelerator
    held: list[Floats]
    running: list[Floats]
    # A move of one block leaves most chunks and ranks as they were. Copies begin anew.
    fastest_of_kind: dict[int, Ints] = field(default_factory=dict, init=False)
    choice_of_rank: dict[tuple[int, tuple[int, ...]], list[Ints] | None] = field(
        default_factory=dict, init=False
    )

    def recomputed(
        self, lengths: Ints, of_rank: Sequence[LoopMemory] = ()
    ) -> tuple[tuple[int, ...], ...] | None:
        """Layers by row for every stage, [S, R], so that all ranks fit; None if some cannot.

        Unlike ranks have memories of their own.
        """
        chosen: dict[int, Ints] = {}
        cuts = np.concatenate(([0], np.cumsum(lengths)))
        memories = of_rank or (self,) * len(self.held)
        for rank, memory in enumerate(memories):
            stages = list(range(rank, len(lengths), len(self.held)))
            own = memory._choice_of(rank, [(cuts[stage], cuts[stage + 1]) for stage in stages])
            if own is None:
                return None
            chosen.update(zip(stages, own, strict=True))
        return tuple(tuple(chosen[stage].tolist()) for stage in range(len(lengths)))

    def _choice_of(self, rank: int, stages: Sequence[tuple[int, int]]) -> list[Ints] | None:
        kinds = tuple(int(self.kinds.kind_of[first, after]) for first, after in stages)
        key = (rank, kinds)
        if key not in self.choice_of_rank:
            self.choice_of_rank[key] = self._rank_choice(rank, kinds)
        return self.choice_of_rank[key]

    def _rank_choice(self, rank: int, kind_of: tuple[int, ...]) -> list[Ints] | None:
        costs = self.kinds.profile.costs
        held, running = self.held[rank], self.running[rank]
        choice = [self._fastest(kind) for kind in kind_of]
        room = self.room_bytes(kind_of)
        kept = np.array([own @ costs.saved_bytes for own in choice])
        transient = np.array([costs.transient_bytes[own > 0].max() for own in choice])
        while True:
            needed = held @ kept + running @ transient
            fullest = int(needed.argmax())
            if needed[fullest] <= room:
                return choice
            changed = self._recompute_more(choice, held[fullest], float(needed[fullest]) - room)
            if changed is None:
                return None
            own = choice[changed]
            kept[changed] = own @ costs.saved_bytes
            transient[changed] = costs.transient_bytes[own > 0].max()

    def room_bytes(self, kind_of: Sequence[int], *, surely: bool = True) -> float:
        """What the state of a rank with chunks of these kinds leaves of a device.

        What is in it fits `surely`, or may miss the device by what sums round.
        """
        own = list(kind_of)
        static = held_static_bytes(self.kinds, self.replicas, np.array(own)).sum()
        layers = self.replicas.gathered_layers
        whole = self.kinds.static_bytes[own][:, :, StaticKind.WEIGHT].sum()
        static += zero.gathered_bytes(layers, self.kinds.weight_bytes[own].max(), whole)
        usable_bytes = self.device.most_usable_bytes
        if surely:
            usable_bytes = self.device.usable_bytes * (1 - LOOP_HAIR)
        return usable_bytes - float(static)

    def _fastest(self, kind: int) -> Ints:
        if kind in self.fastest_of_kind:
            return self.fastest_of_kind[kind]
        costs = self.kinds.profile.costs
        own, total_s = np.zeros(costs.num_rows, dtype=np.int64), costs.by_phase.total_s
        for layer_class, count in enumerate(self.kinds.counts[kind].tolist()):
            rows = list(costs.rows_of(layer_class))
            own[rows[int(np.argmin(total_s[rows]))]] = count
        first = self.kinds.first
        if first is not None and (
            present := [c for c in first.classes if self.kinds.counts[kind, c]]
        ):
            rows = list(costs.rows_of(present[0]))
            own[rows[int(np.argmin(total_s[rows]))]] -= 1
            own[next(row for row in first.rows if row in rows)] += 1
        self.fastest_of_kind[kind] = own
        return own

    def _recompute_more(self, choice: list[Ints], held: Floats, over_bytes: float) -> int | None:
        """Switches layers of a chunk where that frees most bytes of the fullest instant per second.

        As many as that instant asks for, so that few steps suffice. Returns the chunk, None where
        nothing is left to switch; the first of equals is taken.
        """
        switches = self.switches
        best, found = 0.0, None
        for chunk, own in enumerate(choice):
            freed = float(held[chunk]) * switches.freed_bytes
            rates = np.where(own[switches.rows] > 0, freed / switches.longer_s, 0.0)
            if len(rates) and rates[at := int(rates.argmax())] > best:
                best, found = float(rates[at]), (chunk, at, float(freed[at]))
        if found is None:
            return None
        chunk, at, each = found
        row, other = int(switches.rows[at]), int(switches.others[at])
        count = min(int(choice[chunk][row]), max(1, math.ceil(over_bytes / each)))
        choice[chunk] = choice[chunk].copy()
        choice[chunk][row] -= count
        choice[chunk][other] += count
        return chunk

    @cached_property
    def switches(self) -> _Switches:
        """Of every row of the cost table to those of its class that keep less."""
        costs = self.kinds.profile.costs
        total_s, saved = costs.duration_s, costs.saved_bytes
        rows = range(costs.num_rows)
        class_of = [int(c) for c in np.searchsorted(costs.class_offsets, rows, side="right") - 1]
        found = [
            (row, other)
            for row in rows
            for other in costs.rows_of(class_of[row])
            if saved[other] < saved[row]
        ]
        row, other = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return _Switches(
            rows=row,
            others=other,
            freed_bytes=saved[row] - saved[other],
            longer_s=np.maximum(total_s[other] - total_s[row], 1e-12),
        )


# A bound on all splits over v chunks per rank in a loop, whose orders ignore times
# ---------------------------------------------------------------------------------
# Blocks of one class make up most of a model. Of n of them over S = p·v stages every stage has one
# or more, but for the first and the last, which have other layers. A rank with k blocks then takes
# at least
#
#     m·P_r(k) + the longest of four idle times
#
# P_r(k) is the work of k blocks, recomputing what memory asks for at its fullest instants: a
# fractional knapsack over its chunks, extra blocks where fewest microbatches wait. Idle times
# follow from paths through the order's graph, with all that other stages run at its least:
#
#     forwards that lead to the rank's first action, backwards that follow its last one
#     forwards to the loss and back to its first backward, less its own forwards before it
#     its last forward to the loss and all the way back, less its own backwards after it
#     both of these ends
#
# The least step that lets the ranks hold n blocks between them is a bound. Where blocks are of
# several classes, the most frequent counts, and of stages with so many of it those that exchange
# least.

_F, _B = ActionKind.F, ActionKind.B


class RankEnds(NamedTuple):
    """Own forwards of a rank before its first backward, and backwards after its last forward.

    Both are counts by chunk [v]. The stages are those of its first action, first backward, last
    forward and last action.
    """

    warm: Floats
    drain: Floats
    begins: int
    turns: int
    leaves: int
    ends: int
    waits_twice: bool


@lru_cache(maxsize=1024)
def rank_ends(shape: PipelineShape) -> tuple[RankEnds, ...]:
    """Of a family's own orders, backwards fused; the same for any number of microbatches."""
    schedule = orders_of(peak_shape(shape))
    return tuple(_rank_ends(schedule, rank) for rank in range(shape.num_ranks))


def _rank_ends(schedule: Schedule, rank: int) -> RankEnds:
    rows = schedule.actions[schedule.rows_of(rank)]
    kinds, stages = rows[:, 0], rows[:, 1]
    first_backward = int(np.argmax(kinds == _B))
    last_forward = len(kinds) - 1 - int(np.argmax(kinds[::-1] == _F))
    p, v = schedule.num_ranks, schedule.placement.num_stages // schedule.num_ranks
    warm, drain = stages[:first_backward], stages[last_forward + 1 :]
    return RankEnds(
        warm=np.bincount(warm // p, minlength=v).astype(np.float64),
        drain=np.bincount(drain // p, minlength=v).astype(np.float64),
        begins=int(stages[0]),
        turns=int(stages[first_backward]),
        leaves=int(stages[last_forward]),
        ends=int(stages[-1]),
        waits_twice=first_backward < last_forward,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopChain:
    """Blocks between a head and a tail, laid over S stages in a loop of p ranks.

    What lies before the blocks is in the first stage, what follows them in the last: `edges` of
    both. `least` [S] and `most` [S] blocks are in each stage. `forward_all_s` and
    `backward_all_s` are of one microbatch through all layers, `optimizer_s` of one block.
    `beside_bytes` lie on every rank beside its layers' state; `sharing` is of each rank with its
    least blocks, one more, ..., and hides under the share `under_backward` of what they recompute.
    Where stages recompute their first block in any way to run them, that takes `again_s` [S] longer
    and spares `spared_bytes` [S] of a microbatch.
    """

    blocks: Blocks
    num_ranks: int
    num_microbatches: int
    least: Ints
    most: Ints
    edges: _core.LoopEdges
    optimizer_s: float
    forward_all_s: float
    backward_all_s: float
    transfer_s: Floats
    usable_bytes: float
    beside_bytes: float
    sharing: tuple[RankSharing, ...]
    again_s: Floats
    spared_bytes: Floats
    under_backward: float = DEFAULT_OVERLAP.gradients

    @property
    def fewest(self) -> list[int]:
        """Blocks of each rank at the least."""
        of_rank: list[int] = self.least.reshape(-1, self.num_ranks).sum(axis=0).tolist()
        return of_rank

    @property
    def stages_s(self) -> tuple[Floats, Floats]:
        """Forward and backward of one microbatch, each stage with its least blocks, [S] each."""
        block_s = np.array([self.blocks.forward_s, self.blocks.time_s[0] - self.blocks.forward_s])
        edges_s = np.stack((self.edges.forward_s, self.edges.time_s - self.edges.forward_s))
        times_s: Floats = block_s[:, np.newaxis] * self.least
        for end in (0, -1):
            times_s[:, end] += edges_s[:, end]
        return times_s[0], times_s[1] + self.again_s

    def hidden_s(self, recomputed_s: Floats) -> Floats:
        """What of an exchange hides under so many seconds of recomputation."""
        found: Floats = self.under_backward * recomputed_s
        return found

    def room_bytes(self, instants: list[Floats], running: list[Floats]) -> list[Floats]:
        """What is left for blocks at every instant of each rank, [N] each: `instants` [N, v] count
        what is held, `running` what runs. Of blocks that recompute in any way the others have room.
        """
        p, last, found = self.num_ranks, len(self.least) - 1, []
        for rank, (counts, runs) in enumerate(zip(instants, running, strict=True)):
            left = np.full(len(counts), self.usable_bytes * (1 + LOOP_HAIR) - self.beside_bytes)
            for end, stage in ((0, 0), (1, last)):
                if stage % p == rank:
                    left -= self.edges.static_bytes[end]
                    left -= counts[:, stage // p] * self.edges.kept_bytes[end]
            busy = ((runs > 0) & (self.least[rank::p] > 0)).any(axis=1)
            left += counts @ self.spared_bytes[rank::p]
            found.append(left - busy * self.blocks.transient_bytes)
        return found

    def shares_held(self, instants: list[Floats], running: list[Floats]) -> tuple[Floats, Floats]:
        """Of all these what a block of each stage takes, by its ways [I, S·K], and what there is.

        Both are shares of a device.
        """
        blocks, p, held = self.blocks, self.num_ranks, []
        for rank, counts in enumerate(instants):
            taken = np.zeros((len(counts), len(self.least), len(blocks.time_s)))
            taken[:, rank::p] = counts[:, :, np.newaxis] * blocks.kept_bytes + blocks.static_bytes
            held.append(taken.reshape(len(counts), -1))
        room = np.concatenate(self.room_bytes(instants, running))
        return np.concatenate(held) / self.usable_bytes, room / self.usable_bytes


def least_step_s(
    chain: LoopChain,
    ends: tuple[RankEnds, ...],
    instants: list[Floats],
    running: list[Floats],
) -> LoopStep:
    """The bound; `instants` [N, v] of each rank count what is held, `running` what runs then."""
    times_s = rank_times_s(chain, ends, instants, running)
    return least_of_times_s(times_s, chain.fewest, chain.blocks.count)


def least_of_times_s(times_s: list[Floats], fewest: list[int], num_blocks: int) -> LoopStep:
    """The least step in which ranks hold so many blocks, from their times by their own."""
    values = np.unique(np.concatenate(times_s))
    values = values[np.isfinite(values)]
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if held_within(times_s, fewest, float(values[middle])) >= num_blocks:
            high = middle
        else:
            low = middle + 1
    if low == len(values):
        return LoopStep(math.inf, ())
    step_s = float(values[low])
    counts = [most_within(own, least, step_s) for own, least in zip(times_s, fewest, strict=True)]
    while sum(counts) > num_blocks:
        spare = [
            (float(own[count - least]), rank)
            for rank, (own, least, count) in enumerate(zip(times_s, fewest, counts, strict=True))
            if count > least
        ]
        if not spare:
            return LoopStep(math.inf, ())
        counts[max(spare)[1]] -= 1
    return LoopStep(step_s, tuple(counts))


class LoopStep(NamedTuple):
    """The bound, and blocks of each rank that may reach it."""

    step_s: float
    blocks_of_rank: tuple[int, ...]


def held_within(times_s: list[Floats], fewest: list[int], step_s: float) -> int:
    """Blocks that all ranks can hold within a step; -1 where one rank cannot hold its least."""
    counts = [most_within(own, least, step_s) for own, least in zip(times_s, fewest, strict=True)]
    return -1 if min(counts) < 0 else sum(counts)


def most_within(times_s: Floats, least: int, step_s: float) -> int:
    """The most blocks of a rank whose time is within the step, -1 where even `least` take longer.

    `times_s` are its times with `least` blocks, one more, ...
    """
    within = np.flatnonzero(times_s <= step_s)
    return least + int(within[-1]) if len(within) else -1


def rank_times_s(
    chain: LoopChain,
    ends: tuple[RankEnds, ...],
    instants: list[Floats],
    running: list[Floats],
    *,
    stages_s: tuple[Floats, Floats] | None = None,
) -> list[Floats]:
    """The bound from each rank alone with its least blocks, one more, ...; see `least_step_s`.

    `stages_s` are `chain.stages_s` where ranks are of unlike chains.
    """
    blocks, sharing = chain.blocks, chain.sharing
    forward_s, backward_s = chain.stages_s if stages_s is None else stages_s
    offset = np.cumsum([0, *(len(own.tail_s) for own in sharing)])
    loop = _core.LoopRanks(
        num_ranks=chain.num_ranks,
        num_microbatches=chain.num_microbatches,
        forward_all_s=chain.forward_all_s,
        backward_all_s=chain.backward_all_s,
        forward_s=forward_s,
        backward_s=backward_s,
        usable_bytes=chain.usable_bytes,
        gathered_bytes=chain.beside_bytes,
        least=chain.least,
        most=chain.most,
        again_s=chain.again_s,
        spared_bytes=chain.spared_bytes,
        transfer_s=chain.transfer_s,
        blocks=_core.LoopBlocks(
            forward_s=blocks.forward_s,
            static_bytes=blocks.static_bytes,
            optimizer_s=chain.optimizer_s,
            transient_bytes=blocks.transient_bytes,
            time_s=blocks.time_s,
            kept_bytes=blocks.kept_bytes,
        ),
        edges=chain.edges,
        sharing=_core.LoopSharing(
            under_backward=chain.under_backward,
            offset=offset,
            forward_s=np.concatenate([own.forward_s for own in sharing]),
            backward_s=np.concatenate([own.backward_s for own in sharing]),
            tail_s=np.concatenate([own.tail_s for own in sharing]),
        ),
        order=_core.LoopOrder(
            instant_offset=np.cumsum([0, *map(len, instants)]),
            held=np.concatenate(instants),
            running=np.concatenate(running),
            warm=np.stack([own.warm for own in ends]),
            drain=np.stack([own.drain for own in ends]),
            turns=np.array([own[2:6] for own in ends], dtype=np.int64),
            waits_twice=np.array([own.waits_twice for own in ends], dtype=np.int64),
        ),
    )
    return np.split(_core.loop_rank_times_s(loop), offset[1:-1])


def unlike_times_s(
    chains: Sequence[LoopChain],
    kinds: Sequence[StageKinds],
    ends: tuple[RankEnds, ...],
    instants: list[Floats],
    running: list[Floats],
) -> list[Floats]:
    """The same where ranks are of several kinds, whose `chains` [p] and `kinds` [p] are their own.

    Other stages take what they do on their ranks, and a microbatch that passes all layers what each
    takes where it is fastest.
    """
    p, places = len(chains), {id(own): own for own in chains}
    numbers = range(len(chains[0].least))
    of_place = {key: own.stages_s for key, own in places.items()}
    keys = [id(chains[stage % p]) for stage in numbers]
    forward_s, backward_s = (
        np.array([of_place[key][way][stage] for stage, key in enumerate(keys)]) for way in (0, 1)
    )
    layers = [LayerTimes.of(own) for own in {id(own): own for own in kinds}.values()]
    classes = [layer.layer_class for layer in kinds[0].profile.structure.layers]
    there_s = np.min([own.forward_s for own in layers], axis=0)
    back_s = np.min([own.total_s - own.forward_s for own in layers], axis=0)
    sharing = tuple(own.sharing[rank] for rank, own in enumerate(chains))
    times_s = {}
    for key, own in places.items():
        chain = replace(
            own,
            sharing=sharing,
            forward_all_s=float(there_s[classes].sum()),
            backward_all_s=float(back_s[classes].sum()),
        )
        stages_s = forward_s, backward_s
        times_s[key] = rank_times_s(chain, ends, instants, running, stages_s=stages_s)
    return [times_s[id(own)][rank] for rank, own in enumerate(chains)]


# Blocks that ranks and stages hold whole, by a linear program over all paths of an order
# ---------------------------------------------------------------------------------------
# Ranks and stages hold whole blocks. Where the least has a rank hold a part, or a stage if all
# ranks are whole, either it holds no more than the whole number below or no less than the one
# above: two programs more, and the least of both counts (branch and bound, the least first).

NEAR: Final = 1e-4  # of the step: how much longer the longest path may be than its bound
_NEARER: Final = 1e-11  # where all blocks are whole, which may be the best split
WHOLE: Final = 0.02  # blocks: parts that are smaller may be rounding
# Programs of one candidate of few rows (stages times ways). One takes time as their cube, so that
# larger ones are fewer: 0.2 s for a candidate of 132 (Llama 3 70B on 64 devices).
_MOST_PROGRAMS: Final = 32
_LEAST_PROGRAMS: Final = 4
_FEW_ROWS: Final = 64


class PathsStep(NamedTuple):
    """The bound of all paths on a pipeline, and blocks of stages, in parts, that may reach it."""

    step_s: float
    blocks: Floats | None = None
    found: _core.LeastOfOrder | None = None
    is_near: bool = False


class Count(NamedTuple):
    """At most or at least so many blocks of rank `place`, or beyond p of stage `place` - p."""

    place: int
    blocks: int
    is_most: bool


Counts: TypeAlias = tuple[Count, ...]


def _halves(counts: Counts, blocks: Floats, num_ranks: int) -> tuple[Counts, Counts] | None:
    """Without the part that some rank or stage has; None where all blocks are whole."""
    of_rank = blocks.reshape(-1, num_ranks).sum(axis=0)
    for held, begin in ((of_rank, 0), (blocks, num_ranks)):
        part = np.abs(held - np.round(held))
        largest = int(part.argmax())
        if part[largest] >= WHOLE:
            below, place = int(held[largest]), begin + largest
            return (
                (*counts, Count(place, below, True)),
                (*counts, Count(place, below + 1, False)),
            )
    return None


def least_of_program(
    program: PathsProgram, first: Counts, *, limit_s: float, effort: float
) -> PathsStep:
    """Branch and bound below the first counts, the least first."""
    p, number = program.num_ranks, 0
    found = program.solved(first)
    waiting: BestFirst[tuple[PathsStep, Counts]] = BestFirst()
    waiting.add(found.step_s, (found, first))
    share = min(1.0, (_FEW_ROWS / program.held.shape[1]) ** 3)
    most_programs = int(effort * max(_LEAST_PROGRAMS, share * _MOST_PROGRAMS))
    while waiting.least < limit_s and number < most_programs:
        step_s, (found, counts) = waiting.least, waiting.first
        halves = None if found.blocks is None else _halves(counts, found.blocks, p)
        if halves is None and not found.is_near:
            own = program.solved(counts, found.found, near=_NEARER)
            waiting.sharpen_first(max(step_s, own.step_s), (own, counts))
            continue
        if halves is None:
            break
        waiting.take()
        for half in halves:
            number += 1
            own = program.solved(half, found.found)
            least_s = max(step_s, own.step_s)
            waiting.add(least_s, (own._replace(step_s=least_s), half))
    return waiting.first[0]


class PathsProgram(NamedTuple):
    """The linear program of a loop."""

    splits: _core.OrderSplits
    orders: _core.Orders
    held: Floats
    room: Floats
    num_ranks: int
    num_blocks: int

    def solved(
        self,
        counts: Counts = (),
        start: _core.LeastOfOrder | None = None,
        *,
        near: float = NEAR,
    ) -> PathsStep:
        """The least step of blocks that are dealt so; a `start` had the first of these counts."""
        splits, p, size = self.splits.replace(near=near), self.num_ranks, self.held.shape[1]
        ways = splits.num_ways
        if counts:
            # Rows of memory and rows of counts look alike; counts are shares of all blocks.
            stages = np.repeat(np.arange(size // ways), ways)
            place = np.array([each.place for each in counts])[:, np.newaxis]
            own = np.where(place < p, stages % p == place, stages == place - p) / self.num_blocks
            sign = np.array([1.0 if each.is_most else -1.0 for each in counts])
            most = sign * [each.blocks for each in counts]
            splits = splits.replace(
                block_held=np.concatenate((self.held, sign[:, np.newaxis] * own)),
                room=np.concatenate((self.room, (most + LOOP_HAIR) / self.num_blocks)),
            )
        found = _core.least_of_order(splits, self.orders, start)
        blocks = found.blocks.reshape(-1, ways).sum(axis=1) if len(found.blocks) else None
        return PathsStep(found.step_s, blocks, found, near < NEAR)

    @classmethod
    def joined(cls, programs: Sequence[PathsProgram], instants: Sequence[int]) -> PathsProgram:
        """Of unlike ranks, each as in the program where all are as itself, [p].

        So many `instants` [p] limit each, none where no memory does.
        """
        p, num_stages = len(programs), len(programs[0].splits.least)
        ways = max(own.splits.num_ways for own in programs)

        def wide(own: PathsProgram, table: Floats) -> Floats:
            """A table of blocks, [..., S, K], with their leanest way again where one has fewer."""
            spare = [(0, 0)] * (table.ndim - 1) + [(0, ways - own.splits.num_ways)]
            return np.pad(table, spare, mode="edge")

        def by_stage(name: str) -> Floats:
            tables = {id(own): getattr(own.splits, name) for own in programs}
            if name.startswith("block_"):
                tables = {id(own): wide(own, tables[id(own)]) for own in programs}
            rows = [tables[id(programs[stage % p])][stage] for stage in range(num_stages)]
            return np.ascontiguousarray(np.stack(rows))

        ends = np.cumsum([0, *instants])
        spans = [slice(*ends[rank : rank + 2]) for rank in range(p)]
        size = num_stages * ways
        held = [
            wide(own, own.held[span].reshape(-1, num_stages, own.splits.num_ways)).reshape(-1, size)
            for own, span in zip(programs, spans, strict=True)
        ]
        room = [own.room[span] for own, span in zip(programs, spans, strict=True)]
        first = programs[0]
        limits = np.concatenate(held), np.concatenate(room)
        splits = first.splits.replace(
            num_ways=ways,
            forward_s=by_stage("forward_s"),
            backward_s=by_stage("backward_s"),
            block_forward_s=by_stage("block_forward_s"),
            block_backward_s=by_stage("block_backward_s"),
            after_s=np.array([own.splits.after_s[rank] for rank, own in enumerate(programs)]),
            block_after_s=by_stage("block_after_s"),
            block_held=limits[0],
            room=limits[1],
        )
        return cls(splits, first.orders, *limits, p, first.num_blocks)
