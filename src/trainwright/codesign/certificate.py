"""Proving a search again: pruned designs priced in full, without any bound.

A pruned design's bound says that none of its plans is better than the best; pricing it without a
cutoff must agree, and must not undercut the bound itself. A sample is drawn from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainwright.codesign.nodes import PEAK, WORK
from trainwright.codesign.population import populate

if TYPE_CHECKING:
    from trainwright.codesign.question import CodesignQuestion
    from trainwright.codesign.search import CodesignOutcome
    from trainwright.execution import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """How many pruned nodes were priced, and which contradict the search (variant, design)."""

    sampled: int
    seed: int
    contradictions: tuple[tuple[int, int], ...]

    @property
    def confirmed(self) -> int:
        """Those that agree with it."""
        return self.sampled - len(self.contradictions)


def recheck(
    question: CodesignQuestion,
    outcome: CodesignOutcome,
    budget: Budget,
    *,
    sample: int = 1000,
    seed: int = 0,
) -> Recheck:
    """Price a random `sample` of the pruned nodes (all, where there are fewer)."""
    levels = outcome.ledger.levels
    variants, designs = np.nonzero((levels == PEAK) | (levels == WORK))
    count = min(sample, variants.size)
    rows = np.sort(np.random.default_rng(seed).choice(variants.size, count, replace=False))
    nodes = (variants[rows], designs[rows])
    found, finished = populate(question, budget, scale_s=outcome.scale_s, nodes=nodes)
    best = np.inf if outcome.best is None else outcome.best.cost
    bounds = outcome.ledger.bounds[found.variant, found.index]
    wrong = (found.cost < best) | (found.cost < bounds)
    pairs = zip(found.variant[wrong].tolist(), found.index[wrong].tolist(), strict=True)
    return Recheck(
        sampled=count if finished else len(found), seed=seed, contradictions=tuple(pairs)
    )
