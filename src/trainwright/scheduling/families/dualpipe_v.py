"""DualPipeV: two chunks in V, forwards of one paired with backwards of the other (DeepSeek, 2025).

Eight phases per rank. A pair of a forward and a backward may take less time than both, if the costs
say so; weight gradients are split off only near the end, where they fill.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import Fault
from trainwright.plan.schedule import Action, ActionKind, Schedule
from trainwright.scheduling.families.family import Family, two_chunks_in_v

if TYPE_CHECKING:
    from trainwright.scheduling.families.family import FamilyRequest

_F, _I, _W, _B, _R = ActionKind


def order(request: FamilyRequest) -> Schedule:
    """All ranks in turn."""
    p, m = request.num_ranks, request.num_microbatches
    ranks = [_RankWriter(p, rank) for rank in range(p)]
    for writer in ranks:
        writer.write(m)
    orders, pairs, first_row = [], [], 0
    for writer in ranks:
        orders.append(np.array(writer.actions, np.int32))
        pairs += [first_row + position for position in writer.pairs]
        first_row += len(writer.actions)
    return Schedule.of_ranks(
        orders,
        placement=two_chunks_in_v(request),
        num_microbatches=m,
        pairs=np.array(pairs, np.int64),
    )


class _RankWriter:
    """Writes the order of one rank; counts microbatches per kind and chunk."""

    def __init__(self, num_ranks: int, rank: int) -> None:
        self.num_ranks, self.rank = num_ranks, rank
        self.stages = (rank, 2 * num_ranks - 1 - rank)
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.queue: list[Action] = []
        self.actions: list[Action] = []
        self.pairs: list[int] = []

    def forward(self, chunk: int) -> None:
        self.actions.append(Action(_F, self.stages[chunk], self.forwards[chunk]))
        self.forwards[chunk] += 1

    def backward(self, chunk: int, *, kind: ActionKind = _B) -> None:
        """B, or I with its W queued."""
        action = Action(kind, self.stages[chunk], self.backwards[chunk])
        self.actions.append(action)
        self.backwards[chunk] += 1
        if kind is _I:
            self.queue.append(action._replace(kind=_W))

    def weight_grad(self) -> None:
        self.actions.append(self.queue.pop(0))

    def pair(self, forward_chunk: int) -> None:
        self.pairs.append(len(self.actions))
        self.forward(forward_chunk)
        self.backward(1 - forward_chunk)

    def write(self, num_microbatches: int) -> None:
        before, after = self.rank, self.num_ranks - 1 - self.rank
        for _ in repeat(None, 2 * after):
            self.forward(0)
        for _ in repeat(None, before + 1):
            self.forward(0)
            self.forward(1)
        for _ in repeat(None, after):
            self.backward(1, kind=_I)
            self.weight_grad()
            self.forward(1)
        for turn in range(num_microbatches - 2 * self.num_ranks + before + 1):
            self.pair(0)
            if turn == 0 and after == 0:
                self.pairs.pop()  # the last rank's first backward needs its forward done
            self.pair(1)
        for _ in repeat(None, after):
            self.backward(1)
            self.pair(1)
        self._split_in_the_middle(before + 1)
        for _ in repeat(None, after):
            self.weight_grad()
            self.backward(0, kind=_I)
        for _ in repeat(None, before + 1):
            self.weight_grad()

    def _split_in_the_middle(self, steps: int) -> None:
        """Backwards of both chunks; from the middle on their weight gradients wait."""
        kind = _B
        for step in range(steps):
            if step == steps // 2 and self.rank % 2 == 1:
                kind = _I
            self.backward(1, kind=kind)
            if step == steps // 2 and self.rank % 2 == 0:
                kind = _I
            self.backward(0, kind=kind)


def rules(request: FamilyRequest) -> Iterator[Fault]:
    """The phases need 2p microbatches."""
    p, m = request.num_ranks, request.num_microbatches
    if m < 2 * p:
        yield Fault(
            "num_microbatches",
            f"must be >= {2 * p}, twice the ranks, for dualpipe-v, got {m}; zb-v takes any number",
        )


DUALPIPE_V = Family(
    name="dualpipe-v",
    summary="V of two chunks, forward and backward in overlapping pairs",
    place=two_chunks_in_v,
    order=order,
    rules=rules,
)
