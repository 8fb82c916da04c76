"""Bounds on the step of every split in V, whatever order of so many activations is found."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from trainwright._native import _core
from trainwright.planning.split_bound import Split
from trainwright.planning.v_lifetimes import lifetime_bound_s
from trainwright.planning.v_problem import VProblem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from trainwright.planning.split_question import SplitQuestion

_FIRST_LIMIT: Final = 1.1  # times the work of the busiest rank
_NEXT_LIMIT: Final = 1.2
_LAST_LIMIT: Final = 4.0  # from there on in one go

# Cost, layers of near and far chunks, their points, seconds and ends of ranks; see `PeelResult`.
Peeled: TypeAlias = (
    "tuple[float, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64],"
    " NDArray[np.float64], NDArray[np.float64]]"
)


def bound_v_splits(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """The bound of `v_split.best_v_split` alone, in half of the time."""
    problem = VProblem.of(question, limit_s=limit_s)
    space = problem.published()
    if space is None:
        return Split(bound_s=math.inf)
    return Split(bound_s=min(shortest_split(problem, space)[0] + problem.overhead_s, limit_s))


def bound_v_lifetimes(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """Another bound on the same splits, of all ranks together: up to a hundred times the work.

    It is 0 where replicas exchange with every microbatch.
    """
    problem = VProblem.of(question, limit_s=limit_s)
    space = problem.published()
    if space is None:
        return Split(bound_s=math.inf)
    if question.degrees.zero_stage > 1:
        return Split(bound_s=0.0)
    across_s = np.concatenate((problem.transfer_s, [0.0], problem.transfer_s[::-1]))
    bound_s = lifetime_bound_s(space, across_s, limit_s=problem.limit_s)
    return Split(bound_s=bound_s + problem.overhead_s)


def shortest_split(v: VProblem, space: Mapping[str, Any]) -> Peeled:
    """The bound on some splits of the problem, by ranks alone, and a split that reaches it.

    It is infinite where none of them is within the limit.
    """
    floor_s = v.floor_s
    tried_s = _FIRST_LIMIT * floor_s
    while tried_s < min(v.limit_s, _LAST_LIMIT * floor_s):
        found: Peeled = _core.peel(**(dict(space) | {"limit_s": tried_s}))
        if math.isfinite(found[0]):
            return found
        tried_s *= _NEXT_LIMIT
    return _core.peel(**space)
