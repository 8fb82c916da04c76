"""What tables say of estimates without fitted constants is what public runs say of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from trainwright.cluster.accelerator import LEFT_OUT, UNFITTED
from trainwright.commands.validate import known
from trainwright.formats.measured_csv import measured_files, read_measured_table
from trainwright.lab.validate import outcomes, predictor

SHARED = os.environ.get("TRAINWRIGHT_SHARED")


@pytest.mark.slow
@pytest.mark.skipif(not SHARED, reason="TRAINWRIGHT_SHARED names no reference data")
def test_so_many_public_runs_took_so_much_longer() -> None:
    predicted = predictor(replace(known(), calibrations=(), efficiencies=None), None)
    ratios, within = [], 0
    for path in measured_files(Path(SHARED or "") / "data" / "measured"):
        for outcome in outcomes(read_measured_table(path).runs, predicted):
            times_s = [run.step_time_s for run in outcome.runs if run.step_time_s]
            if path.stem in LEFT_OUT or outcome.prediction is None or not times_s:
                continue
            measured_s = median(times_s)
            found = outcome.prediction
            assert found.step_time_s and found.step_time_low_s and found.step_time_high_s
            ratios.append(measured_s / found.step_time_s)
            within += found.step_time_low_s <= measured_s <= found.step_time_high_s
    assert len(ratios) == UNFITTED.num_runs
    assert sum(ratio > 1 for ratio in ratios) / len(ratios) == pytest.approx(
        UNFITTED.slower_share, abs=0.01
    )
    assert median(ratios) == pytest.approx(UNFITTED.median_ratio, abs=0.01)
    assert within / len(ratios) == pytest.approx(UNFITTED.within_share, abs=0.01)
