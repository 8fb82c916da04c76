"""A profile at one point, and where profiles come from.

The estimator answers any point; a measured file answers what it holds. Piper's file is a source
with a single point whose options span several tensor-parallel degrees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature
from trainwright.profile.cost_table import CostTable
from trainwright.profile.setting import Setting
from trainwright.profile.structure import Structure


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """The circumstances under which a profile holds. Unknown circumstances are `None`.

    `tensor_parallel` lists the degrees the options span; experts are cut as many ways where
    `expert_tensor_parallel` is absent. `network_levels` says, per axis, the network levels its
    groups cross, as (axis, level names).
    """

    microbatch_size: int | None = None
    sequence_length: int | None = None
    tensor_parallel: tuple[int, ...] = (1,)
    context_parallel: int = 1
    expert_parallel: int = 1
    expert_tensor_parallel: int | None = None
    sequence_parallel: bool = False
    precision: str | None = None
    recompute: tuple[str, ...] = ()
    network_levels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    device_kind: str | None = None
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A layer graph and what its layers cost at one point."""

    structure: Structure
    costs: CostTable
    point: ProfilePoint

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        if self.structure.num_classes > self.costs.num_classes:
            yield Fault("costs", "must have a class for every layer")
            return
        ins, outs = self.structure.in_edges(), self.structure.out_edges()
        for index, layer in enumerate(self.structure.layers):
            degree = len(ins[index]) + len(outs[index])
            for row in self.costs.rows_of(layer.layer_class):
                found = int(self.costs.boundary_offsets[row + 1] - self.costs.boundary_offsets[row])
                if found not in (0, degree):
                    yield Fault(
                        f"layers[{index}]",
                        f"needs {degree} boundary values per option, got {found}",
                    )


class ProfileSource(Protocol):
    """Anything that can say what the layers cost."""

    def points(self) -> tuple[ProfilePoint, ...]:
        """The points that exist; empty where any point can be answered."""

    def profile(self, point: ProfilePoint) -> Profile:
        """The profile at `point`; raises `UnsupportedFeature` where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """Profiles read from a file, with the setting the file states, if it states one."""

    profiles: tuple[Profile, ...]
    setting: Setting | None = None

    def __post_init__(self) -> None:
        if not self.profiles:
            raise InvalidInput.of("points", "must have at least 1 entry, got 0")

    def points(self) -> tuple[ProfilePoint, ...]:
        """The points the file holds."""
        return tuple(profile.point for profile in self.profiles)

    def profile(self, point: ProfilePoint) -> Profile:
        """The profile at exactly `point`."""
        for profile in self.profiles:
            if profile.point == point:
                return profile
        raise UnsupportedFeature(f"this file holds no profile for {point}")
