"""The schedule families that plans are searched under, and what bounds and splits ask of them.

All of it is read off the families themselves (`scheduling.families`): a family that is `planned`
takes part in the search by how its stages lie on the ranks, and is bounded by what it says of its
orders.

Families in V order actions by the times of their stages, so what a rank holds is known when a split
is. But each of them is published as one order for equal times, made for a memory, and repeats it in
the middle of a step whatever the times are: ZB-V the word F0 I0 W0 F1 I1 W1 after a warm-up, V-Half
and V-Min a block every six slots. How many microbatches wait for their input gradients then depends
on the rank alone, and the families promise that they have held as many (`least_in_flight`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.plans.schedule import Placing
from trainwright.scheduling.families import FAMILIES, family_named

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints

_PLANNED = tuple(family for family in FAMILIES.values() if family.planned)

BOUNDED: Final = tuple(family.name for family in _PLANNED)
CHAIN: Final = tuple(family.name for family in _PLANNED if family.placing is Placing.ONE)
LOOPED: Final = tuple(family.name for family in _PLANNED if family.placing is Placing.LOOP)
IN_V: Final = tuple(family.name for family in _PLANNED if family.placing is Placing.V)

SPLIT_BACKWARD: Final = frozenset(family.name for family in _PLANNED if family.splits_backward)
# Of each chunk, in flight on a rank with so many ranks from it on before its first backward, at
# most m: as published. Where nobody knows it is 1.
PUBLISHED_WARM_UP: Final[Mapping[str, Callable[[Ints], Ints]]] = {
    family.name: family.warm_up for family in _PLANNED if family.warm_up is not None
}
# The same where it is sure: orders in V follow from times.
WARM_UP: Final = {name: own for name, own in PUBLISHED_WARM_UP.items() if name in CHAIN}
# Of each chunk at one instant, over all ranks in any order: sure, too.
HELD_AT_ONCE: Final[Mapping[str, Callable[[Ints], Ints]]] = {
    family.name: own
    for family in _PLANNED
    if (own := family.held_at_once or family.warm_up) is not None
    and (family.placing is not Placing.V or family.least_in_flight is not None)
}
# One stage per rank and whole backwards, which lead from the last rank to the first.
WHOLE_BACKWARD: Final = frozenset(CHAIN) - SPLIT_BACKWARD
# min(m, 1 + s·r) weight gradients are left after the last input gradient of rank r.
WEIGHT_GRAD_LAG: Final[Mapping[str, int]] = {
    family.name: family.weight_grad_lag for family in _PLANNED if family.weight_grad_lag is not None
}
# Microbatches pass each chunk in groups of p, all of them.
WHOLE_GROUPS: Final = frozenset(family.name for family in _PLANNED if family.whole_groups)
# Chunk activations that no rank of a family exceeds, by the number of ranks.
MOST_ACTIVATIONS: Final[Mapping[str, Callable[[int], int]]] = {
    family.name: family.most_activations
    for family in _PLANNED
    if family.most_activations is not None
}


def chunks_per_rank(family: str) -> int | None:
    """Virtual stages per rank; None where any number of them will do."""
    return family_named(family).num_chunks


@lru_cache(maxsize=256)
def published_in_flight(
    family: str, num_ranks: int, num_microbatches: int
) -> tuple[Floats, Floats]:
    """Of stage r and of stage 2p-1-r on every rank, waiting for input gradients: [N, p] each.

    At each of the N instants of a rank that can be its fullest in the family's published order.
    """
    published = family_named(family).published_in_flight
    assert published is not None, "families in V are published with what they hold"
    near, far = published(num_ranks, num_microbatches)
    return near.astype(np.float64), far.astype(np.float64)


@lru_cache(maxsize=256)
def least_in_flight(family: str, num_ranks: int, num_microbatches: int) -> tuple[Floats, Floats]:
    """What every order of a family in V holds, shaped like `published_in_flight`.

    Each rank has both chunks of some microbatch at once, and whatever the family promises.
    """
    one = np.ones((1, num_ranks))
    promised = family_named(family).least_in_flight
    if promised is None:
        return one, one
    near, far = promised(num_ranks, num_microbatches)
    return np.concatenate((one, near)), np.concatenate((one, far))


def most_in_flight(num_ranks: int, most: int) -> tuple[Floats, Floats]:
    """In V, of orders that hold `most` chunk activations on every rank, whatever the times.

    Shaped like `published_in_flight`. At the one instant as many of the far stage as it ever does,
    at the other as few. The far stage waits longer the nearer to the turn it lies.
    """
    share = (most / 2 - 1) * np.arange(num_ranks) / max(1, num_ranks - 1)
    far = np.stack([np.minimum(most / 2, np.ceil(share) + 2), np.floor(share)])
    return most - far, far
