"""Lines measured units up as a layer graph. Needs torch; imported by `torch_trace` alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import torch

from trainwright.formats.torch_counting import Traffic
from trainwright.formats.torch_units import Measure, Pass, Unit, run_alone
from trainwright.model import (
    LayerClass,
    LayerGraph,
    LayerKind,
    Operator,
    OperatorKind,
    Parameter,
    Phase,
    RunShape,
    SavedTensor,
    Shard,
    TensorEdge,
    Work,
)

# A flash kernel computes the scores again: five products backward to two forward.
_FUSED_BACKWARD = 2.5
OUTSIDE = "outside of all units"


def traced_graph(
    module: torch.nn.Module, whole: Pass, run: RunShape
) -> tuple[LayerGraph, tuple[str, ...]]:
    """The chain of calls, and after them what no unit accounts for; with the layers' names."""
    shared = _shared_names(module, whole)
    measures: dict[Hashable, Measure] = {}
    classes: list[LayerClass] = []
    class_of: dict[Hashable, int] = {}
    layers, last = [], len(whole.calls) - 1
    for position, call in enumerate(whole.calls):
        if call.key not in measures:
            measures[call.key] = run_alone(call)
        kind = _kind(call.unit, whole, position)
        held = tuple(sorted(_own_shared(call.unit, shared).items()))
        # Layers of a class have edges alike, so the ends of the chain have classes of their own.
        key = (call.key, kind, held, position == 0, position == last)
        if key not in class_of:
            class_of[key] = len(classes)
            parameters = _parameters(call.unit.module, _own_shared(call.unit, shared))
            classes.append(_layer(kind, measures[call.key], parameters))
        layers.append(class_of[key])
    names = [call.unit.name or type(module).__name__ for call in whole.calls]
    rest = _rest(module, whole, [measures[call.key] for call in whole.calls])
    if rest is not None:
        layers.append(len(classes))
        classes.append(rest)
        names.append(OUTSIDE)
    edges = tuple(
        TensorEdge(source=i, target=i + 1, bytes=float(whole.calls[i].output_bytes))
        for i in range(len(layers) - 1)
    )
    graph = LayerGraph(classes=tuple(classes), layers=tuple(layers), edges=edges, run=run)
    return graph, tuple(names)


def _kind(unit: Unit, whole: Pass, position: int) -> LayerKind:
    """What a unit looks like: by its type, and by whether blocks come before it."""
    if isinstance(unit.module, torch.nn.Embedding):
        return LayerKind.EMBEDDING
    if unit.repeated:
        return LayerKind.BLOCK
    after_blocks = any(call.unit.repeated for call in whole.calls[:position])
    if after_blocks and isinstance(unit.module, torch.nn.Linear):
        return LayerKind.LM_HEAD
    if after_blocks and "norm" in type(unit.module).__name__.lower():
        return LayerKind.FINAL_NORM
    return LayerKind.BLOCK


def _shared_names(module: torch.nn.Module, whole: Pass) -> dict[int, str]:
    """Parameters (by identity) that several calls hold, with a name for each."""
    holders = Counter(id(p) for call in whole.calls for p in call.unit.module.parameters())
    return {id(p): name for name, p in module.named_parameters() if holders[id(p)] > 1}


def _own_shared(unit: Unit, shared: dict[int, str]) -> dict[str, str]:
    return {n: shared[id(p)] for n, p in unit.module.named_parameters() if id(p) in shared}


def _parameters(module: torch.nn.Module, shared: dict[str, str]) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(name=name, count=p.numel(), trainable=p.requires_grad, shared=shared.get(name))
        for name, p in module.named_parameters()
    )


def _layer(kind: LayerKind, found: Measure, parameters: tuple[Parameter, ...]) -> LayerClass:
    """Products, attention and everything else as one operator each."""
    kept = (
        _kept("input", found.input_bytes, is_layer_input=True),
        _kept("kept", found.saved_bytes),
    )
    saved = tuple(tensor for tensor in kept if tensor.elements)
    operators = [_products(found, parameters, saved)]
    if found.attention_flops:
        operators.append(_attention(found))
    operators.append(_elementwise(found.forward, found.backward))
    return LayerClass(
        kind=kind, operators=tuple(operators), transient_bytes=float(2 * found.output_bytes)
    )


def _kept(name: str, size: int, *, is_layer_input: bool = False) -> SavedTensor:
    return SavedTensor(
        name=name,
        elements=size,
        element_bytes=1,
        shard=Shard.TENSOR,
        until=Phase.WEIGHT_GRAD,
        is_layer_input=is_layer_input,
    )


def _products(
    found: Measure, parameters: tuple[Parameter, ...], saved: tuple[SavedTensor, ...]
) -> Operator:
    """All matrix products outside of attention; traffic is split like the FLOPs."""
    attention = found.attention_flops
    backward = 2 * attention if found.input_grad_flops else 0
    forward, first = found.forward_flops - attention, found.input_grad_flops - backward
    last = found.weight_grad_flops
    if not found.input_grad_flops and attention and last:
        last -= 2 * attention  # inputs need no gradient, but what trains before attention does
    share = first / (first + last) if first + last else 0.0
    moved = float(found.backward.products)
    return Operator(
        name="products",
        kind=OperatorKind.GEMM,
        forward=Work(flops=float(forward), read_bytes=float(found.forward.products)),
        input_grad=Work(flops=float(first), read_bytes=share * moved),
        weight_grad=Work(flops=float(last), read_bytes=(1 - share) * moved if last else 0.0),
        model_flops=float(forward),
        parameters=parameters,
        saved=saved,
    )


def _attention(found: Measure) -> Operator:
    executed = found.attention_executed
    trains = found.input_grad_flops or found.weight_grad_flops
    backward = Work(flops=_FUSED_BACKWARD * executed) if trains else Work()
    return Operator(
        name="attention",
        kind=OperatorKind.ATTENTION,
        forward=Work(flops=executed),
        input_grad=backward,
        model_flops=float(found.attention_flops),
    )


def _elementwise(forward: Traffic, backward: Traffic) -> Operator:
    return Operator(
        name="elementwise",
        kind=OperatorKind.MEMORY,
        forward=Work(read_bytes=float(forward.other)),
        input_grad=Work(read_bytes=float(backward.other)),
    )


def _rest(module: torch.nn.Module, whole: Pass, measures: list[Measure]) -> LayerClass | None:
    """What the whole pass did beyond its units: FLOPs, kept tensors, parameters of its own."""
    forward = whole.whole.forward_flops - sum(m.forward_flops for m in measures)
    gradients = [m.input_grad_flops + m.weight_grad_flops for m in measures]
    total = whole.whole.input_grad_flops + whole.whole.weight_grad_flops
    backward = max(0, total - sum(gradients))
    held = {id(p) for call in whole.calls for p in call.unit.module.parameters()}
    own = tuple(
        Parameter(name=name, count=p.numel(), trainable=p.requires_grad)
        for name, p in module.named_parameters()
        if id(p) not in held
    )
    if not (forward or own or whole.saved_outside):
        return None
    rest = Measure(
        forward_flops=forward,
        input_grad_flops=backward - backward // 2,
        weight_grad_flops=backward // 2,
        attention_flops=0,
        attention_executed=0.0,
        forward=Traffic(),
        backward=Traffic(),
        saved_bytes=whole.saved_outside,
        input_bytes=0,
        output_bytes=whole.whole.output_bytes,
    )
    return _layer(LayerKind.LOSS, rest, own)
