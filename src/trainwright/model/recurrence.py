"""Operators of layers that mix tokens by a recurrence (see `mixers`), on one device.

Products are cut by heads: the first along their outputs, the last along its inputs. The recurrence
is one operator with the convolution before it and the norm after it, kernels that each read what
the one before wrote. It keeps its inputs, and computes states again in the backward pass, which
costs about two and a half forward passes, as with attention.
"""

from __future__ import annotations

from typing import Final

from trainwright.model.attention import FUSED_BACKWARD_RATIO
from trainwright.model.config import TransformerConfig
from trainwright.model.mixers import Mixer, Product, StateSpace
from trainwright.model.operator import (
    NORM,
    Exchange,
    Operator,
    OperatorKind,
    Parameter,
    Phase,
    SavedTensor,
    Shard,
    Work,
    linear,
    linear_input,
    norm,
    residual_add,
)
from trainwright.model.run_shape import RunShape


def mixer_operators(config: TransformerConfig, mixer: Mixer, run: RunShape) -> tuple[Operator, ...]:
    """Norm, products, recurrence, last product and residual.

    Beside attention in one block the norm and the residual are those of attention.
    """
    h, t = config.hidden_size, run.tensor_parallel
    made = [_product(product, config, run) for product in mixer.products(h)]
    made.append(_recurrence(config, mixer, run))
    width = mixer.output_size
    weights = [Parameter(name="mixer_out.weight", count=width * h, shards=t)]
    if mixer.bias:
        weights.append(Parameter(name="mixer_out.bias", count=h))
    last = linear(
        "mixer_out",
        run,
        inputs=width,
        outputs=h,
        split="row",
        parameters=tuple(weights),
        saved=(linear_input("mixer_out.input", run, width=width, shard=Shard.TENSOR),),
    )
    if config.attends:
        return (*made, last)
    before = norm("mixer_norm", run, kind=config.norm, width=h, is_layer_input=True)
    residual = residual_add("mixer_residual", run, width=h, dropout=config.hidden_dropout)
    return (before, *made, last, residual)


def first_products(mixer: Mixer, hidden_size: int) -> tuple[str, ...]:
    """Operators that read the hidden state, whose outputs the tensor group cuts."""
    return tuple(
        f"mixer_{product.name}"
        for product in mixer.products(hidden_size)
        if product.inputs == hidden_size and product.is_cut
    )


def mixer_context_exchanges(
    mixer: Mixer, config: TransformerConfig, run: RunShape
) -> tuple[Exchange, ...]:
    """All-to-all from a part of the sequence to a part of the heads, and back, both ways."""
    if run.context_parallel == 1:
        return ()
    inputs = sum(p.outputs for p in mixer.products(config.hidden_size) if p.is_cut)
    element = run.precision.activation_bytes * run.tokens / run.tensor_parallel
    size = element * (inputs + mixer.output_size)
    return tuple(
        Exchange(axis="context", kind="all_to_all", bytes=size, phase=phase)
        for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
    )


def _product(product: Product, config: TransformerConfig, run: RunShape) -> Operator:
    name = f"mixer_{product.name}"
    of_hidden = product.inputs == config.hidden_size
    shards = run.tensor_parallel if product.is_cut else 1
    weights = [
        Parameter(name=f"{name}.weight", count=product.inputs * product.outputs, shards=shards)
    ]
    if product.bias:
        weights.append(Parameter(name=f"{name}.bias", count=product.outputs, shards=shards))
    normed = "query_key_value.input" if config.attends else "mixer_norm.output"
    kept = linear_input(
        normed if of_hidden else f"{name}.input",
        run,
        width=product.inputs,
        shard=Shard.SEQUENCE if of_hidden else Shard.REPLICATED,
        dropped_by=NORM if of_hidden else None,
    )
    return linear(
        name,
        run,
        inputs=product.inputs,
        outputs=product.outputs,
        split="column" if product.is_cut else "none",
        parameters=tuple(weights),
        saved=(kept,),
    )


_STATE_BYTES: Final = 4  # states between chunks are float32
# FLOPs that Mamba-2's public kernels do in the time in which elementwise kernels move a byte. Their
# products are small and masked: steps of a model of 48 layers (2,048 features, 4 x 4,096 tokens) at
# 102, 239 and 360 TFLOP/s on A100, H200 and GB200 leave 9 to 11 (state-spaces/mamba, issue 904).
# Kernels of other recurrences are twice as fast (flash-linear-attention, pull request 50).
_FLOPS_OF_A_BYTE: Final = 10.0


def _traffic(mixer: Mixer, run: RunShape, given: float) -> tuple[float, float]:
    """Bytes that the kernels of a recurrence read and write, forward.

    They run one by one: the convolution; the states of all chunks, what passes from one to the
    next, and what each token reads of them (Dao and Gu, 2024, section 6); the norm with its gate.
    Backward does each again for its gradients, as often as it does the products.
    """
    element = run.precision.activation_bytes
    state = mixer.state_elements - mixer.channels * mixer.kernel
    states = _STATE_BYTES * state / mixer.chunk if mixer.chunk else 0.0
    convolved = element * mixer.channels
    scanned = element * (mixer.channels or given) if mixer.chunk else 0.0  # read for the states too
    normed = element * mixer.output_size if mixer.norm_size else 0.0
    tokens = run.tokens / run.tensor_parallel
    read = convolved + scanned + 2 * states + element * given + 2 * normed
    written = convolved + 2 * states + element * mixer.output_size + normed
    return tokens * read, tokens * written


def _bandwidth_share(mixer: Mixer, run: RunShape, flops: float, moved: float) -> float:
    """Of the memory's bandwidth, where products keep the kernels of a recurrence longer."""
    if not isinstance(mixer, StateSpace) or not mixer.chunk:
        return 1.0
    element = run.precision.activation_bytes * run.tokens / run.tensor_parallel
    beside = element * (2 * mixer.channels + 3 * mixer.norm_size)  # convolution and norm
    return min(1.0, moved / (beside + flops / _FLOPS_OF_A_BYTE))


def _recurrence(config: TransformerConfig, mixer: Mixer, run: RunShape) -> Operator:
    """Convolution, recurrence, norm and gate."""
    t, element = run.tensor_parallel, run.precision.activation_bytes
    given = sum(p.outputs for p in mixer.products(config.hidden_size) if p.is_cut)
    convolved = 2.0 * mixer.channels * mixer.kernel
    model_flops = run.tokens * (convolved + mixer.flops_per_token)
    flops = (model_flops + run.tokens * mixer.chunk_flops_per_token) / t
    read, written = _traffic(mixer, run, given)
    own = [
        Parameter(name=f"mixer_{name}", count=count, shards=t)
        for name, count in mixer.own_parameters()
    ]
    if mixer.channels:
        weights = mixer.channels * mixer.kernel
        own.append(Parameter(name="mixer_convolution.weight", count=weights, shards=t))
        if mixer.convolution_bias:
            own.append(Parameter(name="mixer_convolution.bias", count=mixer.channels, shards=t))
    if mixer.norm_size:
        cut = t if mixer.norm_size == mixer.output_size else 1
        own.append(Parameter(name="mixer_output_norm.weight", count=mixer.norm_size, shards=cut))
    kept = SavedTensor(
        name="mixer_recurrence.input",
        elements=run.tokens * given,
        element_bytes=element,
        shard=Shard.TENSOR,
        until=Phase.INPUT_GRAD,
    )
    normed = SavedTensor(
        name="mixer_output_norm.input",
        elements=run.tokens * mixer.output_size,
        element_bytes=element,
        shard=Shard.TENSOR,
        until=Phase.INPUT_GRAD,
    )
    return Operator(
        name="mixer_recurrence",
        kind=OperatorKind.ATTENTION,
        forward=Work(flops=flops, read_bytes=read, written_bytes=written),
        input_grad=Work(
            flops=FUSED_BACKWARD_RATIO * flops,
            read_bytes=FUSED_BACKWARD_RATIO * read,
            written_bytes=FUSED_BACKWARD_RATIO * written,
        ),
        model_flops=model_flops,
        parameters=tuple(own),
        saved=(kept, normed) if mixer.norm_size else (kept,),
        dtype=run.precision.base_dtype,
        bandwidth_share=_bandwidth_share(mixer, run, flops, read + written),
    )
