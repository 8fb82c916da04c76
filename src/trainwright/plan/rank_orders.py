"""Orders of the ranks as arrays, a row a step: what schedules and lowered schedules share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.placement import Placement

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankOrders:
    """Per-rank orders of n steps.

    `actions` has shape [n, 3]: kind, stage, microbatch; rows of rank r are
    `rank_offsets[r]` to `rank_offsets[r + 1]`, in the order the rank runs them. `pairs` holds rows
    (ascending) of forwards that run together with the backward in the next row.
    """

    placement: Placement
    num_microbatches: int
    actions: NDArray[np.int32]
    rank_offsets: NDArray[np.int64]
    pairs: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        for name in ("actions", "rank_offsets", "pairs"):
            dtype = np.int32 if name == "actions" else np.int64
            array = np.ascontiguousarray(getattr(self, name), dtype=dtype)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        faults = list(self._layout_faults())
        if self.actions.ndim == 2 and self.actions.shape[1] == 3:
            faults += self._faults()
        if faults:
            raise InvalidInput(faults)

    def _layout_faults(self) -> Iterator[Fault]:
        if self.num_microbatches < 1:
            yield Fault("num_microbatches", f"must be >= 1, got {self.num_microbatches}")
        if self.actions.ndim != 2 or self.actions.shape[1] != 3:
            yield Fault("actions", f"must have shape [n, 3], got {self.actions.shape}")
            return
        offsets, ends = self.rank_offsets, (0, len(self.actions))
        if len(offsets) != self.num_ranks + 1 or (offsets[0], offsets[-1]) != ends:
            yield Fault("rank_offsets", f"must run from 0 to {ends[1]}, one per rank and an end")
        elif (offsets[1:] < offsets[:-1]).any():
            yield Fault("rank_offsets", "must ascend")
        # Checked here because tables of this size are made.
        num_stages = self.placement.num_stages
        if num_stages * self.num_microbatches > len(self.actions):
            problem = f"must hold F of {num_stages} stages x {self.num_microbatches} microbatches"
            yield Fault("actions", f"{problem}, got {len(self.actions)} rows")

    def _faults(self) -> Iterator[Fault]:
        """What else is wrong with the rows, asked where `actions` has its shape."""
        return iter(())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, type(self))
            and self.placement == other.placement
            and self.num_microbatches == other.num_microbatches
            and np.array_equal(self.rank_offsets, other.rank_offsets)
            and np.array_equal(self.actions, other.actions)
            and np.array_equal(self.pairs, other.pairs)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def num_ranks(self) -> int:
        """p: pipeline positions."""
        return self.placement.num_ranks

    @property
    def rank_of_row(self) -> NDArray[np.int64]:
        """The rank that runs each row, shape [n]."""
        return np.repeat(np.arange(self.num_ranks), np.diff(self.rank_offsets))

    def rows_of(self, rank: int) -> slice:
        """The rows of one rank."""
        return slice(int(self.rank_offsets[rank]), int(self.rank_offsets[rank + 1]))
