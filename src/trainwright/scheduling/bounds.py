"""Lower bounds that hold for every schedule: certificates to print beside a result.

Six arguments, each valid for any placement, times, transfers and per-rank limits in bytes or
activations, for fused and split backwards alike (`scheduling.bounds`). All compare counts, so
they hold whichever microbatch is the j-th of a stream.

rank-work    a rank cannot start before the first forward reaches it, and works at least its work;
             after its last input gradient the chain back to stage 0 is still to run, and of its
             weight gradients at most as many as fit in memory
memory-area  every activation occupies memory for at least its trip to the loss and back, or for
             its copies to the host and back; memory neither fills nor empties at once
memory-path  with room for K microbatches between F and I of a stage, the forward of microbatch
             j+K waits for the input gradient of j, and for a release; what a rank works stands
             between the longest path to it and the longest path from it
window       `scheduling.bounds`
crossings    a forward that leaves a rank crosses every input gradient that comes back, and each
             stage runs one of the two first; of the rank's own orders the shortest is searched
two-ranks    the same for two ranks of a V at once

Where activations may wait on the host, the path knows no memory, and those after it say nothing.
Only searches ask for the last two, which take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from trainwright._native import _core
from trainwright.plans.schedule import (
    ON_HOST_LINK,
    ActionKind,
    Placement,
    Schedule,
    ScheduleCosts,
    ScheduleMemory,
)
from trainwright.plans.status import Bound, BoundName, Objective, Status
from trainwright.profile.profile import freeze_arrays
from trainwright.scheduling.orders import one_at_a_time
from trainwright.scheduling.simulate import native_costs, native_memory, native_orders

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitTooSmall:
    """`needed` on `rank` exceeds `limit`: of `family`, or where that is None, of every schedule.

    The latter is proved: one microbatch alone needs so much.
    """

    rank: int
    needed: float
    limit: float
    unit: Literal["bytes", "activations"]
    family: str | None = None

    @property
    def status(self) -> Status:
        """A limit below the minimum is a result, not an error."""
        return Status.INFEASIBLE if self.family is None else Status.UNKNOWN


# What a placement needs at least: one microbatch forwards and backwards before the next
# --------------------------------------------------------------------------------------
# Let the streams of any schedule run in microbatch order: it holds no more. What it does for one
# microbatch alone then holds no more than all of it, and no less than `one_at_a_time`.


def misfit(
    schedule: Schedule,
    memory: ScheduleMemory,
    *,
    max_activations: int | None,
    costs: ScheduleCosts | None = None,
) -> LimitTooSmall | None:
    """Which rank holds most beyond its limit, in bytes or in activations; None if all fit.

    Pairs run as one action where `costs` say so.
    """
    times = None if costs is None else native_costs(costs)
    peak_bytes = _core.peak_bytes(native_orders(schedule), native_memory(memory), times)
    rank = int(np.argmax(peak_bytes - memory.limit_bytes))
    if peak_bytes[rank] > memory.most_bytes[rank]:
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
    modes = {"fused": no_stage, "recomputed": no_stage}
    schedule = one_at_a_time(placement, num_microbatches, memory, **modes)
    reason = misfit(schedule, memory, max_activations=max_activations)
    return schedule if reason is None else None


def limit_below_all(
    placement: Placement, memory: ScheduleMemory, *, max_activations: int | None
) -> LimitTooSmall | None:
    """Why no schedule of the placement fits, backwards split or fused; None if one may."""
    recomputed = np.full(placement.num_stages, False)
    least = one_at_a_time(placement, 1, memory, recomputed=recomputed)
    return misfit(least, memory, max_activations=max_activations)


# What stages take at least, whichever way their backward runs: the numbers bounds are made of
# --------------------------------------------------------------------------------------------
# A stage may run its backward fused or split. I' = min(I, B) and W' = min(I + W, B) - I' are at
# most what either way takes, before and after its input gradient is handed on: shortening every
# action of a schedule to these, where it stands, leaves a legal schedule that is no longer.
# Transfers are taken as free of contention, recomputation as free, an overlapped pair as as short
# as its members may be; all of which only weakens a bound.

_F, _I, _W, _B, _R, _O, _D, _L, *_ = ActionKind
_ROUNDING = 1e-9
_HALVINGS = 40
_STEP = np.array([1, 0, -1, -1, 0, 0, -1, 1, 0, 0], np.float64)  # activations by kind of action


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holding:
    """One limited resource: what an activation holds of it at least, and how much there is.

    `pending` [S] is held from the start of F to the end of I, `released_late` [S] from there to the
    end of W; `room` [p] is infinite where there is no limit. Of `pending`, `offloaded` [S] may wait
    on the host.
    """

    pending: Floats
    released_late: Floats
    room: Floats
    offloaded: Floats

    def __post_init__(self) -> None:
        freeze_arrays(self)

    @classmethod
    def of(cls, delta: Floats, room: Floats, recomputed: NDArray[np.bool_] | None) -> Holding:
        """From what actions add and release, shape [10, S]; recomputed by some where not told."""
        again = np.minimum(delta[_R], 0.0)
        pending = np.maximum(delta[_F] + again, 0.0)
        if recomputed is not None:
            again = np.where(recomputed, delta[_R], 0.0)
        late = np.maximum(delta[_F] + again + delta[_I], 0.0)
        # The two halves of a fused backward hold what its first does.
        return cls(
            pending=pending,
            released_late=np.minimum(pending, late),
            room=room * (1 + _ROUNDING) + _ROUNDING,
            offloaded=np.minimum(pending, np.maximum(delta[_L], 0.0)),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class LeastCosts:
    """Least times by stage, and limits; `*_transfer_s` [S-1] are 0 within a rank.

    `work_s` [S] is what a rank works for one microbatch of the stage, `hurried_s` [S] that without
    R, which may run where the rank waits; `overlap_s` [p] what overlapped pairs save it at most per
    microbatch. `copies_s` [S], where activations may wait on the host, is the time on the link for
    the way there and back.
    """

    placement: Placement
    forward_s: Floats
    input_grad_s: Floats
    weight_grad_s: Floats
    work_s: Floats
    hurried_s: Floats
    overlap_s: Floats
    forward_transfer_s: Floats
    backward_transfer_s: Floats
    holdings: tuple[Holding, ...]
    copies_s: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        freeze_arrays(self)

    @classmethod
    def of(
        cls,
        placement: Placement,
        costs: ScheduleCosts,
        *,
        max_activations: int | None = None,
        fused: NDArray[np.bool_] | None = None,
        recomputed: NDArray[np.bool_] | None = None,
        offload: bool = False,
    ) -> LeastCosts:
        """From the costs of a schedule within its limits and `max_activations` per rank.

        `fused` and `recomputed` [S] hold for the schedules bounded; unless told, either may be.
        Network time that another action of the rank can hide counts as none.
        """
        if costs.network_s.size:
            computing_s = costs.compute_s - costs.network_s
            costs = replace(costs, compute_s=computing_s, network_s=np.zeros((0, 0)))
        duration = costs.duration_s
        first, both = np.minimum(duration[_I], duration[_B]), duration[_I] + duration[_W]
        both = np.minimum(both, duration[_B])
        if fused is not None:
            first = np.where(fused, duration[_B], duration[_I])
            both = np.where(fused, duration[_B], duration[_I] + duration[_W])
        extra = 0.0 if recomputed is None else duration[_R] * recomputed
        ranks = np.array(placement.rank_of_stage)
        in_pair = _least_pair_s(ranks, costs)
        first, shortest = np.minimum(first, in_pair), np.minimum(both, in_pair)
        crossing = ranks[:-1] != ranks[1:]
        return cls(
            placement=placement,
            forward_s=np.minimum(duration[_F], costs.pair_s),
            input_grad_s=first,
            weight_grad_s=shortest - first,
            work_s=duration[_F] + both + extra,
            hurried_s=duration[_F] + both,
            overlap_s=_overlap_s(placement, costs, both),
            forward_transfer_s=np.where(crossing, costs.forward_transfer_s, 0.0),
            backward_transfer_s=np.where(crossing, costs.backward_transfer_s, 0.0),
            holdings=tuple(_holdings(costs, max_activations, recomputed)),
            copies_s=duration[_O] + duration[_L] if offload else np.zeros(0),
        )

    @property
    def offloads(self) -> bool:
        """Whether activations may wait on the host."""
        return bool(self.copies_s.size)

    @property
    def has_pairs(self) -> bool:
        """Whether a forward and a backward may run as one."""
        return bool((self.overlap_s > 0).any())

    @cached_property
    def reached_s(self) -> Floats:
        """Shortest time from the start of F_0 to the start of F_s, shape [S]."""
        return np.concatenate([[0.0], np.cumsum(self.forward_s[:-1] + self.forward_transfer_s)])

    @cached_property
    def returned_s(self) -> Floats:
        """Shortest time from the start of I_(S-1) to the start of I_s, shape [S]."""
        hops = (self.input_grad_s[1:] + self.backward_transfer_s)[::-1]
        from_loss_s: Floats = np.concatenate([[0.0], np.cumsum(hops)])
        return from_loss_s[::-1]

    @cached_property
    def round_trip_s(self) -> Floats:
        """Shortest time from the end of F_s to the start of I_s, shape [S]."""
        reached_s = self.reached_s
        to_loss_s: Floats = reached_s[-1] + self.forward_s[-1] - reached_s - self.forward_s
        to_loss_s += self.returned_s
        return to_loss_s

    @cached_property
    def way_back_s(self) -> Floats:
        """Shortest time from the end of I_s to the end of W_0 after I_0, shape [S]."""
        returned_s = self.returned_s
        back_s: Floats = returned_s[0] - returned_s + self.input_grad_s[0] - self.input_grad_s
        back_s += self.weight_grad_s[0]
        return back_s


def resource_bound(schedule: Schedule, costs: ScheduleCosts, *, objective: Objective) -> Bound:
    """What no order of the same actions can beat, whatever its pairs: work of the busiest resource.

    A rank computes, communicates with its group and copies to its host; each of the three does one
    thing at a time. A makespan also contains the way of the first microbatch to the rank.
    """
    taken_s, ranks = costs.of_rows(schedule), schedule.rank_of_row
    kind, stage, _ = schedule.actions.T
    on_link = np.isin(kind, ON_HOST_LINK)
    network_s = costs.network_s[kind, stage] if costs.network_s.size else np.zeros(len(kind))
    paired, pair_s = costs.overlapped_pairs(schedule)
    measured = schedule.pairs[np.isfinite(costs.measured_pairs_s(schedule))]
    known = np.isin(paired, measured)  # a measured pair may hide more than networks
    computing_s = taken_s - network_s
    computing_s[paired[known]], computing_s[paired[known] + 1] = pair_s[known], 0.0
    parts = (np.where(on_link, 0.0, computing_s), network_s, np.where(on_link, taken_s, 0.0))
    work_s = np.array([np.bincount(ranks, part, schedule.num_ranks) for part in parts])
    if objective is Objective.MAKESPAN:
        edge = np.concatenate([[False], schedule.placement.has_edge])
        shortest_s = np.minimum(costs.duration_s[_F], costs.pair_s)
        if costs.network_s.size:
            shortest_s = np.minimum(shortest_s, costs.compute_s[_F])
        reached_s = np.zeros(len(edge))
        for s in np.flatnonzero(edge).tolist():
            reached_s[s] = reached_s[s - 1] + shortest_s[s - 1]
        head_s = np.full(schedule.num_ranks, np.inf)
        np.minimum.at(head_s, np.array(schedule.placement.rank_of_stage), reached_s)
        work_s = work_s + np.where(np.isfinite(head_s), head_s, 0.0)
    return Bound(float(work_s.max()), BoundName.RANK_WORK)


def _least_pair_s(ranks: NDArray[np.int64], costs: ScheduleCosts) -> Floats:
    """How short a backward can be that is paired with a forward of its rank, shape [S]."""
    shortest = np.full(int(ranks.max()) + 1, np.inf)
    np.minimum.at(shortest, ranks, costs.pair_s)
    return shortest[ranks]


def _overlap_s(placement: Placement, costs: ScheduleCosts, both: Floats) -> Floats:
    """Each forward may be paired with the longest backward of its rank, shape [p]."""
    saved, forward_s = np.zeros(placement.num_ranks), costs.duration_s[_F]
    for rank, stages in enumerate(map(list, placement.stages_of_rank)):
        alone = forward_s[stages] + both[stages].max(initial=0.0)
        saved[rank] = np.maximum(alone - costs.pair_s[stages], 0.0).sum()
    return saved


def _holdings(
    costs: ScheduleCosts, max_activations: int | None, recomputed: NDArray[np.bool_] | None
) -> Iterator[Holding]:
    memory = costs.memory
    if np.isfinite(memory.limit_bytes).any():
        room = memory.most_bytes - memory.static_bytes
        yield Holding.of(memory.delta_bytes, room, recomputed)
    if max_activations is not None:
        delta = np.repeat(_STEP[:, None], memory.num_stages, axis=1)
        yield Holding.of(delta, np.full(memory.num_ranks, float(max_activations)), recomputed)


# The window bound: idle time a rank cannot avoid at its start, at its end and in between
# ---------------------------------------------------------------------------------------
# Rank r owns stages a < ... < b and may hold so much. All streams run in microbatch order, which is
# no loss, and each wait below is a stretch of time in which some chain of other ranks must run
# while the rank itself has too little it may do:
#
# start   until the first I of b can start, at A, only forwards: idle >= A - X, X the most forward
#         work that fits. Or until the first I of a, at A': no a is released, so that at most so
#         many microbatches can pass through the other stages.
# trips   between F_b(j) and I_b(j) at least D passes, while j blocks a place on every stage of the
#         rank. In the other places, at most I and W of what they hold at the beginning and F of
#         what they hold at the end can run. With room for h microbatches through b, F_b(j+h) comes
#         after I_b(j): the trips of 0, h, 2h, ... do not overlap.
# end     after F_b of the last microbatch, Z passes to the end of W_0 (Z' to the end of W_a), while
#         only what is held then is left to do, at most Y of work.
#
# Start and end add up only where not all forwards fit at once. In the case F = I = W = 1 of V with
# k activations, on the last rank, this is the published 6m + 6p - 1 - 3k (Qi et al., NeurIPS 2024).
#
# Places may be bytes or activations, of different sizes by stage: what fits is bounded by the best
# ratio of work to size.


def window_bound(least: LeastCosts, num_microbatches: int, objective: Objective) -> float:
    """The largest over ranks and resources; 0 where nothing is limited, or more may overlap."""
    if least.has_pairs or least.offloads:
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
    return m * float(least.hurried_s[stages].sum()) + best


def _starts(least: LeastCosts, room: _Room, stages: list[int], m: int) -> tuple[_Start, ...]:
    forward_s = least.forward_s[stages]
    before_input_grad_s = least.reached_s[stages] + forward_s + least.round_trip_s[stages]
    trip_s, num_trips = _trips(least, room, stages, m)
    filled_s = min(_fill(room.room, room.most_forward_s(forward_s)), m * forward_s.sum())
    last_s = float(before_input_grad_s[-1] - filled_s)
    started, passed = room.passed_before_first_input_grad()
    other_s = float(least.hurried_s[stages[1:]].sum())
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


# Lower bounds that hold for every schedule: certificates to print beside a result
# --------------------------------------------------------------------------------


def lower_bounds(
    least: LeastCosts, num_microbatches: int, *, objective: Objective
) -> tuple[Bound, ...]:
    """One bound per argument that gives any, in the order above."""
    m = num_microbatches
    found = {
        BoundName.RANK_WORK: _rank_work(least, m, objective),
        BoundName.MEMORY_AREA: _memory_area(least, m, objective),
        BoundName.MEMORY_PATH: _memory_path(least, m, objective),
        BoundName.WINDOW: window_bound(least, m, objective),
    }
    return tuple(Bound(float(value_s), name) for name, value_s in found.items() if value_s > 0)


def best_bound(least: LeastCosts, num_microbatches: int, *, objective: Objective) -> Bound:
    """The largest of them, the first where several are equal; 0 where nothing takes any time."""
    bounds = lower_bounds(least, num_microbatches, objective=objective)
    return max(bounds, key=lambda bound: bound.value_s, default=Bound(0.0, BoundName.RANK_WORK))


_LOOK_SHARE = 10  # of the labels, by which the rank that waits most is found
_MOST_LABELS = 2_000_000  # of all looks together: where memory is wide, states alone are more
_GLANCE_SHARE = 12  # of two ranks: where so few are not one of each state, all would tell little
_PAIR_LOOK_SHARE = 3  # the same as above of two ranks, where fewer labels mislead
_NUM_PAIRS = 2  # of which all labels are kept


def crossings_bound(
    least: LeastCosts,
    num_microbatches: int,
    *,
    objective: Objective,
    num_labels: int,
    poll: Callable[[], bool] | None = None,
) -> Bound:
    """The shortest order of one rank where forwards cross input gradients on all stages beyond.

    `num_labels` are kept at most, in a few microseconds each; fewer give a lower bound that is less
    (`native/schedule/crossings.hpp`). 0 where nothing is limited, or so little that states are too
    many, or activations may overlap or wait elsewhere. `poll` is asked a few times a second whether
    to stop, with a bound that is less.
    """
    m = num_microbatches
    ranks = [rank for rank in range(least.placement.num_ranks) if _is_limited(least, rank)]
    if least.has_pairs or least.offloads or not ranks:
        return Bound(0.0, BoundName.CROSSINGS)
    few, most = num_labels // (_LOOK_SHARE * len(ranks)), _MOST_LABELS // len(ranks)
    looks = {rank: _crossings(least, rank, m, objective, few, most, poll) for rank in ranks}
    best = max(looks, key=lambda rank: looks[rank])
    if not looks[best]:
        return Bound(0.0, BoundName.CROSSINGS)
    again = _crossings(least, best, m, objective, num_labels, _MOST_LABELS, poll)
    return Bound(max(looks[best], again), BoundName.CROSSINGS)


def two_ranks_bound(
    least: LeastCosts,
    num_microbatches: int,
    *,
    objective: Objective,
    enough_s: float,
    num_labels: int,
    known_s: float = 0.0,
    poll: Callable[[], bool] | None = None,
) -> Bound:
    """The shortest orders of one rank of a V and of its last, and all that meets between them.

    At most `enough_s`, what an order takes (`native/schedule/two_ranks.hpp`), and without ranks
    that promise no more than `known_s`; 0 for other placements, and where nothing is limited or
    activations may overlap or wait elsewhere. `poll` is asked a few times a second whether to stop,
    with a bound that is less.
    """
    p, none = least.placement.num_ranks, Bound(0.0, BoundName.TWO_RANKS)
    limited = [holding for holding in least.holdings if np.isfinite(holding.room).any()]
    if least.has_pairs or least.offloads or not limited or p < 2:
        return none
    if any(
        tuple(stages) != (rank, 2 * p - 1 - rank)
        for rank, stages in enumerate(least.placement.stages_of_rank)
    ):
        return none

    def of(rank: int, labels: int) -> tuple[float, bool]:
        return _core.two_ranks_s(
            forward_s=least.forward_s.tolist(),
            input_grad_s=least.input_grad_s.tolist(),
            weight_grad_s=least.weight_grad_s.tolist(),
            forward_transfer_s=least.forward_transfer_s.tolist(),
            backward_transfer_s=least.backward_transfer_s.tolist(),
            pending=[holding.pending.tolist() for holding in limited],
            late=[holding.released_late.tolist() for holding in limited],
            room=[holding.room.tolist() for holding in limited],
            rank=rank,
            num_microbatches=num_microbatches,
            makespan=objective is Objective.MAKESPAN,
            enough_s=enough_s,
            num_labels=labels,
            poll=poll,
        )

    ranks = sorted({0, min(1, p - 2), p // 2 - 1, p // 2, p - 2} - {p - 1})
    glances = {rank: of(rank, num_labels // _GLANCE_SHARE) for rank in ranks}
    looks = {
        rank: glance if glance[1] else of(rank, num_labels // _PAIR_LOOK_SHARE)
        for rank, glance in glances.items()
        if glance[0]
    }
    # As much more as the labels gave before: a rank whose look is less may catch up.
    promised_s = {
        rank: 2 * look_s - glances[rank][0]
        for rank, (look_s, is_whole) in looks.items()
        if not is_whole
    }
    best = [
        rank
        for rank in sorted(promised_s, key=promised_s.__getitem__)[-_NUM_PAIRS:]
        if promised_s[rank] > known_s
    ]
    again_s = [of(rank, num_labels)[0] for rank in best]
    looks_s = [look_s for look_s, _ in looks.values()]
    return Bound(max([*looks_s, *again_s], default=0.0), BoundName.TWO_RANKS)


def _is_limited(least: LeastCosts, rank: int) -> bool:
    """Whether the rank has stages that are followed by others, and holds only so much."""
    stages = least.placement.stages_of_rank[rank]
    beyond = len(stages) > 0 and stages[-1] < len(least.forward_s) - 1
    return beyond and any(0 < holding.room[rank] < np.inf for holding in least.holdings)


def _crossings(
    least: LeastCosts,
    rank: int,
    m: int,
    objective: Objective,
    num_labels: int,
    most_labels: int,
    poll: Callable[[], bool] | None,
) -> float:
    stages = list(least.placement.stages_of_rank[rank])
    first, last = stages[0], stages[-1]
    beyond = slice(last + 1, None)
    limited = [holding for holding in least.holdings if 0 < holding.room[rank] < np.inf]
    reached_s, returned_s = least.reached_s[stages], least.returned_s[stages]
    forward_s, input_grad_s = least.forward_s[stages], least.input_grad_s[stages]
    head_s = float(reached_s[0])
    return _core.crossings_s(
        forward_s=forward_s.tolist(),
        input_grad_s=input_grad_s.tolist(),
        weight_grad_s=least.weight_grad_s[stages].tolist(),
        forward_gap_s=(np.diff(reached_s) - forward_s[:-1]).tolist(),
        input_grad_gap_s=(-np.diff(returned_s) - input_grad_s[1:]).tolist(),
        beyond_forward_s=least.forward_s[beyond].tolist(),
        beyond_input_grad_s=least.input_grad_s[beyond].tolist(),
        down_s=least.forward_transfer_s[last:].tolist(),
        up_s=least.backward_transfer_s[last:].tolist(),
        pending=[holding.pending[stages].tolist() for holding in limited],
        late=[holding.released_late[stages].tolist() for holding in limited],
        room=[float(holding.room[rank]) for holding in limited],
        head_s=head_s,
        own_head_s=head_s if objective is Objective.MAKESPAN else 0.0,
        tail_s=float(least.way_back_s[first]),
        num_microbatches=m,
        num_labels=num_labels,
        most_labels=most_labels,
        poll=poll,
    )


def _rank_work(least: LeastCosts, m: int, objective: Objective) -> float:
    """The larger of head + work, and head + work before the last I + the way back.

    What follows the last input gradient of a rank ends on stage 0, whose rank starts first of all:
    so the second form bounds the span of that rank, too. The last is of the rank's first stage.
    """
    best = 0.0
    before_release_s = least.forward_s + least.input_grad_s
    for rank, stages in enumerate(map(list, least.placement.stages_of_rank)):
        if not stages:
            continue
        head_s = float(least.reached_s[stages[0]])
        saved_s = m * float(least.overlap_s[rank])
        work_s = m * float(least.work_s[stages].sum()) - saved_s
        best = max(best, work_s + (head_s if objective is Objective.MAKESPAN else 0.0))
        late_s = np.sort(np.repeat(least.weight_grad_s[stages], m))
        late_s = late_s[: max(0, late_s.size - _weight_grads_held(least, rank, stages))]
        early_s = m * float(before_release_s[stages].sum()) + late_s.sum()
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
    """Held until I, and what is released late until W; or until I alone, and the way back.

    The second form ends on stage 0, whose rank starts first of all, so it bounds the span, too.
    """
    held_s = least.forward_s + least.round_trip_s + least.input_grad_s
    best = 0.0
    for holding in least.holdings:
        until_grad = holding.pending * held_s
        area = until_grad + holding.released_late * least.weight_grad_s
        for rank, stages in enumerate(map(list, least.placement.stages_of_rank)):
            room = float(holding.room[rank])
            if not stages or not 0 < room < np.inf:
                continue
            head_s = float(least.reached_s[stages[0]])
            ramps, host = _Ramps.of(least, holding, stages), _Host.of(least, holding, stages, m)
            own_s = host.least_s(ramps, m * float(area[stages].sum()), room, ramps.released_per_s)
            best = max(best, own_s + (head_s if objective is Objective.MAKESPAN else 0.0))
            early = m * float(until_grad[stages].sum())
            early_s = host.least_s(ramps, early, room, ramps.returned_per_s)
            best = max(best, head_s + early_s + float(least.way_back_s[stages[0]]))
    return best


class _Ramps(NamedTuple):
    """How fast a rank can fill its memory, and empty it: it runs one action at a time.

    After x seconds it holds at most `largest` (of the action under way) + x `filled_per_s`; the
    same holds backwards from its last W (`released_per_s`), and from its last I
    (`returned_per_s`) for what waits for I. Infinite rates say nothing.
    """

    largest: float
    filled_per_s: float
    released_per_s: float
    returned_per_s: float

    @classmethod
    def of(cls, least: LeastCosts, holding: Holding, stages: list[int]) -> _Ramps:
        pending, late = holding.pending[stages], holding.released_late[stages]
        largest = float(pending.max())
        if least.has_pairs:  # two at a time
            return cls(largest, np.inf, np.inf, np.inf)
        input_grad_s, weight_grad_s = least.input_grad_s[stages], least.weight_grad_s[stages]
        late = np.where(weight_grad_s > 0, late, 0.0)  # held for no time
        return cls(
            largest=largest,
            filled_per_s=_largest_ratio(pending, least.forward_s[stages]),
            released_per_s=max(
                _largest_ratio(pending, input_grad_s + weight_grad_s),
                _largest_ratio(late, weight_grad_s),
            ),
            returned_per_s=_largest_ratio(pending, input_grad_s),
        )

    def least_s(self, area: float, room: float, emptied_per_s: float) -> float:
        """Seconds in which the rank can hold so much for so long."""
        missing = room - self.largest
        if missing <= 0 or not np.isfinite(self.filled_per_s) or not np.isfinite(emptied_per_s):
            return area / room
        if self.filled_per_s <= 0 or emptied_per_s <= 0:
            return area / room
        ramps_s = missing / self.filled_per_s + missing / emptied_per_s
        lost = missing * ramps_s / 2
        # In a shorter time than both ramps take, memory is never full, and less than this is lost.
        return (area + lost) / room if area > room * ramps_s - lost else area / room


class _Host(NamedTuple):
    """What copies of one rank can save of its area, at most: a line of slope by slope.

    An activation that waits on the host is on the device for F, the two copies and I, at least; the
    link carries one at a time. So `seconds` of the link save `saved`, the best stages first.
    """

    seconds: Floats
    saved: Floats

    @classmethod
    def of(cls, least: LeastCosts, holding: Holding, stages: list[int], m: int) -> _Host:
        if not least.offloads:
            return cls(np.zeros(1), np.zeros(1))
        copies_s = least.copies_s[stages]
        away_s = np.maximum(least.round_trip_s[stages] - copies_s, 0.0)
        saved = holding.offloaded[stages] * away_s
        rate = np.divide(saved, copies_s, out=np.full(len(stages), np.inf), where=copies_s > 0)
        best = np.argsort(-np.where(saved > 0, rate, 0.0), kind="stable")
        line = (np.concatenate([[0.0], m * np.cumsum(each[best])]) for each in (copies_s, saved))
        return cls(*line)

    def least_s(self, ramps: _Ramps, area: float, room: float, emptied_per_s: float) -> float:
        """Seconds in which the rank holds so much for so long, less what copies in them save."""
        high_s = ramps.least_s(area, room, emptied_per_s)
        if self.saved[-1] <= 0:
            return high_s
        low_s = 0.0
        for _ in range(_HALVINGS):  # what is too short stays too short: a link saves ever less
            tried_s = (low_s + high_s) / 2
            saved = float(np.interp(tried_s, self.seconds, self.saved))
            if ramps.least_s(area - saved, room, emptied_per_s) > tried_s:
                low_s = tried_s
            else:
                high_s = tried_s
        return low_s


class _Wait(NamedTuple):
    """F of `stage` of microbatch j + `places` waits for I of j, and `lag_s` more for a release."""

    stage: int
    places: int
    lag_s: float


def _memory_path(least: LeastCosts, m: int, objective: Objective) -> float:
    """Longest path through forwards, input gradients and the work of one rank; O(m S log m).

    All streams run in microbatch order. A path gives every action the time before which it cannot
    start (head) and what must follow its end (tail); in between a rank does one thing at a time, so
    of each set of its actions least head + work + least tail must pass (Carlier, 1982). What
    follows ends with the last action of all, or for a span on the rank of stage 0, which starts
    first.
    """
    if least.has_pairs:
        return 0.0
    heads_s, input_grad_heads_s = _heads_s(least, m)
    tails_s, input_grad_tails_s = _tails_s(least, m, objective)
    best = 0.0
    for rank, stages in enumerate(map(list, least.placement.stages_of_rank)):
        if not stages:
            continue
        ends_it = objective is Objective.MAKESPAN or rank == least.placement.rank_of_stage[0]
        weight_grad_heads_s = input_grad_heads_s[:, stages] + least.input_grad_s[stages]
        no_tail_s = np.full((m, len(stages)), 0.0 if ends_it else -np.inf)
        columns = (
            (heads_s[:, stages], least.forward_s[stages], tails_s[:, stages]),
            (
                input_grad_heads_s[:, stages],
                least.input_grad_s[stages],
                input_grad_tails_s[:, stages],
            ),
            (weight_grad_heads_s, least.weight_grad_s[stages], no_tail_s),
        )
        head_s, work_s, tail_s = (
            np.concatenate(
                [np.broadcast_to(column[i], (m, len(stages))).ravel() for column in columns]
            )
            for i in range(3)
        )
        best = max(best, _core.one_machine_s(head_s, work_s, tail_s))
    return best


def _waits_of(least: LeastCosts, m: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Stage, places and lag of every wait that memory enforces; none where the host has room."""
    holdings = () if least.offloads else least.holdings
    waits = [wait for holding in holdings for wait in _waits(least, holding)]
    waits = [wait for wait in waits if 0 < wait.places < m]
    stage, places = (np.array([wait[i] for wait in waits], np.int64) for i in (0, 1))
    return stage, places, np.array([wait.lag_s for wait in waits])


def _heads_s(least: LeastCosts, m: int) -> tuple[Floats, Floats]:
    """Before when no forward, and no input gradient, can start: shape [m, S] each."""
    stage, places, lag_s = _waits_of(least, m)
    down_s, up_s = least.reached_s, least.returned_s
    num_stages = len(down_s)
    forward_end_s = np.zeros(num_stages)
    forward_start_s = np.zeros((m, num_stages))
    input_grad_end_s = np.zeros((m + 1, num_stages))  # row j + 1 is of microbatch j
    for j in range(m):
        earliest_s = forward_end_s
        if len(stage):
            earliest_s = earliest_s.copy()
            released_s = input_grad_end_s[np.maximum(j - places, -1) + 1, stage] + lag_s
            np.maximum.at(earliest_s, stage, np.where(places <= j, released_s, 0.0))
        forward_start_s[j] = np.maximum.accumulate(earliest_s - down_s) + down_s
        forward_end_s = forward_start_s[j] + least.forward_s
        ready_s = np.maximum(input_grad_end_s[j], forward_end_s)
        start_s = np.maximum.accumulate((ready_s - up_s)[::-1])[::-1] + up_s
        input_grad_end_s[j + 1] = start_s + least.input_grad_s
    return forward_start_s, input_grad_end_s[1:] - least.input_grad_s


def _tails_s(least: LeastCosts, m: int, objective: Objective) -> tuple[Floats, Floats]:
    """What must pass after each forward, and after each input gradient: shape [m, S] each."""
    stage, places, lag_s = _waits_of(least, m)
    num_stages = len(least.forward_s)
    # From the end of an action of a stage to the start of the one that it hands on to, summed up.
    down_s, up_s = least.reached_s + least.forward_s, least.returned_s + least.input_grad_s
    forward_tail_s, input_grad_tail_s = np.zeros((2, m, num_stages))
    ranks = np.array(least.placement.rank_of_stage)
    counts = np.full(num_stages, True) if objective is Objective.MAKESPAN else ranks == ranks[0]
    own_s = np.where(counts, least.weight_grad_s, 0.0)
    for j in reversed(range(m)):
        after_s = own_s.copy()
        if j + 1 < m:
            after_s = np.maximum(after_s, input_grad_tail_s[j + 1] + least.input_grad_s)
        if len(stage):
            reader = np.minimum(j + places, m - 1)
            then_s = lag_s + least.forward_s[stage] + forward_tail_s[reader, stage]
            np.maximum.at(after_s, stage, np.where(j + places < m, then_s, 0.0))
        # tail(s) = max over s' <= s of after(s') + the way from the end of I(s) to that of I(s')
        input_grad_tail_s[j] = np.maximum.accumulate(after_s + up_s) - up_s
        after_s = input_grad_tail_s[j] + least.input_grad_s
        if j + 1 < m:
            after_s = np.maximum(after_s, forward_tail_s[j + 1] + least.forward_s)
        reached_s = np.maximum.accumulate((after_s + down_s)[::-1])[::-1]
        forward_tail_s[j] = reached_s - down_s
    return forward_tail_s, input_grad_tail_s


def _waits(least: LeastCosts, holding: Holding) -> Iterator[_Wait]:
    """Between F and I of a stage, a microbatch also holds its part of the stages before it.

    After I of the stage it still holds all but what that releases, until W of one of them.
    """
    early = holding.pending - holding.released_late
    for rank, stages in enumerate(map(list, least.placement.stages_of_rank)):
        room = float(holding.room[rank])
        if not np.isfinite(room):
            continue
        for i, stage in enumerate(stages):
            through = float(holding.pending[stages[: i + 1]].sum())
            if through <= 0:
                continue
            places = int(room // through)
            kept = through - float(early[stage])
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
