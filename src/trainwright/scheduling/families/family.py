"""What a schedule family is: a name, a placement, and a generator of orders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.placement import Placement
from trainwright.plan.schedule import ActionKind
from trainwright.plan.schedule_costs import ScheduleCosts

if TYPE_CHECKING:
    from trainwright.plan.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRequest:
    """What to build a schedule for.

    `virtual_stages` is the number of chunks per rank, for families that let one choose, `group` the
    number of microbatches that pass a chunk together, `max_activations` a limit per rank: the
    memory that so many forwards take. Families that place actions by time read `costs` (one second per action
    where absent); the others give the same orders whatever things cost.
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


def limited_costs(
    request: FamilyRequest, placement: Placement, *, max_activations: int
) -> ScheduleCosts:
    """The costs of the request, no rank allowed more than so many forwards take.

    Limits that the costs carry themselves hold as well.
    """
    costs = ScheduleCosts.of(placement) if request.costs is None else request.costs
    memory = costs.memory
    forward_bytes = memory.delta_bytes[ActionKind.F]
    room = [
        max_activations * max((forward_bytes[stage] for stage in stages), default=0.0)
        for stages in placement.stages_of_rank
    ]
    limits = np.minimum(memory.limit_bytes, memory.static_bytes + np.array(room))
    return replace(costs, memory=replace(memory, limit_bytes=limits))


def activations_within(costs: ScheduleCosts, placement: Placement) -> int:
    """How many forwards fit on every rank at once; at most all there can be."""
    memory = costs.memory
    room = memory.limit_bytes - memory.static_bytes
    counts = [
        room[rank] / max(memory.delta_bytes[ActionKind.F, stage] for stage in stages)
        for rank, stages in enumerate(placement.stages_of_rank)
        if stages
    ]
    return int(min(counts) * (1 + 1e-9))
