"""A bound on nearly even splits over v chunks per rank in a loop, whose orders ignore times.

Blocks of one class make up most of a model. With n of them over S = p·v stages, q = ⌊n / S⌋, a
nearly even split gives every stage q or q + 1 blocks, the first and the last any number up to that.
A rank with k blocks then takes at least

    m·P_r(k) + the longest of four idle times

P_r(k) is the work of k blocks, recomputing what memory asks for at its fullest instants: a
fractional knapsack over its chunks, extra blocks where fewest microbatches wait. Idle times follow
from paths through the order's graph, with all that other stages run at its least:

    forwards that lead to the rank's first action, backwards that follow its last one
    forwards to the loss and back to its first backward, less its own forwards before it
    its last forward to the loss and all the way back, less its own backwards after it
    both of these ends

The least step that lets the ranks hold n blocks between them is a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright._native import _core
from trainwright.plan.overlap import DEFAULT_OVERLAP
from trainwright.plan.schedule import ActionKind
from trainwright.planning.order_facts import orders_of
from trainwright.pricing.pipeline_run import peak_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.schedule import Schedule
    from trainwright.planning.loop_sharing import RankSharing
    from trainwright.pricing.pipeline_run import PipelineShape

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

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


@lru_cache(maxsize=64)
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
class Blocks:
    """The class that most layers have: how many, and what its options cost per microbatch.

    Options are those on the lower hull of bytes and seconds, fewest bytes last: `time_s` [N]
    ascends, `kept_bytes` [N] descends. `forward_s` and `transient_bytes` are the least of all.
    """

    count: int
    forward_s: float
    time_s: Floats
    kept_bytes: Floats
    static_bytes: float
    transient_bytes: float = 0.0

    @classmethod
    def of(
        cls,
        *,
        count: int,
        forward_s: float,
        time_s: Floats,
        kept_bytes: Floats,
        static: float,
        transient: float = 0.0,
    ) -> Blocks:
        """From all options of the class."""
        hull: list[int] = []
        for option in np.lexsort((kept_bytes, time_s)).tolist():
            if hull and kept_bytes[option] >= kept_bytes[hull[-1]]:
                continue
            while len(hull) > 1 and _slope(time_s, kept_bytes, hull[-2], option) >= _slope(
                time_s, kept_bytes, hull[-2], hull[-1]
            ):
                hull.pop()
            hull.append(option)
        return cls(
            count=count,
            forward_s=forward_s,
            time_s=time_s[hull],
            kept_bytes=kept_bytes[hull],
            static_bytes=static,
            transient_bytes=transient,
        )


def _slope(time_s: Floats, kept_bytes: Floats, a: int, b: int) -> float:
    """Bytes that option b frees per second that it takes longer than a."""
    freed = float(kept_bytes[a] - kept_bytes[b])
    return freed / max(float(time_s[b] - time_s[a]), 1e-300)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopChain:
    """Blocks between a head and a tail, laid over S stages in a loop of p ranks.

    What lies before the blocks is in the first stage, what follows them in the last: `edge_*` [2]
    of both. `least` [S] and `most` [S] blocks are in each stage. `forward_all_s` and
    `backward_all_s` are of one microbatch through all layers, `optimizer_s` of one block.
    `gathered_bytes` lie beside on every rank; `sharing` is of each rank with its least blocks, one
    more, ..., and hides under the share `under_backward` of what they recompute.
    """

    blocks: Blocks
    num_ranks: int
    num_microbatches: int
    least: Ints
    most: Ints
    edge_forward_s: Floats
    edge_time_s: Floats
    edge_kept_bytes: Floats
    edge_static_bytes: Floats
    edge_optimizer_s: Floats
    optimizer_s: float
    forward_all_s: float
    backward_all_s: float
    transfer_s: Floats
    usable_bytes: float
    gathered_bytes: float
    sharing: tuple[RankSharing, ...]
    under_backward: float = DEFAULT_OVERLAP.gradients

    def stages_of(self, rank: int) -> slice:
        """Of one rank, in order."""
        return slice(rank, None, self.num_ranks)


def least_step_s(
    chain: LoopChain,
    ends: tuple[RankEnds, ...],
    instants: list[Floats],
    running: list[Floats],
) -> LoopStep:
    """The bound; `instants` [N, v] of each rank count what is held, `running` what runs then."""
    times_s = rank_times_s(chain, ends, instants, running)
    fewest = [int(chain.least[chain.stages_of(rank)].sum()) for rank in range(chain.num_ranks)]
    num_blocks = chain.blocks.count
    values = np.unique(np.concatenate(times_s))
    values = values[np.isfinite(values)]
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if _held_within(times_s, fewest, float(values[middle])) >= num_blocks:
            high = middle
        else:
            low = middle + 1
    if low == len(values):
        return LoopStep(math.inf, ())
    step_s = float(values[low])
    counts = [_most_within(own, least, step_s) for own, least in zip(times_s, fewest, strict=True)]
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


def _held_within(times_s: list[Floats], fewest: list[int], step_s: float) -> int:
    """Blocks that all ranks can hold within a step; -1 where one rank cannot hold its least."""
    counts = [_most_within(own, least, step_s) for own, least in zip(times_s, fewest, strict=True)]
    return -1 if min(counts) < 0 else sum(counts)


def _most_within(times_s: Floats, least: int, step_s: float) -> int:
    within = np.flatnonzero(times_s <= step_s)
    return least + int(within[-1]) if len(within) else -1


def rank_times_s(
    chain: LoopChain,
    ends: tuple[RankEnds, ...],
    instants: list[Floats],
    running: list[Floats],
) -> list[Floats]:
    """The bound from each rank alone with its least blocks, one more, ...; see `least_step_s`."""
    blocks, p = chain.blocks, chain.num_ranks
    offset = np.cumsum([0, *(len(own.tail_s) for own in chain.sharing)])
    times_s = _core.loop_rank_times_s(
        num_ranks=p,
        num_microbatches=chain.num_microbatches,
        block_forward_s=blocks.forward_s,
        block_static_bytes=blocks.static_bytes,
        block_optimizer_s=chain.optimizer_s,
        forward_all_s=chain.forward_all_s,
        backward_all_s=chain.backward_all_s,
        usable_bytes=chain.usable_bytes,
        gathered_bytes=chain.gathered_bytes,
        transient_bytes=blocks.transient_bytes,
        under_backward=chain.under_backward,
        option_time_s=blocks.time_s,
        option_kept_bytes=blocks.kept_bytes,
        least=chain.least,
        most=chain.most,
        edge_forward_s=chain.edge_forward_s,
        edge_time_s=chain.edge_time_s,
        edge_kept_bytes=chain.edge_kept_bytes,
        edge_static_bytes=chain.edge_static_bytes,
        edge_optimizer_s=chain.edge_optimizer_s,
        transfer_s=chain.transfer_s,
        extra_offset=offset,
        shared_forward_s=np.concatenate([own.forward_s for own in chain.sharing]),
        shared_backward_s=np.concatenate([own.backward_s for own in chain.sharing]),
        shared_tail_s=np.concatenate([own.tail_s for own in chain.sharing]),
        instant_offset=np.cumsum([0, *map(len, instants)]),
        held=np.concatenate(instants),
        running=np.concatenate(running),
        warm=np.stack([own.warm for own in ends]),
        drain=np.stack([own.drain for own in ends]),
        turns=np.array([own[2:6] for own in ends], dtype=np.int64),
        waits_twice=np.array([own.waits_twice for own in ends], dtype=np.int64),
    )
    return np.split(times_s, offset[1:-1])
