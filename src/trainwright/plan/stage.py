"""A pipeline stage: its layers, how each is run, and on which devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature

ANY_DEVICE: Final = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """`count` replicas of a stage, each on `tensor_parallel` devices of one kind.

    `share` is the fraction of the stage's microbatches that this group processes, `pool` the index
    of the cluster's pool that holds it, and `options` those of its layers where they are not the
    stage's.
    """

    count: int
    tensor_parallel: int = 1
    device_kind: str = ANY_DEVICE
    share: float = 1.0
    pool: int = 0
    options: tuple[str, ...] = ()

    @property
    def num_devices(self) -> int:
        """Devices of the whole group."""
        return self.count * self.tensor_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers (ids of the input), the option of each (ids too), and the stage's replicas.

    Mixed clusters have several replica groups; the scalar degrees are those of the uniform case.
    """

    layers: tuple[int, ...]
    options: tuple[str, ...]
    replicas: tuple[ReplicaGroup, ...]

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        if not self.layers:
            yield Fault("layers", "must have at least 1 entry, got 0")
        if len(set(self.layers)) < len(self.layers):
            yield Fault("layers", "must be unique")
        if len(self.options) != len(self.layers):
            yield Fault("options", f"must name {len(self.layers)} options, got {len(self.options)}")
        if not self.replicas:
            yield Fault("replicas", "must have at least 1 entry, got 0")
        for index, group in enumerate(self.replicas):
            if group.count < 1 or group.tensor_parallel < 1:
                yield Fault(f"replicas[{index}]", "must have count and tensor_parallel >= 1")
            if group.options and len(group.options) != len(self.layers):
                wanted = f"must name {len(self.layers)} options, got {len(group.options)}"
                yield Fault(f"replicas[{index}].options", wanted)

    @classmethod
    def uniform(
        cls,
        layers: tuple[int, ...],
        options: tuple[str, ...],
        *,
        data_parallel: int,
        tensor_parallel: int,
    ) -> Stage:
        """Build a stage whose replicas are all alike."""
        group = ReplicaGroup(count=data_parallel, tensor_parallel=tensor_parallel)
        return cls(layers=layers, options=options, replicas=(group,))

    @property
    def data_parallel(self) -> int:
        """Replicas over all groups."""
        return sum(group.count for group in self.replicas)

    @property
    def tensor_parallel(self) -> int:
        """The tensor-parallel degree, where all groups share one."""
        degrees = {group.tensor_parallel for group in self.replicas}
        if len(degrees) > 1:
            raise UnsupportedFeature(f"this stage mixes tensor-parallel degrees {sorted(degrees)}")
        return degrees.pop()

    @property
    def num_devices(self) -> int:
        """Devices over all groups."""
        return sum(group.num_devices for group in self.replicas)

    @property
    def option_of(self) -> dict[int, str]:
        """Option id by layer id."""
        return dict(zip(self.layers, self.options, strict=True))
