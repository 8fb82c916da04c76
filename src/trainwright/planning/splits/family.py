"""The best split of a candidate under a schedule family, and a bound on every other.

Which search answers depends on how a family lays its stages on the ranks:

- one stage per rank: a chain DP from the last rank on, for every split (`chain`)
- V, rank r with stages r and 2p-1-r: a DP that peels both ends of the chain (`vee`)
- v chunks in a loop: the number of blocks per rank is bounded (`loop`); the chunks of a rank are
  coupled by its work and its memory

With several chunks good splits are nearly even, so those are bounded and looked for first; what
holds for every split is another, lower bound (`bound_every_split`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trainwright.errors import UnsupportedFeature
from trainwright.planning.question.families import CHAIN, IN_V, BOUNDED, chunks_per_rank
from trainwright.planning.splits.chain import best_chain_split
from trainwright.planning.splits.loop import (
    best_loop_split,
    bound_every_loop_split,
    bound_loop_splits,
)
from trainwright.planning.splits.vee import best_v_split, bound_every_v_split, bound_v_splits

if TYPE_CHECKING:
    from trainwright.planning.splits.chain import Split
    from trainwright.planning.splits.types import SplitQuestion
    from trainwright.plans.parallelism import Parallelism


def best_family_split(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """A good split into p·v stages.

    With one stage per rank no split steps faster than `bound_s`; in a loop no nearly even one, and
    in V none of these that fits with what the family's published order holds
    (`question.families`). It is infinite where none of them fits into memory or the family's rules
    forbid the shape; a bound above the limit is cut down to it. The split that comes along is all
    but certain to fit for families that ignore times; those in V may order it in a way that does
    not. Raises `UnsupportedFeature` for a family outside `BOUNDED`, and for virtual stages that it
    has not.
    """
    _require_searched(question.family, question.degrees)
    if question.family in CHAIN:
        return best_chain_split(question, limit_s=limit_s)
    search = best_v_split if question.family in IN_V else best_loop_split
    return search(question, limit_s=limit_s)


def bound_family_splits(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """Like `best_family_split`, but with a split only where that costs nothing: one per rank."""
    _require_searched(question.family, question.degrees)
    if question.family in CHAIN:
        return best_chain_split(question, limit_s=limit_s)
    bound = bound_v_splits if question.family in IN_V else bound_loop_splits
    return bound(question, limit_s=limit_s)


def bound_every_split(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """No split steps faster than `bound_s`, whatever its lengths; infinite where none can fit."""
    _require_searched(question.family, question.degrees)
    if question.family in CHAIN:
        return best_chain_split(question, limit_s=limit_s)
    bound = bound_every_v_split if question.family in IN_V else bound_every_loop_split
    return bound(question, limit_s=limit_s)


def _require_searched(family: str, degrees: Parallelism) -> None:
    if family not in BOUNDED:
        raise UnsupportedFeature(
            f"splits for the family {family} are not searched",
            alternative=f"use one of {', '.join(BOUNDED)}",
        )
    chunks = chunks_per_rank(family)
    if chunks is not None and degrees.virtual_stages != chunks:
        raise UnsupportedFeature(
            f"{family} does not run {degrees.virtual_stages} virtual stages per rank",
            alternative=f"use {chunks}",
        )
