"""What context parallelism sends and holds so that every query meets every key.

With c ranks of s/c positions each, in bytes of one device (K and V of its own positions: N):

    ring         c - 1 times N forward, each under one of c shares of attention; backward also
                 passes the gradients of K and V on, twice the bytes
    all-gather   N from each forward; backward gathers again and scatters the gradients
    all-to-all   Q, K, V and the output change from split along the sequence to split along heads,
                 forward and, as gradients, backward

Sources: Liu et al., 2023 (ring); Jacobs et al., 2023 (all-to-all).
"""

from __future__ import annotations

from trainwright.model.operator import Exchange, Phase
from trainwright.model.run_shape import ContextExchange, RunShape


def context_exchanges(
    run: RunShape, *, query_width: int, key_value_width: int, core: str
) -> tuple[Exchange, ...]:
    """Collectives of one attention layer; `key_value_width` is that of keys and values together.

    Widths are of the whole tensor group; `core` names the operator that a ring hides under.
    """
    if run.context_parallel == 1:
        return ()
    element = run.precision.activation_bytes * run.tokens / run.tensor_parallel
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


def context_buffer_bytes(run: RunShape, *, query_width: int, key_value_width: int) -> float:
    """What the exchange holds beside the kept tensors during backward, on one device."""
    if run.context_parallel == 1:
        return 0.0
    element = run.precision.activation_bytes * run.tokens / run.tensor_parallel
    keys, queries = element * key_value_width, element * query_width
    match run.context_exchange:
        case ContextExchange.RING:  # the next block and its gradient, while this one is in use
            return 4 * keys
        case ContextExchange.ALL_GATHER:
            return 2 * keys * run.context_parallel
        case ContextExchange.ALL_TO_ALL:
            return 2 * queries + keys


def _ring(run: RunShape, block_bytes: float, core: str) -> tuple[Exchange, ...]:
    under = (run.context_parallel - 1) / run.context_parallel
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
