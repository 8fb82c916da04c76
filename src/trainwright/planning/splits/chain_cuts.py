"""All cuts of a chain into one stage per rank whose bounds are below a limit.

The bound is that of `chain`. Its recurrence runs from the last rank backwards; here the first
ranks are cut first, and those behind them count at the least of all their cuts. So each rank more
that is cut raises the bound, and what reaches the limit is dropped with all that begins like it.
O(p²) for each beginning that is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.planning.splits.chain import (
    Site,
    TiedExchange,
    chain_tables,
    fastest_way,
    fullest_instants,
    transfers_s,
    updates_s,
)
from trainwright.planning.splits.types import Finished, price_below
from trainwright.step.pipeline import PipelineShape, PipelineTimes, quick_ends_s
from trainwright.step.stages import group_replicas

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainwright.arrays import Floats, Ints
    from trainwright.planning.splits.chain import ChainTables, CutsAndRows
    from trainwright.planning.splits.types import Effort, Priced, SplitQuestion


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
    question: SplitQuestion,
    price: Callable[[CutsAndRows], Priced | None],
    effort: Effort,
    *,
    limit_s: float,
) -> Finished | None:
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

    site: Site
    shape: PipelineShape
    tables: ChainTables
    instants: Floats
    update_s: Floats
    tied: TiedExchange
    overhead_s: float
    ways: dict[tuple[int, int], tuple[int, ...] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, question: SplitQuestion, *, limit_s: float) -> _Chain | None:
        """None where no stages below the limit make up the chain."""
        kinds, degrees, cluster = question.kinds, question.degrees, question.cluster
        p = degrees.pipeline
        shape = PipelineShape(
            family=question.family, num_ranks=p, num_microbatches=question.num_microbatches
        )
        replicas = group_replicas(cluster.pool_of(), degrees)
        site = Site(kinds=kinds, cluster=cluster, replicas=replicas)
        transfers = transfers_s(kinds, degrees, cluster)
        if kinds.num_layers < p:
            return None
        tables = chain_tables((site,) * p, transfers, shape, limit_s=limit_s)
        if tables is None:
            return None
        return cls(
            site=site,
            shape=shape,
            tables=tables,
            instants=fullest_instants(shape),
            update_s=updates_s(kinds, tables.used, replicas, cluster),
            tied=TiedExchange.of(question),
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
        phases = self.site.kinds.profile.costs.phases
        assert phases is not None, "an estimate has phases"
        rows = np.array(chosen, dtype=np.float64)
        weight_grad_s = rows @ phases.weight_grad_s
        forward_s, time_s = tables.forward_s[ranks, columns], tables.time_s[ranks, columns]
        times = PipelineTimes(
            forward_s=forward_s,
            input_grad_s=time_s - forward_s - weight_grad_s,
            weight_grad_s=weight_grad_s,
            transfer_s=tables.transfer_s[ranks[:-1], cuts[1:-1]],
            blocking=1 - self.site.kinds.overlap.pipeline,
        )
        update_s = self.update_s[columns]
        exposed_s = tables.tail_s[ranks, columns] - update_s + self.tied.times_s(cuts)
        synced_s = float((quick_ends_s(self.shape, times) + exposed_s).max())
        step_s = synced_s + float(update_s.max()) + self.overhead_s
        return step_s, (tuple(cuts), chosen)

    def _way(self, rank: int, column: int) -> tuple[int, ...] | None:
        if (rank, column) not in self.ways:
            kind = int(self.tables.used[column])
            self.ways[rank, column] = fastest_way(self.site, kind, self.instants[rank])
        return self.ways[rank, column]
