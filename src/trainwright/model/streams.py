"""Several residual streams: each half of a block mixes them into its input and spreads its output.

With n streams of the hidden size h (hyper-connections, Zhu et al., 2024; DeepSeek-V4, 2026,
section 2.2):

    w      = norm(all n·h) W      [n + n + n²]      made doubly stochastic in its last n²
    x      = Σ w_in · stream                        the input of a half
    stream = stream W_mix + w_out · half(x)

The product is narrow, the rest is traffic: a half reads the streams twice and writes them once.
Blocks hand on n·h features. What follows the last block takes one mixture of them.
"""

from __future__ import annotations

from dataclasses import replace

from trainwright.model.config import TransformerConfig
from trainwright.model.operator import (
    Operator,
    Parameter,
    Phase,
    SavedTensor,
    Shard,
    Work,
    inside,
    linear,
)
from trainwright.model.run_shape import RunShape

_PASSES = 3.0  # over the streams: to mix them in, to mix them on, and to write them


def with_streams(
    operators: tuple[Operator, ...], config: TransformerConfig, run: RunShape
) -> tuple[Operator, ...]:
    """A block's operators with the mixing of streams before each of its halves."""
    if config.streams == 1:
        return operators
    inner = tuple(map(inside, operators))
    starts = [at for at, op in enumerate(inner) if op.name in ("mlp_norm", "mixer_norm")]
    second = starts[-1] if starts and starts[-1] else len(inner)
    first_half, second_half = inner[:second], inner[second:]
    made = (_mix("streams", config, run, is_layer_input=True), *first_half)
    if second_half:
        made += (_mix("mlp_streams", config, run), *second_half)
    return made


def last_mixture(config: TransformerConfig, run: RunShape) -> tuple[Operator, ...]:
    """What makes one hidden state of the streams behind the last block."""
    if config.streams == 1:
        return ()
    n = config.streams
    return (_product("stream_head", config, run, outputs=n, own=n + 1, passes=1.0),)


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
