"""Bounds on what a training costs, over every plan on so many devices and how many of them.

For a number of devices every objective grows with the step (`aims`), so a bound on the step of all
plans on n devices bounds each of them. Such bounds come from two sides:

- plans on at most N devices, n <= N, step no faster than the bound of that search;
- a search for the least of an objective bounds its weight times the step, for every n.

The larger of them, by n, gives a bound on every objective, and says how much a Pareto front may
miss: all plans on n devices lie above one point, and what a shown plan is worse than that point, in
the worse of two objectives, is the most by which it can be beaten in both.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trainwright.planning.aims import WeightedAim
from trainwright.planning.objectives import HOUR_S, Objective, goodput_shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from trainwright.planning.objectives import Training

    Floats = NDArray[np.float64]

_NO_STEP = -1.0


def aim_of(
    objective: Objective,
    training: Training,
    *,
    fewest: int,
    most: int,
    tokens_per_step: float,
    checkpoint_bytes: float,
) -> WeightedAim:
    """What the objective makes least, on `fewest` to `most` devices, within the deadline.

    The figures are those of `objectives.score`; for the fewest devices, their number and less than
    one more by the share of the time that the deadline leaves.
    """
    devices = np.arange(most + 1, dtype=np.float64)
    shares = goodput_shares(training, np.maximum(devices, 1.0), checkpoint_bytes=checkpoint_bytes)
    usable = (devices >= fewest) & (shares > 0)
    limit_s = np.full(most + 1, math.inf)
    if training.deadline_s is not None:
        tokens = math.inf if training.tokens is None else training.tokens
        limit_s = training.deadline_s * tokens_per_step * shares / tokens
    offset, weight = np.zeros(most + 1), np.ones(most + 1)
    # Seconds of all devices for the whole training, per second of a step.
    useful = np.where(usable, shares, 1.0)
    whole = np.maximum(devices, 1.0) * (training.tokens or 0.0) / (tokens_per_step * useful)
    match objective:
        case Objective.TOKENS_PER_DEVICE:
            weight = np.maximum(devices, 1.0) / tokens_per_step
        case Objective.COST:
            weight = whole * (training.price_per_hour or 0.0) / HOUR_S
        case Objective.ENERGY:
            weight = whole * (training.power_watts or 0.0)
        case Objective.DEVICES:
            offset, weight = devices, 0.5 / np.where(limit_s > 0, limit_s, 1.0)
    return WeightedAim(offset=offset, weight=weight, limit_s=np.where(usable, limit_s, _NO_STEP))


def least_steps_s(
    most: int,
    sizes: Iterable[tuple[int, float]],
    searched: Iterable[tuple[WeightedAim, float]] = (),
) -> Floats:
    """The least step of any plan on n devices, for n up to `most`, [most + 1]; 0 where unknown.

    `sizes` holds numbers N and bounds on the step of all plans on at most N devices, infinite where
    none fits; `searched` holds aims with what no plan is better than.
    """
    least_s = np.zeros(most + 1)
    for size, bound_s in sizes:
        least_s[: size + 1] = np.maximum(least_s[: size + 1], bound_s)
    for aim, bound in searched:
        with np.errstate(invalid="ignore"):
            # A step within the limit has a figure no less than the bound, or there is none.
            beyond_s = np.nextafter(aim.limit_s, math.inf)
            own_s = np.minimum((bound - aim.offset) / aim.weight, beyond_s)
        least_s = np.maximum(least_s, np.maximum(own_s, 0.0))
    return least_s


def least_scores(objective: Objective, aim: WeightedAim, steps_s: Floats) -> Floats:
    """The least score of plans on n devices, [most + 1]; infinite where no step is allowed."""
    keys = aim.keys(steps_s, np.arange(len(steps_s)))
    return np.floor(keys) if objective is Objective.DEVICES else keys


def pareto_excess(points: Sequence[tuple[float, float]], one: Floats, other: Floats) -> float:
    """By what share a plan may beat every point in both scores, at most; infinite where unknown.

    `one` and `other` are the least scores by number of devices, [N]. For each plan there is a point
    whose scores are both at most 1 + excess times its own.
    """
    possible = np.isfinite(one) & np.isfinite(other)
    one, other = one[possible], other[possible]
    if not len(one):
        return 0.0
    nearest = np.full(len(one), math.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        for first, second in points:
            if math.isfinite(first) and math.isfinite(second):
                nearest = np.fmin(nearest, np.maximum(first / one, second / other))
    return max(0.0, float(nearest.max()) - 1)
