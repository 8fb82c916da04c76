"""How far measured peaks lie from predicted ones, by source: the ranges of the memory accounts.

    python benchmarks/memory_ranges.py FOLDER... [--least 4] [--without SOURCE...]

Prints for each table of measured runs the 5th, 50th and 95th percentile of measured over predicted,
of the figure that its rows name; the range in which nine of ten runs of a source that nobody has
seen shall lie, by account; and with each table left out the share of its own rows in the range that
the others give. `cluster/memory/*.toml` hold what came out.

A run's error is log(measured / predicted), and a source's spread its root mean square. With v the
mean square over all n sources, each counting as one, and v_1 … v_m those of the account itself, the
square of the account's spread is (v_1 + … + v_m + v) / (m + 1): what nobody measured gets the
spread of all, and each source of its own counts as much as that. The range is e to the power of
± t·√(1 + 1/n) times the spread, with Student's t of n − 1 degrees of freedom at 95%.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Final

from trainwright.commands.validate import known
from trainwright.errors import TrainwrightError
from trainwright.formats.calibration_toml import framework_memory
from trainwright.formats.measured_csv import (
    MeasuredRun,
    measured_files,
    read_beside,
    read_measured_table,
)
from trainwright.lab.fitting import answer
from trainwright.lab.run_shapes import cluster_of, config_of, line_of
from trainwright.lab.validate import Quality, quality_of, repeat_key

STUDENT: Final = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 6: 1.94, 7: 1.89, 8: 1.86}


def half_width(account: str, by_source: dict[tuple[str, str], list[float]]) -> float:
    """Of the range of an account, as a logarithm; `by_source` holds ratios by table and account."""
    squares = {key: mean(math.log(v) ** 2 for v in values) for key, values in by_source.items()}
    own = [square for (_, other), square in squares.items() if other == account]
    square = (sum(own) + mean(squares.values())) / (len(own) + 1)
    count = len(squares)
    return STUDENT[min(count - 1, max(STUDENT))] * math.sqrt(square * (1 + 1 / count))


def ratios(path: Path) -> dict[str, list[float]]:
    """Measured over predicted, by account, each configuration once."""
    table = read_measured_table(path)
    beside = read_beside(path, table.runs)
    near = replace(known(), models=beside.models, beside=beside.clusters)
    groups: dict[object, list[MeasuredRun]] = defaultdict(list)
    for run in table.runs:
        if run.peak_memory_bytes is not None and run.setting("stage_replicas") is None:
            groups[repeat_key(run)].append(run)
    found = defaultdict(list)
    for runs in groups.values():
        if quality_of(runs) is not Quality.RECORDED:
            continue
        run, line = runs[0], line_of(runs[0])
        try:
            given = answer(run, line, config_of(run, line, near), cluster_of(run, line, near))
        except TrainwrightError:
            continue
        peak_bytes = given.prediction.peak_memory_bytes
        if peak_bytes:
            measured = median(r.peak_memory_bytes for r in runs if r.peak_memory_bytes)
            account = framework_memory(line.software.name).name
            found[account].append(measured / peak_bytes)
    return found


def percentile(values: list[float], share: float) -> float:
    """By linear interpolation between order statistics."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def main() -> None:
    """Print all sources, then each left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--least", type=int, default=4, help="rows of a source that counts")
    parser.add_argument("--without", nargs="*", default=(), help="sources that do not count")
    asked = parser.parse_args()
    by_source: dict[tuple[str, str], list[float]] = {}
    for folder in asked.folders:
        for path in measured_files(folder):
            if path.stem in asked.without:
                continue
            for account, values in ratios(path).items():
                if len(values) >= asked.least:
                    by_source[path.stem, account] = values
    print("source account rows p05 p50 p95")
    for (source, account), values in by_source.items():
        shown = " ".join(f"{percentile(values, share):.3f}" for share in (0.05, 0.5, 0.95))
        print(source, account, len(values), shown)
    if len(by_source) < 3:
        return
    print("range of a source not seen, by account")
    for account in sorted({account for _, account in by_source} | {"typical"}):
        width = half_width(account, by_source)
        print(account, f"{math.exp(-width):.3f} {math.exp(width):.3f}")
    print("left out: the range that the others give, share of its rows inside")
    for (source, account), values in by_source.items():
        others = {key: v for key, v in by_source.items() if key[0] != source}
        width = half_width(account, others)
        inside = sum(abs(math.log(value)) <= width for value in values) / len(values)
        print(source, account, f"{math.exp(-width):.3f} {math.exp(width):.3f} {inside:.0%}")


if __name__ == "__main__":
    main()
