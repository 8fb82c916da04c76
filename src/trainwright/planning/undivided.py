"""How long the busiest rank works at least, because layers cannot be divided.

With n blocks of one class, b seconds each, and other layers beside them that take as long as x_i
blocks, p ranks that each have time for c = f + φ blocks, f whole, hold no more than p·f blocks less

    max( 0, Σ x_i - p·φ, max x_i - φ )      rounded up

for the others: what lies on a rank beyond φ costs it a block. The least c that leaves room for n is
a bound, for any way to deal layers to ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_ROUNDING = 1e-9


def undivided_work_s(class_s: Floats, counts: Ints, num_ranks: Ints) -> Floats:
    """Seconds of the busiest of p ranks, for each p in `num_ranks`.

    `counts` [C] layers of each class take at least `class_s` [C]. The class that takes most in all
    counts as blocks.
    """
    whole_s = class_s * counts
    main = int(whole_s.argmax())
    block_s = float(class_s[main])
    if block_s <= 0:
        return np.zeros(len(num_ranks))
    others = (np.arange(len(counts)) != main) & (counts > 0)
    beside = float(whole_s[others].sum()) / block_s
    largest = float(class_s[others].max(initial=0.0)) / block_s
    n, p = int(counts[main]), num_ranks.astype(np.float64)
    best = np.full(len(num_ranks), np.inf)
    for more in range(3):
        each = np.ceil(n / p) + more
        spare = p * each - n
        rest = np.maximum(0.0, np.maximum((beside - spare) / p, largest - spare))
        # At a rest of a whole block the next number of blocks is as good.
        best = np.minimum(best, each + np.minimum(rest, 1.0))
    times_s: Floats = np.maximum(best * block_s * (1 - _ROUNDING), whole_s.sum() / p)
    return times_s
