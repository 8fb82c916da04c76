"""Splits in V for a fixed ladder of rooms, so that more memory tries all that less memory tries.

The split of least bound need not step fastest: bounds know little of how an order waits, and a
split that was cut for less room may run in a better one. So splits are asked for with every room
of a ladder that does not depend on how much memory there is, up to a little more than that, for an
order may hold less than was published. What less memory tries is then a part of what more memory
tries, and more memory is never slower but for two things: the splits that are asked for with all
memory there is, which is no rung, and an effort that ends first.

Neighbouring rungs mostly give the same split. Asking takes a third of a millisecond for a dozen
layers, ordering one split a hundred times as long: that is what the effort counts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.planning.v_plan import Tried
from trainwright.planning.v_problem import VProblem
from trainwright.planning.v_split import attaining_splits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainwright.planning.split_bound import CutsAndRows
    from trainwright.planning.split_question import SplitQuestion

_RUNG: Final = 1.005  # from one room to the next
_BEYOND: Final = 1.1  # of the memory there is: the largest room
_SHORT: Final = 32  # layers of a chain for which every rung is asked, and how many are left out
_STRIDE: Final = 4
_SMALL: Final = 600  # actions of an order that is worth several
_EFFORT: Final = 8000  # actions of all orders of a candidate


def is_small(asked: SplitQuestion) -> bool:
    """Whether orders of the candidate are made so quickly that many of its splits can be tried."""
    return _num_actions(asked) <= _SMALL and asked.kinds.num_layers <= 2 * _SHORT


def fastest_in_rooms(
    asked: SplitQuestion,
    try_splits: Callable[[list[CutsAndRows], float], Tried],
    known: Tried,
    *,
    limit_s: float,
    but: frozenset[CutsAndRows] = frozenset(),
) -> Tried:
    """The fastest plan of all rooms, or the known one where none is faster.

    `try_splits` gets splits and the limit, and says which of their plans is best. Those are tried
    in the order of their bounds until no bound is below the best step, `but` those known already.
    """
    best = known
    found = _splits_by_bound(asked, limit_s=min(limit_s, known.step_s))
    fresh = [each for each in found if each[1] not in but]
    for bound_s, split in fresh[: _EFFORT // _num_actions(asked)]:
        if bound_s >= min(best.step_s, limit_s):
            break
        best = best.or_faster(try_splits([split], min(limit_s, best.step_s)))
    return best


def _num_actions(asked: SplitQuestion) -> int:
    return 6 * asked.degrees.pipeline * asked.num_microbatches


def _splits_by_bound(asked: SplitQuestion, *, limit_s: float) -> list[tuple[float, CutsAndRows]]:
    """Each split once, with its bound, that is below the limit."""
    found: dict[CutsAndRows, float] = {}
    generous = VProblem.of(asked, limit_s=limit_s)
    stride = 1 if asked.kinds.num_layers <= _SHORT else _STRIDE
    for room in _rungs(_BEYOND * asked.cluster.accelerator.usable_bytes, stride):
        own = attaining_splits(replace(generous, usable_bytes=room))
        if not own:
            break
        for bound_s, split in own:
            found.setdefault(split, bound_s)
    each = ((bound_s, split) for split, bound_s in found.items() if bound_s < limit_s)
    return sorted(each)


def _rungs(most: float, stride: int) -> Iterator[float]:
    """From the highest that is not above `most` down."""
    step = stride * math.log(_RUNG)
    number = math.floor(math.log(most) / step)
    while number > 0:
        yield math.exp(number * step)
        number -= 1
