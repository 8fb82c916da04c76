"""`validate` and `calibrate` on the command line: tables, exit codes, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwright.cli.main import main

ROWS = Path(__file__).parents[2] / "examples" / "measured"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_the_document_has_the_keys_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", str(ROWS), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    (dataset,) = document["datasets"]
    assert dataset["name"] == "korthikanti" and dataset["rows"] == dataset["modelled"] == 2
    assert set(dataset["time"]) == {"n", "mape", "median_ape", "p90_ape", "max_ape", "bias"}
    assert 0 <= document["pooled_interval_coverage"] <= 1


def test_a_missed_target_ends_with_4_and_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", str(ROWS), "--fail-on", "korthikanti.time=0.0001") == 4
    assert "korthikanti.time: mean error" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", "nowhere") == 2
    assert "cannot be read" in capsys.readouterr().err


def test_every_run_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", str(ROWS), "--rows") == 0
    assert "table5-1" in capsys.readouterr().out


def test_fitted_constants_are_written_and_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.toml"
    assert run("calibrate", str(ROWS), "-o", str(path)) == 0
    assert "gemm_max" in capsys.readouterr().out
    asked = "estimate gpt3-175b --cluster dgx-a100 --nodes 8 --tp 8 --pp 8 --global-batch 64"
    assert run(*asked.split(), "--sequence", "2048", "--calibration", str(path), "--json") in (0, 3)
    assumed = json.loads(capsys.readouterr().out)["assumptions"]
    assert any("measured runs: korthikanti" in text for text in assumed.values())
