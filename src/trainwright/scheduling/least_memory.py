"""What a placement needs at least: one microbatch forwards and backwards before the next.

Any schedule lets some microbatch reach the loss while each of its activations waits for it, so none
holds less than this one does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainwright._native import _core
from trainwright.plan.schedule import ActionKind, Schedule
from trainwright.scheduling.search_question import LimitTooSmall
from trainwright.scheduling.simulate import native_memory, native_orders

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.placement import Placement
    from trainwright.plan.schedule_memory import ScheduleMemory


def one_at_a_time(
    placement: Placement,
    num_microbatches: int,
    *,
    fused: NDArray[np.bool_],
    recomputed: NDArray[np.bool_],
) -> Schedule:
    """Each microbatch forwards and backwards before the next: the least memory of all schedules.

    `fused` and `recomputed` say per stage how its backward runs, shape [S].
    """
    orders = []
    for stages in placement.stages_of_rank:
        passage = [(ActionKind.F, stage) for stage in stages]
        for stage in reversed(stages):
            if recomputed[stage]:
                passage.append((ActionKind.R, stage))
            halves = (ActionKind.B,) if fused[stage] else (ActionKind.I, ActionKind.W)
            passage += [(kind, stage) for kind in halves]
        once = np.array(passage, np.int32).reshape(-1, 2)
        order = np.empty((len(once) * num_microbatches, 3), np.int32)
        order[:, :2] = np.tile(once, (num_microbatches, 1))
        order[:, 2] = np.repeat(np.arange(num_microbatches), len(once))
        orders.append(order)
    return Schedule.of_ranks(orders, placement=placement, num_microbatches=num_microbatches)


def misfit(
    schedule: Schedule, memory: ScheduleMemory, *, max_activations: int | None
) -> LimitTooSmall | None:
    """Which rank holds most beyond its limit, in bytes or in activations; None if all fit."""
    peak_bytes = _core.peak_bytes(native_orders(schedule), native_memory(memory))
    rank = int(np.argmax(peak_bytes - memory.limit_bytes))
    if peak_bytes[rank] > memory.limit_bytes[rank] * (1 + 1e-9):
        return LimitTooSmall(
            rank=rank,
            needed=float(peak_bytes[rank]),
            limit=float(memory.limit_bytes[rank]),
            unit="bytes",
        )
    peaks = schedule.peak_activations
    if max_activations is not None and max(peaks) > max_activations:
        rank = int(np.argmax(peaks))
        return LimitTooSmall(
            rank=rank, needed=peaks[rank], limit=max_activations, unit="activations"
        )
    return None


def least_that_fits(
    placement: Placement,
    num_microbatches: int,
    memory: ScheduleMemory,
    *,
    max_activations: int | None,
) -> Schedule | None:
    """One microbatch at a time, backwards split; None where not even that fits."""
    no_stage = np.full(placement.num_stages, False)
    schedule = one_at_a_time(placement, num_microbatches, fused=no_stage, recomputed=no_stage)
    reason = misfit(schedule, memory, max_activations=max_activations)
    return schedule if reason is None else None


def limit_below_all(
    placement: Placement, memory: ScheduleMemory, *, max_activations: int | None
) -> LimitTooSmall | None:
    """Why no schedule of the placement fits, backwards split or fused; None if one may."""
    whole = np.full(placement.num_stages, True)
    reasons = []
    for fused in (~whole, whole):
        least = one_at_a_time(placement, 1, fused=fused, recomputed=~whole)
        reason = misfit(least, memory, max_activations=max_activations)
        if reason is None:
            return None
        reasons.append(reason)
    return min(reasons, key=lambda reason: reason.needed)
