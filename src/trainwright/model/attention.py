"""The attention half of a block, operator by operator, on one device of a tensor group.

Norm, projections of queries, keys and values, their rotation, the core, the output projection and
the residual. Latent attention has projections of its own (`latent_attention`).
"""

from __future__ import annotations

from trainwright.model.attention_core import attention_core, held_key_value_heads
from trainwright.model.config import TransformerConfig
from trainwright.model.latent_attention import latent_exchanges, latent_projections
from trainwright.model.operator import (
    NORM,
    Exchange,
    Operator,
    Parameter,
    Phase,
    SavedTensor,
    Shard,
)
from trainwright.model.primitives import (
    elementwise,
    linear,
    linear_input,
    norm,
    norm_parameters,
    residual_add,
)
from trainwright.model.run_shape import RunShape


def attention_operators(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """Norm, projections, attention core, output projection and residual, in forward order."""
    h = config.hidden_size
    around = [
        *_projections(config, run),
        *attention_core(config, run),
        _output_projection(config, run),
    ]
    if config.sandwich_norm:
        around.append(norm("attention_output_norm", run, kind=config.norm, width=h))
    around.append(residual_add("attention_residual", run, width=h, dropout=config.hidden_dropout))
    if config.pre_norm:
        before = norm("attention_norm", run, kind=config.norm, width=h, is_layer_input=True)
        return (before, *around)
    return (*around, norm("attention_norm", run, kind=config.norm, width=h))


def attention_exchanges(config: TransformerConfig, run: RunShape) -> tuple[Exchange, ...]:
    """Collectives of the tensor group around the attention half."""
    if config.latent is not None:
        return latent_exchanges(config, config.latent, run)
    return half_exchanges(run, width=config.hidden_size, column=("query_key_value",))


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


def _projections(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    if config.latent is not None:
        return latent_projections(config, config.latent, run)
    products = _query_key_value(config, run)
    if config.rotary or config.query_key_norm:
        return (products, _rotary(config, run))
    return (products,)


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
        outputs=queries + 2 * held_key_value_heads(config, run) * config.head_size,
        split="column",
        parameters=tuple(parameters),
        saved=(kept,),
        model_outputs=queries + 2 * keys,
    )


def _rotary(config: TransformerConfig, run: RunShape) -> Operator:
    """Rotation of queries and keys in place, and their norms, as far as the family has them."""
    width = config.query_size + held_key_value_heads(config, run) * config.head_size
    parameters: tuple[Parameter, ...] = ()
    saved: tuple[SavedTensor, ...] = ()
    if config.query_key_norm:
        # One norm for all query heads and one for all key heads.
        parameters = norm_parameters("query_key_norm", kind=config.norm, width=2 * config.head_size)
        kept = SavedTensor(
            name="query_key_norm.input",
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
