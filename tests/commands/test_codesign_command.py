"""`trainwright codesign` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwright.commands.main import main

FAST = ["codesign", "bert-large", "--devices", "64", "--tp", "1", "--max-area", "20"]
FAST += ["--schedule", "1f1b"]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@pytest.mark.slow
def test_one_document_is_printed_and_can_be_proved_again(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "chip.json"
    assert run(*FAST, "--no-pareto", "--json", "-o", str(path)) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed == json.loads(path.read_text())
    assert printed["status"] == "optimal"
    assert printed["best"]["area_mm2"] <= 20
    assert run("codesign", "--recheck", str(path), "--sample", "20", "--json") == 0
    assert json.loads(capfd.readouterr().out)["recheck"]["confirmed"] == 20


def test_a_table_names_the_design(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(*FAST, "--no-pareto", "--defect-density", "0.001") == 0
    printed = capfd.readouterr().out
    for part in ("tensor cores", "visited", "real chips", "what more would buy", "a good die"):
        assert part in printed


def test_nothing_that_fits_ends_with_3(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("codesign", "gpt3-175b", "--devices", "8", "--memory", "16GiB") == 3
    assert "needs at least" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["codesign"], "model"),
        (["codesign", "bert-large"], "devices"),
        ([*FAST, "--max-power", "much"], "max-power"),
        ([*FAST, "--micro-batch", "0"], "micro-batch"),
        (["codesign", "bert-large", "--recheck", "x.json"], "the file holds the request"),
        (["codesign", "no-such-model", "--devices", "8"], "no-such-model"),
        ([*FAST, "--chip", "dgx-h100", "--csv", "x.csv"], "csv: must not be given with --chip"),
        ([*FAST, "--chip", "dgx-h100"], "max-area: must not be given: the chip is fixed"),
    ],
)
def test_mistakes_are_named_and_end_with_2(
    arguments: list[str], named: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert named in capfd.readouterr().err


@pytest.mark.slow
def test_a_front_in_two_processes_and_from_a_journal_is_the_same(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    fronts = []
    for extra in ([], ["--jobs", "2", "--journal", str(journal)], ["--journal", str(journal)]):
        assert run(*FAST, "--max-area", "5", "--json", *extra) == 0
        fronts.append(json.loads(capfd.readouterr().out)["pareto"])
    assert fronts[0] == fronts[1] == fronts[2]
    assert run(*FAST, "--max-area", "4", "--journal", str(journal)) == 2
    assert "other inputs" in capfd.readouterr().err


@pytest.mark.slow
def test_stages_run_one_by_one_give_the_same_document(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = str(tmp_path / "stages")
    quick = ("--no-pareto", "--json")
    assert run(*FAST, *quick) == 0
    whole = json.loads(capfd.readouterr().out)
    assert run(*FAST, "--stage", "graph", "--artifacts", folder, "--json") == 0
    assert json.loads(capfd.readouterr().out)["counts"]["kernels"] > 0
    assert run("codesign", "--stage", "estimate", "--artifacts", folder) == 0
    assert "products" in capfd.readouterr().out
    assert run("codesign", "--stage", "solve", "--artifacts", folder, *quick) == 0
    staged = json.loads(capfd.readouterr().out)
    assert "command_line" not in staged["request"]
    assert whole["request"].pop("command_line")["words"][:2] == ["codesign", FAST[1]]
    for found in (whole, staged):
        found.pop("search_s")
    assert whole == staged


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--stage", "graph"], "artifacts"),
        (["--artifacts", "x"], "stage"),
        (["--stage", "draw", "--artifacts", "x"], "stage"),
        (["--stage", "estimate", "--artifacts", "nowhere"], "artifacts"),
        (["bert-large", "--stage", "solve", "--artifacts", "x"], "model"),
    ],
)
def test_stages_that_cannot_run_are_named(
    arguments: list[str], named: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("codesign", *arguments) == 2
    assert named in capfd.readouterr().err


def test_estimates_of_another_request_are_refused(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = str(tmp_path)
    assert run(*FAST, "--stage", "graph", "--artifacts", folder) == 0
    assert run("codesign", "--stage", "estimate", "--artifacts", folder) == 0
    assert run(*FAST, "--max-area", "10", "--stage", "graph", "--artifacts", folder) == 0
    assert run("codesign", "--stage", "solve", "--artifacts", folder) == 2
    assert "another request" in capfd.readouterr().err
    (tmp_path / "estimates.npz").write_text("nothing")
    assert run("codesign", "--stage", "solve", "--artifacts", folder) == 2
    assert "archive" in capfd.readouterr().err
