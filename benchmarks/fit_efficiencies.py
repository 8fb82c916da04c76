"""Fit the pooled efficiencies that ship: `python benchmarks/fit_efficiencies.py OUT DIR...`.

Prints the error of each table under constants that saw it, and under constants fitted without it.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainwright.commands.validate import known
from trainwright.formats.calibration_toml import efficiencies_text
from trainwright.formats.measured_csv import measured_files, read_beside, read_measured
from trainwright.lab.pooling import Pool, fit, left_out, pooled, pooled_runs, power_shifts, with_own

HEAD = """# Effects of the pooled efficiencies (see `cluster/pooled.py`), as logarithms, written by
# benchmarks/fit_efficiencies.py from public measured runs; docs/accuracy.md names the tables.

"""


def main(out: Path, folders: list[Path]) -> None:
    catalog = replace(known(), efficiencies=None)
    tables = []
    for folder in folders:
        for path in measured_files(folder):
            runs = [r for r in read_measured(path) if r.setting("quality") != "gap"]
            beside = read_beside(path, runs)
            tables.append(
                (path.stem, runs, replace(catalog, models=beside.models, beside=beside.clusters))
            )
    pool = Pool(pooled_runs(tables), power_shifts(catalog))
    found = fit(pool)
    _, residuals = left_out(pool, found)
    seen, unseen = [], []
    for source, members in pool.groups.items():
        own = np.expm1((found.times - pool.measured)[members])
        other = np.expm1([-ratio for _, ratio in residuals[source]])
        seen.append(np.abs(own).mean())
        unseen.append((np.abs(other).mean(), other.mean()))
        print(
            f"{source:22} {len(members):4} runs, seen {seen[-1]:6.1%}, left out "
            f"{unseen[-1][0]:6.1%} bias {unseen[-1][1]:+6.1%} "
            f"{sorted({d.name for d, _ in residuals[source]})}"
        )
    mean = np.mean(unseen, axis=0)
    print(f"mean over sources: seen {np.mean(seen):.1%}, left out {mean[0]:.1%} {mean[1]:+.1%}")
    made = pooled(pool, found.shifts, with_own(pool, found, residuals))
    out.write_text(HEAD + efficiencies_text(made), encoding="utf-8")
    for name, ends in (*made.ranges.items(), *made.circumstances.items()):
        print(f"{name!s:16} {ends.low_ratio:.2f} to {ends.high_ratio:.2f}")
    print(f"{time.process_time():.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
