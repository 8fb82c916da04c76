"""How far predictions miss where runs differ in how predictable they are.

Residuals of one software line are not alike: steps whose nodes host several replicas, and steps
that dispatch tokens to experts, scatter several times as much as others. A range per circumstance
keeps nine of ten inside in each of them, where a single range is too wide for most and too narrow
for some (conformal prediction by category: Vovk et al., *Algorithmic Learning in a Random World*,
2005, section 4.5).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from trainwright.errors import Fault, refuse

# An efficiency that grows with size: small transfers and products never fill a device
# ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturating:
    """An efficiency that grows with size: `max · x / (x + half)`."""

    max: float
    half: float

    def at(self, size: float) -> float:
        """The efficiency at `size` (FLOPs or bytes); `max` where there is nothing to do."""
        return self.max if size <= 0 else self.max * size / (size + self.half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of the peak that kernels reach: products over FLOPs, memory over bytes.

    What a product loses is about half a wave of its tiles, whose time grows with their depth (the
    inner size of the product): `gemm.half` is that of products as deep as `gemm_half_depth`, and
    shallower ones lose as much less; 0 says nothing of it. Attention kernels fill the device with
    long sequences only, on which they do more for each byte that they touch: their share, one per
    direction, is halved at `attention_half_flops`, and by as many FLOPs for each byte as
    `attention_half_intensity`. Products in 8 bit and less reach `fp8_ratio` of the share that
    16-bit ones reach of their lower peak: scaling and casting do not shrink with the product.
    """

    gemm: Saturating
    memory: Saturating
    attention_forward: float
    attention_backward: float
    attention_half_flops: float = 0.0
    attention_half_intensity: float = 0.0
    gemm_half_depth: float = 0.0
    fp8_ratio: float = 1.0

    def attention(self, flops: float, moved_bytes: float, *, backward: bool) -> float:
        """The share of the peak that an attention kernel reaches."""
        share = self.attention_backward if backward else self.attention_forward
        half = self.attention_half_flops + self.attention_half_intensity * moved_bytes
        return Saturating(max=share, half=half).at(flops)

    def product(self, flops: float, depth: float | None) -> float:
        """The share of the peak that products reach; `depth` is their inner size, if they have."""
        if depth is None or depth >= self.gemm_half_depth:
            return self.gemm.at(flops)
        half = self.gemm.half * depth / self.gemm_half_depth
        return Saturating(max=self.gemm.max, half=half).at(flops)


NO_LOSS: Final = Efficiency(
    gemm=Saturating(max=1.0, half=0.0),
    memory=Saturating(max=1.0, half=0.0),
    attention_forward=1.0,
    attention_backward=1.0,
)


# How far predictions miss where runs differ in how predictable they are
# ----------------------------------------------------------------------


class Circumstance(StrEnum):
    """What makes the steps of a line scatter.

    SHARED_NODES: more than one node, each with several data-parallel ranks of one group, whose
    gradients and stages share its network. EXPERTS: tokens are dispatched to experts. HOST_BOUND:
    the products of a block take the device less time than the host needs to start its kernels, so
    that hosts, not devices, set the pace.
    """

    HOST_BOUND = "host_bound"
    SHARED_NODES = "shared_nodes"
    EXPERTS = "experts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Under `when`, nine of ten steps take `low_ratio` to `high_ratio` times the prediction."""

    when: Circumstance
    low_ratio: float
    high_ratio: float
    rows: int = 0

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if not 0 < self.low_ratio <= 1 <= self.high_ratio < math.inf:
            given = f"{self.low_ratio!r} and {self.high_ratio!r}"
            yield Fault("low_ratio", f"must be <= 1, and high_ratio >= 1, got {given}")


# What public runs say of estimates whose constants were fitted to no run
# -----------------------------------------------------------------------
# Every run of the public tables that can be modelled, priced with the descriptions of accelerators
# alone (`docs/accuracy.md`, "Without fitted constants"). The tiny models of Megatron's tests are
# left out: they spend their steps starting kernels.


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfittedRuns:
    """Of `num_runs` measured configurations: how many took longer, and how much longer.

    `median_ratio` is measured over predicted time; `within_share` took from `low_ratio` to
    `high_ratio` times as long, which is the range of every estimate without fitted constants.
    """

    num_runs: int
    slower_share: float
    median_ratio: float
    low_ratio: float
    high_ratio: float
    within_share: float


LEFT_OUT: Final = ("megatron_ci",)
UNFITTED: Final = UnfittedRuns(
    num_runs=398,
    slower_share=0.9949,
    median_ratio=1.30,
    low_ratio=0.95,
    high_ratio=2.10,
    within_share=0.935,
)
