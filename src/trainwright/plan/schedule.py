"""A pipeline schedule: for each rank the order of its actions, without times.

Letters are PyTorch's: F forward, I gradient of the input, W gradient of the weights, B the fused
backward (I and W as one action), R recomputation of dropped activations. The zero-bubble papers
write B for our I.

Orders are kept as one array, an action per row, because 64 ranks × 512 microbatches × 2 chunks are
196,608 actions; `Action` objects are made on demand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.placement import Placement
from trainwright.plan.rank_orders import RankOrders

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Actions = NDArray[np.int32]


class ActionKind(IntEnum):
    """What a rank computes; also the row of every table by kind."""

    F = 0
    I = 1  # noqa: E741
    W = 2
    B = 3
    R = 4


class Action(NamedTuple):
    """One computation of one microbatch on one virtual stage, printed as PyTorch does: `3F0`."""

    kind: ActionKind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.name}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read `3F0`; the whole text must match."""
        match = re.fullmatch(r"(\d{1,9})([FIWBR])(\d{1,9})", text, re.ASCII)
        if match is None:
            raise InvalidInput.of("action", f'must look like "3F0", got "{text}"')
        return cls(ActionKind[match[2]], int(match[1]), int(match[3]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule(RankOrders):
    """Per-rank orders of n actions: [n, 3] `ActionKind`, stage, microbatch.

    The forwards of `pairs` may overlap with the backward in the next row, as DualPipeV does; they
    run one after the other unless the costs say how long a pair takes.

    Only the shape is checked here; whether the orders are a legal schedule is
    `scheduling.validate`'s question.
    """

    def _faults(self) -> Iterator[Fault]:
        sizes = (len(ActionKind), self.placement.num_stages, self.num_microbatches)
        if len(self.actions):
            unsigned = self.actions.view(np.uint32)  # a negative number is too large a one
            for column, (name, size) in enumerate(zip(Action._fields, sizes, strict=True)):
                if (worst := int(unsigned[:, column].max())) >= size:
                    got = int(np.uint32(worst).astype(np.int32))
                    yield Fault("actions", f"{name} must be from 0 to {size - 1}, got {got}")

    @classmethod
    def of_ranks(
        cls,
        orders: Sequence[Actions],
        *,
        placement: Placement,
        num_microbatches: int,
        pairs: NDArray[np.int64] | None = None,
    ) -> Schedule:
        """Build from one [n_r, 3] array per rank."""
        offsets = np.zeros(len(orders) + 1, np.int64)
        np.cumsum([len(order) for order in orders], out=offsets[1:])
        return cls(
            placement=placement,
            num_microbatches=num_microbatches,
            actions=np.concatenate(orders) if orders else np.zeros((0, 3), np.int32),
            rank_offsets=offsets,
            pairs=np.zeros(0, np.int64) if pairs is None else pairs,
        )

    @classmethod
    def from_orders(
        cls, orders: Sequence[Sequence[Action]], *, pairs: Sequence[int] = ()
    ) -> Schedule:
        """Build from written orders; the placement follows from which rank runs which stage."""
        stages = [sorted({action.stage for action in order}) for order in orders]
        last = max((action.microbatch for order in orders for action in order), default=-1)
        return cls.of_ranks(
            [np.array(order, np.int32).reshape(-1, 3) for order in orders],
            placement=Placement.from_ranks(stages),
            num_microbatches=last + 1,
            pairs=np.array(pairs, np.int64),
        )

    @property
    def num_actions(self) -> int:
        """Actions over all ranks."""
        return len(self.actions)

    def action(self, row: int) -> Action:
        """The action in one row."""
        kind, stage, microbatch = self.actions[row].tolist()
        return Action(ActionKind(kind), stage, microbatch)

    def order(self, rank: int) -> tuple[Action, ...]:
        """The actions of one rank, in the order it runs them."""
        rows = self.actions[self.rows_of(rank)].tolist()
        return tuple(Action(ActionKind(kind), stage, mb) for kind, stage, mb in rows)

    def forward_order(self, stage: int) -> NDArray[np.int32]:
        """The microbatches of a stage in the order in which it runs their forwards."""
        forwards = (self.actions[:, 0] == ActionKind.F) & (self.actions[:, 1] == stage)
        microbatches: NDArray[np.int32] = self.actions[forwards, 2]
        return microbatches

    @property
    def peak_activations(self) -> tuple[int, ...]:
        """Most chunk activations each rank holds at once: F adds one, W or B releases one.

        A rank runs its actions one after the other, so this needs no times.
        """
        step = np.array([1, 0, -1, -1, 0])[self.actions[:, 0]]
        slices = map(self.rows_of, range(self.num_ranks))
        return tuple(int(np.cumsum(step[rows]).max(initial=0)) for rows in slices)
