"""Timing every kind of layer of a model: on what, at which shapes, within which time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.errors import MissingExtra, UnsupportedFeature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.execution import Budget
    from trainwright.measuring.profile_layers import Device
    from trainwright.model import LayerGraph, TransformerConfig
    from trainwright.profile.layer_timing import LayerTiming

DEFAULT_BUDGET_S: Final = 60.0
_OPTION_OF: Final = {
    "sequence_length": "sequence",
    "tensor_parallel": "tensor",
    "microbatch_size": "micro-batch",
}


def graphs_of(
    config: TransformerConfig,
    degrees: Sequence[int],
    *,
    micro_batch: int,
    sequence: int,
    precision: str,
) -> list[LayerGraph]:
    """The layers of the model at each tensor degree."""
    from trainwright.api.inputs import naming_options
    from trainwright.model import RunShape, layer_graph
    from trainwright.model.precision import precision_named

    with naming_options(_OPTION_OF):
        return [
            layer_graph(
                config,
                RunShape(
                    microbatch_size=micro_batch,
                    sequence_length=sequence,
                    tensor_parallel=degree,
                    precision=precision_named(precision),
                ),
            )
            for degree in degrees
        ]


def open_device(kind: str | None) -> Device:
    """The device of a kind; raises `MissingExtra` without torch."""
    try:
        from trainwright.measuring.profile_layers import find_device
    except ImportError as error:
        raise MissingExtra("timing layers needs PyTorch", extra="torch") from error
    return find_device(kind)


def time_all(
    config: TransformerConfig, graphs: Sequence[LayerGraph], device: Device, budget: Budget
) -> dict[tuple[int, int], LayerTiming]:
    """Timings by (layer class, tensor degree); what does not fit is refused before any work."""
    from trainwright.execution import Progress
    from trainwright.measuring.layer_modules import refuse_untimed
    from trainwright.measuring.profile_layers import time_layer

    refuse_untimed(config, graphs[0].run)
    _refuse_too_large(graphs, device)
    waiting = [(graph, index) for graph in graphs for index in range(len(graph.classes))]
    limit_s, started_s = budget.time_limit_s or DEFAULT_BUDGET_S, budget.elapsed_s
    timings = {}
    for done, (graph, index) in enumerate(waiting):
        layer, run = graph.classes[index], graph.run
        stage = f"timing {layer.kind} at tensor degree {run.tensor_parallel}"
        budget.poll(Progress(stage=stage, elapsed_s=budget.elapsed_s))
        if budget.interrupted:  # a profile without some layers is of no use
            raise KeyboardInterrupt
        first = graph.layers.index(index)
        choices = config.block(first - 1) if 0 < first <= config.num_layers else config
        left_s = max(0.0, limit_s - (budget.elapsed_s - started_s))
        share_s = left_s / (len(waiting) - done)
        timings[index, run.tensor_parallel] = time_layer(
            layer.kind, choices, run, device=device, time_limit_s=share_s
        )
    return timings


def _refuse_too_large(graphs: Sequence[LayerGraph], device: Device) -> None:
    from trainwright.costing.measured_graph import needed_bytes
    from trainwright.units import format_bytes

    for graph in graphs:
        for layer in graph.classes:
            needed = needed_bytes(layer, graph.run)
            if needed > device.available_bytes:
                raise UnsupportedFeature(
                    f"a layer of kind {layer.kind} at tensor degree {graph.run.tensor_parallel} "
                    f"needs about {format_bytes(needed)}, and {device.name} has "
                    f"{format_bytes(device.available_bytes)} free",
                    alternative="use a smaller --micro-batch or --sequence, or a larger --tensor",
                )
