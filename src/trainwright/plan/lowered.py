"""A lowered schedule: orders in which every transfer is an action of its own.

What a runtime executes. Compute actions keep their letters; SEND and RECV name the stage that does
it and the microbatch; the three that manage parameters name a stage only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.errors import InvalidInput
from trainwright.plan.placement import Placement
from trainwright.plan.schedule import ActionKind

if TYPE_CHECKING:
    from numpy.typing import NDArray


class LoweredKind(IntEnum):
    """What a rank does; the first five are `ActionKind`'s."""

    F = ActionKind.F
    I = ActionKind.I  # noqa: E741
    W = ActionKind.W
    B = ActionKind.B
    R = ActionKind.R
    SEND_F = 5
    RECV_F = 6
    SEND_B = 7
    RECV_B = 8
    UNSHARD = 9
    RESHARD = 10
    REDUCE_GRAD = 11


class LoweredAction(NamedTuple):
    """One step of a rank; `microbatch` is -1 where the kind has none."""

    kind: LoweredKind
    stage: int
    microbatch: int = -1

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.name}{self.microbatch if self.microbatch >= 0 else ''}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoweredSchedule:
    """Per-rank orders of n steps, laid out as in `Schedule`: [n, 3] kind, stage, microbatch."""

    placement: Placement
    num_microbatches: int
    actions: NDArray[np.int32]
    rank_offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.actions.ndim != 2 or self.actions.shape[1] != 3:
            raise InvalidInput.of("actions", f"must have shape [n, 3], got {self.actions.shape}")
        for array in (self.actions, self.rank_offsets):
            array.flags.writeable = False

    def order(self, rank: int) -> tuple[LoweredAction, ...]:
        """The steps of one rank, in the order it runs them."""
        rows = self.actions[int(self.rank_offsets[rank]) : int(self.rank_offsets[rank + 1])]
        return tuple(
            LoweredAction(LoweredKind(kind), stage, mb) for kind, stage, mb in rows.tolist()
        )
