"""How far communication hides under compute, and what a device keeps free.

A transfer that may hide is exposed by max(0, time - share · window): 0.9 of the compute beside it
where a run overlaps, 0 where it does not. The defaults are those of current frameworks: gradients
and parameters of data parallelism overlap, tensor and expert exchanges do not, pipeline transfers
run beside compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from trainwright.errors import Fault, InvalidInput
from trainwright.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Shares, from 0 to 1, of the compute that a kind of communication may hide under.

    `gradients` hide under the backward pass that makes them, `parameters` (gathered by ZeRO) under
    the forward pass that needs them or the layer before, `tensor` exchanges under the other
    operators of their phase, `experts` likewise, `pipeline` is the share of a transfer during
    which sender and receiver compute.
    """

    gradients: float = 0.9
    parameters: float = 0.9
    tensor: float = 0.0
    experts: float = 0.0
    pipeline: float = 1.0

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for field in fields(self):
            if not 0 <= (share := getattr(self, field.name)) <= 1:
                yield Fault(f"overlap.{field.name}", f"must be from 0 to 1, got {share!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOverheads:
    """Bytes beside the model's own, on every device.

    `workspace_bytes` is what matrix libraries keep (two of 32 MiB on Hopper), `reserve_bytes` what
    the user wants free, `fragmentation` the share by which the allocator reserves more than it
    gives out; the last two count for the verdict, not for the predicted peak. `buffers` says
    whether communication buffers are counted.
    """

    workspace_bytes: float = 64.0 * MIB
    reserve_bytes: float = 0.0
    fragmentation: float = 0.05
    buffers: bool = True

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def needed_bytes(self, peak_bytes: float) -> float:
        """What must be usable of a device for a run of that peak, workspaces in it."""
        return peak_bytes * (1 + self.fragmentation) + self.reserve_bytes

    def room_bytes(self, usable_bytes: float) -> float:
        """What a peak may reach without workspaces: the inverse of `needed_bytes`."""
        return (usable_bytes - self.reserve_bytes) / (1 + self.fragmentation) - self.workspace_bytes

    def _faults(self) -> Iterator[Fault]:
        for name in ("workspace_bytes", "reserve_bytes", "fragmentation"):
            if not 0 <= (value := getattr(self, name)) < float("inf"):
                yield Fault(name, f"must be finite and >= 0, got {value!r}")


DEFAULT_OVERLAP: Final = Overlap()
DEFAULT_OVERHEADS: Final = MemoryOverheads()
NO_OVERHEADS: Final = MemoryOverheads(workspace_bytes=0.0, fragmentation=0.0, buffers=False)
