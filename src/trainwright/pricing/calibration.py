"""A few constants with intervals from a few measured times: robust, regularised least squares.

Residuals are log(predicted / measured). Each constant θ has a log-normal prior around its default,
so one row already gives an answer and no direction runs away that the rows do not determine:

    minimise  Σ ρ(rᵢ(θ) / σ) + Σ (log θⱼ − log θ⁰ⱼ)² / (2 sⱼ²)

ρ is Huber's, because some measured runs follow no function of their plan (with a handful of rows
no row can be told to be such a run, and ρ is the square); σ is the median absolute
residual, rescaled, and re-estimated between Gauss-Newton steps. Intervals come from the curvature
at the optimum (Laplace). Prior widths: 0.2 for shares of a peak, 0.7 for overheads, after the
spread of such figures between published fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.cluster import CONSTANTS, Constant
from trainwright.cluster.calibration import OVERHEAD_WIDTH, SHARE_WIDTH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Residuals = Callable[[Mapping[str, float]], Sequence[float]]

_HUBER: Final = 1.345
_ENOUGH_FOR_OUTLIERS: Final = 6
_LEAST_SCALE: Final = 0.01  # no measured step repeats better than this
# The first steps trust the rows, or far-off defaults would pass for noise and stay.
_FIRST_SCALE: Final = 0.03
_TRUSTING_STEPS: Final = 3
_STEP: Final = 0.02  # finite difference in log θ
_LARGEST_MOVE: Final = 0.5
_MOST_STEPS: Final = 15
_CONVERGED: Final = 3e-3
_Z90: Final = 1.6448536269514722
_FROM_MEDIAN: Final = 1.4826  # median absolute deviation to standard deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Where a constant is expected, and how far from it, as a standard deviation of its log."""

    name: str
    value: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted constants with 90 % intervals; `residuals` are log(predicted / measured).

    `unseen` are those of each row under constants fitted without its fold, to first order.
    """

    constants: tuple[Constant, ...]
    residuals: tuple[float, ...]
    unseen: tuple[float, ...]
    scale: float


def prior_of(name: str, value: float) -> Prior:
    """The usual prior of a constant around `value`."""
    share = CONSTANTS[name] == 1.0
    return Prior(name=name, value=value, width=SHARE_WIDTH if share else OVERHEAD_WIDTH)


def fit(
    residuals: Residuals,
    priors: Sequence[Prior],
    *,
    start: Mapping[str, float] | None = None,
    folds: Sequence[int] | None = None,
) -> Fit:
    """Fit the constants of `priors`; `residuals` prices all rows under given values.

    `start` is where to look first (the answer of a similar fit), by default the priors' values.
    `folds` numbers the rows that are left out together for `unseen`, by default each alone.
    Costs one evaluation per constant and step. Deterministic.
    """
    centre = np.log([prior.value for prior in priors])
    widths = np.array([prior.width for prior in priors])
    ceilings = np.log([min(CONSTANTS[prior.name], 1e300) for prior in priors])

    def at(theta: Floats) -> Floats:
        values = {p.name: math.exp(x) for p, x in zip(priors, theta.tolist(), strict=True)}
        return np.asarray(residuals(values), dtype=np.float64)

    given = start or {}
    first = np.log([given.get(prior.name, prior.value) for prior in priors])
    theta = np.minimum(first, ceilings)
    found, scale = at(theta), _FIRST_SCALE
    cut = _HUBER if len(found) >= _ENOUGH_FOR_OUTLIERS else math.inf
    curvature = np.diag(1 / widths**2)
    slopes = np.zeros((len(found), len(theta)))
    for step in range(_MOST_STEPS):
        for j in range(len(theta)):
            moved = theta.copy()
            moved[j] -= _STEP
            slopes[:, j] = (found - at(moved)) / _STEP
        weights = _weights(found, scale, cut)
        curvature = (slopes.T * weights) @ slopes + np.diag(1 / widths**2)
        gradient = (slopes.T * weights) @ found + (theta - centre) / widths**2
        move = -np.linalg.solve(curvature, gradient)
        move *= min(1.0, _LARGEST_MOVE / max(float(np.abs(move).max()), 1e-12))
        theta, found, moved_by = _line_search(
            at, theta, move, found, scale, cut, (centre, widths, ceilings)
        )
        if start is None and step < _TRUSTING_STEPS:
            continue
        scale = _scale(found)
        if moved_by < _CONVERGED:
            break
    weights, prior = _weights(found, scale, cut), np.diag(1 / widths**2)
    unseen = found.copy()
    groups = np.arange(len(found)) if folds is None else np.asarray(folds)
    for group in np.unique(groups):
        kept, held = groups != group, groups == group
        pulled = slopes[kept].T * weights[kept]
        gradient = pulled @ found[kept] + (theta - centre) / widths**2
        move = -np.linalg.solve(pulled @ slopes[kept] + prior, gradient)
        unseen[held] += slopes[held] @ np.clip(move, -_LARGEST_MOVE, _LARGEST_MOVE)
    spread = _Z90 * np.sqrt(np.diag(np.linalg.inv(curvature)))
    constants = tuple(
        Constant(
            name=prior.name,
            value=math.exp(x),
            low=math.exp(x - width),
            high=min(math.exp(x + width), CONSTANTS[prior.name]),
        )
        for prior, x, width in zip(priors, theta.tolist(), spread.tolist(), strict=True)
    )
    return Fit(
        constants=constants,
        residuals=tuple(found.tolist()),
        unseen=tuple(unseen.tolist()),
        scale=scale,
    )


def _line_search(
    at: Callable[[Floats], Floats],
    theta: Floats,
    move: Floats,
    found: Floats,
    scale: float,
    cut: float,
    prior: tuple[Floats, Floats, Floats],
) -> tuple[Floats, Floats, float]:
    """Halve the step until the objective falls; returns the point, residuals, and the distance."""
    centre, widths, ceilings = prior

    def objective(point: Floats, residual: Floats) -> float:
        penalty = float((((point - centre) / widths) ** 2).sum()) / 2
        return float(_huber(residual / scale, cut).sum()) + penalty

    before = objective(theta, found)
    for halvings in range(5):
        point = np.minimum(theta + move / 2**halvings, ceilings)
        residual = at(point)
        if objective(point, residual) < before:
            return point, residual, float(np.abs(point - theta).max())
    return theta, found, 0.0


def _scale(residual: Floats) -> float:
    return max(_LEAST_SCALE, _FROM_MEDIAN * float(np.median(np.abs(residual))))


def _weights(residual: Floats, scale: float, cut: float) -> Floats:
    standard = np.abs(residual) / scale
    return np.minimum(1.0, cut / np.maximum(standard, 1e-12)) / scale**2


def _huber(standard: Floats, cut: float) -> Floats:
    size = np.abs(standard)
    if math.isinf(cut):
        return size**2 / 2
    return np.where(size <= cut, size**2 / 2, cut * (size - cut / 2))
