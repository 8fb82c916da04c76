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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainwright.api.validate import known
from trainwright.formats.calibration_toml import load_calibrations, write_calibrations
from trainwright.formats.measured_csv import measured_files, read_measured
from trainwright.plan.measured_run import MeasuredRun
from trainwright.pricing.calibration import prior_of
from trainwright.validation.fitting import fit_line
from trainwright.validation.lines import line_of

SAILOR = "sailor"
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
    "megatron-core-2025-b200": (*BASIC, "gemm_half_flops", *ATTENTION, "scale_up_efficiency"),
    "llm-foundry": (*BASIC, *ATTENTION, "host_pass_s", "scale_out_efficiency", "fp8_ratio"),
    "torchtitan": (*BASIC, *ATTENTION, "fp8_ratio"),
    "nemo": (*BASIC, "gemm_half_flops", "scale_out_efficiency", "fp8_ratio"),
    "megatron-core-ci": ("host_pass_s", "step_overhead_s"),
}


def spoken(residuals: Sequence[float]) -> str:
    sizes = sorted(abs(math.expm1(r)) for r in residuals)
    mean = sum(sizes) / len(sizes)
    return f"mean {mean:6.1%} median {sizes[len(sizes) // 2]:6.1%} max {sizes[-1]:6.1%}"


def main(folder: Path, out: Path, only: frozenset[str]) -> None:
    catalog = replace(known(), calibrations=())
    rows: dict[tuple[str, str], list[MeasuredRun]] = defaultdict(list)
    for path in measured_files(folder):
        for run in read_measured(path):
            if line_of(run).name != SAILOR and run.step_time_s is not None:
                rows[run.accelerator, line_of(run).name].append(run)
    kept = load_calibrations(out) if only and out.exists() else ()
    made = {(c.accelerator, c.line): c for c in kept}
    for (device, line), runs in sorted(rows.items()):
        if only and line not in only:
            continue
        started = time.process_time()
        priors = [prior_of(name, DEFAULTS[name]) for name in CONSTANTS[line]]
        files = ", ".join(sorted({run.schema for run in runs}))
        found = fit_line(runs, catalog, priors, source=f"public measured runs: {files}")
        made[device, line] = found.calibration
        values = " ".join(f"{c.name} {c.value:.3g}" for c in found.calibration.constants)
        print(f"{device} {line}: {len(found.runs)} rows, {time.process_time() - started:.0f} s")
        print(f"    seen {spoken(found.seen)}; unseen {spoken(found.unseen)}; {values}", flush=True)
        write_calibrations(out, [made[key] for key in sorted(made)])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), frozenset(sys.argv[3:]))
