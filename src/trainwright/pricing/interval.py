"""How far a predicted step may be off, as the range that holds nine of ten measured ones.

Without a calibration the range is an assumption: a roofline with default efficiencies leaves out
host time, stragglers and imperfect kernels, so it errs on the fast side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """A measured step takes between `low_ratio` and `high_ratio` times the predicted one."""

    low_ratio: float
    high_ratio: float
    source: str


UNCALIBRATED: Final = TimeRange(
    low_ratio=0.85,
    high_ratio=1.60,
    source="assumed: default efficiencies, not fitted to this accelerator and software",
)
