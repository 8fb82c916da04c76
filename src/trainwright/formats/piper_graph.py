"""The graph of a Piper profile: ids of `nodes`, `edges`, and who neighbours whom.

Parallel edges merge into one, in the place of the first, with the sum of their bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainwright.formats.json_path import show_value
from trainwright.profile.structure import find_cycles

if TYPE_CHECKING:
    from trainwright.formats.json_fields import FieldReader


@dataclass(slots=True)
class PiperGraph:
    """What the edges say, as far as they are sound. Ids are kept as text too: sync keys are text.

    `ids[i]` is the id of nodes[i], `None` where it has no valid id of its own. `predecessors[i]`
    and `successors[i]` list ids of neighbours as text, in merged-edge order; they are `None` as a
    whole where the edges could not be read. `dangling` has the ids, as text, of edges of which an
    end is no node; `broken_sources` and `broken_targets` have the ends of these that are nodes.
    """

    ids: list[int | None]
    index_of: dict[int, int]
    pairs: list[tuple[int, int]] = field(default_factory=list)
    bytes: list[float] = field(default_factory=list)
    predecessors: list[list[str]] | None = None
    successors: list[list[str]] | None = None
    dangling: set[tuple[str, str]] = field(default_factory=set)
    broken_sources: set[int] = field(default_factory=set)
    broken_targets: set[int] = field(default_factory=set)

    def cycles(self) -> list[str]:
        """One fault text per strongly connected component with a cycle."""
        cycles = find_cycles(len(self.ids), self.pairs)
        named = (" -> ".join(str(self.ids[v]) for v in (*cycle, cycle[0])) for cycle in cycles)
        return [f"must be acyclic, got the cycle {names}" for names in named]


class LostEdges:
    """Pairs of layers that a broken edge probably joined.

    An edge that names one end wrongly leaves two layers whose sync tables still name each other.
    Reporting those entries, once per config, would bury the one fault that matters.
    """

    def __init__(self, graph: PiperGraph, nodes: list[Any]) -> None:
        self._graph = graph
        self._nodes = nodes
        self._index_of = {str(node_id): index for node_id, index in graph.index_of.items()}
        self._named: dict[tuple[int, str], set[str]] = {}

    def explain(self, source: str, target: str) -> bool:
        """Whether a dangling edge names both ids, or they name each other and one lost an edge."""
        if (source, target) in self._graph.dangling:
            return True
        u, v = self._index_of.get(source), self._index_of.get(target)
        if u is None or v is None:
            return False
        if u not in self._graph.broken_sources and v not in self._graph.broken_targets:
            return False
        return target in self._names(u, "syncTimeBw") and source in self._names(v, "syncTimeFw")

    def _names(self, index: int, table: str) -> set[str]:
        key = (index, table)
        if key not in self._named:
            self._named[key] = _sync_keys(self._nodes[index], table)
        return self._named[key]


def read_graph(reader: FieldReader, document: dict[str, Any], nodes: list[Any]) -> PiperGraph:
    """Read ids and edges; faults go to `reader`."""
    graph = _read_ids(reader, nodes)
    edges = reader.array(document, "edges", ())
    if edges is None:
        return graph
    place: dict[tuple[int, int], int] = {}
    for position, edge in enumerate(edges):
        _read_edge(reader, graph, place, edge, position)
    texts = [str(node_id) for node_id in graph.ids]
    graph.predecessors = [[] for _ in nodes]
    graph.successors = [[] for _ in nodes]
    for u, v in graph.pairs:
        if u != v:
            graph.predecessors[v].append(texts[u])
            graph.successors[u].append(texts[v])
    return graph


def _read_ids(reader: FieldReader, nodes: list[Any]) -> PiperGraph:
    graph = PiperGraph(ids=[], index_of={})
    for position, node in enumerate(nodes):
        node_id = None
        if isinstance(node, dict):
            node_id = reader.integer(node, "id", ("nodes", position))
        if node_id is not None and (first := graph.index_of.get(node_id)) is not None:
            problem = f"must be unique, got {show_value(node_id)} (also nodes[{first}])"
            reader.fault(("nodes", position, "id"), problem)
            node_id = None
        if node_id is not None:
            graph.index_of[node_id] = position
        graph.ids.append(node_id)
    return graph


def _read_edge(
    reader: FieldReader,
    graph: PiperGraph,
    place: dict[tuple[int, int], int],
    edge: object,
    position: int,
) -> None:
    at = ("edges", position)
    if (edge := reader.entry(edge, at)) is None:
        return
    source = reader.integer(edge, "sourceId", at)
    target = reader.integer(edge, "destId", at)
    payload = reader.amount(edge, "communicationCost", at)
    ends = (graph.index_of.get(source), graph.index_of.get(target))  # type: ignore[arg-type]
    for name, node_id, end in (("sourceId", source, ends[0]), ("destId", target, ends[1])):
        if node_id is not None and end is None and graph.ids:
            problem = f"must be the id of a node, got {show_value(node_id)}"
            reader.fault((*at, name), problem)
    u, v = ends
    if u is None or v is None:
        graph.dangling.add((str(source), str(target)))
        graph.broken_sources |= set() if u is None else {u}
        graph.broken_targets |= set() if v is None else {v}
        return
    if (u, v) not in place:
        place[u, v] = len(graph.pairs)
        graph.pairs.append((u, v))
        graph.bytes.append(payload)
        return
    graph.bytes[place[u, v]] += payload
    if math.isinf(graph.bytes[place[u, v]]):
        problem = f"must be finite when summed over the edges {source} -> {target}"
        reader.fault((*at, "communicationCost"), f"{problem}, got Infinity")


def _sync_keys(node: Any, name: str) -> set[str]:
    """Keys of one sync table over all configs of a node that may be malformed anywhere."""
    degrees = node.get("TMPCs") if isinstance(node, dict) else None
    keys: set[str] = set()
    for configs in degrees.values() if isinstance(degrees, dict) else ():
        for config in configs if isinstance(configs, list) else ():
            table = config.get(name) if isinstance(config, dict) else None
            keys.update(table if isinstance(table, dict) else ())
    return keys
