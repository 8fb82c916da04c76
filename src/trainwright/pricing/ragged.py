"""Lists of different lengths, one after another in one array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ragged:
    """Where lists [k] of these lengths begin; every list holds something."""

    lengths: Ints
    starts: Ints

    @classmethod
    def of(cls, lengths: Sequence[int] | Ints) -> Ragged:
        """Lists of these lengths, in this order."""
        counts = np.asarray(lengths, dtype=np.int64)
        return cls(lengths=counts, starts=np.cumsum(counts) - counts)

    @property
    def size(self) -> int:
        """Entries of all lists."""
        return int(self.lengths.sum())

    def places(self, chosen: Ints) -> Ints:
        """Where the entries of the chosen lists lie, list after list."""
        lengths = self.lengths[chosen]
        shift = self.starts[chosen] - (np.cumsum(lengths) - lengths)
        return np.repeat(shift, lengths) + np.arange(int(lengths.sum()))

    def chosen(self, chosen: Ints) -> Ragged:
        """The chosen lists, one after another."""
        return Ragged.of(self.lengths[chosen])
