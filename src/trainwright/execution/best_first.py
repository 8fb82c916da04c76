"""Best-first search: of all nodes that wait, the one of the least bound is opened next.

A node is a part of a space with a bound that no answer in it beats. `BestFirst` keeps nodes by
their bounds; `opened` takes them in turn until the least bound is no better than what is known by
then, or the search is stopped: then `least` is a bound on all that was not opened. Who opens a node
adds its parts, or the node itself with a sharper bound.

Equal bounds are taken in the order in which they were added, unless they come with a `tie`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

Node = TypeVar("Node")


def _never() -> bool:
    return False


class BestFirst(Generic[Node]):
    """Nodes that wait, each with its bound, in any unit. Adding and taking cost O(log n)."""

    __slots__ = ("_added", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, Any, Node]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[tuple[float, Node]]:
        """What waits, with its bounds, in no order."""
        return ((bound, node) for bound, _, node in self._heap)

    @property
    def least(self) -> float:
        """The least bound; infinite where nothing waits."""
        return self._heap[0][0] if self._heap else math.inf

    @property
    def first(self) -> Node:
        """The node of the least bound; raises `IndexError` where nothing waits."""
        return self._heap[0][2]

    def add(self, bound: float, node: Node, *, tie: Any = None) -> None:
        """A node waits; among equal bounds the least `tie` goes first, the first added if absent.

        Ties of one search are all given, and all different and comparable, or all absent.
        """
        self._added += 1
        heapq.heappush(self._heap, (bound, self._added if tie is None else tie, node))

    def take(self) -> tuple[float, Node]:
        """The least bound and its node, which waits no more."""
        bound, _, node = heapq.heappop(self._heap)
        return bound, node

    def sharpen_first(self, bound: float, node: Node) -> None:
        """Another node in place of the first, which keeps its place among equal bounds."""
        heapq.heapreplace(self._heap, (bound, self._heap[0][1], node))

    def opened(
        self,
        *,
        below: Callable[[], float] | None = None,
        stopped: Callable[[], bool] = _never,
    ) -> Iterator[tuple[float, Node]]:
        """The nodes in the order of their bounds, each taken as it comes, with its bound.

        It ends where none waits, the least bound is not `below()` some limit (asked anew each
        time), or the search is `stopped()` (asked before a node is taken).
        """
        while self._heap and (below is None or self._heap[0][0] < below()) and not stopped():
            yield self.take()

    def soonest(
        self, count: int, among: Callable[[Node], bool] | None = None
    ) -> list[tuple[float, Node]]:
        """The nodes of the least bounds, least first, of all or of those `among`; none is taken."""
        some = self._heap if among is None else filter(lambda entry: among(entry[2]), self._heap)
        return [(bound, node) for bound, _, node in heapq.nsmallest(count, some)]

    def revise(self, revised: Callable[[float, Node], float | None]) -> None:
        """Every node gets the bound that `revised` returns; it waits no more where that is None."""
        entries = ((revised(bound, node), tie, node) for bound, tie, node in self._heap)
        self._heap = [(bound, tie, node) for bound, tie, node in entries if bound is not None]
        heapq.heapify(self._heap)
