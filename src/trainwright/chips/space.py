"""The space of chip designs: all candidates, their areas, and the rules that admit them.

Defaults are those of PHAZE (Wang et al., ICML 2024): 75,712 candidates, of which 29,360 are no
larger than the reference design and, unless one class has a single core, no smaller than 0.3 times
it. Designs are columns of arrays, so enumeration takes milliseconds; their order is that of
`FIELDS`, nested so, each descending. Bytes of a core's own buffer for each multiplier are one value
there, and an axis where several are given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from trainwright.cluster import REFERENCE_DESIGN, ChipTemplate
from trainwright.cluster.accelerator import CORE_BUFFER_BYTES_PER_UNIT, LEAST_CORE_BUFFER_BYTES
from trainwright.errors import InvalidInput, negative, not_positive, one_of, refuse
from trainwright.units import KIB, MIB

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Area = TypeVar("Area", float, "NDArray[np.float64]")


# What a number format costs in a chip: area and energy of a multiplier, bytes of an element
# ------------------------------------------------------------------------------------------
# Factors are against bfloat16, whose area PHAZE's constants describe; sums are kept in float32:
#
# - fp32: 2.04 times the area and 2.3 times the energy (Horowitz, ISSCC 2014: multiplication 1640
#   and 7700 µm², 1.1 and 3.7 pJ; addition in float32 4184 µm², 0.9 pJ);
# - fp8: half the area, as devices sell twice its rate from the same array (H100, MI300); 0.59 times
#   the energy, if a multiplication takes a quarter and the addition as much (assumed).
#
# What a recipe in fp8 still multiplies in bfloat16 (attention, head, router) takes two
# multiplications of such an array each, in elements of twice the bytes.


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """One format of the multipliers; factors against bfloat16."""

    area_factor: float
    energy_factor: float

    def __post_init__(self) -> None:
        refuse(not_positive(self, *(each.name for each in fields(self))))


NUMBER_FORMATS: Final[Mapping[str, NumberFormat]] = MappingProxyType(
    {
        "bf16": NumberFormat(area_factor=1.0, energy_factor=1.0),
        "fp8": NumberFormat(area_factor=0.5, energy_factor=0.59),
        "fp32": NumberFormat(area_factor=2.04, energy_factor=2.3),
    }
)


def number_format(name: str) -> NumberFormat:
    """Look a format up; raises `InvalidInput` naming those that a chip may have."""
    if name not in NUMBER_FORMATS:
        raise InvalidInput.of("precision", one_of(NUMBER_FORMATS, name))
    return NUMBER_FORMATS[name]


# Silicon area of a chip template's cores and buffers, at 22 nm
# -------------------------------------------------------------
#     A = num_tc·(n·a_tc + L2(n)) + num_vc·(w·a_vc + L2(w)) + GLB,   n = width·depth, w = width
#
# Constants are those of PHAZE (Wang et al., ICML 2024; MIT licence), which reproduce its list of
# 29,360 designs. Memory interfaces, links, network on chip and control are *not* in them: what is
# computed here has the scope "cores+buffers". `die_area_mm2` adds the rest where it is given.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AreaTable:
    """Areas in µm² at 22 nm; buffers by size, from 1 KiB and from 2 MiB on in powers of two."""

    um2_per_mac: float = TC_UM2_PER_MAC
    um2_per_lane: float = VC_UM2_PER_LANE
    core_buffer_um2: tuple[float, ...] = CORE_BUFFER_UM2
    glb_um2: tuple[float, ...] = GLB_UM2

    def __post_init__(self) -> None:
        for field in fields(self):
            values = np.atleast_1d(getattr(self, field.name))
            if not (values.size and np.isfinite(values).all() and (values > 0).all()):
                wanted = "must be finite and > 0"
                raise InvalidInput.of(field.name, f"{wanted}, got {getattr(self, field.name)!r}")

    def core_buffers_um2(
        self, units: ArrayLike, bytes_per_unit: ArrayLike = CORE_BUFFER_BYTES_PER_UNIT
    ) -> NDArray[np.float64]:
        """Areas of the own buffers of cores with so many multipliers or lanes."""
        size = np.maximum(LEAST_CORE_BUFFER_BYTES, np.multiply(bytes_per_unit, units))
        return _table("buffer_bytes_per_mac", self.core_buffer_um2, size / KIB)

    def global_buffers_um2(self, mib: ArrayLike) -> NDArray[np.float64]:
        """Areas of global buffers."""
        return _table("glb", self.glb_um2, np.divide(mib, 2))


PHAZE_AREAS: Final = AreaTable()


def template_area_um2(
    num_tc: ArrayLike,
    num_vc: ArrayLike,
    width: ArrayLike,
    depth: ArrayLike,
    glb_mib: ArrayLike,
    buffer_bytes_per_mac: ArrayLike = CORE_BUFFER_BYTES_PER_UNIT,
    *,
    mac_factor: float = 1.0,
    table: AreaTable = PHAZE_AREAS,
) -> NDArray[np.float64]:
    """Area of each design in µm²; arguments are arrays of one shape, or scalars.

    `mac_factor` is the area of a multiplier against that of bfloat16.

    Buffers of other sizes than powers of two of the table take the next larger one's area.
    Raises `InvalidInput` for a buffer beyond the table.
    """
    macs = np.multiply(width, depth)
    buffers = table.core_buffers_um2(macs, buffer_bytes_per_mac)
    tensor = np.multiply(num_tc, macs * (table.um2_per_mac * mac_factor) + buffers)
    lanes = np.asarray(width)
    vector = np.multiply(num_vc, lanes * table.um2_per_lane + table.core_buffers_um2(lanes))
    area: NDArray[np.float64] = tensor + vector + table.global_buffers_um2(glb_mib)
    return area


def area_um2(chip: ChipTemplate, table: AreaTable = PHAZE_AREAS) -> float:
    """Area of one design in µm²."""
    glb_mib = chip.glb_bytes / MIB
    made = (chip.num_tc, chip.num_vc, chip.width, chip.depth, glb_mib)
    return float(template_area_um2(*made, chip.buffer_bytes_per_mac, table=table))


def area_mm2(chip: ChipTemplate, table: AreaTable = PHAZE_AREAS) -> float:
    """Area of one design's cores and buffers in mm²."""
    return area_um2(chip, table) / UM2_PER_MM2


def area_parts_mm2(
    chip: ChipTemplate,
    *,
    mac_factor: float = 1.0,
    interface_mm2: float = 0.0,
    table: AreaTable = PHAZE_AREAS,
) -> dict[str, float]:
    """The same, part by part: arrays, lanes, the buffers of both kinds of cores, global buffer."""
    parts = {
        "tensor arrays": chip.num_tc * chip.macs_per_core * table.um2_per_mac * mac_factor,
        "tensor buffers": chip.num_tc
        * float(table.core_buffers_um2(chip.macs_per_core, chip.buffer_bytes_per_mac)),
        "vector lanes": chip.num_lanes * table.um2_per_lane,
        "vector buffers": chip.num_vc * float(table.core_buffers_um2(chip.width_vc)),
        "global buffer": float(table.global_buffers_um2(chip.glb_bytes / MIB)),
    }
    found = {name: area / UM2_PER_MM2 for name, area in parts.items()}
    return found | ({"interfaces": interface_mm2} if interface_mm2 else {})


def _table(name: str, areas: tuple[float, ...], multiple: ArrayLike) -> NDArray[np.float64]:
    place = np.ceil(np.log2(np.maximum(multiple, 1.0))).astype(np.int64)
    if np.max(place) >= len(areas):
        most = (
            f"must give buffers of at most 2^{len(areas) - 1} times the least, whose area is known"
        )
        raise InvalidInput.of(name, f"{most}; give less, or cores of less width and depth")
    return np.array(areas)[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class DieModel:
    """What a die has beside cores and buffers, and what it costs. Zero extras give the bare area.

    `interfaces_mm2` holds memory and link interfaces at the drawn node; `overhead_share` is network
    on chip and control over cores and buffers; `logic_scale` shrinks all logic and buffers to
    another node. Yield is the negative binomial, (1 + A·D/α)^-α with D defects per mm².
    `reticle_mm2` is what one exposure covers, 26 × 33 mm; a die's price is spread over
    `lifetime_s` of training, three years.
    """

    interfaces_mm2: float = 0.0
    overhead_share: float = 0.0
    logic_scale: float = 1.0
    defects_per_mm2: float = 0.001
    clustering: float = 3.0
    wafer_diameter_mm: float = 300.0
    wafer_cost: float = 10000.0
    reticle_mm2: float = 858.0
    lifetime_s: float = 3 * 365 * 86400.0

    def __post_init__(self) -> None:
        refuse(negative(self, "interfaces_mm2", "overhead_share", "defects_per_mm2", "wafer_cost"))
        positive = ("logic_scale", "clustering", "wafer_diameter_mm", "reticle_mm2", "lifetime_s")
        refuse(not_positive(self, *positive))

    def die_area_mm2(self, cores_and_buffers_mm2: Area) -> Area:
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


# The space of chip designs: all candidates, their areas, and the rules that admit them
# -------------------------------------------------------------------------------------

BUCKET_UM2: Final = 10_000.0
FIELDS: Final = ("num_tc", "num_vc", "width", "depth", "glb_mib", "buffer_bytes_per_mac")
_PUBLISHED: Final = FIELDS[:5]  # what the published list of designs tells them apart by


def _powers(first: int, last: int) -> tuple[int, ...]:
    return tuple(2**k for k in range(first, last + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceRules:
    """Ranges of the template's variables and the area limits, in µm².

    `least_share` of the largest area is the lower limit, which designs with a single core of one
    class do not have.
    """

    num_tc: tuple[int, ...] = _powers(0, 12)
    num_vc: tuple[int, ...] = _powers(0, 12)
    width: tuple[int, ...] = _powers(1, 8)
    depth: tuple[int, ...] = _powers(1, 8)
    glb_mib: tuple[int, ...] = _powers(1, 7)
    buffer_bytes_per_mac: tuple[int, ...] = (CORE_BUFFER_BYTES_PER_UNIT,)
    largest_um2: float = area_um2(REFERENCE_DESIGN)
    least_share: float = 0.3

    def __post_init__(self) -> None:
        for name in FIELDS:
            values = getattr(self, name)
            if not values or min(values) < 1:
                raise InvalidInput.of(name, "must have at least 1 value, all >= 1")
        if not self.largest_um2 > 0:
            raise InvalidInput.of("largest_um2", f"must be > 0, got {self.largest_um2!r}")
        if not 0 <= self.least_share <= 1:
            raise InvalidInput.of("least_share", f"must be in [0, 1], got {self.least_share!r}")

    @property
    def num_candidates(self) -> int:
        """Combinations before the area rules."""
        return int(np.prod([len(set(getattr(self, name))) for name in FIELDS]))


DEFAULT_RULES: Final = SpaceRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What changes the area of a design beside its cores: number format and interfaces."""

    mac_factor: float = 1.0
    interface_mm2: float = 0.0


PLAIN: Final = Making()


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignSpace:
    """The designs that the rules admit, one column of `designs` (int64 [6, n], `FIELDS`) each.

    `areas_um2` are those of cores and buffers with multipliers of bfloat16.
    """

    designs: NDArray[np.int64]
    areas_um2: NDArray[np.float64]
    num_candidates: int
    least_um2: float = 0.0
    largest_um2: float = np.inf
    table: AreaTable = PHAZE_AREAS

    def __post_init__(self) -> None:
        self.designs.setflags(write=False)
        self.areas_um2.setflags(write=False)

    def __len__(self) -> int:
        return int(self.areas_um2.size)

    def areas_um2_of(self, making: Making) -> NDArray[np.float64]:
        """Area of each design, made another way."""
        if making == PLAIN:
            return self.areas_um2
        bare = template_area_um2(*self.designs, mac_factor=making.mac_factor, table=self.table)
        areas: NDArray[np.float64] = bare + making.interface_mm2 * UM2_PER_MM2
        return areas

    def admitted(self, making: Making) -> NDArray[np.bool_]:
        """Which designs keep to the area limits, made another way."""
        areas = self.areas_um2_of(making)
        cores = areas - making.interface_mm2 * UM2_PER_MM2  # what must not be too little
        fits: NDArray[np.bool_] = (areas <= self.largest_um2) & (
            self.has_one_core() | (cores >= self.least_um2)
        )
        return fits

    def column(self, name: str) -> NDArray[np.int64]:
        """One variable of all designs, by its name in `FIELDS`."""
        column: NDArray[np.int64] = self.designs[FIELDS.index(name)]
        return column

    def template(self, index: int) -> ChipTemplate:
        """Design `index` as a noun."""
        values = dict(zip(FIELDS, map(int, self.designs[:, index]), strict=True))
        return ChipTemplate(glb_bytes=values.pop("glb_mib") * MIB, **values)

    def has_one_core(self) -> NDArray[np.bool_]:
        """Designs with a single core of one class, which may be small."""
        alone: NDArray[np.bool_] = (self.column("num_tc") == 1) | (self.column("num_vc") == 1)
        return alone

    def buckets(self) -> NDArray[np.int64]:
        """Each design's area in whole steps of 10,000 µm²."""
        return np.floor(self.areas_um2 / BUCKET_UM2).astype(np.int64)

    def by_descending_area(self) -> NDArray[np.int64]:
        """Indices bucket by bucket from the largest, in order of enumeration inside."""
        return np.argsort(-self.buckets(), kind="stable")

    def checksum(self, order: NDArray[np.int64] | None = None) -> str:
        """SHA-256 of the designs as text, in `order`; ascending where absent.

        Buffers of cores are part of it where they are not the published ones.
        """
        usual = (self.column("buffer_bytes_per_mac") == CORE_BUFFER_BYTES_PER_UNIT).all()
        rows = self.designs[: len(_PUBLISHED) if usual else None].T
        rows = rows[np.lexsort(rows.T[::-1])] if order is None else rows[order]
        text = "".join(",".join(map(str, row)) + "\n" for row in rows.tolist())
        return hashlib.sha256(text.encode()).hexdigest()


def enumerate_designs(
    rules: SpaceRules = DEFAULT_RULES,
    makings: Sequence[Making] = (PLAIN,),
    table: AreaTable = PHAZE_AREAS,
) -> DesignSpace:
    """Every design that is admitted in one of its makings.

    Raises `InvalidInput` where a buffer is beyond the area table.
    """
    axes = [np.array(sorted(set(getattr(rules, name)), reverse=True)) for name in FIELDS]
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])
    grid = grid[:, _held_by_the_buffer(grid)]
    everything = DesignSpace(
        designs=grid,
        areas_um2=template_area_um2(*grid, table=table),
        num_candidates=rules.num_candidates,
        least_um2=rules.least_share * rules.largest_um2,
        largest_um2=rules.largest_um2,
        table=table,
    )
    kept = np.any([everything.admitted(making) for making in makings], axis=0)
    return subspace(everything, np.flatnonzero(kept))


def space_of(*chips: ChipTemplate, table: AreaTable = PHAZE_AREAS) -> DesignSpace:
    """These designs and no others, without any limit."""
    rows = [(*chip.key, chip.buffer_bytes_per_mac) for chip in chips]
    return DesignSpace(
        designs=np.array(rows, dtype=np.int64).T,
        areas_um2=np.array([area_um2(chip, table) for chip in chips]),
        num_candidates=len(chips),
        table=table,
    )


def _held_by_the_buffer(grid: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Designs whose global buffer holds what one core's own does; others are no design."""
    _, _, width, depth, glb_mib, each = grid
    held: NDArray[np.bool_] = width * depth * each <= glb_mib * MIB
    return held


def subspace(space: DesignSpace, indices: NDArray[np.int64]) -> DesignSpace:
    """Some of the designs, in the given order."""
    return DesignSpace(
        designs=np.ascontiguousarray(space.designs[:, indices]),
        areas_um2=space.areas_um2[indices],
        num_candidates=space.num_candidates,
        least_um2=space.least_um2,
        largest_um2=space.largest_um2,
        table=space.table,
    )
