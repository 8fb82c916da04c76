"""The smallest change of a run that gets most of what could be gained.

All runs that differ in one dimension are priced, whether they fit or not; then pairs of the fastest
few and the leanest of every two dimensions, because a change of a degree often pays only together
with another that makes it fit. Cost: one price per run, some hundreds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.planning.neighbours import Move, moves
from trainwright.pricing.configuration import price_configuration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainwright.cluster import Cluster
    from trainwright.execution import Budget
    from trainwright.model import TransformerConfig
    from trainwright.plan import StepPrediction
    from trainwright.plan.configuration import Configuration

_FASTEST: Final = 3  # of a dimension, beside its leanest, are tried together with others
MOST_OF_IT: Final = 0.8  # of the gain: what a smaller change must reach to be preferred


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

    def moves(self, run: Configuration) -> Iterable[Move]:
        """Changes of one dimension, legal or not."""
        return moves(run, self.model, self.cluster.pool_of())


def improvements(
    run: Configuration, around: Neighbourhood, budget: Budget
) -> tuple[Improvement, ...]:
    """The best run for each set of one or two dimensions, fastest first; all fit.

    A budget that ends keeps what was found.
    """
    singles = []
    for move in around.moves(run):
        if budget.stopped:
            break
        step = around.price(move.run)
        if step is not None:
            singles.append((move, step))
    found = [_improvement((move,), move.run, step) for move, step in singles]
    promising = list(_promising(singles))
    for first in promising:
        for second in around.moves(first.run):
            if second.dimension <= first.dimension or budget.stopped:
                continue
            if not any(_alike(second, other) for other in promising):
                continue
            step = around.price(second.run)
            if step is not None:
                found.append(_improvement((first, second), second.run, step))
    return _best_of_each([each for each in found if around.fits(each.step)])


def _promising(singles: list[tuple[Move, StepPrediction]]) -> Iterator[Move]:
    """The fastest moves of every dimension, and the one that needs the least memory."""
    by_dimension: dict[str, list[tuple[Move, StepPrediction]]] = {}
    for move, step in singles:
        by_dimension.setdefault(move.dimension, []).append((move, step))
    for offered in by_dimension.values():
        fastest = sorted(offered, key=lambda each: each[1].step_time_s)[:_FASTEST]
        leanest = min(offered, key=lambda each: each[1].peak_memory_bytes)
        yield from (move for move, _ in fastest)
        if leanest not in fastest:
            yield leanest[0]


def _alike(move: Move, other: Move) -> bool:
    """Whether both say the same of their own dimension, whatever else follows from it."""
    flag, own = move.options.split()[0], move.options.split()[1:2]
    return (flag, own) == (other.options.split()[0], other.options.split()[1:2])


def _improvement(path: tuple[Move, ...], run: Configuration, step: StepPrediction) -> Improvement:
    return Improvement(
        dimensions=tuple(move.dimension for move in path),
        options=_said(path),
        run=run,
        step=step,
    )


def _best_of_each(found: list[Improvement]) -> tuple[Improvement, ...]:
    """The fastest of each set of dimensions, fastest first."""
    best: dict[frozenset[str], Improvement] = {}
    for each in found:
        known = best.setdefault(frozenset(each.dimensions), each)
        if each.step.step_time_s < known.step.step_time_s:
            best[frozenset(each.dimensions)] = each
    return tuple(sorted(best.values(), key=lambda each: each.step.step_time_s))


def _said(path: tuple[Move, ...]) -> str:
    """The options of all moves; of an option given twice the last counts."""
    said: dict[str, str] = {}
    for move in path:
        words = move.options.split()
        for flag, value in zip(words, [*words[1:], ""], strict=True):
            if flag.startswith("--"):
                said[flag] = "" if value.startswith("--") else value
    return " ".join(f"{flag} {value}".rstrip() for flag, value in said.items())


def recommended(
    found: Iterable[Improvement], *, base_s: float, best_s: float
) -> Improvement | None:
    """The change of fewest dimensions with most of the gain; the fastest where none has.

    `best_s` is the fastest step known. None where nothing is faster than `base_s`.
    """
    faster = [each for each in found if each.step.step_time_s < base_s]
    if not faster:
        return None
    enough_s = base_s - MOST_OF_IT * (base_s - best_s)
    enough = [each for each in faster if each.step.step_time_s <= enough_s]
    if not enough:
        return min(faster, key=lambda each: each.step.step_time_s)
    return min(enough, key=lambda each: (len(each.dimensions), each.step.step_time_s))
