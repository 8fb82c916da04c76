"""Predictions beside those of other cost models: `python benchmarks/cross_checks.py TABLE.csv...`.

A table has the columns of `examples/measured` and, where another model priced its rows, the column
`peer_step_time_s`; without it `step_time_s` itself is taken for a model's. Prints Spearman's rank
correlation with the model and with the measurements, and the rows that disagree most.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainwright.commands.validate import known
from trainwright.errors import TrainwrightError
from trainwright.formats.measured_csv import read_beside, read_measured
from trainwright.lab.validate import predictor

MOST_ROWS = 150  # of a table, evenly chosen
SHOWN = 5


def ranks(values: np.ndarray) -> np.ndarray:
    """Places in increasing order."""
    found = np.empty(len(values))
    found[np.argsort(values, kind="stable")] = np.arange(len(values))
    return found


def main(paths: list[Path]) -> None:
    for path in paths:
        runs = read_measured(path)
        beside = read_beside(path, runs)
        predicted = predictor(
            replace(known(), models=beside.models, beside=beside.clusters, unpublished=True), None
        )
        rows = []
        for run in runs[:: max(1, len(runs) // MOST_ROWS)]:
            peer_s = run.number("peer_step_time_s") or run.step_time_s
            try:
                own_s = predicted(run)[0].step_time_s
            except TrainwrightError:
                continue
            if peer_s and run.step_time_s:
                rows.append((run.row_id, own_s, peer_s, run.step_time_s))
        own, peer, measured = (np.array([row[k] for row in rows]) for k in (1, 2, 3))
        print(f"{path.stem}: {len(rows)} of {len(runs)} rows")
        for name, one, other in (
            ("ours and the model's", own, peer),
            ("ours and measured", own, measured),
            ("the model's and measured", peer, measured),
        ):
            rho = np.corrcoef(ranks(one), ranks(other))[0, 1]
            error = np.abs(one / other - 1).mean()
            bias = (one / other - 1).mean()
            print(f"  {name}: rank correlation {rho:.3f}, mean {error:.1%}, bias {bias:+.1%}")
        furthest = sorted(rows, key=lambda row: -abs(np.log(row[1] / row[2])))[:SHOWN]
        for row_id, own_s, peer_s, measured_s in furthest:
            print(f"  {row_id}: ours {own_s:.3f} s, model {peer_s:.3f} s, table {measured_s:.3f} s")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
