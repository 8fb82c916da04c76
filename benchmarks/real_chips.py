"""The template set to real chips, held to their training runs: `real_chips.py TABLE.csv...`.

Each chip of `CHIPS` is described as a design is: cores, lanes, buffers, clock, memory. Its measured
runs are priced three ways: by the roofline of its catalog entry with the constants pooled for it,
by its cores with the same constants, and by its cores with those of a device without runs of its
own, which is how `codesign` prices a design that nobody has. Rows in fewer than 16 bits are left
out, as the template multiplies one format. Prints a table of errors, and the furthest rows.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trainwright.chips.technology import dies
from trainwright.cluster import Surroundings, template_device
from trainwright.commands.validate import known
from trainwright.errors import TrainwrightError
from trainwright.formats.measured_csv import read_beside, read_measured
from trainwright.lab.fitting import answer
from trainwright.lab.predict import price
from trainwright.lab.run_shapes import cluster_of, config_of, line_of

if TYPE_CHECKING:
    from trainwright.lab.predict import Question
    from trainwright.lab.run_shapes import Known, SoftwareLine
    from trainwright.plans.measured_run import MeasuredRun

MOST_ROWS = 60  # of a table and chip, evenly chosen
SHOWN = 4
WAYS = ("roofline", "cores", "cores of nobody's chip")


# Cores, clock, and the bytes a clock from the buffer that all share: of GPUs what the second-level
# cache moves (NVIDIA's architecture papers: 5,120 on both). TPU v5p has the cores of v4.
A100, H100, TPU = (dies()[name].cores for name in ("A100-80GB-SXM", "H100-80GB-SXM", "TPU-v4"))
CHIPS = {
    "A100-40GB-SXM": (A100, 1.41e9, 5120.0),
    "A100-80GB-SXM": (A100, 1.41e9, 5120.0),
    "H100-80GB-SXM": (H100, 1.83e9, 5120.0),
    "H100-96GB-HBM2e-500W": (H100, 1.83e9, 5120.0),
    "TPU-v4": (TPU, 1.05e9, 8192.0),
    "TPU-v5p": (TPU, 1.75e9, 8192.0),
}


def as_cores(question: Question, line: SoftwareLine, found: Known, *, own: bool) -> Question:
    """The question on the cores of its chip, with its own constants or those of no chip."""
    pool = question.cluster.pool_of()
    device = pool.accelerator
    chip, clock_hz, port = CHIPS[device.name]
    assert chip is not None
    cores = template_device(
        chip,
        Surroundings(
            clock_hz=clock_hz,
            memory_bytes=device.usable_bytes,
            memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
            glb_bytes_per_cycle=port,
        ),
        name=device.name if own else "a chip design",
    )
    assert found.efficiencies is not None
    constants = found.efficiencies.calibration(cores.name, line.software)
    made = constants.on_pool(replace(pool, accelerator=cores))
    return replace(question, cluster=replace(question.cluster, pools=(made,)))


def priced(run: MeasuredRun, found: Known) -> tuple[float, ...] | None:
    """Seconds of a step each way; None for a row that the template does not express."""
    line = line_of(run)
    asked = answer(run, line, config_of(run, line, found), cluster_of(run, line, found)).question
    if asked.configuration.recipe.precision not in (None, "bf16", "fp16"):
        return None
    questions = (asked, *(as_cores(asked, line, found, own=own) for own in (True, False)))
    return tuple(price(one).step_time_s for one in questions)


def main(paths: list[Path]) -> None:
    rows: dict[str, list[tuple[str, float, tuple[float, ...]]]] = defaultdict(list)
    left_out: dict[str, int] = defaultdict(int)
    for path in paths:
        runs = read_measured(path)
        beside = read_beside(path, runs)
        found = replace(
            known(),
            calibrations=(),
            models=beside.models,
            beside=beside.clusters,
            unpublished=True,
        )
        for chip in CHIPS:
            own = [run for run in runs if run.accelerator == chip and run.step_time_s]
            for run in own[:: max(1, len(own) // MOST_ROWS)]:
                try:
                    steps_s = priced(run, found)
                except TrainwrightError:
                    steps_s = None
                if steps_s is None or run.step_time_s is None:
                    left_out[chip] += 1
                    continue
                rows[chip].append((f"{path.stem} {run.row_id}", run.step_time_s, steps_s))
    print("| chip | rows | left out | " + " | ".join(WAYS) + " |")
    print("| --- | --: | --: |" + " --- |" * len(WAYS))
    for chip, measured in rows.items():
        cells = []
        for way in range(len(WAYS)):
            ratios = np.array([steps_s[way] / real_s for _, real_s, steps_s in measured])
            cells.append(
                f"{np.abs(ratios - 1).mean():.1%} mean, {np.median(np.abs(ratios - 1)):.1%} "
                f"median, bias {np.median(ratios) - 1:+.1%}"
            )
        print(f"| {chip} | {len(measured)} | {left_out[chip]} | " + " | ".join(cells) + " |")
    every = [row for measured in rows.values() for row in measured]
    for name, real_s, steps_s in sorted(every, key=lambda r: -abs(np.log(r[2][2] / r[1])))[:SHOWN]:
        print(f"furthest: {name}, {real_s:.3g} s measured, {steps_s[2]:.3g} s predicted")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
