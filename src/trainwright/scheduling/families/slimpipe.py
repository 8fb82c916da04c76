"""SlimPipe: interleaved 1F1B over slices of one sequence at a time (Li et al., 2025).

v chunks per rank in a loop, chunk by chunk with all q slices of one microbatch, as in Seq1F1B
(`seq1f1b`); q is a multiple of p. A rank warms up with vq - 1 + 2(p-1-r) slices and holds at most
vq + 2(p-1) of them, 1/p + 2(p-1)/(qvp) of a microbatch's activations; it loses the share
(p-1)/(p-1+qvm). Slices are equal there and ranks exchange keys and values until they take equal
times. Plans cut sequences into p of them, which hides that exchange.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainwright.errors import Fault
from trainwright.plans.schedule import Schedule
from trainwright.scheduling.families.family import Family, FamilyRequest, Searched, looped
from trainwright.scheduling.families.seq1f1b import order_of_slices


def slim_order(request: FamilyRequest) -> Schedule:
    """`virtual_stages` chunks per rank."""
    p, v = request.num_ranks, request.virtual_stages
    slices = request.num_slices or p
    warm_up = [v * slices - 1 + 2 * (p - 1 - rank) for rank in range(p)]
    return order_of_slices(request, looped(request), slices, warm_up)


def slim_rules(request: FamilyRequest) -> Iterator[Fault]:
    """Chunks follow each other without a gap only if a loop is as long as a microbatch."""
    if (slices := request.num_slices) is not None and slices % request.num_ranks:
        problem = f"must be a multiple of {request.num_ranks} ranks for slimpipe, got {slices}"
        yield Fault("num_slices", problem)


SLIMPIPE = Family(
    name="slimpipe",
    summary="interleaved 1F1B over slices of one sequence at a time, near one microbatch held",
    source="Li et al., SlimPipe, 2025",
    place=looped,
    order=slim_order,
    is_plain=False,
    rules=slim_rules,
    slices=lambda ranks: ranks,
    planned=True,
    searched=Searched.ASKED,
    held_at_once=lambda ranks: ranks,
)
