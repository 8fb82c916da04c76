"""Operators onto cores in a given order: each as early as its inputs and its cores allow.

An operator takes the cores of its class that have been free longest. If the operators of a schedule
are replayed in the order of their starts, none starts later than there, so every schedule that
cannot be shortened is some order with some modes: searching orders loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from trainwright.codesign.layer_problem import LayerProblem

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
