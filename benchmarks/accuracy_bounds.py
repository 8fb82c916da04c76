"""What data allow at best, from the data alone: no predictor does better than these figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from trainwright.lab.scores import log_scatter

_Z90 = NormalDist().inv_cdf(0.95)


def single_figure_errors(values: Sequence[float]) -> list[float]:
    """Relative errors of the one figure that predicts all `values` best, known in hindsight.

    Their sum is piecewise linear in the figure, so the best one is among the values.
    """
    return min(([abs(v / x - 1) for x in values] for v in values), key=sum)


def smooth_floor(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The least mean relative error of a + b·x + c/x with no constant below 0.

    A linear programme; at one of its corners k positive constants meet k of the points exactly.
    """
    x, y = np.asarray(sizes, float), np.asarray(times, float)
    terms = np.stack([np.ones_like(x), x, 1 / x], axis=1)
    best = math.inf
    for k in range(1, terms.shape[1] + 1):
        for chosen in combinations(range(terms.shape[1]), k):
            for met in combinations(range(len(x)), k):
                best = min(best, _corner(terms[:, chosen], y, met))
    return best


def _corner(terms: NDArray[np.float64], y: NDArray[np.float64], met: tuple[int, ...]) -> float:
    square = terms[list(met)]
    if abs(np.linalg.det(square)) < 1e-12:
        return math.inf
    constants = np.linalg.solve(square, y[list(met)])
    if (constants < 0).any():
        return math.inf
    return float(np.abs(terms @ constants / y - 1).mean())


def repeats_width(repeats: Iterable[Sequence[float]]) -> float:
    """The width of the range that holds nine of ten repeats, were they log-normal."""
    scatter = log_scatter(repeats)
    return 0.0 if scatter is None else 2 * math.sinh(_Z90 * scatter)


def perfect_regrets(
    jobs: Sequence[Sequence[tuple[float, Sequence[float]]]], *, draws: int, seed: int
) -> NDArray[np.float64]:
    """Mean regret over jobs, draw by draw, of whoever knows the true times.

    A job lists its plans: the true time, and the errors log(measured / true) to draw one from.
    """
    rng = np.random.default_rng(seed)
    total = np.zeros(draws)
    for plans in jobs:
        measured = np.stack(
            [true * np.exp(rng.choice(np.asarray(errors), draws)) for true, errors in plans]
        )
        pick = min(range(len(plans)), key=lambda i: plans[i][0])
        total += measured[pick] / measured.min(axis=0) - 1
    return total / len(jobs)
