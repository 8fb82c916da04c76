"""How well measurements that scatter can be ranked at all: the ceiling of Kendall's tau.

Repeats of one configuration scatter by σ in the logarithm of their time, pooled over a file. Two
layouts of one job that truly differ by d in that logarithm are measured in their right order with
probability Φ(d / s), s² = σ²/n + σ²/n' for n and n' repeats, so whoever knows the true times agrees
with the measurements in

    E[tau] = mean over pairs of 2 Φ(d / s) - 1

Only pairs that count for tau count here, and d is that of the measured times: it holds some of the
noise itself, so the ceiling is a little high. A file without repeats has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Final

from trainwright.validation.scores import Pair, counts_for_ranking

_NORMAL: Final = NormalDist()


def log_scatter(repeats: Iterable[Sequence[float]]) -> float | None:
    """σ of the logarithm inside each group of repeats, pooled; None where nothing is repeated."""
    squares, freedom = 0.0, 0
    for values in repeats:
        logs = [math.log(value) for value in values]
        centre = sum(logs) / len(logs) if logs else 0.0
        squares += sum((each - centre) ** 2 for each in logs)
        freedom += max(0, len(logs) - 1)
    return math.sqrt(squares / freedom) if freedom else None


def tau_ceiling(groups: Sequence[Sequence[Pair]], scatter: float | None) -> float | None:
    """The tau to expect of the true times, weighted as `scores.kendall_tau` weights pairs."""
    if scatter is None:
        return None
    agreeing = [
        _agreement(a, b, scatter)
        for group in groups
        for i, a in enumerate(group)
        for b in group[:i]
        if counts_for_ranking(a, b)
    ]
    return sum(agreeing) / len(agreeing) if agreeing else None


def _agreement(a: Pair, b: Pair, scatter: float) -> float:
    distance = abs(math.log(a.measured / b.measured))
    spread = scatter * math.sqrt(1 / a.repeats + 1 / b.repeats)
    return 2 * _NORMAL.cdf(distance / spread) - 1 if spread > 0 else 1.0
