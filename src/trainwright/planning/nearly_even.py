"""Nearly even splits over several chunks per rank: the space of families in V and in loops.

The orders of these families repeat one pattern of chunks. A chunk that takes longer than the others
holds up every rank in turn, so a split is worth a look only where all chunks are about as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainwright.model import LayerKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.profile import Profile

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NearlyEven:
    """Blocks are layers `first` up to `after`; stages hold from `least` to `most` [S] of them."""

    first: int
    after: int
    least: Ints
    most: Ints

    def holds(self, cuts: tuple[int, ...]) -> bool:
        """Whether a split is one of these."""
        inside = np.clip(cuts, self.first, self.after)
        lengths = np.diff(inside)
        edges = cuts[1] >= self.first and cuts[-2] <= self.after
        return edges and bool(((self.least <= lengths) & (lengths <= self.most)).all())

    def stages(self, num_layers: int) -> NDArray[np.bool_]:
        """Whether layers [i, j) may be a stage where layers that are no blocks may be in any.

        Such a stage has any number of blocks up to that of the others, [L, L + 1].
        """
        i, j = np.arange(num_layers)[:, np.newaxis], np.arange(num_layers + 1)
        blocks = np.clip(j, self.first, self.after) - np.clip(i, self.first, self.after)
        has_others = (i < self.first) | (j > self.after)
        enough = has_others | (blocks >= self.least.max())
        found: NDArray[np.bool_] = (i < j) & (blocks <= self.most.max()) & enough
        return found


def nearly_even(profile: Profile, num_stages: int) -> NearlyEven | None:
    """The splits with ⌊n / S⌋ or one more of n blocks in every stage; None if there are none.

    Layers before the blocks are in the first stage, those after them in the last: these two may
    have any number of blocks up to that of the others.
    """
    names = [layer.name for layer in profile.structure.layers]
    blocks = [index for index, name in enumerate(names) if name == LayerKind.BLOCK]
    first, after = blocks[0], blocks[-1] + 1
    each = (after - first) // num_stages
    least = np.full(num_stages, max(each, 1), dtype=np.int64)
    if first > 0:
        least[0] = 0
    if after < len(names):
        least[-1] = 0
    most = np.full(num_stages, each + 1, dtype=np.int64)
    if not least.sum() <= after - first <= most.sum():
        return None
    return NearlyEven(first=first, after=after, least=least, most=most)
