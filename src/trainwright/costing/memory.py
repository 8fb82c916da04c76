"""What a layer keeps on one device: static bytes, saved activations, transients.

Everything is a sum over the layer's parameters and its list of saved tensors. Recomputing drops
tensors from that list: named modules drop those they can produce again, a full recomputation keeps
the layer's input alone. What was dropped comes back, for one layer at a time, as a transient of
backward.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.model import LayerClass, Operator, Phase, Precision, RunShape, SavedTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeRule:
    """Which saved tensors a recompute mode gives up: those of `modules`, or all but the input."""

    modules: frozenset[str] = frozenset()
    whole_layer: bool = False

    def keeps(self, tensor: SavedTensor) -> bool:
        """Whether `tensor` stays from forward to backward."""
        if self.whole_layer:
            return tensor.is_layer_input
        return tensor.dropped_by not in self.modules

    def repeats(self, operator: Operator) -> bool:
        """Whether backward runs `operator` forward again."""
        return self.whole_layer or operator.module in self.modules


KEEP_ALL = RecomputeRule()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationBytes:
    """Bytes of one microbatch on one device, by what frees them."""

    until_input_grad: float
    until_weight_grad: float
    transient: float


def parameters_per_device(layer: LayerClass) -> tuple[float, float]:
    """Dense and expert parameters that one device of the tensor group holds."""
    dense = sum(p.count_per_device for p in layer.parameters if not p.expert)
    return dense, sum(p.count_per_device for p in layer.parameters if p.expert)


def trained_per_device(layer: LayerClass) -> tuple[float, float]:
    """Of these, the parameters that have a gradient."""
    trained = [p for p in layer.parameters if p.trainable]
    dense = sum(p.count_per_device for p in trained if not p.expert)
    return dense, sum(p.count_per_device for p in trained if p.expert)


def static_bytes(layer: LayerClass, precision: Precision) -> tuple[tuple[float, ...], ...]:
    """{dense, expert} × {weight, gradient, optimizer} bytes, before any ZeRO sharding."""
    trained = trained_per_device(layer)
    return tuple(
        (
            held * precision.weight_bytes,
            count * precision.gradient_bytes,
            count * precision.optimizer_bytes,
        )
        for held, count in zip(parameters_per_device(layer), trained, strict=True)
    )


def activation_bytes(layer: LayerClass, run: RunShape, rule: RecomputeRule) -> ActivationBytes:
    """What one microbatch keeps under `rule`, and what its backward needs for a moment."""
    kept = {Phase.INPUT_GRAD: 0.0, Phase.WEIGHT_GRAD: 0.0}
    recomputed = 0.0
    for tensor in layer.saved:
        size = tensor.bytes_per_device(run)
        if rule.keeps(tensor):
            kept[tensor.until] += size
        else:
            recomputed += size
    return ActivationBytes(
        until_input_grad=kept[Phase.INPUT_GRAD],
        until_weight_grad=kept[Phase.WEIGHT_GRAD],
        transient=layer.transient_bytes + recomputed,
    )
