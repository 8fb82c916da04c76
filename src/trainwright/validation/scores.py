"""How far predictions are from measurements, and whether they rank plans rightly.

With e = predicted / measured - 1: mean, median, 90th percentile and largest |e|, and the mean of e.
Kendall's tau-b and the regret of picking the plan predicted fastest are taken inside groups of one
job with several layouts (at least 3); pairs measured within the noise floor of 2 % say nothing
about ranking and are left out of tau.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainwright.plan.results.validation import ErrorRecord, RegretRecord

NOISE_FLOOR = 0.02
LEAST_LAYOUTS = 3
MEMORY_MARGIN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One prediction against one measurement, the median of `repeats`."""

    predicted: float
    measured: float
    repeats: int = 1

    @property
    def error(self) -> float:
        """Relative error, positive where the prediction is too high."""
        return self.predicted / self.measured - 1


def errors(pairs: Sequence[Pair]) -> ErrorRecord | None:
    """The summary of a quantity; `None` where nothing was scored."""
    if not pairs:
        return None
    signed = [pair.error for pair in pairs]
    sizes = sorted(abs(e) for e in signed)
    return ErrorRecord(
        n=len(pairs),
        mape=sum(sizes) / len(sizes),
        median_ape=_quantile(sizes, 0.5),
        p90_ape=_quantile(sizes, 0.9),
        max_ape=sizes[-1],
        bias=sum(signed) / len(signed),
    )


def counts_for_ranking(a: Pair, b: Pair) -> bool:
    """Whether two runs of a job were measured further apart than the noise floor."""
    low, high = sorted((a.measured, b.measured))
    return high / low - 1 > NOISE_FLOOR


def kendall_tau(groups: Sequence[Sequence[Pair]]) -> float | None:
    """Tau-b inside each group, averaged by the pairs that count."""
    weighted, weight = 0.0, 0
    for group in groups:
        agreeing, ties, pairs = 0, 0, 0
        for i, a in enumerate(group):
            for b in group[:i]:
                if not counts_for_ranking(a, b):
                    continue
                pairs += 1
                sign = (a.predicted - b.predicted) * (a.measured - b.measured)
                agreeing += (sign > 0) - (sign < 0)
                ties += sign == 0
        if pairs:
            weighted += agreeing / math.sqrt(pairs * max(1, pairs - ties)) * pairs
            weight += pairs
    return weighted / weight if weight else None


def regret(groups: Sequence[Sequence[Pair]]) -> RegretRecord | None:
    """How much slower the plan predicted fastest was than the fastest one measured."""
    if not groups:
        return None
    each = []
    for group in groups:
        chosen = min(group, key=lambda pair: pair.predicted)
        each.append(chosen.measured / min(pair.measured for pair in group) - 1)
    return RegretRecord(mean=sum(each) / len(each), max=max(each))


def pooled_regret(scores: Sequence[tuple[int, RegretRecord | None]]) -> RegretRecord | None:
    """That of all groups together, from those of files with their numbers of groups."""
    known = [(count, found) for count, found in scores if count and found is not None]
    if not known:
        return None
    total = sum(count for count, _ in known)
    mean = sum(count * found.mean for count, found in known) / total
    return RegretRecord(mean=mean, max=max(found.max for _, found in known))


def false_fits(pairs: Sequence[Pair]) -> float | None:
    """Share of runs whose measured peak exceeds the predicted one by more than the margin."""
    if not pairs:
        return None
    wrong = sum(pair.measured > pair.predicted * (1 + MEMORY_MARGIN) for pair in pairs)
    return wrong / len(pairs)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
