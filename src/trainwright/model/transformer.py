"""A transformer's layer graph from its hyper-parameters, at one run shape.

The chain is (encoders,) embedding, blocks, final norm, (BERT's head transform,) (layers
that predict further tokens,) head, loss, with every end a layer of its own so that a stage split
can place it. Blocks may differ: dense or with experts, attending in full or within a window. Which
hyper-parameters a family has is read in `formats.hf_config`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

from trainwright.errors import refuse
from trainwright.model.attention import (
    FUSED_BACKWARD_RATIO,
    attention_exchanges,
    attention_operators,
    biased_width,
    context_buffer_bytes,
    context_exchanges,
    half_exchanges,
    held_key_value_size,
)
from trainwright.model.config import (
    TRAIN_ALL,
    Experts,
    Head,
    Keys,
    LayerKind,
    Projection,
    Tower,
    TransformerConfig,
    Tuning,
)
from trainwright.model.ends import (
    embedding_exchanges,
    embedding_operators,
    final_norm_operators,
    head_exchanges,
    head_operators,
    head_transform_operators,
    head_transient_bytes,
    layer_input_operators,
    logits_per_token,
    loss_exchanges,
    loss_operators,
    loss_transient_bytes,
    mtp_layer,
)
from trainwright.model.feed_forward import (
    FeedForward,
    expert_exchanges,
    feed_forward_operators,
    first_products,
    mixer_context_exchanges,
    mixer_operators,
)
from trainwright.model.operator import (
    ATTENTION_CORE,
    NO_WORK,
    NORM,
    Exchange,
    LayerClass,
    LayerGraph,
    Operator,
    OperatorKind,
    Parameter,
    Phase,
    SavedTensor,
    Shard,
    TensorEdge,
    Work,
    elementwise,
    inside,
    linear,
    linear_input,
    norm,
    residual_add,
)
from trainwright.model.recipe import EXPERT_MARK, adapted_chain, frozen_chain, offered_targets
from trainwright.model.run_shape import ONE_TOKEN, RunShape

# Layers of an encoder: what turns patches, sound or words into vectors, its blocks, the projector
# ------------------------------------------------------------------------------------------------
# The stack of a tower is a transformer like any other, run over the patches of one image at a time;
# see `config.Tower` for what it is given. Without images a tower keeps its parameters and does no
# work. With sequence parallelism the tokens of an image are padded to a multiple of the group.


Block = Callable[[TransformerConfig, RunShape], LayerClass]


def tower_layers(config: TransformerConfig, run: RunShape, *, block: Block) -> list[LayerClass]:
    """The layers of every tower of `config` in order; `block` makes one of a stack."""
    towers = [tower.at(run.sequence_length) for tower in config.towers]
    return [layer for tower in towers for layer in _layers(tower, config, run, block)]


def tower_edge_bytes(config: TransformerConfig, run: RunShape) -> list[float]:
    """What each of these layers hands on, in bytes that one device of the tensor group sends."""
    element = run.precision.activation_bytes / run.tensor_parallel
    count = run.microbatch_size * config.images
    found = []
    for tower in (tower.at(run.sequence_length) for tower in config.towers):
        hidden = element * count * tower.patches * tower.stack.hidden_size
        width = tower.stack.hidden_size if config.crosses else config.hidden_size
        out = element * count * tower.tokens * width
        found += [hidden] * (1 + tower.stack.num_layers) + [out]
    return found


def _layers(
    tower: Tower, config: TransformerConfig, run: RunShape, block: Block
) -> Iterator[LayerClass]:
    own = image_run(run, length=tower.patches, images=config.images)
    kinds: dict[TransformerConfig, LayerClass] = {}
    made = [_front(tower, own)]
    for index in range(tower.stack.num_layers):
        stated = tower.stack.block(index)
        if stated not in kinds:
            kinds[stated] = replace(block(stated, own), kind=LayerKind.ENCODER_BLOCK)
        made.append(kinds[stated])
    made.append(_projector(tower, config, run))
    if config.images:
        yield from made
        return
    idle = {id(layer): _idle(layer) for layer in made}
    yield from (idle[id(layer)] for layer in made)


def image_run(run: RunShape, *, length: int, images: int) -> RunShape:
    """How `images` of each sequence run, each as a sequence of `length` tokens of its own."""
    shards = run.sequence_shards
    return replace(
        run,
        microbatch_size=run.microbatch_size * max(1, images),
        sequence_length=math.ceil(length / shards) * shards,
        context_parallel=1,
        expert_parallel=1,
        expert_tensor_parallel=None,
    )


def _idle(layer: LayerClass) -> LayerClass:
    """The layer with its parameters alone."""
    held = tuple(
        Operator(name=op.name, kind=op.kind, forward=NO_WORK, parameters=op.parameters)
        for op in layer.operators
        if op.parameters
    )
    return LayerClass(kind=layer.kind, operators=held)


def _front(tower: Tower, run: RunShape) -> LayerClass:
    """The product of patches, with positions and a norm where there are any."""
    if tower.words:
        return LayerClass(
            kind=LayerKind.PATCH_EMBEDDING,
            operators=embedding_operators(tower.stack, run),
            exchanges=embedding_exchanges(tower.stack, run),
        )
    h = tower.stack.hidden_size
    parameters = [Parameter(name="patch_embedding.weight", count=tower.patch_features * h)]
    if tower.patch_bias:
        parameters.append(Parameter(name="patch_embedding.bias", count=h))
    if tower.parameters:
        parameters.append(Parameter(name=f"{tower.name}_front.weight", count=tower.parameters))
    product = linear(
        "patch_embedding",
        run,
        inputs=tower.patch_features,
        outputs=h,
        split="sequence",
        parameters=tuple(parameters),
        saved=(
            linear_input(
                "patches",
                run,
                width=tower.patch_features,
                shard=Shard.SEQUENCE,
                is_layer_input=True,
                element_bytes=run.precision.activation_bytes,
            ),
        ),
        dtype=run.precision.base_dtype,
    )
    before: list[Operator] = []
    for at, narrow in enumerate(tower.front):
        rows = replace(run, sequence_length=run.sequence_length * narrow.repeats)
        before += _tower_product(narrow, rows, is_first=at == 0)
    last = inside(product) if before else product
    return LayerClass(kind=LayerKind.PATCH_EMBEDDING, operators=(*before, last))


def _projector(tower: Tower, config: TransformerConfig, run: RunShape) -> LayerClass:
    """The products between the last block and the text."""
    operators: list[Operator] = []
    if tower.normed:
        own = image_run(run, length=tower.patches, images=config.images)
        operators += final_norm_operators(tower.stack, own)
    for product in tower.projector:
        length = tower.tokens if product.merged else tower.patches
        rows = image_run(run, length=length, images=config.images)
        operators += _tower_product(product, rows, is_first=not operators)
    return LayerClass(kind=LayerKind.PROJECTOR, operators=tuple(operators))


def _tower_product(product: Projection, rows: RunShape, *, is_first: bool) -> Iterator[Operator]:
    width = product.inputs
    if product.norm is not None:
        narrow = product.norm_width or width
        before = replace(rows, sequence_length=rows.sequence_length * (width // narrow))
        yield norm(
            f"{product.name}_norm", before, kind=product.norm, width=narrow, is_layer_input=is_first
        )
    inner = product.outputs * (1 + product.gated)
    parameters = [Parameter(name=f"{product.name}.weight", count=width * inner)]
    if product.bias:
        parameters.append(Parameter(name=f"{product.name}.bias", count=inner))
    yield linear(
        product.name,
        rows,
        inputs=width,
        outputs=inner,
        split="sequence",
        parameters=tuple(parameters),
        saved=(
            linear_input(
                f"{product.name}.input",
                rows,
                width=width,
                shard=Shard.SEQUENCE,
                is_layer_input=is_first and product.norm is None,
            ),
        ),
    )
    if product.activation:
        yield _activation(product, rows, inner)
    if product.norm_after is not None:
        yield norm(
            f"{product.name}_output_norm", rows, kind=product.norm_after, width=product.outputs
        )


def _activation(product: Projection, run: RunShape, width: int) -> Operator:
    elements = run.tokens * width
    kept = SavedTensor(
        name=f"{product.name}_activation.input",
        elements=elements,
        element_bytes=run.precision.activation_bytes,
        shard=Shard.SEQUENCE,
        until=Phase.INPUT_GRAD,
    )
    return elementwise(
        f"{product.name}_activation",
        run,
        elements=elements / run.sequence_shards,
        forward=(1, 1),
        backward=(2, 1),
        saved=(kept,),
    )


# Attention of a block to what an encoder gave (Vaswani et al., 2017, section 3.2.3)
# ----------------------------------------------------------------------------------
#     q = norm(x) W_q             of the block's own s tokens
#     k, v = z W_kv               of the encoder's output z, s_z tokens
#     x = x + softmax(q kᵀ) v W_o
#
# All s·s_z pairs are scored. The encoder's output travels with the hidden state from stage to
# stage, and its gradient back. It is one tensor for all blocks of a stage, so blocks do not keep
# it; the last layer of the encoder does, and a later stage's copy is not counted.


def crossing_operators(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """Norm, products of both sides, scores and values, last product and residual."""
    h = config.hidden_size
    middle = (
        _query(config, run),
        _key_value(config, run),
        _core(config, run),
        _output(config, run),
        residual_add("cross_residual", run, width=h, dropout=config.hidden_dropout),
    )
    normed = norm("cross_norm", run, kind=config.norm, width=h)
    return (normed, *middle) if config.pre_norm else (*middle, normed)


def crossing_exchanges(config: TransformerConfig, run: RunShape) -> tuple[Exchange, ...]:
    """Collectives around both products; every block gathers the encoder's output where it is cut.

    Its gradient is summed over the tensor group, which cuts keys and values.
    """
    own = half_exchanges(run, width=config.hidden_size, column=("cross_query",))
    if run.tensor_parallel == 1:
        return own
    width = config.towers[0].stack.hidden_size
    size = float(_rows(config, run) * width * run.precision.activation_bytes)

    def exchange(kind: str, phase: Phase) -> Exchange:
        return Exchange(axis="tensor", kind=kind, bytes=size, phase=phase)

    if not run.sequence_parallel:
        return (*own, exchange("all_reduce", Phase.INPUT_GRAD))
    return (
        *own,
        exchange("all_gather", Phase.FORWARD),
        exchange("all_gather", Phase.INPUT_GRAD),
        exchange("reduce_scatter", Phase.INPUT_GRAD),
    )


def _rows(config: TransformerConfig, run: RunShape) -> int:
    """Tokens of the encoder in a microbatch."""
    return run.microbatch_size * config.towers[0].at(run.sequence_length).tokens


def _weights(
    name: str, config: TransformerConfig, run: RunShape, *, inputs: int, outputs: int, biased: int
) -> tuple[Parameter, ...]:
    t = run.tensor_parallel
    weight = Parameter(name=f"{name}.weight", count=inputs * outputs, shards=t)
    if not config.query_key_value_bias:
        return (weight,)
    return (weight, Parameter(name=f"{name}.bias", count=biased, shards=t))


def _query(config: TransformerConfig, run: RunShape) -> Operator:
    h, width = config.hidden_size, config.query_size
    dropped = NORM if config.pre_norm else None
    kept = linear_input("cross_query.input", run, width=h, shard=Shard.SEQUENCE, dropped_by=dropped)
    return linear(
        "cross_query",
        run,
        inputs=h,
        outputs=width,
        split="column",
        parameters=_weights("cross_query", config, run, inputs=h, outputs=width, biased=width),
        saved=(kept,),
    )


def _key_value(config: TransformerConfig, run: RunShape) -> Operator:
    inputs = config.towers[0].stack.hidden_size
    width = config.num_kv_heads * (config.head_size + config.value_head_size)
    biased = biased_width(config, width)
    return linear(
        "cross_key_value",
        run,
        inputs=inputs,
        outputs=width,
        split="column",
        parameters=_weights(
            "cross_key_value", config, run, inputs=inputs, outputs=width, biased=biased
        ),
        saved=(),
        tokens=_rows(config, run),
    )


def _core(config: TransformerConfig, run: RunShape) -> Operator:
    t, element, rows = run.tensor_parallel, run.precision.activation_bytes, _rows(config, run)
    width = config.query_size + config.attention_output_size
    pairs = run.tokens * rows / run.microbatch_size
    flops = 2.0 * width * pairs
    queries, outputs = run.tokens * config.query_size, run.tokens * config.attention_output_size
    keys = rows * config.num_kv_heads * (config.head_size + config.value_head_size)
    read, written = element * (queries + keys) / t, element * outputs / t

    def kept(name: str, elements: float, element_bytes: int, dropped_by: str | None) -> SavedTensor:
        return SavedTensor(
            name=name,
            elements=int(elements),
            element_bytes=element_bytes,
            shard=Shard.TENSOR,
            until=Phase.INPUT_GRAD,
            dropped_by=dropped_by,
        )

    inner = kept("cross_attention.log_sum_exp", run.tokens * config.num_heads, 4, ATTENTION_CORE)
    if not run.fused_attention:
        scores = pairs * config.num_heads
        inner = kept("cross_attention.scores", scores, element, ATTENTION_CORE)
        read, written = read + 4 * element * scores / t, written + 3 * element * scores / t
    return Operator(
        name="cross_attention",
        kind=OperatorKind.ATTENTION,
        forward=Work(flops=flops / t, read_bytes=read, written_bytes=written),
        input_grad=Work(
            flops=FUSED_BACKWARD_RATIO * flops / t,
            read_bytes=read + 2 * written,
            written_bytes=element * (queries + keys) / t,
        ),
        model_flops=flops,
        saved=(
            kept("cross_attention.query", queries, element, None),
            kept("cross_attention.key_value", keys, element, None),
            inner,
        ),
        module=ATTENTION_CORE,
        dtype=run.precision.base_dtype,
        head_size=(config.head_size + config.value_head_size) / 2 if run.fused_attention else None,
    )


def _output(config: TransformerConfig, run: RunShape) -> Operator:
    h, width = config.hidden_size, config.attention_output_size
    weights = [Parameter(name="cross_output.weight", count=width * h, shards=run.tensor_parallel)]
    if config.attention_output_bias:
        weights.append(Parameter(name="cross_output.bias", count=h))
    kept = linear_input("cross_output.input", run, width=width, shard=Shard.TENSOR)
    return linear(
        "cross_output",
        run,
        inputs=width,
        outputs=h,
        split="row",
        parameters=tuple(weights),
        saved=(kept,),
    )


# Several residual streams: each half of a block mixes them into its input and spreads its output
# -----------------------------------------------------------------------------------------------
# With n streams of the hidden size h (hyper-connections, Zhu et al., 2024; DeepSeek-V4, 2026,
# section 2.2):
#
#     w      = norm(all n·h) W      [n + n + n²]      made doubly stochastic in its last n²
#     x      = Σ w_in · stream                        the input of a half
#     stream = stream W_mix + w_out · half(x)
#
# The product is narrow, the rest is traffic: a half reads the streams twice and writes them once.
# Blocks hand on n·h features. What follows the last block takes one mixture of them.


#
# Attention residuals (Kimi K3, 2026, section 2.2) mix, too, but what lies further back: of every
# B blocks the sum of all before them is kept, and a half takes
#
#     x = Σ softmax(w · norm(v)) v      over those sums and what blocks gave since the last
#
# instead of the one sum. Sources differ from block to block; each is priced with their mean, so
# that blocks stay alike. Blocks hand the sums on.


_PASSES = 3.0  # over the streams: to mix them in, to mix them on, and to write them


def with_streams(
    operators: tuple[Operator, ...], config: TransformerConfig, run: RunShape
) -> tuple[Operator, ...]:
    """A block's operators with the mixing of streams, or of sums, before each of its halves."""
    if config.streams == 1 and not config.residual_blocks:
        return operators
    mix, name = (_mix, "streams") if config.streams > 1 else (_of_sums, "sums")
    inner = tuple(map(inside, operators))
    starts = [at for at, op in enumerate(inner) if op.name in ("mlp_norm", "mixer_norm")]
    second = starts[-1] if starts and starts[-1] else len(inner)
    first_half, second_half = inner[:second], inner[second:]
    made = (mix(name, config, run, is_layer_input=True), *first_half)
    if second_half:
        made += (mix(f"mlp_{name}", config, run), *second_half)
    return made


def last_mixture(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """What makes one hidden state of the streams, or sums, behind the last block."""
    if config.residual_blocks:
        return (_of_sums("last_sums", config, run, is_layer_input=True),)
    if config.streams == 1:
        return ()
    n = config.streams
    return (_product("stream_head", config, run, outputs=n, own=n + 1, passes=1.0),)


def _of_sums(
    name: str, config: TransformerConfig, run: RunShape, *, is_layer_input: bool = False
) -> Operator:
    """Scores and the sum read every source; backward does so again and adds to its gradient."""
    h, sources = config.hidden_size, _mean_sources(config)
    kept = SavedTensor(
        name=f"{name}.input",
        elements=run.tokens * h,
        element_bytes=run.precision.activation_bytes,
        shard=Shard.SEQUENCE,
        until=Phase.INPUT_GRAD,
        is_layer_input=is_layer_input,
    )
    weights = (f"{name}.norm", f"{name}.weight")
    return elementwise(
        name,
        run,
        elements=run.tokens * h / run.sequence_shards,
        forward=(2 * sources, 1),
        backward=(3 * sources + 1, sources),
        saved=(kept,),
        parameters=tuple(Parameter(name=each, count=h) for each in weights),
    )


def _mean_sources(config: TransformerConfig) -> float:
    """Of a half: sums of all before every so many blocks, and what came since the last."""
    every, layers = config.residual_blocks, range(config.num_layers)
    first = sum(-(-layer // every) for layer in layers)
    second = sum(layer // every + 1 for layer in layers)
    return 1 + (first + second) / (2 * config.num_layers)


def _mix(
    name: str, config: TransformerConfig, run: RunShape, *, is_layer_input: bool = False
) -> Operator:
    n = config.streams
    outputs = 2 * n + n * n
    return _product(
        name, config, run, outputs=outputs, own=outputs + 3, passes=_PASSES, is_input=is_layer_input
    )


def _product(
    name: str,
    config: TransformerConfig,
    run: RunShape,
    *,
    outputs: int,
    own: int,
    passes: float,
    is_input: bool = False,
) -> Operator:
    """The narrow product with the traffic of what it weighs; `own` parameters beside its weight."""
    width = config.streams * config.hidden_size
    kept = SavedTensor(
        name=f"{name}.input",
        elements=run.tokens * width,
        element_bytes=run.precision.activation_bytes,
        shard=Shard.SEQUENCE,
        until=Phase.WEIGHT_GRAD,
        is_layer_input=is_input,
        serves_input_grad=True,
    )
    made = linear(
        name,
        run,
        inputs=width,
        outputs=outputs,
        split="sequence",
        parameters=(
            Parameter(name=f"{name}.weight", count=width * outputs),
            Parameter(name=f"{name}.own", count=own),
        ),
        saved=(kept,),
        dtype=run.precision.base_dtype,
    )
    size = run.precision.activation_bytes * run.tokens * width / run.sequence_shards
    beside = Work(read_bytes=(passes - 1) * size, written_bytes=size if passes > 1 else 0.0)
    return replace(
        made,
        forward=_more(made.forward, beside),
        input_grad=_more(
            made.input_grad,
            Work(read_bytes=2 * beside.read_bytes, written_bytes=beside.written_bytes),
        ),
    )


def _more(work: Work, beside: Work) -> Work:
    return Work(
        flops=work.flops,
        read_bytes=work.read_bytes + beside.read_bytes,
        written_bytes=work.written_bytes + beside.written_bytes,
    )


_KEPT: Final = 64  # graphs that a search, or a price beside others, asks for again
# Runs whose layers without experts are kept: a search comes back to each with experts elsewhere.
_KEPT_RUNS: Final = 512


@lru_cache(maxsize=_KEPT)
def layer_graph(config: TransformerConfig, run: RunShape = ONE_TOKEN) -> LayerGraph:
    """The chain of layers of `config` at `run`.

    Raises `InvalidInput` where the model cannot run so: a tensor degree that does not divide the
    heads, a sequence longer than the learned positions.
    """
    refuse(config.faults_at(run))
    chain = _chain(config, run)
    before = list(_reference(chain, config, run)) if config.tuning.reference else []
    chain = _tuned(chain, config, run)
    edges = _edges(config, _without_experts(run), tuple(layer.kind for layer in chain))
    if before:
        hidden = run.precision.activation_bytes * run.tokens * config.hidden_size
        passed = [hidden / run.tensor_parallel] * len(before) + [edge.bytes for edge in edges]
        edges = tuple(
            TensorEdge(source=at, target=at + 1, bytes=size) for at, size in enumerate(passed)
        )
        chain = [*before, *chain]
    classes = list({id(layer): layer for layer in chain}.values())
    position = {id(layer): index for index, layer in enumerate(classes)}
    layers = tuple(position[id(layer)] for layer in chain)
    return LayerGraph(classes=tuple(classes), layers=layers, edges=edges, run=run)


def model_flops_per_sequence(config: TransformerConfig, sequence_length: int) -> float:
    """FLOPs of one training step on one sequence by the convention of MFU.

    Three forward passes (one forward, two backward), attention in full, nothing recomputed; fewer
    where a part of the model is frozen.
    """
    run = RunShape(microbatch_size=1, sequence_length=sequence_length)
    return layer_graph(config, run).model_step_flops


def count_parameters(config: TransformerConfig) -> int:
    """The exact number of parameters, vocabulary unpadded, tied embeddings once.

    Layers that predict further tokens are left out, as published totals do; a `LayerGraph` counts
    them.
    """
    run = RunShape(microbatch_size=1, sequence_length=1, vocabulary_multiple=1)
    own = replace(config, num_mtp_layers=0, tuning=replace(config.tuning, reference=False))
    return layer_graph(own, run).num_parameters


def cache_bytes(config: TransformerConfig, length: int) -> float:
    """What attention to one sequence of `length` tokens keeps of it, in 16 bit."""
    total = 0.0
    for layer in range(config.num_layers):
        block = config.block(layer)
        if block.mixer is not None:
            total += 2.0 * block.mixer.state_elements
        if not block.attends or block.keys is Keys.EARLIER:
            continue
        width = block.num_kv_heads * (block.head_size + block.value_head_size)
        if (latent := block.latent) is not None:
            width = latent.key_value_rank + latent.rotary_head_size
            if latent.indexer is not None and not latent.reuses_index:
                width += latent.indexer.head_size
        if (own := block.compressed) is not None:
            total += 2.0 * block.head_size * (length // own.ratio if own.ratio else 0)
            width = block.head_size
        total += 2.0 * width * min(block.sliding_window or length, length)
        if config.crosses:
            total += 2.0 * width * config.towers[0].at(length).tokens
    return total


def kind_names(config: TransformerConfig) -> list[str]:
    """What each block is, in words."""
    names = []
    for layer in range(config.num_layers):
        block = config.block(layer)
        parts = ["norm"] if block.entry_norm else []
        if block.attends:
            attention = "latent attention" if block.latent is not None else "attention"
            if block.latent is not None and block.latent.indexer is not None:
                attention += f" to {block.latent.indexer.num_keys} indexed keys"
                attention += " of an earlier layer" if block.latent.reuses_index else ""
            if block.sliding_window is not None:
                attention += " in chunks of" if block.chunked else " within"
                attention += f" {block.sliding_window}"
            attention += " to keys of an earlier layer" if block.keys is Keys.EARLIER else ""
            if (own := block.compressed) is not None and own.ratio is not None:
                count = "" if own.indexer is None else f"{own.indexer.num_keys} "
                attention += f" and to {count}entries of {own.ratio} tokens"
            parts.append(attention)
        if config.crosses:
            parts.append("attention to the encoder")
        if block.mixer is not None:
            parts.append(block.mixer.name)
        if block.mlp:
            parts.append("dense" if block.experts is None else "experts")
        names.append(" + ".join(parts))
    return names


def adapter_targets(config: TransformerConfig) -> tuple[str, ...]:
    """The products of a model that an adapter can lie beside, by name."""
    return offered_targets(_chain(config, ONE_TOKEN), config)


_USUAL_TARGETS: Final = ("query", "value")  # Hu et al., LoRA, 2021, section 7.1


def usual_targets(config: TransformerConfig) -> tuple[str, ...]:
    """Products beside which adapters lie unless others are named: query and value.

    Where a model has no such two, as with latent attention, `linear_targets`.
    """
    has_both = {*_USUAL_TARGETS} <= {*adapter_targets(config)}
    return _USUAL_TARGETS if has_both else linear_targets(config)


def linear_targets(config: TransformerConfig) -> tuple[str, ...]:
    """Every product but those of routed experts, which are no linear layers of their libraries."""
    return tuple(t for t in adapter_targets(config) if not t.startswith(EXPERT_MARK))


def _tuned(chain: list[LayerClass], config: TransformerConfig, run: RunShape) -> list[LayerClass]:
    """The chain with adapters, and without what freezing saves."""
    if config.tuning.low_rank is not None:
        chain = adapted_chain(chain, config, config.tuning.low_rank, run)
    own = replace(config.tuning, reference=False)
    return chain if own == TRAIN_ALL else frozen_chain(chain, own)


_ANSWERS: Final = Tuning(frozen_kinds=tuple(LayerKind))
_OF_REFERENCE: Final = {
    LayerKind.EMBEDDING: LayerKind.PATCH_EMBEDDING, LayerKind.BLOCK: LayerKind.ENCODER_BLOCK
}  # fmt: skip


def _reference(
    chain: list[LayerClass], config: TransformerConfig, run: RunShape
) -> Iterator[LayerClass]:
    """The model as it was, which answers first: a chain that keeps nothing and has no backward.

    Its layers count as those of an encoder. Adapters lie beside its weights, which are there then.
    Its logits lie beside those of the model that trains.
    """
    made: dict[int, LayerClass] = {}
    logits = run.loss_tokens * logits_per_token(config, run) / run.tensor_parallel
    for layer, plain in zip(chain, frozen_chain(chain, _ANSWERS), strict=True):
        if id(layer) not in made:
            held = config.tuning.low_rank is None
            operators = tuple(_answering(each, held=held) for each in plain.operators)
            is_head = layer.kind is LayerKind.LM_HEAD
            made[id(layer)] = replace(
                plain,
                kind=_OF_REFERENCE.get(layer.kind, LayerKind.PROJECTOR),
                operators=operators,
                transient_bytes=run.precision.activation_bytes * logits if is_head else 0.0,
            )
        yield made[id(layer)]


def _answering(operator: Operator, *, held: bool) -> Operator:
    """With weights of its own where some are `held`, tied to each other and to no trained ones."""
    own = (
        replace(each, shared=each.shared and f"reference of {each.shared}")
        for each in operator.parameters
    )
    return replace(operator, parameters=tuple(own) if held else ())


def _chain(config: TransformerConfig, run: RunShape) -> list[LayerClass]:
    """Every layer in order; identical layers are the same object."""
    blocks, ends = _blocks(config, run), _ends(config, _without_experts(run))
    mtp = []
    if config.num_mtp_layers:
        own = [blocks[-1]]
        if config.further_choices:
            own = [_block(block, run) for block in config.further_blocks]
        mtp = [mtp_layer(config, run, blocks=own)] * config.num_mtp_layers
    towers = tower_layers(config, run, block=_block)
    return [*towers, ends.embedding, *blocks, *ends.after_blocks, *mtp, *ends.head]


class _Ends(NamedTuple):
    """The layers of a chain beside its blocks."""

    embedding: LayerClass
    after_blocks: tuple[LayerClass, ...]
    head: tuple[LayerClass, ...]


def _without_experts(run: RunShape) -> RunShape:
    """What layers without experts see of a run: however these are dealt out, they are the same."""
    if run.expert_parallel == 1 and run.expert_tensor_parallel is None:
        return run
    return replace(run, expert_parallel=1, expert_tensor_parallel=None)


@lru_cache(maxsize=_KEPT_RUNS)
def _ends(config: TransformerConfig, run: RunShape) -> _Ends:
    """The embedding, what follows the blocks, head and loss."""
    after_blocks = []
    if config.final_norm:
        operators = (*last_mixture(config, run), *final_norm_operators(config, run))
        norm = LayerClass(kind=LayerKind.FINAL_NORM, operators=operators)
        after_blocks.append(norm)
    if config.pooler or config.mlm_transform:
        transform = LayerClass(
            kind=LayerKind.HEAD_TRANSFORM, operators=head_transform_operators(config, run)
        )
        after_blocks.append(transform)
    if config.head is Head.NONE:
        return _Ends(_embedding(config, run), tuple(after_blocks), ())
    head = LayerClass(
        kind=LayerKind.LM_HEAD,
        operators=head_operators(config, run),
        exchanges=head_exchanges(config, run),
        transient_bytes=head_transient_bytes(config, run),
    )
    loss = LayerClass(
        kind=LayerKind.LOSS,
        operators=loss_operators(config, run),
        exchanges=loss_exchanges(run),
        transient_bytes=loss_transient_bytes(config, run),
    )
    return _Ends(_embedding(config, run), tuple(after_blocks), (head, loss))


def _embedding(config: TransformerConfig, run: RunShape) -> LayerClass:
    return LayerClass(
        kind=LayerKind.EMBEDDING,
        operators=embedding_operators(config, run),
        exchanges=embedding_exchanges(config, run),
    )


def _blocks(config: TransformerConfig, run: RunShape) -> list[LayerClass]:
    """One class per kind of block that occurs, in the order of the layers."""
    experts, full = config.experts, frozenset(config.full_attention_layers)
    dense = frozenset(experts.dense_layers) if experts is not None else frozenset()
    first_routed = experts.num_dense_layers if experts is not None else config.num_layers
    made: dict[tuple[bool, bool, int], LayerClass] = {}
    blocks = []
    for layer in range(config.num_layers):
        choice = config.choice_of_layer[layer] if config.choices else 0
        kind = (layer >= first_routed and layer not in dense, layer in full, choice)
        if kind not in made:
            own = config.block(layer)
            is_dense = experts is not None and own.experts is None
            made[kind] = _dense_block(own, _without_experts(run)) if is_dense else _block(own, run)
        blocks.append(made[kind])
    return blocks


@lru_cache(maxsize=_KEPT_RUNS)
def _dense_block(config: TransformerConfig, run: RunShape) -> LayerClass:
    """One between blocks with experts."""
    return _block(config, run)


def _block(config: TransformerConfig, run: RunShape) -> LayerClass:
    """Attention, a mixer in its place or beside it, the feed-forward part: what of it there is."""
    operators: tuple[Operator, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    if config.attends:
        operators += attention_operators(config, run)
        exchanges += attention_exchanges(config, run)
        exchanges += context_exchanges(
            run,
            query_width=config.query_size,
            key_value_width=held_key_value_size(config, run),
            core="attention" if run.fused_attention else "attention_scores",
        )
    if config.crosses:
        operators += crossing_operators(config, run)
        exchanges += crossing_exchanges(config, run)
    if (mixer := config.mixer) is not None:
        operators += mixer_operators(config, mixer, run)
        first = first_products(mixer, config.hidden_size)
        exchanges += half_exchanges(run, width=config.hidden_size, column=first[:1])
        exchanges += mixer_context_exchanges(mixer, config, run)
    if config.mlp:
        operators += feed_forward_operators(config, run, experts=config.experts)
        exchanges += _feed_forward_exchanges(config, run, config.experts)
    operators += layer_input_operators(config, run)
    if config.entry_norm:
        h, kind = config.hidden_size, config.norm
        entry = norm("entry_norm", run, kind=kind, width=h, is_layer_input=True)
        operators = (entry, *map(inside, operators))
    others = config.streams - 1 if not config.residual_blocks else _mean_sources(config) - 1
    streams = others * config.hidden_size * run.tokens / run.sequence_shards
    beside = run.precision.activation_bytes * streams  # gradients of the other streams or sums
    return LayerClass(
        kind=LayerKind.BLOCK,
        operators=with_streams(operators, config, run),
        exchanges=exchanges,
        transient_bytes=_block_transient_bytes(config, run, config.experts) + beside,
    )


def _feed_forward_exchanges(
    config: TransformerConfig, run: RunShape, experts: Experts | None
) -> tuple[Exchange, ...]:
    """Around the dense part, or the shared one and the experts.

    Where tokens stay in their tensor group, one gather serves all experts.
    """
    width = config.hidden_size
    if experts is None:
        return half_exchanges(run, width=width, column=(FeedForward.MLP.first,))
    if not run.shares_tokens_to_experts:
        return half_exchanges(run, width=width, column=(FeedForward.EXPERT.first,))
    exchanges = expert_exchanges(config, run, experts)
    if experts.shared_ffn_size:
        exchanges += half_exchanges(run, width=width, column=(FeedForward.SHARED_EXPERT.first,))
    return exchanges


def _block_transient_bytes(
    config: TransformerConfig, run: RunShape, experts: Experts | None
) -> float:
    """Gradients of the widest pair of tensors around one operator.

    The block's output and the feed-forward's inner activation, or the score matrix twice, or what
    context parallelism holds beside them.
    """
    element, shards = run.precision.activation_bytes, run.tensor_parallel
    inner, tokens = config.ffn_size, run.tokens
    if not config.mlp:
        inner = 0
    elif experts is not None:
        inner = experts.ffn_size
        tokens = run.expert_rows(experts.experts_per_token, experts.num_experts)
        shards = run.expert_shards
    width = inner * (1 + config.gated) / shards
    widest = tokens * (config.hidden_size + width)
    if experts is None and run.mlp_tile is not None:  # of a tile what it keeps, and its gradients
        widest = tokens * config.hidden_size + run.mlp_tokens * (2 * width + inner / shards)
    if (mixer := config.mixer) is not None:
        width = sum(p.outputs for p in mixer.products(config.hidden_size))
        widest = max(widest, run.tokens * (config.hidden_size + width / run.tensor_parallel))
    if not config.attends:
        return element * widest
    if not run.fused_attention:
        scores = run.tokens * config.num_heads * float(run.sequence_length) / run.tensor_parallel
        widest = max(widest, 2 * scores)
    exchanged = context_buffer_bytes(
        run,
        query_width=config.query_size,
        key_value_width=held_key_value_size(config, run),
    )
    return max(element * widest, exchanged)


@lru_cache(maxsize=_KEPT_RUNS)
def _edges(
    config: TransformerConfig, run: RunShape, kinds: tuple[LayerKind, ...]
) -> tuple[TensorEdge, ...]:
    element, t = run.precision.activation_bytes, run.tensor_parallel
    hidden = element * run.tokens * config.hidden_size / t
    logits = element * run.tokens * logits_per_token(config, run) / t
    towers = tower_edge_bytes(config, run)
    beside = towers[-1] if config.crosses else 0.0  # what an encoder gave goes along
    sizes = {
        LayerKind.LM_HEAD: logits,
        LayerKind.EMBEDDING: config.streams * hidden + beside,
        LayerKind.BLOCK: config.streams * hidden + beside,
    }
    text = [sizes.get(kind, hidden) for kind in kinds[len(towers) : -1]]
    for at, size in enumerate(_beside_hidden(config, run)):
        text[at] += size
    return tuple(
        TensorEdge(source=index, target=index + 1, bytes=size)
        for index, size in enumerate([*towers, *text])
    )


def _beside_hidden(config: TransformerConfig, run: RunShape) -> Iterator[float]:
    """What embedding and blocks hand on for later ones: sums, their own inputs, keys and values."""
    if config.residual_blocks:
        each = run.channel_bytes
        for at in range(config.num_layers + 1):
            yield each * config.hidden_size * -(-at // config.residual_blocks)
        return
    if not config.layer_inputs and all(c.keys is not Keys.EARLIER for c in config.choices):
        return
    element = run.channel_bytes
    blocks = [config.block(layer) for layer in range(config.num_layers)]
    made: dict[int | None, int] = {}  # per window the block whose keys others take, and the last
    used: dict[int | None, int] = {}
    for at, block in enumerate(blocks):
        (used if block.keys is Keys.EARLIER else made)[block.sliding_window] = at
    for at in range(config.num_layers + 1):
        passing = (w for w, last in used.items() if made[w] < at <= last)
        keys = sum(held_key_value_size(blocks[made[window]], run) for window in passing)
        yield element * (config.layer_inputs * (config.num_layers - at) + keys)
