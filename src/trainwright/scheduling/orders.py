"""Between the orders of a schedule and the words of a `SearchedOrder`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright._native import _core
from trainwright.errors import Fault, InvalidInput
from trainwright.plans.plan import SearchedOrder
from trainwright.plans.schedule import (
    ActionKind,
    Placement,
    Schedule,
    ScheduleCosts,
    ScheduleMemory,
)
from trainwright.plans.status import Objective
from trainwright.scheduling.simulate import (
    native_costs,
    native_memory,
    native_orders,
    simulate,
    validate,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from trainwright.arrays import Floats
    from trainwright.plans.schedule import Actions

    Rows = NDArray[np.int64]

# The leanest order: one microbatch forwards and backwards before the next
# ------------------------------------------------------------------------

_F, _I, _W, _B, _R, *_ = ActionKind


def one_at_a_time(
    placement: Placement,
    num_microbatches: int,
    memory: ScheduleMemory | None = None,
    *,
    fused: NDArray[np.bool_] | None = None,
    recomputed: NDArray[np.bool_],
) -> Schedule:
    """Each microbatch forwards and backwards before the next: the least memory of all schedules.

    `fused` and `recomputed` [S] say how backwards run; where `fused` is None, whole only if halves
    do not fit. Weight gradients follow at once, or later if `memory` has no room for them yet.
    """
    memory, orders = memory or ScheduleMemory.of(placement), []
    for rank, stages in enumerate(placement.stages_of_rank):
        once = np.array(_Passage.leanest(memory, rank, stages, fused, recomputed), np.int32)
        once = once.reshape(-1, 2)
        order = np.empty((len(once) * num_microbatches, 3), np.int32)
        order[:, :2] = np.tile(once, (num_microbatches, 1))
        order[:, 2] = np.repeat(np.arange(num_microbatches), len(once))
        orders.append(order)
    return Schedule.of_ranks(orders, placement=placement, num_microbatches=num_microbatches)


class _Passage:
    """One microbatch through the stages of a rank, each action as early as there is room for it.

    What releases memory early leaves more room for all that follows, so where anything fits in
    `room`, this does. `refused` is the least that would have let it run otherwise.
    """

    def __init__(self, memory: ScheduleMemory, room: float) -> None:
        self.delta, self.transient, self.room = memory.delta_bytes, memory.transient_bytes, room
        self.level, self.refused = 0.0, math.inf
        self.rows: list[tuple[ActionKind, int]] = []

    @classmethod
    def leanest(
        cls,
        memory: ScheduleMemory,
        rank: int,
        stages: Sequence[int],
        fused: NDArray[np.bool_] | None,
        recomputed: NDArray[np.bool_],
    ) -> list[tuple[ActionKind, int]]:
        """Within the limit of the rank, or else within the least that is enough."""
        delta, transient = memory.delta_bytes[_F, list(stages)], memory.transient_bytes
        held = np.concatenate([[0.0], np.cumsum(delta)])[:-1] + np.maximum(delta, 0.0)
        forwards = float((held + transient[_F, list(stages)]).max(initial=0.0))
        room = max(forwards, float(memory.most_bytes[rank] - memory.static_bytes[rank]))
        while True:
            passage = cls(memory, room)
            if passage.fits(stages, fused, recomputed):
                return passage.rows
            room = passage.refused

    def fits(
        self,
        stages: Sequence[int],
        fused: NDArray[np.bool_] | None,
        recomputed: NDArray[np.bool_],
    ) -> bool:
        """Run all of it; False where an action finds no room."""
        if not all(self._runs(_F, stage) for stage in stages):
            return False
        late: list[int] = []
        for stage in reversed(stages):
            late = self._settled(late)
            if recomputed[stage] and not self._runs(_R, stage):
                return False
            split = (fused is None or not fused[stage]) and self._runs(_I, stage)
            if split and self.delta[_W, stage] <= 0 and self._runs(_W, stage):
                continue
            if split and fused is None:  # what is left for later may hold more than the whole
                self._undo()
            if (fused is None or fused[stage]) and self._runs(_B, stage):
                continue
            if not split:
                return False
            if fused is None:
                self._runs(_I, stage)
            late.append(stage)
        last = sorted(self._settled(late), key=lambda stage: -self.transient[_W, stage])
        return all(self._runs(_W, stage) for stage in last)

    def _settled(self, late: list[int]) -> list[int]:
        """Run the weight gradients that there is room for; what is left."""
        while True:
            left = [s for s in late if self.delta[_W, s] > 0 or not self._runs(_W, s)]
            if len(left) == len(late):
                return left
            late = left

    def _runs(self, kind: ActionKind, stage: int) -> bool:
        delta = float(self.delta[kind, stage])
        peak = self.level + max(delta, 0.0) + float(self.transient[kind, stage])
        if peak > self.room:
            self.refused = min(self.refused, peak)
            return False
        self.level += delta
        self.rows.append((kind, stage))
        return True

    def _undo(self) -> None:
        self.level -= float(self.delta[self.rows.pop()])


# Orders as arrays of actions, one per row: the small algebra that families are written in
# ----------------------------------------------------------------------------------------


def actions(kind: ActionKind, stage: ArrayLike, microbatch: ArrayLike) -> Actions:
    """Rows of one kind; stage and microbatch broadcast against each other."""
    rows = np.empty((max(np.size(stage), np.size(microbatch)), 3), np.int32)
    rows[:, 0], rows[:, 1], rows[:, 2] = kind, stage, microbatch
    return rows


def counted(word: ArrayLike, streams: Sequence[tuple[ActionKind, int]]) -> Actions:
    """A word over streams as rows: letter i is an action of `streams[i]`, a kind and a stage.

    A letter's microbatch is how many of its kind came before it.
    """
    letters = np.asarray(word, np.int64)
    rows = np.empty((len(letters), 3), np.int32)
    rows[:, :2] = np.array(streams, np.int32)[letters]
    for letter in range(len(streams)):
        places = np.flatnonzero(letters == letter)
        rows[places, 2] = np.arange(len(places))
    return rows


def in_turn(*orders: Actions) -> Actions:
    """First rows of all, then second rows of all, …; the orders have equal length."""
    return np.stack(orders, axis=1).reshape(-1, 3)


def one_after_another(*orders: Actions) -> Actions:
    """All of the first, then all of the second, …"""
    return np.concatenate(orders)


def alternating(forwards: Actions, backwards: Actions, *, warm_up: int) -> Actions:
    """`warm_up` forwards, then a forward and a backward in turn, then the backwards left."""
    steady = len(forwards) - warm_up
    middle = in_turn(forwards[warm_up:], backwards[:steady])
    return one_after_another(forwards[:warm_up], middle, backwards[steady:])


def by_time(order: Actions, time: NDArray[np.generic]) -> Actions:
    """Rows sorted by a time each; rows of equal time stay as they are."""
    return order[np.argsort(time, kind="stable")]


# Between the orders of a schedule and the words of a `SearchedOrder`
# -------------------------------------------------------------------


def words_of(schedule: Schedule, *, family: str) -> SearchedOrder:
    """The orders as words; stages must run F, I and W each in the order of microbatches."""
    return SearchedOrder(
        family=family,
        words=tuple(_word(schedule, rank) for rank in range(schedule.num_ranks)),
    )


def _word(schedule: Schedule, rank: int) -> str:
    rows = schedule.actions[schedule.rows_of(rank), :2].tolist()
    steps = []
    for (kind, stage), run in groupby(rows):
        count = sum(1 for _ in run)
        step = f"{stage}{ActionKind(kind).name}"
        steps.append(step if count == 1 else f"{step}*{count}")
    return " ".join(steps)


@lru_cache(maxsize=16)
def schedule_of_words(order: SearchedOrder, *, num_stages: int, num_microbatches: int) -> Schedule:
    """The orders of S stages and m microbatches.

    Raises `InvalidInput` under `words` where a rank is without a stage, a stage without a rank, an
    action missing or one too many, or where ranks wait for each other for ever.
    """
    steps = [_steps(word) for word in order.words]
    _require_counts(steps, num_stages=num_stages, num_microbatches=num_microbatches)
    rows = [np.repeat(of_rank[:, :2], of_rank[:, 2], axis=0) for of_rank in steps]
    owned = [np.unique(of_rank[:, 1]).tolist() for of_rank in rows]
    try:
        schedule = Schedule.of_ranks(
            [_numbered(of_rank) for of_rank in rows],
            placement=Placement.from_ranks(owned),
            num_microbatches=num_microbatches,
        )
        validate(schedule)
    except InvalidInput as error:
        raise InvalidInput(Fault("words", str(fault)) for fault in error.faults) from None
    return schedule


def _steps(word: str) -> Rows:
    """Kind, stage and count of every step, shape [n, 3]."""
    found = []
    for step in word.split(" "):
        name, _, count = step.partition("*")
        found.append((ActionKind[name[-1]].value, int(name[:-1]), int(count or 1)))
    return np.array(found, np.int64)


def _require_counts(steps: list[Rows], *, num_stages: int, num_microbatches: int) -> None:
    """Checked before tables are made of it: F, I and W of each of the rank's stages m times."""
    faults = []
    for rank, own in enumerate(steps):
        if (last := int(own[:, 1].max())) >= num_stages:
            problem = f"must name stages below {num_stages}, got {last}"
            faults.append(Fault(f"words[{rank}]", problem))
            continue
        counts = np.zeros((num_stages, 3), np.int64)
        np.add.at(counts, (own[:, 1], own[:, 0]), own[:, 2])
        wrong = np.argwhere((counts != num_microbatches) & counts.any(axis=1, keepdims=True))
        for stage, kind in wrong[:1].tolist():
            name, count = f"{stage}{ActionKind(kind).name}", int(counts[stage, kind])
            problem = f"must run {name} {num_microbatches} times, got {count}"
            faults.append(Fault(f"words[{rank}]", problem))
    named = {int(stage) for own in steps for stage in own[:, 1]}
    missing = next((stage for stage in range(num_stages) if stage not in named), None)
    if missing is not None and not faults:
        faults.append(Fault("words", f"must run every stage, misses {missing}"))
    if faults:
        raise InvalidInput(faults)


def _numbered(rows: Rows) -> NDArray[np.int32]:
    """With the microbatch of each row: how often its kind and stage came before, [n, 3]."""
    stream = rows[:, 1] * len(ActionKind) + rows[:, 0]
    by_stream = np.argsort(stream, kind="stable")
    counted = stream[by_stream]
    starts = np.flatnonzero(np.diff(counted, prepend=-1))
    lengths = np.diff(np.append(starts, len(counted)))
    microbatch = np.empty(len(rows), np.int64)
    microbatch[by_stream] = np.arange(len(rows)) - np.repeat(starts, lengths)
    return np.column_stack([rows, microbatch]).astype(np.int32)


# The same model in more, smaller stages: equal parts of every stage
# ------------------------------------------------------------------
# Cutting a stage of time t and activation a into f parts gives stages of t/f and a/f. A tensor
# between two parts of one stage is assumed as large as the one leaving the stage, the last stage's
# as the one entering it. Per-action overheads stay: more chunks pay them more often.


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
        network_s=shared(costs.network_s),
        slice_s=np.repeat(costs.slice_s / parts, parts, axis=1),
        barrier_s=costs.barrier_s,
        transfer_model=costs.transfer_model,
        blocking_fraction=costs.blocking_fraction,
    )


def cut_microbatches(
    costs: ScheduleCosts, num_slices: int, *, attention_share: float = 0.0
) -> ScheduleCosts:
    """Costs per slice of a microbatch that is cut along its tokens into `num_slices` equal ones.

    Of the time that F, I, B and R take, `attention_share` [0 to 1] goes to attention. Slice i of q
    attends to itself and to all before it, to 2i + 1 of q² equal parts; everything else, memory
    included, is shared equally. Overheads stay: more actions pay them more often.
    """
    if num_slices == 1:
        return costs
    whole_s, q, a = costs.compute_s, num_slices, attention_share
    later_s = np.zeros((*whole_s.shape, q))
    attending = [ActionKind.F, ActionKind.I, ActionKind.B, ActionKind.R]
    later_s[attending] = whole_s[attending, :, None] * a * 2 * np.arange(q) / q**2
    compute_s = whole_s / q
    compute_s[attending] = whole_s[attending] * ((1 - a) / q + a / q**2)
    memory = costs.memory
    return replace(
        costs,
        compute_s=compute_s,
        slice_s=later_s if a else np.zeros((0, 0, 0)),
        network_s=np.minimum(costs.network_s / q, compute_s)
        if costs.network_s.size
        else costs.network_s,
        forward_transfer_s=costs.forward_transfer_s / q,
        backward_transfer_s=costs.backward_transfer_s / q,
        pair_s=costs.pair_s / q,
        memory=replace(
            memory, delta_bytes=memory.delta_bytes / q, transient_bytes=memory.transient_bytes / q
        ),
    )


def _transfers(per_edge_s: Floats, parts: int) -> Floats:
    """Edges of the finer model; with one stage there is nothing to go by, and parts send for 0."""
    last = per_edge_s[-1:] if len(per_edge_s) else np.zeros(1)
    return np.repeat(np.concatenate([per_edge_s, last]), parts)[:-1]


# Passes over schedules: each takes one, returns one, keeps it legal, and stands on its own
# -----------------------------------------------------------------------------------------
# repeat      a building block for m microbatches (`scheduling.block.repeat`)
# squeeze     earliest times in the given order (`scheduling.simulate.simulate`)
# fill        weight gradients into waits, as late as memory allows
# reorder     actions into earlier idle gaps, under the peak
# trim        without the last microbatches
#
# Sources: the weight gradient as filler is Qi et al. (ICLR 2024), building blocks and reordering
# are Qi et al. (NeurIPS 2024).


SWEEPS = 16  # at most, of closing gaps


class Window(NamedTuple):
    """Seconds from the start: actions that start in it, the end excluded."""

    from_s: float = 0.0
    until_s: float = math.inf


_ALWAYS = Window()


def fill_weight_grads(
    schedule: Schedule, costs: ScheduleCosts, *, tolerated_idle_s: float = math.inf
) -> Schedule | None:
    """Place every W anew, given the order of everything else; None where the limits forbid it.

    W goes where its rank would otherwise wait, and before an action that would exceed the memory
    limit of `costs`. A wait too short for it stays empty while the idle time of the rank is at most
    `tolerated_idle_s`: infinity is plain filling, 0 delays the next action instead. O(actions).
    """
    filled = _core.fill_weight_grads(
        native_orders(schedule),
        native_costs(costs),
        native_memory(costs.memory),
        tolerated_idle_s=tolerated_idle_s,
    )
    if not filled.complete:
        return None
    return replace(schedule, actions=filled.actions, rank_offsets=filled.rank_offsets)


def improve_weight_grads(
    schedule: Schedule, costs: ScheduleCosts, *, objective: Objective, budget: int
) -> Schedule:
    """Move W, given the order of everything else, for a smaller objective within the limits.

    Per rank a shortest path over the number of W done before each other action, ranks in turn, see
    `native/schedule/improve_weight_grads.hpp`. `budget` counts simulated actions. Never worse than
    given.
    """
    improved = _core.improve_weight_grads(
        native_orders(schedule),
        native_costs(costs),
        native_memory(costs.memory),
        span=objective is Objective.SPAN,
        budget=budget,
    )
    return replace(schedule, actions=improved.actions)


def reorder(schedule: Schedule, costs: ScheduleCosts, *, window: Window = _ALWAYS) -> Schedule:
    """Move actions that start in `window` into earlier idle gaps that are long enough.

    No rank's peak rises, except up to its limit where it has one. Nothing else is delayed, so the
    makespan never grows.
    """
    moved = _core.reorder(
        native_orders(schedule),
        native_costs(costs),
        native_memory(costs.memory),
        from_s=window.from_s,
        until_s=window.until_s,
        sweeps=SWEEPS,
    )
    if not moved.complete:
        raise InvalidInput.of("orders", "must run without deadlock")
    return replace(schedule, actions=moved.actions)


_ROUNDS = 8  # pairs of passes; two mostly end it
_UNLIMITED = 2**62


def justify(
    schedule: Schedule,
    costs: ScheduleCosts,
    *,
    after_s: Floats | None = None,
    max_activations: int = _UNLIMITED,
) -> Schedule:
    """Start all actions as late as possible, then as early, where that ends sooner.

    `after_s` [p] follows the last action of each rank; the last of these ends is meant then. No
    rank holds more than `max_activations`, if it does not already.
    No rank's peak rises, except up to its limit where it has one. Orders with pairs, copies, slices
    or a cut head stay as they are, and so do those whose transfers contend.
    """
    found = _core.justify(
        native_orders(schedule),
        native_costs(costs),
        native_memory(costs.memory),
        after_s=np.zeros(schedule.num_ranks) if after_s is None else after_s,
        most_activations=max_activations,
        rounds=_ROUNDS,
    )
    if not found.complete:
        raise InvalidInput.of("orders", "must run without deadlock")
    return replace(schedule, actions=found.actions)


def lengthen(schedule: Schedule, costs: ScheduleCosts, *, num_microbatches: int) -> Schedule | None:
    """Run the microbatch in the middle of an order more often; None where no order repeats there.

    Each rank is cut at half of the makespan, where its next two microbatches have to be alike.
    """
    more = num_microbatches - schedule.num_microbatches
    start_s = simulate(schedule, costs).start_s
    middle_s = (float(start_s.min()) + float(start_s.max())) / 2
    parts, offsets = [], [0]
    for rank in range(schedule.num_ranks):
        rows, begin_s = schedule.actions[schedule.rows_of(rank)], start_s[schedule.rows_of(rank)]
        period, rest = divmod(len(rows), schedule.num_microbatches)
        cut = int(np.searchsorted(begin_s, middle_s))
        one, other = rows[cut : cut + period], rows[cut + period : cut + 2 * period]
        next_one = one + np.array([0, 0, 1], dtype=np.int32)
        if rest or len(other) < period or (next_one != other).any():
            return None
        if len(np.unique(one[:, :2], axis=0)) < period:
            return None
        repeated = np.tile(one, (more, 1))
        repeated[:, 2] += np.repeat(np.arange(more, dtype=np.int32), period)
        last = rows[cut:] + np.array([0, 0, more], dtype=np.int32)
        parts += [rows[:cut], repeated, last]
        offsets.append(offsets[-1] + len(rows) + len(repeated))
    longer = replace(
        schedule,
        num_microbatches=num_microbatches,
        actions=np.concatenate(parts),
        rank_offsets=np.array(offsets),
    )
    shape = (len(ActionKind), schedule.placement.num_stages, num_microbatches)
    is_once = np.bincount(np.ravel_multi_index(tuple(longer.actions.T), shape)).max() == 1
    runs = is_once and _core.simulate(native_orders(longer), native_costs(costs)).complete
    return longer if runs else None


def trim(schedule: Schedule, *, num_microbatches: int) -> Schedule:
    """Drop microbatches `num_microbatches` and above."""
    if num_microbatches > schedule.num_microbatches:
        raise InvalidInput.of(
            "num_microbatches",
            f"must be <= {schedule.num_microbatches}, the schedule's, got {num_microbatches}",
        )
    kept = schedule.actions[:, 2] < num_microbatches
    counts = np.concatenate(([0], np.cumsum(kept)))
    rows = schedule.pairs[kept[schedule.pairs] & kept[schedule.pairs + 1]]
    return replace(
        schedule,
        num_microbatches=num_microbatches,
        actions=schedule.actions[kept],
        rank_offsets=counts[schedule.rank_offsets],
        pairs=counts[rows],
    )


def drop_weight_grads(schedule: Schedule) -> Schedule:
    """Forget where W is: what `fill_weight_grads` starts from. Not a legal schedule by itself."""
    kept = schedule.actions[:, 0] != ActionKind.W
    counts = np.concatenate(([0], np.cumsum(kept)))
    return replace(
        schedule, actions=schedule.actions[kept], rank_offsets=counts[schedule.rank_offsets]
    )
