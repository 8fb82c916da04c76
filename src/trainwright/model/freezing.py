"""Takes out of a chain of layers what freezing saves: gradients, their collectives, tensors."""

from __future__ import annotations

from dataclasses import replace

from trainwright.model.graph import LayerClass
from trainwright.model.layer_kind import LayerKind
from trainwright.model.operator import (
    NO_WORK,
    Exchange,
    Operator,
    OperatorKind,
    Phase,
    SavedTensor,
)
from trainwright.model.tuning import Tuning

ADAPTER_MARK = ".adapter_"


def frozen_chain(chain: list[LayerClass], tuning: Tuning) -> list[LayerClass]:
    """The chain with what `tuning` freezes; layers that stay identical stay one object."""
    made: dict[tuple[int, bool, bool], tuple[LayerClass, bool]] = {}
    tuned, reached, block = [], False, 0
    for layer in chain:
        own = block if layer.kind is LayerKind.BLOCK else None
        block += layer.kind is LayerKind.BLOCK
        below = own is not None and own < tuning.num_frozen_blocks
        key = (id(layer), reached, below)
        if key not in made:
            made[key] = _frozen_layer(layer, tuning, block=own, reached=reached)
        made_layer, reached = made[key]
        tuned.append(made_layer)
    return tuned


def _frozen_layer(
    layer: LayerClass, tuning: Tuning, *, block: int | None, reached: bool
) -> tuple[LayerClass, bool]:
    """The layer, and whether gradients flow back into what it gives out."""
    before, operators = reached, []
    for operator in layer.operators:
        adapter = ADAPTER_MARK in operator.name
        frozen = not adapter and tuning.freezes(layer.kind, block, operator.name)
        operators.append(_frozen_operator(operator, frozen=frozen, reached=reached))
        reached = reached or any(p.trainable for p in operators[-1].parameters)
    tuned = replace(
        layer,
        operators=tuple(operators),
        exchanges=tuple(x for x in layer.exchanges if _is_needed(x, layer, operators, reached)),
        transient_bytes=layer.transient_bytes if reached else 0.0,
    )
    return (tuned if tuned != layer else layer), (reached or before)


def _frozen_operator(operator: Operator, *, frozen: bool, reached: bool) -> Operator:
    if frozen:
        parameters = tuple(replace(p, trainable=False) for p in operator.parameters)
        operator = replace(operator, parameters=parameters, weight_grad=NO_WORK)
    trains = any(p.trainable for p in operator.parameters)
    if not reached and (not trains or operator.kind is OperatorKind.GEMM):
        operator = replace(operator, input_grad=NO_WORK)
    saved = tuple(t for t in operator.saved if _is_kept(t, operator, trains, reached))
    return replace(operator, saved=saved)


def _is_kept(tensor: SavedTensor, operator: Operator, trains: bool, reached: bool) -> bool:
    """Whether some gradient of the operator still needs the tensor."""
    if trains and operator.weight_grad != NO_WORK and tensor.until is Phase.WEIGHT_GRAD:
        return True
    if tensor.is_layer_input or tensor.serves_input_grad or tensor.until is Phase.INPUT_GRAD:
        return reached or (trains and operator.kind is not OperatorKind.GEMM)
    return False


def _is_needed(exchange: Exchange, layer: LayerClass, tuned: list[Operator], reached: bool) -> bool:
    """Forward collectives all are; those of gradients where there are gradients."""
    if exchange.phase is Phase.FORWARD:
        return True
    by_name = {op.name: op for op in tuned}
    if exchange.phase is Phase.WEIGHT_GRAD:
        return any(op.weight_grad != NO_WORK for op in tuned)
    hider = exchange.hides_under
    if exchange.axis == "tensor" and hider is not None:
        # The input of a product, gathered again for its weight gradient.
        return by_name[hider].weight_grad != NO_WORK
    return reached
