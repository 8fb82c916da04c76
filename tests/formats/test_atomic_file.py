"""Files whole or not at all, and why not."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from trainwright.errors import InvalidInput
from trainwright.formats.atomic_file import check_writable, read_bytes, write_text

as_root = hasattr(os, "geteuid") and os.geteuid() == 0
not_as_root = pytest.mark.skipif(as_root, reason="root may write everywhere")


def refusal(action, *arguments, **more) -> str:
    with pytest.raises(InvalidInput) as caught:
        action(*arguments, **more)
    (fault,) = caught.value.faults
    return str(fault)


def test_text_is_written_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "plan.json"
    check_writable(path)
    assert list(tmp_path.iterdir()) == []
    write_text(path, "α\n")
    write_text(str(path), "β\n")
    assert path.read_bytes() == "β\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "usual").write_text("")
    write_text(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("action", [check_writable, lambda path: write_text(path, "x")])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/plan.json", "its folder does not exist"),
        ("file/plan.json", "a part of its path is not a folder"),
        ("folder", "it is a folder"),
        ("n" * 300, "its name is too long"),
        ("nul\0byte", "it is not a valid path"),
        ("loop", "its links go round in circles"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_for_its_reason(tmp_path, action, name, reason):
    (tmp_path / "file").write_text("keep me")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.rglob("*"))
    told = refusal(action, tmp_path / name)
    assert told.startswith(f"output: cannot be written, {reason}: ")
    assert told.endswith("; choose another path")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "keep me"


@not_as_root
@pytest.mark.parametrize("action", [check_writable, lambda path: write_text(path, "x")])
def test_what_is_write_protected_stays_as_it_is(tmp_path, action):
    protected = tmp_path / "plan.json"
    protected.write_text("keep me")
    protected.chmod(0o444)
    assert "permission is denied" in refusal(action, protected)
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o555)
    assert "permission is denied" in refusal(action, folder / "plan.json")
    assert protected.read_text() == "keep me"
    assert list(folder.iterdir()) == []


def test_text_that_cannot_be_encoded_leaves_the_old_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("keep me")
    with pytest.raises(InvalidInput):
        write_text(path, "half a pair: \ud800")
    assert path.read_text() == "keep me"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link_to_the_written_file(tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    write_text(link, "x")
    assert link.is_symlink()
    assert target.read_text() == "x"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard = []
    listener = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    listener.start()
    check_writable(pipe)
    write_text(pipe, "to whom it may concern")
    listener.join()
    assert heard == ["to whom it may concern"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_bytes_are_read_whole(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"\0\xff")
    assert read_bytes(path) == read_bytes(str(path)) == b"\0\xff"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing", "cannot be read, there is no such file or folder: "),
        ("folder", "cannot be read, it is a folder: "),
        ("empty", "must not be empty, got the empty file "),
        ("nul\0byte", "cannot be read, it is not a valid path: "),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_for_its_reason(tmp_path, name, problem):
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    assert refusal(read_bytes, tmp_path / name, name="model").startswith(f"model: {problem}")


@not_as_root
def test_a_file_without_permission_is_refused(tmp_path):
    path = tmp_path / "secret"
    path.write_text("x")
    path.chmod(0)
    assert "permission is denied" in refusal(read_bytes, path)
