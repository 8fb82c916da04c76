"""Building blocks: a schedule as one microbatch's offsets, repeated (Qi et al., NeurIPS 2024).

A block says in which slot every action of one microbatch starts; microbatch j starts T slots, the
period, after microbatch j-1. What can be known about the schedule is known about the block:

* it is free of collisions if on each rank the occupied intervals are disjoint modulo T;
* a stage holds an activation for its lifespan l, from the start of F to the end of W (or B), so a
  rank holds at most the sum of ceil(l/T) over its stages;
* every microbatch costs T minus the work of the busiest rank.

A block may also place a group of g microbatches at once; the next group then starts T later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from trainwright._native import _core
from trainwright.errors import Fault, refuse
from trainwright.plans.schedule import Action, ActionKind, Placement, Schedule, ScheduleCosts
from trainwright.scheduling.orders import actions, by_time, one_after_another

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Slots: TypeAlias = NDArray[np.float64]
    from trainwright.arrays import Floats, Ints

_F, _I, _W, _B, _R, *_ = ActionKind
_ROUNDING = 1e-9
_UNIT_LENGTHS = MappingProxyType({_F: 1.0, _I: 1.0, _W: 1.0, _B: 2.0, _R: 1.0})


class Collision(NamedTuple):
    """Two actions (microbatch = place in the group) of one rank in the same slot modulo T."""

    rank: int
    first: Action
    second: Action


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BuildingBlock:
    """Start slots of the actions of g microbatches, by kind: arrays of shape [S, g].

    A block has F, and either B or I, the latter with or without W; without, weight gradients are
    left to `passes.fill_weight_grads`. Lengths are in slots, too; both may be fractions.
    """

    placement: Placement
    period_slots: float
    start_slots: Mapping[ActionKind, Slots]
    length_slots: Mapping[ActionKind, float] = field(default_factory=lambda: _UNIT_LENGTHS)

    def __post_init__(self) -> None:
        starts = {
            kind: np.asarray(slots, np.float64).reshape(self.placement.num_stages, -1)
            for kind, slots in sorted(self.start_slots.items())
        }
        for slots in starts.values():
            slots.flags.writeable = False
        object.__setattr__(self, "start_slots", MappingProxyType(starts))
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if not self.period_slots > 0:
            yield Fault("period_slots", f"must be > 0, got {self.period_slots}")
        kinds = set(self.start_slots)
        if _F not in kinds or (_B in kinds) == (_I in kinds) or (_W in kinds and _I not in kinds):
            names = ", ".join(kind.name for kind in sorted(kinds))
            yield Fault("start_slots", f"must hold F and B, F and I, or F, I and W, got {names}")
        if len({slots.shape for slots in self.start_slots.values()}) > 1:
            yield Fault("start_slots", "must have one shape for all kinds")
        elif not all(np.isfinite(slots).all() for slots in self.start_slots.values()):
            yield Fault("start_slots", "must be finite")

    @classmethod
    def of(
        cls,
        placement: Placement,
        *,
        period_slots: float,
        forward: Sequence[float],
        input_grad: Sequence[float] | None = None,
        weight_grad: Sequence[float] | None = None,
        backward: Sequence[float] | None = None,
    ) -> BuildingBlock:
        """A block of one microbatch from one start slot per stage and kind, in unit lengths."""
        given = {_F: forward, _I: input_grad, _W: weight_grad, _B: backward}
        starts = {kind: np.array(slots) for kind, slots in given.items() if slots is not None}
        return cls(placement=placement, period_slots=period_slots, start_slots=starts)

    @property
    def group(self) -> int:
        """g: microbatches per period."""
        return int(self.start_slots[_F].shape[1])

    @property
    def lifespan_slots(self) -> Slots:
        """From the start of F to the end of W, B or, without either, I; shape [S, g]."""
        last = next(kind for kind in (_W, _B, _I) if kind in self.start_slots)
        return self.start_slots[last] + self.length_slots[last] - self.start_slots[_F]

    @property
    def peak_activations(self) -> tuple[int, ...]:
        """Per rank, most activations held in the steady state: live intervals modulo T."""
        starts = self.start_slots[_F]
        ends = starts + self.lifespan_slots
        peaks = []
        for stages in map(list, self.placement.stages_of_rank):
            born, dead = starts[stages].ravel(), ends[stages].ravel()
            since = (born[:, None] - np.stack([born, dead])[:, None, :]) // self.period_slots
            peaks.append(int((since[0] - since[1]).sum(axis=1).max(initial=0)))
        return tuple(peaks)

    @property
    def bubble_slots(self) -> float:
        """Idle slots of the busiest rank per period."""
        length = sum(self.length_slots[kind] for kind in self.start_slots) * self.group
        return self.period_slots - length * max(map(len, self.placement.stages_of_rank))

    def collisions(self) -> Iterator[Collision]:
        """Pairs of neighbours modulo T that overlap; none if the block repeats without conflict."""
        for rank, stages in enumerate(self.placement.stages_of_rank):
            placed = sorted(
                (start % self.period_slots, Action(kind, stage, member))
                for kind, slots in self.start_slots.items()
                for stage in stages
                for member, start in enumerate(slots[stage].tolist())
            )
            around = [*placed, (placed[0][0] + self.period_slots, placed[0][1])] if placed else []
            for (start, first), (following, second) in pairwise(around):
                if start + self.length_slots[first.kind] > following + _ROUNDING:
                    yield Collision(rank, first, second)


def repeat(block: BuildingBlock, num_microbatches: int) -> Schedule:
    """Expand a block to m microbatches: each rank runs its actions by start slot.

    Where actions start together, the earlier microbatch, then the lower kind, is first.
    """
    microbatch = np.arange(num_microbatches)
    shift = microbatch // block.group * block.period_slots
    orders = []
    for stages in block.placement.stages_of_rank:
        streams = [
            (actions(kind, stage, microbatch), slots[stage, microbatch % block.group] + shift)
            for kind, slots in block.start_slots.items()
            for stage in stages
        ]
        if not streams:
            orders.append(np.zeros((0, 3), np.int32))
            continue
        rows, times = zip(*streams, strict=True)
        orders.append(by_time(one_after_another(*rows), np.concatenate(times)))
    return Schedule.of_ranks(orders, placement=block.placement, num_microbatches=num_microbatches)


# A building block for any placement: walk one microbatch's path and take the next free slot
# ------------------------------------------------------------------------------------------
# The path goes forward through all stages and back again. A hop to a later rank takes `away_slots`,
# one to an earlier rank `back_slots`, staying takes 1, and the turn at the loss `turn_slots` more;
# where the slot is taken modulo the period, the walk waits for the next one. Each W follows in the
# first slot that is still free. Every rank with the most stages works in every slot if the period
# is 3 slots per stage of it, so no walk costs a bubble per microbatch; longer hops keep activations
# longer and make the ends of the schedule shorter. O(S · period).


class Pace(NamedTuple):
    """Slots from one start on the path to the next: to a later rank, to an earlier one, and what
    the turn takes on top.
    """

    away_slots: int = 1
    back_slots: int = 1
    turn_slots: int = 0


def path_block(
    placement: Placement, pace: Pace, *, period_slots: int | None = None
) -> BuildingBlock:
    """A block without collisions; the shortest possible period unless one is given.

    `period_slots` must be at least 3 per stage of the rank that has most.
    """
    ranks = placement.rank_of_stage
    shortest = 3 * max(map(len, placement.stages_of_rank))
    taken = _TakenSlots(placement.num_ranks, period_slots or shortest)
    starts = np.empty((3, len(ranks)))
    path = [*range(len(ranks)), *reversed(range(len(ranks)))]
    time = -1
    for step, stage in enumerate(path):
        hop = ranks[stage] - ranks[path[step - 1]] if step else 0
        time += pace.away_slots if hop > 0 else pace.back_slots if hop < 0 else 1
        time += pace.turn_slots if step == len(ranks) else 0
        time = taken.take(ranks[stage], time)
        starts[step // len(ranks), stage] = time
    for stage in reversed(range(len(ranks))):
        starts[2, stage] = taken.take(ranks[stage], int(starts[1, stage]) + 1)
    forward, input_grad, weight_grad = starts.tolist()
    return BuildingBlock.of(
        placement,
        period_slots=taken.period,
        forward=forward,
        input_grad=input_grad,
        weight_grad=weight_grad,
    )


class _TakenSlots:
    """Which slots of the period each rank has given away."""

    def __init__(self, num_ranks: int, period: int) -> None:
        self.period = period
        self._taken = [bytearray(period) for _ in range(num_ranks)]

    def take(self, rank: int, earliest: int) -> int:
        """The first free slot from `earliest` on."""
        slot = earliest
        while self._taken[rank][slot % self.period]:
            slot += 1
        self._taken[rank][slot % self.period] = 1
        return slot


# Orders of forwards and input gradients in V placement, for any memory limit
# ---------------------------------------------------------------------------
# Rank r owns stages r (chunk 0) and 2p-1-r (chunk 1); one microbatch visits it four times: F0, F1,
# I1, I0. With unit times a period is 6 slots, four visits and two weight gradients. Going away from
# the turn (F0 and I1) neighbours differ by some steps, coming back (F1 and I0) by 1; the larger the
# steps, the longer activations live and the fewer slots are lost. Odd steps never collide, whatever
# their sequence, if F1 and I0 start in odd slots and I1 in an even one: F0 and I1 then share the
# parity of the rank, F1 and I0 have the other.
#
# Warm-up and cool-down are rewritten from the repeated block as in Qi et al. (NeurIPS 2024): with
# at most k activations, rank r runs min(r+1, k/2) F1 and otherwise F0 before its first I1, then one
# action after each I1; in the end I1 and I0 alternate, and one slot separates neighbours. Nothing
# here depends on times: weight gradients are filled in, and everything is timed, later.


SOURCE = "Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024"
PERIOD = 6
_BEFORE_ALL = -(2.0**40)
_VISIT_KINDS = (ActionKind.F, ActionKind.F, ActionKind.I, ActionKind.I)
_KEPT = 256  # ranks times microbatches of an order that is kept: up to 12 KiB each


class Residues(NamedTuple):
    """Slots modulo 6 in which rank 0 starts F1, I1 and I0, where F0 starts in slot 0."""

    forward_1: int
    input_grad_1: int
    input_grad_0: int


# Tried in this order; the first two suffice for unit times.
_ODD_RESIDUES = (Residues(1, 2, 3), Residues(3, 4, 5), Residues(1, 2, 5), Residues(5, 2, 1))
_EVEN_RESIDUES = (Residues(4, 2, 1), Residues(1, 2, 4))
_ODD_STEPS = ((1, 1), (3, 1), (5, 1), (3, 3), (5, 3), (5, 5))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VBlock:
    """Start slots of F0, F1, I1 and I0 of microbatch 0, each of shape [p]."""

    forward_0: Ints
    forward_1: Ints
    input_grad_1: Ints
    input_grad_0: Ints

    def __post_init__(self) -> None:
        for slots in self.visits:
            slots.flags.writeable = False

    @property
    def num_ranks(self) -> int:
        """p: ranks."""
        return len(self.forward_0)

    @property
    def visits(self) -> tuple[Ints, Ints, Ints, Ints]:
        """In the order a microbatch visits a rank."""
        return self.forward_0, self.forward_1, self.input_grad_1, self.input_grad_0

    @classmethod
    def of_steps(cls, steps: Ints, residues: Residues) -> VBlock | None:
        """Chain F0 down the ranks, F1 up, I1 down and I0 up, each at the next slot it may use.

        `steps` [p-1] are the slots between neighbours going down. None where slots collide.
        """
        ranks = np.arange(len(steps) + 1)
        down = np.concatenate(([0], np.cumsum(steps)))
        up = ranks[-1] - ranks
        turn = _next_slot(down[-1] + 1, residues.forward_1 - ranks[-1])
        forward_1 = turn + up
        input_grad_1 = _next_slot(forward_1[0] + 1, residues.input_grad_1) + down
        back = _next_slot(input_grad_1[-1] + 1, residues.input_grad_0 - ranks[-1])
        block = cls(
            forward_0=down,
            forward_1=forward_1,
            input_grad_1=input_grad_1,
            input_grad_0=back + up,
        )
        taken = np.sort(np.stack(block.visits) % PERIOD, axis=0)
        return block if (np.diff(taken, axis=0) > 0).all() else None

    @property
    def peak_activations(self) -> int:
        """Most activations of any rank in the steady state, W1 and then W0 in the free slots."""
        used = list(self.visits)
        ends = []
        for input_grad in (self.input_grad_1, self.input_grad_0):
            weight_grad = _first_free(input_grad + 1, used)
            used.append(weight_grad)
            ends.append(weight_grad + 1)
        lives = ((self.forward_1, ends[0]), (self.forward_0, ends[1]))
        peak = 0
        for start, _ in lives:
            held = sum((start - born) // PERIOD - (start - dead) // PERIOD for born, dead in lives)
            peak = max(peak, int(np.max(held)))
        return peak


def _next_slot(earliest: int, residue: int) -> int:
    return int(earliest + (residue - earliest) % PERIOD)


def _first_free(earliest: Ints, used: list[Ints]) -> Ints:
    """Per rank the first slot from `earliest` on whose residue is not used."""
    ranks = np.arange(len(earliest))
    is_used = np.zeros((len(earliest), PERIOD), np.bool_)
    for slots in used:
        is_used[ranks, slots % PERIOD] = True
    residues = (earliest[:, None] + np.arange(PERIOD)) % PERIOD
    wait: Ints = np.argmin(is_used[ranks[:, None], residues], axis=1)
    return earliest + wait


@lru_cache(maxsize=64)
def v_min_block(num_ranks: int) -> VBlock:
    """Lags of one slot both ways: a third of 1F1B's memory."""
    p, r = num_ranks, np.arange(num_ranks)
    gap = 2 if p % 3 == 0 else 0
    return VBlock(
        forward_0=r,
        forward_1=2 * p - 1 - r,
        input_grad_1=2 * p + gap + r,
        input_grad_0=4 * p + gap - 1 - r,
    )


@lru_cache(maxsize=64)
def v_half_block(num_ranks: int) -> VBlock:
    """Lags of two slots down and one up: half of 1F1B's memory."""
    p, r = num_ranks, np.arange(num_ranks)
    gap = 3 if p % 2 == 0 else 0
    return VBlock(
        forward_0=2 * r,
        forward_1=3 * p - 2 - r,
        input_grad_1=3 * p - 1 + gap + 2 * r,
        input_grad_0=6 * p + gap - 2 - r,
    )


@lru_cache(maxsize=256)  # asked for again under all other times
def blocks_within(num_ranks: int, max_activations: int) -> tuple[VBlock, ...]:
    """Blocks that hold at most `max_activations`, the most demanding first.

    For each way to step, the longest first part that still fits.
    """
    found: list[tuple[int, VBlock]] = []
    for residues in _ODD_RESIDUES:
        for first, rest in _ODD_STEPS:
            fitting = _longest_within(num_ranks, first, rest, residues, max_activations)
            if fitting is not None:
                found.append(fitting)
    twos = np.full(num_ranks - 1, 2)
    even = (VBlock.of_steps(twos, residues) for residues in _EVEN_RESIDUES)
    found += [(b.peak_activations, b) for b in even if b is not None]
    fitting_blocks = [entry for entry in found if entry[0] <= max_activations]
    return tuple(block for _, block in sorted(fitting_blocks, key=lambda entry: -entry[0]))


def _longest_within(
    num_ranks: int, first: int, rest: int, residues: Residues, max_activations: int
) -> tuple[int, VBlock] | None:
    """The block with the most steps `first` before steps `rest`; more of them hold more."""
    best: tuple[int, VBlock] | None = None
    low, high = (0, num_ranks - 1) if first != rest else (num_ranks - 1, num_ranks - 1)
    while low <= high:
        middle = (low + high + 1) // 2
        steps = np.where(np.arange(num_ranks - 1) < middle, first, rest)
        block = VBlock.of_steps(steps, residues)
        peak = None if block is None else block.peak_activations
        if block is not None and peak is not None and peak <= max_activations:
            best, low = (peak, block), middle + 1
        else:
            high = middle - 1
    return best


# A block of the times that stages have
# ------------------------------------
# Slots of one length lose time as soon as forward, input and weight gradient differ, or the chunks
# of a rank do. Here one microbatch is placed in seconds, for the shortest period whose activations
# are within the limits (`native/schedule/cyclic_v.hpp`).

_WIDTH = 8  # of the beam; 64 finds periods shorter by up to 7 %, in five times the time
_ROUNDS = 8  # periods tried: the last two are within half a percent of each other


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimedBlock:
    """Starts of F0, F1, I1, I0, W1 and W0 of microbatch 0, [6, p], in sixths of the period."""

    period_s: float
    starts: Slots

    @property
    def num_ranks(self) -> int:
        """p: ranks."""
        return int(self.starts.shape[1])

    @property
    def visits(self) -> Slots:
        """Those of F0, F1, I1 and I0, [4, p]."""
        return self.starts[:4]


def timed_block(
    costs: ScheduleCosts, *, longest_period_s: float, exact: bool = False
) -> TimedBlock | None:
    """The block of the shortest period that is found for stages in V, below the longest.

    It keeps to the memory limits of `costs`. None where no period does. Transfers are taken as free
    of contention. An `exact` search knows the shortest path where no rank pauses, and is worse
    where ranks have time left (`native/schedule/cyclic_path.hpp`).
    """
    memory = costs.memory
    kinds, stages = _letters(memory.num_ranks)

    def by_rank(values: Floats) -> Floats:
        return np.ascontiguousarray(values[kinds[:, np.newaxis], stages].T)

    period_s, start_s = _core.cyclic_v(
        duration_s=by_rank(costs.duration_s),
        forward_transfer_s=costs.forward_transfer_s,
        backward_transfer_s=costs.backward_transfer_s,
        delta_bytes=by_rank(memory.delta_bytes),
        transient_bytes=by_rank(memory.transient_bytes),
        room_bytes=memory.limit_bytes - memory.static_bytes,
        longest_period_s=longest_period_s,
        width=_WIDTH,
        rounds=_ROUNDS,
        exact=exact,
    )
    if not period_s:
        return None
    return TimedBlock(
        period_s=period_s, starts=_in_turn(start_s.reshape(-1, 6).T) * PERIOD / period_s
    )


def _in_turn(starts: Slots) -> Slots:
    """Starts [6, p], none before what it waits for: where some take no time, sums may round so."""
    out, back, back_out, home, *weight_grads = starts
    path = np.maximum.accumulate(np.concatenate((out, back[::-1], back_out, home[::-1])))
    out, back, back_out, home = path.reshape(4, -1)
    input_grads = np.stack((back_out, home[::-1]))
    return np.concatenate(((out, back[::-1]), input_grads, np.maximum(weight_grads, input_grads)))


def _letters(num_ranks: int) -> tuple[Ints, Ints]:
    """Kinds of F0, F1, I1, I0, W1 and W0, [6], and their stages on every rank, [6, p]."""
    near, far = np.arange(num_ranks), np.arange(2 * num_ranks)[: -num_ranks - 1 : -1]
    return np.array((_F, _F, _I, _I, _W, _W)), np.stack((near, far, far, near, far, near))


def whole_order(block: TimedBlock, num_microbatches: int) -> Schedule:
    """The block repeated with its weight gradients: no rank pauses between its microbatches."""
    p, m = block.num_ranks, num_microbatches
    kinds, stages = _letters(p)
    rows = np.empty((p, 6, m, 3), np.int32)
    rows[..., 0] = kinds[:, np.newaxis]
    rows[..., 1] = stages.T[:, :, np.newaxis]
    rows[..., 2] = np.arange(m)
    times = (block.starts[:, :, None] + PERIOD * np.arange(m)).transpose(1, 0, 2).reshape(p, 6 * m)
    order = np.argsort(times, axis=1, kind="stable") + 6 * m * np.arange(p)[:, np.newaxis]
    return Schedule(
        placement=_placement(p),
        num_microbatches=m,
        actions=rows.reshape(-1, 3)[order.ravel()],
        rank_offsets=6 * m * np.arange(p + 1),
    )


def repeated_order(
    block: VBlock | TimedBlock, num_microbatches: int, *, period: float = PERIOD
) -> Schedule:
    """The block repeated, without weight gradients; where slots collide the earlier goes first."""
    make = _repeated if _is_kept(block, num_microbatches) else _repeated.__wrapped__
    return make(block, num_microbatches, period)


def rewritten_order(
    block: VBlock | TimedBlock, num_microbatches: int, *, warm_up: int | None, cool_down: int
) -> Schedule:
    """The block repeated, its ends rewritten for so many activations.

    At the smallest limits the block's own warm-up, None, is the better one.
    """
    make = _rewritten if _is_kept(block, num_microbatches) else _rewritten.__wrapped__
    return make(block, num_microbatches, warm_up, cool_down)


def _is_kept(block: VBlock | TimedBlock, num_microbatches: int) -> bool:
    """Whether orders are small enough to be kept: they are asked for again under other times."""
    return isinstance(block, VBlock) and block.num_ranks * num_microbatches <= _KEPT


@lru_cache(maxsize=512)
def _repeated(block: VBlock | TimedBlock, num_microbatches: int, period: float) -> Schedule:
    return _schedule(block, num_microbatches, _repeated_slots(block, num_microbatches, period))


@lru_cache(maxsize=2048)
def _rewritten(
    block: VBlock | TimedBlock, num_microbatches: int, warm_up: int | None, cool_down: int
) -> Schedule:
    slots = _repeated_slots(block, num_microbatches, PERIOD)
    _rewrite_cool_down(slots, cool_down)
    if warm_up is not None:
        _rewrite_warm_up(slots, warm_up)
    return _schedule(block, num_microbatches, slots)


def _repeated_slots(block: VBlock | TimedBlock, num_microbatches: int, period: float) -> Slots:
    """Slots of F0, F1, I1, I0, shape [4, p, m]."""
    shifts = period * np.arange(num_microbatches)
    first: Slots = np.stack(tuple(block.visits), dtype=np.float64)
    return first[:, :, None] + shifts


def _rewrite_cool_down(slots: Slots, max_activations: int) -> None:
    """With t the slot of the last F1 on rank 0, the q-th last I1 of rank r starts at t+1+r-2q, the
    q-th last I0 at t-r+2p-2q, for as many as can be held.
    """
    _, num_ranks, num_microbatches = slots.shape
    r = np.arange(num_ranks)[:, None]
    q = np.arange(num_microbatches)[::-1]
    t = slots[1, 0, -1]
    last_1 = q < np.minimum(r + 1, max_activations // 2)
    last_0 = np.broadcast_to(q < (max_activations + 1) // 2, last_1.shape)
    slots[2] = np.where(last_1, t + 1 + r - 2 * q, slots[2])
    slots[3] = np.where(last_0, t - r + 2 * num_ranks - 2 * q, slots[3])


def _rewrite_warm_up(slots: Slots, max_activations: int) -> None:
    num_ranks, num_microbatches = slots.shape[1:]
    for rank in range(num_ranks):
        places = _warm_up_places(num_ranks, rank, max_activations, num_microbatches)
        for visit, early in enumerate(places):
            slots[visit, rank, : len(early)] = _BEFORE_ALL + early


@lru_cache(maxsize=1024)
def _warm_up_places(
    num_ranks: int, rank: int, max_activations: int, most: int
) -> tuple[Ints, Ints, Ints]:
    """Of F0, F1 and I1 the places among the visits of a rank until its first I0 can arrive.

    At most the first `most` of each. First F0 alone, then pairs of F0 and F1, of which one may run
    out before the other, then one I1 every three slots, its W, and a forward: of chunk 1 until half
    of the room is given.
    """
    chunk_1 = min(rank + 1, max_activations // 2)
    chunk_0 = max_activations - chunk_1
    alone = min(chunk_0, 2 * (num_ranks - 1 - rank))
    paired_0 = min(chunk_0 - alone, rank + 1)
    rounds = -(-(2 * num_ranks - 1 - 2 * rank) // 3)
    turns = min(rounds, max_activations // 2)
    again_1 = min(turns, max_activations // 2 - chunk_1)
    begin = alone + paired_0 + chunk_1

    def first(count: int) -> Ints:
        return np.arange(min(count, most))

    pair_0, pair_1 = first(paired_0), first(chunk_1)
    forward_0 = (
        first(alone),
        alone + pair_0 + np.minimum(pair_0, chunk_1),
        begin + 1 + 2 * (again_1 + first(turns - again_1)),
    )
    forward_1 = alone + pair_1 + np.minimum(pair_1 + 1, paired_0), begin + 1 + 2 * first(again_1)
    input_grad_1 = begin + 2 * first(turns)
    return np.concatenate(forward_0)[:most], np.concatenate(forward_1)[:most], input_grad_1


def _schedule(block: VBlock | TimedBlock, num_microbatches: int, slots: Slots) -> Schedule:
    """The visits of each rank, sorted by slot; of equal slots the earlier visit goes first."""
    p, m = block.num_ranks, num_microbatches
    near = np.arange(p)[:, None]
    visits = np.empty((p, 4, m, 3), np.int32)
    visits[..., 0] = np.array(_VISIT_KINDS)[:, None]
    visits[:, 0::3, :, 1] = near[:, None]
    visits[:, 1:3, :, 1] = 2 * p - 1 - near[:, None]
    visits[..., 2] = np.arange(m)
    times = slots.transpose(1, 0, 2).reshape(p, 4 * m)
    order = np.argsort(times, axis=1, kind="stable") + 4 * m * near
    return Schedule(
        placement=_placement(p),
        num_microbatches=m,
        actions=visits.reshape(-1, 3)[order.ravel()],
        rank_offsets=4 * m * np.arange(p + 1),
    )


@lru_cache(maxsize=64)
def _placement(num_ranks: int) -> Placement:
    return Placement.v(num_ranks)


# How many microbatches are in flight where a block is repeated
# ------------------------------------------------------------


def in_flight(block: VBlock, num_microbatches: int) -> tuple[Ints, Ints]:
    """Of stage r and of stage 2p-1-r on every rank, waiting for input gradients: [N, p] each.

    At each of the N instants that can be a rank's fullest where the block is repeated: while
    forwards run, the only actions that add to what is held.
    """
    enough = min(num_microbatches, 2 * block.num_ranks + 2)
    begun = np.stack((block.forward_0, block.forward_1))  # [2, p]
    freed = np.stack((block.input_grad_0, block.input_grad_1)) + 1
    at = (begun[:, np.newaxis] + PERIOD * np.arange(enough)[:, np.newaxis]).reshape(
        -1, block.num_ranks
    )
    held = _so_far(at, begun, enough) - _so_far(at, freed, enough)
    # By the first count, then by the second: no larger second comes after those that are kept.
    base = int(held[1].max()) + 1
    near, far = np.divmod(np.sort(base * held[0] + held[1], axis=0), base)
    most_far = np.maximum.accumulate(far[::-1])[::-1]
    kept = np.append(far[:-1] > most_far[1:], np.ones((1, block.num_ranks), dtype=bool), axis=0)
    counts = kept.sum(axis=0)
    places = np.minimum(np.arange(int(counts.max()))[:, np.newaxis], counts - 1)
    rows = np.take_along_axis(np.argsort(~kept, axis=0, kind="stable"), places, axis=0)
    return np.take_along_axis(near, rows, axis=0), np.take_along_axis(far, rows, axis=0)


def _so_far(at: Ints, first: Ints, count: int) -> Ints:
    """How many of `count` events a period apart happened at these times or before, [2, N, p]."""
    happened: Ints = np.clip((at - first[:, np.newaxis]) // PERIOD + 1, 0, count)
    return happened
