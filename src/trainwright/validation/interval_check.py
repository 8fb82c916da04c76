"""Whether a file's runs lie inside their 90 % intervals as often as intervals of 90 % allow.

Of n runs that each lie inside with probability 0.9, the number inside is binomial. A count is
accepted where neither tail beyond it is rarer than 2.5 %: the two-sided test at 95 %. Runs of a
file resemble each other, so the true tails are fatter; a file that fails deserves a look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from trainwright.plan.results.validation import CoverageCheck

COVERED: Final = 0.9
_TAIL: Final = 0.025


def coverage_check(inside: Sequence[bool]) -> CoverageCheck | None:
    """The check of runs of which it is known whether they lie inside; `None` without any."""
    n, count = len(inside), sum(inside)
    if n == 0:
        return None
    least, most = acceptance_region(n)
    return CoverageCheck(
        n=n,
        inside=count,
        least_accepted=least,
        most_accepted=most,
        accepted=least <= count <= most,
    )


def acceptance_region(n: int, share: float = COVERED) -> tuple[int, int]:
    """The smallest and the largest accepted number of n runs inside.

    A count k is accepted where P(X <= k) and P(X >= k) are both above 2.5 %.
    """
    chance = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    accepted = [
        k
        for k in range(n + 1)
        if math.fsum(chance[: k + 1]) > _TAIL and math.fsum(chance[k:]) > _TAIL
    ]
    return accepted[0], accepted[-1]
