"""A hierarchy of networks, innermost level first, and how a group of ranks lies in it.

Bandwidths are per *device* and direction: a level of 8 devices behind 8 × 400 Gb/s network cards
has 50 GB/s here. Placement is by stride: the ranks of a group are `stride` devices apart, as
frameworks number them (tensor innermost, then data, then pipeline).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.provenance import Provenance

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class LevelKind(StrEnum):
    """How the children of a unit are wired."""

    SWITCH = "switch"
    RING = "ring"
    TORUS = "torus"
    MESH = "mesh"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLevel:
    """One level: `size` children per unit; a child of the innermost level is a device.

    `oversubscription` divides the bandwidth of traffic that crosses the level, `efficiency` is the
    share of it that collectives reach; `sources` says of a field where its figure comes from.
    """

    name: str
    size: int
    bandwidth_bytes_per_s: float
    latency_s: float
    efficiency: float = 1.0
    oversubscription: float = 1.0
    kind: LevelKind = LevelKind.SWITCH
    sources: tuple[tuple[str, Provenance], ...] = ()

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        if self.size < 1:
            yield Fault("size", f"must be >= 1, got {self.size}")
        bandwidth = self.bandwidth_bytes_per_s
        if not (math.isfinite(bandwidth) and bandwidth > 0):
            yield Fault("bandwidth_bytes_per_s", f"must be finite and > 0, got {bandwidth!r}")
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            yield Fault("latency_s", f"must be finite and >= 0, got {self.latency_s!r}")
        if not 0 < self.efficiency <= 1:
            yield Fault("efficiency", f"must be in (0, 1], got {self.efficiency!r}")
        if not (math.isfinite(self.oversubscription) and self.oversubscription >= 1):
            yield Fault("oversubscription", f"must be >= 1, got {self.oversubscription!r}")

    @property
    def effective_bytes_per_s(self) -> float:
        """Bytes per second that one device gets across this level."""
        return self.bandwidth_bytes_per_s * self.efficiency / self.oversubscription


Rows = tuple[tuple[int, int], ...]  # (ranks, devices from one to the next), innermost first


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """`ranks` members (or groups of members) that meet at one network level."""

    level: NetworkLevel
    ranks: int


def group_hops(levels: tuple[NetworkLevel, ...], *, ranks: int, stride: int) -> tuple[Hop, ...]:
    """How `ranks` ranks, `stride` devices apart from an aligned start, spread over the levels.

    Innermost first; levels that the group does not cross are left out. Where the group does not
    fill units evenly, fewer ranks count as near and more as far. Raises `InvalidInput` when the
    devices do not suffice.
    """
    return nested_hops(levels, ((ranks, stride),))


def nested_hops(levels: tuple[NetworkLevel, ...], rows: Rows) -> tuple[Hop, ...]:
    """The same for rows of ranks within rows: each (ranks, stride) repeats what is before it.

    (2, 1), (4, 16) are the devices 0, 1, 16, 17, 32, 33, 48 and 49.
    """
    devices = math.prod(level.size for level in levels)
    if (span := sum((ranks - 1) * stride for ranks, stride in rows) + 1) > devices:
        raise InvalidInput.of("ranks", f"must span at most {devices} devices, got {span}")
    hops = []
    unit, inside = 1, 1
    for level in levels:
        unit *= level.size
        members = math.prod(_members(ranks, stride, unit) for ranks, stride in rows)
        if (meeting := math.ceil(members / inside)) > 1:
            hops.append(Hop(level=level, ranks=meeting))
            inside *= meeting
    return tuple(hops)


def _members(ranks: int, stride: int, unit: int) -> int:
    """How many of a row lie in one unit."""
    return ranks if (ranks - 1) * stride < unit else max(1, unit // stride)


def crossed_level(
    levels: tuple[NetworkLevel, ...], source: ArrayLike, target: ArrayLike
) -> NetworkLevel | None:
    """The outermost level that a message between two devices crosses; none to itself.

    For arrays of devices, the outermost of any of the messages source[i] → target[i].
    """
    unit, crossed = 1, None
    for level in levels:
        if np.any(np.floor_divide(source, unit) != np.floor_divide(target, unit)):
            crossed = level
        unit *= level.size
    return crossed
