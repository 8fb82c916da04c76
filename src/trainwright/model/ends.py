"""What stands before and after the blocks: embedding, final norm, head transform, head, loss.

The loss is a layer of its own because of its size: with a vocabulary of 128,256 and 8,192 tokens
one copy of the logits in 16 bit is 2 GiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainwright.model.config import Head, LayerKind, Norm, TransformerConfig
from trainwright.model.operator import (
    Exchange,
    LayerClass,
    Operator,
    OperatorKind,
    Parameter,
    Phase,
    SavedTensor,
    Shard,
    Work,
    elementwise,
    in_pieces,
    inside,
    linear,
    linear_input,
    norm,
    residual_add,
)
from trainwright.model.run_shape import RunShape

WORD_EMBEDDING = "word_embedding"
HEAD = "head"

# Passes over the logits, in bytes per logit, counted from the public vocabulary-parallel cross
# entropy of Megatron-LM: cast 2 + 4, maximum 4, subtract 8, exponential 8, sum 4, divide 8 forward;
# scale 8 and cast 4 + 2 backward. A fused kernel reads twice and leaves the gradient in place.
_LOSS_BYTES = {False: (38.0, 14.0), True: (6.0, 4.0)}


def embedding_operators(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """Look-up of words, positions and token types; then a norm, a projection, dropout if any.

    The output is kept by the first block, as its input, not here.
    """
    lookup = _lookup(config, run)
    operators = [lookup]
    if config.embedding_norm:
        operators.append(norm("embedding_norm", run, kind=Norm.LAYER, width=config.hidden_size))
    if config.projection_size is not None:
        operators.append(_projection(config, run, "project_in"))
    if config.layer_inputs:
        operators += _all_layer_inputs(config, run)
    if config.hidden_dropout > 0:
        operators.append(_dropout(config, run))
    return tuple(operators)


# Inputs of each block's own (Gemma 3n, 2025)
# -------------------------------------------
# Of every word each block i has a vector of p features, and a product of the embedding another; the
# norm of that and the first are added. Behind its halves block i adds
#
#     norm(W_out (act(W_in x) · input_i))        W_in [h, p], W_out [p, h]
#
# The inputs of later blocks travel along with the hidden state.


def _all_layer_inputs(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """The table's vectors of all blocks, and the product and norm beside them."""
    h, width = config.hidden_size, config.layer_inputs * config.num_layers
    words = config.layer_input_words * width
    elements = run.tokens * width / run.sequence_shards
    return (
        elementwise(
            "layer_inputs_lookup",
            run,
            elements=elements,
            forward=(1, 1),
            backward=(1, 1),
            parameters=(
                Parameter(name="layer_inputs.weight", count=words, shards=run.tensor_parallel),
            ),
        ),
        _whole_product("layer_inputs_product", run, inputs=h, outputs=width),
        elementwise(
            "layer_inputs_norm",
            run,
            elements=elements,
            forward=(2, 1),
            backward=(3, 1),
            saved=(_kept_whole("layer_inputs_norm.input", run, width),),
            parameters=(Parameter(name="layer_inputs_norm.weight", count=config.layer_inputs),),
        ),
    )


def layer_input_operators(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """What a block adds of its own input."""
    if not config.layer_inputs:
        return ()
    h, p = config.hidden_size, config.layer_inputs
    weighed = elementwise(
        "layer_input_activation",
        run,
        elements=run.tokens * p / run.sequence_shards,
        forward=(2, 1),
        backward=(3, 2),
        saved=(_kept_whole("layer_input_activation.input", run, 2 * p),),
    )
    return (
        _whole_product("layer_input_in", run, inputs=h, outputs=p),
        weighed,
        _whole_product("layer_input_out", run, inputs=p, outputs=h),
        norm("layer_input_norm", run, kind=config.norm, width=h),
        residual_add("layer_input_residual", run, width=h, dropout=0.0),
    )


def _whole_product(name: str, run: RunShape, *, inputs: int, outputs: int) -> Operator:
    return linear(
        name,
        run,
        inputs=inputs,
        outputs=outputs,
        split="sequence",
        parameters=(Parameter(name=f"{name}.weight", count=inputs * outputs),),
        saved=(linear_input(f"{name}.input", run, width=inputs, shard=Shard.SEQUENCE),),
    )


def _kept_whole(name: str, run: RunShape, width: int) -> SavedTensor:
    return SavedTensor(
        name=name,
        elements=run.tokens * width,
        element_bytes=run.precision.activation_bytes,
        shard=Shard.SEQUENCE,
        until=Phase.INPUT_GRAD,
    )


def final_norm_operators(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """The norm after the last block."""
    return (norm("final_norm", run, kind=config.norm, width=config.hidden_size),)


def head_transform_operators(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """BERT's pooler on one token per sequence, and the dense layer and norm before its head."""
    operators: list[Operator] = []
    if config.pooler:
        operators.append(_square(config, run, "pooler", tokens=run.microbatch_size))
        if config.num_classes and config.head is Head.LANGUAGE:
            biased, each = replace(config, head_bias=True), run.microbatch_size
            operators.append(_classifier(biased, run, name="next_sentence", tokens=each))
    if config.mlm_transform:
        operators.append(_square(config, run, "mlm_transform", tokens=run.tokens))
        operators.append(_transform_activation(config, run))
        operators.append(norm("mlm_norm", run, kind=config.norm, width=config.hidden_size))
    return tuple(operators)


def head_operators(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """The product with the vocabulary matrix, sharded over it."""
    if config.head is Head.CLASSES:
        return (_classifier(config, run, name="head", tokens=run.tokens),)
    size = run.padded(config.vocabulary_size)
    width = config.word_width
    parameters = [_vocabulary_matrix(config, run, name=HEAD)]
    names = ["head.bias"] * config.head_bias
    if config.mlm_transform and not config.tied_embeddings:
        names.append("head.transform_bias")  # which BERT's classes hold, and add if tied alone
    parameters += [Parameter(name=name, count=size, shards=run.tensor_parallel) for name in names]
    product = linear(
        "head",
        run,
        inputs=width,
        outputs=size,
        split="column",
        parameters=tuple(parameters),
        saved=(
            linear_input(
                "head.input",
                run,
                width=width,
                shard=Shard.SEQUENCE,
                element_bytes=run.precision.activation_bytes,
            ),
        ),
        model_outputs=config.vocabulary_size,
        dtype=run.precision.base_dtype,
    )
    if run.loss_chunk is not None:
        product = replace(in_pieces(product, run.tokens / run.loss_tokens), saved=product.saved)
    if config.projection_size is None:
        return (product,)
    return (_projection(config, run, "project_out"), product)


def _classifier(config: TransformerConfig, run: RunShape, *, name: str, tokens: int) -> Operator:
    """A product with one column per class, whole on every device."""
    h, classes = config.hidden_size, config.num_classes
    parameters = [Parameter(name=f"{name}.weight", count=h * classes)]
    if config.head_bias:
        parameters.append(Parameter(name=f"{name}.bias", count=classes))
    kept = linear_input(f"{name}.input", run, width=h, shard=Shard.SEQUENCE, tokens=tokens)
    return linear(
        name,
        run,
        inputs=h,
        outputs=classes,
        split="sequence",
        parameters=tuple(parameters),
        saved=(kept,),
        tokens=tokens,
        dtype=run.precision.base_dtype,
    )


def logits_per_token(config: TransformerConfig, run: RunShape) -> int:
    """Over the tensor group."""
    if config.head is Head.LANGUAGE:
        return run.padded(config.vocabulary_size)
    return config.num_classes


def loss_operators(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """Cross entropy over a sharded vocabulary.

    Unfused, the float32 softmax is kept and backward adds a gradient at activation width; fused,
    the gradient overwrites the logits.
    """
    elements = run.tokens * logits_per_token(config, run)
    local = elements / run.tensor_parallel
    forward, backward = _LOSS_BYTES[run.fused_cross_entropy]
    kept = SavedTensor(
        name="loss.softmax",
        elements=elements,
        element_bytes=run.precision.activation_bytes if run.fused_cross_entropy else 4,
        shard=Shard.TENSOR,
        until=Phase.INPUT_GRAD,
    )
    loss = Operator(
        name="cross_entropy",
        kind=OperatorKind.MEMORY,
        forward=Work(read_bytes=forward * local),
        input_grad=Work(read_bytes=backward * local),
        saved=(kept,),
    )
    chunked = run.loss_chunk is not None
    return (in_pieces(loss, run.tokens / run.loss_tokens) if chunked else loss,)


def head_transient_bytes(config: TransformerConfig, run: RunShape) -> float:
    """Gradients of the logits and of the head's input; in chunks the logits themselves, too."""
    logits = run.loss_tokens * logits_per_token(config, run) / run.tensor_parallel
    inputs = run.tokens * config.word_width
    element = run.precision.activation_bytes
    kept = 0.0
    if run.loss_chunk is not None:
        kept = logits * (element if run.fused_cross_entropy else element + 4)
    return element * (logits + inputs) + kept


def loss_transient_bytes(config: TransformerConfig, run: RunShape) -> float:
    """The logits' gradient, unless a fused kernel writes it over the logits."""
    if run.fused_cross_entropy or run.loss_chunk is not None:
        return 0.0
    local = run.tokens * logits_per_token(config, run) / run.tensor_parallel
    return run.precision.activation_bytes * local


def embedding_exchanges(config: TransformerConfig, run: RunShape) -> tuple[Exchange, ...]:
    """Each device looks up its part of the vocabulary; the parts are summed."""
    kind = "reduce_scatter" if run.sequence_parallel else "all_reduce"
    width = config.word_width
    payload = float(run.tokens * width * run.precision.activation_bytes)
    if run.tensor_parallel == 1:
        return ()
    forward = Exchange(axis="tensor", kind=kind, bytes=payload, phase=Phase.FORWARD)
    if not run.sequence_parallel:
        return (forward,)
    gather = Exchange(axis="tensor", kind="all_gather", bytes=payload, phase=Phase.WEIGHT_GRAD)
    return (forward, gather)


def head_exchanges(config: TransformerConfig, run: RunShape) -> tuple[Exchange, ...]:
    """The input of the head is gathered forward; its gradient is reduced backward."""
    if run.tensor_parallel == 1 or config.head is not Head.LANGUAGE:
        return ()
    width = config.word_width
    payload = float(run.tokens * width * run.precision.activation_bytes)
    if not run.sequence_parallel:
        return (Exchange(axis="tensor", kind="all_reduce", bytes=payload, phase=Phase.INPUT_GRAD),)
    return (
        Exchange(axis="tensor", kind="all_gather", bytes=payload, phase=Phase.FORWARD),
        Exchange(axis="tensor", kind="reduce_scatter", bytes=payload, phase=Phase.INPUT_GRAD),
        Exchange(
            axis="tensor",
            kind="all_gather",
            bytes=payload,
            phase=Phase.INPUT_GRAD,
            hides_under="head",
        ),
    )


def loss_exchanges(run: RunShape) -> tuple[Exchange, ...]:
    """The maximum and the sum of each token's logits, in float32."""
    if run.tensor_parallel == 1:
        return ()
    each = Exchange(axis="tensor", kind="all_reduce", bytes=4.0 * run.tokens, phase=Phase.FORWARD)
    return (each, each)


def _vocabulary_matrix(config: TransformerConfig, run: RunShape, *, name: str) -> Parameter:
    """The embedding or the head; further predicted tokens use the same two matrices."""
    width = config.word_width
    shared = WORD_EMBEDDING if config.tied_embeddings or name != HEAD else HEAD
    return Parameter(
        name=f"{name}.weight",
        count=run.padded(config.vocabulary_size) * width,
        shards=run.tensor_parallel,
        shared=shared if _has_copies(config) else None,
    )


def _has_copies(config: TransformerConfig) -> bool:
    """Whether another layer uses the embedding or the head as well."""
    reads = config.crosses and config.towers[0].words
    return config.tied_embeddings or config.num_mtp_layers > 0 or reads


def _lookup(config: TransformerConfig, run: RunShape) -> Operator:
    h, width = config.hidden_size, config.word_width
    parameters = [_vocabulary_matrix(config, run, name=WORD_EMBEDDING)]
    for name, count in (
        ("position_embedding", config.max_positions),
        ("token_type_embedding", config.num_token_types),
    ):
        if count:
            parameters.append(Parameter(name=f"{name}.weight", count=count * h))
    tokens = run.tokens * width
    element, gradient = run.precision.activation_bytes, run.precision.gradient_bytes
    ids = SavedTensor(
        name="token_ids",
        elements=run.tokens,
        element_bytes=8,
        shard=Shard.REPLICATED,
        until=Phase.WEIGHT_GRAD,
        is_layer_input=True,
    )
    return Operator(
        name="embedding",
        kind=OperatorKind.MEMORY,
        forward=Work(read_bytes=element * tokens, written_bytes=element * tokens),
        weight_grad=Work(read_bytes=(element + gradient) * tokens, written_bytes=gradient * tokens),
        parameters=tuple(parameters),
        saved=(ids,),
    )


def _dropout(config: TransformerConfig, run: RunShape) -> Operator:
    elements = run.tokens * config.hidden_size
    mask = SavedTensor(
        name="embedding.dropout_mask",
        elements=elements,
        element_bytes=1,
        shard=Shard.SEQUENCE,
        until=Phase.INPUT_GRAD,
    )
    return elementwise(
        "embedding_dropout",
        run,
        elements=elements / run.sequence_shards,
        forward=(1, 1.5),
        backward=(1.5, 1),
        saved=(mask,),
    )


def _projection(config: TransformerConfig, run: RunShape, name: str) -> Operator:
    narrow = config.word_width
    inputs, outputs = narrow, config.hidden_size
    if name == "project_out":
        inputs, outputs = outputs, inputs
    return linear(
        name,
        run,
        inputs=inputs,
        outputs=outputs,
        split="none",
        parameters=(Parameter(name=f"{name}.weight", count=inputs * outputs),),
        saved=(linear_input(f"{name}.input", run, width=inputs, shard=Shard.SEQUENCE),),
    )


def _square(config: TransformerConfig, run: RunShape, name: str, *, tokens: int) -> Operator:
    h = config.hidden_size
    parameters = (
        Parameter(name=f"{name}.weight", count=h * h),
        Parameter(name=f"{name}.bias", count=h),
    )
    kept = linear_input(f"{name}.input", run, width=h, shard=Shard.REPLICATED, tokens=tokens)
    return linear(
        name,
        run,
        inputs=h,
        outputs=h,
        split="none",
        parameters=parameters,
        saved=(kept,),
        tokens=tokens,
    )


def _transform_activation(config: TransformerConfig, run: RunShape) -> Operator:
    elements = run.tokens * config.hidden_size
    kept = SavedTensor(
        name="mlm_activation.input",
        elements=elements,
        element_bytes=run.precision.activation_bytes,
        shard=Shard.REPLICATED,
        until=Phase.INPUT_GRAD,
    )
    return elementwise(
        "mlm_activation", run, elements=elements, forward=(1, 1), backward=(2, 1), saved=(kept,)
    )


# A layer that predicts one token further: DeepSeek-V3 (2024), section 2.2
# ------------------------------------------------------------------------
# It norms the hidden state and the embedding of the next token, projects the pair back to the
# hidden size, passes it through a block of the model's last kind, or through several (Nemotron 3),
# and has a norm, the head and a loss of its own. Embedding and head are those of the model, so a
# stage that holds this layer holds them too.


def mtp_layer(
    config: TransformerConfig, run: RunShape, *, blocks: Sequence[LayerClass]
) -> LayerClass:
    """Embedding, two norms, projection, `blocks`, norm, head and loss as one layer."""
    h, kind = config.hidden_size, config.norm
    operators = (
        *embedding_operators(config, run),
        norm("mtp_embedding_norm", run, kind=kind, width=h),
        norm("mtp_hidden_norm", run, kind=kind, width=h, is_layer_input=True),
        _joining_projection(config, run),
        *(inside(operator) for block in blocks for operator in block.operators),
        norm("mtp_output_norm", run, kind=kind, width=h),
        *_head(config, run),
        *loss_operators(config, run),
    )
    loss_bytes = head_transient_bytes(config, run) + loss_transient_bytes(config, run)
    return LayerClass(
        kind=LayerKind.MTP,
        operators=operators,
        exchanges=(
            *embedding_exchanges(config, run),
            *_projection_exchanges(config, run),
            *(exchange for block in blocks for exchange in block.exchanges),
            *head_exchanges(config, run),
            *loss_exchanges(run),
        ),
        transient_bytes=max(loss_bytes, *(block.transient_bytes for block in blocks)),
    )


def _joining_projection(config: TransformerConfig, run: RunShape) -> Operator:
    h = config.hidden_size
    weight = Parameter(name="mtp_projection.weight", count=2 * h * h, shards=run.tensor_parallel)
    return linear(
        "mtp_projection",
        run,
        inputs=2 * h,
        outputs=h,
        split="column",
        parameters=(weight,),
        saved=(linear_input("mtp_projection.input", run, width=2 * h, shard=Shard.SEQUENCE),),
    )


def _projection_exchanges(config: TransformerConfig, run: RunShape) -> tuple[Exchange, ...]:
    """The pair of inputs is whole on every device, and so is the projection's output."""
    if run.tensor_parallel == 1:
        return ()
    out = float(run.tokens * config.hidden_size * run.precision.activation_bytes)

    def exchange(kind: str, size: float, phase: Phase) -> Exchange:
        return Exchange(axis="tensor", kind=kind, bytes=size, phase=phase)

    if not run.sequence_parallel:
        return (
            exchange("all_gather", out, Phase.FORWARD),
            exchange("all_reduce", 2 * out, Phase.INPUT_GRAD),
        )
    return (
        exchange("all_gather", 2 * out, Phase.FORWARD),
        exchange("all_to_all", out, Phase.FORWARD),
        exchange("all_to_all", out, Phase.INPUT_GRAD),
        exchange("reduce_scatter", 2 * out, Phase.INPUT_GRAD),
    )


def _head(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """The head; where it is tied, the layer holds the matrix as its embedding already."""
    operators = head_operators(config, run)
    if not config.tied_embeddings:
        return operators
    return tuple(
        replace(op, parameters=tuple(p for p in op.parameters if p.shared is None))
        for op in operators
    )
