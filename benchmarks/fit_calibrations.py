"""Fit the constants that ship with the package: `python benchmarks/fit_calibrations.py DIR OUT`.

One table per accelerator and software line, from the measured runs in DIR. Which constants a line
gets is decided by what its rows can tell apart: a handful, never one per row, file or model. Prints
the errors of the rows in the fit and of the same rows unseen (five folds by configuration group).
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trainwright.cluster import Calibration, Circumstance
from trainwright.commands.validate import find_profiles, known
from trainwright.formats.calibration_toml import load_calibrations, write_calibrations
from trainwright.formats.measured_csv import measured_files, read_layer_tables, read_measured
from trainwright.lab.fitting import Prior, fit, fit_line, interval, prior_of
from trainwright.lab.run_shapes import line_of
from trainwright.lab.scores import median_of, repeat_key
from trainwright.lab.staged import DEFAULTS as STAGED_DEFAULTS
from trainwright.lab.staged import predict_staged
from trainwright.plans.measured_run import MeasuredRun
from trainwright.profile.measured_layers import MeasuredLayers
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
DEFAULTS = {
    "gemm_max": 0.70,
    "gemm_half_flops": 2e10,
    "memory_max": 0.70,
    "attention_forward": 0.50,
    "attention_backward": 0.40,
    "host_pass_s": 3e-3,
    "scale_up_efficiency": 0.70,
    "scale_out_efficiency": 0.60,
    "step_overhead_s": 0.02,
    "fp8_ratio": 0.70,
}
BASIC = ("gemm_max", "memory_max")
ATTENTION = ("attention_forward", "attention_backward")
CONSTANTS = {
    "megatron-deepspeed-2022": (*BASIC, "host_pass_s"),
    "megatron-2021": BASIC,
    "megatron-2022": BASIC,
    "megatron-deepspeed-2021": ("gemm_max",),
    "megatron-core": (*BASIC, "step_overhead_s"),
    "megatron-core-2025-b200": (
        "gemm_max",
        "gemm_half_flops",
        "attention_backward",
        "scale_up_efficiency",
    ),
    "llm-foundry": (*BASIC, *ATTENTION, "host_pass_s", "scale_out_efficiency", "fp8_ratio"),
    "torchtitan": (*BASIC, *ATTENTION, "fp8_ratio"),
    "torchtitan-eager": BASIC,
    "torchtitan-rowwise": (*BASIC, "fp8_ratio"),
    "nemo": (*BASIC, "fp8_ratio"),
    "megatron-core-ci": ("host_pass_s", "step_overhead_s"),
}

# Whose steps scatter for a reason that a run states: shared networks of a node, or experts.
APART = {
    "megatron-deepspeed-2022": Circumstance.SHARED_NODES,
    "llm-foundry": Circumstance.SHARED_NODES,
    "nemo": Circumstance.EXPERTS,
    "megatron-core-ci": Circumstance.EXPERTS,
}


def spoken(residuals: Sequence[float]) -> str:
    sizes = sorted(abs(math.expm1(r)) for r in residuals)
    mean = sum(sizes) / len(sizes)
    return f"mean {mean:6.1%} median {sizes[len(sizes) // 2]:6.1%} max {sizes[-1]:6.1%}"


def collapsed(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """One run per configuration, with the median of its repeats."""
    groups: dict[object, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        groups[repeat_key(run)].append(run)
    return [
        replace(group[0], step_time_s=median_of([r.step_time_s for r in group]))
        for group in groups.values()
    ]


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


def main(folder: Path, out: Path, only: frozenset[str]) -> None:
    catalog = replace(known(), calibrations=())
    rows: dict[tuple[str, str], list[MeasuredRun]] = defaultdict(list)
    for path in measured_files(folder):
        for run in read_measured(path):
            if run.step_time_s is not None:
                rows[run.accelerator, line_of(run).name].append(run)
    kept = load_calibrations(out) if only and out.exists() else ()
    made = {(c.accelerator, c.line): c for c in kept}
    for (device, line), runs in sorted(rows.items()):
        if only and line not in only:
            continue
        started = time.process_time()
        files = ", ".join(sorted({run.schema for run in runs}))
        source = f"public measured runs: {files}"
        if line == STAGED:
            profiles = find_profiles(folder, None)
            layers = None if profiles is None else read_layer_tables(profiles)
            assert layers is not None, "staged runs need layer profiles"
            made[device, line], unseen = fit_staged(runs, layers, source=source)
            print(f"{device} {line}: {len(runs)} rows; unseen {spoken(unseen)}", flush=True)
            write_calibrations(out, [made[key] for key in sorted(made)])
            continue
        runs = collapsed(runs)
        priors = [prior_of(name, DEFAULTS[name]) for name in CONSTANTS[line]]
        found = fit_line(runs, catalog, priors, source=source, apart=APART.get(line))
        made[device, line] = found.calibration
        values = " ".join(f"{c.name} {c.value:.3g}" for c in found.calibration.constants)
        print(f"{device} {line}: {len(found.runs)} rows, {time.process_time() - started:.0f} s")
        print(f"    seen {spoken(found.seen)}; unseen {spoken(found.unseen)}; {values}", flush=True)
        write_calibrations(out, [made[key] for key in sorted(made)])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), frozenset(sys.argv[3:]))
