"""What a schedule family is: a name, a placement, a generator of orders, and facts about them.

A family is one file of this package and a line in its registry. Whatever else has to be known of
its orders (how many activations they hold, what they split, when they repeat themselves) is a field
of `Family`, set in that file: everything outside asks the family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from trainwright.errors import Fault, InvalidInput, refuse
from trainwright.plans.schedule import (
    ActionKind,
    FamilyShape,
    Placement,
    Placing,
    Schedule,
    ScheduleCosts,
    ScheduleMemory,
)
from trainwright.plans.status import Objective
from trainwright.scheduling.bounds import least_that_fits

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRequest:
    """What to build a schedule for.

    `virtual_stages` is the number of chunks per rank, for families that let one choose, `group` the
    number of microbatches that pass a chunk together, `num_slices` the number of parts that a
    sequence is cut into, for families that cut it, `max_activations` a limit per rank in chunk
    activations, beside the limits in bytes that `costs` may have. Families that place actions by
    time read `costs` (one second per action where absent) and make `objective` small, by which they
    were published in spans; the others give the same orders whatever things cost. `in_slots` keeps
    families in V to paths of equal slots, as they were published. `after_s` [p] are seconds that
    follow the last action of each rank, for families that look at them.
    """

    num_ranks: int
    num_microbatches: int
    virtual_stages: int = 2
    group: int | None = None
    num_slices: int | None = None
    max_activations: int | None = None
    costs: ScheduleCosts | None = None
    objective: Objective = Objective.SPAN
    in_slots: bool = False
    after_s: Floats | None = None

    def __post_init__(self) -> None:
        names = "num_ranks num_microbatches virtual_stages group num_slices max_activations"
        faults = [
            Fault(name, f"must be >= 1, got {count}")
            for name in names.split()
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


class Steady(NamedTuple):
    """After how many microbatches an order repeats itself, in multiples of the p ranks.

    A step of `long`·p microbatches is long enough to look for the steady state in its middle. The
    last `drain`·p of them drain the pipeline; `in_flight`·p can be in flight before. Orders
    `by_rank` repeat themselves every p microbatches, so that a shorter step keeps the rest that p
    leaves of them; all others every microbatch.
    """

    long: int
    drain: int
    in_flight: int
    by_rank: bool = False


class Searched(Enum):
    """When plans are searched under a family."""

    ALWAYS = "unless others are named"
    NAMED = "where it is named; what is proved of plans holds for it in any case"
    ASKED = "where it is named, and only then is anything proved of it"


# Chunk activations of the near and of the far stage of each rank, [N, p] each, at the N instants
# that can be its fullest; by the numbers of ranks and of microbatches.
InFlight: TypeAlias = "Callable[[int, int], tuple[Ints, Ints]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A named way to order a pipeline, and what is known of its orders.

    `order` may assume that `rules` found no fault; it gives None where the memory limits allow no
    order it knows.

    name, aliases, summary, source
        What it is called, what it is for, and who published it.
    is_plain
        Whether one pipeline runs whole microbatches, with nothing beside its computation. Searches
        and the bounds of a placement are about such orders.
    splits_backward
        Whether weight gradients are actions of their own.
    obeys_limits
        Whether the order looks at the memory limits of a request at all.
    reads_costs
        Whether it looks at times and bytes; else orders depend on counts alone and may be kept.
    fixed_without_costs
        Whether a request without costs gets an order that suits any; plans run that one, so that it
        depends on counts alone.
    head_barriers
        Where the head is cut over all ranks, how often they wait for each other in each microbatch
        (`plans.schedule.RankOrders`); 0 where it is part of the last stage.
    host_of
        The family whose computation it is, with activations on the host while they wait.
    braids
        Whether a forward and a backward of one chunk run as a pair, each hiding what the other
        communicates inside its layers.
    slices
        Into how many slices a plan under it cuts each sequence, by the number of ranks; None where
        microbatches stay whole.
    reads_group, whole_groups, like
        Whether it looks at the `group` of a request; whether all microbatches pass each chunk in
        groups of p, so that p must divide their number; the family whose order it has where p does.
    starts_searches
        In which placements a search of orders begins with its order, among others.
    steady
        How soon its order repeats itself; None where what is in flight grows with the microbatches
        or is not known.

    The rest is for planners, who search plans only under families that are `planned`:

    searched
        When they do.
    warm_up
        Of each chunk, how many microbatches (slices where they are cut) are in flight before the
        first backward of a rank, by the number of ranks from it to the end of the pipeline, at most
        m; None where nobody knows.
    weight_grad_lag
        s, where rank r runs the weight gradient of microbatch j - s·r after the input gradient of
        j, so that min(m, 1 + s·r) are left after the last one; None in any other order.
    most_activations
        In V: chunk activations that no rank exceeds, by the number of ranks.
    published_in_flight
        In V: what the published order holds, whatever the times are.
    held_at_once
        Of each chunk, how many microbatches a rank has in flight at one instant for all of its
        chunks, at least, by the number of ranks from it on or, in V, up to it; at most m. Where it
        is not given, `warm_up` is meant.
    least_in_flight
        In V, of every order for a request without limits: what each rank holds at one instant for
        each of N, at least. Orders are made to keep this promise.
    keeps_to_room
        Whether orders of plans keep to the bytes of their devices and keep that promise, too; and
        look at what follows the last action of each rank.
    covers
        Families all of whose orders it may have: what bounds it bounds them.
    tried
        Whether it is tried in place of the schedule of a stated run, to improve that.
    on_chips
        Whether chips can be searched under it, and are unless families are named.
    switches
        Arguments of Megatron-LM and its forks that turn it on.
    """

    name: str
    summary: str
    source: str
    place: Callable[[FamilyRequest], Placement]
    order: Callable[[FamilyRequest], Schedule | None]
    aliases: tuple[str, ...] = ()
    rules: Callable[[FamilyRequest], Iterable[Fault]] = lambda request: ()
    is_plain: bool = True
    splits_backward: bool = False
    obeys_limits: bool = False
    reads_costs: bool = False
    fixed_without_costs: bool = False
    head_barriers: int = 0
    host_of: str | None = None
    braids: bool = False
    slices: Callable[[int], int] | None = None
    reads_group: bool = False
    whole_groups: bool = False
    like: str | None = None
    starts_searches: Callable[[Placement], bool] = lambda placement: True
    steady: Steady | None = None
    planned: bool = False
    searched: Searched = Searched.NAMED
    warm_up: Callable[[Ints], Ints] | None = None
    weight_grad_lag: int | None = None
    most_activations: Callable[[int], int] | None = None
    published_in_flight: InFlight | None = None
    held_at_once: Callable[[Ints], Ints] | None = None
    least_in_flight: InFlight | None = None
    keeps_to_room: bool = False
    covers: tuple[str, ...] = ()
    tried: bool = False
    on_chips: bool = False
    switches: tuple[str, ...] = ()

    @property
    def num_chunks(self) -> int | None:
        """Virtual stages per rank; None where a request chooses."""
        few, more = (_place(self, virtual_stages).num_stages for virtual_stages in (2, 3))
        return few // _RANKS if few == more else None

    @property
    def is_timeless(self) -> bool:
        """Whether its orders in plans depend on counts alone, so that they may be kept."""
        return not self.reads_costs or self.fixed_without_costs

    @property
    def is_priced(self) -> bool:
        """Whether a step of a plan under it is priced: one pipeline of microbatches or of a known
        number of their slices, whose head may be cut, or whose activations wait on the host.
        """
        beside = self.head_barriers > 0 or self.host_of is not None
        return self.is_plain or beside or self.slices is not None

    @property
    def placing(self) -> Placing:
        """How its stages lie on the ranks: one each, in a loop, in a V, or in any other way."""
        return self.shape(3).placing

    def shape(self, virtual_stages: int) -> FamilyShape:
        """Placing of its stages with so many chunks per rank, and whether it splits backwards.

        Files of orders do not carry braids: runtimes run the two actions of a pair in turn.
        """
        placing = _place(self, virtual_stages).placing
        is_plain = self.is_plain and not self.braids
        return FamilyShape(placing, self.splits_backward, is_plain, self.host_of)

    def generate(self, request: FamilyRequest) -> Schedule | None:
        """Orders for `request`, None where they cannot respect its memory limits.

        Raises InvalidInput naming the rule of the family that the request breaks.
        """
        refuse(self.rules(request))
        return self.order(request)


_MANY = 2**40  # microbatches
_RANKS = 4  # enough to tell a loop, a V and a wave from each other


@lru_cache(maxsize=128)
def _place(family: Family, virtual_stages: int) -> Placement:
    request = FamilyRequest(num_ranks=_RANKS, num_microbatches=1, virtual_stages=virtual_stages)
    return family.place(request)


def all_at_once(ranks: Ints) -> Ints:
    """Where all forwards of a rank come before its first backward (`Family.held_at_once`)."""
    return np.full_like(ranks, _MANY)


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


def least_held_of(family: Family, request: FamilyRequest) -> Ints | None:
    """What the family promises to hold of each stage, [N, 2p]; None where limits may forbid it."""
    if request.is_limited or family.least_in_flight is None:
        return None
    return promised(family.least_in_flight, request)


def promised(least_in_flight: InFlight, request: FamilyRequest) -> Ints:
    """The promise of a family in V by stages, [N, 2p]."""
    near, far = least_in_flight(request.num_ranks, request.num_microbatches)
    held: Ints = np.concatenate((near, far[:, ::-1]), axis=1)
    return held


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
