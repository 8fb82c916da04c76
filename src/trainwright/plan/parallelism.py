"""How many ways each axis is cut, where all stages agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from trainwright.errors import Fault, InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Uniform degrees of a plan. Expert degrees divide the data × context × tensor group.

    Each expert is cut `expert_tensor` ways, as many as `tensor` where absent.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    virtual_stages: int = 1
    sequence_parallel: bool = False
    zero_stage: int = 0

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            least = 0 if field.name in ("zero_stage", "sequence_parallel") else 1
            if value < least:
                yield Fault(field.name, f"must be >= {least}, got {value}")
        if self.zero_stage > 3:
            yield Fault("zero_stage", f"must be 0, 1, 2 or 3, got {self.zero_stage}")

    @property
    def num_devices(self) -> int:
        """Devices the plan occupies."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def devices_per_rank(self) -> int:
        """Devices of one pipeline rank."""
        return self.tensor * self.data * self.context

    @property
    def expert_shards(self) -> int:
        """Devices that share one expert."""
        return self.expert_tensor or self.tensor

    @property
    def expert_data(self) -> int:
        """Replicas of each expert; degrees that do not divide evenly are a fault of legality."""
        replicas = self.tensor * self.context * self.data // (self.expert * self.expert_shards)
        return max(1, replicas)
