"""A journal as a file of JSON lines: what it is about, then one line per finished batch.

A line is written and flushed at once. A last line that was cut off counts as not written. A journal
about other inputs is refused, for its batches would answer another question.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from trainwright.errors import InvalidInput
from trainwright.formats.atomic_file import read_bytes, write_text

_KIND: Final = "journal"


class FileJournal:
    """The journal at `path`, about the inputs with the hash `about`; made if it is not there.

    Raises `InvalidInput` where the file is no journal, is about other inputs, or cannot be written.
    """

    def __init__(self, path: str | Path, *, about: str) -> None:
        self._path = Path(path)
        self._known: dict[str, Any] = {}
        header = json.dumps({"kind": _KIND, "about": about}) + "\n"
        if not self._path.exists() or not self._path.stat().st_size:
            write_text(self._path, header)
            return
        whole = self._lines()
        self._check(whole[0], about)
        for line in whole[1:]:
            self._known[line["key"]] = line["value"]
        kept = [json.dumps({"key": key, "value": value}) for key, value in self._known.items()]
        write_text(self._path, header + "".join(f"{line}\n" for line in kept))

    def _lines(self) -> list[Any]:
        text = read_bytes(self._path, name="journal").decode(errors="replace")
        lines: list[Any] = []
        for number, line in enumerate(text.splitlines()):
            try:
                lines.append(json.loads(line))
            except ValueError:
                if number == 0:
                    raise self._not_one() from None
                break  # cut off while it was written
        return lines

    def _check(self, header: Any, about: str) -> None:
        if not isinstance(header, dict) or header.get("kind") != _KIND:
            raise self._not_one()
        if header.get("about") != about:
            problem = f'is about other inputs: "{self._path}"; name another file or remove it'
            raise InvalidInput.of("journal", problem)

    def _not_one(self) -> InvalidInput:
        return InvalidInput.of("journal", f'must be a journal of this command: "{self._path}"')

    def find(self, key: str) -> Any | None:
        """What a finished batch gave; None where it is not finished."""
        return self._known.get(key)

    def append(self, key: str, value: Any) -> None:
        """Write a finished batch down; raises `InvalidInput` where that fails."""
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "value": value}) + "\n")
        except OSError as error:
            raise InvalidInput.of(
                "journal", f'cannot be written, {error.strerror}: "{self._path}"'
            ) from None
        self._known[key] = value

    def __len__(self) -> int:
        return len(self._known)
