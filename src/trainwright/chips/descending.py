"""The published search: designs by descending area until throughput stops growing.

PHAZE (Wang et al., ICML 2024) visits buckets of 10,000 µm² from the largest and stops when the best
throughput of the last five never increased. Throughput is not monotone in area, so the rule proves
nothing: the answer has the status `gap`, with the bound of the exact search. A bucket in which
nothing fits does not count here; in the published program five of them end the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.chips.population import Population, populate
from trainwright.chips.question import cost
from trainwright.chips.search import PLACEMENT, CodesignOutcome, Design, Ledger, pricers, scale_of
from trainwright.plans.status import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Indices
    from trainwright.chips.price import JobPricer
    from trainwright.chips.question import CodesignQuestion
    from trainwright.chips.space import DesignSpace
    from trainwright.execution import Budget

    Prepared = Mapping[int, tuple[JobPricer, ...]]

WINDOW: Final = 5
INFEASIBLE: Final = -1.0
_AHEAD: Final = 128  # designs priced together, though buckets hold two or three


def feasible_stop(values: Iterable[float]) -> int:
    """How many buckets are visited; those in which nothing fits (`INFEASIBLE`) do not count."""
    visited = counted = 0
    last: list[float] = []
    for value in values:
        visited += 1
        if value == INFEASIBLE:
            continue
        counted += 1
        last = [*last, value][-WINDOW:]
        if counted >= WINDOW and _never_grows(last):
            break
    return visited


def _never_grows(values: list[float]) -> bool:
    return all(b <= a for a, b in pairwise(values))


def buckets_of(space: DesignSpace) -> list[Indices]:
    """Designs of each bucket, from the largest area, in order of enumeration inside."""
    order = space.by_descending_area()
    buckets = space.buckets()[order]
    return np.split(order, np.flatnonzero(np.diff(buckets)) + 1)


def descending_area_search(
    question: CodesignQuestion, budget: Budget, prepared: Prepared | None = None
) -> CodesignOutcome:
    """Visit buckets under the first variant until the rule ends it; `prepared` as for `search`."""
    start_s = budget.cpu_s
    scale_s = scale_of(question, budget)
    run = _Visit(question, budget, scale_s, prepared)
    feasible_stop(run.values())
    bound = _least_bound(question, scale_s)
    ledger = Ledger(
        bounds=np.full((1, len(question.space)), bound),
        levels=np.full((1, len(question.space)), "", dtype="<U9"),
    )
    ledger.levels[0, run.visited] = PLACEMENT
    best = run.best
    return CodesignOutcome(
        status=Status.UNKNOWN if best is None else Status.GAP,
        best=best,
        lower_bound=bound,
        ledger=ledger,
        scale_s=scale_s,
        solver_s=budget.cpu_s - start_s,
    )


class _Visit:
    """Buckets in order, priced a few at a time; what was found so far."""

    def __init__(
        self,
        question: CodesignQuestion,
        budget: Budget,
        scale_s: NDArray[np.float64],
        prepared: Prepared | None,
    ) -> None:
        self._question, self._budget, self._scale_s = question, budget, scale_s
        self._prepared = prepared or {0: pricers(question, question.variants[0])}
        self.best: Design | None = None
        self.visited: list[int] = []

    def values(self) -> Iterator[float]:
        """Best throughput (one over the cost) of each bucket."""
        ahead: list[Indices] = []
        for bucket in [*buckets_of(self._question.space), None]:
            if bucket is not None:
                ahead.append(bucket)
            if bucket is None or sum(map(len, ahead)) >= _AHEAD:
                if self._budget.stopped:
                    return
                yield from self._priced(ahead)
                ahead = []

    def _priced(self, buckets: list[Indices]) -> Iterator[float]:
        designs = np.concatenate(buckets) if buckets else np.zeros(0, dtype=np.int64)
        nodes = (np.zeros(designs.size, dtype=np.int64), designs)
        found, _ = populate(
            self._question,
            self._budget,
            scale_s=self._scale_s,
            nodes=nodes,
            prepared=self._prepared,
        )
        row_of = {design: row for row, design in enumerate(found.index.tolist())}
        for bucket in buckets:
            self.visited += bucket.tolist()
            rows = [row_of[d] for d in bucket.tolist() if d in row_of]
            yield self._value(found, rows)

    def _value(self, found: Population, rows: list[int]) -> float:
        if not rows:
            return INFEASIBLE
        row = min(rows, key=lambda r: float(found.cost[r]))
        if self.best is None or found.cost[row] < self.best.cost:
            self.best = found.design(row)
        return 1.0 / float(found.cost[row])


def _least_bound(question: CodesignQuestion, scale_s: NDArray[np.float64]) -> float:
    designs = np.arange(len(question.space))
    jobs = pricers(question, question.variants[0])
    steps = np.stack([job.ideal_bounds_s(designs) for job in jobs], axis=1)
    bounds = cost(question.objective, steps, scale_s=scale_s, weights=question.weights)
    return float(bounds.min())
