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
from math import inf, isfinite
from typing import TypeAlias

from trainwright.errors import Fault, InvalidInput
from trainwright.profile.structure import find_cycles

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
