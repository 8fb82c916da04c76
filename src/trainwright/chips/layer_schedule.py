"""The shortest schedule of a layer's operators on a chip's cores, with a bound and a gap.

A layer whose operators depend on each other in one order takes the sum of their shorter times, at
once and proved; any other is scheduled by lists, and searched in full where it is small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf, isfinite
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from trainwright.chips.design_times import ProductCache, Rates, kernel_times_s
from trainwright.chips.space import space_of
from trainwright.cluster import ChipTemplate, Surroundings
from trainwright.costing.tiled import ChipKernel
from trainwright.errors import Fault, refuse
from trainwright.model import Phase
from trainwright.plans.status import Status, relative_gap, status_at
from trainwright.profile.profile import find_cycles

if TYPE_CHECKING:
    from trainwright.chips.workload import Chain


# The operators of one layer on the cores of one chip: what is to be scheduled, and the rules
# -------------------------------------------------------------------------------------------
# A tensor operator runs on a tensor core, a vector operator on a vector core, a fused one on one of
# each, a link operator (a collective) on the link, and an operator of no class takes time alone.
# Spread over all cores of its class ("intra-operator") an operator takes another time and, by
# default, the whole chip. The problem is PHAZE's (Wang et al., ICML 2024), forward and backward
# separately, without its pairing of cores unless asked for.


Demand: TypeAlias = tuple[int, int, int]  # tensor cores, vector cores, links


class Unit(Enum):
    """What an operator runs on: how many tensor cores, vector cores and links."""

    TENSOR = (1, 0, 0)
    VECTOR = (0, 1, 0)
    FUSED = (1, 1, 0)
    LINK = (0, 0, 1)
    NONE = (0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreOperator:
    """Seconds on one core of its class, and spread over all of them, if it can be."""

    unit: Unit
    single_s: float
    spread_s: float | None = None

    @property
    def least_s(self) -> float:
        """The shorter of the two."""
        spread_s = self.spread_s
        return self.single_s if spread_s is None or self.single_s <= spread_s else spread_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProblem:
    """Operators, edges (source, target) between their indices, and cores.

    `exclusive`: a spread operator takes all tensor and vector cores, else only those of its class.
    `paired`: a fused operator takes the tensor and the vector core of one number. With
    `links_on_vector_cores` a link operator occupies a vector core, and no link.
    `order` is a topological order, the lowest index first where there is a choice.
    """

    operators: tuple[CoreOperator, ...]
    edges: tuple[tuple[int, int], ...]
    num_tensor_cores: int
    num_vector_cores: int
    exclusive: bool = True
    paired: bool = False
    links_on_vector_cores: bool = False
    order: tuple[int, ...] = field(init=False, compare=False)
    predecessors: tuple[tuple[int, ...], ...] = field(init=False, compare=False)
    successors: tuple[tuple[int, ...], ...] = field(init=False, compare=False)
    demands: tuple[tuple[Demand, Demand], ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        refuse(self._faults())
        before: list[list[int]] = [[] for _ in self.operators]
        after: list[list[int]] = [[] for _ in self.operators]
        for u, v in self.edges:
            before[v].append(u)
            after[u].append(v)
        object.__setattr__(self, "predecessors", tuple(map(tuple, before)))
        object.__setattr__(self, "successors", tuple(map(tuple, after)))
        object.__setattr__(self, "order", self._topological_order())
        every = range(len(self.operators))
        object.__setattr__(
            self, "demands", tuple((self._demand(v, False), self._demand(v, True)) for v in every)
        )

    def _faults(self) -> Iterator[Fault]:
        count = len(self.operators)
        if count == 0:
            yield Fault("operators", "must have at least 1 entry, got 0")
        for name in ("num_tensor_cores", "num_vector_cores"):
            if getattr(self, name) < 0:
                yield Fault(name, f"must be >= 0, got {getattr(self, name)}")
        for v, operator in enumerate(self.operators):
            for name, time_s in (("single_s", operator.single_s), ("spread_s", operator.spread_s)):
                if time_s is not None and not (isfinite(time_s) and time_s >= 0):
                    yield Fault(
                        f"operators[{v}].{name}", f"must be finite and >= 0, got {time_s!r}"
                    )
            if operator.spread_s is not None and operator.unit in (Unit.LINK, Unit.NONE):
                yield Fault(f"operators[{v}].spread_s", "must be absent without cores to spread on")
            needed = self._demand(v, False)
            if needed[0] > self.num_tensor_cores or needed[1] > self.num_vector_cores:
                yield Fault(
                    f"operators[{v}].unit", f"must have its cores, got {operator.unit.name}"
                )
        if any(not (0 <= u < count and 0 <= v < count) for u, v in self.edges):
            yield Fault("edges", "must join operators")
        elif find_cycles(count, self.edges):
            yield Fault("edges", "must be acyclic")

    def _topological_order(self) -> tuple[int, ...]:
        waiting = [len(before) for before in self.predecessors]
        ready = sorted((v for v, count in enumerate(waiting) if count == 0), reverse=True)
        order = []
        while ready:
            order.append(u := ready.pop())
            fresh = []
            for v in self.successors[u]:
                waiting[v] -= 1
                if waiting[v] == 0:
                    fresh.append(v)
            if fresh:
                ready = sorted((*ready, *fresh), reverse=True)
        return tuple(order)

    def demand_of(self, v: int, *, spread: bool) -> Demand:
        """Tensor cores, vector cores and links that operator `v` occupies while it runs.

        Nothing where that takes no time.
        """
        return self.demands[v][spread]

    def _demand(self, v: int, spread: bool) -> Demand:
        operator = self.operators[v]
        tensor, vector, link = operator.unit.value
        if (operator.spread_s if spread else operator.single_s) == 0:
            return 0, 0, 0
        if self.links_on_vector_cores:
            vector, link = vector + link, 0
        if not spread:
            return tensor, vector, link
        if self.exclusive:
            return self.num_tensor_cores, self.num_vector_cores, 0
        return tensor * self.num_tensor_cores, vector * self.num_vector_cores, 0

    def duration_s(self, v: int, *, spread: bool) -> float:
        """Seconds of operator `v`; infinite spread where it cannot be."""
        operator = self.operators[v]
        if not spread:
            return operator.single_s
        return inf if operator.spread_s is None else operator.spread_s

    @property
    def is_chain(self) -> bool:
        """Whether the dependencies leave one order only."""
        after, order = self.successors, self.order
        return all(order[k + 1] in after[order[k]] for k in range(len(order) - 1))


# Lower bounds on the time of a layer: its longest path, and the work of each class of cores
# ------------------------------------------------------------------------------------------
# With times p on one core and q spread over all m cores of its class, an operator holds its class
# for at least min(p, q·m)/m of the time that all of them have; link operators share one link.
# Operators that cannot start before h, and leave at least r to be done after each of them, need h +
# their work + r (Jackson's bound, with heads and tails of the longest paths). O(operators²) per
# class.


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


# Operators onto cores in a given order: each as early as its inputs and its cores allow
# --------------------------------------------------------------------------------------
# An operator takes the cores of its class that have been free longest. If the operators of a
# schedule are replayed in the order of their starts, none starts later than there, so every
# schedule that cannot be shortened is some order with some modes: searching orders loses nothing.

Cores: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # tensor, vector; by number


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One operator's start and end in seconds, whether it is spread, and its cores by number."""

    start_s: float
    end_s: float
    spread: bool
    tensor_cores: tuple[int, ...] = ()
    vector_cores: tuple[int, ...] = ()


class Chip:
    """When each core and the link are free again; more cores than operators are never needed."""

    __slots__ = ("_link_s", "_problem", "_tensor_s", "_vector_s")

    def __init__(self, problem: LayerProblem) -> None:
        count = len(problem.operators)
        self._problem = problem
        self._tensor_s = [0.0] * min(problem.num_tensor_cores, count)
        self._vector_s = [0.0] * min(problem.num_vector_cores, count)
        self._link_s = 0.0

    def copy(self) -> Chip:
        """The same state, to be changed on its own."""
        made = Chip.__new__(Chip)
        made._problem = self._problem
        made._tensor_s, made._vector_s = self._tensor_s.copy(), self._vector_s.copy()
        made._link_s = self._link_s
        return made

    def choose(self, v: int, *, spread: bool) -> Cores:
        """The cores that operator `v` would take: those that are free first."""
        problem = self._problem
        tensor, vector, _ = problem.demand_of(v, spread=spread)
        if spread:
            return tuple(range(tensor)), tuple(range(vector))
        if tensor and vector and problem.paired:
            pairs = list(map(max, zip(self._tensor_s, self._vector_s, strict=False)))
            core = pairs.index(min(pairs))
            return (core,), (core,)
        return (
            (self._tensor_s.index(min(self._tensor_s)),) if tensor else (),
            (self._vector_s.index(min(self._vector_s)),) if vector else (),
        )

    def choices(self, v: int, *, spread: bool) -> list[Cores]:
        """All cores worth a try: any that is free first will do, unless cores come in pairs."""
        tensor, vector, _ = self._problem.demand_of(v, spread=spread)
        if spread or not self._problem.paired or not (tensor or vector):
            return [self.choose(v, spread=spread)]
        if tensor and vector:
            return [((c,), (c,)) for c in range(min(len(self._tensor_s), len(self._vector_s)))]
        if tensor:
            return [((c,), ()) for c in range(len(self._tensor_s))]
        return [((), (c,)) for c in range(len(self._vector_s))]

    def free_s(self, v: int, cores: Cores, *, spread: bool) -> float:
        """When these cores, and the link if operator `v` needs it, are all free."""
        tensor_s, vector_s = self._tensor_s, self._vector_s
        if spread:
            times = [*(tensor_s if cores[0] else ()), *(vector_s if cores[1] else ())]
            return max(times, default=0.0)
        free_s = self._link_s if self._problem.demand_of(v, spread=False)[2] else 0.0
        for core in cores[0]:
            free_s = max(free_s, tensor_s[core])
        for core in cores[1]:
            free_s = max(free_s, vector_s[core])
        return free_s

    def run(self, v: int, ready_s: float, cores: Cores, *, spread: bool) -> Run:
        """Start operator `v` on these cores as early as possible after `ready_s`."""
        problem = self._problem
        start_s = max(ready_s, self.free_s(v, cores, spread=spread))
        end_s = start_s + problem.duration_s(v, spread=spread)
        _occupy(self._tensor_s, cores[0], end_s)
        _occupy(self._vector_s, cores[1], end_s)
        if problem.demand_of(v, spread=spread)[2]:
            self._link_s = end_s
        return Run(
            start_s=start_s,
            end_s=end_s,
            spread=spread,
            tensor_cores=cores[0],
            vector_cores=cores[1],
        )


def _occupy(free_s: list[float], cores: Sequence[int], end_s: float) -> None:
    for core in cores[: len(free_s)]:
        free_s[core] = end_s


def replay(
    problem: LayerProblem,
    order: Sequence[int],
    spread: Sequence[bool],
    cores: Sequence[Cores] | None = None,
) -> tuple[Run, ...]:
    """Run all operators in a topological `order`; `spread`, and `cores` if given, by operator."""
    chip = Chip(problem)
    runs: dict[int, Run] = {}
    for v in order:
        ready_s = max((runs[u].end_s for u in problem.predecessors[v]), default=0.0)
        own = cores[v] if cores else chip.choose(v, spread=spread[v])
        runs[v] = chip.run(v, ready_s, own, spread=spread[v])
    return tuple(runs[v] for v in range(len(problem.operators)))


# List scheduling of a layer's operators, and an exhaustive search of small layers
# --------------------------------------------------------------------------------
# Operators are taken by upward rank (the least time to the end of everything after them; Topcuoglu
# et al., HEFT, IEEE TPDS 2002) or by the earliest possible start, each on one core or spread,
# whichever ends first and keeps within a rule of efficiency. All combinations of rules are tried,
# the best is kept, and then improved by moving operators and changing modes, a fixed number of
# times. Layers of up to seven operators are searched in full over orders and modes, which is a
# proof.

SMALL: Final = 7
_NODES: Final = 20_000  # of the search in full, which proves nothing beyond
_MOVES: Final = 25  # of a list schedule that is improved
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


# The shortest schedule of a layer's operators on a chip's cores, with a bound and a gap
# --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSchedule:
    """When and where each operator runs; `lower_bound_s` holds for every schedule.

    `method` is "chain", "list", "search" or "solver".
    """

    runs: tuple[Run, ...]
    makespan_s: float
    lower_bound_s: float
    method: str

    @property
    def gap(self) -> float:
        """(T − bound) / T, as a fraction."""
        return relative_gap(self.makespan_s, self.lower_bound_s)

    @property
    def status(self) -> Status:
        """`optimal` where the bound is met, else `gap`."""
        return status_at(self.gap)


def schedule_layer(problem: LayerProblem, *, moves: int = 25) -> LayerSchedule:
    """Schedule without extra packages; `moves` bounds how many improvements are tried.

    Never an error: what is not proved has status `gap`. Chains take microseconds, 60 operators
    about ten milliseconds.
    """
    if problem.is_chain:
        return _chain(problem)
    bound_s = lower_bound_s(problem)
    found, method = list_schedule(problem, moves=moves), "list"
    if len(problem.operators) <= SMALL and found.makespan_s > bound_s:
        found, method = search_small(problem, found, bound_s), "search"
    return made(found, bound_s, method)


def made(found: Found, bound_s: float, method: str) -> LayerSchedule:
    """A schedule with its bound, which a proof closes."""
    proved = found.proved or found.makespan_s <= bound_s
    return LayerSchedule(
        runs=found.runs,
        makespan_s=found.makespan_s,
        lower_bound_s=found.makespan_s if proved else bound_s,
        method=method,
    )


def _chain(problem: LayerProblem) -> LayerSchedule:
    """One after another, each in its shorter time: no two can ever run at once."""
    now_s, runs = 0.0, [_NOTHING] * len(problem.operators)
    every = (range(problem.num_tensor_cores), range(problem.num_vector_cores))
    for v in problem.order:
        operator = problem.operators[v]
        spread = operator.spread_s is not None and operator.spread_s < operator.single_s
        start_s, now_s = now_s, now_s + operator.least_s
        tensor, vector, _ = problem.demand_of(v, spread=spread)
        runs[v] = Run(
            start_s=start_s,
            end_s=now_s,
            spread=spread,
            tensor_cores=tuple(every[0][:tensor]),
            vector_cores=tuple(every[1][:vector]),
        )
    return LayerSchedule(runs=tuple(runs), makespan_s=now_s, lower_bound_s=now_s, method="chain")


_NOTHING = Run(start_s=0.0, end_s=0.0, spread=False)


# The kernels of a layer scheduled on one design's cores: side by side, or spread over all
# ----------------------------------------------------------------------------------------
# The search charges a layer the sum of its kernels, each spread over all cores of its class. Here
# the same estimator also prices every kernel on a single core, and the schedule chooses. Forward is
# taken in the order of the layer's operators, a chain. Backward is not one: the gradients of an
# operator's weights and of its input become ready together, and only the latter are waited for, so
# weight gradients may run beside the rest. Collectives use the link. All kernels share one memory,
# so a schedule takes at least as long as their traffic at full bandwidth.


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSchedule:
    """One direction of a layer on a design; `names` has an entry per run of the schedule.

    `sequential_s` is what the search charges, `traffic_s` the memory's least time for all bytes.
    """

    names: tuple[str, ...]
    problem: LayerProblem
    schedule: LayerSchedule
    sequential_s: float
    traffic_s: float

    @property
    def seconds(self) -> float:
        """The schedule's length, or that of the traffic if it is longer."""
        return max(self.schedule.makespan_s, self.traffic_s)

    @property
    def lower_bound_s(self) -> float:
        """No schedule of these kernels is shorter."""
        return max(self.schedule.lower_bound_s, self.traffic_s)

    @property
    def gap(self) -> float:
        """(T − bound) / T, as a fraction."""
        return relative_gap(self.seconds, self.lower_bound_s)

    @property
    def status(self) -> Status:
        """`optimal` where the bound is met, else `gap`."""
        return status_at(self.gap)


def schedule_forward(
    chip: ChipTemplate, surroundings: Surroundings, chain: Chain, layer_class: int
) -> CoreSchedule:
    """The forward pass of a layer class: operators in order, then its collectives."""
    kernels = [k for k in chain.kernels[layer_class] if k.phase is Phase.FORWARD]
    edges = [(v, v + 1) for v in range(len(kernels))]
    link_s = float(chain.collective_s(surroundings)[Phase.FORWARD][layer_class])
    return _scheduled(chip, surroundings, chain, kernels, edges, [("collectives", link_s)])


def schedule_backward(
    chip: ChipTemplate, surroundings: Surroundings, chain: Chain, layer_class: int
) -> CoreSchedule:
    """The backward pass of a layer class, without recomputation.

    Gradients of inputs run against the order of operators; what an operator's weights need is there
    when its own input gradient may start.
    """
    kernels = [k for k in chain.kernels[layer_class] if k.phase is not Phase.FORWARD]
    kernels.sort(key=lambda k: k.phase is Phase.WEIGHT_GRAD)
    names = list(dict.fromkeys(k.operator for k in chain.kernels[layer_class]))
    index = {(k.operator, k.phase): v for v, k in enumerate(kernels)}
    edges, arrives = [], None
    for name in reversed(names):
        own = [
            index[name, phase]
            for phase in (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)
            if (name, phase) in index
        ]
        if arrives is not None:
            edges += [(arrives, v) for v in own]
        arrives = index.get((name, Phase.INPUT_GRAD), arrives)
    links = chain.collective_s(surroundings)
    times = [(p, float(links[p][layer_class])) for p in (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)]
    if arrives is not None:
        edges.append((arrives, len(kernels)))
    exchanged = [(f"collectives of {phase.value}", time_s) for phase, time_s in times]
    return _scheduled(chip, surroundings, chain, kernels, edges, exchanged)


def _scheduled(
    chip: ChipTemplate,
    surroundings: Surroundings,
    chain: Chain,
    kernels: list[ChipKernel],
    edges: Iterable[tuple[int, int]],
    exchanged: list[tuple[str, float]],
) -> CoreSchedule:
    """`exchanged` follows the kernels: names and seconds of what uses the link."""
    space = space_of(chip, replace(chip, num_tc=1, num_vc=1))
    table = ProductCache(space, chain, surroundings).table(np.arange(2))
    rates = Rates.of(space, surroundings)
    operators, sequential_s = [], 0.0
    for kernel in kernels:
        spread_s, single_s = kernel_times_s(kernel, table, rates, surroundings).tolist()
        operators.append(CoreOperator(unit=_unit(kernel), single_s=single_s, spread_s=spread_s))
        sequential_s += spread_s
    operators += [CoreOperator(unit=Unit.LINK, single_s=time_s) for _, time_s in exchanged]
    problem = LayerProblem(
        operators=tuple(operators),
        edges=tuple(edges),
        num_tensor_cores=chip.num_tc,
        num_vector_cores=chip.num_vc,
    )
    moved = sum(kernel.compulsory_bytes(chain.element_bytes) for kernel in kernels)
    return CoreSchedule(
        names=(*(f"{k.operator} {k.phase.value}" for k in kernels), *(n for n, _ in exchanged)),
        problem=problem,
        schedule=schedule_layer(problem),
        sequential_s=sequential_s + sum(time_s for _, time_s in exchanged),
        traffic_s=moved / surroundings.memory_bandwidth_bytes_per_s,
    )


def _unit(kernel: ChipKernel) -> Unit:
    if kernel.is_fused:
        return Unit.FUSED
    return Unit.TENSOR if kernel.products else Unit.VECTOR
