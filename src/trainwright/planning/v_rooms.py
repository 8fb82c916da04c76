"""Splits in V for a fixed ladder of rooms, so that more memory tries all that less memory tries.

The split of least bound need not step fastest: bounds know little of how an order waits, and a
split that was cut for less room may run in a better one. So splits are asked for with every room
of a ladder that does not depend on how much memory there is, up to a little more than that, for an
order may hold less than was published. What less memory tries is then a part of what more memory
tries, and more memory is never slower but for two things: the splits that are asked for with all
memory there is, which is no rung, and an effort that ends first.

Neighbouring rungs mostly give the same split. Asking takes about a millisecond for 32 layers,
ordering one split on 4 ranks 5 to 10: that is what the effort counts.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from trainwright.planning.split_bound import Split
from trainwright.planning.v_plan import Tried
from trainwright.planning.v_problem import VProblem
from trainwright.planning.v_space import every_split, num_splits
from trainwright.planning.v_split import attaining_splits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainwright.planning.split_bound import CutsAndRows
    from trainwright.planning.split_question import SplitQuestion

_RUNG: Final = 1.005  # from one room to the next
_BEYOND: Final = 1.1  # of the memory there is: the largest room
_SHORT: Final = 32  # layers of a chain for which every rung is asked, and how many are left out
_STRIDE: Final = 4
_SMALL: Final = 600  # actions of an order that is worth several
_EFFORT: Final = 8000  # actions of all orders of a candidate that are made for other rooms
_ALL: Final = 50_000  # actions of one order of each split of a space that is searched to its end
_PROOF: Final = 120_000  # the same of those splits that should fit, where nothing is known to


def is_small(asked: SplitQuestion) -> bool:
    """Whether orders of the candidate are made so quickly that many of its splits can be tried."""
    return _num_actions(asked) <= _SMALL and asked.kinds.num_layers <= 2 * _SHORT


class Tries(Protocol):
    """Plans of a candidate's splits."""

    def fastest(self, splits: list[CutsAndRows], limit_s: float) -> Tried:
        """The fastest that fits, of those whose pipelines are within the limit."""

    def floor_s(self, split: CutsAndRows) -> float:
        """No order of the split steps faster."""


def fastest_in_rooms(
    asked: SplitQuestion,
    tries: Tries,
    known: Tried,
    *,
    limit_s: float,
    but: frozenset[CutsAndRows] = frozenset(),
) -> Tried:
    """The fastest plan of all rooms, or the known one where none is faster.

    After them every split of a space that is small is tried, as long as its floor is below the best
    step: the plan is then the best of the space. `but` are left out that are known already.
    """
    actions = _num_actions(asked)
    seen = set(but)
    best, _ = _fastest(
        _splits_by_bound(asked, limit_s=min(limit_s, known.step_s)),
        tries,
        known,
        limit_s=limit_s,
        seen=seen,
        most=_EFFORT // actions,
    )
    problem = VProblem.of(asked, limit_s=min(limit_s, best.step_s))
    most = _ALL // actions
    if num_splits(VProblem.of(asked, limit_s=math.inf)) > most:
        return best
    every = every_split(problem, most=most) or ()
    return _fastest(every, tries, best, limit_s=limit_s, seen=seen, most=most)[0]


def best_of_space(asked: SplitQuestion, tries: Tries) -> Split | None:
    """The split of a space that steps fastest, all that should fit tried, where they are few.

    Without cuts and with an infinite bound where no order of any of them fits; None where they are
    too many.
    """
    if not is_small(asked):
        return None
    most = _PROOF // _num_actions(asked)
    every = every_split(VProblem.of(asked, limit_s=math.inf), most=most)
    if every is None:
        return None
    order: list[CutsAndRows] = []
    best, _ = _fastest(
        every, tries, Tried(), limit_s=math.inf, seen=set(), most=most, improved=order
    )
    if best.plan is None:
        return Split(bound_s=math.inf)
    cuts, chosen = order[-1]
    return Split(bound_s=every[0][0], cuts=cuts, chosen=chosen)


def _fastest(
    splits: Iterable[tuple[float, CutsAndRows]],
    tries: Tries,
    best: Tried,
    *,
    limit_s: float,
    seen: set[CutsAndRows],
    most: int,
    improved: list[CutsAndRows] | None = None,
) -> tuple[Tried, bool]:
    """The fastest plan of these splits, and whether none was left out that may be faster.

    They come with bounds. The least is replaced by the floor of its times before it is tried, and
    no more than `most` are; what was tried is `seen`, what was faster than all before `improved`.
    """
    waiting = [(bound_s, False, split) for bound_s, split in splits if split not in seen]
    heapq.heapify(waiting)
    while waiting and waiting[0][0] < min(best.step_s, limit_s):
        bound_s, is_floor, split = heapq.heappop(waiting)
        if not is_floor:
            heapq.heappush(waiting, (max(bound_s, tries.floor_s(split)), True, split))
        elif most > 0:
            most -= 1
            seen.add(split)
            tried = tries.fastest([split], min(limit_s, best.step_s))
            if improved is not None and tried.step_s < best.step_s:
                improved.append(split)
            best = best.or_faster(tried)
        else:
            return best, False
    return best, True


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
