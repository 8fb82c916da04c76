"""One kind of device: peaks, memory, and the few constants that turn peaks into times.

Efficiency of matrix products and of memory traffic saturates with size, max · x / (x + half): a
small product never fills the device. Every constant carries where it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from trainwright.cluster.efficiency import UNFITTED, Efficiency, Spread
from trainwright.cluster.template import ChipCores
from trainwright.errors import Fault, UnsupportedFeature, refuse
from trainwright.provenance import RARE, UNSTATED, Origin, Provenance
from trainwright.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The share of its host that a device has where all devices of the node use theirs.

    `link_bytes_per_s` is what reaches the host's memory in one direction, `memory_bytes` how much
    of that there is, `updates_per_s` how many parameters the host's cores update per second.
    """

    link_bytes_per_s: float
    memory_bytes: float
    updates_per_s: float

    def __post_init__(self) -> None:
        refuse(
            Fault(f"host.{each.name}", f"must be finite and > 0, got {value!r}")
            for each in fields(self)
            if not (math.isfinite(value := getattr(self, each.name)) and value > 0)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A device kind. `peak_flops_per_s` is dense, as (number format, peak).

    `memory_bytes` is what the driver shows, `usable_fraction` what a training process can allocate
    of it. `sources` says of a field, by name, where its figure comes from. The host needs
    `host_pass_s` to start the kernels of one block in one pass (forward, backward, repeated
    forward) and `step_overhead_s` for what a step does once: properties of an installation. Nine of
    ten measured steps take from `step_low_ratio` to `step_high_ratio` times the predicted time, or
    the range of the first of `step_spreads` whose circumstance holds; default efficiencies leave
    out host time and imperfect kernels, so they err on the fast side. `power_watts` is what a busy
    device draws, `price_per_hour` what it costs in a currency of the caller's. A device with
    `cores` is a chip design: its operators are tiled onto them, which says how small products fill
    it, so no share of products may grow with size (`template_device` makes one).

    `host` is absent where nothing is known of it. Where states lie there, each byte that an update
    touches on the device takes `update_delay_s_per_byte` longer (`step.zero.with_host_updates`).
    Where software `adds_gradients_apart`, kernels of their own add those of a microbatch to what
    the step has, instead of the products that make them.
    """

    name: str
    peak_flops_per_s: tuple[tuple[str, float], ...]
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    launch_overhead_s: float
    usable_fraction: float
    efficiency: Efficiency
    sources: tuple[tuple[str, Provenance], ...] = ()
    host_pass_s: float = 0.0
    step_overhead_s: float = 0.0
    step_low_ratio: float = UNFITTED.low_ratio
    step_high_ratio: float = UNFITTED.high_ratio
    step_spreads: tuple[Spread, ...] = ()
    power_watts: float | None = None
    price_per_hour: float | None = None
    cores: ChipCores | None = None
    host: Host | None = None
    update_delay_s_per_byte: float = field(default=0.0, metadata={RARE: True})
    adds_gradients_apart: bool = field(default=False, metadata={RARE: True})

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if not self.peak_flops_per_s:
            yield Fault("peak_flops_per_s", "must give at least one number format, got none")
        positive = {f"peak_flops_per_s.{k}": v for k, v in self.peak_flops_per_s}
        positive["memory_bytes"] = self.memory_bytes
        positive["memory_bandwidth_bytes_per_s"] = self.memory_bandwidth_bytes_per_s
        for name, value in positive.items():
            if not (math.isfinite(value) and value > 0):
                yield Fault(name, f"must be finite and > 0, got {value!r}")
        for name in ("launch_overhead_s", "host_pass_s", "step_overhead_s"):
            if not (math.isfinite(value := getattr(self, name)) and value >= 0):
                yield Fault(name, f"must be finite and >= 0, got {value!r}")
        for name in ("power_watts", "price_per_hour"):
            stated = getattr(self, name)
            if stated is not None and not (math.isfinite(stated) and stated > 0):
                yield Fault(name, f"must be finite and > 0, got {stated!r}")
        if not 0 < self.usable_fraction <= 1:
            yield Fault("usable_fraction", f"must be in (0, 1], got {self.usable_fraction!r}")
        if not 0 < self.step_low_ratio <= 1 <= self.step_high_ratio < math.inf:
            given = f"{self.step_low_ratio!r} and {self.step_high_ratio!r}"
            yield Fault("step_low_ratio", f"must be <= 1, and step_high_ratio >= 1, got {given}")
        yield from _efficiency_faults(self.efficiency)
        own = self.efficiency
        halves = {
            "gemm.half": own.gemm.half,
            "attention_half_flops": own.attention_half_flops,
            "attention_half_intensity": own.attention_half_intensity,
        }
        for name, half in halves.items() if self.cores is not None else ():
            if half:
                wanted = "must be 0 on a chip described by its cores: tiles say how it fills"
                yield Fault(f"efficiency.{name}", f"{wanted}, got {half!r}")

    @property
    def usable_bytes(self) -> float:
        """Memory that a plan may fill."""
        return self.memory_bytes * self.usable_fraction

    @property
    def memory_gib(self) -> float:
        """Memory as the driver shows it, in GiB."""
        return self.memory_bytes / GIB

    @property
    def default_precision(self) -> str:
        """The 16-bit format the device multiplies in, else float32; what its cores are made for."""
        if self.cores is not None:
            return self.cores.precision
        return next((p for p in ("bf16", "fp16") if p in self.dtypes), "fp32")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The number formats whose peak is known."""
        return tuple(name for name, _ in self.peak_flops_per_s)

    def peak(self, dtype: str) -> float:
        """Peak FLOP/s in `dtype`; raises `UnsupportedFeature` naming what the device has."""
        for name, peak in self.peak_flops_per_s:
            if name == dtype:
                return peak
        raise UnsupportedFeature(
            f"{self.name} has no {dtype} peak", alternative=f"it has {', '.join(self.dtypes)}"
        )

    def provenance_of(self, field_name: str) -> Provenance:
        """Where a constant comes from; an assumption where nothing is said.

        What is said of `efficiency` holds of `efficiency.gemm.max` unless that has its own source.
        """
        sources = dict(self.sources)
        return sources.get(field_name) or sources.get(field_name.partition(".")[0], UNSTATED)

    @property
    def calibration(self) -> Provenance | None:
        """What its times were fitted to, if to anything: stated of their range or efficiencies."""
        stated = map(self.provenance_of, ("step_low_ratio", "efficiency"))
        return next((known for known in stated if known.origin is Origin.FITTED), None)


def _efficiency_faults(efficiency: Efficiency) -> Iterator[Fault]:
    shares = {
        "efficiency.gemm.max": efficiency.gemm.max,
        "efficiency.memory.max": efficiency.memory.max,
        "efficiency.attention_forward": efficiency.attention_forward,
        "efficiency.attention_backward": efficiency.attention_backward,
        "efficiency.fp8_ratio": efficiency.fp8_ratio,
    }
    for name, value in shares.items():
        if not 0 < value <= 1:
            yield Fault(name, f"must be in (0, 1], got {value!r}")
    halves = {
        "efficiency.gemm.half": efficiency.gemm.half,
        "efficiency.memory.half": efficiency.memory.half,
        "efficiency.attention_half_flops": efficiency.attention_half_flops,
        "efficiency.attention_half_intensity": efficiency.attention_half_intensity,
        "efficiency.gemm_half_depth": efficiency.gemm_half_depth,
    }
    for name, half in halves.items():
        if not (math.isfinite(half) and half >= 0):
            yield Fault(name, f"must be >= 0, got {half!r}")
