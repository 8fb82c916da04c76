"""Silicon area of a chip template's cores and buffers, at 22 nm.

    A = num_tc·(n·a_tc + L2(n)) + num_vc·(w·a_vc + L2(w)) + GLB,   n = width·depth, w = width

Constants are those of PHAZE (Wang et al., ICML 2024; MIT licence), which reproduce its list of
29,360 designs. Memory interfaces, links, network on chip and control are *not* in them: what is
computed here has the scope "cores+buffers". `die_area_mm2` adds the rest where it is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.cluster.template import CORE_BUFFER_BYTES_PER_UNIT, LEAST_CORE_BUFFER_BYTES
from trainwright.errors import InvalidInput
from trainwright.units import KIB, MIB

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from trainwright.cluster import ChipTemplate

AREA_SCOPE: Final = "cores+buffers"
TC_UM2_PER_MAC: Final = 760.041386
VC_UM2_PER_LANE: Final = 759.823853
CORE_BUFFER_UM2: Final = (
    6133.98,  # 1 KiB, and so on in powers of two
    8248.43,
    12610.5,
    22139.9,
    38583.0,
    63338.4,
    115579.0,
    204764.0,
    446565.0,
    897890.0,
    1634130.0,
)
GLB_UM2: Final = (
    3338220.0,  # 2 MiB, and so on in powers of two
    6078640.0,
    11952400.0,
    23745200.0,
    46750900.0,
    88605700.0,
    175423000.0,
)
UM2_PER_MM2: Final = 1e6


def template_area_um2(
    num_tc: ArrayLike,
    num_vc: ArrayLike,
    width: ArrayLike,
    depth: ArrayLike,
    glb_mib: ArrayLike,
    *,
    mac_factor: float = 1.0,
) -> NDArray[np.float64]:
    """Area of each design in µm²; arguments are arrays of one shape, or scalars.

    `mac_factor` is the area of a multiplier against that of bfloat16.

    Buffers of other sizes than powers of two of the table take the next larger one's area.
    Raises `InvalidInput` for a buffer beyond the table.
    """
    macs = np.multiply(width, depth)
    tensor = np.multiply(num_tc, macs * (TC_UM2_PER_MAC * mac_factor) + _core_buffer_um2(macs))
    lanes = np.asarray(width)
    vector = np.multiply(num_vc, lanes * VC_UM2_PER_LANE + _core_buffer_um2(lanes))
    area: NDArray[np.float64] = tensor + vector + _table("glb", GLB_UM2, np.divide(glb_mib, 2))
    return area


def area_um2(chip: ChipTemplate) -> float:
    """Area of one design in µm²."""
    glb_mib = chip.glb_bytes / MIB
    return float(template_area_um2(chip.num_tc, chip.num_vc, chip.width, chip.depth, glb_mib))


def area_mm2(chip: ChipTemplate) -> float:
    """Area of one design's cores and buffers in mm²."""
    return area_um2(chip) / UM2_PER_MM2


def area_parts_mm2(
    chip: ChipTemplate, *, mac_factor: float = 1.0, interface_mm2: float = 0.0
) -> dict[str, float]:
    """The same, part by part: arrays, lanes, the buffers of both kinds of cores, global buffer."""
    parts = {
        "tensor arrays": chip.num_tc * chip.macs_per_core * TC_UM2_PER_MAC * mac_factor,
        "tensor buffers": chip.num_tc * float(_core_buffer_um2(chip.macs_per_core)),
        "vector lanes": chip.num_lanes * VC_UM2_PER_LANE,
        "vector buffers": chip.num_vc * float(_core_buffer_um2(chip.width_vc)),
        "global buffer": float(_table("glb", GLB_UM2, chip.glb_bytes / MIB / 2)),
    }
    found = {name: area / UM2_PER_MM2 for name, area in parts.items()}
    return found | ({"interfaces": interface_mm2} if interface_mm2 else {})


def _core_buffer_um2(units: ArrayLike) -> NDArray[np.float64]:
    size = np.maximum(LEAST_CORE_BUFFER_BYTES, CORE_BUFFER_BYTES_PER_UNIT * np.asarray(units))
    return _table("core buffer", CORE_BUFFER_UM2, size / KIB)


def _table(name: str, areas: tuple[float, ...], multiple: ArrayLike) -> NDArray[np.float64]:
    place = np.ceil(np.log2(np.maximum(multiple, 1.0))).astype(np.int64)
    if np.max(place) >= len(areas):
        raise InvalidInput.of(name, f"must be at most 2^{len(areas) - 1} times the least buffer")
    return np.array(areas)[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class DieModel:
    """What a die has beside cores and buffers, and what it costs. Zero extras give the bare area.

    `interfaces_mm2` holds memory and link interfaces at the drawn node; `overhead_share` is network
    on chip and control over cores and buffers; `logic_scale` shrinks all logic and buffers to
    another node. Yield is Murphy's negative binomial: (1 + A·D/α)^-α with D defects per mm².
    """

    interfaces_mm2: float = 0.0
    overhead_share: float = 0.0
    logic_scale: float = 1.0
    defects_per_mm2: float = 0.001
    clustering: float = 3.0
    wafer_diameter_mm: float = 300.0
    wafer_cost: float = 10000.0

    def __post_init__(self) -> None:
        for name in ("interfaces_mm2", "overhead_share", "defects_per_mm2", "wafer_cost"):
            if not 0 <= (value := getattr(self, name)) < np.inf:
                raise InvalidInput.of(name, f"must be finite and >= 0, got {value!r}")
        for name in ("logic_scale", "clustering", "wafer_diameter_mm"):
            if not 0 < (value := getattr(self, name)) < np.inf:
                raise InvalidInput.of(name, f"must be finite and > 0, got {value!r}")

    def die_area_mm2(self, cores_and_buffers_mm2: float) -> float:
        """The whole die."""
        return (
            cores_and_buffers_mm2 * (1.0 + self.overhead_share) * self.logic_scale
            + self.interfaces_mm2
        )

    def yield_share(self, die_mm2: float) -> float:
        """The share of dies without a defect."""
        return float((1.0 + die_mm2 * self.defects_per_mm2 / self.clustering) ** -self.clustering)

    def dies_per_wafer(self, die_mm2: float) -> float:
        """Whole dies on a wafer: area over area, less those its edge cuts."""
        diameter = self.wafer_diameter_mm
        whole = np.pi * diameter**2 / (4.0 * die_mm2)
        return float(max(whole - np.pi * diameter / np.sqrt(2.0 * die_mm2), 0.0))

    def cost_per_good_die(self, die_mm2: float) -> float:
        """Wafer cost over good dies; infinite where no whole die fits."""
        good = self.dies_per_wafer(die_mm2) * self.yield_share(die_mm2)
        return self.wafer_cost / good if good else float("inf")
