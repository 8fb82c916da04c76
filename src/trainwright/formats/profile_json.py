"""Our own profile: everything the waist can say, as JSON; `read_profile(write_profile(x)) == x`.

The format is declared in records: reader, writer and JSON Schema follow from there. Rules between
values come after them, then the way to and from the nouns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import numpy as np

from trainwright.errors import InvalidInput
from trainwright.formats import json_text
from trainwright.formats.document_json import encode_compact, refuse_newer_version
from trainwright.formats.records import (
    Above,
    AtLeast,
    AtMost,
    Closed,
    NonEmpty,
    decoder_for,
    json_schema,
)
from trainwright.model.run_shape import Routing
from trainwright.profile import (
    Collective,
    CostTable,
    Edge,
    Layer,
    Origin,
    PhaseTimes,
    Profile,
    ProfileFile,
    ProfilePoint,
    Provenance,
    Recompute,
    Setting,
    SharedParameters,
    StaticKind,
    Structure,
)
from trainwright.profile.profile import LARGEST_COUNT, find_cycles

if TYPE_CHECKING:
    from trainwright.arrays import Floats


# The own profile format, declared: its reader, writer and JSON Schema are made from these types
# ----------------------------------------------------------------------------------------------
# Layers and edges name layers by id; rows of the cost table are nested as class → option. Fields
# that a table has for all options or for none (`phases`, `time_by_kind_s`, `energy_j`,
# `collectives`) stand in each option.

FORMAT_VERSION = 1

Amount: TypeAlias = Annotated[float, AtLeast(0)]
Count: TypeAlias = Annotated[int, AtLeast(1), AtMost(LARGEST_COUNT)]
Index: TypeAlias = Annotated[int, AtLeast(0)]
Name: TypeAlias = Annotated[str, NonEmpty()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRecord(Closed):
    """The cluster and batch the profile is meant for; options of the command line override it."""

    num_devices: Count
    memory_bytes: Annotated[float, Above(0), "memory of one device"]
    bandwidth_bytes_per_s: Annotated[float, Above(0), "from each device to the outside"]
    num_microbatches: Annotated[Count, "microbatches in a batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLevelsRecord(Closed):
    """The levels of the network that the groups of one axis cross."""

    axis: Name
    levels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CircumstancesRecord(Closed):
    """When the costs hold; what is left out is not known."""

    microbatch_size: Count | None = None
    sequence_length: Count | None = None
    tensor_parallel: Annotated[tuple[Count, ...], "degrees that the options span"] = (1,)
    context_parallel: Count = 1
    expert_parallel: Count = 1
    expert_tensor_parallel: Count | None = None
    sequence_parallel: bool = False
    precision: str | None = None
    recompute: Annotated[tuple[str, ...], "recompute modes that the options span"] = ()
    network_levels: tuple[NetworkLevelsRecord, ...] = ()
    device_kind: str | None = None
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenanceRecord(Closed):
    """Where the figures come from."""

    origin: Origin
    source: Annotated[str, "a file, a datasheet, a report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord(Closed):
    """A layer; `layer_class` is an index into `classes`."""

    id: Annotated[int, "unique; any value"]
    name: str = ""
    layer_class: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRecord(Closed):
    """A tensor between two layers (ids); at most one edge joins a pair."""

    source: int
    target: int
    bytes: Annotated[Amount, "of one microbatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParametersRecord(Closed):
    """Parameters that several layers (ids) use, such as tied embeddings."""

    layers: tuple[int, ...]
    bytes: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytesRecord(Closed):
    """What stays in memory for parameters of one group."""

    weight: Amount = 0.0
    gradient: Amount = 0.0
    optimizer: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBytesRecord(Closed):
    """Static memory by parameter group."""

    dense: StateBytesRecord = StateBytesRecord()
    expert: StateBytesRecord = StateBytesRecord()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedWeightRecord(Closed):
    """Bytes of weights that the optimizer changes, by parameter group."""

    dense: Amount = 0.0
    expert: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSyncRecord(Closed):
    """Bytes that data parallelism synchronises, by parameter group."""

    dense: Amount = 0.0
    expert: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasesRecord(Closed):
    """The duration by phase, in seconds; recomputation precedes backward."""

    forward_s: Amount
    input_grad_s: Amount
    weight_grad_s: Amount
    recompute_s: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeByKindRecord(Closed):
    """The exposed time by what it is spent on, in seconds."""

    compute: Amount = 0.0
    tensor_parallel: Amount = 0.0
    context_parallel: Amount = 0.0
    expert_parallel: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord(Closed):
    """A collective inside the layer, and what it may hide under."""

    axis: Name
    kind: Name
    bytes: Amount
    phase: Name
    hides_under: str | None = None
    routing: Routing | None = None
    nearest: int | None = None
    apart: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionRecord(Closed):
    """One way to run a layer of the class; times and bytes are those of one microbatch."""

    id: Annotated[Name, "unique within the class and degree"]
    tensor_parallel: Count = 1
    recompute: Recompute = Recompute.NONE
    duration_s: Annotated[Amount, "forward and backward"]
    saved_until_input_grad_bytes: Annotated[Amount, "freed by the input gradient"] = 0.0
    saved_until_weight_grad_bytes: Annotated[Amount, "freed by the weight gradient"] = 0.0
    transient_bytes: Annotated[Amount, "needed while the layer runs"] = 0.0
    static_bytes: StaticBytesRecord = StaticBytesRecord()
    opaque_static_bytes: Annotated[Amount, "static memory of unknown kind"] = 0.0
    gradient_sync_bytes: GradientSyncRecord = GradientSyncRecord()
    boundary_bytes: Annotated[
        tuple[Amount, ...],
        "added to an edge that is cut: one value per incoming edge, then one per outgoing edge, "
        "both in the order of `edges`; none means zeros",
    ] = ()
    phases: PhasesRecord | None = None
    time_by_kind_s: TimeByKindRecord | None = None
    energy_j: Annotated[Amount | None, "joules"] = None
    collectives: tuple[CollectiveRecord, ...] | None = None
    trained_weight_bytes: Annotated[
        TrainedWeightRecord | None, "where parameters are frozen; all weights where absent"
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRecord(Closed):
    """Layers of one class cost the same."""

    options: Annotated[tuple[OptionRecord, ...], NonEmpty()]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRecord(Closed):
    """A layer graph and what its layers cost at one point."""

    point: CircumstancesRecord = CircumstancesRecord()
    provenance: ProvenanceRecord
    layers: Annotated[tuple[LayerRecord, ...], NonEmpty()]
    edges: tuple[EdgeRecord, ...] = ()
    shared_parameters: tuple[SharedParametersRecord, ...] = ()
    classes: Annotated[tuple[ClassRecord, ...], NonEmpty()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecord(Closed):
    """Costs of the layers of a model, at one or more points; SI base units."""

    kind: Literal["profile"]
    format_version: Annotated[int, AtLeast(1), AtMost(FORMAT_VERSION)]
    setting: SettingRecord | None = None
    points: Annotated[tuple[PointRecord, ...], NonEmpty()]


# Rules of the own profile format that relate one value to another, which types cannot say
# ----------------------------------------------------------------------------------------
# They look at the JSON values themselves and pass over whatever is not sound, because the types
# have a fault for that already: so one broken option hides nothing about the graph.

_ALL_OR_NONE: Final = (
    "phases",
    "time_by_kind_s",
    "energy_j",
    "collectives",
    "trained_weight_bytes",
)


def relation_faults(value: dict[str, Any]) -> Iterator[json_text.PathFault]:
    """All faults of this sort in a profile."""
    for index, point in _objects(value, "points"):
        yield from _point_faults(point, ("points", index))


@dataclass(slots=True)
class _Graph:
    """Layer indices by id, and the distinct edges between known layers, as layer indices."""

    index_of: dict[int, int] = field(default_factory=dict)
    place: dict[tuple[int, int], int] = field(default_factory=dict)
    is_sound: bool = True


def _point_faults(point: dict[str, Any], at: json_text.Path) -> Iterator[json_text.PathFault]:
    graph = _Graph()
    yield from _layer_faults(point, at, graph)
    yield from _edge_faults(point, at, graph)
    yield from _shared_faults(point, at, graph)
    yield from _option_id_faults(point, at)
    yield from _all_or_none_faults(point, at)
    if graph.is_sound:
        yield from _boundary_faults(point, at, graph)


def _layer_faults(
    point: dict[str, Any], at: json_text.Path, graph: _Graph
) -> Iterator[json_text.PathFault]:
    classes = point.get("classes")
    for index, layer in _objects(point, "layers"):
        here = (*at, "layers", index)
        layer_id, layer_class = _integer(layer.get("id")), _integer(layer.get("layer_class"))
        if layer_id is not None and (first := graph.index_of.setdefault(layer_id, index)) != index:
            problem = f"must be unique, got {json_text.show_value(layer_id)} (also layers[{first}])"
            yield json_text.PathFault((*here, "id"), problem)
            graph.is_sound = False
        if isinstance(classes, list) and layer_class is not None and layer_class >= len(classes):
            problem = f"must be the index of a class, got {json_text.show_value(layer_class)}"
            yield json_text.PathFault((*here, "layer_class"), f"{problem} of {len(classes)}")


def _edge_faults(
    point: dict[str, Any], at: json_text.Path, graph: _Graph
) -> Iterator[json_text.PathFault]:
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
            yield json_text.PathFault(
                here, f"must join each pair once, got {pair} (also edges[{first}])"
            )
            graph.is_sound = False
    ids = {index: layer_id for layer_id, index in graph.index_of.items()}
    for cycle in find_cycles(1 + max(ids, default=-1), list(graph.place)):
        names = " -> ".join(str(ids[v]) for v in (*cycle, cycle[0]))
        yield json_text.PathFault((*at, "edges"), f"must be acyclic, got the cycle {names}")


def _shared_faults(
    point: dict[str, Any], at: json_text.Path, graph: _Graph
) -> Iterator[json_text.PathFault]:
    for index, shared in _objects(point, "shared_parameters"):
        layers = shared.get("layers")
        for position, layer in enumerate(layers if isinstance(layers, list) else ()):
            layer_id = _integer(layer)
            if layer_id is not None and layer_id not in graph.index_of:
                here = (*at, "shared_parameters", index, "layers", position)
                yield _unknown_layer(here, layer_id)


def _unknown_layer(path: json_text.Path, layer_id: int) -> json_text.PathFault:
    return json_text.PathFault(
        path, f"must be the id of a layer, got {json_text.show_value(layer_id)}"
    )


def _option_id_faults(point: dict[str, Any], at: json_text.Path) -> Iterator[json_text.PathFault]:
    for class_index, layer_class in _objects(point, "classes"):
        seen: dict[tuple[object, str], int] = {}
        for index, option in _objects(layer_class, "options"):
            option_id, degree = option.get("id"), option.get("tensor_parallel", 1)
            if not isinstance(option_id, str) or _integer(degree) is None:
                continue
            if (first := seen.setdefault((degree, option_id), index)) != index:
                problem = f"must be unique within the degree, got {json_text.quote(option_id)}"
                here = (*at, "classes", class_index, "options", index, "id")
                yield json_text.PathFault(here, f"{problem} (also options[{first}])")


def _all_or_none_faults(point: dict[str, Any], at: json_text.Path) -> Iterator[json_text.PathFault]:
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
                    yield json_text.PathFault((*path, name), problem)


def _boundary_faults(
    point: dict[str, Any], at: json_text.Path, graph: _Graph
) -> Iterator[json_text.PathFault]:
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
                yield json_text.PathFault(here, f"{problem}, got {len(values)}")


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


# Records of the own profile format ↔ the nouns of the waist: nested options ↔ flat columns
# -----------------------------------------------------------------------------------------


def from_record(record: ProfileRecord) -> ProfileFile:
    """Nouns of a record without faults."""
    setting = None if record.setting is None else Setting(**_values(record.setting))
    return ProfileFile(profiles=tuple(map(_profile, record.points)), setting=setting)


def to_record(file: ProfileFile) -> ProfileRecord:
    """The record of a profile file."""
    setting = None if file.setting is None else SettingRecord(**_values(file.setting))
    return ProfileRecord(
        kind="profile",
        format_version=FORMAT_VERSION,
        setting=setting,
        points=tuple(map(_point_record, file.profiles)),
    )


def _values(record: Any) -> dict[str, Any]:
    """Field values by name; record and noun have the same fields."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _profile(record: PointRecord) -> Profile:
    levels = tuple((level.axis, level.levels) for level in record.point.network_levels)
    point = ProfilePoint(**(_values(record.point) | {"network_levels": levels}))
    return Profile(structure=_structure(record), costs=_costs(record), point=point)


def _structure(record: PointRecord) -> Structure:
    index_of = {layer.id: index for index, layer in enumerate(record.layers)}
    return Structure(
        layers=tuple(Layer(**_values(layer)) for layer in record.layers),
        edges=tuple(
            Edge(source=index_of[edge.source], target=index_of[edge.target], bytes=edge.bytes)
            for edge in record.edges
        ),
        shared_parameters=tuple(
            SharedParameters(layers=tuple(index_of[i] for i in shared.layers), bytes=shared.bytes)
            for shared in record.shared_parameters
        ),
    )


def _costs(record: PointRecord) -> CostTable:
    options = list(chain.from_iterable(entry.options for entry in record.classes))
    has = options[0]
    static = [
        [_OF_STATE(state) for state in (group.dense, group.expert)]
        for group in (option.static_bytes for option in options)
    ]
    gradients = [option.gradient_sync_bytes for option in options]
    kinds = [option.time_by_kind_s for option in options if option.time_by_kind_s is not None]
    trained = [
        (group.dense, group.expert)
        for option in options
        if (group := option.trained_weight_bytes) is not None
    ]
    return CostTable(
        class_offsets=np.cumsum([0, *(len(entry.options) for entry in record.classes)]),
        option_ids=tuple(option.id for option in options),
        tensor_parallel=np.array([option.tensor_parallel for option in options], dtype=np.int64),
        recompute=tuple(option.recompute for option in options),
        duration_s=_column(options, "duration_s"),
        saved_until_input_grad_bytes=_column(options, "saved_until_input_grad_bytes"),
        saved_until_weight_grad_bytes=_column(options, "saved_until_weight_grad_bytes"),
        transient_bytes=_column(options, "transient_bytes"),
        static_bytes=np.array(static),
        opaque_static_bytes=_column(options, "opaque_static_bytes"),
        gradient_sync_bytes=np.array([(group.dense, group.expert) for group in gradients]),
        boundary_offsets=np.cumsum([0, *(len(option.boundary_bytes) for option in options)]),
        boundary_bytes=np.fromiter(
            (value for option in options for value in option.boundary_bytes), dtype=np.float64
        ),
        provenance=Provenance(**_values(record.provenance)),
        phases=None if has.phases is None else _phases([option.phases for option in options]),
        time_by_kind_s=_table(kinds) if kinds else None,
        energy_j=None if has.energy_j is None else _column(options, "energy_j"),
        collectives=None if has.collectives is None else tuple(map(_collectives, options)),
        trained_weight_bytes=np.array(trained) if trained else None,
    )


_OF_STATE: Final = attrgetter(*(kind.name.lower() for kind in StaticKind))


def _column(records: Sequence[object], name: str) -> Floats:
    return np.array([getattr(record, name) for record in records], dtype=np.float64)


def _table(records: Sequence[TimeByKindRecord]) -> Floats:
    return np.array([tuple(_values(record).values()) for record in records])


def _phases(records: Sequence[PhasesRecord | None]) -> PhaseTimes:
    return PhaseTimes(**{field.name: _column(records, field.name) for field in fields(PhaseTimes)})


def _collectives(option: OptionRecord) -> tuple[Collective, ...]:
    return tuple(Collective(**_values(entry)) for entry in option.collectives or ())


def _point_record(profile: Profile) -> PointRecord:
    structure, ids = profile.structure, profile.structure.ids
    levels = tuple(
        NetworkLevelsRecord(axis=axis, levels=names) for axis, names in profile.point.network_levels
    )
    provenance = profile.costs.provenance
    return PointRecord(
        point=CircumstancesRecord(**(_values(profile.point) | {"network_levels": levels})),
        provenance=ProvenanceRecord(**_values(provenance)),
        layers=tuple(LayerRecord(**_values(layer)) for layer in structure.layers),
        edges=tuple(
            EdgeRecord(source=ids[edge.source], target=ids[edge.target], bytes=edge.bytes)
            for edge in structure.edges
        ),
        shared_parameters=tuple(
            SharedParametersRecord(layers=tuple(ids[v] for v in shared.layers), bytes=shared.bytes)
            for shared in structure.shared_parameters
        ),
        classes=_class_records(profile.costs),
    )


def _class_records(costs: CostTable) -> tuple[ClassRecord, ...]:
    columns = _plain_columns(costs) | _group_columns(costs) | _optional_columns(costs)
    options = [
        OptionRecord(**{name: column[row] for name, column in columns.items()})
        for row in range(costs.num_rows)
    ]
    bounds = pairwise(costs.class_offsets.tolist())
    return tuple(ClassRecord(options=tuple(options[start:stop])) for start, stop in bounds)


def _plain_columns(costs: CostTable) -> dict[str, Sequence[Any]]:
    """Fields of an option that are columns of the table, as Python values."""
    arrays = (
        "tensor_parallel",
        "duration_s",
        "saved_until_input_grad_bytes",
        "saved_until_weight_grad_bytes",
        "transient_bytes",
        "opaque_static_bytes",
    )
    columns = {name: getattr(costs, name).tolist() for name in arrays}
    return {"id": costs.option_ids, "recompute": costs.recompute, **columns}


def _group_columns(costs: CostTable) -> dict[str, Sequence[Any]]:
    """Fields of an option that group several numbers."""
    return {
        "static_bytes": [
            StaticBytesRecord(dense=dense, expert=expert)
            for dense, expert in (
                _records(StateBytesRecord, row) for row in costs.static_bytes.tolist()
            )
        ],
        "gradient_sync_bytes": [
            GradientSyncRecord(dense=dense, expert=expert)
            for dense, expert in costs.gradient_sync_bytes.tolist()
        ],
        "boundary_bytes": [tuple(costs.boundary_of(row).tolist()) for row in range(costs.num_rows)],
    }


def _optional_columns(costs: CostTable) -> dict[str, Sequence[Any]]:
    """Fields of an option that all options have or none."""
    columns: dict[str, Sequence[Any]] = {}
    if costs.phases is not None:
        rows = zip(*(column.tolist() for column in _values(costs.phases).values()), strict=True)
        columns["phases"] = _records(PhasesRecord, rows)
    if costs.time_by_kind_s is not None:
        columns["time_by_kind_s"] = _records(TimeByKindRecord, costs.time_by_kind_s.tolist())
    if costs.energy_j is not None:
        columns["energy_j"] = costs.energy_j.tolist()
    if costs.collectives is not None:
        columns["collectives"] = [
            tuple(CollectiveRecord(**_values(entry)) for entry in row) for row in costs.collectives
        ]
    if costs.trained_weight_bytes is not None:
        rows = costs.trained_weight_bytes.tolist()
        columns["trained_weight_bytes"] = _records(TrainedWeightRecord, rows)
    return columns


def _records(record: type[Any], rows: Iterable[Iterable[float]]) -> list[Any]:
    """Records whose fields are the values of a row, in order."""
    names = [field.name for field in fields(record)]
    return [record(**dict(zip(names, row, strict=True))) for row in rows]


# Our own profile: everything the waist can say, as JSON; `read_profile(write_profile(x)) == x`
# ---------------------------------------------------------------------------------------------


def profile_schema() -> dict[str, Any]:
    """The JSON Schema of the format."""
    return json_schema(ProfileRecord, title="trainwright profile")


@json_text.collector_at_rest()
def read_profile(
    value: dict[str, Any],
    *,
    source: str | None = None,
    text_faults: Iterable[json_text.PathFault] = (),
) -> ProfileFile:
    """Turn a parsed profile into nouns.

    `text_faults` are those of the text itself (`scan_json`); one `InvalidInput` lists them with all
    others in document order.
    """
    refuse_newer_version(value, FORMAT_VERSION, source=source)
    faults = list(text_faults)
    record = decoder_for(ProfileRecord)(value, (), faults)
    faults += relation_faults(value)
    if faults:
        raise InvalidInput(json_text.in_document_order(faults, value), source=source)
    return from_record(record)


@json_text.collector_at_rest()
def write_profile(file: ProfileFile) -> dict[str, Any]:
    """The profile as JSON values; fields at their default are left out."""
    return encode_compact(to_record(file))
