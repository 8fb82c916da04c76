"""A placement on the event simulator: what 1F1B makes of it, where the price assumes equal rounds.

The price of a batch has every stage take as long as the slowest. In a 1F1B pipeline of unequal
stages the quicker ones fill and drain sooner, so the simulated batch is never longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright._native import _core

if TYPE_CHECKING:
    from trainwright.partitioning.placement_price import PlacedCost, PlacedPlan
    from trainwright.profile.placement_case import PlacementCase

_MOST_ACTIONS: Final = 20_000_000


def simulated_time_s(plan: PlacedPlan, cost: PlacedCost, case: PlacementCase) -> float | None:
    """Seconds of a batch: the replica with most microbatches, then the gradients.

    `None` for a strategy with empty stages, and beyond 20 million actions.
    """
    share = -(-case.setting.num_microbatches // plan.data_parallel)
    stages = cost.stages
    if plan.depth != len(stages) or share * len(stages) > _MOST_ACTIONS:
        return None
    count = len(stages)
    ends_s = _core.one_f_one_b_ends_s(
        forward_s=np.array([stage.forward_s for stage in stages]),
        backward_s=np.array([stage.backward_s for stage in stages]),
        in_flight=np.array([stage.microbatches_in_flight for stage in stages], dtype=np.int64),
        replicas=np.ones(count, dtype=np.int64),
        feed_offset=np.minimum(np.arange(count + 1), count - 1).astype(np.int64),
        feed_target=np.arange(1, count, dtype=np.int32),
        feed_s=np.zeros(count - 1),
        num_microbatches=share,
    )
    return float(ends_s.max()) + cost.gradient_sync_s
