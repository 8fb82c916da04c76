"""What PyTorch's pipeline runtime cannot run, or runs with wrong gradients (torch 2.13).

It keeps the losses in the order in which the last stage ran its forwards and looks them up by
microbatch: in any other order than 0, 1, … the gradients are silently those of other microbatches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainwright.errors import UnsupportedFeature
from trainwright.plan.schedule import ActionKind, Schedule


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
    idle = np.flatnonzero(np.diff(schedule.rank_offsets) == 0)
    if len(idle):
        yield UnsupportedFeature(
            f"PyTorch needs an action on every rank, and rank {idle[0]} has none",
            alternative="place a stage there, or use fewer ranks",
        )
