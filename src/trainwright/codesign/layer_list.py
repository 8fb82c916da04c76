"""List scheduling of a layer's operators, and an exhaustive search of small layers.

Operators are taken by upward rank (the least time to the end of everything after them; Topcuoglu
et al., HEFT, IEEE TPDS 2002) or by the earliest possible start, each on one core or spread,
whichever ends first and keeps within a rule of efficiency. All combinations of rules are tried, the
best is kept, and then improved by moving operators and changing modes, a fixed number of times.
Layers of up to seven operators are searched in full over orders and modes, which is a proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from trainwright.codesign.layer_bounds import tails_s
from trainwright.codesign.layer_replay import Chip, Cores, Run, replay

if TYPE_CHECKING:
    from trainwright.codesign.layer_problem import LayerProblem

SMALL: Final = 7
_NODES: Final = 20_000
_MOVES: Final = 25
# How much more core time a spread operator may take than on one core; it would idle otherwise.
_WASTE: Final = (1.25, inf)
# How much longer all that is ready may take spread, one after another, than side by side.
_CROWD: Final = (1.0, inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Runs by operator, their makespan in seconds, and whether no schedule is shorter."""

    runs: tuple[Run, ...]
    makespan_s: float
    proved: bool = False


def makespan_s(runs: Sequence[Run]) -> float:
    """When the last operator ends."""
    return max(run.end_s for run in runs)


def list_schedule(problem: LayerProblem, *, moves: int = _MOVES) -> Found:
    """The best of all rules, improved by at most `moves` changes tried."""
    best = min(_constructed(problem), key=makespan_s)
    return _improved(problem, best, moves)


def _constructed(problem: LayerProblem) -> Iterator[tuple[Run, ...]]:
    ranks = tails_s(problem)
    for waste in _WASTE:
        allowed = [_may_spread(problem, v, waste) for v in range(len(problem.operators))]
        for crowd in _CROWD:
            for by_start in (False, True):
                yield _construct(problem, ranks, allowed, crowd, by_start=by_start)


def _may_spread(problem: LayerProblem, v: int, waste: float) -> bool:
    operator = problem.operators[v]
    if operator.spread_s is None:
        return False
    tensor, vector, _ = operator.unit.value
    cores = max(tensor * problem.num_tensor_cores, vector * problem.num_vector_cores)
    return operator.spread_s * cores <= waste * operator.single_s


def _construct(
    problem: LayerProblem,
    ranks: Sequence[float],
    allowed: Sequence[bool],
    crowd: float,
    *,
    by_start: bool,
) -> tuple[Run, ...]:
    """Take ready operators by rank, or by earliest start and then rank."""
    chip = Chip(problem)
    waiting = [len(before) for before in problem.predecessors]
    ready = {v: 0.0 for v, count in enumerate(waiting) if count == 0}
    runs: dict[int, Run] = {}
    while ready:
        if by_start:
            v = min(
                ready,
                key=lambda w: (_start_s(chip, w, ready[w], spread=False), -ranks[w], w),
            )
        else:
            v = max(ready, key=lambda w: (ranks[w], -w))
        alone = allowed[v] and _better_alone(problem, ready, v, crowd)
        ready_s = ready.pop(v)
        spread = alone and _ends_s(chip, problem, v, ready_s, spread=True) < _ends_s(
            chip, problem, v, ready_s, spread=False
        )
        runs[v] = run = chip.run(v, ready_s, chip.choose(v, spread=spread), spread=spread)
        for w in problem.successors[v]:
            waiting[w] -= 1
            if waiting[w] == 0:
                ready[w] = max(run.end_s, *(runs[u].end_s for u in problem.predecessors[w]))
    return tuple(runs[v] for v in range(len(problem.operators)))


def _better_alone(problem: LayerProblem, ready: Iterable[int], v: int, crowd: float) -> bool:
    """Whether what is ready for these cores is done sooner one after another, spread."""
    if crowd == inf:
        return True
    unit = 0 if problem.demands[v][0][0] else 1
    cores = problem.num_vector_cores if unit else problem.num_tensor_cores
    work_s = longest_s = spread_s = 0.0
    for w in ready:
        if problem.demands[w][0][unit]:
            operator = problem.operators[w]
            work_s += operator.single_s
            longest_s = max(longest_s, operator.single_s)
            spread_s += operator.least_s
    return spread_s <= crowd * max(longest_s, work_s / cores)


def _start_s(chip: Chip, v: int, ready_s: float, *, spread: bool) -> float:
    return max(ready_s, chip.free_s(v, chip.choose(v, spread=spread), spread=spread))


def _ends_s(chip: Chip, problem: LayerProblem, v: int, ready_s: float, *, spread: bool) -> float:
    return _start_s(chip, v, ready_s, spread=spread) + problem.duration_s(v, spread=spread)


def _improved(problem: LayerProblem, runs: tuple[Run, ...], moves: int) -> Found:
    """Change the mode of operators that end last on their way, or bring them forward."""
    best, best_s = runs, makespan_s(runs)
    tried: set[tuple[int, bool]] = set()
    for _ in range(moves):
        change = next((c for c in _changes(problem, best) if c not in tried), None)
        if change is None:
            break
        tried.add(change)
        made = _changed(problem, best, *change)
        if (made_s := makespan_s(made)) < best_s:
            best, best_s = made, made_s
            tried.clear()
    return Found(runs=best, makespan_s=best_s)


def _changes(problem: LayerProblem, runs: Sequence[Run]) -> Iterator[tuple[int, bool]]:
    """Operators with nothing between them and the end first; (operator, whether its mode flips)."""
    tails = [0.0] * len(runs)
    for v in reversed(problem.order):
        after = max((tails[w] for w in problem.successors[v]), default=0.0)
        tails[v] = after + runs[v].end_s - runs[v].start_s
    slack = sorted(range(len(runs)), key=lambda v: (-(runs[v].start_s + tails[v]), v))
    for v in slack:
        if problem.operators[v].spread_s is not None:
            yield v, True
        yield v, False


def _changed(problem: LayerProblem, runs: Sequence[Run], v: int, flips: bool) -> tuple[Run, ...]:
    """Replay by start, with one operator flipped, or taken as soon as its inputs are there."""
    spread = [run.spread for run in runs]
    place = {w: k for k, w in enumerate(problem.order)}
    keys = [(run.start_s, place[w]) for w, run in enumerate(runs)]
    if flips:
        spread[v] = not spread[v]
    else:
        ready_s = max((runs[u].end_s for u in problem.predecessors[v]), default=-1.0)
        keys[v] = (ready_s, place[v])
    order = sorted(range(len(runs)), key=keys.__getitem__)
    return replay(problem, _repaired(problem, order), spread)


def _repaired(problem: LayerProblem, order: Sequence[int]) -> list[int]:
    """The order with inputs moved in front of what reads them; zero times can tie."""
    done: set[int] = set()
    sorted_out: list[int] = []
    for v in order:
        stack = [v]
        while stack:
            u = stack[-1]
            missing = [w for w in problem.predecessors[u] if w not in done]
            if u in done:
                stack.pop()
            elif missing:
                stack.extend(missing)
            else:
                stack.pop()
                done.add(u)
                sorted_out.append(u)
    return sorted_out


def search_small(problem: LayerProblem, best: Found, bound_s: float) -> Found:
    """All orders by start and all modes, pruned by `best`; a proof unless it grows too large."""
    search = _Search(problem, best, bound_s)
    search.extend(Chip(problem), {}, 0.0)
    proved = search.nodes <= _NODES
    return Found(runs=search.runs, makespan_s=search.best_s, proved=proved)


class _Search:
    """Depth first over the next operator to start; starts never decrease along a branch."""

    def __init__(self, problem: LayerProblem, best: Found, bound_s: float) -> None:
        self.problem, self.runs, self.best_s = problem, best.runs, best.makespan_s
        self.nodes = 0
        self._bound_s = bound_s
        self._tails_s = tails_s(problem)

    def extend(self, chip: Chip, runs: dict[int, Run], last_s: float) -> None:
        problem, self.nodes = self.problem, self.nodes + 1
        if self.nodes > _NODES or self.best_s <= self._bound_s:
            return
        if len(runs) == len(problem.operators):
            done = tuple(runs[v] for v in range(len(runs)))
            if makespan_s(done) < self.best_s:
                self.runs, self.best_s = done, makespan_s(done)
            return
        for v in problem.order:
            before = problem.predecessors[v]
            if v in runs or any(u not in runs for u in before):
                continue
            ready_s = max((runs[u].end_s for u in before), default=0.0)
            for spread in self._modes(v):
                for cores in chip.choices(v, spread=spread):
                    self._try(chip, runs, last_s, v, ready_s, cores, spread=spread)

    def _try(
        self,
        chip: Chip,
        runs: dict[int, Run],
        last_s: float,
        v: int,
        ready_s: float,
        cores: Cores,
        *,
        spread: bool,
    ) -> None:
        after_s = self._tails_s[v] - self.problem.operators[v].least_s
        start_s = max(ready_s, chip.free_s(v, cores, spread=spread))
        end_s = start_s + self.problem.duration_s(v, spread=spread)
        if start_s >= last_s and end_s + after_s < self.best_s:
            made = chip.copy()
            run = made.run(v, ready_s, cores, spread=spread)
            self.extend(made, {**runs, v: run}, start_s)

    def _modes(self, v: int) -> tuple[bool, ...]:
        operator = self.problem.operators[v]
        return (False,) if operator.spread_s is None else (True, False)
