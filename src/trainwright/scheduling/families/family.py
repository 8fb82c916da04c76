"""What a schedule family is: a name, a placement, and a generator of orders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.plans.schedule import ActionKind, Placement
from trainwright.plans.schedule_costs import ScheduleCosts, ScheduleMemory
from trainwright.scheduling.bounds import least_that_fits

if TYPE_CHECKING:
    from trainwright.arrays import Floats
    from trainwright.plans.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRequest:
    """What to build a schedule for.

    `virtual_stages` is the number of chunks per rank, for families that let one choose, `group` the
    number of microbatches that pass a chunk together, `max_activations` a limit per rank in chunk
    activations, beside the limits in bytes that `costs` may have. Families that place actions by
    time read `costs` (one second per action where absent); the others give the same orders whatever
    things cost.
    """

    num_ranks: int
    num_microbatches: int
    virtual_stages: int = 2
    group: int | None = None
    max_activations: int | None = None
    costs: ScheduleCosts | None = None

    def __post_init__(self) -> None:
        counts = ("num_ranks", "num_microbatches", "virtual_stages", "group", "max_activations")
        faults = [
            Fault(name, f"must be >= 1, got {count}")
            for name in counts
            if (count := getattr(self, name)) is not None and count < 1
        ]
        if faults:
            raise InvalidInput(faults)

    @property
    def is_limited(self) -> bool:
        """Whether it limits memory in activations or in bytes."""
        costs = self.costs
        in_bytes = costs is not None and bool(np.isfinite(costs.memory.limit_bytes).any())
        return in_bytes or self.max_activations is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A named way to order a pipeline.

    `order` may assume that `rules` found no fault; it gives None where the memory limits allow no
    order it knows. `obeys_limits` says whether it looks at limits at all.
    """

    name: str
    summary: str
    place: Callable[[FamilyRequest], Placement]
    order: Callable[[FamilyRequest], Schedule | None]
    rules: Callable[[FamilyRequest], Iterable[Fault]] = lambda request: ()
    obeys_limits: bool = False

    def generate(self, request: FamilyRequest) -> Schedule | None:
        """Orders for `request`, None where they cannot respect its memory limits.

        Raises InvalidInput naming the rule of the family that the request breaks.
        """
        faults = tuple(self.rules(request))
        if faults:
            raise InvalidInput(faults)
        return self.order(request)


def one_chunk(request: FamilyRequest) -> Placement:
    """One stage per rank."""
    return Placement.loop(request.num_ranks)


def looped(request: FamilyRequest) -> Placement:
    """As many chunks per rank as asked for, placed in a loop."""
    return Placement.loop(request.num_ranks, virtual_stages=request.virtual_stages)


def two_chunks_in_v(request: FamilyRequest) -> Placement:
    """Rank r owns stages r and 2p-1-r."""
    return Placement.v(request.num_ranks)


def without_limits(request: FamilyRequest) -> FamilyRequest:
    """The same request, memory unlimited."""
    costs = request.costs
    if costs is not None:
        memory = replace(costs.memory, limit_bytes=np.full(costs.memory.num_ranks, np.inf))
        costs = replace(costs, memory=memory)
    return replace(request, max_activations=None, costs=costs)


def limited_costs(
    request: FamilyRequest, placement: Placement, *, max_activations: int
) -> ScheduleCosts:
    """The costs of the request, no rank allowed more than so many chunk activations.

    If only the costs limit memory, in bytes, they keep doing so, and a rank may hold no more than
    so many forwards take. Otherwise memory becomes a count of activations, and a limit in bytes the
    number of the largest ones that fit.
    """
    costs = ScheduleCosts.of(placement) if request.costs is None else request.costs
    memory = costs.memory
    if request.max_activations is None and request.is_limited:
        return within_forwards(costs, placement, max_activations)
    counted = np.minimum(max_activations, activations_that_fit(memory, placement))
    return replace(costs, memory=ScheduleMemory.of(placement, limit_bytes=counted))


def within_forwards(costs: ScheduleCosts, placement: Placement, count: int) -> ScheduleCosts:
    """The costs with no rank allowed more bytes than so many of its largest forwards take."""
    memory = costs.memory
    room = count * _largest_activation(memory, placement)
    limits = np.minimum(memory.limit_bytes, memory.static_bytes + room)
    return replace(costs, memory=replace(memory, limit_bytes=limits))


def least_of(request: FamilyRequest, placement: Placement) -> Schedule | None:
    """One microbatch at a time, which fits if any schedule does."""
    costs = request.costs or ScheduleCosts.of(placement)
    return least_that_fits(
        placement,
        request.num_microbatches,
        costs.memory,
        max_activations=request.max_activations,
    )


def activations_that_fit(memory: ScheduleMemory, placement: Placement) -> Floats:
    """Per rank, how many of its largest activations fit at once beside all else, shape [p]."""
    room = memory.limit_bytes - memory.static_bytes
    transient = [memory.transient_bytes[:, list(stages)] for stages in placement.stages_of_rank]
    room -= [part.max(initial=0.0) for part in transient]
    size = _largest_activation(memory, placement)
    fitting = np.divide(room, size, out=np.full(len(room), np.inf), where=size > 0)
    counts: Floats = np.floor(np.maximum(fitting, 0.0) * (1 + 1e-9))
    return counts


def _largest_activation(memory: ScheduleMemory, placement: Placement) -> Floats:
    forward_bytes = memory.delta_bytes[ActionKind.F]
    sizes = [max(forward_bytes[list(s)], default=0.0) for s in placement.stages_of_rank]
    return np.array(sizes)
