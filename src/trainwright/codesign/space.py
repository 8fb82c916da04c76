"""The space of chip designs: all candidates, their areas, and the rules that admit them.

Defaults are those of PHAZE (Wang et al., ICML 2024): 75,712 candidates, of which 29,360 are no
larger than the reference design and, unless one class has a single core, no smaller than 0.3 times
it. Designs are columns of arrays, so enumeration takes milliseconds; their order is num_tc, num_vc,
width, depth, buffer, nested so, each descending.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.cluster import REFERENCE_DESIGN, ChipTemplate
from trainwright.codesign.area import UM2_PER_MM2, area_um2, template_area_um2
from trainwright.errors import InvalidInput
from trainwright.units import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

BUCKET_UM2: Final = 10_000.0
FIELDS: Final = ("num_tc", "num_vc", "width", "depth", "glb_mib")


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
    """The designs that the rules admit, one column of `designs` (int64 [5, n]) each.

    `areas_um2` are those of cores and buffers with multipliers of bfloat16.
    """

    designs: NDArray[np.int64]
    areas_um2: NDArray[np.float64]
    num_candidates: int
    least_um2: float = 0.0
    largest_um2: float = np.inf

    def __post_init__(self) -> None:
        self.designs.setflags(write=False)
        self.areas_um2.setflags(write=False)

    def __len__(self) -> int:
        return int(self.areas_um2.size)

    def areas_um2_of(self, making: Making) -> NDArray[np.float64]:
        """Area of each design, made another way."""
        if making == PLAIN:
            return self.areas_um2
        bare = template_area_um2(*self.designs, mac_factor=making.mac_factor)
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
        num_tc, num_vc, width, depth, glb_mib = map(int, self.designs[:, index])
        return ChipTemplate(
            num_tc=num_tc, num_vc=num_vc, width=width, depth=depth, glb_bytes=glb_mib * MIB
        )

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
        """SHA-256 of the designs as text, in `order`; ascending where absent."""
        rows = self.designs.T
        rows = rows[np.lexsort(rows.T[::-1])] if order is None else rows[order]
        text = "".join(",".join(map(str, row)) + "\n" for row in rows.tolist())
        return hashlib.sha256(text.encode()).hexdigest()


def enumerate_designs(
    rules: SpaceRules = DEFAULT_RULES, makings: Sequence[Making] = (PLAIN,)
) -> DesignSpace:
    """Every design that is admitted in one of its makings.

    Raises `InvalidInput` where a buffer is beyond the area table.
    """
    axes = [np.array(sorted(set(getattr(rules, name)), reverse=True)) for name in FIELDS]
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])
    everything = DesignSpace(
        designs=grid,
        areas_um2=template_area_um2(*grid),
        num_candidates=rules.num_candidates,
        least_um2=rules.least_share * rules.largest_um2,
        largest_um2=rules.largest_um2,
    )
    kept = np.any([everything.admitted(making) for making in makings], axis=0)
    return subspace(everything, np.flatnonzero(kept))


def subspace(space: DesignSpace, indices: NDArray[np.int64]) -> DesignSpace:
    """Some of the designs, in the given order."""
    return DesignSpace(
        designs=np.ascontiguousarray(space.designs[:, indices]),
        areas_um2=space.areas_um2[indices],
        num_candidates=space.num_candidates,
        least_um2=space.least_um2,
        largest_um2=space.largest_um2,
    )
