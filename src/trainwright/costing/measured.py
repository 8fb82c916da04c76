"""The profile of a model whose layers somebody timed and listed in tables.

The tables say what forward and backward of each layer take, collectives included, its parameters
and what it keeps. They do not split the backward; the update, once a step, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from trainwright.cluster import Cluster, Pool
from trainwright.costing.communication import exchange_time_s
from trainwright.costing.estimate import (
    DEFAULT_KERNELS,
    axis_hops,
    boundary,
    cost_table,
    roofline_provenance,
    structure,
)
from trainwright.costing.layer import (
    KEEP_ALL,
    RECOMPUTABLE,
    ActivationBytes,
    LayerPrice,
    Platform,
    RecomputeRule,
    activation_bytes,
    kind_of_axis,
    parameters_per_device,
    price_layer,
    static_bytes,
    trained_per_device,
)
from trainwright.errors import InvalidInput
from trainwright.model import (
    Exchange,
    LayerClass,
    LayerGraph,
    LayerKind,
    Phase,
    Precision,
    RunShape,
)
from trainwright.plans.configuration import DEFAULT_OVERLAP, Overlap
from trainwright.profile import (
    Collective,
    CostTable,
    Edge,
    Layer,
    Profile,
    ProfilePoint,
    Recompute,
    StaticKind,
    Structure,
    TimeKind,
)
from trainwright.profile.measured_model import LayerTiming, MeasuredLayers
from trainwright.provenance import Origin, Provenance

# The profile of a layer graph that did not come from hyper-parameters: a traced module
# -------------------------------------------------------------------------------------
# Such a graph runs at one shape on one device, so its profile has one tensor degree. A block is
# kept whole or recomputed whole; what a traced layer keeps has no modules to recompute apart.

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


# The profile of a layer graph whose layers were timed
# ----------------------------------------------------
# Static bytes and edges are those of the graph, exact; times and activations are what was measured.
# A block can also be recomputed whole: forward once more, its input alone kept. The collectives of
# a tensor slice were not timed: they are priced on a cluster's network where one is given, and free
# otherwise.

Timings = Mapping[tuple[int, int], LayerTiming]


def needed_bytes(layer: LayerClass, run: RunShape) -> float:
    """What timing one layer takes at least: weights, their gradients, what a pass keeps."""
    weights = sum(parameters_per_device(layer)) * run.precision.weight_bytes
    held = activation_bytes(layer, run, KEEP_ALL)
    return 2 * weights + held.until_input_grad + held.until_weight_grad + held.transient


def profile_of_timings(
    graphs: Sequence[LayerGraph],
    timings: Timings,
    *,
    device_kind: str,
    provenance: Provenance,
    pool: Pool | None = None,
) -> Profile:
    """Line up timings by (layer class, tensor degree) of graphs that differ in degree only.

    `pool` prices the collectives between the slices of a layer.
    """
    rows: list[list[LayerPrice]] = [[] for _ in graphs[0].classes]
    for graph in graphs:
        for index, layer in enumerate(graph.classes):
            timing = timings[index, graph.run.tensor_parallel]
            rows[index] += _prices(layer, graph.run, timing, pool)
    run = graphs[0].run
    point = ProfilePoint(
        microbatch_size=run.microbatch_size,
        sequence_length=run.sequence_length,
        tensor_parallel=tuple(graph.run.tensor_parallel for graph in graphs),
        precision=run.precision.name,
        recompute=(str(Recompute.NONE), str(Recompute.FULL)),
        device_kind=device_kind,
        kernels=DEFAULT_KERNELS,
    )
    table = cost_table(rows, boundary(graphs), provenance)
    return Profile(structure=structure(graphs), costs=table, point=point)


def _prices(
    layer: LayerClass, run: RunShape, timing: LayerTiming, pool: Pool | None
) -> Iterator[LayerPrice]:
    """The layer kept whole and, where that makes sense, recomputed whole."""
    kept = ActivationBytes(
        until_input_grad=timing.saved_until_input_grad_bytes,
        until_weight_grad=timing.saved_until_weight_grad_bytes,
        transient=timing.transient_bytes,
    )
    yield _price(layer, run, timing, pool, mode=Recompute.NONE, held=kept)
    if layer.kind in RECOMPUTABLE:
        dropped = max(0.0, timing.saved_bytes - timing.input_bytes)
        inputs = ActivationBytes(
            until_input_grad=timing.input_bytes,
            until_weight_grad=0.0,
            transient=timing.transient_bytes + dropped,
        )
        yield _price(layer, run, timing, pool, mode=Recompute.FULL, held=inputs)


def _price(
    layer: LayerClass,
    run: RunShape,
    timing: LayerTiming,
    pool: Pool | None,
    *,
    mode: Recompute,
    held: ActivationBytes,
) -> LayerPrice:
    again = mode is Recompute.FULL
    phase_s = {
        Phase.FORWARD: timing.forward_s,
        Phase.INPUT_GRAD: timing.input_grad_s,
        Phase.WEIGHT_GRAD: timing.weight_grad_s,
        Phase.RECOMPUTE: timing.forward_s if again else 0.0,
    }
    kind_s = [0.0] * len(TimeKind)
    kind_s[TimeKind.COMPUTE] = sum(phase_s.values())
    exchanges = list(layer.exchanges)
    if again:
        first = (x for x in layer.exchanges if x.phase is Phase.FORWARD)
        exchanges += [replace(exchange, phase=Phase.RECOMPUTE) for exchange in first]
    for exchange in exchanges:
        time_s = 0.0 if pool is None else _exchange_s(exchange, run, pool)
        phase_s[exchange.phase] += time_s
        kind_s[kind_of_axis(exchange.axis)] += time_s
    dense, expert = trained_per_device(layer)
    weight, gradient = run.precision.weight_bytes, run.precision.sync_bytes
    return LayerPrice(
        tensor_parallel=run.tensor_parallel,
        recompute=mode,
        phase_s=phase_s,
        kind_s=tuple(kind_s),
        activations=held,
        static_bytes=static_bytes(layer, run.precision),
        gradient_sync_bytes=(dense * gradient, expert * gradient),
        trained_weight_bytes=(dense * weight, expert * weight),
        collectives=tuple(
            Collective(
                axis=x.axis, kind=x.kind, bytes=x.bytes, phase=str(x.phase), routing=x.routing
            )
            for x in exchanges
        ),
    )


def _exchange_s(exchange: Exchange, run: RunShape, pool: Pool) -> float:
    hops = axis_hops(
        pool,
        tensor=run.tensor_parallel,
        context=1,
        expert=1,
        expert_tensor=run.expert_shards,
    )
    return exchange_time_s(exchange, hops[exchange.axis])


# The profile of a model whose layers somebody timed and listed in tables
# -----------------------------------------------------------------------

Figures = tuple[tuple[float, float], tuple[float, float, float]]
LayerKey = tuple[Figures, ...]  # one entry per tensor degree: (forward, backward), sizes


def profile_of_tables(
    layers: MeasuredLayers,
    model: str,
    accelerator: str,
    *,
    microbatch_size: int,
    tensor_parallel: Sequence[int],
    precision: Precision,
    source: str,
) -> Profile:
    """One option per tensor degree; layers with equal figures share a class.

    A microbatch that was not measured is interpolated, and the provenance says so. Raises
    `InvalidInput` where the tables lack the model, the device or a degree.
    """
    degrees = sorted(set(tensor_parallel))
    by_degree = [
        _figures(layers, model, accelerator, microbatch_size=microbatch_size, degree=degree)
        for degree in degrees
    ]
    keys = list(zip(*by_degree, strict=True))
    classes = list(dict.fromkeys(keys))
    exact = all((model, accelerator, microbatch_size, t) in layers.times_s for t in degrees)
    origin = Origin.MEASURED if exact else Origin.INTERPOLATED
    point = ProfilePoint(
        microbatch_size=microbatch_size,
        tensor_parallel=tuple(degrees),
        precision=precision.name,
        recompute=(str(Recompute.NONE),),
        device_kind=accelerator,
    )
    table = _table(
        classes,
        degrees,
        microbatch_size=microbatch_size,
        precision=precision,
        provenance=Provenance(origin=origin, source=source),
    )
    chain = _chain(keys, classes, microbatch_size)
    return Profile(structure=chain, costs=table, point=point)


def _figures(
    layers: MeasuredLayers, model: str, accelerator: str, *, microbatch_size: int, degree: int
) -> list[Figures]:
    """Of each layer: forward and backward seconds, then parameters, output and saved bytes."""
    times = layers.times_at(
        model, accelerator, microbatch_size=microbatch_size, tensor_parallel=degree
    )
    sizes = layers.sizes.get((model, degree))
    if times is None or sizes is None or len(times) != len(sizes):
        raise InvalidInput.of("csv", _missing(layers, model, accelerator, degree))
    return [((time[0], time[1]), size) for time, size in zip(times, sizes, strict=True)]


def _chain(keys: list[LayerKey], classes: list[LayerKey], microbatch_size: int) -> Structure:
    """Embedding, blocks, head; an edge carries the output of its source."""
    names = ["embedding", *["block"] * (len(keys) - 2), "lm_head"][: len(keys)]
    return Structure(
        layers=tuple(
            Layer(id=index, name=name, layer_class=classes.index(key))
            for index, (name, key) in enumerate(zip(names, keys, strict=True))
        ),
        edges=tuple(
            Edge(
                source=source,
                target=target,
                bytes=microbatch_size * min(sizes[1] for _, sizes in keys[source]),
            )
            for source, target in pairwise(range(len(keys)))
        ),
    )


def _table(
    classes: list[LayerKey],
    degrees: list[int],
    *,
    microbatch_size: int,
    precision: Precision,
    provenance: Provenance,
) -> CostTable:
    rows = [row for key in classes for row in key]
    count, none = len(rows), Recompute.NONE
    parameters = np.array([sizes[0] for _, sizes in rows])
    states = [each for each, _ in precision.state]
    static = np.zeros((count, 2, len(StaticKind)))
    static[:, 0, :] = np.outer(parameters, states)
    return CostTable(
        class_offsets=np.cumsum([0, *map(len, classes)]),
        option_ids=(str(none),) * count,
        tensor_parallel=np.array(degrees * len(classes)),
        recompute=(none,) * count,
        duration_s=np.array([sum(times_s) for times_s, _ in rows]),
        saved_until_input_grad_bytes=np.array([microbatch_size * s[2] for _, s in rows]),
        saved_until_weight_grad_bytes=np.zeros(count),
        transient_bytes=np.zeros(count),
        static_bytes=static,
        opaque_static_bytes=np.zeros(count),
        gradient_sync_bytes=np.stack((parameters * precision.sync_bytes, np.zeros(count)), axis=1),
        boundary_offsets=np.zeros(count + 1, dtype=np.int64),
        boundary_bytes=np.zeros(0),
        provenance=provenance,
    )


def _missing(layers: MeasuredLayers, model: str, accelerator: str, degree: int) -> str:
    """What is not in the tables, and what is."""
    names = sorted({name for name, *_ in layers.times_s})
    if model not in names:
        return f'must have times of model "{model}"; it has {", ".join(names)}'
    kinds = sorted({kind for name, kind, *_ in layers.times_s if name == model})
    if accelerator not in kinds:
        return f'must have times of {model} on "{accelerator}"; it has {", ".join(kinds)}'
    timed = sorted(
        {t for name, kind, _, t in layers.times_s if (name, kind) == (model, accelerator)}
    )
    sized = sorted({t for name, t in layers.sizes if name == model})
    return (
        f"must have times and sizes of the same layers of {model} at tensor degree {degree}; it "
        f"has times at {timed} and sizes at {sized}"
    )
