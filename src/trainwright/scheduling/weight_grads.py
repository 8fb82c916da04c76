"""From orders without weight gradients to the best full schedule.

A family may know several orders of forwards and input gradients, and which is best depends on the
times. Each is filled with weight gradients in two ways and its idle gaps are closed; the best few
then get better places for their weight gradients and are justified, first against the end of the
step, then against its start. Large schedules are judged by fewer microbatches: warm-up, one period
and cool-down do not change with m. Where a few microbatches repeat in the middle, they are run more
often, between the ends that were made for few.

A family may promise how many activations its ranks hold at some instant, so that others know what
every order of it needs (`Family.least_in_flight`). Orders that never do are left out, and gaps stay
open where closing them would end that.

All effort is counted in actions, so that results repeat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from trainwright._native import _core
from trainwright.plans.lowered import Timeline
from trainwright.plans.schedule import Action, ActionKind, Placement, Schedule, ScheduleCosts
from trainwright.plans.status import Objective
from trainwright.scheduling.bounds import LeastCosts, best_bound
from trainwright.scheduling.orders import (
    SWEEPS,
    Window,
    fill_weight_grads,
    improve_weight_grads,
    justify,
    lengthen,
    reorder,
)
from trainwright.scheduling.simulate import native_costs, native_memory, native_orders, simulate

if TYPE_CHECKING:
    from trainwright.arrays import Ints

    Order: TypeAlias = Callable[[int], Schedule]  # of a number of microbatches; W left out
    Stream = tuple[ActionKind, int]

_SMALL = 30_000  # above, orders are judged by fewer microbatches and only their ends reordered
_ENDS = 3  # microbatches per rank of an order whose ends are made by themselves
_NEAR = 1.005  # times the bound: what is no longer is good enough
_SHORTER = 1 - 1e-9  # of what is known: no rounding
_TRIALS = 200_000  # spent on filling orders
_PASSES = 40  # simulations of the schedule while placing weight gradients, in each round
_ROUNDS = 4  # of orders and places by turns
_IMPROVABLE = 6_500_000  # actions times ranks
_NUM_LARGE = 5  # orders tried in full where they can be improved
_NUM_IMPROVED = 3  # of these that get better places for their weight gradients
_POLISHED = 40_000  # actions of all orders that are polished, which are 3 to 24


class _Trial(NamedTuple):
    order: Order
    tolerated_idle_s: float
    schedule: Schedule
    timeline: Timeline

    def cost(self, objective: Objective) -> tuple[float, float]:
        """The objective, then span and makespan together."""
        return objective.of(self.timeline), self.timeline.span_s + self.timeline.makespan_s


class Further(NamedTuple):
    """Orders that are made where the others are not near the bound.

    `whole` has its weight gradients already, and a middle that repeats; `orders` have none.
    """

    whole: tuple[Order, ...]
    orders: tuple[Order, ...]


class _Asked(NamedTuple):
    """What orders are for; they need not be shorter than `enough_s`, and hold rows of `held`."""

    placement: Placement
    costs: ScheduleCosts
    num_microbatches: int
    objective: Objective
    held: Ints
    enough_s: float

    @classmethod
    def of(
        cls,
        placement: Placement,
        costs: ScheduleCosts,
        num_microbatches: int,
        objective: Objective,
        held: Ints,
    ) -> _Asked:
        enough_s = _enough_s(placement, costs, num_microbatches, objective)
        return cls(placement, costs, num_microbatches, objective, held, enough_s)

    def value_s(self, schedule: Schedule | None) -> float:
        """The objective of a schedule; infinite where there is none."""
        return math.inf if schedule is None else self.objective.of(simulate(schedule, self.costs))


def best_of(
    orders: Sequence[Order],
    placement: Placement,
    costs: ScheduleCosts,
    *,
    num_microbatches: int,
    objective: Objective = Objective.SPAN,
    held: Ints | None = None,
    further: Callable[[float], Further] | None = None,
) -> Schedule | None:
    """The schedule of least objective within the limits of `costs`; None if none fits.

    Orders are tried as given, until one meets a lower bound or the effort is spent. By each row of
    `held` [N, S] a rank has, at one instant, so many microbatches of all of its stages between
    their forward and their input gradient, at least. Where the best is not near the bound, orders
    are asked for that may take less than its seconds, `further`, and tried alike.
    """
    if held is None:
        held = np.zeros((0, placement.num_stages), dtype=np.int64)
    asked = _Asked.of(placement, costs, num_microbatches, objective, held)

    def best(some: Sequence[Order]) -> tuple[float, Schedule | None]:
        is_large = 3 * costs.num_stages * num_microbatches > _SMALL
        found = _best_of_large(some, asked) if is_large else _best_of_small(some, asked)
        return asked.value_s(found), found

    found_s, found = best(orders)
    if further is None or found is None or found_s <= _NEAR * asked.enough_s:
        return found
    others = further(found_s)
    for order in others.whole:
        whole = _of_whole(order, asked)
        whole_s = asked.value_s(whole)
        if whole_s < _SHORTER * found_s:
            found_s, found = whole_s, whole
    other_s, other = best(others.orders)
    return other if other_s < found_s else found


def _of_whole(order: Order, asked: _Asked) -> Schedule | None:
    """An order with its weight gradients, justified at both ends; None where it does not fit."""
    placement, costs, num_microbatches, objective, held, _ = asked
    few = min(_ENDS * placement.num_ranks, num_microbatches)
    short = order(few)
    if not simulate(short, costs).fits:
        return None
    short = _justified(short, costs, objective, held)
    whole = lengthen(short, costs, num_microbatches=num_microbatches)
    if whole is None:
        whole = _justified(order(num_microbatches), costs, objective, held)
    return whole if holds(whole, held) and simulate(whole, costs).fits else None


def _best_of_small(orders: Sequence[Order], asked: _Asked) -> Schedule | None:
    """Every order closed, the best polished, in the core (`native/schedule/order_trials.hpp`)."""
    placement, costs, num_microbatches, objective, held, enough_s = asked
    trials = _core.OrderTrials(
        native_costs(costs),
        native_memory(costs.memory),
        span=objective is Objective.SPAN,
        enough_s=enough_s,
        sweeps=SWEEPS,
        held=held.reshape(-1).tolist(),
    )
    effort = 0
    for order in orders:
        partial = order(num_microbatches)
        effort += 2 * partial.num_actions
        if trials.add(native_orders(partial)) or effort > _TRIALS:
            break
    num_actions = 3 * costs.num_stages * num_microbatches
    best = trials.best(
        num_finalists=min(max(_POLISHED // num_actions, 3), 24),
        rounds=_ROUNDS,
        simulations=max(_PASSES, 3 * placement.num_ranks),
    )
    if not best.complete:
        return None
    return Schedule(
        placement=placement,
        num_microbatches=num_microbatches,
        actions=best.actions,
        rank_offsets=best.rank_offsets,
    )


def _best_of_large(orders: Sequence[Order], asked: _Asked) -> Schedule | None:
    """The best of two: ends made for few microbatches, and the best of fewer, made for all."""
    costs, objective = asked.costs, asked.objective
    longer = _lengthened(orders, asked)
    longer_s = asked.value_s(longer)
    if longer_s <= _NEAR * asked.enough_s:
        return longer
    whole = _best_of_whole(orders, asked)
    if whole is None:
        return longer
    whole = _justified(whole, costs, objective, asked.held)
    return longer if longer_s < asked.value_s(whole) else whole


def _lengthened(orders: Sequence[Order], asked: _Asked) -> Schedule | None:
    """The best with microbatches for both ends and a middle, which is then repeated.

    None where none fits or repeats.
    """
    placement, costs, num_microbatches, objective, held, _ = asked
    few = _ENDS * placement.num_ranks
    if few >= num_microbatches or 3 * costs.num_stages * few > _SMALL:
        return None
    short = _best_of_small(orders, _Asked.of(placement, costs, few, objective, held))
    if short is None:
        return None
    longer = lengthen(short, costs, num_microbatches=num_microbatches)
    if longer is None or not (holds(longer, held) and simulate(longer, costs).fits):
        return None
    return longer


def _best_of_whole(orders: Sequence[Order], asked: _Asked) -> Schedule | None:
    """Of the orders that are best with fewer microbatches, the best that fits with all of them."""
    _, costs, num_microbatches, objective, held, enough_s = asked
    fewer = min(max(1, _SMALL // (3 * costs.num_stages)), num_microbatches)
    trials = sorted(
        _trials(orders, costs, fewer),
        key=lambda trial: trial.cost(objective),
    )
    is_improvable = _is_improvable(costs, num_microbatches)
    finalists = []
    for trial in islice(
        _filled_trials(trials, costs, num_microbatches, held), _NUM_LARGE if is_improvable else 1
    ):
        if objective.of(trial.timeline) <= enough_s and not is_improvable:
            return trial.schedule
        ends = _reorder_ends(trial.schedule, costs)
        closed = _with_schedule(trial, ends, costs) if holds(ends, held) else trial
        if objective.of(closed.timeline) <= enough_s:
            return closed.schedule
        finalists.append(closed)
    if is_improvable:  # the shortest as they are may not be so in the end
        improved = sorted(finalists, key=lambda trial: trial.cost(objective))[:_NUM_IMPROVED]
        for trial in improved:
            better = _improved(trial.schedule, costs, rounds=1, objective=objective)
            if holds(better, held):
                finalists.append(_with_schedule(trial, better, costs))
    best = min(finalists, key=lambda trial: trial.cost(objective), default=None)
    return None if best is None else best.schedule


def holds(schedule: Schedule, held: Ints) -> bool:
    """Whether every rank has so many microbatches of its stages in flight at one instant."""
    for rank, stages in enumerate(schedule.placement.stages_of_rank):
        rows, own = schedule.actions[schedule.rows_of(rank)], held[:, list(stages)]
        mine = rows[:, 1, np.newaxis] == np.array(stages)
        begun = np.cumsum(mine & (rows[:, :1] == ActionKind.F), axis=0)
        in_flight = begun - np.cumsum(mine & (rows[:, :1] == ActionKind.I), axis=0)
        if not all((in_flight >= row).all(axis=1).any() for row in own):
            return False
    return True


def _is_improvable(costs: ScheduleCosts, num_microbatches: int) -> bool:
    """Whether every rank can have a turn; each costs a simulation of all actions."""
    num_actions = 3 * costs.num_stages * num_microbatches
    return num_actions * costs.memory.num_ranks <= _IMPROVABLE


def _filled_trials(
    trials: Sequence[_Trial], costs: ScheduleCosts, num_microbatches: int, held: Ints
) -> Iterator[_Trial]:
    """The trials with another number of microbatches, those that fit."""
    for trial in trials:
        filled = fill_weight_grads(
            trial.order(num_microbatches), costs, tolerated_idle_s=trial.tolerated_idle_s
        )
        if filled is not None and holds(filled, held):
            yield _with_schedule(trial, filled, costs)


def _trials(
    orders: Sequence[Order], costs: ScheduleCosts, num_microbatches: int
) -> Iterator[_Trial]:
    """Orders filled in two ways, each result once."""
    effort = 0
    seen = set()
    for order in orders:
        partial = order(num_microbatches)
        for tolerated_idle_s in (math.inf, 0.0):
            filled = fill_weight_grads(partial, costs, tolerated_idle_s=tolerated_idle_s)
            if filled is None or (key := filled.actions.tobytes()) in seen:
                continue
            seen.add(key)
            yield _Trial(order, tolerated_idle_s, filled, simulate(filled, costs))
        effort += 2 * partial.num_actions
        if effort > _TRIALS:
            return


def _enough_s(
    placement: Placement, costs: ScheduleCosts, num_microbatches: int, objective: Objective
) -> float:
    """None is shorter: a lower bound, of very large schedules only that no rank may wait."""
    if _is_improvable(costs, num_microbatches):
        least = LeastCosts.of(placement, costs)
        bound = best_bound(least, num_microbatches, objective=objective)
        return bound.value_s * (1 + 1e-9)
    split_s = costs.duration_s[[ActionKind.F, ActionKind.I, ActionKind.W]].sum(axis=0)
    busiest_s = max(split_s[list(stages)].sum() for stages in placement.stages_of_rank)
    return float(num_microbatches * busiest_s) * (1 + 1e-9)


def _with_schedule(trial: _Trial, schedule: Schedule, costs: ScheduleCosts) -> _Trial:
    return trial._replace(schedule=schedule, timeline=simulate(schedule, costs))


def polish(schedule: Schedule, costs: ScheduleCosts) -> Schedule:
    """Close gaps, place weight gradients anew and justify, within the limits; never a longer span.

    In a large schedule weight gradients keep their places.
    """
    schedule = reorder(schedule, costs)
    if schedule.num_actions <= _SMALL:
        schedule = _improved(schedule, costs, rounds=_ROUNDS)
    return _justified(schedule, costs, Objective.SPAN)


def _justified(
    schedule: Schedule, costs: ScheduleCosts, objective: Objective, held: Ints | None = None
) -> Schedule:
    """The schedule justified, where that is shorter and holds what it has to.

    Where it has to, limits are counts, and no peak rises: activations differ in bytes.
    """
    timeline, memory = simulate(schedule, costs), costs.memory
    if held is not None and len(held):
        memory = replace(memory, limit_bytes=timeline.peak_bytes)
    justified = justify(schedule, replace(costs, memory=memory))

    def cost(timeline: Timeline) -> tuple[float, float]:
        return objective.of(timeline), timeline.span_s + timeline.makespan_s

    is_allowed = held is None or holds(justified, held)
    is_shorter = cost(simulate(justified, costs)) < cost(timeline)
    return justified if is_allowed and is_shorter else schedule


def _improved(
    schedule: Schedule,
    costs: ScheduleCosts,
    *,
    rounds: int,
    objective: Objective = Objective.SPAN,
) -> Schedule:
    """Place weight gradients anew and close gaps, until nothing is gained."""
    budget = schedule.num_actions * max(_PASSES, 3 * schedule.num_ranks)
    least_s = math.inf
    for _ in range(rounds):
        placed = improve_weight_grads(schedule, costs, objective=objective, budget=budget)
        schedule = reorder(placed, costs)
        found_s = objective.of(simulate(schedule, costs))
        if found_s >= least_s:
            break
        least_s = found_s
    return schedule


def _reorder_ends(schedule: Schedule, costs: ScheduleCosts) -> Schedule:
    """Reorder warm-up (until stage 0 ends its first backward), then cool-down (from its last F)."""
    timeline = simulate(schedule, costs)
    warm_up = Window(until_s=float(timeline.backward_arrival_s[0, 0]))
    schedule = reorder(schedule, costs, window=warm_up)
    timeline = simulate(schedule, costs)
    rows = schedule.rows_of(schedule.placement.rank_of_stage[0])
    kinds, stages = schedule.actions[rows, 0], schedule.actions[rows, 1]
    forwards = timeline.start_s[rows][(kinds == ActionKind.F) & (stages == 0)]
    return reorder(schedule, costs, window=Window(from_s=float(forwards.max())))


# Orders by list scheduling: a rank that is free takes the first of its streams that is ready
# -------------------------------------------------------------------------------------------
# A stream is one kind of action of one stage, in the order of microbatches. Streams of a rank have
# priorities; a forward is ready only while its rank holds fewer activations than it may, room for
# one of each of its later chunks left free, so that what has begun can end. Backwards are whole.
# O(n·s) for n actions and s streams per rank. Families use it where a paper gives a rule, no table.


_F, _B, _V, _T = ActionKind.F, ActionKind.B, ActionKind.V, ActionKind.T


def list_schedule(
    streams: Sequence[Sequence[Stream]],
    *,
    placement: Placement,
    num_microbatches: int,
    costs: ScheduleCosts,
    held: Sequence[int],
    head_barriers: int = 0,
) -> Schedule:
    """Run every stream of every rank `num_microbatches` times.

    `streams` has for each rank its kinds and stages, the most urgent first; `held` is how many
    activations each rank may hold, at least one per chunk.
    """
    run = _Run(placement, num_microbatches, costs, held, head_barriers)
    orders: list[list[Action]] = [[] for _ in streams]
    free = [(0.0, rank) for rank in range(len(streams))]
    heapify(free)
    idle: set[int] = set()
    while free:
        now_s = free[0][0]
        while free and free[0][0] <= now_s:
            idle.add(heappop(free)[1])
        started = False
        for rank in sorted(idle):
            stream = run.first_ready(rank, streams[rank], now_s)
            if stream is None:
                continue
            orders[rank].append(Action(*stream, run.next_of.get(stream, 0)))
            heappush(free, (run.start(rank, stream, now_s), rank))
            idle.discard(rank)
            started = True
        later = run.next_arrival_s(now_s)
        if not started and not free and idle and later is not None:
            free = [(later, rank) for rank in sorted(idle)]
            idle.clear()
        elif idle and free:  # look again when something ends or arrives
            again_s = min(free[0][0], later) if later is not None else free[0][0]
            for rank in sorted(idle):
                heappush(free, (again_s, rank))
            idle.clear()
    return Schedule.of_ranks(
        [np.array(order, np.int32).reshape(-1, 3) for order in orders],
        placement=placement,
        num_microbatches=num_microbatches,
        head_barriers=head_barriers,
    )


class _Run:
    """When everything that was started is done, and what may start."""

    def __init__(
        self,
        placement: Placement,
        num_microbatches: int,
        costs: ScheduleCosts,
        held: Sequence[int],
        head_barriers: int,
    ) -> None:
        self.count, self.costs = num_microbatches, costs
        self.owner = placement.rank_of_stage
        self.last = len(self.owner) - 1
        self.shards = [stages[0] for stages in placement.stages_of_rank] if head_barriers else []
        self.gate = {0: None, 1: _V, 2: _T}[head_barriers]
        self.holds = [0] * placement.num_ranks
        self.may_hold = {
            stage: held[rank] - later
            for rank, stages in enumerate(placement.stages_of_rank)
            for later, stage in enumerate(reversed(stages))
        }
        self.next_of: dict[Stream, int] = {}
        self.there_s: dict[Action, float] = {}
        self.arrivals: list[float] = []

    def first_ready(self, rank: int, streams: Sequence[Stream], now_s: float) -> Stream | None:
        for kind, stage in streams:
            j = self.next_of.get((kind, stage), 0)
            if j == self.count or (kind is _F and self.holds[rank] >= self.may_hold[stage]):
                continue
            needed = self._needs(kind, stage, j)
            if all(self.there_s.get(action, np.inf) <= now_s for action in needed):
                return kind, stage
        return None

    def _needs(self, kind: ActionKind, stage: int, j: int) -> list[Action]:
        if kind is _F:
            return [Action(_F, stage - 1, j)] if stage else []
        if kind is _V:
            return [Action(_F, self.last, j)]
        if kind is _T:
            return [Action(_V, shard, j) for shard in self.shards]
        if stage < self.last:
            return [Action(_F, stage, j), Action(_B, stage + 1, j)]
        gates = [Action(self.gate, shard, j) for shard in self.shards if self.gate is not None]
        return [Action(_F, stage, j), *gates]

    def start(self, rank: int, stream: Stream, now_s: float) -> float:
        kind, stage = stream
        j = self.next_of.get(stream, 0)
        self.next_of[stream] = j + 1
        self.holds[rank] += {_F: 1, _B: -1}.get(kind, 0)
        end_s = now_s + float(self.costs.duration_s[kind, stage])
        there_s = end_s + self._transfer_s(kind, stage)
        self.there_s[Action(kind, stage, j)] = there_s
        heappush(self.arrivals, there_s)
        return end_s

    def _transfer_s(self, kind: ActionKind, stage: int) -> float:
        if kind is _F and stage < self.last and self.owner[stage] != self.owner[stage + 1]:
            return float(self.costs.forward_transfer_s[stage])
        if kind is _B and stage and self.owner[stage] != self.owner[stage - 1]:
            return float(self.costs.backward_transfer_s[stage - 1])
        to_head = self.shards and (kind in (_V, _T) or (kind is _F and stage == self.last))
        return self.costs.barrier_s if to_head else 0.0

    def next_arrival_s(self, now_s: float) -> float | None:
        while self.arrivals and self.arrivals[0] <= now_s:
            heappop(self.arrivals)
        return self.arrivals[0] if self.arrivals else None
