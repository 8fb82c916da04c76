"""Fit what runs with measured layers need: `python benchmarks/fit_calibrations.py DIR OUT`.

Their layers are priced from tables of layer times, so that what is left to fit is how a step
differs from its layers. All other runs share the pooled efficiencies (`fit_efficiencies.py`).
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainwright.cluster import Calibration
from trainwright.commands.validate import find_profiles
from trainwright.formats.calibration_toml import load_calibrations, write_calibrations
from trainwright.formats.measured_csv import (
    MeasuredRun,
    measured_files,
    read_layer_tables,
    read_measured,
)
from trainwright.lab.fitting import Prior, fit, interval
from trainwright.lab.validate import DEFAULTS as STAGED_DEFAULTS
from trainwright.lab.validate import predict_staged
from trainwright.profile.measured_model import MeasuredLayers
from trainwright.units import GIB

# Runs with a stated split and measured layers: what a step adds to them.
STAGED = "sailor"
STAGED_PRIORS = (
    Prior(name="layer_ratio", value=1.0, width=0.2),
    Prior(name="reduce_bytes_per_s", value=10e9, width=1.0),
)
STAGED_MEMORY_PRIORS = (
    Prior(name="parameter_bytes", value=20.0, width=0.1),
    Prior(name="saved_ratio", value=1.05, width=0.2),
    Prior(name="fixed_bytes", value=4.0 * GIB, width=0.3),
)


def spoken(residuals: Sequence[float]) -> str:
    """Errors of log residuals in words."""
    sizes = sorted(abs(math.expm1(r)) for r in residuals)
    mean = sum(sizes) / len(sizes)
    return f"mean {mean:6.1%} median {sizes[len(sizes) // 2]:6.1%} max {sizes[-1]:6.1%}"


def fit_staged(
    runs: Sequence[MeasuredRun], layers: MeasuredLayers, *, source: str
) -> tuple[Calibration, list[float]]:
    """Time and memory constants of runs priced from measured layers, and unseen residuals."""

    def times(values: Mapping[str, float], of: Sequence[MeasuredRun]) -> list[float]:
        constants = {**STAGED_DEFAULTS, **values}
        return [
            math.log(predict_staged(r, layers, constants).step_time_s / (r.step_time_s or 1.0))
            for r in of
        ]

    def peaks(values: Mapping[str, float]) -> list[float]:
        constants = {**STAGED_DEFAULTS, **values}
        found = [predict_staged(r, layers, constants).peak_memory_bytes or 1.0 for r in runs]
        return [
            math.log(p / (r.peak_memory_bytes or 1.0)) for p, r in zip(found, runs, strict=True)
        ]

    whole = fit(lambda values: times(values, runs), STAGED_PRIORS)
    unseen = []
    for index, run in enumerate(runs):
        rest = [r for i, r in enumerate(runs) if i != index and r.layout != run.layout]
        found = fit(lambda values, rest=rest: times(values, rest), STAGED_PRIORS)
        unseen += times({c.name: c.value for c in found.constants}, [run])
    low, high = interval(unseen)
    made = Calibration(
        accelerator=runs[0].accelerator,
        line=STAGED,
        constants=(*whole.constants, *fit(peaks, STAGED_MEMORY_PRIORS).constants),
        low_ratio=low,
        high_ratio=high,
        source=source,
        rows=len(runs),
    )
    return made, unseen


def main(folder: Path, out: Path) -> None:
    rows: dict[str, list[MeasuredRun]] = defaultdict(list)
    files: dict[str, set[str]] = defaultdict(set)
    for path in measured_files(folder):
        for run in read_measured(path):
            if run.step_time_s is not None and run.setting("stage_replicas"):
                rows[run.accelerator].append(run)
                files[run.accelerator].add(path.stem)
    profiles = find_profiles(folder, None)
    layers = None if profiles is None else read_layer_tables(profiles)
    assert layers is not None, "staged runs need layer profiles"
    made = {(c.accelerator, c.line): c for c in load_calibrations(out)} if out.exists() else {}
    for device, runs in sorted(rows.items()):
        source = f"public measured runs: {', '.join(sorted(files[device]))}"
        made[device, STAGED], unseen = fit_staged(runs, layers, source=source)
        print(f"{device}: {len(runs)} rows; unseen {spoken(unseen)}", flush=True)
    write_calibrations(out, [made[key] for key in sorted(made)])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
