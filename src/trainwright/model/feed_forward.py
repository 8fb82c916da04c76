"""The feed-forward half of a block, dense or a mixture of experts, and recurrences, on one device.

A gated part has two input matrices (gate and up) computed as one product of twice the width; its
activation keeps both and gives their product. Experts see q·b·s/c routed tokens of each tensor
group, whatever their number; expert parallelism deals the experts out and moves the tokens to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Final

from trainwright.model.attention import FUSED_BACKWARD_RATIO, half_residual
from trainwright.model.config import Activation, Experts, TransformerConfig
from trainwright.model.mixers import Mixer, Product, StateSpace
from trainwright.model.operator import (
    EXPERT_ACTIVATION,
    MLP_ACTIVATION,
    NORM,
    Exchange,
    Operator,
    OperatorKind,
    Parameter,
    Phase,
    SavedTensor,
    Shard,
    Work,
    elementwise,
    in_pieces,
    linear,
    linear_input,
    norm,
    residual_add,
    weighed,
)
from trainwright.model.run_shape import Routing, RunShape, TokenDispatcher


class FeedForward(StrEnum):
    """Two linear layers around an activation; the names of their operators begin with it."""

    MLP = "mlp"
    EXPERT = "expert"
    SHARED_EXPERT = "shared_expert"

    @property
    def first(self) -> str:
        """The name of the operator before the activation."""
        return f"{self}_in"

    @property
    def last(self) -> str:
        """The name of the operator behind it."""
        return f"{self}_out"


def feed_forward_operators(
    config: TransformerConfig, run: RunShape, *, experts: Experts | None
) -> tuple[Operator, ...]:
    """Norm, the two linear layers with the activation between, and the residual."""
    h = config.hidden_size
    if experts is None:
        middle = _dense(config, run, part=FeedForward.MLP, width=config.ffn_size)
    else:
        middle = _mixture(config, run, experts)
    if config.receptance:
        middle = (*middle, *_receptance(config, run))
    if config.sandwich_norm:
        middle = (*middle, norm("mlp_output_norm", run, kind=config.norm, width=h))
    residual = half_residual("mlp", config, run)
    if config.shared_norm:  # that of attention
        return (*middle, residual)
    alone = not config.attends and config.mixer is None
    normed = norm("mlp_norm", run, kind=config.norm, width=h, is_layer_input=alone)
    if config.norm_after:
        return (*middle, normed, residual)
    return (normed, *middle, residual) if config.pre_norm else (*middle, residual, normed)


def _dense(
    config: TransformerConfig,
    run: RunShape,
    *,
    part: FeedForward,
    width: int,
) -> tuple[Operator, ...]:
    kept = _normed(config, run)
    layers = _two_layers(config, run, part=part, width=width, tokens=run.tokens, kept=(kept,))
    if run.mlp_tile is None:
        return layers
    tiles = run.tokens / run.mlp_tokens
    first, *rest = (in_pieces(operator, tiles) for operator in layers)
    return (replace(first, saved=layers[0].saved), *rest)


def _receptance(config: TransformerConfig, run: RunShape) -> tuple[Operator, Operator]:
    """A product with the token whose sigmoid weighs the output; whole, for the output is."""
    h = config.hidden_size
    weights = (
        Parameter(name="mlp_receptance.weight", count=h * h),
        Parameter(name="mlp_mix.weight", count=2 * h),
    )
    product = linear(
        "mlp_receptance",
        run,
        inputs=h,
        outputs=h,
        split="sequence",
        parameters=weights,
        saved=(_normed(config, run),),
    )
    factors = {"weights": h, "input": h}
    return product, weighed("mlp_receptance_product", run, factors, shard=Shard.SEQUENCE)


def _normed(config: TransformerConfig, run: RunShape) -> SavedTensor:
    """What a dense part, or the router, shared experts and their gate, all read."""
    name = "query_key_value.input" if config.shared_norm else "mlp_norm.output"
    return linear_input(name, run, width=config.hidden_size, shard=Shard.SEQUENCE, dropped_by=NORM)


def _two_layers(
    config: TransformerConfig,
    run: RunShape,
    *,
    part: FeedForward,
    width: int,
    tokens: int,
    kept: tuple[SavedTensor, ...],
    experts: Experts | None = None,
) -> tuple[Operator, ...]:
    """Input product, activation, output product, with one weight of each per expert."""
    h = config.hidden_size
    if experts is not None and experts.latent_size is not None:
        h = experts.latent_size
    cut = run.tensor_parallel if experts is None else run.expert_shards
    shard = Shard.TENSOR if experts is None else Shard.EXPERT
    routed = None if experts is None else experts.experts_per_token * run.tokens
    inner = width * (1 + config.gated)

    def parameter(name: str, count: int, shards: int) -> Parameter:
        if experts is None:
            return Parameter(name=name, count=count, shards=shards)
        return Parameter(
            name=name,
            count=experts.num_experts * count,
            shards=shards * run.expert_parallel,
            expert=True,
            active=experts.experts_per_token * count,
        )

    def weights(name: str, count: int, bias: int, bias_shards: int) -> tuple[Parameter, ...]:
        weight = parameter(f"{name}.weight", count, cut)
        biased = config.mlp_bias and (experts is None or experts.routed_bias)
        return (weight, parameter(f"{name}.bias", bias, bias_shards))[: 1 + biased]

    into = linear(
        part.first,
        run,
        inputs=h,
        outputs=inner,
        split="column",
        parameters=weights(part.first, h * inner, inner, cut),
        saved=kept,
        tokens=tokens,
        shards=cut,
        model_tokens=routed,
        matrices=1 if experts is None else experts.num_experts // run.expert_parallel,
    )
    output_input = linear_input(
        f"{part.last}.input",
        run,
        width=width,
        shard=shard,
        dropped_by=None if config.activation.keeps_only_its_output else _activation_module(part),
        tokens=tokens,
        serves_input_grad=config.activation.keeps_only_its_output,
    )
    out = linear(
        part.last,
        run,
        inputs=width,
        outputs=h,
        split="row",
        parameters=weights(part.last, width * h, h, 1),
        saved=(output_input,),
        tokens=tokens,
        shards=cut,
        model_tokens=routed,
        matrices=1 if experts is None else experts.num_experts // run.expert_parallel,
    )
    activation = _activation(config, run, part=part, width=width, tokens=tokens, shard=shard)
    return (into, activation, out)


def _activation_module(part: FeedForward) -> str:
    return EXPERT_ACTIVATION if part is FeedForward.EXPERT else MLP_ACTIVATION


def _activation(
    config: TransformerConfig,
    run: RunShape,
    *,
    part: FeedForward,
    width: int,
    tokens: int,
    shard: Shard,
) -> Operator:
    """Between the two layers; `shard` names the devices that cut its width."""
    cut = run.expert_shards if shard is Shard.EXPERT else run.tensor_parallel
    inputs = 1 + config.gated
    kept = SavedTensor(
        name=f"{part}_activation.input",
        elements=tokens * width * inputs,
        element_bytes=run.activation_input_bytes or run.precision.activation_bytes,
        shard=shard,
        until=Phase.INPUT_GRAD,
    )
    return elementwise(
        f"{part}_activation",
        run,
        elements=tokens * width / cut,
        forward=(inputs, 1),
        backward=(inputs + 1, inputs),
        saved=() if config.activation.keeps_only_its_output else (kept,),
        parameters=_scalars(config, part),
        module=_activation_module(part),
    )


def _scalars(config: TransformerConfig, part: FeedForward) -> tuple[Parameter, ...]:
    """What the activation itself learns."""
    if config.activation is not Activation.XIELU or part is FeedForward.EXPERT:
        return ()
    return (Parameter(name=f"{part}_activation.scalars", count=2),)


def _mixture(config: TransformerConfig, run: RunShape, experts: Experts) -> tuple[Operator, ...]:
    h = experts.latent_size or config.hidden_size
    routed = experts.experts_per_token * run.tokens
    rows = run.expert_rows(experts.experts_per_token, experts.num_experts)
    permuted = linear_input(
        f"{FeedForward.EXPERT.first}.input", run, width=h, shard=Shard.REPLICATED, tokens=rows
    )
    operators = (
        _router(config, run, experts),
        elementwise(
            "permute",
            run,
            elements=routed * h / run.sequence_shards,
            forward=(1, 1),
            backward=(1, 1),
        ),
        *_two_layers(
            config,
            run,
            part=FeedForward.EXPERT,
            width=experts.ffn_size,
            tokens=rows,
            kept=(permuted,),
            experts=experts,
        ),
        _unpermute(experts.latent_size or config.hidden_size, run, routed),
    )
    if experts.latent_size is not None:
        operators = (
            operators[0],
            _latent(config, run, "experts_down", config.hidden_size, experts.latent_size),
            *operators[1:],
            *_latent_norm(config, run, experts),
            _latent(config, run, "experts_up", experts.latent_size, config.hidden_size),
        )
    if experts.apart:
        own, kind = config.hidden_size, config.norm
        before = norm("experts_norm", run, kind=kind, width=own)
        operators = (before, *operators, norm("experts_output_norm", run, kind=kind, width=own))
    if experts.shared_ffn_size:
        operators += _dense(
            config, run, part=FeedForward.SHARED_EXPERT, width=experts.shared_ffn_size
        )
    if experts.apart and experts.shared_ffn_size:
        operators += (norm("shared_expert_output_norm", run, kind=kind, width=own),)
    if experts.shared_gate:
        operators += _shared_gate(config, run)
    return operators


def _shared_gate(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """A sigmoid of one product per token weighs what the shared expert gives."""
    h = config.hidden_size
    product = linear(
        "shared_gate",
        run,
        inputs=h,
        outputs=1,
        split="sequence",
        parameters=(Parameter(name="shared_gate.weight", count=h),),
        saved=(_normed(config, run),),
    )
    weighed = elementwise(
        "shared_gate_product",
        run,
        elements=run.tokens * h / run.sequence_shards,
        forward=(1, 1),
        backward=(2, 1),
        saved=(linear_input("shared_gate_product.input", run, width=h, shard=Shard.SEQUENCE),),
    )
    return (product, weighed)


def _router(config: TransformerConfig, run: RunShape, experts: Experts) -> Operator:
    """Router scores of every expert; input, logits and probabilities are kept (4·b·s·E bytes)."""
    h, count = config.hidden_size, experts.num_experts
    probabilities = SavedTensor(
        name="router.logits_and_probabilities",
        elements=2 * run.tokens * count,
        element_bytes=2,
        shard=Shard.SEQUENCE,
        until=Phase.INPUT_GRAD,
    )
    parameters = [Parameter(name="router.weight", count=h * count)]
    if experts.router_bias:
        parameters.append(Parameter(name="router.bias", count=count))
    if experts.apart:
        parameters.append(Parameter(name="router.scales", count=h + count))
    return linear(
        "router",
        run,
        inputs=h,
        outputs=count,
        split="sequence",
        parameters=tuple(parameters),
        saved=(_normed(config, run), probabilities),
        dtype=run.precision.base_dtype,
    )


def expert_exchanges(
    config: TransformerConfig, run: RunShape, experts: Experts
) -> tuple[Exchange, ...]:
    """Dispatch and combine around the experts, both ways.

    Token copies go to the devices of their experts and come back, all-to-all over the expert group;
    inside the devices that share an expert they are gathered before and scattered after. Backward,
    the gradients of what came back are dispatched and those of what was sent combined.
    """
    width = experts.latent_size or config.hidden_size
    copies = run.expert_rows(experts.experts_per_token, experts.num_experts) * width
    there, back = copies * run.precision.dispatch_bytes, copies * run.precision.activation_bytes
    routing = _routing(run, experts)
    made = []
    for phase in (Phase.FORWARD, Phase.INPUT_GRAD):
        if run.expert_parallel > 1:
            made += [
                Exchange(
                    axis="expert",
                    kind="all_to_all",
                    bytes=size / run.expert_shards,
                    phase=phase,
                    routing=routing,
                )
                for size in (there, back)
            ]
        if run.expert_shards > 1:
            made += [
                Exchange(axis="expert_tensor", kind=kind, bytes=size, phase=phase)
                for kind, size in (("all_gather", there), ("reduce_scatter", back))
            ]
    return tuple(made)


def _routing(run: RunShape, experts: Experts) -> Routing | None:
    """How tokens spread, where one copy serves all experts of a unit."""
    if run.token_dispatcher is TokenDispatcher.ALL_TO_ALL:
        return None
    return Routing(
        num_experts=experts.num_experts,
        experts_per_token=experts.experts_per_token,
        num_groups=experts.num_groups,
        groups_per_token=experts.groups_per_token,
        ranks=run.expert_parallel,
    )


def _latent_norm(config: TransformerConfig, run: RunShape, experts: Experts) -> Iterator[Operator]:
    if experts.latent_norm and experts.latent_size is not None:
        yield norm("experts_latent_norm", run, kind=config.norm, width=experts.latent_size)


def _latent(
    config: TransformerConfig, run: RunShape, name: str, inputs: int, outputs: int
) -> Operator:
    """To or from the width at which tokens meet their experts."""
    kept = _normed(config, run)
    if inputs != config.hidden_size:
        kept = linear_input(f"{name}.input", run, width=inputs, shard=Shard.SEQUENCE)
    return linear(
        name,
        run,
        inputs=inputs,
        outputs=outputs,
        split="sequence",
        parameters=(Parameter(name=f"{name}.weight", count=inputs * outputs),),
        saved=(kept,),
    )


def _unpermute(width: int, run: RunShape, routed: int) -> Operator:
    """Weighted sum of the experts' outputs; the outputs are kept for the router's gradient."""
    kept = SavedTensor(
        name="unpermute.input",
        elements=routed * width,
        element_bytes=run.precision.activation_bytes,
        shard=Shard.SEQUENCE,
        until=Phase.INPUT_GRAD,
    )
    return elementwise(
        "unpermute",
        run,
        elements=routed * width / run.sequence_shards,
        forward=(1, 1),
        backward=(2, 1),
        saved=(kept,),
    )


# Layers that mix tokens by a recurrence (`mixers`)
# -------------------------------------------------
# Products are cut by heads: the first along outputs, the last along inputs. A recurrence is one
# operator with the convolution before it and the norm after it, kernels that each read what the one
# before wrote. It keeps its inputs, and computes states again in the backward pass, which costs
# about two and a half forward passes, as with attention.


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
    element = run.channel_bytes
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
    element = run.channel_bytes
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
