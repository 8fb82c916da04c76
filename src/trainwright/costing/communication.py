"""How long a collective takes: latency and bandwidth per network level (Hockney's α–β model).

A group is given by its *hops*: for each level it crosses, innermost first, how many members (or
groups of members) meet there. With n ranks, N payload bytes (the whole tensor), α the latency and
β the seconds per byte of the slowest level crossed:

    gather, scatter, ring      (n − 1) α + (n − 1)/n · N β
    all-reduce, ring           2 (n − 1) α + 2 (n − 1)/n · N β
    all-reduce, tree           2 ⌈log₂ n⌉ α + 2 N β
    hierarchical               scatter inside, N/n₁ across the outer levels, gather inside
    all-to-all                 (n − nᵢ)/n · N β of the levels in turn, nᵢ ranks inside
    tokens, a copy per unit    D (1 - 1/r) · (N/k) β of the slowest level, r units meeting there

In the last a token of k experts crosses each level once for each unit below it that has one of
them, D units on average (`model.config`), but for the share 1/r that is there already. Levels
work at once, because tokens are passed on as they arrive (DeepSeek-V3, 2024, section 3.2.2).

The fastest algorithm is taken, as communication libraries try to. Sources: Thakur, Rabenseifner,
Gropp, 2005; NCCL's rings and trees. Ignored: contention between groups beyond what the per-device
bandwidth says, protocol switches at small sizes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final, overload

import numpy as np

from trainwright.cluster import Accelerator, Hop, NetworkLevel
from trainwright.model import Operator, OperatorKind, Phase, Work

if TYPE_CHECKING:
    from trainwright.arrays import Floats
    from trainwright.model import Exchange, Routing
    from trainwright.profile import Collective

Hops = tuple[Hop, ...]
Lines = tuple[tuple[float, float], ...]

_KEPT: Final = 4096  # groups whose lines are kept


def exchange_time_s(exchange: Exchange | Collective, hops: Hops) -> float:
    """Seconds of a layer's collective over the group of `hops`; 0 for a group of one."""
    hops = hops_within(hops, nearest=exchange.nearest, apart=exchange.apart)
    if exchange.routing is not None:
        return tokens_time_s(exchange.bytes, hops, exchange.routing)
    return collective_time_s(exchange.kind, exchange.bytes, hops)


def hops_within(hops: Hops, *, nearest: int | None = None, apart: int | None = None) -> Hops:
    """Those of the `nearest` so many of a group, or of the ranks that lie so many `apart` in it.

    A group of 4 devices in each of 2 nodes: its 2 nearest meet inside, those 2 apart meet twice
    inside and then across.
    """
    if nearest is None and apart is None:
        return hops
    left, found = nearest or apart or 1, []
    for hop in hops:
        near = math.gcd(left, hop.ranks)
        left //= near
        ranks = near if apart is None else hop.ranks // near
        if ranks > 1:
            found.append(Hop(level=hop.level, ranks=ranks))
    return tuple(found)


def collective_time_s(kind: str, payload_bytes: float, hops: Hops) -> float:
    """Seconds of one collective over the group of `hops`; 0 for a group of one."""
    return _COLLECTIVES[kind](payload_bytes, hops) if hops else 0.0


def all_reduce_time_s(payload_bytes: float, hops: Hops) -> float:
    """The fastest of ring, tree and hierarchical."""
    return fastest_s(all_reduce_lines(hops), payload_bytes)


def all_gather_time_s(payload_bytes: float, hops: Hops) -> float:
    """All-gather of a tensor of `payload_bytes` in all, or its mirror, reduce-scatter."""
    return fastest_s(all_gather_lines(hops), payload_bytes)


def fastest_s(lines: Lines, payload_bytes: float) -> float:
    """The least of several start + payload · slope; 0 without any, for a group of one."""
    return min([start_s + payload_bytes * byte_s for start_s, byte_s in lines], default=0.0)


@lru_cache(maxsize=_KEPT)
def all_reduce_lines(hops: Hops) -> Lines:
    """Start and seconds per byte of each way to all-reduce: ring, tree, hierarchical."""
    if not hops:
        return ()
    n, latency_s, byte_s = _flat(hops)
    ring = (2 * (n - 1) * latency_s, 2 * (n - 1) / n * byte_s)
    tree = (2 * math.ceil(math.log2(n)) * latency_s, 2 * byte_s)
    if len(hops) == 1:
        return ring, tree
    start_s, slope = _ring_pass(hops[:1])
    across = all_reduce_lines(hops[1:])
    inside = hops[0].ranks
    return ring, tree, *((2 * start_s + a, 2 * slope + b / inside) for a, b in across)


@lru_cache(maxsize=_KEPT)
def all_gather_lines(hops: Hops) -> Lines:
    """Start and seconds per byte of each way to gather or scatter: one ring, or level by level."""
    if not hops:
        return ()
    flat = _ring_pass(hops)
    if len(hops) == 1:
        return (flat,)
    start_s, slope = _ring_pass(hops[:1])
    across = all_gather_lines(hops[1:])
    return flat, *((start_s + a, slope + b / hops[0].ranks) for a, b in across)


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


def tokens_time_s(payload_bytes: float, hops: Hops, routing: Routing) -> float:
    """Each rank sends its tokens to the units of their experts, once to each unit of a level.

    `payload_bytes` are those of a copy for each expert; 0 for a group of one.
    """
    tokens_bytes = payload_bytes / routing.experts_per_token
    latency_s, slowest_s, inside = 0.0, 0.0, 1
    for hop in hops:
        crossing = routing.units_met(inside) * (1 - 1 / hop.ranks)
        latency_s += (hop.ranks - 1) * hop.level.latency_s
        slowest_s = max(slowest_s, crossing * tokens_bytes / hop.level.effective_bytes_per_s)
        inside *= hop.ranks
    return latency_s + slowest_s


@overload
def beyond_s(time_s: float, under_s: float) -> float: ...
@overload
def beyond_s(time_s: Floats, under_s: Floats | float) -> Floats: ...
def beyond_s(time_s: Floats | float, under_s: Floats | float) -> Floats | float:
    """What of an exchange does not hide under so many seconds of compute; numbers or arrays."""
    left_s = time_s - under_s
    if isinstance(left_s, float):
        return max(0.0, left_s)
    found: Floats = np.maximum(0.0, left_s)
    return found


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


def _ring_pass(hops: Hops) -> tuple[float, float]:
    n, latency_s, byte_s = _flat(hops)
    return (n - 1) * latency_s, (n - 1) / n * byte_s


_COLLECTIVES: Final = {
    "all_reduce": all_reduce_time_s,
    "all_gather": all_gather_time_s,
    "reduce_scatter": all_gather_time_s,
    "all_to_all": all_to_all_time_s,
    "point_to_point": _message_time_s,
    "ring": ring_time_s,
}


# How long an operator takes on one device: a roofline with efficiencies (Williams et al., 2009)
# ----------------------------------------------------------------------------------------------
#     time = launch overhead + max( FLOPs / (peak · e(FLOPs)), bytes / (bandwidth · e_m(bytes)) )
#
# All efficiencies grow with size, which is that of the products that run at once where a kernel
# does many (experts: four, the streams of Transformer Engine's grouped products); attention kernels
# have one per direction. Kernels do not overlap. Where the host cannot start kernels as fast as
# they run is settled per layer, in `layer`.

_NARROW: Final = ("fp8", "fp4")
_PRODUCTS_AT_ONCE: Final = 4


def operator_time_s(
    operator: Operator, phase: Phase, *, accelerator: Accelerator, dtype: str
) -> float:
    """Seconds that one phase of `operator` takes; 0 where it has no work there.

    Raises `UnsupportedFeature` when the device does not multiply in `dtype`.
    """
    work = operator.work(phase)
    if not (work.flops or work.bytes):
        return 0.0
    compute_s = 0.0
    if work.flops:
        share = _compute_efficiency(operator, phase, work, accelerator)
        if dtype in _NARROW:
            share *= accelerator.efficiency.fp8_ratio
        compute_s = work.flops / (accelerator.peak(dtype) * share)
    before = 0.0 if phase is Phase.WEIGHT_GRAD else operator.expanded_bytes
    memory_s = memory_time_s(work.bytes - before, accelerator) / operator.bandwidth_share
    product_s = accelerator.launch_overhead_s + max(compute_s, memory_s)
    return product_s + (memory_time_s(before, accelerator) if before else 0.0)


def memory_time_s(traffic_bytes: float, accelerator: Accelerator) -> float:
    """Seconds to move `traffic_bytes` of states between the device and its memory.

    On a chip that is described by its cores, the lanes that update them may take longer.
    """
    share = accelerator.efficiency.memory.at(traffic_bytes)
    moved_s = traffic_bytes / (accelerator.memory_bandwidth_bytes_per_s * share)
    if accelerator.cores is None:
        return moved_s
    return max(moved_s, traffic_bytes / accelerator.cores.update_bytes_per_s)


# Every score of fused attention costs one exponential, which special function units take while
# matrix units wait: the forward kernels of FlashAttention-3 on H100 take 4 d FLOPs at 94% of the
# peak and one exponential for each score, at heads of 64, 128 and 256 (497, 648 and 756 TFLOP/s;
# Shah et al., 2024, figure 5). Their backward, with 10 d FLOPs, is slowed by half as many features
# (474 and 561; figure 6). FlashAttention-4 on B200 reaches with 64 0.66 of what it does with 128
# (its repository, pull request 2605), where this says 0.67. A share of the peak is that of heads of
# 128, the size of nearly all measured runs; kernels for larger ones differ in either direction.
_MATRIX_PACE: Final = 0.94
_USUAL_HEAD: Final = 128.0
_FORWARD_FLOPS: Final = 4.0  # for each score and feature of a head
_BACKWARD_WAIT: Final = 0.5


def _share_of_small_heads(
    head_size: float | None, accelerator: Accelerator, *, backward: bool
) -> float:
    """How fast attention over heads of a size is against heads of 128 features."""
    if head_size is None or head_size >= _USUAL_HEAD:
        return 1.0
    wait = _MATRIX_PACE * accelerator.flops_per_exponential / _FORWARD_FLOPS
    wait *= _BACKWARD_WAIT if backward else 1.0
    return (1 + wait / _USUAL_HEAD) / (1 + wait / head_size)


def _compute_efficiency(
    operator: Operator, phase: Phase, work: Work, accelerator: Accelerator
) -> float:
    efficiency, matrix = accelerator.efficiency, operator.matrix
    if operator.kind is OperatorKind.ATTENTION:
        backward = phase is Phase.INPUT_GRAD
        share = efficiency.attention(work.flops, work.bytes, backward=backward)
        return share * _share_of_small_heads(operator.head_size, accelerator, backward=backward)
    if matrix is None:
        return efficiency.product(work.flops, None)
    depth = {
        Phase.INPUT_GRAD: matrix.outputs,
        Phase.WEIGHT_GRAD: matrix.rows / matrix.matrices,
    }.get(phase, matrix.inputs)
    return efficiency.product(work.flops / max(1.0, matrix.matrices / _PRODUCTS_AT_ONCE), depth)
