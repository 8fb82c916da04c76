"""PHAZE's placement input: per tensor width one table of layers, then the machine and a strategy.

The file of the published placement program (Wang et al., ICML 2024), or an object that holds it in
`input`. Sizes are bytes, times seconds. Layers may be listed in any order. `mbsInBatch` may be a
fraction, which is cut off as that program does. Unknown fields are ignored; every other fault is
named. The fixed strategy is optional here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from trainwright.errors import sourced
from trainwright.formats.json_text import FieldReader, Key, Path, PathFault, show_value
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
from trainwright.profile.profile import (
    LARGEST_COUNT,
    Edge,
    FixedStrategy,
    Optimizer,
    PlacementCase,
    Setting,
    WidthTable,
    find_cycles,
    topological_order,
)

_AMOUNTS: Final = ("parameterSize", "activationSize", "optimalLatencyFw", "optimalLatencyBw")
_FIXED: Final = ("fixedPP", "fixedTMPC", "fixedDP", "numTransformerLayers")


def placement_schema() -> dict[str, Any]:
    """The JSON Schema of a file, or of the field `input` of one; options may state the machine."""
    flag = {"type": "boolean"}
    layer = object_schema(
        {"id": WHOLE, **dict.fromkeys(_AMOUNTS, AMOUNT)}, {"isTensorParallelized": flag}
    )
    edge = object_schema({"sourceId": WHOLE, "destId": WHOLE, "communicationCost": AMOUNT})
    machine = dict.fromkeys(("maxMemoryPerDevice", "bandwidth"), POSITIVE)
    machine |= {"maxDevices": COUNT, "mbsInBatch": {"type": "number", "minimum": 1}}
    training = {"activationRecomputation": flag, "optimizerAlgorithm": {"enum": [*Optimizer]}}
    body = {
        "nodes": map_schema(array_schema(layer, least=1), least=1),
        "edges": map_schema(array_schema(edge)),
    }
    part = object_schema(body, {**machine, **training, **dict.fromkeys(_FIXED, COUNT)})
    part["dependentRequired"] = {name: [*_FIXED] for name in _FIXED}
    return titled(
        "placement problem",
        {"anyOf": [part, object_schema({"input": part})]},
        about="Costs of layers by tensor width and a machine, as PHAZE's solver reads them.",
    )


def placement_part(value: dict[str, Any]) -> dict[str, Any]:
    """The placement input itself: what the published program reads, without what lies around."""
    wrapped = value.get("input")
    return wrapped if isinstance(wrapped, dict) and "nodes" in wrapped else value


def read_phaze(
    value: dict[str, Any],
    *,
    source: str | None = None,
    text_faults: Iterable[PathFault] = (),
    given: Mapping[str, float] | None = None,
) -> PlacementCase:
    """Turn a parsed placement input into a case; raises one `InvalidInput` with all faults.

    `text_faults` are those of the text itself; `given` holds valid values of `Setting` fields,
    which replace those of the file.
    """
    reader = FieldReader(text_faults)
    part = placement_part(value)
    at: Path = () if part is value else ("input",)
    setting = _read_setting(reader, part, at, given or {})
    recompute = _read_flag(reader, part, "activationRecomputation", at)
    optimizer = _read_optimizer(reader, part, at)
    fixed = _read_fixed(reader, part, at)
    tables = _read_widths(reader, part, at)
    reader.check(value, source=source)
    with sourced(source):
        return PlacementCase(
            widths=tuple(sorted(tables, key=lambda table: table.tensor_parallel)),
            setting=Setting(**setting),
            recompute=recompute,
            optimizer=optimizer,
            fixed=fixed,
        )


def _read_setting(
    reader: FieldReader, part: dict[str, Any], at: Path, given: Mapping[str, float]
) -> dict[str, Any]:
    setting: dict[str, Any] = {}
    if "maxMemoryPerDevice" in part or "memory_bytes" not in given:
        setting["memory_bytes"] = reader.positive(part, "maxMemoryPerDevice", at)
    if "maxDevices" in part or "num_devices" not in given:
        setting["num_devices"] = reader.count(part, "maxDevices", at, most=LARGEST_COUNT)
    if "bandwidth" in part or "bandwidth_bytes_per_s" not in given:
        setting["bandwidth_bytes_per_s"] = reader.positive(part, "bandwidth", at)
    if "mbsInBatch" in part or "num_microbatches" not in given:
        setting["num_microbatches"] = _read_microbatches(reader, part, at)
    return setting | dict(given)


def _read_microbatches(reader: FieldReader, part: dict[str, Any], at: Path) -> int:
    value = reader.positive(part, "mbsInBatch", at)
    if 0 < value < 1 or value > LARGEST_COUNT:
        limit = ">= 1" if value < 1 else f"<= {LARGEST_COUNT}"
        reader.fault((*at, "mbsInBatch"), f"must be {limit}, got {show_value(part['mbsInBatch'])}")
    return int(value) if 1 <= value <= LARGEST_COUNT else 1


def _read_flag(reader: FieldReader, holder: dict[str, Any], name: str, at: Path) -> bool:
    value = holder.get(name, False)
    if not isinstance(value, bool):
        reader.fault((*at, name), f"must be true or false, got {show_value(value)}")
    return value is True


def _read_optimizer(reader: FieldReader, part: dict[str, Any], at: Path) -> Optimizer:
    value = part.get("optimizerAlgorithm", "SGD")
    known = {optimizer.value: optimizer for optimizer in Optimizer}
    if not isinstance(value, str) or value not in known:
        listed = ", ".join(f'"{name}"' for name in known)
        reader.fault(
            (*at, "optimizerAlgorithm"), f"must be one of {listed}, got {show_value(value)}"
        )
        return Optimizer.SGD
    return known[value]


def _read_fixed(reader: FieldReader, part: dict[str, Any], at: Path) -> FixedStrategy | None:
    if not any(name in part for name in _FIXED):
        return None
    stages, width, replicas, layers = (
        reader.count(part, name, at, most=LARGEST_COUNT) or 1 for name in _FIXED
    )
    return FixedStrategy(
        num_stages=stages, tensor_parallel=width, data_parallel=replicas, num_layers=layers
    )


def _read_widths(reader: FieldReader, part: dict[str, Any], at: Path) -> list[WidthTable]:
    nodes, edges = reader.mapping(part, "nodes", at), reader.mapping(part, "edges", at)
    if nodes == {}:
        reader.fault((*at, "nodes"), "must have at least 1 tensor width, got 0")
    if not nodes or edges is None:
        return []
    tables = (_read_width(reader, nodes, edges, text, at) for text in nodes)
    found = [table for table in tables if table is not None]
    for extra in edges.keys() - nodes.keys():
        reader.fault((*at, "edges", Key(extra)), "must be a tensor width of nodes")
    if len(found) == len(nodes):
        _check_same_layers(reader, found, at)
    return found


def _read_width(
    reader: FieldReader, nodes: dict[str, Any], edges: dict[str, Any], text: str, at: Path
) -> WidthTable | None:
    here, num_faults = (*at, "nodes", Key(text)), len(reader.faults)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= LARGEST_COUNT):
        reader.fault(here, "must be a tensor width, a whole number >= 1")
    rows = reader.array(nodes, Key(text), (*at, "nodes"))
    joined = reader.array(edges, Key(text), (*at, "edges"))
    if rows == []:
        reader.fault(here, "must have at least 1 entry, got 0")
    index_of = _read_ids(reader, rows or [], here)
    columns = [_read_layer(reader, row, (*here, i)) for i, row in enumerate(rows or [])]
    pairs = _read_edges(reader, joined or [], index_of, (*at, "edges", Key(text)))
    if len(reader.faults) > num_faults or rows is None or joined is None:
        return None
    ids, joins = list(index_of), [(u, v) for u, v, _ in pairs]
    for cycle in find_cycles(len(ids), joins):
        names = " -> ".join(str(ids[v]) for v in (*cycle, cycle[0]))
        reader.fault((*at, "edges", Key(text)), f"must be acyclic, got the cycle {names}")
    if len(reader.faults) > num_faults:
        return None
    return _sorted_table(int(text), ids, columns, pairs)


def _sorted_table(
    width: int,
    ids: list[int],
    columns: list[tuple[float, float, float, float, bool]],
    pairs: list[tuple[int, int, float]],
) -> WidthTable:
    order = topological_order(len(ids), [(u, v) for u, v, _ in pairs])
    place = {old: new for new, old in enumerate(order)}
    values = np.array([columns[old][:4] for old in order], dtype=np.float64)
    return WidthTable(
        tensor_parallel=width,
        layer_ids=tuple(ids[old] for old in order),
        parameter_bytes=values[:, 0].copy(),
        activation_bytes=values[:, 1].copy(),
        forward_s=values[:, 2].copy(),
        backward_s=values[:, 3].copy(),
        is_split=np.array([columns[old][4] for old in order], dtype=np.bool_),
        edges=tuple(Edge(source=place[u], target=place[v], bytes=size) for u, v, size in pairs),
    )


def _read_ids(reader: FieldReader, rows: list[Any], here: Path) -> dict[int, int]:
    """Index by id, in the order of the file."""
    index_of: dict[int, int] = {}
    for i, row in enumerate(rows):
        layer = reader.integer(row, "id", (*here, i)) if isinstance(row, dict) else None
        if layer is None:
            continue
        if layer in index_of:
            reader.fault((*here, i, "id"), f"must be unique, got {layer} (also {index_of[layer]})")
        index_of.setdefault(layer, i)
    return index_of


def _read_layer(
    reader: FieldReader, row: Any, here: Path
) -> tuple[float, float, float, float, bool]:
    if (row := reader.entry(row, here)) is None:
        return 0.0, 0.0, 0.0, 0.0, False
    parameters, activations, forward, backward = (
        reader.amount(row, name, here) for name in _AMOUNTS
    )
    split = _read_flag(reader, row, "isTensorParallelized", here)
    return parameters, activations, forward, backward, split


def _read_edges(
    reader: FieldReader, rows: list[Any], index_of: dict[int, int], here: Path
) -> list[tuple[int, int, float]]:
    pairs = []
    for i, row in enumerate(rows):
        if (edge := reader.entry(row, (*here, i))) is None:
            continue
        ends = []
        for name in ("sourceId", "destId"):
            layer = reader.integer(edge, name, (*here, i))
            if layer is not None and layer not in index_of:
                reader.fault((*here, i, name), f"must be the id of a node, got {layer}")
            ends.append(index_of.get(layer, 0) if layer is not None else 0)
        pairs.append((ends[0], ends[1], reader.amount(edge, "communicationCost", (*here, i))))
    return pairs


def _check_same_layers(reader: FieldReader, tables: list[WidthTable], at: Path) -> None:
    first = tables[0]
    for table in tables[1:]:
        if set(table.layer_ids) != set(first.layer_ids):
            problem = f'must list the layers of width "{first.tensor_parallel}"'
            reader.fault((*at, "nodes", Key(str(table.tensor_parallel))), problem)
