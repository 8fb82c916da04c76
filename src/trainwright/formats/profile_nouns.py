"""Records of the own profile format ↔ the nouns of the waist: nested options ↔ flat columns."""

from __future__ import annotations

from dataclasses import fields
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.formats.profile_records import (
    FORMAT_VERSION,
    CircumstancesRecord,
    ClassRecord,
    CollectiveRecord,
    EdgeRecord,
    GradientSyncRecord,
    LayerRecord,
    NetworkLevelsRecord,
    OptionRecord,
    PhasesRecord,
    PointRecord,
    ProfileRecord,
    ProvenanceRecord,
    SettingRecord,
    SharedParametersRecord,
    StateBytesRecord,
    StaticBytesRecord,
    TimeByKindRecord,
    TrainedWeightRecord,
)
from trainwright.profile import (
    Collective,
    CostTable,
    Edge,
    Layer,
    PhaseTimes,
    Profile,
    ProfileFile,
    ProfilePoint,
    Provenance,
    Setting,
    SharedParameters,
    Structure,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


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
        [(state.weight, state.gradient, state.optimizer) for state in (group.dense, group.expert)]
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
        class_offsets=_offsets(len(entry.options) for entry in record.classes),
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
        boundary_offsets=_offsets(len(option.boundary_bytes) for option in options),
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


def _column(records: Sequence[object], name: str) -> Floats:
    return np.array([getattr(record, name) for record in records], dtype=np.float64)


def _table(records: Sequence[TimeByKindRecord]) -> Floats:
    return np.array([tuple(_values(record).values()) for record in records])


def _phases(records: Sequence[PhasesRecord | None]) -> PhaseTimes:
    return PhaseTimes(**{field.name: _column(records, field.name) for field in fields(PhaseTimes)})


def _collectives(option: OptionRecord) -> tuple[Collective, ...]:
    return tuple(Collective(**_values(entry)) for entry in option.collectives or ())


def _offsets(lengths: Iterable[int]) -> Ints:
    return np.fromiter(accumulate(lengths, initial=0), dtype=np.int64)


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
            StaticBytesRecord(dense=_state_record(dense), expert=_state_record(expert))
            for dense, expert in costs.static_bytes.tolist()
        ],
        "gradient_sync_bytes": [
            GradientSyncRecord(dense=dense, expert=expert)
            for dense, expert in costs.gradient_sync_bytes.tolist()
        ],
        "boundary_bytes": [tuple(costs.boundary_of(row).tolist()) for row in range(costs.num_rows)],
    }


def _state_record(values: Sequence[float]) -> StateBytesRecord:
    weight, gradient, optimizer = values
    return StateBytesRecord(weight=weight, gradient=gradient, optimizer=optimizer)


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
