"""What ways to run a stage choose for its layers, worked out when it is asked for.

A stage has hundreds of ways, made of those of its parts, and a search compares what they take. What
the layers of one do is asked of the few stages of a plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    Ints = NDArray[np.int64]

Counts: TypeAlias = NDArray[np.int16]  # of layers; there are thousands of such arrays


class Pairs(NamedTuple):
    """N ways of two parts: `numbers` [N] into all pairs of a way of each.

    The second part has `size` ways, which change fastest.
    """

    first: MadeOf
    second: MadeOf
    size: int
    numbers: Ints


MadeOf: TypeAlias = Counts | Pairs


def counted(made_of: MadeOf) -> Counts:
    """Of each way, the layers that run as each row of a cost table, [N, R]."""
    if not isinstance(made_of, Pairs):
        return made_of
    own, other = np.divmod(made_of.numbers, made_of.size)
    found: Counts = counted(made_of.first)[own] + counted(made_of.second)[other]
    return found
