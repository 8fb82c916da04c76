"""Scores, softmax and values: what stands between the projections of attention, on one device.

Two kernels. *Fused* (Dao et al., 2022): no score ever reaches memory, backward recomputes them and
so does 2.5 times the forward FLOPs, and a causal kernel skips the upper triangle. *Unfused*: two
batched products and a softmax chain over b·a·s² scores; the chain moves about 9 bytes per score
forward and 11 backward with 16-bit activations and dropout.

A head's value may be narrower than its query and key (latent attention): a pair costs
2·(e_query + e_value) FLOPs.
"""

from __future__ import annotations

from trainwright.model.config import TransformerConfig
from trainwright.model.operator import (
    ATTENTION_CORE,
    LATENT_UP_PROJECTION,
    Operator,
    OperatorKind,
    Parameter,
    Phase,
    SavedTensor,
    Shard,
    Work,
)
from trainwright.model.run_shape import RunShape

FUSED_BACKWARD_RATIO = 2.5


def attention_core(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """The operators of the kernel that `run` chooses, with what they keep."""
    return tuple(_fused(config, run) if run.fused_attention else _unfused(config, run))


def held_key_value_heads(config: TransformerConfig, run: RunShape) -> int:
    """Key (or value) heads over the tensor group; they are repeated where they are fewer."""
    return max(config.num_kv_heads, run.tensor_parallel)


def held_key_value_size(config: TransformerConfig, run: RunShape) -> int:
    """Width of keys and values together over the tensor group."""
    return held_key_value_heads(config, run) * (config.head_size + config.value_head_size)


def attended_pairs(config: TransformerConfig, length: int, *, skips_masked: bool) -> float:
    """Query-key pairs of one sequence and head that a kernel computes.

    All s² of them, or s·min(w, s) within a sliding window; a kernel that skips what a causal mask
    hides computes s(s + 1)/2, within a window w(w + 1)/2 + (s − w)·w.
    """
    window = min(config.sliding_window or length, length)
    if not (config.causal and skips_masked):
        return float(length) * window
    return window * (window + 1) / 2 + float(length - window) * window


def _model_flops(config: TransformerConfig, run: RunShape) -> float:
    """Both products of one context rank with the scores, no pair skipped for causality."""
    pairs = attended_pairs(config, run.sequence_length, skips_masked=False)
    width = config.query_size + config.attention_output_size
    return 2.0 * run.microbatch_size / run.context_parallel * width * pairs


def _kept(config: TransformerConfig, run: RunShape) -> tuple[SavedTensor, ...]:
    """Query, key and value; latent attention can expand them again from the latents."""
    held = held_key_value_heads(config, run)
    widths = {
        "query": config.query_size,
        "key": held * config.head_size,
        "value": held * config.value_head_size,
    }
    return tuple(
        SavedTensor(
            name=name,
            elements=run.tokens * width,
            element_bytes=run.precision.activation_bytes,
            shard=Shard.TENSOR,
            until=Phase.INPUT_GRAD,
            dropped_by=None if config.latent is None else LATENT_UP_PROJECTION,
        )
        for name, width in widths.items()
    )


def _sinks(config: TransformerConfig, run: RunShape) -> tuple[Parameter, ...]:
    if not config.attention_sinks:
        return ()
    return (Parameter(name="attention.sinks", count=config.num_heads, shards=run.tensor_parallel),)


def _fused(config: TransformerConfig, run: RunShape) -> list[Operator]:
    t = run.tensor_parallel
    skipped = attended_pairs(config, run.sequence_length, skips_masked=True)
    every = attended_pairs(config, run.sequence_length, skips_masked=False)
    model_flops = _model_flops(config, run)
    flops = model_flops * (skipped / every) / t
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
    )
    return [core]


def _unfused(config: TransformerConfig, run: RunShape) -> list[Operator]:
    query, key, value = _kept(config, run)
    return [
        _batched_product("attention_scores", config, run, config.query_size, (query, key)),
        _softmax(config, run),
        _batched_product("attention_values", config, run, config.attention_output_size, (value,)),
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
        dtype=run.precision.base_dtype,
    )
