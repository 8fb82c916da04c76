"""Folders are written whole or not at all."""

import gzip
import hashlib
from pathlib import Path

import pytest

from trainwright.errors import InvalidInput
from trainwright.formats.atomic_file import LIST, check_folder, file_bytes, write_folder

FILES = {"a.sh": "#!/bin/sh\n", "b.txt": "two\n", "c.json.gz": "{}\n"}


def test_a_new_or_empty_folder_is_written(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        write_folder(tmp_path / name, FILES)
        assert {path.name for path in (tmp_path / name).iterdir()} == {*FILES, LIST}
    assert (tmp_path / "new" / "a.sh").stat().st_mode & 0o100
    assert gzip.decompress((tmp_path / "new" / "c.json.gz").read_bytes()) == b"{}\n"


def test_a_folder_with_files_is_refused_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(InvalidInput, match="must be a new or empty folder"):
        check_folder(tmp_path)
    write_folder(tmp_path, FILES, force=True)
    assert (tmp_path / "mine.txt").read_text() == "keep"
    assert (tmp_path / "b.txt").read_text() == "two\n"


def test_a_second_export_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    write_folder(folder, {"args.sh": "old", "launch.slurm": "old", "kept.sh": "old", "s.gz": "x"})
    (folder / "kept.sh").write_text("changed by its owner")
    (folder / "mine.txt").write_text("keep")
    write_folder(folder, {"args.sh": "new"}, force=True)
    left = {path.name for path in folder.iterdir()}
    assert left == {"args.sh", "kept.sh", "mine.txt", LIST}
    assert (folder / "args.sh").read_text() == "new"


def test_the_list_of_files_reaches_no_other_folder(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside.txt", tmp_path / "job"
    outside.write_text("keep")
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    same = hashlib.sha256(b"keep").hexdigest()
    named = ("../outside.txt", str(outside), "link", "..", "gone.txt")
    (folder / LIST).write_text("".join(f"{same}  {name}\n" for name in named) + "no list\n")
    write_folder(folder, {"a.txt": "new"}, force=True)
    assert outside.read_text() == "keep"
    assert (folder / "link").is_symlink()


@pytest.mark.parametrize("where", ["file", "missing/deep", "file/below"])
def test_what_cannot_be_a_folder_is_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match="output"):
        write_folder(tmp_path / where, FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="missing") as caught:
        check_folder(tmp_path / "missing" / "deep")
    missing = tmp_path / "missing"
    wanted = f'must lie in a folder that exists, and "{missing}" does not'
    assert caught.value.faults[0].problem == wanted


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        write_folder(tmp_path / "new", {"a": "x", "no/such": "y"})
    assert list(tmp_path.iterdir()) == []


def test_the_same_text_gives_the_same_bytes() -> None:
    first, second = (hashlib.sha256(file_bytes("a.gz", "text")).hexdigest() for _ in range(2))
    assert first == second
