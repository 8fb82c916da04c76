"""A chip template: cores, buffers, and what surrounds them, as the variables of co-design.

A chip has `num_tc` tensor cores, each a `width` × `depth` array of multipliers, `num_vc` vector
cores of `width` lanes, a private second-level buffer per core and one global buffer for all. The
template is that of PHAZE (Wang et al., ICML 2024, section 3), after Google's TPUv4 in its
reference design.

What surrounds the cores (`Surroundings`) is kept apart, because a search over cores and buffers
holds it fixed: clock, memory, links.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from trainwright.cluster.efficiency import NO_LOSS, Efficiency
from trainwright.errors import Fault, refuse
from trainwright.units import GIB, KIB, MIB

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
        for name in _POSITIVE:
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                yield Fault(name, f"must be finite and > 0, got {value!r}")
        for name in ("tensor_overlap", "gradient_overlap"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                yield Fault(name, f"must be from 0 to 1, got {value!r}")
        if self.node_devices < 1:
            yield Fault("node_devices", f"must be >= 1, got {self.node_devices}")
        for name in ("link_efficiency", "node_efficiency"):
            if not 0 < (value := getattr(self, name)) <= 1:
                yield Fault(name, f"must be in (0, 1], got {value!r}")
        for name in _NOT_NEGATIVE:
            if not (math.isfinite(value := getattr(self, name)) and value >= 0):
                yield Fault(name, f"must be finite and >= 0, got {value!r}")


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
        for name in ("clock_hz", "glb_bytes_per_cycle"):
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                yield Fault(name, f"must be finite and > 0, got {value!r}")
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
