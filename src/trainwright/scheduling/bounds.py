"""Lower bounds that hold for every schedule: certificates to print beside a result.

Four arguments, each valid for any times, transfers and per-rank limits, for fused and split
backwards alike; transfers are taken as free of contention, which only weakens them.

rank-work    a rank cannot start before the first forward reaches it, and works at least its work;
             after its last input gradient the chain back to stage 0 is still to run
memory-area  every activation occupies memory for at least its trip to the loss and back
memory-path  with room for K, forward j+K waits for the release of microbatch j
window       `scheduling.window_bound`, for V placement
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.schedule_bound import Bound, BoundName, Objective
from trainwright.scheduling.least_costs import LeastCosts
from trainwright.scheduling.window_bound import window_bound

if TYPE_CHECKING:
    from trainwright.plan.placement import Placement
    from trainwright.plan.schedule_costs import ScheduleCosts


def lower_bounds(
    placement: Placement, num_microbatches: int, costs: ScheduleCosts, *, objective: Objective
) -> tuple[Bound, ...]:
    """One bound per argument that applies, in the order above; limits are those of `costs`."""
    least = LeastCosts.of(placement, costs)
    m = num_microbatches
    found = {
        BoundName.RANK_WORK: _rank_work(least, m, objective),
        BoundName.MEMORY_AREA: _memory_area(least, m, objective),
        BoundName.MEMORY_PATH: _memory_path(least, m),
        BoundName.WINDOW: window_bound(least, m, objective),
    }
    return tuple(Bound(value, name) for name, value in found.items() if value > 0)


def best_bound(
    placement: Placement, num_microbatches: int, costs: ScheduleCosts, *, objective: Objective
) -> Bound:
    """The largest of them, the first where several are equal."""
    bounds = lower_bounds(placement, num_microbatches, costs, objective=objective)
    return max(bounds, key=lambda bound: bound.value_s, default=Bound(0.0, BoundName.RANK_WORK))


def _rank_work(least: LeastCosts, m: int, objective: Objective) -> float:
    """The larger of head + work, and head + forwards and input gradients + the way back.

    What follows the last input gradient of a rank ends on stage 0, whose rank starts first of all:
    so the second form bounds the span of that rank, too. Of the weight gradients of a rank, only as
    many as fit in memory can still be missing then.
    """
    best = 0.0
    for rank, stages in least.ranks():
        head_s = least.reached_s[stages[0]]
        work_s = m * least.work_s[stages].sum()
        early_s = m * (least.forward_s[stages] + least.input_grad_s[stages]).sum()
        late_s = np.sort(np.repeat(least.weight_grad_s[stages], m))
        missing = min(least.weight_grads_held(rank), late_s.size)
        early_s += late_s[: late_s.size - missing].sum()
        back_s = float(least.way_back_s[stages].min())
        alone_s = work_s - least.overlap_s(stages) * m
        own_s = alone_s + (head_s if objective is Objective.MAKESPAN else 0.0)
        best = max(best, own_s, head_s + early_s - least.overlap_s(stages) * m + back_s)
    return float(best)


def _memory_area(least: LeastCosts, m: int, objective: Objective) -> float:
    best = 0.0
    for rank, stages in least.ranks():
        room_bytes = least.room_bytes[rank]
        if not np.isfinite(room_bytes) or room_bytes <= 0:
            continue
        area = sum(least.area_byte_s(stage) for stage in stages) * m
        head_s = least.reached_s[stages[0]] if objective is Objective.MAKESPAN else 0.0
        best = max(best, head_s + area / room_bytes)
    return float(best)


def _memory_path(least: LeastCosts, m: int) -> float:
    """Longest path through forwards and input gradients, all streams in microbatch order.

    On one stage forwards follow each other, and so do input gradients; with room for K, forward
    j+K starts after microbatch j is released. Ends with the weight gradient of stage 0, so it bounds
    makespan and span.
    """
    num_stages = len(least.forward_s)
    room = [least.forwards_held(stage, m) for stage in range(num_stages)]
    after_input_grad = least.released_at_input_grad
    down = least.reached_s
    up = least.returned_s
    forward_end, input_grad_end = np.zeros(num_stages), np.zeros(num_stages)
    release_end = np.zeros((num_stages, m))
    for j in range(m):
        earliest = forward_end.copy()
        for stage in np.flatnonzero(np.array(room) <= j):
            earliest[stage] = max(earliest[stage], release_end[stage, j - room[stage]])
        forward_start = np.maximum.accumulate(earliest - down) + down
        forward_end = forward_start + least.forward_s
        ready = np.maximum(input_grad_end, forward_end)
        backwards = np.maximum.accumulate((ready - up)[::-1])[::-1] + up
        input_grad_end = backwards + least.input_grad_s
        release_end[:, j] = input_grad_end + np.where(after_input_grad, 0.0, least.weight_grad_s)
    return float(input_grad_end[0] + least.weight_grad_s[0])
