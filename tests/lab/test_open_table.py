"""Measured and dry-run rows in one schema: scored as before, each with where it comes from."""

import csv
import shutil
from pathlib import Path

import open_table
import pytest

from trainwright.commands.validate import validate

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
