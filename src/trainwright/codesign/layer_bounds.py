"""Lower bounds on the time of a layer: its longest path, and the work of each class of cores.

With times p on one core and q spread over all m cores of its class, an operator holds its class for
at least min(p, q·m)/m of the time that all of them have; link operators share one link. Operators
that cannot start before h, and leave at least r to be done after each of them, need h + their work
+ r (Jackson's bound, with heads and tails of the longest paths). O(operators²) per class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.codesign.layer_problem import LayerProblem


def lower_bound_s(problem: LayerProblem) -> float:
    """No schedule is shorter: the longest path, and the work of any class between paths."""
    heads, tails = heads_s(problem), tails_s(problem)
    after = [t - o.least_s for t, o in zip(tails, problem.operators, strict=True)]
    shares = _shares_s(problem)
    return max(max(tails), *(_jackson_s(heads, after, share) for share in shares))


def heads_s(problem: LayerProblem) -> list[float]:
    """For each operator the least time from the beginning to its start."""
    heads = [0.0] * len(problem.operators)
    for v in problem.order:
        ends = (heads[u] + problem.operators[u].least_s for u in problem.predecessors[v])
        heads[v] = max(ends, default=0.0)
    return heads


def tails_s(problem: LayerProblem) -> list[float]:
    """For each operator the least time from its start to the end of everything after it."""
    tails = [0.0] * len(problem.operators)
    for v in reversed(problem.order):
        after = max((tails[w] for w in problem.successors[v]), default=0.0)
        tails[v] = problem.operators[v].least_s + after
    return tails


def work_s(problem: LayerProblem) -> tuple[float, ...]:
    """Tensor cores, vector cores, link: the least each is busy, shared evenly."""
    return tuple(map(sum, _shares_s(problem)))


def _shares_s(problem: LayerProblem) -> list[list[float]]:
    """For each class what each operator takes of its time at least."""
    shares = []
    for unit, count in enumerate((problem.num_tensor_cores, problem.num_vector_cores, 1)):
        own = []
        for operator, (single, spread) in zip(problem.operators, problem.demands, strict=True):
            busy = single[unit] * operator.single_s
            if operator.spread_s is not None:
                busy = min(busy, spread[unit] * operator.spread_s)
            own.append(busy / count if count else 0.0)
        shares.append(own)
    return shares


def _jackson_s(heads: list[float], after: list[float], share: list[float]) -> float:
    """The most that any head, the work that must follow it, and what follows that work need."""
    by_tail = sorted((v for v in range(len(share)) if share[v] > 0), key=lambda v: -after[v])
    best = 0.0
    for head in {heads[v] for v in by_tail}:
        work = 0.0
        for v in by_tail:
            if heads[v] >= head:
                work += share[v]
                best = max(best, head + work + after[v])
    return best
