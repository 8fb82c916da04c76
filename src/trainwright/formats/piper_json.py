"""Piper's profile: layers with measured costs per tensor-parallel degree, and a flat setting.

The format of Tarnawski et al., "Piper: Multidimensional Planner for DNN Parallelization" (NeurIPS
2021), read more liberally than by their program: any number of configs under any names, layers that
lack degree 1, parallel edges, several components. `syncTimeFw` and `syncTimeBw` hold bytes, their
names notwithstanding. Unknown fields are ignored; every fault of the rest is named.
"""

from __future__ import annotations

from itertools import accumulate, chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright.errors import InvalidInput
from trainwright.formats.json_fields import FieldReader
from trainwright.formats.json_text import collector_at_rest, scan_json
from trainwright.formats.piper_configs import ConfigReader, Side
from trainwright.formats.piper_graph import LostEdges, PiperGraph, read_graph
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
    Structure,
)
from trainwright.profile.setting import LARGEST_COUNT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from trainwright.formats.json_path import PathFault
    from trainwright.formats.piper_configs import Row

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

RECOMPUTING_ID: Final = "activation recomp"

_BATCH_NAMES: Final = ("mbsInBatch", "maxBatchSize")


def read_piper_bytes(data: bytes, *, source: str | None = None) -> ProfileFile:
    """Read the bytes of a Piper profile; raises `InvalidInput` with all faults."""
    text = scan_json(data, source=source)
    return read_piper(text.value, source=source, text_faults=text.faults)


@collector_at_rest()
def read_piper(
    value: dict[str, Any],
    *,
    source: str | None = None,
    text_faults: Iterable[PathFault] = (),
    given: Mapping[str, float] | None = None,
    time_unit_s: float = 1.0,
) -> ProfileFile:
    """Turn a parsed Piper profile into one point and the setting it states.

    `text_faults` are those of the text itself (`scan_json`); one `InvalidInput` lists them with all
    others in document order. `given` holds valid values of `Setting` fields that stand in where the
    file lacks a header field. Sizes are in bytes; times in units of `time_unit_s` seconds, which is
    1 by the format, though there are files that hold milliseconds.
    """
    reader = FieldReader(text_faults)
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
    try:
        profile = _profile(graph, names, rows, source, time_unit_s)
    except InvalidInput as error:  # the only rule left to the nouns: no cycles
        raise InvalidInput(error.faults, source=source) from None
    return ProfileFile(profiles=(profile,), setting=Setting(**header))


def _read_header(
    reader: FieldReader, value: dict[str, Any], given: Mapping[str, float]
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
    reader: FieldReader, graph: PiperGraph, nodes: list[Any]
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
        class_offsets=_offsets(map(len, classes)),
        option_ids=tuple(row.option_id for row in rows),
        tensor_parallel=np.array([row.tensor_parallel for row in rows], dtype=np.int64),
        recompute=tuple(_recompute(row.option_id) for row in rows),
        duration_s=_column(row.duration_s * time_unit_s for row in rows),
        saved_until_input_grad_bytes=_column(row.saved_bytes for row in rows),
        saved_until_weight_grad_bytes=np.zeros(len(rows)),
        transient_bytes=np.zeros(len(rows)),
        static_bytes=np.zeros((len(rows), 2, 3)),
        opaque_static_bytes=_column(row.static_bytes for row in rows),
        gradient_sync_bytes=sync,
        boundary_offsets=_offsets(len(row.boundary_bytes) for row in rows),
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


def _offsets(lengths: Iterable[int]) -> Ints:
    """Where each of consecutive groups starts, and the end of the last."""
    return np.fromiter(accumulate(lengths, initial=0), dtype=np.int64)
