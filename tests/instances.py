"""One instance, three spellings: a Piper JSON object, nouns of the waist, and published stages."""

from __future__ import annotations

import json

import numpy as np

from trainwright.plans import Plan, Stage
from trainwright.profile import (
    CostTable,
    Edge,
    Layer,
    Origin,
    Profile,
    ProfilePoint,
    Provenance,
    Recompute,
    Setting,
    Structure,
)


def setting_of(piper) -> Setting:
    return Setting(
        num_devices=piper["maxDevices"],
        memory_bytes=float(piper["maxMemoryPerDevice"]),
        bandwidth_bytes_per_s=float(piper["bandwidth"]),
        num_microbatches=piper["mbsInBatch"],
    )


def profile_of(piper) -> Profile:
    """The profile of a Piper object; layers that cost the same share a class."""
    ids = [node["id"] for node in piper["nodes"]]
    index_of = {id_: index for index, id_ in enumerate(ids)}
    merged = {}
    for edge in piper["edges"]:
        pair = edge["sourceId"], edge["destId"]
        merged[pair] = merged.get(pair, 0.0) + edge["communicationCost"]
    tables = [_rows(node, merged) for node in piper["nodes"]]
    distinct = list({json.dumps(rows): rows for rows in tables}.values())
    return Profile(
        structure=Structure(
            layers=tuple(
                Layer(id=node["id"], name=node["name"], layer_class=distinct.index(rows))
                for node, rows in zip(piper["nodes"], tables, strict=True)
            ),
            edges=tuple(
                Edge(source=index_of[u], target=index_of[v], bytes=size)
                for (u, v), size in merged.items()
            ),
        ),
        costs=_cost_table(distinct),
        point=ProfilePoint(tensor_parallel=tuple(sorted({r[1] for rows in tables for r in rows}))),
    )


def _rows(node, merged):
    """[option id, degree, p, w, a, b, sync bytes of incoming, then outgoing edges] per config."""
    predecessors = [str(u) for u, v in merged if v == node["id"]]
    successors = [str(v) for u, v in merged if u == node["id"]]
    return [
        [
            config["id"],
            int(t),
            config["timePerSample"],
            config["parameterSize"],
            config["memoryUsageA"],
            config["memoryUsageB"],
            [config["syncTimeFw"][u] for u in predecessors]
            + [config["syncTimeBw"][v] for v in successors],
        ]
        for t, configs in node["TMPCs"].items()
        for config in configs
    ]


def _cost_table(classes) -> CostTable:
    rows = [row for rows in classes for row in rows]
    ids, degrees, p, w, a, b, boundary = zip(*rows, strict=True)
    num_rows = len(rows)
    return CostTable(
        class_offsets=np.cumsum([0, *map(len, classes)]),
        option_ids=ids,
        tensor_parallel=np.array(degrees),
        recompute=tuple(
            Recompute.FULL if id_ == "activation recomp" else Recompute.NONE for id_ in ids
        ),
        duration_s=np.array(p, dtype=float),
        saved_until_input_grad_bytes=np.array(a, dtype=float),
        saved_until_weight_grad_bytes=np.zeros(num_rows),
        transient_bytes=np.zeros(num_rows),
        static_bytes=np.zeros((num_rows, 2, 3)),
        opaque_static_bytes=np.array(b, dtype=float),
        gradient_sync_bytes=np.stack([np.array(w, dtype=float), np.zeros(num_rows)], axis=1),
        boundary_offsets=np.cumsum([0, *map(len, boundary)]),
        boundary_bytes=np.array([value for values in boundary for value in values], dtype=float),
        provenance=Provenance(origin=Origin.IMPORTED, source="a test"),
    )


def plan_of(stages, num_microbatches) -> Plan:
    return Plan(
        stages=tuple(
            Stage.uniform(
                tuple(stage["nodes"]),
                tuple(stage["config"][str(v)] for v in stage["nodes"]),
                data_parallel=stage["d"],
                tensor_parallel=stage["t"],
            )
            for stage in stages
        ),
        num_microbatches=num_microbatches,
    )


def stages_of(plan) -> list[dict]:
    return [
        {
            "nodes": list(stage.layers),
            "d": stage.data_parallel,
            "t": stage.tensor_parallel,
            "config": {str(layer): option for layer, option in stage.option_of.items()},
        }
        for stage in plan.stages
    ]
