"""Rules of the own profile format that relate one value to another, which types cannot say.

They look at the JSON values themselves and pass over whatever is not sound, because the types have
a fault for that already: so one broken option hides nothing about the graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from trainwright.formats.json_path import PathFault, quote, show_value
from trainwright.profile.structure import find_cycles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.formats.json_path import Path

_ALL_OR_NONE: Final = (
    "phases",
    "time_by_kind_s",
    "energy_j",
    "collectives",
    "trained_weight_bytes",
)


def relation_faults(value: dict[str, Any]) -> Iterator[PathFault]:
    """All faults of this sort in a profile."""
    for index, point in _objects(value, "points"):
        yield from _point_faults(point, ("points", index))


@dataclass(slots=True)
class _Graph:
    """Layer indices by id, and the distinct edges between known layers, as layer indices."""

    index_of: dict[int, int] = field(default_factory=dict)
    place: dict[tuple[int, int], int] = field(default_factory=dict)
    is_sound: bool = True


def _point_faults(point: dict[str, Any], at: Path) -> Iterator[PathFault]:
    graph = _Graph()
    yield from _layer_faults(point, at, graph)
    yield from _edge_faults(point, at, graph)
    yield from _shared_faults(point, at, graph)
    yield from _option_id_faults(point, at)
    yield from _all_or_none_faults(point, at)
    if graph.is_sound:
        yield from _boundary_faults(point, at, graph)


def _layer_faults(point: dict[str, Any], at: Path, graph: _Graph) -> Iterator[PathFault]:
    classes = point.get("classes")
    for index, layer in _objects(point, "layers"):
        here = (*at, "layers", index)
        layer_id, layer_class = _integer(layer.get("id")), _integer(layer.get("layer_class"))
        if layer_id is not None and (first := graph.index_of.setdefault(layer_id, index)) != index:
            problem = f"must be unique, got {show_value(layer_id)} (also layers[{first}])"
            yield PathFault((*here, "id"), problem)
            graph.is_sound = False
        if isinstance(classes, list) and layer_class is not None and layer_class >= len(classes):
            problem = f"must be the index of a class, got {show_value(layer_class)}"
            yield PathFault((*here, "layer_class"), f"{problem} of {len(classes)}")


def _edge_faults(point: dict[str, Any], at: Path, graph: _Graph) -> Iterator[PathFault]:
    for index, edge in _objects(point, "edges"):
        here = (*at, "edges", index)
        ends = []
        for name in ("source", "target"):
            layer_id = _integer(edge.get(name))
            ends.append(None if layer_id is None else graph.index_of.get(layer_id))
            if layer_id is not None and ends[-1] is None:
                yield _unknown_layer((*here, name), layer_id)
        u, v = ends
        if u is None or v is None:
            graph.is_sound = False
        elif (first := graph.place.setdefault((u, v), index)) != index:
            pair = f"{edge['source']} -> {edge['target']}"
            yield PathFault(here, f"must join each pair once, got {pair} (also edges[{first}])")
            graph.is_sound = False
    ids = {index: layer_id for layer_id, index in graph.index_of.items()}
    for cycle in find_cycles(1 + max(ids, default=-1), list(graph.place)):
        names = " -> ".join(str(ids[v]) for v in (*cycle, cycle[0]))
        yield PathFault((*at, "edges"), f"must be acyclic, got the cycle {names}")


def _shared_faults(point: dict[str, Any], at: Path, graph: _Graph) -> Iterator[PathFault]:
    for index, shared in _objects(point, "shared_parameters"):
        layers = shared.get("layers")
        for position, layer in enumerate(layers if isinstance(layers, list) else ()):
            layer_id = _integer(layer)
            if layer_id is not None and layer_id not in graph.index_of:
                here = (*at, "shared_parameters", index, "layers", position)
                yield _unknown_layer(here, layer_id)


def _unknown_layer(path: Path, layer_id: int) -> PathFault:
    return PathFault(path, f"must be the id of a layer, got {show_value(layer_id)}")


def _option_id_faults(point: dict[str, Any], at: Path) -> Iterator[PathFault]:
    for class_index, layer_class in _objects(point, "classes"):
        seen: dict[tuple[object, str], int] = {}
        for index, option in _objects(layer_class, "options"):
            option_id, degree = option.get("id"), option.get("tensor_parallel", 1)
            if not isinstance(option_id, str) or _integer(degree) is None:
                continue
            if (first := seen.setdefault((degree, option_id), index)) != index:
                problem = f"must be unique within the degree, got {quote(option_id)}"
                here = (*at, "classes", class_index, "options", index, "id")
                yield PathFault(here, f"{problem} (also options[{first}])")


def _all_or_none_faults(point: dict[str, Any], at: Path) -> Iterator[PathFault]:
    options = [
        ((*at, "classes", class_index, "options", index), option)
        for class_index, layer_class in _objects(point, "classes")
        for index, option in _objects(layer_class, "options")
    ]
    for name in _ALL_OR_NONE:
        given = [option.get(name) is not None for _, option in options]
        if any(given) and not all(given):
            for is_given, (path, _) in zip(given, options, strict=True):
                if not is_given:
                    problem = "must be given here too: all options have it, or none"
                    yield PathFault((*path, name), problem)


def _boundary_faults(point: dict[str, Any], at: Path, graph: _Graph) -> Iterator[PathFault]:
    incoming = dict.fromkeys(graph.index_of.values(), 0)
    outgoing = dict(incoming)
    for u, v in graph.place:
        outgoing[u] += 1
        incoming[v] += 1
    classes = dict(_objects(point, "classes"))
    checked: set[tuple[int, int]] = set()
    for index, layer in _objects(point, "layers"):
        layer_class = _integer(layer.get("layer_class"))
        if index not in incoming or layer_class not in classes:
            continue
        wanted = incoming[index] + outgoing[index]
        if (layer_class, wanted) in checked:
            continue
        checked.add((layer_class, wanted))
        edges = f"{incoming[index]} incoming and {outgoing[index]} outgoing edges"
        for position, option in _objects(classes[layer_class], "options"):
            values = option.get("boundary_bytes")
            if isinstance(values, list) and len(values) not in (0, wanted):
                problem = f"must have 0 or {wanted} entries (layer {layer.get('id')} has {edges})"
                here = (*at, "classes", layer_class, "options", position, "boundary_bytes")
                yield PathFault(here, f"{problem}, got {len(values)}")


def _objects(holder: dict[str, Any], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The entries of an array that are objects, with their indices."""
    entries = holder.get(name)
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict):
            yield index, entry


def _integer(value: object) -> int | None:
    if type(value) is float and value.is_integer():
        return int(value)
    return value if type(value) is int else None
