"""Attention of a block to what an encoder gave (Vaswani et al., 2017, section 3.2.3).

    q = norm(x) W_q             of the block's own s tokens
    k, v = z W_kv               of the encoder's output z, s_z tokens
    x = x + softmax(q kᵀ) v W_o

All s·s_z pairs are scored. The encoder's output travels with the hidden state from stage to stage,
and its gradient back. It is one tensor for all blocks of a stage, so blocks do not keep it; the
last layer of the encoder does, and a later stage's copy is not counted.
"""

from __future__ import annotations

from trainwright.model.attention import FUSED_BACKWARD_RATIO, biased_width, half_exchanges
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
    linear,
    linear_input,
    norm,
    residual_add,
)
from trainwright.model.run_shape import RunShape


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
