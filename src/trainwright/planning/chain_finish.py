"""All splits of a candidate with one stage per rank that may be faster than a limit.

Ranks share no memory, and a step grows with the time of each stage, so every stage runs the fastest
way that fits: what is left open are the cuts. Those whose bounds are below the limit are simulated;
with the exchange that a rank does not hide, that of tied layers, and the slowest update this is the
step but for rounding. Those that stay below are priced, the shortest first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from trainwright.planning.chain_cuts import cuts_below
from trainwright.planning.chain_split import Site, chain_tables, fastest_way, fullest_instants
from trainwright.planning.finish_effort import Finished, price_below
from trainwright.planning.split_bound import transfers_s, updates_s
from trainwright.planning.tied_exchange import TiedExchange
from trainwright.pricing.pipeline_run import PipelineShape, PipelineTimes, quick_ends_s
from trainwright.pricing.placement import group_replicas

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from trainwright.planning.chain_split import ChainTables
    from trainwright.planning.finish_effort import Effort
    from trainwright.planning.split_bound import CutsAndRows
    from trainwright.planning.split_plan import Priced
    from trainwright.planning.split_question import SplitQuestion

    Floats = NDArray[np.float64]

_MOST_BEGINNINGS = 2048  # of cuts that are kept at once


def finish_chain(
    question: SplitQuestion,
    price: Callable[[CutsAndRows], Priced | None],
    effort: Effort,
    *,
    limit_s: float,
) -> Finished:
    """The fastest plan below the limit, if there is one, and a bound on all others."""
    chain = _Chain.of(question, limit_s=limit_s)
    if chain is None:
        return Finished(bound_s=limit_s)
    ranks = question.degrees.pipeline
    effort.spend_on_cuts(ranks)
    found = cuts_below(chain.tables, limit_s - question.overhead_s, most=_MOST_BEGINNINGS)
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
