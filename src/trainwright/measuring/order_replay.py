"""Every action of every rank in one process, in an order that each rank could have run.

Ranks are rows of a lowered schedule. Each goes on until it needs a message that is not there; what
is sent waits in a queue per ordered pair of ranks, without a name, as between real processes. What
an action does is up to a `Worker`: counting tokens (here) or real autograd (`autograd_replay`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from trainwright.errors import InvalidInput
from trainwright.plan.lowered import LoweredAction, LoweredKind

if TYPE_CHECKING:
    from trainwright.plan.lowered import LoweredSchedule

_SENT_FROM = {
    LoweredKind.RECV_F: (LoweredKind.SEND_F, -1),
    LoweredKind.RECV_B: (LoweredKind.SEND_B, 1),
}
_SENT_TO = {LoweredKind.SEND_F: 1, LoweredKind.SEND_B: -1}


class Worker(Protocol):
    """What steps do. Each raises InvalidInput, without a place, where something is not as it was
    promised."""

    def compute(self, step: LoweredAction) -> None:
        """Run F, I, W, B or R of a stage."""

    def send(self, step: LoweredAction) -> Any:
        """What SEND_F or SEND_B ships."""

    def receive(self, step: LoweredAction, message: Any) -> None:
        """Take what RECV_F or RECV_B brings."""

    def reduce(self, stage: int) -> None:
        """All gradients of a stage are there."""


def replay(lowered: LoweredSchedule, worker: Worker) -> int:
    """Run all steps; returns how many.

    Raises InvalidInput that names rank and position (`orders[rank][position]`): for the first step
    that cannot do what it says, and where no rank can go on.
    """
    orders = [lowered.order(rank) for rank in range(lowered.num_ranks)]
    queues: dict[tuple[int, int], deque[tuple[LoweredAction, Any]]] = {}
    owner = lowered.placement.rank_of_stage
    at = [0] * len(orders)
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            began = at[rank]
            while at[rank] < len(order) and _step(
                order[at[rank]], rank, at[rank], owner, queues, worker
            ):
                at[rank] += 1
            moved |= at[rank] > began
    stuck = [rank for rank, order in enumerate(orders) if at[rank] < len(order)]
    if stuck:
        waits = (f"rank {rank} waits at {orders[rank][at[rank]]}" for rank in stuck)
        raise InvalidInput.of(
            f"orders[{stuck[0]}][{at[stuck[0]]}]", f"no rank can go on: {', '.join(waits)}"
        )
    for (sender, receiver), queue in queues.items():
        if queue:
            problem = f"rank {receiver} never receives what rank {sender} sent as {queue[0][0]}"
            raise InvalidInput.of(f"orders[{receiver}]", problem)
    return sum(at)


def _step(
    step: LoweredAction,
    rank: int,
    position: int,
    owner: tuple[int, ...],
    queues: dict[tuple[int, int], deque[tuple[LoweredAction, Any]]],
    worker: Worker,
) -> bool:
    """Run one step; false where it has to wait."""
    place = f"orders[{rank}][{position}]"
    if owner[step.stage] != rank:
        raise InvalidInput.of(place, f"{step} is on rank {rank}, its stage on {owner[step.stage]}")
    try:
        if step.kind in _SENT_FROM:
            kind, offset = _SENT_FROM[step.kind]
            queue = queues.get((owner[step.stage + offset], rank))
            if not queue:
                return False
            sent, message = queue.popleft()
            if sent != LoweredAction(kind, step.stage + offset, step.microbatch):
                problem = f"{step} gets what was sent as {sent}"
                raise InvalidInput.of("orders", problem)
            worker.receive(step, message)
        elif step.kind in _SENT_TO:
            other = owner[step.stage + _SENT_TO[step.kind]]
            queues.setdefault((rank, other), deque()).append((step, worker.send(step)))
        elif step.kind is LoweredKind.REDUCE_GRAD:
            worker.reduce(step.stage)
        elif step.kind <= LoweredKind.R:
            worker.compute(step)
    except InvalidInput as error:
        raise InvalidInput.of(place, error.faults[0].problem) from None
    return True
