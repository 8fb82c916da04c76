"""The attention half of a block, operator by operator, on one device of a tensor group.

Norm, projections of queries, keys and values, their rotation, the core, the output projection and
the residual. Latent attention has projections of its own (`latent_attention`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from trainwright.model.config import (
    CompressedAttention,
    Indexer,
    Keys,
    LatentAttention,
    Norm,
    TransformerConfig,
)
from trainwright.model.operator import (
    ATTENTION_CORE,
    LATENT_UP_PROJECTION,
    NORM,
    QUERY_KEY_NORM,
    Exchange,
    Operator,
    OperatorKind,
    Parameter,
    Phase,
    SavedTensor,
    Shard,
    Work,
    elementwise,
    linear,
    linear_input,
    norm,
    norm_parameters,
    residual_add,
    weighed,
)
from trainwright.model.run_shape import ContextExchange, RunShape

# What context parallelism sends and holds so that every query meets every key
# ----------------------------------------------------------------------------
# With c ranks of s/c positions each, in bytes of one device (K and V of its own positions: N):
#
#     ring         c - 1 times N forward, each under one of c shares of attention; backward also
#                  passes the gradients of K and V on, twice the bytes
#     all-gather   N from each forward; backward gathers again and scatters the gradients
#     all-to-all   Q, K, V and the output change from split along the sequence to split along heads,
#                  forward and, as gradients, backward
#     both         all-to-all among u neighbours, whose groups then pass N on in a ring of c/u
#
# Sources: Liu et al., 2023 (ring); Jacobs et al., 2023 (all-to-all); Fang and Zhao, 2024 (both).


def context_exchanges(
    run: RunShape, *, query_width: int, key_value_width: int, core: str
) -> tuple[Exchange, ...]:
    """Collectives of one attention layer; `key_value_width` is that of keys and values together.

    Widths are of the whole tensor group; `core` names the operator that a ring hides under.
    """
    if run.context_parallel == 1:
        return ()
    element = run.channel_bytes
    keys, queries = element * key_value_width, element * query_width
    match run.context_exchange:
        case ContextExchange.RING:
            return _ring(run, keys, core)
        case ContextExchange.ALL_GATHER:
            whole = keys * run.context_parallel
            return (
                _exchange("all_gather", whole, Phase.FORWARD),
                _exchange("all_gather", whole, Phase.INPUT_GRAD),
                _exchange("reduce_scatter", whole, Phase.INPUT_GRAD),
            )
        case ContextExchange.ALL_TO_ALL:
            both = 2 * queries + keys
            return (
                _exchange("all_to_all", both, Phase.FORWARD),
                _exchange("all_to_all", both, Phase.INPUT_GRAD),
            )
        case ContextExchange.ALL_TO_ALL_RING:
            heads, both = run.trading_heads, 2 * queries + keys
            traded = (
                replace(_exchange("all_to_all", both, phase), nearest=heads)
                for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
            )
            passed = (replace(each, apart=heads) for each in _ring(run, keys, core))
            return (*traded, *passed)


def context_buffer_bytes(run: RunShape, *, query_width: int, key_value_width: int) -> float:
    """What the exchange holds beside the kept tensors during backward, on one device."""
    if run.context_parallel == 1:
        return 0.0
    element = run.channel_bytes
    keys, queries = element * key_value_width, element * query_width
    match run.context_exchange:
        case ContextExchange.RING:  # the next block and its gradient, while this one is in use
            return 4 * keys
        case ContextExchange.ALL_GATHER:
            return 2 * keys * run.context_parallel
        case ContextExchange.ALL_TO_ALL:
            return 2 * queries + keys
        case ContextExchange.ALL_TO_ALL_RING:  # one after the other
            return max(2 * queries + keys, 4 * keys)


def _ring(run: RunShape, block_bytes: float, core: str) -> tuple[Exchange, ...]:
    ranks = run.context_parallel // run.trading_heads
    under = (ranks - 1) / ranks
    return tuple(
        Exchange(
            axis="context",
            kind="ring",
            bytes=size,
            phase=phase,
            hides_under=core,
            hidden_share=under,
        )
        for size, phase in ((block_bytes, Phase.FORWARD), (2 * block_bytes, Phase.INPUT_GRAD))
    )


def _exchange(kind: str, size: float, phase: Phase) -> Exchange:
    return Exchange(axis="context", kind=kind, bytes=size, phase=phase)


# Scores, softmax and values: what stands between the projections of attention, on one device
# -------------------------------------------------------------------------------------------
# Two kernels. *Fused* (Dao et al., 2022): no score ever reaches memory, backward recomputes them
# and so does 2.5 times the forward FLOPs, and a causal kernel skips the upper triangle. *Unfused*:
# two batched products and a softmax chain over b·a·s² scores; the chain moves about 9 bytes per
# score forward and 11 backward with 16-bit activations and dropout.
#
# A head's value may be narrower than its query and key (latent attention): a pair costs
# 2·(e_query + e_value) FLOPs.

# Matrix units take rows of 16 bytes. Fused kernels (FlashAttention) pad heads whose size is no
# multiple of 8 to one; the batched products of unfused attention then run outside the matrix units
# (NVIDIA, Matrix Multiplication Background, "Tensor Core Requirements"). BLOOM's trials with heads
# of 108 and 150 took 1.3 times as long as those with heads of 104 to 224 that are multiples.

FUSED_BACKWARD_RATIO = 2.5  # five products backward (one again), two forward
_ALIGNED_TO = 8
_OUTSIDE_MATRIX_UNITS = "fp32"


def _padded_share(config: TransformerConfig) -> float:
    """What a fused kernel computes over what the heads hold."""
    sizes = (config.head_size, config.value_head_size)
    return sum(-(-size // _ALIGNED_TO) * _ALIGNED_TO for size in sizes) / sum(sizes)


def attention_core(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """The operators of the kernel that `run` chooses, with what they keep."""
    return tuple(_fused(config, run) if run.fused_attention else _unfused(config, run))


def held_key_value_heads(config: TransformerConfig, run: RunShape) -> int:
    """Key (or value) heads over the tensor group; they are repeated where they are fewer."""
    return max(config.num_kv_heads, run.tensor_parallel)


def held_key_value_size(config: TransformerConfig, run: RunShape) -> int:
    """Width of keys and values together over the tensor group."""
    width = config.head_size + config.value_head_size
    if config.compressed is not None:  # one tensor for both
        width = config.head_size
    return held_key_value_heads(config, run) * width


def attended_pairs(config: TransformerConfig, length: int, *, skips_masked: bool) -> float:
    """Query-key pairs of one sequence and head that a kernel computes.

    All s² of them, or s·min(w, s) within a sliding window or for w keys that an indexer chose; a
    kernel that skips what a causal mask hides computes s(s + 1)/2, within a window
    w(w + 1)/2 + (s − w)·w, in chunks of w a triangle each.
    """
    if config.compressed is not None:
        near = attended_pairs(replace(config, compressed=None), length, skips_masked=skips_masked)
        return near + config.compressed.pairs(length, skips_masked=skips_masked)
    window = min(config.attended_keys or length, length)
    if not (config.causal and skips_masked):
        return float(length) * window
    if config.chunked:
        whole, rest = divmod(length, window)
        return whole * window * (window + 1) / 2 + rest * (rest + 1) / 2
    return window * (window + 1) / 2 + float(length - window) * window


def _model_flops(config: TransformerConfig, run: RunShape) -> float:
    """Both products of one context rank with the scores, no pair skipped for causality."""
    pairs = attended_pairs(config, run.sequence_length, skips_masked=False)
    width = config.query_size + config.attention_output_size
    return 2.0 * run.microbatch_size / run.context_parallel * width * pairs


def _kept(config: TransformerConfig, run: RunShape) -> tuple[SavedTensor, ...]:
    """Query, key and value; latent attention can expand them again from the latents."""
    held = held_key_value_heads(config, run)
    widths: dict[str, float] = {
        "query": config.query_size,
        "key": held * config.head_size,
        "value": held * config.value_head_size,
    }
    if config.compressed is not None:
        widths["key"] += held * config.head_size / (config.compressed.ratio or math.inf)
        del widths["value"]
    if config.keys is Keys.EARLIER:  # kept there
        del widths["key"], widths["value"]
    return tuple(
        SavedTensor(
            name=name,
            elements=math.ceil(run.tokens * width),
            element_bytes=run.precision.activation_bytes,
            shard=Shard.TENSOR,
            until=Phase.INPUT_GRAD,
            dropped_by=LATENT_UP_PROJECTION if config.expands_latents else None,
        )
        for name, width in widths.items()
    )


def _sinks(config: TransformerConfig, run: RunShape) -> tuple[Parameter, ...]:
    """Learned scores per head: a sink, those of distances."""
    heads, t = config.num_heads, run.tensor_parallel
    made = {
        "attention.sinks": config.attention_sinks,
        "attention.distances": config.relative_buckets,
    }
    return tuple(Parameter(name=n, count=k * heads, shards=t) for n, k in made.items() if k)


def _fused(config: TransformerConfig, run: RunShape) -> list[Operator]:
    t = run.tensor_parallel
    skipped = attended_pairs(config, run.sequence_length, skips_masked=True)
    every = attended_pairs(config, run.sequence_length, skips_masked=False)
    model_flops = _model_flops(config, run)
    flops = model_flops * (skipped / every) * _padded_share(config) / t
    if config.causal:
        flops *= run.causal_share
    element = run.precision.activation_bytes
    queries = element * run.tokens * config.query_size / t
    outputs = element * run.tokens * config.attention_output_size / t
    positions = run.microbatch_size * run.sequence_length  # those of all context ranks pass by
    keys_values = element * positions * held_key_value_size(config, run) / t
    statistics = SavedTensor(
        name="attention.log_sum_exp",
        elements=run.tokens * config.num_heads,
        element_bytes=4,
        shard=Shard.TENSOR,
        until=Phase.INPUT_GRAD,
        dropped_by=ATTENTION_CORE,
    )
    core = Operator(
        name="attention",
        kind=OperatorKind.ATTENTION,
        forward=Work(flops=flops, read_bytes=queries + keys_values, written_bytes=outputs),
        input_grad=Work(
            flops=FUSED_BACKWARD_RATIO * flops,
            read_bytes=queries + 2 * outputs + keys_values,
            written_bytes=queries + keys_values,
        ),
        model_flops=model_flops,
        parameters=_sinks(config, run),
        saved=(*_kept(config, run), statistics),
        module=ATTENTION_CORE,
        dtype=run.precision.base_dtype,
        head_size=(config.head_size + config.value_head_size) / 2,
    )
    return [core]


def _unfused(config: TransformerConfig, run: RunShape) -> list[Operator]:
    query, *rest = _kept(config, run)
    return [
        _batched_product("attention_scores", config, run, config.query_size, (query, *rest[:1])),
        _softmax(config, run),
        _batched_product(
            "attention_values", config, run, config.attention_output_size, tuple(rest[1:])
        ),
    ]


def _softmax(config: TransformerConfig, run: RunShape) -> Operator:
    """Scale, mask, softmax and dropout over the scores; sinks add one column to them."""
    elements = run.tokens * config.num_heads * run.sequence_length
    element = run.precision.activation_bytes
    dropout = config.attention_dropout > 0

    def kept(name: str, element_bytes: int) -> SavedTensor:
        return SavedTensor(
            name=name,
            elements=elements,
            element_bytes=element_bytes,
            shard=Shard.TENSOR,
            until=Phase.INPUT_GRAD,
            dropped_by=ATTENTION_CORE,
        )

    size, mask = element * elements / run.tensor_parallel, elements / run.tensor_parallel
    saved: tuple[SavedTensor, ...] = (kept("softmax.output", element),)
    if dropout:
        saved += (kept("softmax.dropout_mask", 1), kept("softmax.dropout_output", element))
    return Operator(
        name="softmax",
        kind=OperatorKind.MEMORY,
        forward=Work(
            read_bytes=size * (1 + dropout), written_bytes=size * (1 + dropout) + mask * dropout
        ),
        input_grad=Work(
            read_bytes=size * (2 + dropout) + mask * dropout, written_bytes=size * (1 + dropout)
        ),
        parameters=_sinks(config, run),
        saved=saved,
        module=ATTENTION_CORE,
    )


def _batched_product(
    name: str,
    config: TransformerConfig,
    run: RunShape,
    width: int,
    saved: tuple[SavedTensor, ...],
) -> Operator:
    """One of the two products with the score matrix; both gradients are activation gradients.

    It computes all s² pairs, masked or not.
    """
    t, s = run.tensor_parallel, run.sequence_length
    flops = 2.0 * run.tokens * width * float(s)
    share = width / (config.query_size + config.attention_output_size)
    element = run.precision.activation_bytes
    scores = element * run.tokens * config.num_heads * float(s) / t
    sides = element * run.tokens * width / t
    aligned = config.head_size % _ALIGNED_TO == 0 == config.value_head_size % _ALIGNED_TO
    return Operator(
        name=name,
        kind=OperatorKind.GEMM,
        forward=Work(flops=flops / t, read_bytes=sides + scores, written_bytes=sides),
        input_grad=Work(
            flops=2 * flops / t, read_bytes=2 * sides + 2 * scores, written_bytes=2 * sides
        ),
        model_flops=share * _model_flops(config, run),
        saved=saved,
        module=ATTENTION_CORE,
        dtype=run.precision.base_dtype if aligned else _OUTSIDE_MATRIX_UNITS,
    )


# Multi-head latent attention: keys and values expanded from a narrow latent (DeepSeek-V2, 2024)
# ----------------------------------------------------------------------------------------------
#     c_q  = norm(x W_dq)              [r_q]           q = c_q W_uq        [a · (e_n + e_r)]
#     c_kv = norm(x W_dkv)             [r_kv]          k, v = c_kv W_ukv   [a · (e_n + e_v)]
#     k_r  = rotate(x W_kr)            [e_r], one for all heads, beside each head's k
#
# The down projections are whole on every device of a tensor group; with sequence parallelism each
# device projects its own tokens and the group gathers latents, which are narrower than the hidden
# state. Without a query latent the queries come from the gathered hidden state. Recomputing the
# module `latent_up_projection` keeps the latents in place of q, k and v.

# Queries and keys-values come from one normed hidden state.
_NORMED = "attention_norm.output"


def latent_projections(
    config: TransformerConfig, latent: LatentAttention, run: RunShape
) -> tuple[Operator, ...]:
    """Down projections, norms of the latents, up projections and the rotation."""
    rank, h = latent.query_rank, config.hidden_size
    down_width = latent.key_value_rank + latent.rotary_head_size
    operators = []
    if rank is not None:
        operators += [
            _down("query_down", config, run, width=rank),
            norm("query_latent_norm", run, kind=Norm.RMS, width=rank),
            _up("query_up", run, inputs=rank, outputs=config.query_size),
        ]
    else:
        operators.append(_up("query", run, inputs=h, outputs=config.query_size, of_hidden=True))
    expanded = config.num_heads * (latent.plain_head_size + latent.value_head_size)
    operators += [
        _down("key_value_down", config, run, width=down_width),
        norm("key_value_latent_norm", run, kind=Norm.RMS, width=latent.key_value_rank),
        _up("key_value_up", run, inputs=latent.key_value_rank, outputs=expanded),
        _rotate(config, latent, run),
    ]
    if latent.indexer is not None and not latent.reuses_index and rank is not None:
        operators += _index(config, latent.indexer, run, rank=rank)
    return tuple(operators)


def _index(
    config: TransformerConfig, indexer: Indexer, run: RunShape, *, rank: int, ratio: int = 1
) -> list[Operator]:
    """Which keys each token attends to: narrow heads, whole on every device, score all pairs.

    With a `ratio` keys are entries that each stand for so many tokens.

    Each device scores its own tokens where sequence parallelism has cut them. The choice itself has
    no gradient; training the indexer takes one of its scores, which costs as much again twice.
    """
    h, heads, size = config.hidden_size, indexer.num_heads, indexer.head_size
    normed = linear_input(_NORMED, run, width=h, shard=Shard.SEQUENCE, dropped_by=NORM)
    narrow = linear_input("query_up.input", run, width=rank, shard=Shard.SEQUENCE, dropped_by=NORM)

    def product(name: str, inputs: int, outputs: int, kept: SavedTensor) -> Operator:
        return linear(
            name,
            run,
            inputs=inputs,
            outputs=outputs,
            split="sequence",
            parameters=(Parameter(name=f"{name}.weight", count=inputs * outputs),),
            saved=(kept,),
        )

    pairs = float(run.sequence_length) ** 2 / ratio
    executed = pairs * (1 + 1 / run.sequence_length) / 2 if config.causal else pairs
    each = 2.0 * heads * size * run.microbatch_size / run.context_parallel
    element = run.precision.activation_bytes
    read = element * run.tokens * (heads * size + heads) / run.sequence_shards
    read += element * run.microbatch_size * run.sequence_length * size
    kept = SavedTensor(
        name="index_scores.input",
        elements=run.tokens * (heads * size + size + heads),
        element_bytes=element,
        shard=Shard.SEQUENCE,
        until=Phase.INPUT_GRAD,
    )
    scores = Operator(
        name="index_scores",
        kind=OperatorKind.ATTENTION,
        forward=Work(flops=each * executed / run.sequence_shards, read_bytes=read),
        input_grad=Work(flops=2 * each * executed / run.sequence_shards, read_bytes=2 * read),
        model_flops=each * pairs,
        saved=(kept,),
        dtype=run.precision.base_dtype,
    )
    if ratio > 1:
        keys = _compressor("index_compressor", config, run, width=size, series=2, ratio=ratio)
    else:
        keys = [
            product("index_key", h, size, normed),
            norm("index_key_norm", run, kind=Norm.LAYER, width=size),
        ]
    return [
        product("index_query", rank, heads * size, narrow),
        *keys,
        product("index_weights", h, heads, normed),
        scores,
    ]


def latent_exchanges(
    config: TransformerConfig, latent: LatentAttention, run: RunShape
) -> tuple[Exchange, ...]:
    """Collectives around the half: latents in, hidden state out.

    As in `attention.half_exchanges`, with the latents in place of the hidden state on the way in.
    """
    if run.tensor_parallel == 1:
        return ()
    query = config.hidden_size if latent.query_rank is None else latent.query_rank
    query_up = "query" if latent.query_rank is None else "query_up"
    keys = latent.key_value_rank + latent.rotary_head_size
    again = {query_up: query, "key_value_up": latent.key_value_rank}
    return _narrow_exchanges(config, run, width=query + keys, again=again)


def _narrow_exchanges(
    config: TransformerConfig, run: RunShape, *, width: float, again: dict[str, int]
) -> tuple[Exchange, ...]:
    """Narrow tensors of `width` in, the hidden state out; which are gathered `again` for what."""
    element = run.precision.activation_bytes
    out, into = (float(run.tokens * element * w) for w in (config.hidden_size, width))

    def exchange(kind: str, size: float, phase: Phase, hides_under: str | None = None) -> Exchange:
        return Exchange(axis="tensor", kind=kind, bytes=size, phase=phase, hides_under=hides_under)

    if not run.sequence_parallel:
        return (
            exchange("all_reduce", out, Phase.FORWARD),
            exchange("all_reduce", into, Phase.INPUT_GRAD),
        )
    return (
        exchange("all_gather", into, Phase.FORWARD),
        exchange("reduce_scatter", out, Phase.FORWARD),
        exchange("all_gather", out, Phase.INPUT_GRAD),
        exchange("reduce_scatter", into, Phase.INPUT_GRAD),
        *(
            exchange("all_gather", float(run.tokens * element * width), Phase.INPUT_GRAD, name)
            for name, width in again.items()
        ),
    )


# One key for all heads, far tokens compressed (DeepSeek-V4, 2026, section 2.3)
# ----------------------------------------------------------------------------
#     q  = norm(x W_dq) W_uq      [a · e]         k = norm(x W_k)    [e], the value too
#     c  = norm(Σ over the tokens of an entry of softmax(x W_z + b) · x W_c)    [e], one of r tokens
#     y  = softmax(q · (k in a window, c))        x + (y cut by groups of heads) W_a W_b
#
# As with latents, what is narrow is whole on every device of a tensor group, each of which projects
# its own tokens where sequence parallelism has cut them.


def _compressed_projections(
    config: TransformerConfig, own: CompressedAttention, run: RunShape
) -> tuple[Operator, ...]:
    """Queries through their latent, the key, entries and which of them are chosen."""
    e, rank = config.head_size, own.query_rank
    operators = [
        _down("query_down", config, run, width=rank),
        norm("query_latent_norm", run, kind=Norm.RMS, width=rank),
        _up("query_up", run, inputs=rank, outputs=config.query_size),
        _down("key_value_down", config, run, width=e),
        norm("key_value_latent_norm", run, kind=Norm.RMS, width=e),
    ]
    if own.ratio is not None:
        operators += _compressor(
            "compressor", config, run, width=e, series=own.series, ratio=own.ratio
        )
    if own.indexer is not None and own.ratio is not None:
        operators += _index(config, own.indexer, run, rank=rank, ratio=own.ratio)
    rotated = elementwise(
        "rotary",
        run,
        elements=run.tokens * (config.query_size + e) / run.tensor_parallel,
        forward=(1, 1),
        backward=(1, 1),
        module=LATENT_UP_PROJECTION,
    )
    return (*operators, rotated)


def _compressor(
    name: str, config: TransformerConfig, run: RunShape, *, width: int, series: int, ratio: int
) -> list[Operator]:
    """Values and weights of every token, their weighed sums, a norm of the entries."""
    product = _down(name, config, run, width=2 * series * width)
    elements = run.tokens * 2 * series * width
    kept = SavedTensor(
        name=f"{name}_sum.input",
        elements=elements,
        element_bytes=run.precision.activation_bytes,
        shard=Shard.SEQUENCE,
        until=Phase.INPUT_GRAD,
    )
    bias = Parameter(name=f"{name}_positions.weight", count=ratio * series * width)
    weight = Parameter(name=f"{name}_norm.weight", count=width)
    summed = elementwise(
        f"{name}_sum",
        run,
        elements=elements / run.sequence_shards,
        forward=(1, 1 / ratio),
        backward=(1 + 1 / ratio, 1),
        saved=(kept,),
        parameters=(bias, weight),
    )
    return [product, summed]


def _grouped_output(
    config: TransformerConfig, own: CompressedAttention, run: RunShape
) -> tuple[Operator, ...]:
    """A product per group of heads, and one of what they give."""
    width, inner, t = config.attention_output_size, own.output_groups * own.output_rank, run
    each = width // own.output_groups

    def product(name: str, inputs: int, outputs: int, split: str, kept: int) -> Operator:
        weight = Parameter(name=f"{name}.weight", count=inputs * outputs, shards=t.tensor_parallel)
        saved = linear_input(f"{name}.input", run, width=kept, shard=Shard.TENSOR)
        return linear(
            name,
            run,
            inputs=inputs,
            outputs=outputs,
            split=split,
            parameters=(weight,),
            saved=(saved,),
        )

    return (
        product("attention_groups", each, inner, "column", width),
        product("attention_output", inner, config.hidden_size, "row", inner),
    )


def _down(name: str, config: TransformerConfig, run: RunShape, *, width: int) -> Operator:
    h = config.hidden_size
    parameters = [Parameter(name=f"{name}.weight", count=h * width)]
    if config.query_key_value_bias:
        parameters.append(Parameter(name=f"{name}.bias", count=width))
    kept = linear_input(_NORMED, run, width=h, shard=Shard.SEQUENCE, dropped_by=NORM)
    return linear(
        name,
        run,
        inputs=h,
        outputs=width,
        split="sequence",
        parameters=tuple(parameters),
        saved=(kept,),
    )


def _up(
    name: str, run: RunShape, *, inputs: int, outputs: int, of_hidden: bool = False
) -> Operator:
    """From a normed latent (or, for queries without one, from the normed hidden state)."""
    weight = Parameter(name=f"{name}.weight", count=inputs * outputs, shards=run.tensor_parallel)
    given = _NORMED if of_hidden else f"{name}.input"
    kept = linear_input(given, run, width=inputs, shard=Shard.SEQUENCE, dropped_by=NORM)
    return linear(
        name,
        run,
        inputs=inputs,
        outputs=outputs,
        split="column",
        parameters=(weight,),
        saved=(kept,),
        module=LATENT_UP_PROJECTION,  # of queries without a latent, too, as Megatron-Core has it
    )


def _rotate(config: TransformerConfig, latent: LatentAttention, run: RunShape) -> Operator:
    """Rotates the positional part of queries and of the shared key, and lays the keys out."""
    key = linear_input("rotary.key", run, width=latent.rotary_head_size, shard=Shard.SEQUENCE)
    rotated = run.tokens * latent.rotary_head_size * (config.num_heads + 1)
    copied = run.tokens * config.num_heads * config.head_size
    return elementwise(
        "rotary",
        run,
        elements=(rotated + copied) / run.tensor_parallel,
        forward=(1, 1),
        backward=(1, 1),
        saved=(replace(key, until=Phase.INPUT_GRAD),),
        module=LATENT_UP_PROJECTION,
    )


# The attention half of a block, operator by operator, on one device of a tensor group
# ------------------------------------------------------------------------------------


def attention_operators(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """Norm, projections, attention core, output projection and residual, in forward order."""
    h = config.hidden_size
    around = [
        *_projections(config, run),
        *attention_core(config, run),
        *_gate(config, run),
        *_outputs(config, run),
    ]
    if config.sandwich_norm:
        around.append(norm("attention_output_norm", run, kind=config.norm, width=h))
    if config.norm_after:
        around.append(norm("attention_norm", run, kind=config.norm, width=h))
    around.append(half_residual("attention", config, run))
    if config.norm_after:
        return tuple(around)
    if config.pre_norm:
        before = norm("attention_norm", run, kind=config.norm, width=h, is_layer_input=True)
        return (before, *around)
    return (*around, norm("attention_norm", run, kind=config.norm, width=h))


def half_residual(half: str, config: TransformerConfig, run: RunShape) -> Operator:
    """The sum with what one half of a block gives, each feature with a factor where it is scaled.

    A factor's gradient needs what it was applied to.
    """
    h = config.hidden_size
    added = residual_add(f"{half}_residual", run, width=h, dropout=config.hidden_dropout)
    if not config.layer_scale:
        return added
    kept = linear_input(f"{half}_scale.input", run, width=h, shard=Shard.SEQUENCE)
    scale = Parameter(name=f"{half}_scale.weight", count=h)
    return replace(added, parameters=(scale,), saved=(*added.saved, kept))


def attention_exchanges(config: TransformerConfig, run: RunShape) -> tuple[Exchange, ...]:
    """Collectives of the tensor group around the attention half."""
    if config.latent is not None:
        return latent_exchanges(config, config.latent, run)
    if (own := config.compressed) is not None:
        if run.tensor_parallel == 1:
            return ()
        entries = 0.0 if own.ratio is None else config.head_size / own.ratio
        width = own.query_rank + config.head_size + entries
        return _narrow_exchanges(config, run, width=width, again={"query_up": own.query_rank})
    return half_exchanges(run, width=config.hidden_size, column=("query_key_value",))


def half_exchanges(run: RunShape, *, width: int, column: tuple[str, ...]) -> tuple[Exchange, ...]:
    """Collectives around one column-then-row pair of linear layers (Megatron-LM, 2019 and 2022).

    Tensor parallelism alone all-reduces the output forward and the input gradient backward. With
    sequence parallelism each becomes a gather and a scatter of the same total volume, and the
    gathered input, which is not kept, is gathered again for the weight gradient of `column`.
    """
    if run.tensor_parallel == 1:
        return ()
    payload = float(run.tokens * width * run.precision.activation_bytes)

    def exchange(kind: str, phase: Phase, hides_under: str | None = None) -> Exchange:
        return Exchange(
            axis="tensor", kind=kind, bytes=payload, phase=phase, hides_under=hides_under
        )

    if not run.sequence_parallel:
        return (exchange("all_reduce", Phase.FORWARD), exchange("all_reduce", Phase.INPUT_GRAD))
    return (
        exchange("all_gather", Phase.FORWARD),
        exchange("reduce_scatter", Phase.FORWARD),
        exchange("all_gather", Phase.INPUT_GRAD),
        exchange("reduce_scatter", Phase.INPUT_GRAD),
        *(exchange("all_gather", Phase.INPUT_GRAD, name) for name in column),
    )


def _projections(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    if config.latent is not None:
        return latent_projections(config, config.latent, run)
    if config.compressed is not None:
        return _compressed_projections(config, config.compressed, run)
    products = _query_key_value(config, run)
    if config.rotary or config.query_key_norm:
        return (products, _rotary(config, run))
    return (products,)


def _query_key_value(config: TransformerConfig, run: RunShape) -> Operator:
    t = run.tensor_parallel
    queries = config.query_size
    keys = sum(config.projected_sizes)  # and values
    kv_shards = min(t, config.num_kv_heads)
    parameters = [Parameter(name="query.weight", count=config.hidden_size * queries, shards=t)]
    if keys:
        each = config.hidden_size * keys
        parameters.append(Parameter(name="key_value.weight", count=each, shards=kv_shards))
    if config.query_key_value_bias:
        parameters.append(Parameter(name="query.bias", count=queries, shards=t))
    if config.query_key_value_bias and keys:
        each = biased_width(config, keys)
        parameters.append(Parameter(name="key_value.bias", count=each, shards=kv_shards))
    kept = _projection_input(config, run)
    return linear(
        "query_key_value",
        run,
        inputs=config.hidden_size,
        outputs=queries + keys * held_key_value_heads(config, run) // config.num_kv_heads,
        split="column",
        parameters=tuple(parameters),
        saved=(kept,),
        model_outputs=queries + keys,
    )


def biased_width(config: TransformerConfig, width: int) -> int:
    """Of keys and values so wide, what has a bias."""
    return width if config.key_bias else width - config.key_value_size


def _projection_input(config: TransformerConfig, run: RunShape) -> SavedTensor:
    """The hidden state that projections read, normed before or not."""
    normed = config.pre_norm and not config.norm_after
    return linear_input(
        "query_key_value.input",
        run,
        width=config.hidden_size,
        shard=Shard.SEQUENCE,
        dropped_by=NORM if normed else None,
        is_layer_input=not normed,
    )


def _gate(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """A product with the hidden state whose sigmoid weighs heads, or their features."""
    if not (width := config.attention_gate):
        return ()
    h, t = config.hidden_size, run.tensor_parallel
    weights = [Parameter(name="attention_gate.weight", count=h * width, shards=t)]
    if config.attention_gate_bias:
        weights.append(Parameter(name="attention_gate.bias", count=width, shards=t))
    product = linear(
        "attention_gate",
        run,
        inputs=h,
        outputs=width,
        split="column",
        parameters=tuple(weights),
        saved=(_projection_input(config, run),),
    )
    factors = {"weights": width, "input": config.attention_output_size}
    return product, weighed("attention_gate_product", run, factors, shard=Shard.TENSOR)


def _rotary(config: TransformerConfig, run: RunShape) -> Operator:
    """Rotation of queries and keys in place, and their norms, as far as the family has them."""
    own_keys = config.keys is not Keys.EARLIER
    width = config.query_size + own_keys * held_key_value_heads(config, run) * config.head_size
    parameters: tuple[Parameter, ...] = ()
    saved: tuple[SavedTensor, ...] = ()
    if config.query_key_norm:
        # One norm for all query heads and one for all key heads, or over all heads at once.
        norms = (1 + own_keys) * config.head_size
        if config.query_key_norm_whole:
            norms = config.query_size + config.key_value_size
        parameters = norm_parameters("query_key_norm", kind=config.norm, width=norms)
        kept = SavedTensor(
            name=QUERY_KEY_NORM,
            elements=run.tokens * width,
            element_bytes=run.precision.activation_bytes,
            shard=Shard.TENSOR,
            until=Phase.INPUT_GRAD,
        )
        saved = (kept,)
    passes = config.rotary + config.query_key_norm
    return elementwise(
        "rotary",
        run,
        elements=run.tokens * width / run.tensor_parallel,
        forward=(passes, passes),
        backward=(passes + config.query_key_norm, passes),
        saved=saved,
        parameters=parameters,
    )


def _outputs(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    if config.compressed is not None:
        return _grouped_output(config, config.compressed, run)
    return (_output_projection(config, run),)


def _output_projection(config: TransformerConfig, run: RunShape) -> Operator:
    parameters = [
        Parameter(
            name="attention_output.weight",
            count=config.attention_output_size * config.hidden_size,
            shards=run.tensor_parallel,
        )
    ]
    if config.attention_output_bias:
        parameters.append(Parameter(name="attention_output.bias", count=config.hidden_size))
    width = config.attention_output_size
    kept = linear_input("attention_output.input", run, width=width, shard=Shard.TENSOR)
    return linear(
        "attention_output",
        run,
        inputs=width,
        outputs=config.hidden_size,
        split="row",
        parameters=tuple(parameters),
        saved=(kept,),
    )
