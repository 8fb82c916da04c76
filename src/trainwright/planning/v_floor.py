"""A bound on the step of one split in V, whatever order of so many activations is found.

The times of all stages are known here, so a path through forwards and input gradients bounds what
no rank by itself does (`scheduling.bounds`). It takes a millisecond, an order ten to a hundred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.plan.schedule_bound import Objective
from trainwright.planning.v_memory import MOST_ACTIVATIONS
from trainwright.pricing.assemble import pipeline_times, sharing_times
from trainwright.pricing.pipeline_run import placement_of
from trainwright.pricing.sharding import RankState, optimizer_time_s
from trainwright.scheduling.bounds import best_bound
from trainwright.scheduling.least_costs import LeastCosts

if TYPE_CHECKING:
    from trainwright.pricing.assemble import Layout, StepWork

_HAIR: Final = 1e-8  # orders are made for times that are rounded


def least_step_of_v_s(work: StepWork, layout: Layout) -> float:
    """No step of the layout's family in V is shorter, in seconds."""
    shape = layout.shape
    placement = placement_of(shape)
    times = pipeline_times(work, sharing_times(work, layout), layout.overlap)
    costs = times.schedule_costs(placement)
    never = np.zeros(len(work.stages), dtype=bool)
    most = MOST_ACTIVATIONS[shape.family](shape.num_ranks)
    least = LeastCosts.of(placement, costs, max_activations=most, fused=never, recomputed=never)
    bound = best_bound(least, shape.num_microbatches, objective=Objective.MAKESPAN)
    optimizer_s = max(
        optimizer_time_s(
            RankState.of([work.stages[chunk] for chunk in work.chunks_of(rank)]),
            place.replicas,
            place.accelerator,
        )
        for rank, place in enumerate(layout.places)
    )
    return bound.value_s * (1 - _HAIR) + optimizer_s + layout.step_overhead_s
