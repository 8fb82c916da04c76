"""Which schedule families are searched, with how many chunks per rank, and where they are legal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.planning.allowed import Span
from trainwright.planning.family_split import SEARCHED as BOUNDED
from trainwright.planning.family_split import chunks_per_rank
from trainwright.scheduling.families import ALIASES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.planning.allowed import Allowed
    from trainwright.planning.layouts import Layouts
    from trainwright.planning.model_space import Point

    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]

ONE_F_ONE_B: Final = "1f1b"
_ZB_V: Final = "zb-v"
_WITHIN_ZB_V: Final = ("v-half", "v-min")  # whose room on two ranks is that of ZB-V
SEARCHED: Final = (  # unless others are named
    ONE_F_ONE_B,
    "zb-h1",
    "zb-h2",
    "interleaved",
    _ZB_V,
    *_WITHIN_ZB_V,
)
_MOST_CHUNKS: Final = 8  # unless a family or another number is named
_IN_GROUPS: Final = ("interleaved",)  # of p microbatches each


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A family, and how many virtual stages a rank may have under it.

    `from_ranks` is the least depth: with one rank every order takes the same time, and 1F1B holds
    the least; with two all families in V may hold as much.
    """

    family: str
    virtual_stages: Span
    from_ranks: int = 1

    def chunks_at(self, layouts: Layouts, num_blocks: int) -> Ints:
        """With how many numbers of virtual stages each pair is legal, from the least on, [N].

        Every virtual stage can hold a block, and the family has an order.
        """
        p, least = layouts.pipeline, self.virtual_stages.least
        most = num_blocks // p
        if self.virtual_stages.most is not None:
            most = np.minimum(most, self.virtual_stages.most)
        legal = p >= self.from_ranks
        if self.family in _IN_GROUPS:
            legal &= layouts.num_microbatches % p == 0
        found: Ints = np.where(legal, np.maximum(0, most - least + 1), 0)
        return found


def schedules_of(allowed: Allowed) -> tuple[Schedule, ...]:
    """The families that may be used.

    Raises `UnsupportedFeature` where none of those that are allowed can be searched, and
    `InvalidInput` where none of them can have as many virtual stages as is asked for.
    """
    named = [ALIASES.get(family, family) for family in allowed.schedules or SEARCHED]
    families = [family for family in dict.fromkeys(named) if family in BOUNDED]
    if not families:
        raise UnsupportedFeature(
            f"plans under {', '.join(named)} are not searched",
            alternative=f"use one of {', '.join(BOUNDED)}",
        )
    offered = allowed.virtual_stages
    if not allowed.schedules and offered.most is None:
        offered = replace(offered, most=max(_MOST_CHUNKS, offered.least))
    alone = ONE_F_ONE_B if ONE_F_ONE_B in families else families[0]
    found = []
    for family in families:
        chunks = _chunks(family, offered)
        if chunks is not None:
            from_ranks = 1 if family == alone and chunks.least == 1 else 2
            if family in _WITHIN_ZB_V and _ZB_V in families:
                from_ranks = 3
            found.append(Schedule(family=family, virtual_stages=chunks, from_ranks=from_ranks))
    if not found:
        raise InvalidInput.of(
            "virtual_stages", f"must leave a number that {', '.join(families)} can have"
        )
    return tuple(found)


def _chunks(family: str, allowed: Span) -> Span | None:
    """What is left of a family's numbers of chunks; a loop of one chunk is no loop."""
    own = chunks_per_rank(family)
    if own is not None:
        return Span.only(own) if own in allowed else None
    least = max(2, allowed.least)
    return (
        None if allowed.most is not None and allowed.most < least else replace(allowed, least=least)
    )


def is_replicated(point: Point, layouts: Layouts) -> Flags:
    """At which pairs some state has replicas, so that ZeRO stages differ, [N]."""
    dense = layouts.data * point.context > 1
    found: Flags = dense | (layouts.data * point.devices > point.expert_devices)
    return found
