"""Journals: what is written is found again, whatever cut the file off."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwright.errors import InvalidInput
from trainwright.formats.document_json import FileJournal


def test_finished_batches_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = FileJournal(path, about="x")
    first.append("a", [1.5, "text"])
    first.append("b", {"k": None})
    again = FileJournal(path, about="x")
    assert (again.find("a"), again.find("b"), again.find("c")) == ([1.5, "text"], {"k": None}, None)
    assert len(again) == 2


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_line_that_was_cut_off_is_not_there(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal"
    first = FileJournal(path, about="x")
    first.append("a", 1)
    first.append("b", 22222)
    path.write_bytes(path.read_bytes()[:-cut])
    again = FileJournal(path, about="x")
    assert again.find("a") == 1
    again.append("c", 3)
    final = FileJournal(path, about="x")
    assert final.find("c") == 3
    assert final.find("a") == 1


def test_a_journal_about_other_inputs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    FileJournal(path, about="x").append("a", 1)
    with pytest.raises(InvalidInput, match="other inputs"):
        FileJournal(path, about="y")


@pytest.mark.parametrize("text", ["hello\n", '{"kind": "plan"}\n', "[]\n", "3\n"])
def test_other_files_are_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="journal"):
        FileJournal(path, about="x")
    assert path.read_text() == text
