"""The profile of a layer graph whose layers were timed.

Static bytes and edges are those of the graph, exact; times and activations are what was measured. A
block can also be recomputed whole: forward once more, its input alone kept. The collectives of a
tensor slice were not timed: they are priced on a cluster's network where one is given, and free
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from trainwright.cluster import Pool
from trainwright.costing.communication import exchange_time_s
from trainwright.costing.estimate import (
    DEFAULT_KERNELS,
    RECOMPUTABLE,
    axis_hops,
    boundary,
    cost_table,
    structure,
)
from trainwright.costing.layer import LayerPrice, kind_of_axis
from trainwright.costing.memory import (
    KEEP_ALL,
    ActivationBytes,
    activation_bytes,
    parameters_per_device,
    static_bytes,
    trained_per_device,
)
from trainwright.model import Exchange, LayerClass, LayerGraph, Phase, RunShape
from trainwright.profile import (
    Collective,
    Profile,
    ProfilePoint,
    Recompute,
    TimeKind,
)
from trainwright.profile.layer_timing import LayerTiming
from trainwright.provenance import Provenance

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
    weight, gradient = run.precision.weight_bytes, run.precision.gradient_bytes
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
