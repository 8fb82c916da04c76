"""Measured and dry-run rows in one schema: scored as before, each with where it comes from."""

import csv
import shutil
from pathlib import Path

import open_table
import pytest

from trainwright.commands.validate import validate
from trainwright.errors import InvalidInput

EXAMPLES = Path(__file__).parents[2] / "examples" / "measured"


def _scores(folder: Path, table: str) -> object:
    return validate(folder, files=(table,)).document.datasets


def test_rows_score_in_the_common_schema_as_they_did_in_their_own(tmp_path: Path) -> None:
    out = tmp_path / "open"
    assert open_table.main([str(out), str(EXAMPLES)]) == 0
    tables = [path.stem for path in EXAMPLES.glob("*.csv")]
    assert tables
    for table in tables:
        assert _scores(out, table) == _scores(EXAMPLES, table)


def test_all_tables_have_the_same_columns_and_every_row_says_where_it_comes_from(
    tmp_path: Path,
) -> None:
    out = tmp_path / "open"
    open_table.write(out, [EXAMPLES])
    headers, rows = set(), []
    for path in out.glob("*.csv"):
        with path.open(encoding="utf-8") as file:
            reader = csv.DictReader(file)
            headers.add(tuple(reader.fieldnames or ()))
            rows += list(reader)
    assert len(headers) == 1
    assert {row["evidence"] for row in rows} == {"measured", "dry-run"}
    assert all(row["source"] and row["row_id"] for row in rows)


def test_what_a_row_sets_beyond_its_columns_is_priced(tmp_path: Path) -> None:
    """A loss in pieces, 16-bit sums of gradients, loaded experts: told apart by options alone."""
    out = tmp_path / "open"
    open_table.write(out, [])
    table = out / "dry_runs.csv"
    header, *lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    chosen = [
        next(line for line in lines if mark in line) for mark in ("-l1024", "-sumbf16", "hot4")
    ]
    table.write_text("".join([header, *chosen]), encoding="utf-8")
    (found,) = validate(table).document.datasets
    assert found.memory is not None and found.memory.n == 3
    assert found.memory.max_ape < 0.02


def test_a_tool_that_counts_bytes_is_scored_on_dry_runs(tmp_path: Path) -> None:
    """They have no time, so there is none to predict."""
    out, theirs = tmp_path / "open", tmp_path / "theirs.csv"
    open_table.write(out, [])
    with (out / "dry_runs.csv").open(newline="", encoding="utf-8") as file:
        rows = [(row["row_id"], float(row["peak_memory_bytes"])) for row in csv.DictReader(file)]
    lines = [f"{row_id},{1.25 * held}" for row_id, held in rows]
    theirs.write_text("\n".join(["row_id,peak_memory_bytes", *lines]), encoding="utf-8")
    (found,) = validate(out, predictions=theirs).document.datasets
    assert found.modelled == found.rows == len(rows) and found.time is None
    assert found.memory is not None and found.memory.n == len(rows)  # no two are repeats
    assert found.memory.bias == pytest.approx(0.25)
    theirs.write_text("row_id,bytes\nfirst,5e10\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match="must have a column step_time_s, peak_memory_bytes"):
        validate(out, predictions=theirs)


@pytest.mark.slow
def test_the_fullest_rank_of_each_dry_run_is_predicted_within_three_percent_in_the_mean(
    tmp_path: Path,
) -> None:
    out = tmp_path / "open"
    open_table.write(out, [])
    table = out / "dry_runs.csv"
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    table.write_text("".join(lines[:1] + lines[1::8]), encoding="utf-8")
    (found,) = validate(table).document.datasets
    assert found.modelled == found.rows > 10
    assert found.memory is not None
    assert found.memory.mape < 0.03
    assert found.false_fits == 0


def test_two_tables_of_one_name_are_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again, out = tmp_path / "again", tmp_path / "open"
    shutil.copytree(EXAMPLES, again)
    assert open_table.main([str(out), str(EXAMPLES), str(again)]) == 2
    assert "rename one" in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "open"
    open_table.write(out, [])
    before = (out / "dry_runs.csv").read_bytes()
    (out / "dry_runs.csv").write_bytes(before[:100])
    assert open_table.main([str(out)]) == 2
    assert (out / "dry_runs.csv").read_bytes() == before[:100]
