"""From an estimate and a log to constants, and back into an estimate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import trainwright
from trainwright.cluster import Cluster
from trainwright.documents.calibration import constants_of
from trainwright.documents.plan_view import evidence_line
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.formats.calibration_toml import write_calibrations
from trainwright.formats.document_json import decode
from trainwright.model.transformer import model_flops_per_sequence
from trainwright.options.clusters import calibrated, expected

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
    assert again.step_time_s == pytest.approx(4.0, rel=0.01)
    assert again.step_time_low_s < 4.0 < again.step_time_high_s
    assert found.fits[0].rows == 1
    (said,) = evidence_line(again.assumptions)
    assert said.startswith("rests on calibration own (1 training log; fitted: ")


@pytest.mark.parametrize("times", [0.8, 2.0])
def test_a_log_of_a_run_that_hosts_bind_moves_what_hosts_take(tmp_path: Path, times: float) -> None:
    run = {"cluster": "dgx-h100", "global_batch": 64, "sequence": 1024, "tp": 4}
    trainwright.estimate("gpt2", **run).save(tmp_path / "run.json")
    measured_s = times * trainwright.estimate("gpt2", **run).document.step_time_s
    found = trainwright.calibrate([tmp_path / "run.json"], logs=[line(measured_s)]).document
    (made,) = found.calibrations
    assert made.names == ("gemm_max", "memory_max", "host_pass_s", "step_overhead_s")
    write_calibrations(tmp_path / "own.toml", found.calibrations)
    again = trainwright.estimate("gpt2", **run, calibration=tmp_path / "own.toml").document
    assert again.step_time_s == pytest.approx(measured_s, rel=0.05)
    assert not found.warnings


@pytest.mark.parametrize("software", [None, "nemo"])
def test_a_run_as_fast_as_predicted_keeps_what_was_expected(
    tmp_path: Path, software: str | None
) -> None:
    report = trainwright.estimate("llama3-8b", **RUN, software=software)
    report.save(tmp_path / "run.json")
    logs = [line(report.document.step_time_s)]
    (made,) = trainwright.calibrate([tmp_path / "run.json"], logs=logs).document.calibrations
    values = {c.name: c.value for c in made.constants}
    device = expected(catalog.cluster("dgx-h100"), software).accelerator.efficiency
    reached = {"gemm_max": device.gemm.max, "memory_max": device.memory.max}
    assert values == pytest.approx(reached, rel=0.01)
    assert made.upon == (software or "typical")


def test_a_roofline_keeps_the_description(tmp_path: Path) -> None:
    report = trainwright.estimate("llama3-8b", **RUN, calibration="none")
    report.save(tmp_path / "run.json")
    logs = [line(report.document.step_time_s)]
    (made,) = trainwright.calibrate([tmp_path / "run.json"], logs=logs).document.calibrations
    values = {c.name: c.value for c in made.constants}
    assert values == pytest.approx({"gemm_max": 0.8, "memory_max": 0.85}, rel=0.01)
    assert made.upon is None


def test_a_second_log_refines_what_the_first_did(tmp_path: Path, estimate: Path) -> None:
    own, again = tmp_path / "own.toml", tmp_path / "again.json"
    found = trainwright.calibrate([estimate], logs=[line(4.0)]).document
    write_calibrations(own, found.calibrations)
    trainwright.estimate("llama3-8b", **RUN, calibration=own).save(again)
    found = trainwright.calibrate([again], logs=[line(4.2)]).document
    write_calibrations(own, found.calibrations)
    refined = trainwright.estimate("llama3-8b", **RUN, calibration=own).document
    assert refined.step_time_s == pytest.approx(4.2, rel=0.01)


def test_a_program_that_nobody_knows_is_refused(tmp_path: Path, estimate: Path) -> None:
    found = trainwright.calibrate([estimate], logs=[line(4.0)]).document
    made = [replace(each, upon="foo") for each in found.calibrations]
    write_calibrations(tmp_path / "own.toml", made)
    with pytest.raises(InvalidInput, match="upon"):
        trainwright.estimate("llama3-8b", **RUN, calibration=tmp_path / "own.toml")


def test_a_plan_states_the_run_of_its_log_too(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    job = {"cluster": "dgx-h100", "global_batch": 64, "sequence": 4096, "top": 0}
    plan = trainwright.plan("llama3-8b", **job, tp=2, pp=2, schedule="1f1b", recompute="none")
    plan.save(path)
    found = trainwright.calibrate([path], logs=[line(1.3 * plan.step_time_s)]).document
    assert found.fits[0].mape < 0.05
    free = found.calibrations[0]
    assert free.accelerator == "H100-80GB-SXM"


def test_measured_rows_are_fitted_by_accelerator_and_software() -> None:
    rows = Path(__file__).parents[2] / "examples" / "measured"
    document = trainwright.calibrate([rows]).document
    (made,) = document.calibrations
    assert (made.accelerator, made.line, made.rows) == ("A100-80GB-SXM", "megatron-lm", 2)
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


def test_an_estimate_names_its_calibration_and_what_it_fitted(
    tmp_path: Path, estimate: Path
) -> None:
    found = trainwright.calibrate([estimate], logs=[line(4.0)]).document
    write_calibrations(tmp_path / "own.toml", found.calibrations)
    again = trainwright.estimate("llama3-8b", **RUN, calibration=tmp_path / "own.toml")
    again.save(tmp_path / "again.json")
    times = again.document.assumptions["times"]
    assert "calibration own (1 training log; fitted: gemm_max, memory_max)" in times
    assert "efficiencies of its description" not in times
    content = again.document.request.cluster.content
    assert isinstance(content, dict)
    rows = list(constants_of(decode(Cluster, content, path="cluster")))
    own = [each for each in rows if each.source.startswith("calibration own")]
    assert {each.origin for each in own} == {"fitted"}
    fitted = [each.constant for each in own]
    assert fitted == [
        "products reach, of peak at most",
        "memory traffic reaches, of peak at most",
        "nine of ten measured steps take, of predicted",
    ]


def test_a_line_of_measured_layers_is_not_offered_for_estimates() -> None:
    """Its constants replace nothing in a description."""
    (pool,) = catalog.cluster("dgx-h100").pools
    device = replace(pool.accelerator, name="GH200-96GB")
    cluster = replace(catalog.cluster("dgx-h100"), pools=(replace(pool, accelerator=device),))
    with pytest.raises(InvalidInput, match="must be a file of `calibrate`, got"):
        calibrated(cluster, "sailor")


@pytest.mark.parametrize(("precision", "peak"), [("bf16", "989.4"), ("fp8", "1,979")])
def test_the_convention_of_mfu_is_stated_with_its_peak(precision: str, peak: str) -> None:
    document = trainwright.estimate("llama3-8b", **RUN, precision=precision).document
    said = document.assumptions["mfu"]
    assert "attention in full" in said
    assert f"dense {precision} peak, {peak} TFLOP/s of H100-80GB-SXM" in said
    config = catalog.model("llama3-8b").config
    flops = 64 * model_flops_per_sequence(config, 4096)
    peak_flops = 1e12 * float(peak.replace(",", "")) * document.devices_used
    assert document.mfu == pytest.approx(flops / document.step_time_s / peak_flops, rel=1e-3)
