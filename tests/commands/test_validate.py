"""`validate` and `calibrate` on the command line: tables, exit codes, files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from trainwright.commands.main import main

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


def test_a_file_is_scored_as_its_folder_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", str(ROWS), "--json") == 0
    of_folder = json.loads(capsys.readouterr().out)
    assert run("validate", str(ROWS / "korthikanti.csv"), "--json") == 0
    of_file = json.loads(capsys.readouterr().out)
    assert of_file["datasets"] == of_folder["datasets"]
    assert of_file.get("profiles") == of_folder.get("profiles")


@pytest.mark.parametrize(
    ("text", "shown"),
    [('{"layers": []}', '{"layers": []}'), ("time,loss\n1,2\n", "time, loss")],
    ids=["JSON", "another table"],
)
def test_a_file_that_is_no_table_of_runs_is_refused_with_what_it_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, shown: str
) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text, encoding="utf-8")
    for asked in (path, tmp_path):
        assert run("validate", str(asked)) == 2
        said = capsys.readouterr().err
        wanted = "file: must be a CSV table with the columns row_id, model, accelerator"
        assert said == f'error in {path}: {wanted}, got "{shown}"\n'


def test_a_training_log_is_sent_to_calibrate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.log"
    path.write_text(" iteration 1/ 9 | elapsed time per iteration (ms): 3400.1 |\n")
    assert run("validate", str(path)) == 2
    assert "a training log goes to: trainwright calibrate" in capsys.readouterr().err


def test_files_are_named_with_or_without_their_ending(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", str(ROWS), "--files", "korthikanti.csv") == 0
    assert "korthikanti" in capsys.readouterr().out
    assert run("validate", str(ROWS), "--files", "korthikanti,kortikanti") == 2
    assert 'must be of korthikanti, got "kortikanti"' in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["nan", "inf", "-1", "x", ""])
def test_a_target_is_a_finite_share(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", str(ROWS), "--fail-on", f"korthikanti.time={limit}") == 2
    assert "must be FILE.QUANTITY=SHARE" in capsys.readouterr().err


def test_layer_profiles_that_are_not_there_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", str(ROWS), "--profiles", "nowhere") == 2
    assert 'profiles: must be a folder with tables of layer times, got "nowhere"' in (
        capsys.readouterr().err
    )


def test_rows_that_state_too_little_are_counted_and_absent_columns_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (ROWS / "korthikanti.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    first["gpus_per_node"] = ""
    names = [name for name in first if name != "num_kv_heads"]
    with (tmp_path / "korthikanti.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows([first, second])
    assert run("validate", str(tmp_path), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    (dataset,) = document["datasets"]
    assert (dataset["rows"], dataset["modelled"], dataset["time"]["n"]) == (2, 1, 1)
    assert dataset["skipped"] == [{"reason": "not stated: gpus_per_node", "rows": 1}]
    assert document["warnings"] == [
        "korthikanti.csv has no column num_kv_heads: taken as not stated"
    ]
    assert run("validate", str(tmp_path)) == 0
    assert "warning: korthikanti.csv has no column" in capsys.readouterr().out


def test_options_that_nothing_reads_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROWS / "korthikanti.csv").read_text(encoding="utf-8").splitlines()
    rows = [f"{text[0]},options", *(f'{row},"{{""dropuot"": 0}}"' for row in text[1:] if row)]
    (tmp_path / "made.csv").write_text("\n".join(rows), encoding="utf-8")
    assert run("validate", str(tmp_path), "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)["warnings"]
    assert told.startswith("made.csv: options dropuot are not read, of ")


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


def test_an_estimate_needs_a_log_and_standard_input_holds_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "run.json")
    asked = "estimate llama3-8b --cluster dgx-h100 --tp 2 --global-batch 64 --sequence 4096 -o"
    assert run(*asked.split(), path) == 0
    assert run("calibrate", path) == 2
    assert "log: must be given for each document" in capsys.readouterr().err
    assert run("calibrate", path, path, "--log", "-", "--log", "-") == 2
    assert "at most once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("nosuch", "must be a file of `calibrate` or a line of H100-80GB-SXM that is built in"),
        ("nowhere/own.toml", 'got "nowhere/own.toml"'),
    ],
)
def test_a_calibration_that_is_not_there_is_named(
    name: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "estimate llama3-8b --cluster dgx-h100 --global-batch 64 --sequence 4096 --calibration"
    assert run(*asked.split(), name) == 2
    assert fault in capsys.readouterr().err


def test_a_table_without_rows_is_said_to_be_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (full,) = ROWS.glob("korthikanti.csv")
    header = full.read_text(encoding="utf-8").splitlines()[0]
    (tmp_path / "empty.csv").write_text(header + "\n", encoding="utf-8")
    assert run("validate", str(tmp_path), "--json") == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert "empty.csv has a header and no rows: nothing to predict" in warnings
    (tmp_path / "empty.csv").write_text(full.read_text(encoding="utf-8"), encoding="utf-8")
    assert run("validate", str(tmp_path), "--json") == 0
    assert "no rows" not in capsys.readouterr().out


def predictions(tmp_path: Path, lines: list[str]) -> str:
    """A table of somebody else's predictions."""
    path = tmp_path / "theirs.csv"
    path.write_text("row_id,step_time_s,step_time_low_s,step_time_high_s\n" + "\n".join(lines))
    return str(path)


def test_predictions_of_another_tool_are_scored_in_place_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (ROWS / "korthikanti.csv").open(newline="") as file:
        first, second = ((row["row_id"], float(row["step_time_s"])) for row in csv.DictReader(file))
    path = predictions(tmp_path, [f"{first[0]},{1.1 * first[1]},1,{1.05 * first[1]}", "odd,1,,"])
    assert run("validate", str(ROWS), "--predictions", path, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    (dataset,) = document["datasets"]
    assert document["predictions"] == path
    assert dataset["modelled"] == 1 and dataset["time"]["mape"] == pytest.approx(0.1)
    assert dataset["skipped"] == [{"reason": "no prediction is stated", "rows": 1}]
    assert dataset["interval_check"]["n"] == 1 and dataset["interval_coverage"] == 1.0
    assert document["warnings"][-1] == "theirs.csv: 1 predictions are of no run here, such as odd"
    path = predictions(tmp_path, [f"{first[0]},{first[1]},,", f"{second[0]},{0.5 * second[1]},,"])
    assert run("validate", str(ROWS), "--predictions", path, "--json") == 0
    (dataset,) = json.loads(capsys.readouterr().out)["datasets"]
    assert dataset["time"]["max_ape"] == pytest.approx(0.5)
    assert dataset["time"]["bias"] == pytest.approx(-0.25)
    assert "interval_coverage" not in dataset and "interval_width" not in dataset
    assert run("validate", str(ROWS), "--predictions", path) == 0
    assert "intervals" not in capsys.readouterr().out  # no table without a column


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["a,1,,", "a,2,,"], 'line 3, row_id: must stand once, got "a"'),
        ([",1,,"], 'line 2, row_id: must be the id of a row, got ""'),
        (["a,,,"], "line 2: must state step_time_s, peak_memory_bytes or static_memory_bytes"),
        (["a,,1,2"], "line 2, step_time_s: must be stated beside its range"),
        (["a,nan,,"], 'line 2, step_time_s: must be a finite number > 0, got "nan"'),
        (["a,1,1,"], "line 2, step_time_low_s: must be at most step_time_high_s, both or neither"),
        (["a,1,2,1"], "line 2, step_time_low_s: must be at most step_time_high_s, both or neither"),
    ],
)
def test_predictions_that_break_a_rule_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], told: str
) -> None:
    assert run("validate", str(ROWS), "--predictions", predictions(tmp_path, lines)) == 2
    assert told in capsys.readouterr().err


def test_predictions_are_not_refitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--predictions", predictions(tmp_path, ["a,1,,"]), "--leave-out", "source")
    assert run("validate", str(ROWS), *asked) == 2
    assert "leave-out: must not be given with predictions" in capsys.readouterr().err
