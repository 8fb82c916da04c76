"""One kind of device: peaks, memory, and the few constants that turn peaks into times.

Efficiency of matrix products and of memory traffic saturates with size, max · x / (x + half): a
small product never fills the device. Every constant carries where it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from trainwright.errors import Fault, UnsupportedFeature, negative, not_positive, refuse, too_low
from trainwright.provenance import RARE, UNSTATED, Origin, Provenance
from trainwright.units import GIB, KIB, MIB

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
# Residuals of one software line are not alike: steps whose nodes host several replicas, and steps
# that dispatch tokens to experts, scatter several times as much as others. A range per circumstance
# keeps nine of ten inside in each of them, where a single range is too wide for most and too narrow
# for some (conformal prediction by category: Vovk et al., *Algorithmic Learning in a Random World*,
# 2005, section 4.5).


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
    median_ratio=1.31,
    low_ratio=0.95,
    high_ratio=2.10,
    within_share=0.935,
)


# A chip template: cores, buffers, and what surrounds them, as the variables of co-design
# ---------------------------------------------------------------------------------------
# A chip has `num_tc` tensor cores, each a `width` × `depth` array of multipliers, `num_vc` vector
# cores of `width` lanes, a private second-level buffer per core and one global buffer for all. The
# template is that of PHAZE (Wang et al., ICML 2024, section 3), after Google's TPUv4 in its
# reference design.
#
# What surrounds the cores (`Surroundings`) is kept apart, because a search over cores and buffers
# holds it fixed: clock, memory, links.

# A core's own buffer: 16 bytes for each multiplier or lane, at least 1 KiB.
CORE_BUFFER_BYTES_PER_UNIT: Final = 16
LEAST_CORE_BUFFER_BYTES: Final = KIB
_LEAST: Final = (
    ("num_tc", 1),
    ("num_vc", 1),
    ("width", 2),
    ("depth", 2),
    ("buffer_bytes_per_mac", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ChipTemplate:
    """The cores and buffers of one chip; vector cores are as wide as the arrays.

    A tensor core's own buffer has `buffer_bytes_per_mac` for each multiplier.
    """

    num_tc: int
    num_vc: int
    width: int
    depth: int
    glb_bytes: int
    buffer_bytes_per_mac: int = CORE_BUFFER_BYTES_PER_UNIT

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        for name, least in _LEAST:
            if (value := getattr(self, name)) < least:
                yield Fault(name, f"must be >= {least}, got {value}")
        needed = max(self.tc_buffer_bytes, self.vc_buffer_bytes)
        if self.glb_bytes < needed:
            wanted = f"must hold what the largest core buffer does, {needed} bytes"
            yield Fault("glb_bytes", f"{wanted}, got {self.glb_bytes}")

    @property
    def width_vc(self) -> int:
        """Lanes of a vector core."""
        return self.width

    @property
    def macs_per_core(self) -> int:
        """Multipliers of one tensor core."""
        return self.width * self.depth

    @property
    def num_macs(self) -> int:
        """Multipliers of the chip."""
        return self.num_tc * self.macs_per_core

    @property
    def num_lanes(self) -> int:
        """Vector lanes of the chip."""
        return self.num_vc * self.width_vc

    @property
    def tc_buffer_bytes(self) -> int:
        """The private buffer of a tensor core."""
        return core_buffer_bytes(self.macs_per_core, self.buffer_bytes_per_mac)

    @property
    def vc_buffer_bytes(self) -> int:
        """The private buffer of a vector core."""
        return core_buffer_bytes(self.width_vc)

    @property
    def key(self) -> tuple[int, int, int, int, int]:
        """Cores, array and buffer in MiB, as published lists of designs write them."""
        return (self.num_tc, self.num_vc, self.width, self.depth, self.glb_bytes // MIB)

    def __str__(self) -> str:
        tensor = f"{self.num_tc} x {self.width}x{self.depth} TC"
        vector = f"{self.num_vc} x {self.width_vc} VC"
        return f"{tensor}, {vector}, {self.glb_bytes / MIB:g} MiB"


def core_buffer_bytes(units: int, bytes_per_unit: int = CORE_BUFFER_BYTES_PER_UNIT) -> int:
    """The private buffer of a core with `units` multipliers or lanes."""
    return max(LEAST_CORE_BUFFER_BYTES, bytes_per_unit * units)


REFERENCE_DESIGN: Final = ChipTemplate(
    num_tc=8, num_vc=2, width=128, depth=128, glb_bytes=128 * MIB
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a chip's cores stand in: clock, off-chip memory, links. All in SI units.

    Every chip sends and receives `link_bandwidth_bytes_per_s`, and `node_bandwidth_bytes_per_s`
    with the others of its node; nodes of one chip make a flat network. Defaults are
    the public figures of TPUv4 (Jouppi et al., ISCA 2023: 1.05 GHz, 1.2 TB/s, six links of
    50 GB/s), with 80 GiB instead of 32 as the largest memory PHAZE considers. Two are assumptions:
    starting an operator takes `launch_s`; the global buffer moves `glb_bytes_per_cycle` at most,
    twice what the reference design's cores can take (the second-level cache of A100: 5120).

    What is lost between these figures and a training run is nothing by default: `efficiency` has
    the shares of clock and memory bandwidth that kernels reach, `link_efficiency` and
    `node_efficiency` those of exchanges. `chips.technology` gives what devices are known to lose.

    `interface_mm2` of a chip's area belong to its interfaces, beside cores and buffers. Exchanges
    of a tensor group hide under `tensor_overlap` of their phase's compute, those of replicas under
    `gradient_overlap` of a stage's last backward (gradients) and of its first forward (weights).
    """

    clock_hz: float = 1.05e9
    memory_bytes: float = 80.0 * GIB
    memory_bandwidth_bytes_per_s: float = 1.2e12
    link_bandwidth_bytes_per_s: float = 300e9
    link_latency_s: float = 1e-6
    link_efficiency: float = 1.0
    node_devices: int = 1
    node_bandwidth_bytes_per_s: float = 300e9
    node_latency_s: float = 1e-6
    node_efficiency: float = 1.0
    launch_s: float = 1e-6
    interface_mm2: float = 0.0
    tensor_overlap: float = 0.0
    gradient_overlap: float = 0.0
    glb_bytes_per_cycle: float = 8192.0
    efficiency: Efficiency = NO_LOSS

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        yield from not_positive(self, *_POSITIVE)
        for name in ("tensor_overlap", "gradient_overlap"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                yield Fault(name, f"must be from 0 to 1, got {value!r}")
        yield from too_low(self, 1, "node_devices")
        for name in ("link_efficiency", "node_efficiency"):
            if not 0 < (value := getattr(self, name)) <= 1:
                yield Fault(name, f"must be in (0, 1], got {value!r}")
        yield from negative(self, *_NOT_NEGATIVE)


_ROUNDED: Final = 1e-12  # of a device's memory: what sums of bytes may round
_POSITIVE: Final = (
    "clock_hz",
    "memory_bytes",
    "memory_bandwidth_bytes_per_s",
    "link_bandwidth_bytes_per_s",
    "node_bandwidth_bytes_per_s",
    "glb_bytes_per_cycle",
)
_NOT_NEGATIVE: Final = (
    "link_latency_s",
    "node_latency_s",
    "launch_s",
    "interface_mm2",
)


def peak_flops_per_s(chip: ChipTemplate, surroundings: Surroundings) -> float:
    """Two operations per multiplier and clock."""
    return 2.0 * chip.num_macs * surroundings.clock_hz


# The cores of a chip design, as the part of an accelerator that times its operators
# ----------------------------------------------------------------------------------
# An accelerator with cores is priced by the tiled estimator (`costing.tiled`), one without by
# a roofline; whoever prices, plans or explains sees an accelerator.

# What the arrays of a chip may be made to multiply, and the bytes of its elements.
ELEMENT_BYTES: Final[Mapping[str, float]] = MappingProxyType({"bf16": 2.0, "fp8": 1.0, "fp32": 4.0})
# Adam in mixed precision: ten operations of a lane on the thirty bytes of a parameter's states.
UPDATE_BYTES_PER_LANE_CYCLE: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipCores:
    """Cores and buffers of `chip` at `clock_hz`, with multipliers for elements of `precision`.

    The global buffer moves `glb_bytes_per_cycle` at most.
    """

    chip: ChipTemplate
    clock_hz: float = Surroundings().clock_hz
    glb_bytes_per_cycle: float = Surroundings().glb_bytes_per_cycle
    precision: str = "bf16"

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        yield from not_positive(self, "clock_hz", "glb_bytes_per_cycle")
        if self.precision not in ELEMENT_BYTES:
            wanted = f"must be one of {', '.join(ELEMENT_BYTES)}"
            yield Fault("precision", f'{wanted}, got "{self.precision}"')

    @property
    def element_bytes(self) -> float:
        """Bytes of what the arrays multiply."""
        return ELEMENT_BYTES[self.precision]

    @property
    def peak_flops_per_s(self) -> tuple[tuple[str, float], ...]:
        """Peaks by number format; arrays for 8 bit multiply 16 bit at half their rate."""
        peak = 2.0 * self.chip.num_macs * self.clock_hz
        if self.precision == "fp8":
            return (("bf16", peak / 2.0), ("fp8", peak))
        return ((self.precision, peak),)

    @property
    def lanes_per_s(self) -> float:
        """Operations of the vector lanes, per second."""
        return self.chip.num_lanes * self.clock_hz

    @property
    def update_bytes_per_s(self) -> float:
        """Bytes of optimizer states that the lanes take per second."""
        return UPDATE_BYTES_PER_LANE_CYCLE * self.lanes_per_s

    def at_rate(self, factor: float) -> ChipCores:
        """The same cores at so many times their clock."""
        return replace(self, clock_hz=self.clock_hz * factor)


# One kind of device, with or without the host beside it
# ------------------------------------------------------


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


_NEVER_NEGATIVE: Final = (
    "launch_overhead_s",
    "host_pass_s",
    "step_overhead_s",
    "flops_per_exponential",
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

    Its matrix units do `flops_per_exponential` in 16 bit while its special function units take one
    exponential; 0 where that is not known, and small heads then cost attention nothing.
    `host` is absent where nothing is known of it. Where states lie there, each byte that an update
    touches on the device takes `update_delay_s_per_byte` longer (`step.zero.with_host_updates`).
    Of weights that ZeRO-3 shards it holds `held_weights`, its host the rest.
    Where software `adds_gradients_apart`, kernels of their own add those of a microbatch to what
    the step has, instead of the products that make them. Where it `merges_rings`, those of
    PyTorch's ring attention put a context rank's part of each block together, in float32.
    The runs behind its efficiencies hid exchanges of the kinds in `held_overlap` (tensor, experts)
    as they did: no overlap takes that off again.
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
    flops_per_exponential: float = field(default=0.0, metadata={RARE: True})
    update_delay_s_per_byte: float = field(default=0.0, metadata={RARE: True})
    held_weights: float = field(default=1.0, metadata={RARE: True})
    adds_gradients_apart: bool = field(default=False, metadata={RARE: True})
    merges_rings: bool = field(default=False, metadata={RARE: True})
    held_overlap: tuple[str, ...] = field(default=(), metadata={RARE: True})

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
        yield from negative(self, *_NEVER_NEGATIVE)
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
    def most_usable_bytes(self) -> float:
        """The same with a hair more, for bounds: what fits exactly may sum to more by rounding."""
        return self.usable_bytes + _ROUNDED * self.memory_bytes

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
