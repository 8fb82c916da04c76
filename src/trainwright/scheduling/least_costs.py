"""What stages take at least, whichever way their backward runs: the numbers bounds are made of.

A stage may run its backward fused or split. I' = min(I, B) and W' = min(I + W, B) - I' are at most
what either way takes, before and after its input gradient is handed on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.per_stage import freeze_arrays
from trainwright.plan.schedule import ActionKind

if TYPE_CHECKING:
    from trainwright.plan.per_stage import Floats
    from trainwright.plan.placement import Placement
    from trainwright.plan.schedule_costs import ScheduleCosts

_F, _I, _W, _B, _R = ActionKind
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeastCosts:
    """Least times and memory by stage; `*_transfer_s` [S-1] are 0 within a rank."""

    placement: Placement
    costs: ScheduleCosts
    forward_s: Floats
    input_grad_s: Floats
    weight_grad_s: Floats
    forward_transfer_s: Floats
    backward_transfer_s: Floats

    def __post_init__(self) -> None:
        freeze_arrays(self)

    @classmethod
    def of(cls, placement: Placement, costs: ScheduleCosts) -> LeastCosts:
        """From the costs of a schedule."""
        duration = costs.duration_s
        input_grad = np.minimum(duration[_I], duration[_B])
        both = np.minimum(duration[_I] + duration[_W], duration[_B])
        ranks = np.array(placement.rank_of_stage)
        crossing = ranks[:-1] != ranks[1:]
        return cls(
            placement=placement,
            costs=costs,
            forward_s=duration[_F],
            input_grad_s=input_grad,
            weight_grad_s=both - input_grad,
            forward_transfer_s=np.where(crossing, costs.forward_transfer_s, 0.0),
            backward_transfer_s=np.where(crossing, costs.backward_transfer_s, 0.0),
        )
