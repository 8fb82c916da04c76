"""A transformer's layer graph from its hyper-parameters, at one run shape.

The chain is (encoders,) embedding, blocks, final norm, (BERT's head transform,) (layers
that predict further tokens,) head, loss, with every end a layer of its own so that a stage split
can place it. Blocks may differ: dense or with experts, attending in full or within a window. Which
hyper-parameters a family has is read in `formats.hf_config`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

from trainwright.errors import InvalidInput
from trainwright.model.attention import (
    attention_exchanges,
    attention_operators,
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
    TransformerConfig,
)
from trainwright.model.crossing import crossing_exchanges, crossing_operators
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
from trainwright.model.feed_forward import FeedForward, expert_exchanges, feed_forward_operators
from trainwright.model.operator import (
    Exchange,
    LayerClass,
    LayerGraph,
    Operator,
    TensorEdge,
    inside,
    norm,
)
from trainwright.model.recipe import adapted_chain, frozen_chain, offered_targets
from trainwright.model.recurrence import first_products, mixer_context_exchanges, mixer_operators
from trainwright.model.run_shape import RunShape
from trainwright.model.streams import last_mixture, with_streams
from trainwright.model.towers import tower_edge_bytes, tower_layers

_KEPT: Final = 64  # layers that are the same however experts are dealt out: a search asks for them


def layer_graph(config: TransformerConfig, run: RunShape) -> LayerGraph:
    """The chain of layers of `config` at `run`.

    Raises `InvalidInput` where the model cannot run so: a tensor degree that does not divide the
    heads, a sequence longer than the learned positions.
    """
    faults = tuple(config.faults_at(run))
    if faults:
        raise InvalidInput(faults)
    chain = _tuned(_chain(config, run), config, run)
    classes = list({id(layer): layer for layer in chain}.values())
    position = {id(layer): index for index, layer in enumerate(classes)}
    layers = tuple(position[id(layer)] for layer in chain)
    edges = _edges(config, run, [layer.kind for layer in chain])
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
    return layer_graph(replace(config, num_mtp_layers=0), run).num_parameters


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
    return offered_targets(_chain(config, RunShape(microbatch_size=1, sequence_length=1)), config)


def _tuned(chain: list[LayerClass], config: TransformerConfig, run: RunShape) -> list[LayerClass]:
    """The chain with adapters, and without what freezing saves."""
    if config.tuning.low_rank is not None:
        chain = adapted_chain(chain, config, config.tuning.low_rank, run)
    return chain if config.tuning == TRAIN_ALL else frozen_chain(chain, config.tuning)


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


@lru_cache(maxsize=_KEPT)
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


@lru_cache(maxsize=_KEPT)
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
    streams = (config.streams - 1) * config.hidden_size * run.tokens / run.sequence_shards
    beside = run.precision.activation_bytes * streams  # gradients of the other streams
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


def _edges(
    config: TransformerConfig, run: RunShape, kinds: list[LayerKind]
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
    """What embedding and blocks hand on for later ones: their own inputs, keys and values."""
    if not config.layer_inputs and all(c.keys is not Keys.EARLIER for c in config.choices):
        return
    element = run.precision.activation_bytes * run.tokens / run.tensor_parallel
    blocks = [config.block(layer) for layer in range(config.num_layers)]
    made: dict[int | None, int] = {}  # per window the block whose keys others take, and the last
    used: dict[int | None, int] = {}
    for at, block in enumerate(blocks):
        (used if block.keys is Keys.EARLIER else made)[block.sliding_window] = at
    for at in range(config.num_layers + 1):
        passing = (w for w, last in used.items() if made[w] < at <= last)
        keys = sum(held_key_value_size(blocks[made[window]], run) for window in passing)
        yield element * (config.layer_inputs * (config.num_layers - at) + keys)
