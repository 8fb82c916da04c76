"""A lowered schedule: orders in which every transfer is an action of its own.

What a runtime executes. Compute actions keep their letters; SEND and RECV name the stage that does
it and the microbatch; the three that manage parameters name a stage only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature
from trainwright.plans.schedule import ActionKind, RankOrders, Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_MICROBATCH = -1


class LoweredKind(IntEnum):
    """What a rank does; those before SEND_F are `ActionKind`'s."""

    F = ActionKind.F
    I = ActionKind.I  # noqa: E741
    W = ActionKind.W
    B = ActionKind.B
    R = ActionKind.R
    O = ActionKind.O  # noqa: E741
    D = ActionKind.D
    L = ActionKind.L
    V = ActionKind.V
    T = ActionKind.T
    SEND_F = 10
    RECV_F = 11
    SEND_B = 12
    RECV_B = 13
    UNSHARD = 14
    RESHARD = 15
    REDUCE_GRAD = 16


PARAMETER_KINDS = frozenset({LoweredKind.UNSHARD, LoweredKind.RESHARD, LoweredKind.REDUCE_GRAD})
_STEP = re.compile(
    rf"(\d{{1,9}})({'|'.join(kind.name for kind in LoweredKind)})(\d{{0,9}})", re.ASCII
)


class LoweredAction(NamedTuple):
    """One step of a rank; `microbatch` is -1 where the kind has none."""

    kind: LoweredKind
    stage: int
    microbatch: int = NO_MICROBATCH

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.name}{self.microbatch if self.microbatch >= 0 else ''}"

    @classmethod
    def parse(cls, text: str) -> LoweredAction:
        """Read `3SEND_F0` or `3UNSHARD`; the whole text must match."""
        match = _STEP.fullmatch(text)
        kind = LoweredKind[match[2]] if match else None
        if match is None or kind is None or (kind in PARAMETER_KINDS) != (not match[3]):
            problem = f'must look like "3F0", "3SEND_F0" or "3UNSHARD", got "{text}"'
            raise InvalidInput.of("action", problem)
        return cls(kind, int(match[1]), int(match[3] or NO_MICROBATCH))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoweredSchedule(RankOrders):
    """Per-rank orders of n steps: [n, 3] `LoweredKind`, stage, microbatch."""

    def _faults(self) -> Iterator[Fault]:
        kinds, stages, microbatches = self.actions.T
        bare = np.isin(kinds, list(PARAMETER_KINDS))
        checks = (
            ("kind", kinds, len(LoweredKind)),
            ("stage", stages, self.placement.num_stages),
            ("microbatch", microbatches[~bare], self.num_microbatches),
        )
        for name, values, size in checks:
            for worst in values[(values < 0) | (values >= size)][:1]:
                yield Fault("actions", f"{name} must be from 0 to {size - 1}, got {worst}")
        if (microbatches[bare] != NO_MICROBATCH).any():
            yield Fault("actions", "UNSHARD, RESHARD and REDUCE_GRAD have no microbatch")

    def step(self, row: int) -> LoweredAction:
        """The step in one row."""
        kind, stage, microbatch = self.actions[row].tolist()
        return LoweredAction(LoweredKind(kind), stage, microbatch)

    def order(self, rank: int) -> tuple[LoweredAction, ...]:
        """The steps of one rank, in the order it runs them."""
        rows = self.actions[self.rows_of(rank)].tolist()
        return tuple(LoweredAction(LoweredKind(kind), stage, mb) for kind, stage, mb in rows)

    def without(self, rows: int | NDArray[np.int64]) -> LoweredSchedule:
        """The same orders less some rows."""
        kept = np.ones(len(self.actions), bool)
        kept[rows] = False
        before = np.concatenate([[0], np.cumsum(kept)])
        return replace(
            self,
            actions=self.actions[kept],
            rank_offsets=before[self.rank_offsets],
            pairs=before[self.pairs],
        )

    def compute_only(self) -> Schedule:
        """The orders without transfers and without steps that manage parameters."""
        bare = self.without(np.flatnonzero(self.actions[:, 0] >= LoweredKind.SEND_F))
        return Schedule(
            placement=self.placement,
            num_microbatches=self.num_microbatches,
            actions=bare.actions,
            rank_offsets=bare.rank_offsets,
            pairs=bare.pairs,
            num_slices=self.num_slices,
        )


# What PyTorch's pipeline runtime cannot run, or runs with wrong gradients (torch 2.13)
# -------------------------------------------------------------------------------------
# It keeps the losses in the order in which the last stage ran its forwards and looks them up by
# microbatch: in any other order than 0, 1, … the gradients are silently those of other
# microbatches.


def refuse_inexpressible(schedule: Schedule) -> None:
    """Raise UnsupportedFeature, naming what can be done instead, for what has no equivalent."""
    for refusal in _inexpressible(schedule):
        raise refusal


def refuse_misordered(schedule: Schedule) -> None:
    """Raise UnsupportedFeature where the last stage meets its microbatches in another order."""
    order = schedule.forward_order(schedule.placement.num_stages - 1)
    if (order != np.arange(len(order))).any():
        shown = ", ".join(map(str, order[:4].tolist()))
        raise UnsupportedFeature(
            "PyTorch gives wrong gradients unless the last stage runs forwards in order 0, 1, …; "
            f"got {shown}",
            alternative="number the microbatches in that order",
        )


def _inexpressible(schedule: Schedule) -> Iterator[UnsupportedFeature]:
    if (schedule.actions[:, 0] == ActionKind.R).any():
        yield UnsupportedFeature(
            "PyTorch schedules have no recompute action",
            alternative="checkpoint inside the module and order without R",
        )
    if schedule.placement.num_pipelines > 1:
        yield UnsupportedFeature(
            "PyTorch schedules have one copy of the model",
            alternative="take a family with one pipeline, such as dualpipe-v",
        )
    if schedule.num_slices > 1:
        yield UnsupportedFeature(
            "PyTorch schedules run whole microbatches, not slices of their tokens",
            alternative="take smaller microbatches",
        )
    if not schedule.is_plain:
        yield UnsupportedFeature(
            "PyTorch schedules have no actions of a host link or of a head cut over ranks",
            alternative="take a family without O, D, L, V and T",
        )
    idle = np.flatnonzero(np.diff(schedule.rank_offsets) == 0)
    if len(idle):
        yield UnsupportedFeature(
            f"PyTorch needs an action on every rank, and rank {idle[0]} has none",
            alternative="place a stage there, or use fewer ranks",
        )
