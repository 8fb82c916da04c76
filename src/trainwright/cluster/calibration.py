"""Constants fitted to measured runs of one accelerator under one line of software.

A handful of physical numbers, each with a 90 % interval: shares of peaks, latencies, host times.
They replace the defaults of a cluster's description and nothing else, so a calibrated cluster is a
cluster. Software is part of the key because kernels and fusion move these numbers as much as the
hardware does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from trainwright.cluster.accelerator import Accelerator
from trainwright.cluster.cluster import Cluster, Pool
from trainwright.cluster.network import NetworkLevel
from trainwright.cluster.saturating import Saturating
from trainwright.cluster.spread import Spread
from trainwright.errors import Fault, InvalidInput
from trainwright.provenance import Origin, Provenance

# Names of the constants, and the largest value of those that are shares.
CONSTANTS: Final = {
    "gemm_max": 1.0,
    "gemm_half_flops": math.inf,
    "memory_max": 1.0,
    "attention_forward": 1.0,
    "attention_backward": 1.0,
    "attention_half_flops": math.inf,
    "fp8_ratio": 1.0,
    "launch_overhead_s": math.inf,
    "host_pass_s": math.inf,
    "scale_up_efficiency": 1.0,
    "scale_up_latency_s": math.inf,
    "scale_out_efficiency": 1.0,
    "scale_out_latency_s": math.inf,
    "step_overhead_s": math.inf,
    # Where layers were measured, what is left to fit: how much slower they run in a step than
    # alone, what gradients and activations cross the network with, what memory holds beside them.
    "layer_ratio": math.inf,
    "reduce_bytes_per_s": math.inf,
    "send_bytes_per_s": math.inf,
    "parameter_bytes": math.inf,
    "saved_ratio": math.inf,
    "fixed_bytes": math.inf,
}
_HOST_FIELDS: Final = ("launch_overhead_s", "host_pass_s", "step_overhead_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One fitted number with the ends of its 90 % interval."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The constants of `accelerator` under `line`, and how far predictions with them miss.

    A step takes between `low_ratio` and `high_ratio` times its prediction in nine cases of ten, and
    in the range of the first of `spreads` whose circumstance holds.
    """

    accelerator: str
    line: str
    constants: tuple[Constant, ...]
    low_ratio: float
    high_ratio: float
    source: str
    rows: int = 0
    spreads: tuple[Spread, ...] = ()

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for constant in self.constants:
            place = f"constants.{constant.name}"
            if constant.name not in CONSTANTS:
                yield Fault(place, f"must be one of {', '.join(CONSTANTS)}")
                continue
            if CONSTANTS[constant.name] == 1.0:
                if not 0 < constant.value <= 1:
                    yield Fault(place, f"must be in (0, 1], got {constant.value!r}")
            elif not 0 <= constant.value < math.inf:
                yield Fault(place, f"must be finite and >= 0, got {constant.value!r}")
            if not constant.low <= constant.value <= constant.high:
                ends = f"{constant.low!r} and {constant.high!r}"
                yield Fault(place, f"must lie between low and high, got {ends}")
        if not 0 < self.low_ratio <= 1 <= self.high_ratio < math.inf:
            given = f"{self.low_ratio!r} and {self.high_ratio!r}"
            yield Fault("low_ratio", f"must be <= 1, and high_ratio >= 1, got {given}")

    def value(self, name: str, default: float) -> float:
        """A constant, or `default` where it was not fitted."""
        return next((c.value for c in self.constants if c.name == name), default)

    @property
    def names(self) -> tuple[str, ...]:
        """The constants that were fitted."""
        return tuple(constant.name for constant in self.constants)

    def applied(self, cluster: Cluster) -> Cluster:
        """The cluster with these constants in place of its defaults."""
        pools = tuple(self._pool(pool) for pool in cluster.pools)
        return replace(cluster, pools=pools)

    def _pool(self, pool: Pool) -> Pool:
        inner, *outer = pool.levels
        levels = (self._level(inner, "scale_up"), *(self._level(o, "scale_out") for o in outer))
        return replace(pool, accelerator=self._accelerator(pool.accelerator), levels=levels)

    def _accelerator(self, device: Accelerator) -> Accelerator:
        given = device.efficiency
        efficiency = replace(
            given,
            gemm=Saturating(
                max=self.value("gemm_max", given.gemm.max),
                half=self.value("gemm_half_flops", given.gemm.half),
            ),
            memory=replace(given.memory, max=self.value("memory_max", given.memory.max)),
            attention_forward=self.value("attention_forward", given.attention_forward),
            attention_backward=self.value("attention_backward", given.attention_backward),
            fp8_ratio=self.value("fp8_ratio", given.fp8_ratio),
            attention_half_flops=self.value("attention_half_flops", given.attention_half_flops),
        )
        fitted = Provenance(origin=Origin.FITTED, source=self.source)
        sources = dict(device.sources) | dict.fromkeys(("efficiency", *_HOST_FIELDS), fitted)
        return replace(
            device,
            efficiency=efficiency,
            launch_overhead_s=self.value("launch_overhead_s", device.launch_overhead_s),
            host_pass_s=self.value("host_pass_s", device.host_pass_s),
            step_overhead_s=self.value("step_overhead_s", device.step_overhead_s),
            step_low_ratio=self.low_ratio,
            step_high_ratio=self.high_ratio,
            step_spreads=self.spreads,
            sources=tuple(sources.items()),
        )

    def _level(self, level: NetworkLevel, place: str) -> NetworkLevel:
        return replace(
            level,
            efficiency=self.value(f"{place}_efficiency", level.efficiency),
            latency_s=self.value(f"{place}_latency_s", level.latency_s),
        )
