"""Fit the pooled efficiencies that ship: `python benchmarks/fit_efficiencies.py OUT DIR...`.

Prints the error of each table under constants that saw it, and under constants fitted without it;
and the mean over tables where devices, and where halves of the tables drawn at random, are left
out (times linear in the constants).
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainwright.cluster.calibration import PooledEfficiencies
from trainwright.commands.validate import known
from trainwright.formats.measured_csv import measured_files, read_beside, read_measured
from trainwright.lab.pooling import (
    Pool,
    PooledFit,
    fit,
    left_out,
    linear_times,
    pooled,
    pooled_runs,
    power_shifts,
    refit_without,
    with_own,
)

HEAD = """# Effects of the pooled efficiencies (see `cluster/calibration.py`), as logarithms,
# written by benchmarks/fit_efficiencies.py from public measured runs; docs/accuracy.md names the
# tables.

"""


DRAWS, SEED = 12, 7


def without(pool: Pool, found: PooledFit, parts: list[list[int]]) -> list[float]:
    """The mean error over tables of each part's runs under constants fitted without it."""
    means = []
    for part in parts:
        times = linear_times(pool, found, refit_without(pool, found, part))
        errors = np.abs(np.expm1(times - pool.measured))
        tables = [np.intersect1d(members, part) for members in pool.groups.values()]
        means.append(float(np.mean([errors[own].mean() for own in tables if len(own)])))
    return means


def parts_of(pool: Pool) -> tuple[list[list[int]], list[list[int]]]:
    """The runs of each device, and of halves of the tables."""
    devices: dict[str, list[int]] = {}
    for number, run in enumerate(pool.runs):
        devices.setdefault(run.device, []).append(number)
    draw, tables = np.random.default_rng(SEED), list(pool.groups.values())
    halves = [draw.permutation(len(tables))[: len(tables) // 2] for _ in range(DRAWS)]
    return list(devices.values()), [np.concatenate([tables[i] for i in h]).tolist() for h in halves]


def text_of(pooled: PooledEfficiencies) -> str:
    """A file that `calibration_toml.built_in_efficiencies` reads."""
    families: dict[str, list[str]] = {}
    for device, family in pooled.families.items():
        families.setdefault(family, []).append(device)
    lines = ["[families]"]
    lines += [f"{family} = {json.dumps(devices)}" for family, devices in families.items()]
    lines += ["", "[ranges]  # measured over predicted time, by distance from evidence"]
    lines += [
        f"{distance.name.lower()} = [{ends.low_ratio:.3f}, {ends.high_ratio:.3f}]"
        for distance, ends in pooled.ranges.items()
    ]
    lines += ["", "[circumstances]  # where runs scatter more than their distance says"]
    lines += [
        f"{when} = [{ends.low_ratio:.3f}, {ends.high_ratio:.3f}]"
        for when, ends in pooled.circumstances.items()
    ]
    lines += ["", "[spreads]  # standard deviations of the logarithm that remain"]
    lines += [f"{name} = {value:.2f}" for name, value in pooled.spreads.items()]
    lines += ["", "[told_apart]  # exchanges of which runs under a class say whether they hide"]
    lines += [f"{kind} = {json.dumps(list(names))}" for kind, names in pooled.told_apart.items()]
    for key, effect in pooled.effects.items():
        shifts = ", ".join(f"{name} = {_shift(value)}" for name, value in effect.shifts.items())
        lines += ["", "[[effect]]", f"key = {json.dumps(list(key))}", f"runs = {effect.runs}"]
        lines += [f"sources = {json.dumps(list(effect.sources))}", f"shifts = {{ {shifts} }}"]
    return "\n".join(lines) + "\n"


def _shift(value: float) -> str:
    return f"{value:.4f}".removeprefix("-") if abs(value) < 5e-5 else f"{value:.4f}"


def main(out: Path, folders: list[Path]) -> None:
    catalog = replace(known(), efficiencies=None)
    tables = []
    for folder in folders:
        for path in measured_files(folder):
            runs = read_measured(path)
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
    devices, halves = (without(pool, found, parts) for parts in parts_of(pool))
    print(f"devices left out {np.mean(devices):.1%}, halves of the tables {np.mean(halves):.1%}")
    made = pooled(pool, found.shifts, with_own(pool, found, residuals))
    out.write_text(HEAD + text_of(made), encoding="utf-8")
    for name, ends in (*made.ranges.items(), *made.circumstances.items()):
        print(f"{name!s:16} {ends.low_ratio:.2f} to {ends.high_ratio:.2f}")
    print(f"{time.process_time():.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
