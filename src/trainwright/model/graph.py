"""The layer graph of a model at one run shape: what precedes what, and what each layer does.

Identical layers share a class, so a model with 126 blocks holds one description of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainwright.errors import Fault, InvalidInput
from trainwright.model.config import LayerKind
from trainwright.model.operator import Exchange, Operator, Parameter, SavedTensor
from trainwright.model.run_shape import RunShape


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerClass:
    """What all layers of one class do, operator by operator in forward order.

    `transient_bytes` is the most that backward needs on one device beside the saved tensors and
    whatever is recomputed: gradients of the widest activations.
    """

    kind: LayerKind
    operators: tuple[Operator, ...]
    exchanges: tuple[Exchange, ...] = ()
    transient_bytes: float = 0.0

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of all operators."""
        return tuple(p for op in self.operators for p in op.parameters)

    @property
    def saved(self) -> tuple[SavedTensor, ...]:
        """Everything backward needs when nothing is recomputed; each tensor once."""
        named = {tensor.name: tensor for op in self.operators for tensor in op.saved}
        return tuple(named.values())

    @property
    def num_parameters(self) -> int:
        """Parameters of the layer over the whole tensor group, shared ones included."""
        return sum(p.count for p in self.parameters)

    @property
    def forward_flops(self) -> float:
        """FLOPs that one device executes in the forward pass of one microbatch."""
        return sum(op.forward.flops for op in self.operators)

    @property
    def model_flops(self) -> float:
        """Forward FLOPs of one microbatch over the whole tensor group, attention in full."""
        return sum(op.model_flops for op in self.operators)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEdge:
    """A tensor from layer index `source` to `target`; `bytes` that each device sends.

    The tensor group sends it in slices, one per device (scatter-gather, or sequence parallel).
    """

    source: int
    target: int
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """Layers as indices into `classes`, the edges between them, and the shape they run at."""

    classes: tuple[LayerClass, ...]
    layers: tuple[int, ...]
    edges: tuple[TensorEdge, ...]
    run: RunShape

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for index, layer_class in enumerate(self.layers):
            if not 0 <= layer_class < len(self.classes):
                yield Fault(f"layers[{index}]", f"must name a class, got {layer_class}")
        for index, edge in enumerate(self.edges):
            if not 0 <= edge.source < edge.target < len(self.layers):
                yield Fault(f"edges[{index}]", "must lead from a layer to a later one")

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kind of each layer."""
        return tuple(self.classes[c].kind for c in self.layers)

    @property
    def num_parameters(self) -> int:
        """Parameters of the model; a tensor that several layers share counts once."""
        return sum(p.count for p in self._distinct_parameters())

    @property
    def num_trainable_parameters(self) -> int:
        """Those of them that train."""
        return sum(p.count for p in self._distinct_parameters() if p.trainable)

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token meets: of the experts the routed share."""
        return sum(p.count if p.active is None else p.active for p in self._distinct_parameters())

    def _distinct_parameters(self) -> Iterator[Parameter]:
        seen: set[str] = set()
        for layer_class in self.layers:
            for parameter in self.classes[layer_class].parameters:
                if parameter.shared is None or parameter.shared not in seen:
                    yield parameter
                if parameter.shared is not None:
                    seen.add(parameter.shared)

    @property
    def forward_flops(self) -> float:
        """FLOPs that the tensor group executes in the forward pass of one microbatch."""
        per_device = [c.forward_flops for c in self.classes]
        return self.run.tensor_parallel * sum(per_device[c] for c in self.layers)

    @property
    def model_flops(self) -> float:
        """Forward FLOPs of one microbatch, attention in full: the basis of MFU (times three)."""
        per_class = [c.model_flops for c in self.classes]
        return sum(per_class[c] for c in self.layers)

    @property
    def model_step_flops(self) -> float:
        """`model_flops` of one microbatch with its gradients; three times it where all trains."""
        per_class = [sum(op.model_step_flops for op in c.operators) for c in self.classes]
        return sum(per_class[c] for c in self.layers)

    def shared_parameters(self) -> dict[str, tuple[int, ...]]:
        """The layers (indices) that hold each shared parameter."""
        holders: dict[str, list[int]] = {}
        for index, layer_class in enumerate(self.layers):
            for parameter in self.classes[layer_class].parameters:
                if parameter.shared is not None:
                    holders.setdefault(parameter.shared, []).append(index)
        return {name: tuple(layers) for name, layers in holders.items() if len(layers) > 1}
