"""A placement problem: layers with times and sizes per tensor width, and identical devices.

The input of PHAZE's placement program (Wang et al., "PHAZE: Hardware Architecture and Device
Placement Search", ICML 2024): for each tensor width t one table of the same layers, each with one
time and one size; there are no options to choose from. A stage takes t devices if one of its layers
is split over tensor ranks, else one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import Fault, InvalidInput, refuse
from trainwright.profile.profile import Edge, Setting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats


class Optimizer(StrEnum):
    """What keeps state beside parameters and gradients."""

    SGD = "SGD"
    ADAM = "Adam"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WidthTable:
    """All layers at one tensor width, in topological order; arrays have shape [layers].

    Sizes are bytes of one device, times seconds of one microbatch. `is_split` marks the layers that
    need all tensor ranks. `edges` join indices, `bytes` per microbatch; a pair may have several.
    """

    tensor_parallel: int
    layer_ids: tuple[int, ...]
    forward_s: Floats
    backward_s: Floats
    parameter_bytes: Floats
    activation_bytes: Floats
    is_split: NDArray[np.bool_]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        refuse(self._faults())
        for field in fields(self):
            if isinstance(array := getattr(self, field.name), np.ndarray):
                array.flags.writeable = False

    def _faults(self) -> Iterator[Fault]:
        count = len(self.layer_ids)
        if self.tensor_parallel < 1:
            yield Fault("tensor_parallel", f"must be >= 1, got {self.tensor_parallel}")
        if count == 0:
            yield Fault("layer_ids", "must have at least 1 entry, got 0")
        for name in ("forward_s", "backward_s", "parameter_bytes", "activation_bytes", "is_split"):
            array = getattr(self, name)
            if array.shape != (count,):
                yield Fault(name, f"must have shape ({count},), got {array.shape}")
            elif not (np.isfinite(array) & (array >= 0)).all():
                yield Fault(name, "must be finite and >= 0")
        if any(not 0 <= edge.source < edge.target < count for edge in self.edges):
            yield Fault("edges", "must lead from earlier to later layers")

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layer_ids)

    @property
    def branches(self) -> bool:
        """Whether some layer is not joined to the next, so that several orders are possible."""
        joined = {edge.source for edge in self.edges if edge.target == edge.source + 1}
        return len(joined) < self.num_layers - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedStrategy:
    """A strategy stated beside the problem, to be priced: p stages, t and d everywhere.

    `num_layers` is the number of layers that it deals out evenly over the stages.
    """

    num_stages: int
    tensor_parallel: int
    data_parallel: int
    num_layers: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacementCase:
    """Tables by ascending width, the machine and the batch, and what may be kept in memory.

    `recompute` says that activations may be computed again, `optimizer` what state is kept.
    """

    widths: tuple[WidthTable, ...]
    setting: Setting
    recompute: bool = False
    optimizer: Optimizer = Optimizer.SGD
    fixed: FixedStrategy | None = None

    def __post_init__(self) -> None:
        degrees = [table.tensor_parallel for table in self.widths]
        if not degrees:
            raise InvalidInput.of("widths", "must have at least 1 entry, got 0")
        if degrees != sorted(set(degrees)):
            raise InvalidInput.of("widths", "must have distinct tensor widths, ascending")
        if len({frozenset(table.layer_ids) for table in self.widths}) > 1:
            raise InvalidInput.of("widths", "must list the same layers at every width")

    def at_width(self, tensor_parallel: int) -> WidthTable | None:
        """The table of a width, if there is one."""
        tables = (table for table in self.widths if table.tensor_parallel == tensor_parallel)
        return next(tables, None)


def topological_order(count: int, pairs: list[tuple[int, int]]) -> list[int]:
    """Indices so that every pair of an acyclic graph leads forward, the lowest first if free."""
    waiting, following = [0] * count, [list[int]() for _ in range(count)]
    for u, v in pairs:
        waiting[v] += 1
        following[u].append(v)
    ready = [v for v in range(count) if waiting[v] == 0]
    heapify(ready)
    order = []
    while ready:
        order.append(u := heappop(ready))
        for v in following[u]:
            waiting[v] -= 1
            if waiting[v] == 0:
                heappush(ready, v)
    assert len(order) == count, "the graph must be acyclic"
    return order
