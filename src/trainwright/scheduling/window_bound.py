"""The window bound: idle time a rank cannot avoid at its start, at its end and in between.

Rank r owns stages a < ... < b and may hold so much. All streams run in microbatch order, which is
no loss, and each wait below is a stretch of time in which some chain of other ranks must run while
the rank itself has too little it may do:

start   until the first I of b can start, at A, only forwards: idle >= A - X, X the most forward
        work that fits. Or until the first I of a, at A': no a is released, so that at most so many
        microbatches can pass through the other stages.
trips   between F_b(j) and I_b(j) at least D passes, while j blocks a place on every stage of the
        rank. In the other places, at most I and W of what they hold at the beginning and F of what
        they hold at the end can run. With room for h microbatches through b, F_b(j+h) comes
        after I_b(j): the trips of 0, h, 2h, ... do not overlap.
end     after F_b of the last microbatch, Z passes to the end of W_0 (Z' to the end of W_a), while
        only what is held then is left to do, at most Y of work.

Start and end add up only where not all forwards fit at once. In the case F = I = W = 1 of V with k
activations, on the last rank, this is the published 6m + 6p - 1 - 3k (Qi et al., NeurIPS 2024).

Places may be bytes or activations, of different sizes by stage: what fits is bounded by the best
ratio of work to size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.plan.schedule_bound import Objective

if TYPE_CHECKING:
    from trainwright.plan.per_stage import Floats
    from trainwright.scheduling.least_costs import Holding, LeastCosts


def window_bound(least: LeastCosts, num_microbatches: int, objective: Objective) -> float:
    """The largest over ranks and resources; 0 where nothing is limited or pairs may overlap."""
    if least.has_pairs:
        return 0.0
    best = 0.0
    for holding in least.holdings:
        for rank, stages in enumerate(map(list, least.placement.stages_of_rank)):
            if not stages or not 0 < holding.room[rank] < np.inf:
                continue
            room = _Room.of(holding, rank, stages)
            best = max(best, _window(least, room, stages, num_microbatches, objective))
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """What the stages of one rank hold of a resource, in their order, and how much there is."""

    room: float
    pending: Floats
    late: Floats

    @classmethod
    def of(cls, holding: Holding, rank: int, stages: list[int]) -> _Room:
        pending, late = holding.pending[stages], holding.released_late[stages]
        room = float(holding.room[rank])
        sizes = np.concatenate([pending, late])
        unit = float(sizes[sizes > 0].min(initial=np.inf))
        if np.isfinite(unit) and (np.mod(sizes, unit) == 0).all():
            room = float(np.floor(room / unit)) * unit  # less of it is of no use
        return cls(room=room, pending=pending, late=late)

    @property
    def through(self) -> float:
        """What a microbatch holds that is between F and I of the last stage."""
        return float(self.pending.sum())

    def most_forward_s(self, forward_s: Floats) -> float:
        """Most forward work per place: a microbatch has passed F of some first stages."""
        return _largest_ratio(np.cumsum(forward_s), np.cumsum(self.pending))

    def most_backward_s(self, input_grad_s: Floats, weight_grad_s: Floats) -> float:
        """Most work left per place: I waits on some first stages, or only W on one."""
        both = np.cumsum(input_grad_s + weight_grad_s)
        waiting = _largest_ratio(both, np.cumsum(self.pending))
        return max(waiting, _largest_ratio(weight_grad_s, self.late))

    def passed_before_first_input_grad(self) -> tuple[float, float]:
        """How many can have run F of the first stage, and F of any other."""
        started = self.room / self.pending[0] if self.pending[0] > 0 else np.inf
        if len(self.pending) == 1:
            return np.floor(started), np.floor(started)
        if self.pending[0] == 0:
            return np.inf, np.inf
        beside = (self.room - self.pending[1]) / self.pending[0]
        return np.floor(started), np.floor(beside)


def _largest_ratio(work_s: Floats, size: Floats) -> float:
    ratio = np.divide(work_s, size, out=np.full(len(size), np.inf), where=size > 0)
    return float(np.where(work_s > 0, ratio, 0.0).max())


class _Start(NamedTuple):
    """Idle time from the start of the first forward of all, before the last forward of the rank.

    Where it may not be `before_last`, the end's idle time can be the same.
    """

    idle_s: float
    before_last: bool


def _window(
    least: LeastCosts, room: _Room, stages: list[int], m: int, objective: Objective
) -> float:
    starts = _starts(least, room, stages, m)
    to_end_s, to_own_end_s = _ends(least, room, stages, m)
    head_s = float(least.reached_s[stages[0]])
    best = 0.0
    for idle_s, before_last in starts:
        both = before_last and objective is Objective.MAKESPAN
        end_s = max(to_end_s, to_own_end_s) if both else to_own_end_s
        own_s = idle_s + (max(0.0, end_s) if before_last else 0.0)
        if objective is Objective.SPAN:
            own_s -= head_s
            best = max(best, idle_s + to_end_s if before_last else 0.0)  # of stage 0's rank
        best = max(best, own_s)
    return m * float(least.work_s[stages].sum()) + best


def _starts(least: LeastCosts, room: _Room, stages: list[int], m: int) -> tuple[_Start, ...]:
    forward_s = least.forward_s[stages]
    before_input_grad_s = least.reached_s[stages] + forward_s + least.round_trip_s[stages]
    trip_s, num_trips = _trips(least, room, stages, m)
    filled_s = min(_fill(room.room, room.most_forward_s(forward_s)), m * forward_s.sum())
    last_s = float(before_input_grad_s[-1] - filled_s)
    started, passed = room.passed_before_first_input_grad()
    other_s = float(least.work_s[stages[1:]].sum())
    first_s = before_input_grad_s[0] - min(started, m) * forward_s[0] - min(passed, m) * other_s
    return (
        _Start(last_s + max(num_trips - 1, 0) * trip_s, m * room.through > room.room),
        _Start(float(first_s), passed < m),
        _Start(float(least.reached_s[stages[0]]) + num_trips * trip_s, True),
    )


def _trips(least: LeastCosts, room: _Room, stages: list[int], m: int) -> tuple[float, int]:
    """Idle time of a trip, and how many do not overlap, that of microbatch 0 among them."""
    at_once = m if room.through == 0 else int(room.room // room.through)
    if at_once == 0:  # nothing fits
        return 0.0, 0
    per_place_s = room.most_forward_s(least.forward_s[stages]) + room.most_backward_s(
        least.input_grad_s[stages], least.weight_grad_s[stages]
    )
    idle_s = least.round_trip_s[stages[-1]] - _fill(room.room - room.through, per_place_s)
    return max(0.0, float(idle_s)), (m - 1) // at_once


def _ends(least: LeastCosts, room: _Room, stages: list[int], m: int) -> tuple[float, float]:
    """Z - Y and Z' - Y."""
    a, b = stages[0], stages[-1]
    input_grad_s, weight_grad_s = least.input_grad_s[stages], least.weight_grad_s[stages]
    left_s = min(
        _fill(room.room, room.most_backward_s(input_grad_s, weight_grad_s)),
        m * float((input_grad_s + weight_grad_s).sum()),
    )
    after_s = least.round_trip_s[b] - left_s
    to_end_s = after_s + least.input_grad_s[b] + least.way_back_s[b]
    own_s = after_s + least.returned_s[a] - least.returned_s[b]
    return float(to_end_s), float(own_s + input_grad_s[0] + weight_grad_s[0])


def _fill(room: float, work_per_place_s: float) -> float:
    if np.isinf(work_per_place_s):  # some takes no room
        return np.inf
    return max(0.0, room) * work_per_place_s
