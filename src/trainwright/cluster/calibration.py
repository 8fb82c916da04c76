"""Constants fitted to measured runs of one accelerator under one line of software.

A handful of physical numbers, each with a 90 % interval: shares of peaks, latencies, host times.
They replace the defaults of a cluster's description and nothing else, so a calibrated cluster is a
cluster. Software is part of the key because kernels and fusion move these numbers as much as the
hardware does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from trainwright.cluster.accelerator import Accelerator
from trainwright.cluster.cluster import Cluster, LevelKind, NetworkLevel, Pool
from trainwright.cluster.efficiency import Saturating, Spread
from trainwright.errors import Fault, InvalidInput
from trainwright.provenance import Origin, Provenance

# Names of the constants, and the largest value of those that are shares.
CONSTANTS: Final = {
    "gemm_max": 1.0,
    "gemm_half_flops": math.inf,
    "gemm_half_depth": math.inf,
    "memory_max": 1.0,
    "attention_forward": 1.0,
    "attention_backward": 1.0,
    "attention_half_flops": math.inf,
    "attention_half_intensity": math.inf,
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
# Where a description keeps what a constant replaces.
_PLACES: Final = {
    "gemm_max": "efficiency.gemm.max",
    "gemm_half_flops": "efficiency.gemm.half",
    "gemm_half_depth": "efficiency.gemm_half_depth",
    "memory_max": "efficiency.memory.max",
    "attention_forward": "efficiency.attention_forward",
    "attention_backward": "efficiency.attention_backward",
    "attention_half_flops": "efficiency.attention_half_flops",
    "attention_half_intensity": "efficiency.attention_half_intensity",
    "fp8_ratio": "efficiency.fp8_ratio",
    "launch_overhead_s": "launch_overhead_s",
    "host_pass_s": "host_pass_s",
    "step_overhead_s": "step_overhead_s",
}
_NETWORK_CONSTANTS: Final = (
    "scale_up_efficiency",
    "scale_up_latency_s",
    "scale_out_efficiency",
    "scale_out_latency_s",
)
# Prior widths of a fit, as standard deviations of the log: of shares of a peak, of overheads.
SHARE_WIDTH: Final = 0.2
OVERHEAD_WIDTH: Final = 0.7
POOLED: Final = "pooled efficiencies"
_Z90: Final = 1.6448536269514722
_AS_WIDE: Final = 0.9995  # of the prior's interval; files round its ends to five digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One fitted number with the ends of its 90 % interval."""

    name: str
    value: float
    low: float
    high: float

    @property
    def is_prior(self) -> bool:
        """Whether the runs said nothing of it: its interval is as wide as its prior's."""
        width = SHARE_WIDTH if CONSTANTS.get(self.name) == 1.0 else OVERHEAD_WIDTH
        if not 0 < self.low < self.value:
            return False
        return math.log(self.value / self.low) >= _AS_WIDE * _Z90 * width


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The constants of `accelerator` under `line`, and how far predictions with them miss.

    A step takes between `low_ratio` and `high_ratio` times its prediction in nine cases of ten, and
    in the range of the first of `spreads` whose circumstance holds. `pooled` constants are those of
    many devices and programs (`cluster.pooled`). Others replace what a description says or, `upon`
    a program, what is pooled for it.
    """

    accelerator: str
    line: str
    constants: tuple[Constant, ...]
    low_ratio: float
    high_ratio: float
    source: str
    rows: int = 0
    spreads: tuple[Spread, ...] = ()
    pooled: bool = False
    upon: str | None = None

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
        """The constants that are stated."""
        return tuple(constant.name for constant in self.constants)

    @property
    def replaced(self) -> tuple[str, ...]:
        """Of these, the ones that `applied` puts in place of those of a description."""
        return tuple(name for name in self.names if name in _PLACES or name in _NETWORK_CONSTANTS)

    @property
    def fitted(self) -> tuple[Constant, ...]:
        """The constants that `applied` puts in place and that the runs moved from their priors."""
        return tuple(c for c in self.constants if c.name in self.replaced and not c.is_prior)

    @property
    def provenance(self) -> Provenance:
        """What a calibrated device rests on: the line, its runs and the constants they moved."""
        if self.pooled:
            return Provenance(
                origin=Origin.FITTED, source=f"{POOLED} for {self.line}: {self.source}"
            )
        which = ", ".join(constant.name for constant in self.fitted) or "none"
        source = f"calibration {self.line} ({self.source}; fitted: {which})"
        if self.upon is not None:
            source += f", upon {POOLED} for {self.upon}"
        return Provenance(origin=Origin.FITTED, source=source)

    def _origins(self, places: Mapping[str, str]) -> dict[str, Provenance]:
        """By place in a description, where the constants that are replaced there come from."""
        line = f"calibration {self.line}"
        fitted = Provenance(origin=Origin.FITTED, source=f"{line}, {self.source}")
        kept = f"default of {line}, which its runs do not determine ({self.source})"
        prior = Provenance(origin=Origin.ASSUMED, source=kept)
        return {
            places[c.name]: prior if c.is_prior else fitted
            for c in self.constants
            if c.name in places
        }

    def applied(self, cluster: Cluster) -> Cluster:
        """The cluster with these constants in place of its defaults."""
        pools = tuple(map(self.on_pool, cluster.pools))
        return replace(cluster, pools=pools)

    def on_pool(self, pool: Pool) -> Pool:
        """The same of one pool."""
        inner, *outer = pool.levels
        levels = (self._level(inner, "scale_up"), *(self._level(o, "scale_out") for o in outer))
        return replace(pool, accelerator=self._accelerator(pool.accelerator), levels=levels)

    def _accelerator(self, device: Accelerator) -> Accelerator:
        given = device.efficiency
        gemm_half = self.value("gemm_half_flops", given.gemm.half)
        attention_half = self.value("attention_half_flops", given.attention_half_flops)
        intensity = self.value("attention_half_intensity", given.attention_half_intensity)
        if device.cores is not None:  # tiles say how small kernels fill a chip design
            gemm_half = attention_half = intensity = 0.0
        efficiency = replace(
            given,
            gemm=Saturating(max=self.value("gemm_max", given.gemm.max), half=gemm_half),
            memory=replace(given.memory, max=self.value("memory_max", given.memory.max)),
            attention_forward=self.value("attention_forward", given.attention_forward),
            attention_backward=self.value("attention_backward", given.attention_backward),
            fp8_ratio=self.value("fp8_ratio", given.fp8_ratio),
            attention_half_flops=attention_half,
            attention_half_intensity=intensity,
            gemm_half_depth=self.value("gemm_half_depth", given.gemm_half_depth),
        )
        measured = dict.fromkeys(("step_low_ratio", "step_high_ratio"), self.provenance)
        sources = dict(device.sources) | self._origins(_PLACES) | measured
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
        places = {f"{place}_{field}": field for field in ("efficiency", "latency_s")}
        sources = dict(level.sources) | self._origins(places)
        efficiency = self.value(f"{place}_efficiency", level.efficiency)
        if level.kind is LevelKind.TORUS:  # the share of its links that a ring uses: no software's
            efficiency = level.efficiency
        latency_s = self.value(f"{place}_latency_s", level.latency_s)
        if self.pooled:  # that of usual fabrics; a slower one stays as slow as it is described
            latency_s = max(latency_s, level.latency_s)
        return replace(
            level, sources=tuple(sources.items()), efficiency=efficiency, latency_s=latency_s
        )


def pooled_for(device: Accelerator) -> str | None:
    """The program whose pooled efficiencies a device was given, under a calibration or not."""
    for _, origin in device.sources:
        if found := re.search(rf"{POOLED} for ([^:,]+)", origin.source):
            return found[1]
    return None


def line_of(sources: Iterable[str]) -> str | None:
    """The line that a device's constants are said to come from, as `Calibration.applied` does."""
    for source in sources:
        if found := re.match(r"(?:default of )?calibration (.+?)(?:,| \()", source):
            return found[1]
    return None
