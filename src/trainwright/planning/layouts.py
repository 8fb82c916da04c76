"""All pairs of pipeline depth and data degree of a point, as arrays.

There are thousands of pairs per point and most are never looked at alone, so they are bounded all
at once (`pair_batch`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainwright.profile.setting import divisors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.planning.allowed import Allowed
    from trainwright.planning.model_space import Point

    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layouts:
    """N pairs: ranks of the pipeline, replicas, microbatches of one replica, chunks per rank.

    `inside` says where the pipeline lies inside the replicas (`plan.axis_order`), `copies` is how
    many groups of replicas each hold all sharded state.
    """

    pipeline: Ints
    data: Ints
    num_microbatches: Ints
    virtual_stages: Ints
    inside: Flags
    copies: Ints

    @property
    def size(self) -> int:
        """N."""
        return len(self.pipeline)

    def at(self, kept: Ints | NDArray[np.bool_] | slice) -> Layouts:
        """Some of the pairs."""
        return Layouts(
            pipeline=self.pipeline[kept],
            data=self.data[kept],
            num_microbatches=self.num_microbatches[kept],
            virtual_stages=self.virtual_stages[kept],
            inside=self.inside[kept],
            copies=self.copies[kept],
        )


def joined(parts: Sequence[Layouts]) -> Layouts:
    """The pairs of all parts, in their order."""
    return Layouts(
        pipeline=np.concatenate([part.pipeline for part in parts]),
        data=np.concatenate([part.data for part in parts]),
        num_microbatches=np.concatenate([part.num_microbatches for part in parts]),
        virtual_stages=np.concatenate([part.virtual_stages for part in parts]),
        inside=np.concatenate([part.inside for part in parts]),
        copies=np.concatenate([part.copies for part in parts]),
    )


def layouts_of(
    point: Point, allowed: Allowed, *, num_devices: int, num_blocks: int, num_microbatches: int
) -> Layouts:
    """Depths up to one block per stage by data degrees that divide the microbatches.

    `num_microbatches` is that of the whole batch. Experts are dealt out evenly over the devices of
    a rank. By depth, the largest data degree first.
    """
    room = num_devices // point.devices
    depths = [p for p in range(1, min(num_blocks, room) + 1) if p in allowed.pipeline]
    degrees = [
        d
        for d in reversed(divisors(num_microbatches))
        if d <= room and d in allowed.data and point.devices * d % point.expert_devices == 0
    ]
    pipeline = np.repeat(np.array(depths, np.int64), len(degrees))
    data = np.tile(np.array(degrees, np.int64), len(depths))
    fits = pipeline * data <= room
    pipeline, data = pipeline[fits], data[fits]
    return Layouts(
        pipeline=pipeline,
        data=data,
        num_microbatches=num_microbatches // data,
        virtual_stages=np.ones_like(pipeline),
        inside=np.zeros(len(pipeline), np.bool_),
        copies=np.ones_like(pipeline),
    )
