"""What a job left behind of its memory: a message that it ran out, or a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What a job was doing."""

    INITIALISATION = "initialisation"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The first allocation that failed, in bytes; what the message leaves out is absent.

    `rank` is that of the process among all, `tried_bytes` what was asked for. Of the device
    `capacity_bytes` is all, `free_bytes` what was left. `in_use_bytes` is what the process held,
    `reserved_bytes` what its allocator did and `allocated_bytes` what its tensors did.
    """

    rank: int | None = None
    phase: Phase | None = None
    tried_bytes: float
    capacity_bytes: float | None = None
    free_bytes: float | None = None
    in_use_bytes: float | None = None
    reserved_bytes: float | None = None
    allocated_bytes: float | None = None

    @property
    def missing_bytes(self) -> float:
        """What must be spared at least for the allocation to succeed."""
        return max(0.0, self.tried_bytes - (self.free_bytes or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """One device at its fullest instant on record. Bytes, by class of what allocated them.

    `reserved_bytes` is what the allocator holds at the end; `num_events` allocations and frees
    were replayed, 0 where only the end is on record.
    """

    device: int
    allocated_bytes: float
    reserved_bytes: float
    by_class_bytes: dict[str, float]
    num_blocks: int
    num_events: int
