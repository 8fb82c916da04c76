"""Efficiencies of any device under any software, pooled over all public runs.

One set of constants for each pair of device and software would fit noise where runs are few, and
say nothing of a pair that nobody measured. So each constant is a sum of effects on its logarithm,

    log θ = centre + family + device + school + class + program
            + family × school + device × class + publication

of the device's architecture family, the device, the code that a class of software grew from, the
class, the program, the pairs and whose runs they are, each shrunk towards zero where its runs say
little (hierarchical or partial pooling; Gelman and Hill, 2007, chapter 12). A pair without runs
borrows from its neighbours: the constants are those of its family and its class. `lab.pooling` fits
them; the ranges come from tables of runs that were left out whole, and widen with the distance from
evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from trainwright.cluster.calibration import CONSTANTS, Calibration, Constant
from trainwright.cluster.efficiency import Circumstance, Spread

if TYPE_CHECKING:
    from trainwright.cluster.cluster import Cluster, Pool
    from trainwright.cluster.software import Software

_Z90: Final = 1.6448536269514722
# What a device does with all its kernels: an effect on the pace moves these together.
PACE: Final = "pace"
_OF_ATTENTION: Final = (
    "attention_forward",
    "attention_backward",
    "attention_half_flops",
    "attention_half_intensity",
)
PACED: Final = ("gemm_max", "memory_max", "attention_forward", "attention_backward")

Key = tuple[str, ...]  # a level and the names it holds for: ("device", "B200")


def keys_of(
    device: str, software: Software, family: str | None, publication: str | None = None
) -> tuple[Key, ...]:
    """The effects that a run is made of, from the widest to the narrowest."""
    found: list[Key] = [("centre",)]
    if family is not None:
        found.append(("family", family))
    found.append(("device", device))
    if software.school is not None:
        found.append(("school", software.school))
        if family is not None:
            found.append(("kin", family, software.school))
        found.append(("class", str(software.kind)))
        found.append(("program", software.name))
        found.append(("pair", device, str(software.kind)))
    if publication is not None:
        found.append(("publication", publication, device))
    return tuple(found)


class Distance(IntEnum):
    """How far the nearest measured runs lie from a device under a software."""

    SAME_PUBLICATION = 0  # other runs of the same publication
    SAME_CLASS = 1  # this device under a program of the class
    NEIGHBOUR = 2  # this device under other software, or the class on a device of the family
    FAR = 3  # the family or the class, not both
    NOTHING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Shifts of the logarithm of constants, and the runs that they rest on."""

    shifts: Mapping[str, float]
    runs: int = 0
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Nine of ten steps take `low_ratio` to `high_ratio` times the prediction at a distance."""

    low_ratio: float
    high_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The measured runs that stand behind a prediction, and how far they lie from it."""

    distance: Distance
    runs: int
    sources: tuple[str, ...]
    device: str
    software: Software
    low_ratio: float
    high_ratio: float

    @property
    def sentence(self) -> str:
        """One plain sentence for a reader who has no other page."""
        under = "software that is not named"
        if self.software.school is not None:
            under = f"software like {self.software.name}"
        if self.distance is Distance.NOTHING:
            return (
                f"no run of {self.device} or of {under} is known: a typical device under typical "
                f"software; {self._range}"
            )
        tables = f"{len(self.sources)} public table{'s' if len(self.sources) != 1 else ''}"
        runs = f"{self.runs} measured run{'s' if self.runs != 1 else ''} in {tables}"
        where = {
            Distance.SAME_PUBLICATION: f"of the same publication on {self.device}",
            Distance.SAME_CLASS: f"of {self.device} under {under}",
            Distance.NEIGHBOUR: f"of {self.device} under other software, or of its family under "
            f"{under}",
            Distance.FAR: f"of distant relatives: none on {self.device}, none of its family under "
            f"{under}",
        }
        return f"rests on {runs} {where[self.distance]}; {self._range}"

    @property
    def _range(self) -> str:
        low, high = f"{self.low_ratio:.2f}", f"{self.high_ratio:.2f}"
        return f"nine of ten take {low} to {high} times as long"


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledEfficiencies:
    """The fitted effects, and how far predictions with them miss by distance from evidence.

    `families` names the architecture family of each device; `spreads` are standard deviations of
    the logarithm that remain of each constant. Under one of `circumstances`, the first that holds,
    the range is at least as wide as it says.
    """

    effects: Mapping[Key, Effect]
    families: Mapping[str, str]
    spreads: Mapping[str, float]
    ranges: Mapping[Distance, Range]
    circumstances: Mapping[Circumstance, Range] = field(
        default_factory=lambda: MappingProxyType({})
    )

    def value_of(
        self, name: str, device: str, software: Software, publication: str | None = None
    ) -> float:
        """A constant of a device under a software; `publication` names whose runs are meant."""
        logs = 0.0
        names = (name, PACE) if name in PACED else (name,)
        for key in keys_of(device, software, self.families.get(device), publication):
            effect = self.effects.get(key)
            if effect is not None:
                logs += sum(effect.shifts.get(each, 0.0) for each in names)
        return min(math.exp(logs), CONSTANTS[name])

    @property
    def names(self) -> tuple[str, ...]:
        """The constants that were fitted."""
        return tuple(name for name in self.effects["centre",].shifts if name != PACE)

    def evidence(self, device: str, software: Software, publication: str | None = None) -> Evidence:
        """What a prediction for `device` under `software` rests on."""
        distance, found = self._nearest(device, software, publication)
        span = self.ranges[distance]
        return Evidence(
            distance=distance,
            runs=sum(effect.runs for effect in found),
            sources=tuple(sorted({source for effect in found for source in effect.sources})),
            device=device,
            software=software,
            low_ratio=span.low_ratio,
            high_ratio=span.high_ratio,
        )

    def _nearest(
        self, device: str, software: Software, publication: str | None
    ) -> tuple[Distance, list[Effect]]:
        family, kind = self.families.get(device), str(software.kind)
        own = self.effects.get(("publication", publication or "", device))
        if own is not None and own.runs:
            return Distance.SAME_PUBLICATION, [own]
        pairs = {
            (key[1], key[2]): effect
            for key, effect in self.effects.items()
            if key[0] == "pair" and effect.runs
        }
        if (device, kind) in pairs:
            return Distance.SAME_CLASS, [pairs[device, kind]]
        related = {
            pair: family is not None and self.families.get(pair[0]) == family for pair in pairs
        }
        near = [
            effect
            for pair, effect in pairs.items()
            if pair[0] == device or (pair[1] == kind and related[pair])
        ]
        if near:
            return Distance.NEIGHBOUR, near
        far = [effect for pair, effect in pairs.items() if pair[1] == kind or related[pair]]
        return (Distance.FAR, far) if far else (Distance.NOTHING, [])

    def calibration(
        self, device: str, software: Software, publication: str | None = None
    ) -> Calibration:
        """The constants of a device under a software, as the calibration of a cluster."""
        found = self.evidence(device, software, publication)
        constants = []
        for name in self.names:
            value = self.value_of(name, device, software, publication)
            reach = math.exp(_Z90 * self.spreads.get(name, 0.0))
            low, high = value / reach, min(value * reach, CONSTANTS[name])
            constants.append(Constant(name=name, value=value, low=low, high=high))
        return Calibration(
            accelerator=device,
            line=software.name,
            constants=tuple(constants),
            low_ratio=found.low_ratio,
            high_ratio=found.high_ratio,
            source=found.sentence,
            rows=found.runs,
            pooled=True,
            spreads=tuple(
                Spread(
                    when=when,
                    low_ratio=min(found.low_ratio, own.low_ratio),
                    high_ratio=max(found.high_ratio, own.high_ratio),
                )
                for when, own in self.circumstances.items()
            ),
        )

    def applied(
        self, cluster: Cluster, software: Software, publication: str | None = None
    ) -> Cluster:
        """The cluster with the constants expected of its devices under `software`."""
        pools = (self.applied_to(pool, software, publication) for pool in cluster.pools)
        return replace(cluster, pools=tuple(pools))

    def applied_to(self, pool: Pool, software: Software, publication: str | None = None) -> Pool:
        """The same of one pool.

        Public runs, over which efficiencies are pooled, ran older attention kernels, at short
        sequences. A program that runs the fastest keeps what its device is described with.
        """
        given = pool.accelerator
        found = self.calibration(given.name, software, publication).on_pool(pool)
        if not software.picks_fastest_attention:
            return found
        described = {name: getattr(given.efficiency, name) for name in _OF_ATTENTION}
        kernels = replace(found.accelerator.efficiency, **described)
        return replace(found, accelerator=replace(found.accelerator, efficiency=kernels))
