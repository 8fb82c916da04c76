"""The fronts of many kinds of stages in flat arrays, as a native search takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.planning.stage_kinds import StageKinds

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedFronts:
    """`kept_bytes` and `time_s` at level l lie from `offset[l]` to `offset[l + 1]`.

    Levels of kind k are `levels[k]` to `levels[k + 1]`, those of fewest transients first: at each
    all ways to run the kind that need `level_bytes` or less. A kind that cannot be run, or is
    longer than asked for, has none.
    """

    levels: Ints
    offset: Ints
    kept_bytes: Floats
    time_s: Floats
    level_bytes: Floats

    @classmethod
    def of(cls, kinds: StageKinds, longest: int) -> PackedFronts:
        """Of all kinds of up to `longest` layers, whichever transients their ways need."""
        levels, lengths, kept, times, level_bytes = [0], [0], [], [], []
        sizes = kinds.counts.sum(axis=1).tolist()
        for kind, (size, own) in enumerate(zip(sizes, kinds.levels_of, strict=True)):
            for level in own if size <= longest else ():
                front = kinds.front(kind, level)
                lengths.append(len(front.time_s))
                kept.append(front.kept_bytes)
                times.append(front.time_s)
                level_bytes.append(kinds.level_bytes[level])
            levels.append(len(level_bytes))
        return cls(
            levels=np.array(levels),
            offset=np.cumsum(lengths),
            kept_bytes=np.concatenate([*kept, np.zeros(0)]),
            time_s=np.concatenate([*times, np.zeros(0)]),
            level_bytes=np.array(level_bytes, dtype=np.float64),
        )

    def place(self, kind: int, point: int) -> tuple[int, int]:
        """Which of the levels of its kind a point is of, and where in that front."""
        level = int(np.searchsorted(self.offset, point, side="right")) - 1
        return level - int(self.levels[kind]), point - int(self.offset[level])


def packed_fronts(kinds: StageKinds, longest: int) -> PackedFronts:
    """`PackedFronts.of`, kept for the longest that was asked for."""
    for most, packed in kinds.packed.items():
        if most >= longest:
            return packed
    generous = min(kinds.num_layers, max(8, longest + longest // 4))
    kinds.packed.clear()
    kinds.packed[generous] = PackedFronts.of(kinds, generous)
    return kinds.packed[generous]
