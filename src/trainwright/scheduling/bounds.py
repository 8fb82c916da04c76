"""Lower bounds that hold for every schedule: certificates to print beside a result.

Four arguments, each valid for any placement, times, transfers and per-rank limits in bytes or
activations, for fused and split backwards alike (`scheduling.least_costs`). All compare counts, so
they hold whichever microbatch is the j-th of a stream.

rank-work    a rank cannot start before the first forward reaches it, and works at least its work;
             after its last input gradient the chain back to stage 0 is still to run, and of its
             weight gradients at most as many as fit in memory
memory-area  every activation occupies memory for at least its trip to the loss and back
memory-path  with room for K microbatches between F and I of a stage, the forward of microbatch
             j+K waits for the input gradient of j, and for a release
window       `scheduling.window_bound`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.plan.schedule_bound import Bound, BoundName, Objective
from trainwright.scheduling.window_bound import window_bound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.scheduling.least_costs import Holding, LeastCosts


def lower_bounds(
    least: LeastCosts, num_microbatches: int, *, objective: Objective
) -> tuple[Bound, ...]:
    """One bound per argument that gives any, in the order above."""
    m = num_microbatches
    found = {
        BoundName.RANK_WORK: _rank_work(least, m, objective),
        BoundName.MEMORY_AREA: _memory_area(least, m, objective),
        BoundName.MEMORY_PATH: _memory_path(least, m),
        BoundName.WINDOW: window_bound(least, m, objective),
    }
    return tuple(Bound(float(value_s), name) for name, value_s in found.items() if value_s > 0)


def best_bound(least: LeastCosts, num_microbatches: int, *, objective: Objective) -> Bound:
    """The largest of them, the first where several are equal; 0 where nothing takes any time."""
    bounds = lower_bounds(least, num_microbatches, objective=objective)
    return max(bounds, key=lambda bound: bound.value_s, default=Bound(0.0, BoundName.RANK_WORK))


def _rank_work(least: LeastCosts, m: int, objective: Objective) -> float:
    """The larger of head + work, and head + work before the last I + the way back.

    What follows the last input gradient of a rank ends on stage 0, whose rank starts first of all:
    so the second form bounds the span of that rank, too. The last is of the rank's first stage.
    """
    best = 0.0
    for rank, stages in enumerate(map(list, least.placement.stages_of_rank)):
        if not stages:
            continue
        head_s = float(least.reached_s[stages[0]])
        saved_s = m * float(least.overlap_s[rank])
        work_s = m * float(least.work_s[stages].sum()) - saved_s
        best = max(best, work_s + (head_s if objective is Objective.MAKESPAN else 0.0))
        late_s = np.sort(np.repeat(least.weight_grad_s[stages], m))
        late_s = late_s[: max(0, late_s.size - _weight_grads_held(least, rank, stages))]
        early_s = m * float((least.forward_s + least.input_grad_s)[stages].sum()) + late_s.sum()
        best = max(best, head_s + early_s - saved_s + float(least.way_back_s[stages[0]]))
    return best


def _weight_grads_held(least: LeastCosts, rank: int, stages: list[int]) -> int:
    """How many W can wait at once on a rank; 1 at least, the last of stage 0 being on its way."""
    most = np.iinfo(np.int64).max
    for holding in least.holdings:
        smallest = float(holding.released_late[stages].min())
        if smallest > 0 and np.isfinite(holding.room[rank]):
            most = min(most, int(holding.room[rank] / smallest))
    return max(most, 1)


def _memory_area(least: LeastCosts, m: int, objective: Objective) -> float:
    """Held until I, and what is released late until W."""
    held_s = least.forward_s + least.round_trip_s + least.input_grad_s
    best = 0.0
    for holding in least.holdings:
        area = holding.pending * held_s + holding.released_late * least.weight_grad_s
        for rank, stages in enumerate(map(list, least.placement.stages_of_rank)):
            if not stages or not 0 < holding.room[rank] < np.inf:
                continue
            head_s = float(least.reached_s[stages[0]]) if objective is Objective.MAKESPAN else 0.0
            best = max(best, head_s + m * float(area[stages].sum()) / float(holding.room[rank]))
    return best


class _Wait(NamedTuple):
    """F of `stage` of microbatch j + `places` waits for I of j, and `lag_s` more for a release."""

    stage: int
    places: int
    lag_s: float


def _memory_path(least: LeastCosts, m: int) -> float:
    """Longest path through forwards and input gradients, all streams in microbatch order.

    Ends with the weight gradient of stage 0, so that it bounds makespan and span. O(m S).
    """
    if least.has_pairs:
        return 0.0
    waits = [wait for holding in least.holdings for wait in _waits(least, holding)]
    waits = [wait for wait in waits if 0 < wait.places < m]
    stage, places = (np.array([wait[i] for wait in waits], np.int64) for i in (0, 1))
    lag_s = np.array([wait.lag_s for wait in waits])
    down_s, up_s = least.reached_s, least.returned_s
    num_stages = len(down_s)
    forward_end_s = np.zeros(num_stages)
    input_grad_end_s = np.zeros((m + 1, num_stages))  # row j + 1 is of microbatch j
    for j in range(m):
        earliest_s = forward_end_s
        if len(waits):
            earliest_s = earliest_s.copy()
            released_s = input_grad_end_s[np.maximum(j - places, -1) + 1, stage] + lag_s
            np.maximum.at(earliest_s, stage, np.where(places <= j, released_s, 0.0))
        forward_end_s = np.maximum.accumulate(earliest_s - down_s) + down_s + least.forward_s
        ready_s = np.maximum(input_grad_end_s[j], forward_end_s)
        start_s = np.maximum.accumulate((ready_s - up_s)[::-1])[::-1] + up_s
        input_grad_end_s[j + 1] = start_s + least.input_grad_s
    return float(input_grad_end_s[m, 0] + least.weight_grad_s[0])


def _waits(least: LeastCosts, holding: Holding) -> Iterator[_Wait]:
    """Between F and I of a stage, a microbatch also holds its part of the stages before it.

    After I of the stage it still holds all but what that releases, until W of one of them.
    """
    for rank, stages in enumerate(map(list, least.placement.stages_of_rank)):
        room = float(holding.room[rank])
        if not np.isfinite(room):
            continue
        for i, stage in enumerate(stages):
            through = float(holding.pending[stages[: i + 1]].sum())
            if through <= 0:
                continue
            places = int(room // through)
            kept = through - float((holding.pending - holding.released_late)[stage])
            lag_s = 0.0
            if places * through + kept > room:
                lag_s = _least_release_s(least, stages[: i + 1])
                if kept < through:  # I of the next microbatch releases something, too
                    lag_s = min(lag_s, float(least.input_grad_s[stage]))
            yield _Wait(stage, places, lag_s)
            late = float(holding.released_late[stage])
            if late > 0:
                yield _Wait(stage, int(room // late), float(least.weight_grad_s[stage]))


def _least_release_s(least: LeastCosts, stages: list[int]) -> float:
    """From the end of I of the last of `stages` to the end of W of any, or of I before it."""
    *before, last = stages
    releases_s = [float(least.weight_grad_s[last])]
    for stage in before:
        back_s = least.returned_s[stage] - least.returned_s[last] - least.input_grad_s[last]
        releases_s.append(float(back_s + least.input_grad_s[stage]))
    return min(releases_s)
