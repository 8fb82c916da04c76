"""How long a rank of a loop works at least: plain reference of `native/chain/loop_ranks.hpp`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


def least_recompute_s(blocks, least, spare, instants, room_bytes):
    """Seconds that a rank must recompute per microbatch; infinite if no recomputation suffices.

    Its chunks hold `least` [v] blocks and e from 0 on more, at most `spare` [v] of them in each:
    shape [E]. `instants` [N, v] count the microbatches of each chunk that are held, each with the
    room for e more blocks in `room_bytes` [E, N].
    """
    extra = np.arange(len(room_bytes))[:, np.newaxis, np.newaxis]
    chunks = least + _dealt(extra, spare, np.argsort(instants, axis=1, kind="stable"))
    held = instants * chunks
    over = held.sum(axis=2) * blocks.kept_bytes[0] - room_bytes
    if over.max() <= 0:
        return np.zeros(len(room_bytes))
    freed, longer_s = -np.diff(blocks.kept_bytes), np.diff(blocks.time_s)
    gains = (held[..., np.newaxis] * freed).reshape(*over.shape, -1)
    costs_s = (chunks[..., np.newaxis] * longer_s).reshape(*over.shape, -1)
    rate = gains / np.maximum(costs_s, 1e-300)
    order = np.argsort(-rate, axis=2, kind="stable")
    gains, costs_s, rate = (np.take_along_axis(x, order, axis=2) for x in (gains, costs_s, rate))
    before = np.cumsum(gains, axis=2) - gains
    share = np.clip(over[..., np.newaxis] - before, 0.0, gains)
    spent_s = (share / np.maximum(rate, 1e-300)).sum(axis=2)
    fits = gains.sum(axis=2) >= over
    return np.where(fits, spent_s, np.inf).max(axis=1)


def rank_times_s(chain, rank, ends, instants, running):
    """The bound from one rank with its least blocks, one more, ..."""
    own = slice(rank, None, chain.num_ranks)
    least, most = chain.least[own], chain.most[own]
    edges = [edge for edge, owner in enumerate((0, chain.num_ranks - 1)) if owner == rank]
    chunk_of_edge = [(0, len(least) - 1)[edge] for edge in edges]
    edge_s = float(chain.edges.time_s[edges].sum())
    optimizer_s = float(chain.edges.optimizer_s[edges].sum())
    static = float(chain.edges.static_bytes[edges].sum())
    kept = instants[:, chunk_of_edge] @ chain.edges.kept_bytes[edges]
    extra = np.arange(len(chain.sharing[rank].tail_s))
    count = int(least.sum()) + extra
    held = static + count * chain.blocks.static_bytes
    runs_blocks = running @ (least > 0) > 0
    beside = chain.beside_bytes + chain.blocks.transient_bytes * runs_blocks
    room = chain.usable_bytes - beside - held[:, np.newaxis] - kept
    recomputed_s = least_recompute_s(chain.blocks, least, most - least, instants, room)
    fits = (room.min(axis=1) >= 0) & np.isfinite(recomputed_s)
    recomputed_s = np.where(fits, recomputed_s, 0.0)
    shared = chain.sharing[rank]
    exposed_s = np.maximum(0.0, shared.backward_s - chain.under_backward * recomputed_s)
    added = _Added(forward_s=shared.forward_s, backward_s=recomputed_s + exposed_s)
    work_s = count * float(chain.blocks.time_s[0]) + edge_s + added.forward_s + added.backward_s
    after_s = optimizer_s + count * chain.optimizer_s
    before_s, idle_s = _idle_s(chain, rank, ends, extra=extra, added=added)
    # What a rank exchanges follows its own last action, while others may still drain.
    waits_s = np.maximum(idle_s + chain.sharing[0].tail_s.min(), before_s + shared.tail_s)
    times_s = chain.num_microbatches * work_s + waits_s + after_s
    return np.where(fits, times_s, np.inf)


class _Added(NamedTuple):
    """To every microbatch of a rank, by its extra blocks, [E]: to the forwards, the backwards."""

    forward_s: np.ndarray
    backward_s: np.ndarray


def _idle_s(chain, rank, ends, *, extra, added):
    """Before the own last action and in all; own work that a path does not pass is at most this."""
    forward_s, backward_s = _least_phases_s(chain)
    own, across_s = (
        slice(rank, None, chain.num_ranks),
        np.concatenate(([0.0], np.cumsum(chain.transfer_s))),
    )
    least, spare = chain.least[own], (chain.most - chain.least)[own]
    warm = _largest(ends.warm, least, spare, extra) * chain.blocks.forward_s
    block_backward_s = float(chain.blocks.time_s[0]) - chain.blocks.forward_s
    drain = _largest(ends.drain, least, spare, extra) * block_backward_s
    warm = warm + float(ends.warm.max()) * added.forward_s
    drain = drain + float(ends.drain.max()) * added.backward_s
    for edge, owner in enumerate((0, chain.num_ranks - 1)):
        if owner == rank:
            chunk = (0, -1)[edge]
            edge_forward_s = float(chain.edges.forward_s[edge])
            warm = warm + float(ends.warm[chunk]) * edge_forward_s
            drain = drain + float(ends.drain[chunk]) * (
                float(chain.edges.time_s[edge]) - edge_forward_s
            )
    head = float(forward_s[: ends.begins].sum() + across_s[ends.begins])
    tail = float(backward_s[: ends.ends].sum() + across_s[ends.ends])
    behind = float(backward_s[ends.turns + 1 :].sum() + across_s[-1] - across_s[ends.turns])
    ahead = float(forward_s[ends.leaves + 1 :].sum() + across_s[-1] - across_s[ends.leaves])
    start = chain.forward_all_s + float(across_s[-1]) + behind - warm
    end = chain.backward_all_s + float(across_s[-1]) + ahead - drain
    # Of the way back to the own last action only the least is known, but for own chunks.
    own_end = float(backward_s[ends.ends :].sum() + across_s[-1] - across_s[ends.ends]) + ahead
    own_end = own_end - drain + (extra * block_backward_s if ends.ends < chain.num_ranks else 0.0)
    begun = np.maximum(head, start)
    late = begun if ends.waits_twice else head
    return np.maximum(begun, late + own_end), np.maximum(begun + tail, late + end)


def _least_phases_s(chain):
    """Forward and backward of every stage with its least blocks, [S]."""
    edges = [0, -1]
    forward_s = chain.least * chain.blocks.forward_s
    forward_s[edges] += chain.edges.forward_s
    backward_s = chain.least * (float(chain.blocks.time_s[0]) - chain.blocks.forward_s)
    backward_s[edges] += chain.edges.time_s - chain.edges.forward_s
    return forward_s, backward_s


def _largest(counts, least, spare, extra):
    """Chunks of blocks weighed by counts, extra blocks where they weigh most, for each extra."""
    dealt = _dealt(extra[:, np.newaxis], spare, np.argsort(-counts, kind="stable"))
    return (least + dealt) @ counts


def _dealt(extra, spare, order):
    """Extra blocks of each chunk, [..., v], chunks filled in `order` with what they can take."""
    room = spare[order]
    filled = np.clip(extra - (np.cumsum(room, axis=-1) - room), 0, room)
    dealt = np.zeros_like(filled)
    np.put_along_axis(dealt, np.broadcast_to(order, filled.shape), filled, axis=-1)
    return dealt
