"""The smallest change of a run that gets most of what could be gained, or that makes it fit.

All runs that differ in one dimension are priced, whether they fit or not; then pairs of the fastest
few and the leanest of every two dimensions, because a change of a degree often pays only together
with another that makes it fit. Of a run that does not fit itself, only changes that need less
memory are worth a pair. Cost: one price per run, some hundreds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.plan.results.improvement import MOST_OF_IT
from trainwright.planning.neighbours import Move, moves, options_between
from trainwright.pricing.configuration import price_configuration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainwright.cluster import Cluster, Pool
    from trainwright.execution import Budget
    from trainwright.model import TransformerConfig
    from trainwright.plan import StepPrediction
    from trainwright.plan.configuration import Configuration

_FASTEST: Final = 3  # of a dimension, beside its leanest, are tried together with others
MOST_LISTED: Final = 8  # changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """A run with one or two dimensions changed, priced; it fits."""

    dimensions: tuple[str, ...]
    options: str
    run: Configuration
    step: StepPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """What one run may become: which runs are wanted, and which fit."""

    model: TransformerConfig
    cluster: Cluster
    wanted: Callable[[Configuration], bool]
    fits: Callable[[StepPrediction], bool]

    def price(self, run: Configuration) -> StepPrediction | None:
        """The step; None where a rule forbids the run or it is not wanted."""
        try:
            step = price_configuration(self.model, self.cluster, run)
            return step if self.wanted(run) else None
        except (InvalidInput, UnsupportedFeature):
            return None

    def most_bytes(self, run: Configuration) -> float:
        """What a change worth a pair needs less than: the run's own peak where that is too much."""
        step = price_configuration(self.model, self.cluster, run)
        return math.inf if self.fits(step) else step.peak_memory_bytes

    def moves(self, run: Configuration) -> Iterable[Move]:
        """Changes of one dimension, legal or not."""
        return moves(run, self.model, self.cluster.pool_of())


def improvements(
    run: Configuration, around: Neighbourhood, budget: Budget
) -> tuple[Improvement, ...]:
    """The best run for each set of one or two dimensions, fastest first; all fit.

    A budget that ends keeps what was found.
    """
    most_bytes = around.most_bytes(run)
    singles = []
    for move in around.moves(run):
        if budget.stopped:
            break
        step = around.price(move.run)
        if step is not None:
            singles.append((move, step))
    found = [_improvement(run, (move,), step) for move, step in singles]
    promising = list(_promising([each for each in singles if _peak(each) < most_bytes]))
    choices = {(move.dimension, move.choice) for move in promising}
    for first in promising:
        for second in around.moves(first.run):
            if second.dimension <= first.dimension or budget.stopped:
                continue
            if (second.dimension, second.choice) not in choices:
                continue
            step = around.price(second.run)
            if step is not None:
                found.append(_improvement(run, (first, second), step))
    return _best_of_each([each for each in found if around.fits(each.step)])


def _peak(priced: tuple[Move, StepPrediction]) -> float:
    return priced[1].peak_memory_bytes


def _promising(singles: list[tuple[Move, StepPrediction]]) -> Iterator[Move]:
    """The fastest moves of every dimension, and the one that needs the least memory."""
    by_dimension: dict[str, list[tuple[Move, StepPrediction]]] = {}
    for move, step in singles:
        by_dimension.setdefault(move.dimension, []).append((move, step))
    for offered in by_dimension.values():
        fastest = sorted(offered, key=lambda each: each[1].step_time_s)[:_FASTEST]
        leanest = min(offered, key=_peak)
        yield from (move for move, _ in fastest)
        if leanest not in fastest:
            yield leanest[0]


def _improvement(run: Configuration, path: tuple[Move, ...], step: StepPrediction) -> Improvement:
    changed = path[-1].run
    return Improvement(
        dimensions=tuple(move.dimension for move in path),
        options=options_between(run, changed),
        run=changed,
        step=step,
    )


def _best_of_each(found: list[Improvement]) -> tuple[Improvement, ...]:
    """The fastest of each set of dimensions, fastest first."""
    best: dict[frozenset[str], Improvement] = {}
    for each in sorted(found, key=_order):
        best.setdefault(frozenset(each.dimensions), each)
    return tuple(best.values())


def _order(each: Improvement) -> tuple[float, int, str]:
    """Fastest first; of those that agree in twelve digits the one that is quickest said."""
    return float(f"{each.step.step_time_s:.11e}"), each.options.count("--"), each.options


def reachable(
    run: Configuration,
    model: TransformerConfig,
    pool: Pool,
    *,
    dimensions: Iterable[str],
    options: str,
) -> Configuration | None:
    """What a change of the run in these dimensions makes of it, if these are its options."""
    reached = [run]
    for dimension in dimensions:
        reached = [
            move.run
            for each in reached
            for move in moves(each, model, pool)
            if move.dimension == dimension
        ]
    return next((each for each in reached if options_between(run, each) == options), None)


def worth_listing(found: Iterable[Improvement]) -> tuple[Improvement, ...]:
    """A few, fastest first: half of them of one decision, the others pairs that beat all those."""
    fastest = sorted(found, key=_order)
    singles = [each for each in fastest if len(each.dimensions) == 1]
    least_s = singles[0].step.step_time_s if singles else math.inf
    pairs = [e for e in fastest if len(e.dimensions) > 1 and e.step.step_time_s < least_s]
    half = MOST_LISTED // 2
    return tuple(sorted((*pairs[:half], *singles[:half]), key=_order))


def recommended(
    found: Iterable[Improvement], *, base_s: float | None, best_s: float
) -> Improvement | None:
    """The change of fewest dimensions with most of the gain; the fastest where none has.

    `base_s` is the step of the run, None where it does not fit, and `best_s` the fastest known. A
    run that does not fit has no gain to get: of its changes the one of fewest dimensions counts
    that is nearly as fast as the fastest. None where nothing is faster than the run.
    """
    offered = [each for each in found if base_s is None or each.step.step_time_s < base_s]
    if not offered:
        return None
    enough_s = best_s / MOST_OF_IT if base_s is None else base_s - MOST_OF_IT * (base_s - best_s)
    enough = [each for each in offered if each.step.step_time_s <= enough_s]
    if not enough:
        return min(offered, key=_order)
    return min(enough, key=lambda each: (len(each.dimensions), _order(each)))
