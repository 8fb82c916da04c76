"""What makes lowered orders run and give the right gradients.

1. The computations alone are a legal schedule, and nothing comes between those of a pair.
2. Each tensor another rank needs is sent once, after it was made, and received once, before it is
   used; nothing else is sent or received.
3. For each ordered pair of ranks, what is sent first is received first: messages carry no name.
4. Each stage has REDUCE_GRAD once, after its last weight gradient: it also divides by m.
5. A stage that is ever gathered is whole whenever it computes, and gathered and dropped in turn.
6. With blocking receives, every rank gets to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.lowered import LoweredKind, LoweredSchedule
from trainwright.scheduling.deadlock import describe_cycle
from trainwright.scheduling.lowered_deadlock import Matches, find_lowered_cycle
from trainwright.scheduling.validate import validate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]

_MISSING = -1


class _Direction(NamedTuple):
    """One way tensors travel: which kinds make, send, receive and use them, and where they go."""

    producers: tuple[LoweredKind, ...]
    send: LoweredKind
    receive: LoweredKind
    step: int


_DIRECTIONS = (
    _Direction((LoweredKind.F,), LoweredKind.SEND_F, LoweredKind.RECV_F, 1),
    _Direction((LoweredKind.I, LoweredKind.B), LoweredKind.SEND_B, LoweredKind.RECV_B, -1),
)


def validate_lowered(lowered: LoweredSchedule, *, rendezvous: bool = False) -> None:
    """Raise InvalidInput with the first law the orders break; O(n log n).

    With `rendezvous`, sends wait for their receivers, as where messages are not buffered.
    """
    validate(lowered.compute_only())
    for law in (_owned, _paired, _once, _in_order, _reduced, _gathered):
        for fault in law(lowered):
            raise InvalidInput((fault,))
    matches = _matches(lowered)
    for fault in _same_sequences(lowered, matches):
        raise InvalidInput((fault,))
    cycle = find_lowered_cycle(lowered, matches, rendezvous=rendezvous)
    if cycle:
        raise InvalidInput.of("orders", describe_cycle(cycle))


def _owned(lowered: LoweredSchedule) -> Iterator[Fault]:
    owner = np.array(lowered.placement.rank_of_stage)[lowered.actions[:, 1]]
    for row in np.flatnonzero(owner != lowered.rank_of_row).tolist():
        problem = f"{lowered.step(row)} must be on rank {owner[row]}, which owns its stage"
        yield Fault(_place(lowered, row), problem)


def _paired(lowered: LoweredSchedule) -> Iterator[Fault]:
    for row in lowered.pairs[lowered.actions[lowered.pairs + 1, 0] > LoweredKind.R].tolist():
        yield Fault(_place(lowered, row + 1), "must not stand between the two actions of a pair")


def _once(lowered: LoweredSchedule) -> Iterator[Fault]:
    """Each transfer that the placement makes necessary, and no other."""
    rank = np.array(lowered.placement.rank_of_stage)
    for direction in _DIRECTIONS:
        for kind, step in ((direction.send, direction.step), (direction.receive, -direction.step)):
            wanted = np.zeros(len(rank), np.int64)
            stages = np.arange(len(rank))
            other = stages + step
            inside = (other >= 0) & (other < len(rank))
            wanted[inside] = rank[other[inside]] != rank[inside]
            found = _counts(lowered, kind)
            for stage, microbatch in np.argwhere(found != wanted[:, None]):
                name = f"{stage}{kind.name}{microbatch}"
                count = found[stage, microbatch]
                yield Fault("orders", f"{name} must appear {wanted[stage]} times, got {count}")


def _in_order(lowered: LoweredSchedule) -> Iterator[Fault]:
    """On each rank: made, then sent; received, then used."""
    for direction in _DIRECTIONS:
        made = _rows_of(lowered, direction.producers)
        for kind, before in ((direction.send, False), (direction.receive, True)):
            moved = _rows_of(lowered, (kind,))
            wrong = (moved != _MISSING) & ((moved > made) if before else (moved < made))
            for row, other in zip(moved[wrong].tolist(), made[wrong].tolist(), strict=True):
                word = "before" if before else "after"
                problem = f"{lowered.step(row)} must come {word} {lowered.step(other)}"
                yield Fault(_place(lowered, row), problem)


def _matches(lowered: LoweredSchedule) -> Matches:
    """The k-th send from one rank to another and the k-th receive there, over all pairs."""
    kind, stage, _ = lowered.actions.T
    rank = np.array(lowered.placement.rank_of_stage)
    pair = np.zeros(len(kind), np.int64)
    sends, receives = np.zeros(len(kind), bool), np.zeros(len(kind), bool)
    for direction in _DIRECTIONS:
        sent, received = kind == direction.send, kind == direction.receive
        pair[sent] = rank[stage[sent]] * len(rank) + rank[stage[sent] + direction.step]
        pair[received] = rank[stage[received] - direction.step] * len(rank) + rank[stage[received]]
        sends |= sent
        receives |= received
    by_pair = [
        rows[np.argsort(pair[rows], kind="stable")]
        for rows in (np.flatnonzero(sends), np.flatnonzero(receives))
    ]
    return Matches(*by_pair)


def _same_sequences(lowered: LoweredSchedule, matches: Matches) -> Iterator[Fault]:
    sent, received = lowered.actions[matches.send], lowered.actions[matches.receive]
    step = np.where(sent[:, 0] == LoweredKind.SEND_F, 1, -1)
    same = (
        (received[:, 0] == sent[:, 0] + 1)
        & (received[:, 1] == sent[:, 1] + step)
        & (received[:, 2] == sent[:, 2])
    )
    for at in np.flatnonzero(~same).tolist():
        send, receive = int(matches.send[at]), int(matches.receive[at])
        sender = lowered.rank_of_row[send]
        problem = f"{lowered.step(receive)} gets what rank {sender} sent as {lowered.step(send)}"
        yield Fault(_place(lowered, receive), f"{problem}; receive in the order of sending")


def _reduced(lowered: LoweredSchedule) -> Iterator[Fault]:
    rows = np.arange(len(lowered.actions))
    kind, stage = lowered.actions[:, 0], lowered.actions[:, 1]
    reduces = kind == LoweredKind.REDUCE_GRAD
    counts = np.bincount(stage[reduces], minlength=lowered.placement.num_stages)
    for wrong in np.flatnonzero(counts != 1).tolist():
        problem = f"{wrong}REDUCE_GRAD must appear once, got {counts[wrong]}"
        yield Fault("orders", f"{problem}; it divides the gradients by the microbatches")
    last = np.zeros(lowered.placement.num_stages, np.int64)
    grads = (kind == LoweredKind.W) | (kind == LoweredKind.B)
    np.maximum.at(last, stage[grads], rows[grads])
    for row in rows[reduces][rows[reduces] < last[stage[reduces]]].tolist():
        problem = f"{lowered.step(row)} must come after {lowered.step(int(last[stage[row]]))}"
        yield Fault(_place(lowered, row), problem)


def _gathered(lowered: LoweredSchedule) -> Iterator[Fault]:
    kind, stage = lowered.actions[:, 0], lowered.actions[:, 1]
    change = np.select([kind == LoweredKind.UNSHARD, kind == LoweredKind.RESHARD], [1, -1], 0)
    computes = kind <= LoweredKind.R
    for sharded in np.unique(stage[change != 0]).tolist():
        rows = np.flatnonzero((stage == sharded) & (computes | (change != 0)))
        whole = np.cumsum(change[rows])
        wrong = (whole < 0) | (whole > 1) | (computes[rows] & (whole == 0))
        for row in rows[wrong].tolist():
            step = lowered.step(row)
            rule = "between UNSHARD and RESHARD" if step.kind <= LoweredKind.R else "in turn"
            yield Fault(_place(lowered, row), f"{step} must come {rule}")


def _counts(lowered: LoweredSchedule, kind: LoweredKind) -> Rows:
    shape = (lowered.placement.num_stages, lowered.num_microbatches)
    found = lowered.actions[lowered.actions[:, 0] == kind]
    flat = found[:, 1].astype(np.int64) * shape[1] + found[:, 2]
    return np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape)


def _rows_of(lowered: LoweredSchedule, kinds: tuple[LoweredKind, ...]) -> Rows:
    """Row of the step of one of `kinds`, by stage and microbatch; -1 where there is none."""
    table = np.full(
        (lowered.placement.num_stages, lowered.num_microbatches), _MISSING, dtype=np.int64
    )
    rows = np.flatnonzero(np.isin(lowered.actions[:, 0], kinds))
    table[lowered.actions[rows, 1], lowered.actions[rows, 2]] = rows
    return table


def _place(lowered: LoweredSchedule, row: int) -> str:
    rank = int(np.searchsorted(lowered.rank_offsets, row, side="right")) - 1
    return f"orders[{rank}][{row - lowered.rank_offsets[rank]}]"
