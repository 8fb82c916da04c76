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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.plans.schedule import Action, ActionKind, Placement, Schedule
from trainwright.scheduling.orders import actions, by_time, one_after_another

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    Slots: TypeAlias = NDArray[np.float64]

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
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

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
    def peak_bounds(self) -> tuple[int, ...]:
        """Per rank, activations it can never exceed: the sum of ceil(lifespan / T)."""
        held = np.ceil(self.lifespan_slots / self.period_slots).sum(axis=1)
        return tuple(int(held[list(s)].sum()) for s in self.placement.stages_of_rank)

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

    def early_starts(self) -> Iterator[Action]:
        """Actions that start before their input is there (microbatch = place in the group).

        They only wait in the schedule, so periods become longer than the block says; or the orders
        deadlock, which `validate` tells.
        """
        ends = {kind: slots + self.length_slots[kind] for kind, slots in self.start_slots.items()}
        for kind, slots in self.start_slots.items():
            ready = np.full_like(slots, -np.inf)
            if kind is _F:
                ready[1:] = ends[_F][:-1]
            elif kind is _W:
                ready = ends[_I]
            else:
                ready[:-1], ready[-1] = ends[kind][1:], ends[_F][-1]
            for stage, member in np.argwhere(slots < ready - _ROUNDING).tolist():
                yield Action(kind, stage, member)

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
