"""The profile of a layer graph that did not come from hyper-parameters: a traced module.

Such a graph runs at one shape on one device, so its profile has one tensor degree. A block is kept
whole or recomputed whole; what a traced layer keeps has no modules to recompute apart.
"""

from __future__ import annotations

from trainwright.cluster import Cluster
from trainwright.costing.estimate import (
    axis_hops,
    boundary,
    cost_table,
    roofline_provenance,
    structure,
)
from trainwright.costing.layer import Platform, price_layer
from trainwright.costing.memory import KEEP_ALL, RecomputeRule
from trainwright.errors import InvalidInput
from trainwright.model import LayerGraph, LayerKind
from trainwright.plan.overlap import DEFAULT_OVERLAP, Overlap
from trainwright.profile import Profile, ProfilePoint, Recompute

_WHOLE = {Recompute.NONE: KEEP_ALL, Recompute.FULL: RecomputeRule(whole_layer=True)}


def profile_of_graph(
    graph: LayerGraph,
    cluster: Cluster,
    *,
    device_kind: str | None = None,
    overlap: Overlap = DEFAULT_OVERLAP,
) -> Profile:
    """Price every layer of `graph` at its own run shape, on one device of a pool of `cluster`.

    Raises `InvalidInput` for a graph that is cut over several devices.
    """
    run = graph.run
    if (spanned := run.tensor_parallel * run.context_parallel * run.expert_parallel) > 1:
        raise InvalidInput.of("graph", f"must run on one device, is cut over {spanned}")
    pool = cluster.pool_of(device_kind)
    platform = Platform(
        accelerator=pool.accelerator,
        dtype=run.precision.base_dtype,
        hops=axis_hops(pool, tensor=1, context=1, expert=1, expert_tensor=1),
        overlap=overlap,
    )
    rows = [
        list(price_layer(layer, run, _offered(layer.kind), platform)) for layer in graph.classes
    ]
    point = ProfilePoint(
        microbatch_size=run.microbatch_size,
        sequence_length=run.sequence_length,
        tensor_parallel=(1,),
        precision=run.precision.name,
        recompute=tuple(map(str, _WHOLE)),
        device_kind=pool.accelerator.name,
    )
    table = cost_table(rows, boundary([graph]), roofline_provenance(pool))
    return Profile(structure=structure([graph]), costs=table, point=point)


def _offered(kind: LayerKind) -> dict[Recompute, RecomputeRule]:
    return _WHOLE if kind is LayerKind.BLOCK else {Recompute.NONE: KEEP_ALL}
