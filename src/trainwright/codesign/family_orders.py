"""Orders of schedule families for co-design: made once per shape, for any design.

A family's order depends on its depth and microbatches, and where it places weight gradients by time
on how long forward, input and weight gradient take against each other. These are taken from the
FLOPs of the model, rounded, so that all designs run the same orders and what a plan holds in memory
is known before any design is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright._native._core import FamilyOrder
from trainwright.errors import InvalidInput
from trainwright.model import Phase
from trainwright.plan.schedule import ActionKind
from trainwright.plan.schedule_costs import ScheduleCosts
from trainwright.pricing.peak_rows import undominated
from trainwright.profile import Recompute
from trainwright.scheduling.families import FamilyRequest, family_named
from trainwright.scheduling.simulate import native_orders

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.codesign.workload import Chain
    from trainwright.plan.schedule import Schedule

_F, _I, _W, _B, _R = ActionKind
_STEPS: Final = 8  # ratios are whole eighths of a forward


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What an order is made for: p ranks, m microbatches, I and W as multiples of a forward."""

    family: str
    num_ranks: int
    num_microbatches: int
    input_grad: float
    weight_grad: float


def ratios(chain: Chain, option: int) -> tuple[float, float]:
    """Input gradient (with what it recomputes) and weight gradient against forward, by FLOPs."""
    counts = chain.class_counts
    flops = dict.fromkeys(Phase, 0.0)
    again = 0.0
    for count, kernels, repeats in zip(counts, chain.kernels, chain.repeats, strict=True):
        for kernel in kernels:
            flops[kernel.phase] += count * kernel.flops
            if kernel.phase is Phase.FORWARD and repeats:
                again += count * kernel.flops
    if chain.recompute[option] is Recompute.FULL:
        flops[Phase.INPUT_GRAD] += again
    forward = flops[Phase.FORWARD]
    rounded = (
        max(1, round(_STEPS * flops[phase] / forward)) / _STEPS
        for phase in (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)
    )
    input_grad, weight_grad = rounded
    return input_grad, weight_grad


@lru_cache(maxsize=512)
def order_of(shape: Shape) -> FamilyOrder | None:
    """The family's order with what its ranks can hold; None where the family has none."""
    costs = ScheduleCosts.of(
        family_named(shape.family).place(_request(shape, None)),
        input_grad_s=shape.input_grad,
        weight_grad_s=shape.weight_grad,
    )
    try:
        schedule = family_named(shape.family).generate(_request(shape, costs))
    except InvalidInput:
        return None
    if schedule is None:
        return None
    counts = [_counts(schedule, rank) for rank in range(shape.num_ranks)]
    offsets = np.cumsum([0, *map(len, counts)])
    return FamilyOrder(
        orders=native_orders(schedule),
        counts=np.ascontiguousarray(np.concatenate(counts), dtype=np.int32),
        count_offset=offsets.astype(np.int64),
    )


def _request(shape: Shape, costs: ScheduleCosts | None) -> FamilyRequest:
    return FamilyRequest(
        num_ranks=shape.num_ranks, num_microbatches=shape.num_microbatches, costs=costs
    )


def _counts(schedule: Schedule, rank: int) -> NDArray[np.int64]:
    """Fullest instants of a rank [k, 3 · chunks]: before I, between I and W, in I, by chunk."""
    actions = schedule.actions[schedule.rows_of(rank)]
    kind, stage = actions[:, 0], actions[:, 1]
    columns = []
    for owned in schedule.placement.stages_of_rank[rank]:
        begun, handed, freed = ((stage == owned) & (kind == k) for k in (_F, _I, _W))
        handed_before = np.cumsum(handed) - handed
        columns += [
            np.cumsum(begun) - handed_before,
            handed_before - (np.cumsum(freed) - freed),
            handed.astype(np.int64),
        ]
    rows = np.stack(columns, axis=1)
    # Distinct rows by one number each: sorting rows as such takes most of the time of it all.
    places = np.cumprod(np.concatenate(([1], rows.max(axis=0)[:-1] + 1)))
    _, first = np.unique(rows @ places, return_index=True)
    return undominated(rows[first])
