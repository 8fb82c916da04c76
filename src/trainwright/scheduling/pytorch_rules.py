"""What PyTorch's pipeline runtime can run, and how to put a schedule in its terms.

Facts of `_PipelineScheduleRuntime` (torch 2.13). It keeps the losses in the order in which the last
stage ran its forwards and looks them up by microbatch: in any other order than 0..m-1 the gradients
are silently those of other microbatches. Nothing tells microbatches apart but their number, so the
numbers are changed. There is no recompute action, and each rank must have something to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import UnsupportedFeature
from trainwright.plan.schedule import ActionKind
from trainwright.scheduling.validate import validate

if TYPE_CHECKING:
    from trainwright.plan.schedule import Schedule


def as_pytorch_runs(schedule: Schedule) -> Schedule:
    """The same schedule with microbatches numbered as the last stage meets them; O(actions).

    Raises InvalidInput where it is no legal schedule, and UnsupportedFeature, naming what can be
    done instead, where PyTorch cannot run it.
    """
    for refusal in _refusals(schedule):
        raise refusal
    validate(schedule)
    met = schedule.forward_order(schedule.placement.num_stages - 1)
    number = np.empty_like(met)
    number[met] = np.arange(len(met))
    actions = schedule.actions.copy()
    actions[:, 2] = number[actions[:, 2]]
    return replace(schedule, actions=actions)


def _refusals(schedule: Schedule) -> Iterator[UnsupportedFeature]:
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
