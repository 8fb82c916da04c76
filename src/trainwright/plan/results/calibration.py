"""The document of `calibrate`: fitted constants, and how the fits did."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.cluster.calibration import Calibration
from trainwright.plan.results.request import FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRecord:
    """Mean relative error of one line's runs, in the fit and (where there are several) unseen."""

    accelerator: str
    line: str
    rows: int
    mape: float
    unseen_mape: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """One calibration per accelerator and software line."""

    kind: str = "calibration"
    format_version: int = FORMAT_VERSION
    calibrations: tuple[Calibration, ...]
    fits: tuple[FitRecord, ...]
    warnings: tuple[str, ...] = ()
