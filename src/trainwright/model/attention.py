"""The attention half of a block, operator by operator, on one device of a tensor group.

Two cores. *Fused* (Dao et al., 2022): no score ever reaches memory, backward recomputes them and
so does 2.5 times the forward FLOPs, and a causal kernel skips the upper triangle. *Unfused*: two
batched products and a softmax chain over b·a·s² scores; the chain moves about 9 bytes per score
forward and 11 backward with 16-bit activations and dropout.
"""

from __future__ import annotations

from trainwright.model.config import TransformerConfig
from trainwright.model.operator import (
    ATTENTION_CORE,
    NORM,
    Exchange,
    Operator,
    OperatorKind,
    Parameter,
    Phase,
    SavedTensor,
    Shard,
    Work,
)
from trainwright.model.primitives import (
    elementwise,
    linear,
    linear_input,
    norm,
    residual_add,
)
from trainwright.model.run_shape import RunShape

FUSED_BACKWARD_RATIO = 2.5


def attention_operators(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """Norm, projections, attention core, output projection and residual, in forward order."""
    before = norm(
        "attention_norm", run, kind=config.norm, width=config.hidden_size, is_layer_input=True
    )
    core = _fused_core if run.fused_attention else _unfused_core
    operators = [_query_key_value(config, run)]
    if config.rotary or config.query_key_norm:
        operators.append(_rotary(config, run))
    operators += core(config, run)
    operators.append(_output_projection(config, run))
    operators.append(
        residual_add(
            "attention_residual", run, width=config.hidden_size, dropout=config.hidden_dropout
        )
    )
    if config.pre_norm:
        return (before, *operators)
    after = norm("attention_norm", run, kind=config.norm, width=config.hidden_size)
    return (*operators, after)


def half_exchanges(
    run: RunShape, *, width: int, column: tuple[str, ...], tokens: int | None = None
) -> tuple[Exchange, ...]:
    """Collectives around one column-then-row pair of linear layers (Megatron-LM, 2019 and 2022).

    Tensor parallelism alone all-reduces the output forward and the input gradient backward. With
    sequence parallelism each becomes a gather and a scatter of the same total volume, and the
    gathered input, which is not kept, is gathered again for the weight gradient of `column`.
    """
    if run.tensor_parallel == 1:
        return ()
    rows = run.tokens if tokens is None else tokens
    payload = float(rows * width * run.precision.activation_bytes)

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


def held_key_value_size(config: TransformerConfig, run: RunShape) -> int:
    """Width of keys (or values) over the tensor group; heads are repeated where they are fewer."""
    return max(config.num_kv_heads, run.tensor_parallel) * config.head_size


def _query_key_value(config: TransformerConfig, run: RunShape) -> Operator:
    t = run.tensor_parallel
    queries, keys = config.query_size, config.key_value_size
    kv_shards = min(t, config.num_kv_heads)
    parameters = [
        Parameter(name="query.weight", count=config.hidden_size * queries, shards=t),
        Parameter(name="key_value.weight", count=2 * config.hidden_size * keys, shards=kv_shards),
    ]
    if config.query_key_value_bias:
        parameters += [
            Parameter(name="query.bias", count=queries, shards=t),
            Parameter(name="key_value.bias", count=2 * keys, shards=kv_shards),
        ]
    kept = linear_input(
        "query_key_value.input",
        run,
        width=config.hidden_size,
        shard=Shard.SEQUENCE,
        dropped_by=NORM if config.pre_norm else None,
        is_layer_input=not config.pre_norm,
    )
    return linear(
        "query_key_value",
        run,
        inputs=config.hidden_size,
        outputs=queries + 2 * held_key_value_size(config, run),
        split="column",
        parameters=tuple(parameters),
        saved=(kept,),
        model_outputs=queries + 2 * keys,
    )


def _rotary(config: TransformerConfig, run: RunShape) -> Operator:
    """Rotation of queries and keys in place, with their norms where the family has them."""
    width = config.query_size + held_key_value_size(config, run)
    parameters: tuple[Parameter, ...] = ()
    saved: tuple[SavedTensor, ...] = ()
    if config.query_key_norm:
        parameters = (Parameter(name="query_key_norm.weight", count=2 * config.head_size),)
        kept = SavedTensor(
            name="query_key_norm.input",
            elements=run.tokens * width,
            element_bytes=run.precision.activation_bytes,
            shard=Shard.TENSOR,
            until=Phase.INPUT_GRAD,
        )
        saved = (kept,)
    passes = 1 + config.query_key_norm
    return elementwise(
        "rotary",
        run,
        elements=run.tokens * width / run.tensor_parallel,
        forward=(passes, passes),
        backward=(passes + config.query_key_norm, passes),
        saved=saved,
        parameters=parameters,
    )


def _kept_query_key_value(config: TransformerConfig, run: RunShape) -> tuple[SavedTensor, ...]:
    widths = {
        "query": config.query_size,
        "key": held_key_value_size(config, run),
        "value": held_key_value_size(config, run),
    }
    return tuple(
        SavedTensor(
            name=name,
            elements=run.tokens * width,
            element_bytes=run.precision.activation_bytes,
            shard=Shard.TENSOR,
            until=Phase.INPUT_GRAD,
        )
        for name, width in widths.items()
    )


def attended_pairs(config: TransformerConfig, length: int, *, skips_masked: bool) -> float:
    """Query-key pairs of one sequence and head that a kernel computes.

    All s² of them, or s·min(w, s) within a sliding window; a kernel that skips what a causal mask
    hides computes s(s + 1)/2, within a window w(w + 1)/2 + (s − w)·w.
    """
    window = min(config.sliding_window or length, length)
    if not (config.causal and skips_masked):
        return float(length) * window
    return window * (window + 1) / 2 + float(length - window) * window


def _fused_core(config: TransformerConfig, run: RunShape) -> list[Operator]:
    t, s = run.tensor_parallel, run.sequence_length
    per_pair = 4.0 * run.microbatch_size * config.query_size / run.context_parallel
    flops = per_pair * attended_pairs(config, s, skips_masked=True) / t
    if config.causal:
        flops *= run.causal_share
    element = run.precision.activation_bytes
    queries = element * run.tokens * config.query_size / t
    positions = run.microbatch_size * s  # those of all context ranks pass by
    keys = element * positions * held_key_value_size(config, run) / t
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
        forward=Work(flops=flops, read_bytes=queries + 2 * keys, written_bytes=queries),
        input_grad=Work(
            flops=FUSED_BACKWARD_RATIO * flops,
            read_bytes=3 * queries + 2 * keys,
            written_bytes=queries + 2 * keys,
        ),
        model_flops=per_pair * attended_pairs(config, s, skips_masked=False),
        saved=(*_kept_query_key_value(config, run), statistics),
        module=ATTENTION_CORE,
        dtype=run.precision.base_dtype,
    )
    return [core]


def _unfused_core(config: TransformerConfig, run: RunShape) -> list[Operator]:
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
    softmax = Operator(
        name="softmax",
        kind=OperatorKind.MEMORY,
        forward=Work(
            read_bytes=size * (1 + dropout), written_bytes=size * (1 + dropout) + mask * dropout
        ),
        input_grad=Work(
            read_bytes=size * (2 + dropout) + mask * dropout, written_bytes=size * (1 + dropout)
        ),
        saved=saved,
        module=ATTENTION_CORE,
    )
    query, key, value = _kept_query_key_value(config, run)
    return [
        _batched_product("attention_scores", config, run, saved=(query, key)),
        softmax,
        _batched_product("attention_values", config, run, saved=(value,)),
    ]


def _batched_product(
    name: str, config: TransformerConfig, run: RunShape, *, saved: tuple[SavedTensor, ...]
) -> Operator:
    """One of the two products with the score matrix; both gradients are activation gradients."""
    t, s = run.tensor_parallel, run.sequence_length
    flops = 2.0 * run.tokens * config.query_size * float(s)
    element = run.precision.activation_bytes
    scores = element * run.tokens * config.num_heads * float(s) / t
    sides = element * run.tokens * config.query_size / t
    return Operator(
        name=name,
        kind=OperatorKind.GEMM,
        forward=Work(flops=flops / t, read_bytes=sides + scores, written_bytes=sides),
        input_grad=Work(
            flops=2 * flops / t, read_bytes=2 * sides + 2 * scores, written_bytes=2 * sides
        ),
        model_flops=flops,
        saved=saved,
        module=ATTENTION_CORE,
        dtype=run.precision.base_dtype,
    )


def _output_projection(config: TransformerConfig, run: RunShape) -> Operator:
    parameters = [
        Parameter(
            name="attention_output.weight",
            count=config.query_size * config.hidden_size,
            shards=run.tensor_parallel,
        )
    ]
    if config.attention_output_bias:
        parameters.append(Parameter(name="attention_output.bias", count=config.hidden_size))
    kept = linear_input("attention_output.input", run, width=config.query_size, shard=Shard.TENSOR)
    return linear(
        "attention_output",
        run,
        inputs=config.query_size,
        outputs=config.hidden_size,
        split="row",
        parameters=tuple(parameters),
        saved=(kept,),
    )
