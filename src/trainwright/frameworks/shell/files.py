"""Files as a script sees them: those it has written so far, and those beside it.

A script that is read may come from anyone: only regular files inside its own folder are opened,
and nothing outside it is even looked at.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Final

from trainwright.frameworks.shell.state import State
from trainwright.frameworks.shell.values import has_holes, is_hard, without_soft

LARGEST_FILE_BYTES: Final = 96 * 1024
_ALWAYS: Final = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/", "/tmp"})


class NotRead(Exception):
    """Why a file is not read, in words."""


class Stream:
    """Text that is read line by line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def line(self) -> str | None:
        """The next line with its end, None at the end of the text."""
        if self._at >= len(self._text):
            return None
        end = self._text.find("\n", self._at)
        end = len(self._text) if end < 0 else end + 1
        found, self._at = self._text[self._at : end], end
        return found

    def rest(self) -> str:
        """All that is left."""
        found, self._at = self._text[self._at :], len(self._text)
        return found


class Files:
    """What is known of files."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.state: State | None = None
        self._read: dict[str, str] = {}

    def path(self, name: str) -> str:
        """A name as a path from the script's folder, whatever folder the script is in."""
        assert self.state is not None, "files belong to a state"
        name = without_soft(name)
        return posixpath.normpath(posixpath.join(self.state.folder, name))

    def written(self, name: str) -> str | None:
        """The text of a file that the script has written."""
        assert self.state is not None, "files belong to a state"
        return self.state.files.get(self.path(name))

    def exists(self, name: str, sort: str) -> bool | None:
        """Whether `-f name` and its kin hold; None where only a run could tell."""
        assert self.state is not None, "files belong to a state"
        if not name:
            return False
        if name in _ALWAYS:
            return sort not in "fdLS" or (sort == "d" and name in ("/", "/tmp"))
        path = self.path(name)
        if path in self.state.files:
            text = self.state.files[path]
            return sort not in "dLShxpcb" and (sort != "s" or bool(text))
        if path + "/" in self.state.files or path == ".":
            return sort in "derwxaGO"
        if sort not in "efsrad":
            return None
        try:
            found = self._beside(path)
        except NotRead:
            return None
        return sort != "d" if found is not None else None

    def text(self, name: str) -> str:
        """The text of a file that was written or lies beside the script; raises `NotRead`."""
        written = self.written(name)
        if written is not None:
            return written
        path = self.path(name)
        if path in self._read:
            return self._read[path]
        found = self._beside(path)
        if found is None:
            raise NotRead("there is no such file beside the script")
        try:
            with found.open("rb") as file:
                data = file.read(LARGEST_FILE_BYTES + 1)
        except OSError:
            raise NotRead("it cannot be read") from None
        if len(data) > LARGEST_FILE_BYTES:
            raise NotRead(f"it is larger than {LARGEST_FILE_BYTES} bytes")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise NotRead("it is not text") from None
        self._read[path] = text
        return text

    def _beside(self, path: str) -> Path | None:
        """The regular file inside the script's folder that a path names, None where none is."""
        if self._folder is None:
            raise NotRead("the script has no folder")
        if is_hard(path) or has_holes(path):
            raise NotRead("its name is known only when the script runs")
        if path.startswith(("/", "..", "~")) or "\0" in path:
            raise NotRead("it lies outside the script's folder")
        try:
            home = self._folder.resolve()
            found = (home / path).resolve()
            if not found.is_relative_to(home):
                raise NotRead("it lies outside the script's folder")
            return found if found.is_file() else None
        except (OSError, ValueError, RuntimeError):
            raise NotRead("it is not a valid path") from None
