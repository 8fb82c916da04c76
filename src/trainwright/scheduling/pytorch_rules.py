"""A schedule in the terms of PyTorch's pipeline runtime, where it can be put so.

The last stage must meet the microbatches in order 0..m-1 (`plan.pytorch_limits` says why). Nothing
tells microbatches apart but their number, so the numbers are changed, alike on all ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.pytorch_limits import refuse_inexpressible
from trainwright.scheduling.validate import validate

if TYPE_CHECKING:
    from trainwright.plan.schedule import Schedule


def meets_in_order(schedule: Schedule) -> bool:
    """Whether microbatches are already numbered as the last stage meets them."""
    met = schedule.forward_order(schedule.placement.num_stages - 1)
    return bool((met == np.arange(len(met))).all())


def as_pytorch_runs(schedule: Schedule) -> Schedule:
    """The same schedule with microbatches numbered as the last stage meets them; O(actions).

    Raises InvalidInput where it is no legal schedule, and UnsupportedFeature, naming what can be
    done instead, where PyTorch cannot run it.
    """
    refuse_inexpressible(schedule)
    validate(schedule)
    met = schedule.forward_order(schedule.placement.num_stages - 1)
    number = np.empty_like(met)
    number[met] = np.arange(len(met))
    actions = schedule.actions.copy()
    actions[:, 2] = number[actions[:, 2]]
    return replace(schedule, actions=actions)
