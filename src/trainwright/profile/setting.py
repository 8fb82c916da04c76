"""The flat setting of the profiled partitioning problem: identical devices, one bandwidth.

Piper's files carry these four numbers beside the layers (`maxDevices`, `maxMemoryPerDevice`,
`bandwidth`, `mbsInBatch`); a cluster and a workload reduce to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trainwright.errors import Fault, InvalidInput

LARGEST_COUNT: Final = 10**12  # far beyond any machine, and its divisors are found in a moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How many devices, how large, how connected, and how many microbatches a batch has."""

    num_devices: int
    memory_bytes: float
    bandwidth_bytes_per_s: float
    num_microbatches: int

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for name in ("num_devices", "num_microbatches"):
            if (count := getattr(self, name)) < 1:
                yield Fault(name, f"must be >= 1, got {count}")
            elif count > LARGEST_COUNT:
                yield Fault(name, f"must be <= {LARGEST_COUNT}, got {count}")
        for name in ("memory_bytes", "bandwidth_bytes_per_s"):
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                yield Fault(name, f"must be finite and > 0, got {value!r}")

    @property
    def data_parallel_degrees(self) -> tuple[int, ...]:
        """The divisors of the number of microbatches that fit on the devices, ascending."""
        limit = min(self.num_devices, self.num_microbatches)
        return tuple(d for d in divisors(self.num_microbatches) if d <= limit)


def divisors(n: int) -> list[int]:
    """All divisors of n, ascending; O(√n)."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]
