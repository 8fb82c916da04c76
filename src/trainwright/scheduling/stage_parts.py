"""The same model in more, smaller stages: equal parts of every stage.

Cutting a stage of time t and activation a into f parts gives stages of t/f and a/f. A tensor
between two parts of one stage is assumed as large as the one leaving the stage, the last stage's
as the one entering it. Per-action overheads stay: more chunks pay them more often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.schedule_costs import ScheduleCosts
from trainwright.plan.schedule_memory import ScheduleMemory

if TYPE_CHECKING:
    from trainwright.plan.per_stage import Floats


def cut_stages(costs: ScheduleCosts, parts: int) -> ScheduleCosts:
    """Costs of S * `parts` stages, `parts` for each of the S described."""
    if parts == 1:
        return costs

    def shared(table: Floats) -> Floats:
        return np.repeat(table / parts, parts, axis=-1)

    def whole(table: Floats) -> Floats:
        return np.repeat(table, parts, axis=-1)

    memory = costs.memory
    return ScheduleCosts(
        compute_s=shared(costs.compute_s),
        overhead_s=whole(costs.overhead_s),
        forward_transfer_s=_transfers(costs.forward_transfer_s, parts),
        backward_transfer_s=_transfers(costs.backward_transfer_s, parts),
        pair_s=shared(costs.pair_s),
        memory=ScheduleMemory(
            delta_bytes=shared(memory.delta_bytes),
            transient_bytes=shared(memory.transient_bytes),
            static_bytes=memory.static_bytes,
            limit_bytes=memory.limit_bytes,
        ),
        transfer_model=costs.transfer_model,
        blocking_fraction=costs.blocking_fraction,
    )


def _transfers(per_edge_s: Floats, parts: int) -> Floats:
    """Edges of the finer model; with one stage there is nothing to go by, and parts send for 0."""
    last = per_edge_s[-1:] if len(per_edge_s) else np.zeros(1)
    return np.repeat(np.concatenate([per_edge_s, last]), parts)[:-1]
