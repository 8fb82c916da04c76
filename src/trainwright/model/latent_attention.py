"""Multi-head latent attention: keys and values expanded from a narrow latent (DeepSeek-V2, 2024).

    c_q  = norm(x W_dq)              [r_q]           q = c_q W_uq        [a · (e_n + e_r)]
    c_kv = norm(x W_dkv)             [r_kv]          k, v = c_kv W_ukv   [a · (e_n + e_v)]
    k_r  = rotate(x W_kr)            [e_r], one for all heads, beside each head's k

The down projections are whole on every device of a tensor group; with sequence parallelism each
device projects its own tokens and the group gathers latents, which are narrower than the hidden
state. Without a query latent the queries come from the gathered hidden state. Recomputing the
module `latent_up_projection` keeps the latents in place of q, k and v.
"""

from __future__ import annotations

from dataclasses import replace

from trainwright.model.config import Norm, TransformerConfig
from trainwright.model.operator import (
    LATENT_UP_PROJECTION,
    NORM,
    Exchange,
    Operator,
    Parameter,
    Phase,
    Shard,
)
from trainwright.model.parts import LatentAttention
from trainwright.model.primitives import elementwise, linear, linear_input, norm
from trainwright.model.run_shape import RunShape

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
    return tuple(operators)


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
    element = run.precision.activation_bytes
    keys = latent.key_value_rank + latent.rotary_head_size
    out, into = (float(run.tokens * element * w) for w in (config.hidden_size, query + keys))

    def exchange(kind: str, size: float, phase: Phase, hides_under: str | None = None) -> Exchange:
        return Exchange(axis="tensor", kind=kind, bytes=size, phase=phase, hides_under=hides_under)

    if not run.sequence_parallel:
        return (
            exchange("all_reduce", out, Phase.FORWARD),
            exchange("all_reduce", into, Phase.INPUT_GRAD),
        )
    again = {query_up: query, "key_value_up": latent.key_value_rank}
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
        module=None if of_hidden else LATENT_UP_PROJECTION,
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
