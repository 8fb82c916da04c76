"""Piper's profile: layers with measured costs per tensor-parallel degree, and a flat setting.

The format of Tarnawski et al., "Piper: Multidimensional Planner for DNN Parallelization" (NeurIPS
2021), read more liberally than by their program: any number of configs under any names, layers that
lack degree 1, parallel edges, several components. `syncTimeFw` and `syncTimeBw` hold bytes, their
names notwithstanding. Unknown fields are ignored; every fault of the rest is named.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from trainwright.errors import sourced
from trainwright.formats import json_text
from trainwright.formats.records import (
    AMOUNT,
    COUNT,
    POSITIVE,
    WHOLE,
    array_schema,
    map_schema,
    object_schema,
    titled,
)
from trainwright.profile import (
    CostTable,
    Edge,
    Layer,
    Origin,
    Profile,
    ProfileFile,
    ProfilePoint,
    Provenance,
    Recompute,
    Setting,
    StaticKind,
    Structure,
)
from trainwright.profile.profile import LARGEST_COUNT, find_cycles

if TYPE_CHECKING:
    from trainwright.arrays import Floats


# The graph of a Piper profile: ids of `nodes`, `edges`, and who neighbours whom
# ------------------------------------------------------------------------------
# Parallel edges merge into one, in the place of the first, with the sum of their bytes.


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


def read_graph(
    reader: json_text.FieldReader, document: dict[str, Any], nodes: list[Any]
) -> PiperGraph:
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


def _read_ids(reader: json_text.FieldReader, nodes: list[Any]) -> PiperGraph:
    graph = PiperGraph(ids=[], index_of={})
    for position, node in enumerate(nodes):
        node_id = None
        if isinstance(node, dict):
            node_id = reader.integer(node, "id", ("nodes", position))
        if node_id is not None and (first := graph.index_of.get(node_id)) is not None:
            problem = f"must be unique, got {json_text.show_value(node_id)} (also nodes[{first}])"
            reader.fault(("nodes", position, "id"), problem)
            node_id = None
        if node_id is not None:
            graph.index_of[node_id] = position
        graph.ids.append(node_id)
    return graph


def _read_edge(
    reader: json_text.FieldReader,
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
            problem = f"must be the id of a node, got {json_text.show_value(node_id)}"
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


# The configs of one Piper node → rows of the cost table
# ------------------------------------------------------
# A row is a plain tuple, hashable, so that layers with equal rows are found by a dictionary: they
# share a class. A row whose sync values are all zero keeps none, so that it fits any neighbourhood.

_DEGREE: Final = re.compile(r"[1-9][0-9]*", re.ASCII)
_LARGEST_FLOAT: Final = sys.float_info.max


class Row(NamedTuple):
    """One config: p, w, a and b of the paper, and sync bytes to predecessors, then successors."""

    tensor_parallel: int
    option_id: str
    duration_s: float
    gradient_bytes: float
    saved_bytes: float
    static_bytes: float
    boundary_bytes: tuple[float, ...]


class Side(NamedTuple):
    """One side of a layer: its sync table, and the ids (as text) of its neighbours there.

    `others` is in merged-edge order, and `None` where the neighbours are not known.
    """

    table: str  # "syncTimeFw", "syncTimeBw"
    relation: str  # "predecessor", "successor"
    layer: str
    others: Sequence[str] | None


class ConfigReader:
    """Reads the configs of node after node; `lost` excuses sync entries of broken edges."""

    def __init__(self, reader: json_text.FieldReader, lost: LostEdges) -> None:
        self._reader = reader
        self._lost = lost

    def read(
        self, node: dict[str, Any], at: json_text.Path, sides: tuple[Side, Side]
    ) -> tuple[Row, ...]:
        """All rows of a node, by ascending degree; `sides` are the incoming, then the outgoing."""
        degrees = self._reader.mapping(node, "TMPCs", at)
        if degrees is None:
            return ()
        rows: list[Row] = []
        at = (*at, "TMPCs")
        if all(configs == [] for configs in degrees.values()):
            self._reader.fault(at, "must offer at least one config, got none")
        for key in degrees:
            degree = self._degree(key, at)
            ids: dict[str, int] = {}
            for index, config in enumerate(
                self._reader.array(degrees, json_text.Key(key), at) or ()
            ):
                place = (*at, json_text.Key(key), index)
                if self._reader.entry(config, place) is not None:
                    option_id = self._option_id(config, place, ids)
                    rows.append(self._row(config, place, degree, option_id, sides))
        rows.sort(key=attrgetter("tensor_parallel"))
        return tuple(rows)

    def _degree(self, key: str, at: json_text.Path) -> int:
        if _DEGREE.fullmatch(key) is None:
            problem = f"key must be a positive integer, got {json_text.quote(key)}"
        elif len(key) > len(str(LARGEST_COUNT)) or int(key) > LARGEST_COUNT:
            problem = f"key must be <= {LARGEST_COUNT}, got {json_text.quote(key)}"
        else:
            return int(key)
        self._reader.fault((*at, json_text.Key(key)), problem)
        return 1

    def _option_id(self, config: dict[str, Any], at: json_text.Path, ids: dict[str, int]) -> str:
        option_id = self._reader.text(config, "id", at)
        index = at[-1]
        assert isinstance(index, int)
        if option_id == "":
            self._reader.fault((*at, "id"), 'must be non-empty, got ""')
        elif option_id is not None and (first := ids.setdefault(option_id, index)) != index:
            given = json_text.quote(option_id)
            problem = f"must be unique within the degree, got {given} (also [{first}])"
            self._reader.fault((*at, "id"), problem)
        return option_id or ""

    def _row(
        self,
        config: dict[str, Any],
        at: json_text.Path,
        degree: int,
        option_id: str,
        sides: tuple[Side, Side],
    ) -> Row:
        amount = self._reader.amount
        incoming, outgoing = sides
        boundary = self._sync(config, at, incoming) + self._sync(config, at, outgoing)
        return Row(
            degree,
            option_id,
            amount(config, "timePerSample", at),
            amount(config, "parameterSize", at),
            amount(config, "memoryUsageA", at),
            amount(config, "memoryUsageB", at),
            boundary if any(boundary) else (),
        )

    def _sync(self, config: dict[str, Any], at: json_text.Path, side: Side) -> tuple[float, ...]:
        """Sync bytes in the order of `side.others`."""
        table = self._reader.mapping(config, side.table, at)
        if table is None:
            return ()
        others = side.others or ()
        values = tuple(map(table.get, others))
        if len(table) == len(others) and all(map(_is_plain_amount, values)):
            return values  # type: ignore[return-value]  # plain amounts are floats
        return self._check_sync(table, (*at, side.table), side)

    def _check_sync(
        self, table: dict[str, Any], at: json_text.Path, side: Side
    ) -> tuple[float, ...]:
        values = {key: self._reader.amount(table, json_text.Key(key), at) for key in table}
        if side.others is None:
            return ()
        others = set(side.others)
        for other in side.others:
            if other not in table:
                problem = f"must have an entry for {side.relation} {other}, got none"
                self._reader.fault(at, problem)
        for key in table:
            if key not in others and not self._is_lost(key, side):
                wanted = f"must be a {side.relation} of node {side.layer}"
                problem = f"key {wanted}, got {json_text.quote(key)}"
                self._reader.fault((*at, json_text.Key(key)), problem)
        return tuple(values.get(other, 0.0) for other in side.others)

    def _is_lost(self, key: str, side: Side) -> bool:
        if side.relation == "predecessor":
            return self._lost.explain(key, side.layer)
        return self._lost.explain(side.layer, key)


def _is_plain_amount(value: object) -> bool:
    return type(value) is float and 0.0 <= value <= _LARGEST_FLOAT


# Piper's profile: layers with measured costs per tensor-parallel degree, and a flat setting
# ------------------------------------------------------------------------------------------

RECOMPUTING_ID: Final = "activation recomp"

_BATCH_NAMES: Final = ("mbsInBatch", "maxBatchSize")


_EDGE: Final = {"sourceId": WHOLE, "destId": WHOLE, "communicationCost": AMOUNT}


def piper_schema() -> dict[str, Any]:
    """The JSON Schema of a file; options of `plan` may stand in for its header."""
    figures = ("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB")
    sync = dict.fromkeys(("syncTimeFw", "syncTimeBw"), map_schema(AMOUNT))
    name = {"type": "string", "minLength": 1}
    config = object_schema({"id": name, **dict.fromkeys(figures, AMOUNT), **sync})
    node = object_schema(
        {"id": WHOLE, "TMPCs": map_schema(array_schema(config), least=1)},
        {"name": {"type": "string"}},
    )
    body = {"nodes": array_schema(node, least=1), "edges": array_schema(object_schema(_EDGE))}
    header = {"maxMemoryPerDevice": POSITIVE, "bandwidth": POSITIVE}
    header |= dict.fromkeys(("maxDevices", *_BATCH_NAMES), COUNT)
    about = "Costs of layers by tensor degree, as Piper writes them."
    return titled("Piper profile", object_schema(body, header), about=about)


def read_piper_bytes(data: bytes, *, source: str | None = None) -> ProfileFile:
    """Read the bytes of a Piper profile; raises `InvalidInput` with all faults."""
    text = json_text.scan_json(data, source=source)
    return read_piper(text.value, source=source, text_faults=text.faults)


@json_text.collector_at_rest()
def read_piper(
    value: dict[str, Any],
    *,
    source: str | None = None,
    text_faults: Iterable[json_text.PathFault] = (),
    given: Mapping[str, float] | None = None,
    time_unit_s: float = 1.0,
) -> ProfileFile:
    """Turn a parsed Piper profile into one point and the setting it states.

    `text_faults` are those of the text itself (`scan_json`); one `InvalidInput` lists them with all
    others in document order. `given` holds valid values of `Setting` fields that stand in where the
    file lacks a header field. Sizes are in bytes; times in units of `time_unit_s` seconds, which is
    1 by the format, though there are files that hold milliseconds.
    """
    reader = json_text.FieldReader(text_faults)
    header = _read_header(reader, value, given or {})
    nodes = reader.array(value, "nodes", ())
    if nodes == []:
        reader.fault(("nodes",), "must have at least 1 entry, got 0")
    nodes = nodes or []
    graph = read_graph(reader, value, nodes)
    names, rows = _read_nodes(reader, graph, nodes)
    if reader.faults:
        for problem in graph.cycles():
            reader.fault(("edges",), problem)
    reader.check(value, source=source)
    with sourced(source):  # the only rule left to the nouns: no cycles
        profile = _profile(graph, names, rows, source, time_unit_s)
    return ProfileFile(profiles=(profile,), setting=Setting(**header))


def _read_header(
    reader: json_text.FieldReader, value: dict[str, Any], given: Mapping[str, float]
) -> dict[str, Any]:
    header: dict[str, Any] = dict(given)
    if "maxMemoryPerDevice" in value or "memory_bytes" not in given:
        header["memory_bytes"] = reader.positive(value, "maxMemoryPerDevice", ())
    if "maxDevices" in value or "num_devices" not in given:
        header["num_devices"] = reader.count(value, "maxDevices", (), most=LARGEST_COUNT)
    if "bandwidth" in value or "bandwidth_bytes_per_s" not in given:
        header["bandwidth_bytes_per_s"] = reader.positive(value, "bandwidth", ())
    stated = [name for name in _BATCH_NAMES if name in value]
    counts = [reader.count(value, name, (), most=LARGEST_COUNT) for name in stated]
    if stated:
        header["num_microbatches"] = counts[0]
    elif "num_microbatches" not in given:
        problem = "required field is missing (maxBatchSize is accepted too)"
        reader.fault(("mbsInBatch",), problem)
    if len(counts) == 2 and None not in counts and counts[0] != counts[1]:
        problem = f"must equal mbsInBatch ({counts[0]}), got {counts[1]}"
        reader.fault(("maxBatchSize",), problem)
    return header


def _read_nodes(
    reader: json_text.FieldReader, graph: PiperGraph, nodes: list[Any]
) -> tuple[list[str], list[tuple[Row, ...]]]:
    """Name and rows of each layer."""
    configs = ConfigReader(reader, LostEdges(graph, nodes))
    names, rows = [], []
    for index, node in enumerate(nodes):
        at = ("nodes", index)
        if reader.entry(node, at) is None:
            continue
        names.append(reader.text(node, "name", at) or "" if "name" in node else "")
        rows.append(configs.read(node, at, _sides(graph, index)))
    return names, rows


def _sides(graph: PiperGraph, index: int) -> tuple[Side, Side]:
    """Both sides of a layer; its neighbours are unknown where its id or the edges are."""
    layer = graph.ids[index]
    known = layer is not None and graph.predecessors is not None and graph.successors is not None
    before = graph.predecessors[index] if known and graph.predecessors else None
    after = graph.successors[index] if known and graph.successors else None
    return (
        Side("syncTimeFw", "predecessor", str(layer), before),
        Side("syncTimeBw", "successor", str(layer), after),
    )


def _profile(
    graph: PiperGraph,
    names: list[str],
    rows: list[tuple[Row, ...]],
    source: str | None,
    time_unit_s: float,
) -> Profile:
    """Nouns from sound parts; layers with equal rows share a class."""
    classes: dict[tuple[Row, ...], int] = {}
    of_layer = [classes.setdefault(layer_rows, len(classes)) for layer_rows in rows]
    structure = Structure(
        layers=tuple(
            Layer(id=layer_id, name=name, layer_class=layer_class)
            for layer_id, name, layer_class in zip(graph.ids, names, of_layer, strict=True)
            if layer_id is not None
        ),
        edges=tuple(
            Edge(source=u, target=v, bytes=payload)
            for (u, v), payload in zip(graph.pairs, graph.bytes, strict=True)
        ),
    )
    costs = _cost_table(list(classes), _provenance(source, time_unit_s), time_unit_s)
    point = ProfilePoint(
        tensor_parallel=tuple(sorted(set(costs.tensor_parallel.tolist()))),
        recompute=tuple(mode.value for mode in Recompute if mode in costs.recompute),
    )
    return Profile(structure=structure, costs=costs, point=point)


def _cost_table(
    classes: Sequence[tuple[Row, ...]], provenance: Provenance, time_unit_s: float
) -> CostTable:
    rows = list(chain.from_iterable(classes))
    sync = np.zeros((len(rows), 2))
    sync[:, 0] = _column(row.gradient_bytes for row in rows)
    return CostTable(
        class_offsets=np.cumsum([0, *map(len, classes)]),
        option_ids=tuple(row.option_id for row in rows),
        tensor_parallel=np.array([row.tensor_parallel for row in rows], dtype=np.int64),
        recompute=tuple(_recompute(row.option_id) for row in rows),
        duration_s=_column(row.duration_s * time_unit_s for row in rows),
        saved_until_input_grad_bytes=_column(row.saved_bytes for row in rows),
        saved_until_weight_grad_bytes=np.zeros(len(rows)),
        transient_bytes=np.zeros(len(rows)),
        static_bytes=np.zeros((len(rows), 2, len(StaticKind))),
        opaque_static_bytes=_column(row.static_bytes for row in rows),
        gradient_sync_bytes=sync,
        boundary_offsets=np.cumsum([0, *(len(row.boundary_bytes) for row in rows)]),
        boundary_bytes=_column(value for row in rows for value in row.boundary_bytes),
        provenance=provenance,
    )


def _provenance(source: str | None, time_unit_s: float) -> Provenance:
    name = PurePath(source).name if source else "a Piper profile"
    unit = "" if time_unit_s == 1 else f", its times in units of {time_unit_s:g} s"
    return Provenance(origin=Origin.IMPORTED, source=name + unit)


def _recompute(option_id: str) -> Recompute:
    return Recompute.FULL if option_id == RECOMPUTING_ID else Recompute.NONE


def _column(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=np.float64)
