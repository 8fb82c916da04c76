"""How long a collective takes: latency and bandwidth per network level (Hockney's α–β model).

A group is given by its *hops*: for each level it crosses, innermost first, how many members (or
groups of members) meet there. With n ranks, N payload bytes (the whole tensor), α the latency and
β the seconds per byte of the slowest level crossed:

    gather, scatter, ring      (n − 1) α + (n − 1)/n · N β
    all-reduce, ring           2 (n − 1) α + 2 (n − 1)/n · N β
    all-reduce, tree           2 ⌈log₂ n⌉ α + 2 N β
    hierarchical               scatter inside, N/n₁ across the outer levels, gather inside

The fastest algorithm is taken, as communication libraries try to. Sources: Thakur, Rabenseifner,
Gropp, 2005; NCCL's rings and trees. Ignored: contention between groups beyond what the per-device
bandwidth says, protocol switches at small sizes.
"""

from __future__ import annotations

import math
from typing import Final

from trainwright.cluster import Hop, NetworkLevel

Hops = tuple[Hop, ...]


def collective_time_s(kind: str, payload_bytes: float, hops: Hops) -> float:
    """Seconds of one collective over the group of `hops`; 0 for a group of one."""
    return _COLLECTIVES[kind](payload_bytes, hops) if hops else 0.0


def all_reduce_time_s(payload_bytes: float, hops: Hops) -> float:
    """The fastest of ring, tree and hierarchical."""
    if not hops:
        return 0.0
    n, latency_s, byte_s = _flat(hops)
    ring = 2 * (n - 1) * latency_s + 2 * (n - 1) / n * payload_bytes * byte_s
    tree = 2 * math.ceil(math.log2(n)) * latency_s + 2 * payload_bytes * byte_s
    if len(hops) == 1:
        return min(ring, tree)
    inner, outer = hops[:1], hops[1:]
    across = all_reduce_time_s(payload_bytes / inner[0].ranks, outer)
    return min(ring, tree, 2 * _ring_pass_s(payload_bytes, inner) + across)


def all_gather_time_s(payload_bytes: float, hops: Hops) -> float:
    """All-gather of a tensor of `payload_bytes` in all, or its mirror, reduce-scatter."""
    if not hops:
        return 0.0
    flat = _ring_pass_s(payload_bytes, hops)
    if len(hops) == 1:
        return flat
    across = all_gather_time_s(payload_bytes / hops[0].ranks, hops[1:])
    return min(flat, _ring_pass_s(payload_bytes, hops[:1]) + across)


def all_to_all_time_s(payload_bytes: float, hops: Hops) -> float:
    """Each rank sends 1/n of its `payload_bytes` to each other; levels work one after another."""
    total = math.prod(hop.ranks for hop in hops)
    time_s, inside = 0.0, 1
    for hop in hops:
        reached = inside * hop.ranks
        share = (reached - inside) / total
        time_s += (hop.ranks - 1) * hop.level.latency_s
        time_s += share * payload_bytes / hop.level.effective_bytes_per_s
        inside = reached
    return time_s


def point_to_point_time_s(payload_bytes: float, level: NetworkLevel | None) -> float:
    """A message across `level`; free where sender and receiver are one device."""
    if level is None:
        return 0.0
    return level.latency_s + payload_bytes / level.effective_bytes_per_s


def ring_time_s(block_bytes: float, hops: Hops) -> float:
    """Every rank passes a block on, n - 1 times, at the pace of the slowest link."""
    if not hops:
        return 0.0
    n, latency_s, byte_s = _flat(hops)
    return (n - 1) * (latency_s + block_bytes * byte_s)


def _message_time_s(payload_bytes: float, hops: Hops) -> float:
    return point_to_point_time_s(payload_bytes, hops[-1].level)


def _flat(hops: Hops) -> tuple[int, float, float]:
    """Ranks, and latency and seconds per byte of the slowest level."""
    n = math.prod(hop.ranks for hop in hops)
    latency_s = max(hop.level.latency_s for hop in hops)
    byte_s = max(1 / hop.level.effective_bytes_per_s for hop in hops)
    return n, latency_s, byte_s


def _ring_pass_s(payload_bytes: float, hops: Hops) -> float:
    n, latency_s, byte_s = _flat(hops)
    return (n - 1) * latency_s + (n - 1) / n * payload_bytes * byte_s


_COLLECTIVES: Final = {
    "all_reduce": all_reduce_time_s,
    "all_gather": all_gather_time_s,
    "reduce_scatter": all_gather_time_s,
    "all_to_all": all_to_all_time_s,
    "point_to_point": _message_time_s,
    "ring": ring_time_s,
}
