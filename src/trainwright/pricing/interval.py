"""How far a predicted step may be off, as the range that holds nine of ten measured ones.

Without a calibration the range is an assumption: a roofline with default efficiencies leaves out
host time, stragglers and imperfect kernels, so it errs on the fast side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainwright.provenance import Origin

if TYPE_CHECKING:
    from trainwright.cluster import Accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """A measured step takes between `low_ratio` and `high_ratio` times the predicted one."""

    low_ratio: float
    high_ratio: float
    source: str


_UNCALIBRATED: Final = "assumed: default efficiencies, not fitted to this accelerator and software"


def time_range(device: Accelerator) -> TimeRange:
    """The range of a device's description, fitted with its efficiencies or assumed."""
    origin = device.provenance_of("efficiency")
    fitted = origin.origin is Origin.FITTED
    return TimeRange(
        low_ratio=device.step_low_ratio,
        high_ratio=device.step_high_ratio,
        source=f"fitted: {origin.source}" if fitted else _UNCALIBRATED,
    )
