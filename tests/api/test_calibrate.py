"""From an estimate and a log to constants, and back into an estimate."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainwright
from trainwright.errors import InvalidInput
from trainwright.formats.calibration_toml import write_calibrations

RUN = {"cluster": "dgx-h100", "tp": 2, "global_batch": 64, "sequence": 4096}


def line(step_s: float) -> str:
    return f" iteration 1/ 9 | elapsed time per iteration (ms): {1e3 * step_s:.1f} |\n"


@pytest.fixture
def estimate(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    trainwright.estimate("llama3-8b", **RUN).save(path)
    return path


def test_a_log_moves_the_estimate_to_what_was_measured(tmp_path: Path, estimate: Path) -> None:
    found = trainwright.calibrate([estimate], logs=[line(4.0)]).document
    write_calibrations(tmp_path / "own.toml", found.calibrations)
    again = trainwright.estimate("llama3-8b", **RUN, calibration=tmp_path / "own.toml").document
    assert again.step_time_s == pytest.approx(4.0, rel=0.03)
    assert again.step_time_low_s < 4.0 < again.step_time_high_s
    assert found.fits[0].rows == 1


def test_a_run_as_fast_as_predicted_keeps_the_defaults(estimate: Path) -> None:
    predicted_s = trainwright.estimate("llama3-8b", **RUN).document.step_time_s
    (made,) = trainwright.calibrate([estimate], logs=[line(predicted_s)]).document.calibrations
    values = {c.name: c.value for c in made.constants}
    assert values == pytest.approx({"gemm_max": 0.8, "memory_max": 0.85}, rel=0.01)


def test_measured_rows_are_fitted_by_accelerator_and_software() -> None:
    rows = Path(__file__).parents[2] / "examples" / "measured"
    document = trainwright.calibrate([rows]).document
    (made,) = document.calibrations
    assert (made.accelerator, made.line, made.rows) == ("A100-80GB-SXM", "megatron-2022", 2)
    assert document.fits[0].mape < 0.05


def test_each_estimate_needs_its_log(estimate: Path) -> None:
    with pytest.raises(InvalidInput, match="one log for each"):
        trainwright.calibrate([estimate], logs=[line(1.0), line(2.0)])


def test_a_constant_that_does_not_exist_is_refused(estimate: Path) -> None:
    with pytest.raises(InvalidInput, match="luck"):
        trainwright.calibrate([estimate], logs=[line(1.0)], constants=["luck"])


def test_a_calibration_of_another_accelerator_is_refused(tmp_path: Path, estimate: Path) -> None:
    found = trainwright.calibrate([estimate], logs=[line(4.0)]).document
    write_calibrations(tmp_path / "own.toml", found.calibrations)
    other = RUN | {"cluster": "dgx-a100"}
    with pytest.raises(InvalidInput, match="A100"):
        trainwright.estimate("llama3-8b", **other, calibration=tmp_path / "own.toml")


def test_a_log_of_another_run_is_told_and_lies_in_the_range(tmp_path: Path, estimate: Path) -> None:
    predicted_s = trainwright.estimate("llama3-8b", **RUN).document.step_time_s
    found = trainwright.calibrate([estimate], logs=[line(6 * predicted_s)]).document
    (warning,) = found.warnings
    assert "check that the estimate states the run of the log" in warning
    write_calibrations(tmp_path / "own.toml", found.calibrations)
    again = trainwright.estimate("llama3-8b", **RUN, calibration=tmp_path / "own.toml").document
    assert again.step_time_low_s <= 6 * predicted_s <= again.step_time_high_s * (1 + 1e-3)
    assert not trainwright.calibrate([estimate], logs=[line(1.2 * predicted_s)]).document.warnings
