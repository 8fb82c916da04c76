"""What a schedule family is: a name, a placement, and a generator of orders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.placement import Placement

if TYPE_CHECKING:
    from trainwright.plan.schedule import Schedule
    from trainwright.plan.schedule_costs import ScheduleCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRequest:
    """What to build a schedule for.

    `virtual_stages` is the number of chunks per rank, for families that let one choose, `group` the
    number of microbatches that pass a chunk together, `max_activations` a limit in chunk
    activations per rank. Families that place actions by time read `costs` (one second per action
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

    `order` may assume that `rules` found no fault.
    """

    name: str
    summary: str
    place: Callable[[FamilyRequest], Placement]
    order: Callable[[FamilyRequest], Schedule]
    rules: Callable[[FamilyRequest], Iterable[Fault]] = lambda request: ()

    def generate(self, request: FamilyRequest) -> Schedule:
        """Orders for `request`; raises InvalidInput naming the rule of the family it breaks."""
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
