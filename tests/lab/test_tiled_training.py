"""Published training steps through the tiled estimator (Korthikanti et al., 2022, table 5).

One constant, the share of its clock that an A100 sustains while it trains, is fitted on the rows of
one model and judged on those of the other; launches and network are the catalog's.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from reference import needs_reference, reference
from tiled_machines import A100_80GB
from trainwright.commands.validate import known
from trainwright.costing.tiled import TiledTimer
from trainwright.formats.measured_csv import MeasuredRun, read_measured
from trainwright.lab.fitting import answer
from trainwright.lab.predict import Question
from trainwright.lab.run_shapes import cluster_of, config_of, line_of
from trainwright.step import predict_step
from trainwright.step.predict import estimator_of, plan_of, point_of

LANES_PER_S = 6912 * 1.41e9
SHARES = [share / 100 for share in range(64, 92, 2)]

Row = tuple[MeasuredRun, Question]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    plain = replace(known(), calibrations=())
    found = []
    for run in read_measured(reference() / "measured/korthikanti.csv"):
        line = line_of(run)
        asked = answer(run, line, config_of(run, line, plain), cluster_of(run, line, plain))
        found.append((run, asked.question))
    return found


def error(row: Row, share: float) -> float:
    run, question = row
    launch_s = question.cluster.accelerator.launch_overhead_s
    machine = replace(A100_80GB, compute_efficiency=share, launch_s=launch_s)
    timer = TiledTimer(machine=machine, lanes_per_s=LANES_PER_S)
    asked = question.configuration
    estimator = estimator_of(question.model, question.cluster, asked)
    profile = replace(estimator, tiled=timer).profile(point_of(asked))
    plan = plan_of(asked, profile)
    step = predict_step(
        plan, profile, question.cluster, overlap=asked.overlap, overheads=asked.overheads
    )
    assert run.step_time_s is not None
    return abs(step.step_time_s / run.step_time_s - 1)


def mean_error(rows: list[Row], share: float) -> float:
    return sum(error(row, share) for row in rows) / len(rows)


@pytest.mark.slow
@needs_reference
def test_one_constant_of_one_model_predicts_the_steps_of_others(rows: list[Row]) -> None:
    names = sorted({run.model for run, _ in rows})
    assert len(names) > 1
    for fitted in names:
        own = [row for row in rows if row[0].model == fitted]
        rest = [row for row in rows if row[0].model != fitted]
        share = min(SHARES, key=lambda s: mean_error(own, s))
        assert mean_error(own, share) <= 0.06
        assert mean_error(rest, share) <= 0.06


@needs_reference
def test_constants_of_single_products_are_too_fast_for_training(rows: list[Row]) -> None:
    assert 0.10 <= mean_error(rows, A100_80GB.compute_efficiency) <= 0.25
