"""A layer that predicts one token further: DeepSeek-V3 (2024), section 2.2.

It norms the hidden state and the embedding of the next token, projects the pair back to the hidden
size, passes it through a block of the model's last kind, and has a norm, the head and a loss of its
own. Embedding and head are those of the model, so a stage that holds this layer holds them too.
"""

from __future__ import annotations

from dataclasses import replace

from trainwright.model.config import TransformerConfig
from trainwright.model.ends import (
    embedding_exchanges,
    embedding_operators,
    head_exchanges,
    head_operators,
    head_transient_bytes,
    loss_exchanges,
    loss_operators,
    loss_transient_bytes,
)
from trainwright.model.graph import LayerClass
from trainwright.model.layer_kind import LayerKind
from trainwright.model.operator import Exchange, Operator, Parameter, Phase, Shard
from trainwright.model.primitives import linear, linear_input, norm
from trainwright.model.run_shape import RunShape


def mtp_layer(config: TransformerConfig, run: RunShape, *, block: LayerClass) -> LayerClass:
    """Embedding, two norms, projection, `block`, norm, head and loss as one layer."""
    h, kind = config.hidden_size, config.norm
    operators = (
        *embedding_operators(config, run),
        norm("mtp_embedding_norm", run, kind=kind, width=h),
        norm("mtp_hidden_norm", run, kind=kind, width=h, is_layer_input=True),
        _projection(config, run),
        *map(_inside, block.operators),
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
            *block.exchanges,
            *head_exchanges(config, run),
            *loss_exchanges(run),
        ),
        transient_bytes=max(block.transient_bytes, loss_bytes),
    )


def _inside(operator: Operator) -> Operator:
    """An operator of the block: its input is no longer that of the layer."""
    saved = tuple(replace(tensor, is_layer_input=False) for tensor in operator.saved)
    return replace(operator, saved=saved)


def _projection(config: TransformerConfig, run: RunShape) -> Operator:
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
