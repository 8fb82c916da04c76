"""The operators of one layer on the cores of one chip: what is to be scheduled, and the rules.

A tensor operator runs on a tensor core, a vector operator on a vector core, a fused one on one of
each, a link operator (a collective) on the link, and an operator of no class takes time alone.
Spread over all cores of its class ("intra-operator") an operator takes another time and, by
default, the whole chip. The problem is PHAZE's (Wang et al., ICML 2024), forward and backward
separately, without its pairing of cores unless asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from math import inf, isfinite
from typing import TYPE_CHECKING, Final, TypeAlias

from trainwright.errors import Fault, InvalidInput
from trainwright.profile.structure import find_cycles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.chips.layer_schedule import Run

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
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)
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


# An independent check of a layer's schedule: every rule of the problem, event by event
# -------------------------------------------------------------------------------------

_ROUNDING: Final = 1e-12


def find_layer_faults(problem: LayerProblem, runs: Sequence[Run]) -> tuple[Fault, ...]:
    """Every rule that the runs break: times, dependencies, which and how many cores, the link."""
    if len(runs) != len(problem.operators):
        return (Fault("runs", f"must have {len(problem.operators)} entries, got {len(runs)}"),)
    return (*_time_faults(problem, runs), *_core_faults(problem, runs), *_clashes(problem, runs))


def _time_faults(problem: LayerProblem, runs: Sequence[Run]) -> Iterator[Fault]:
    for v, run in enumerate(runs):
        wanted_s = problem.duration_s(v, spread=run.spread)
        if run.start_s < 0 or abs(run.end_s - run.start_s - wanted_s) > _ROUNDING * run.end_s:
            yield Fault(f"runs[{v}]", f"must last {wanted_s!r} s from 0 on")
    for u, v in problem.edges:
        if runs[v].start_s < runs[u].end_s:
            yield Fault(f"runs[{v}].start_s", f"must be at or after the end of operator {u}")


def _core_faults(problem: LayerProblem, runs: Sequence[Run]) -> Iterator[Fault]:
    for v, run in enumerate(runs):
        tensor, vector, _ = problem.demand_of(v, spread=run.spread)
        cores = (run.tensor_cores, run.vector_cores)
        limits = (problem.num_tensor_cores, problem.num_vector_cores)
        for own, wanted, limit in zip(cores, (tensor, vector), limits, strict=True):
            sound = len(set(own)) == len(own) == wanted and all(0 <= c < limit for c in own)
            if not sound:
                yield Fault(f"runs[{v}]", f"must take {wanted} different cores of {limit}")
        fused = problem.paired and not run.spread and tensor == vector == 1
        if fused and run.tensor_cores != run.vector_cores:
            yield Fault(f"runs[{v}]", "must take cores of one number")


def _clashes(problem: LayerProblem, runs: Sequence[Run]) -> Iterator[Fault]:
    """Two operators on one core, or on the link, at one time."""
    busy: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
    for v, run in enumerate(runs):
        link = problem.demand_of(v, spread=run.spread)[2]
        taken = [("tensor", core) for core in run.tensor_cores]
        taken += [("vector", core) for core in run.vector_cores]
        taken += [("link", 0)] * link
        for place in taken:
            if run.end_s > run.start_s:
                busy.setdefault(place, []).append((run.start_s, run.end_s, v))
    for (kind, core), spans in busy.items():
        spans.sort()
        for (_, end_s, u), (start_s, _, v) in pairwise(spans):
            if start_s < end_s:
                yield Fault(f"runs[{v}]", f"must not share {kind} {core} with operator {u}")


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
