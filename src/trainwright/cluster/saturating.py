"""An efficiency that grows with size: small transfers and products never fill a device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturating:
    """An efficiency that grows with size: `max · x / (x + half)`."""

    max: float
    half: float

    def at(self, size: float) -> float:
        """The efficiency at `size` (FLOPs or bytes); `max` where there is nothing to do."""
        return self.max if size <= 0 else self.max * size / (size + self.half)
