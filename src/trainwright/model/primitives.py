"""The few kinds of kernel a transformer is made of: matrix products, norms, elementwise chains.

Every function returns an `Operator` of one device. Traffic counts each tensor once per pass over
it, as a kernel without cache reuse between tensors would read and write it.
"""

from __future__ import annotations

from trainwright.model.config import Norm
from trainwright.model.operator import (
    NORM,
    MatrixShape,
    Operator,
    OperatorKind,
    Parameter,
    Phase,
    SavedTensor,
    Shard,
    Work,
)
from trainwright.model.run_shape import RunShape


def linear(
    name: str,
    run: RunShape,
    *,
    inputs: int,
    outputs: int,
    split: str,
    parameters: tuple[Parameter, ...],
    saved: tuple[SavedTensor, ...],
    tokens: int | None = None,
    model_outputs: int | None = None,
    matrices: int = 1,
    module: str | None = None,
    shards: int | None = None,
    dtype: str | None = None,
    model_tokens: int | None = None,
) -> Operator:
    """A matrix product [tokens, inputs] × [inputs, outputs] with its bias.

    `split` says what a group of `shards` devices (the tensor group where absent) cuts: "column"
    (outputs of the weight), "row" (its inputs), "sequence" (the tokens, where sequence parallelism
    has cut them) or "none". Both gradients cost as many FLOPs as the product itself; the weight
    gradient reads and writes its accumulator. `model_outputs` and `model_tokens` are the width and
    rows of the model where the devices compute padded or repeated ones. The tokens spread over
    `matrices` weights of one shape (experts). `dtype` is that of the precision where absent.
    """
    all_rows = run.tokens if tokens is None else tokens
    shards = run.tensor_parallel if shards is None else shards
    counted = all_rows if model_tokens is None else model_tokens
    rows = all_rows / run.sequence_shards if split == "sequence" else all_rows
    local_inputs = inputs / shards if split == "row" else inputs
    local_outputs = outputs / shards if split == "column" else outputs
    flops = 2.0 * rows * local_inputs * local_outputs
    element, weight = run.precision.activation_bytes, run.precision.weight_bytes
    held = sum(p.count_per_device for p in parameters)
    in_bytes, out_bytes = element * rows * local_inputs, element * rows * local_outputs
    accumulator = held * run.precision.gradient_bytes
    return Operator(
        name=name,
        kind=OperatorKind.GEMM,
        forward=Work(flops=flops, read_bytes=in_bytes + weight * held, written_bytes=out_bytes),
        input_grad=Work(flops=flops, read_bytes=out_bytes + weight * held, written_bytes=in_bytes),
        weight_grad=Work(
            flops=flops, read_bytes=in_bytes + out_bytes + accumulator, written_bytes=accumulator
        ),
        model_flops=2.0 * counted * inputs * (outputs if model_outputs is None else model_outputs),
        matrix=MatrixShape(
            rows=rows, inputs=local_inputs, outputs=local_outputs, matrices=matrices, split=split
        ),
        parameters=parameters,
        saved=saved,
        module=module,
        dtype=run.precision.matmul_dtype if dtype is None else dtype,
    )


def linear_input(
    name: str,
    run: RunShape,
    *,
    width: int,
    shard: Shard,
    dropped_by: str | None = None,
    is_layer_input: bool = False,
    tokens: int | None = None,
    element_bytes: int | None = None,
    serves_input_grad: bool = False,
) -> SavedTensor:
    """The input of a linear layer, which its weight gradient needs; kept as the precision says."""
    return SavedTensor(
        name=name,
        elements=(run.tokens if tokens is None else tokens) * width,
        element_bytes=element_bytes or run.precision.linear_input_bytes,
        shard=shard,
        until=Phase.WEIGHT_GRAD,
        dropped_by=dropped_by,
        is_layer_input=is_layer_input,
        serves_input_grad=serves_input_grad,
    )


def norm(
    name: str,
    run: RunShape,
    *,
    kind: Norm,
    width: int,
    is_layer_input: bool = False,
) -> Operator:
    """A norm over `width` features: keeps its input; with sequence parallelism 1/t of the rows."""
    elements = run.tokens * width
    size = run.precision.activation_bytes * elements / run.sequence_shards
    kept = SavedTensor(
        name=f"{name}.input",
        elements=elements,
        element_bytes=run.precision.activation_bytes,
        shard=Shard.SEQUENCE,
        until=Phase.INPUT_GRAD,
        is_layer_input=is_layer_input,
    )
    return Operator(
        name=name,
        kind=OperatorKind.MEMORY,
        forward=Work(read_bytes=size, written_bytes=size),
        input_grad=Work(read_bytes=2 * size, written_bytes=size),
        parameters=norm_parameters(name, kind=kind, width=width),
        saved=(kept,),
        module=NORM,
    )


def norm_parameters(name: str, *, kind: Norm, width: int) -> tuple[Parameter, ...]:
    """The weight of a norm, and its bias where it has one."""
    weight = Parameter(name=f"{name}.weight", count=width)
    if not kind.has_bias:
        return (weight,)
    return (weight, Parameter(name=f"{name}.bias", count=width))


def elementwise(
    name: str,
    run: RunShape,
    *,
    elements: float,
    forward: tuple[float, float],
    backward: tuple[float, float],
    saved: tuple[SavedTensor, ...] = (),
    parameters: tuple[Parameter, ...] = (),
    module: str | None = None,
) -> Operator:
    """A chain of elementwise kernels over `elements` values of one device.

    `forward` and `backward` are (tensors read, tensors written) at activation width.
    """
    size = run.precision.activation_bytes * elements
    return Operator(
        name=name,
        kind=OperatorKind.MEMORY,
        forward=Work(read_bytes=forward[0] * size, written_bytes=forward[1] * size),
        input_grad=Work(read_bytes=backward[0] * size, written_bytes=backward[1] * size),
        parameters=parameters,
        saved=saved,
        module=module,
    )


def residual_add(name: str, run: RunShape, *, width: int, dropout: float) -> Operator:
    """Dropout (with a one-byte mask where there is any), then the residual addition.

    Backward adds the gradients of the two branches and applies the mask.
    """
    elements = run.tokens * width
    local = elements / run.sequence_shards
    size = run.precision.activation_bytes * local
    mask = local if dropout > 0 else 0.0
    kept = SavedTensor(
        name=f"{name}.dropout_mask",
        elements=elements,
        element_bytes=1,
        shard=Shard.SEQUENCE,
        until=Phase.INPUT_GRAD,
    )
    return Operator(
        name=name,
        kind=OperatorKind.MEMORY,
        forward=Work(read_bytes=2 * size, written_bytes=size + mask),
        input_grad=Work(read_bytes=2 * size + mask, written_bytes=size),
        saved=(kept,) if dropout > 0 else (),
    )
