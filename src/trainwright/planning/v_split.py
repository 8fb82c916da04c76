"""The best split for V placement: rank r owns stages r and 2p-1-r, cut from both ends of the chain.

Two splits are found. One is even and has room for as many activations as its family allows at
most, so that it fits whatever order is found. The other attains the bound of `v_bound`, with room
for what the published order of its family holds. Which of them steps faster the simulation tells.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright._native import _core
from trainwright.planning.split_bound import Split
from trainwright.planning.v_bound import shortest_split
from trainwright.planning.v_memory import most_in_flight
from trainwright.planning.v_problem import VProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.planning.split_bound import CutsAndRows
    from trainwright.planning.split_question import SplitQuestion

    Ints = NDArray[np.int64]

_LIKELY_LIMITS: Final = (1.02, 1.06)  # times a bound: the first, and from one to the next
_LAST_LIMIT: Final = 4.0  # times a bound
_EVEN_WITHIN: Final = 1.012  # of the shortest step, for more even chunks
_UNLIMITED: Final = 2**40


def best_v_split(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """Like `split_bound.best_split`, over the 2p stages of a V."""
    problem = VProblem.of(question, limit_s=limit_s)
    space = problem.published()
    if space is None:
        return Split(bound_s=math.inf)
    shortest = shortest_split(problem, space)
    bound_s = shortest[0] + problem.overhead_s
    if not bound_s < limit_s:
        return Split(bound_s=limit_s)
    _, (cuts, chosen) = _likely_split(problem, shortest[0])
    others = (_decoded(problem, *shortest[1:5]),)
    return Split(bound_s=bound_s, cuts=cuts, chosen=chosen, others=others)


def best_uneven_v_split(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """Two splits of any lengths, most of them outside the space of `best_v_split`.

    `cuts` attains the least bound with room for what the published order holds, the last of
    `others` is even as there. `bound_s` holds for these two alone; at the limit there are none.
    """
    problem = VProblem.of(question, limit_s=limit_s)
    shortest = shortest_split(problem, problem.any_published())
    least_s = shortest[0] if math.isfinite(shortest[0]) else problem.floor_s
    likely_s, likely = _likely_split(problem, least_s)
    bound_s = min(shortest[0], likely_s) + problem.overhead_s
    if not bound_s < limit_s:
        return Split(bound_s=limit_s)
    every = [_decoded(problem, *shortest[1:5])] if math.isfinite(shortest[0]) else []
    (cuts, chosen), *others = [*every, *([likely] if likely[0] else [])]
    return Split(bound_s=bound_s, cuts=cuts, chosen=chosen, others=tuple(others))


def attaining_splits(v: VProblem) -> list[tuple[float, CutsAndRows]]:
    """The nearly even split of least bound, that of any lengths, and the even one, with bounds.

    Those that there are within the limit, a split twice where two are the same.
    """
    found = []
    least_s = v.floor_s
    for space in (v.published(), v.any_published()):
        shortest = None if space is None else shortest_split(v, space)
        if shortest is not None and math.isfinite(shortest[0]):
            least_s = shortest[0]
            found.append((least_s + v.overhead_s, _decoded(v, *shortest[1:5])))
    likely_s, likely = _likely_split(v, least_s)
    if likely[0]:
        found.append((likely_s + v.overhead_s, likely))
    return found


def _likely_split(v: VProblem, bound_s: float) -> tuple[float, CutsAndRows]:
    """An even split that fits, all transients counted, and the bound on all that would.

    None where rounding alone lets one fit.
    """
    chunk_s = float(v.times.total_before_s[-1]) / (2 * v.num_ranks)
    most = min(v.max_activations, 2 * v.num_microbatches)
    problem = v.with_room_for(*most_in_flight(v.num_ranks, most))
    problem["beside_bytes"] = v.fronts.level_bytes
    problem["max_activations"] = _UNLIMITED  # else chunks that hide waits look best
    first, following = _LIKELY_LIMITS
    tried_s = first * bound_s
    while tried_s < min(following * v.limit_s, _LAST_LIMIT * bound_s):
        problem["limit_s"] = min(tried_s, v.limit_s)
        least_s = _core.peel(**problem)[0]
        if math.isfinite(least_s):
            problem["limit_s"] = _EVEN_WITHIN * least_s
            found = _core.peel_evenly(**problem, chunk_s=chunk_s)[1:5]
            return least_s, _decoded(v, *found)
        tried_s *= following
    return math.inf, ((), ())


def _decoded(v: VProblem, near: Ints, far: Ints, near_point: Ints, far_point: Ints) -> CutsAndRows:
    sizes = [*near.tolist(), *reversed(far.tolist())]
    points = [*near_point.tolist(), *reversed(far_point.tolist())]
    cuts = (0, *accumulate(sizes))
    return cuts, rows_of(v, cuts, points)


def rows_of(
    v: VProblem, cuts: tuple[int, ...], points: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """How many layers of each stage run as each row, at points of all fronts."""
    chosen = []
    for first, after, point in zip(cuts, cuts[1:], points, strict=False):
        kind = int(v.kinds.kind_of[first, after])
        level, place = v.fronts.place(kind, point)
        front = v.kinds.front(kind, v.kinds.levels_of[kind][level])
        chosen.append(tuple(front.chosen[place].tolist()))
    return tuple(chosen)
