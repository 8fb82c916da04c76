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
    """`kept_bytes` and `time_s` of kind k lie from `offset[k]` to `offset[k + 1]`.

    `level_bytes` [K] are the least transients of any way to run the kind, `most_level_bytes` of all
    ways. Kinds that cannot be run, and those longer than asked for, have none.
    """

    offset: Ints
    kept_bytes: Floats
    time_s: Floats
    level_bytes: Floats
    most_level_bytes: Floats

    @classmethod
    def of(cls, kinds: StageKinds, longest: int) -> PackedFronts:
        """Of all kinds of up to `longest` layers, whichever transients their ways need."""
        sizes = kinds.counts.sum(axis=1)
        lengths, kept, times = [0], [], []
        lowest, highest = np.zeros(len(sizes)), np.zeros(len(sizes))
        for kind, levels in enumerate(kinds.levels_of):
            found = 0
            if levels and sizes[kind] <= longest:
                front = kinds.front(kind, levels[-1])
                found = len(front.time_s)
                kept.append(front.kept_bytes)
                times.append(front.time_s)
                lowest[kind] = kinds.level_bytes[levels[0]]
                highest[kind] = kinds.level_bytes[levels[-1]]
            lengths.append(found)
        return cls(
            offset=np.cumsum(lengths),
            kept_bytes=np.concatenate([*kept, np.zeros(0)]),
            time_s=np.concatenate([*times, np.zeros(0)]),
            level_bytes=lowest,
            most_level_bytes=highest,
        )


def packed_fronts(kinds: StageKinds, longest: int) -> PackedFronts:
    """`PackedFronts.of`, kept for the longest that was asked for."""
    for most, packed in kinds.packed.items():
        if most >= longest:
            return packed
    generous = min(kinds.num_layers, max(8, longest + longest // 4))
    kinds.packed.clear()
    kinds.packed[generous] = PackedFronts.of(kinds, generous)
    return kinds.packed[generous]
