"""A plan made with fitted constants says so."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import trainwright
from trainwright.reporting.model_plan_table import model_plan_report

JOB = {"cluster": "dgx-h100", "nodes": 1, "global_batch": 32, "sequence": 1024}


@pytest.mark.parametrize(
    ("calibration", "origin", "said"),
    [
        ("megatron-core", "fitted", "90 %, fitted estimate)"),
        (None, "assumed", "90 %, unfitted estimate)"),
    ],
)
def test_the_headline_says_whether_times_rest_on_fitted_constants(calibration, origin, said):
    document = trainwright.plan("gpt2", **JOB, calibration=calibration).document
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(model_plan_report(document))
    assert said in console.export_text()
    assert document.assumptions["times"].startswith(f"{origin}: roofline of H100-80GB-SXM")
    assert document.lower_bound_s <= document.step_time_s
